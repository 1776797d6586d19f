//! Serving a mount, by the queues or by the device.

use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

use fuser::SessionACL;
use hybridfs::config::SettingError;

use super::begin::PreparedMount;
use super::device::Readers;
use super::filesystem::FileSystem;
use super::queues::CpuQueues;

/// Whether requests come over io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UringMode {
    /// Where the kernel offers it.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl FromStr for UringMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "auto" => Ok(UringMode::Auto),
            "off" => Ok(UringMode::Off),
            _ => Err(SettingError { text: text.to_owned(), wanted: "one of auto, off" }),
        }
    }
}

/// Tells whether requests come over io_uring, and why if not.
#[derive(Debug, Default)]
pub struct Transport {
    why_not: OnceLock<String>,
}

impl Transport {
    /// Returns the reason why requests do not use io_uring, if they do not.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.get().map(String::as_str)
    }

    /// The first reason is the one that counts: whether this is it.
    pub(super) fn is_device(&self, why_not: String) -> bool {
        self.why_not.set(why_not).is_ok()
    }
}

impl<F: FileSystem> PreparedMount<F> {
    /// Serves until the mount has gone.
    pub fn run(self) -> io::Result<()> {
        let PreparedMount { fs, session, device, mut ports, way, config } = self;
        let threads = config.n_threads.unwrap_or(1).max(1);
        let owner = (config.acl == SessionACL::Owner).then(|| rustix::process::geteuid().as_raw());
        let readers = Readers::new(&*fs, owner, &device, threads, config.clone_fd && threads > 1);
        let spare = ports.pop();
        let queues = CpuQueues::new(&readers, &way, ports.len());
        let served = std::thread::scope(|scope| match spare {
            None => {
                readers.start_others(scope)?;
                readers.read(&device, true)
            }
            Some(spare) => {
                queues.start(scope, ports, spare);
                // What the kernel does not put there still comes by the device: which inodes it forgets.
                readers.read(&device, false)
            }
        });
        drop(session);
        served?;
        if readers.failed() || queues.panicked() { Err(io::Error::other("a request ended in a bug (see the log)")) } else { Ok(()) }
    }
}
