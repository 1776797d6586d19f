//! Serving a mount, by the queues or by the device.

use std::io;
use std::sync::Arc;

use fuser::SessionACL;

use super::begin::PreparedMount;
use super::device::Readers;
use super::filesystem::FileSystem;
use super::queues::CpuQueues;
use super::watched::WatchedReaders;

impl<F: FileSystem> PreparedMount<F> {
    /// Serves until the mount has gone.
    pub fn run(self) -> io::Result<()> {
        let PreparedMount { fs, session, device, mut ports, transport, config } = self;
        let threads = config.n_threads.unwrap_or(1).max(1);
        let owner = (config.acl == SessionACL::Owner).then(|| rustix::process::geteuid().as_raw());
        // Requests over io_uring have no deadline: each waits on the thread that must hand its reply over.
        if ports.is_empty()
            && let Some(watchdog) = fs.watchdog().cloned()
        {
            let served = Arc::new(WatchedReaders::new(fs, owner, device, threads, watchdog)).serve();
            drop(session);
            return served;
        }
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
