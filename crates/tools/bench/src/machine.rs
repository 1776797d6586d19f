//! The machine on which results were measured.

use serde::{Deserialize, Serialize};

/// The machine's description, stored with every result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// Number of usable CPU cores.
    pub cores: usize,
    /// Size of memory, in bytes.
    pub memory_bytes: u64,
    /// Release of the running kernel.
    pub kernel: String,
    /// Name of the Linux distribution.
    pub system: String,
    /// Version of the measuring program.
    pub version: String,
    /// One-minute load average before the run: other work on the machine.
    pub load: f64,
}

impl Machine {
    /// Returns the description of this machine.
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
