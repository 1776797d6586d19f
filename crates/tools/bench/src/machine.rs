//! What it was measured on.

use serde::{Deserialize, Serialize};

/// Written with every result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Processor.
    pub cpu: String,
    /// Cores we may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel.
    pub kernel: String,
    /// Distribution.
    pub system: String,
    /// Of this program.
    pub version: String,
    /// Mean number of running tasks in the minute before: other work on the machine.
    pub load: f64,
}

impl Machine {
    /// This one, now.
    pub fn here() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, key: &str, mark: char| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(mark).map_or(String::new(), |(_, value)| value.trim().trim_matches('"').to_owned())
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal", ':');
        let kib: u64 = memory.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Machine {
            cpu: value(&read("/proc/cpuinfo"), "model name", ':'),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib << 10,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            system: value(&read("/etc/os-release"), "PRETTY_NAME", '='),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }
}
