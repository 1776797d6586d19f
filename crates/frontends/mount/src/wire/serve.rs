//! Serving a mount, by the queues or by the device.

use std::io;

use fuser::SessionACL;

use super::begin::PreparedMount;
use super::device::Readers;
use super::filesystem::FileSystem;
use super::queues::CpuQueues;

impl<F: FileSystem> PreparedMount<F> {
    /// Serves until the mount has gone.
    pub fn run(self) -> io::Result<()> {
        let PreparedMount { fs, session, device, mut ports, transport, config } = self;
        let threads = config.n_threads.unwrap_or(1).max(1);
        let owner = (config.acl == SessionACL::Owner).then(|| rustix::process::geteuid().as_raw());
        let readers = Readers::new(&*fs, owner, &device, threads, config.clone_fd && threads > 1);
        let spare = ports.pop();
        let queues = CpuQueues::new(&readers, &transport, ports.len());
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
