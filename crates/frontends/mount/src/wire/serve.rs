//! Serving a mount, by the queues or by the device.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use fuser::SessionACL;

use super::begin::PreparedMount;
use super::device::{ReadEnd, Readers};
use super::filesystem::FileSystem;
use super::pause::ReaderPause;
use super::queues::CpuQueues;
use crate::blocking_pool::BlockingPool;
use crate::reader_pool::ReaderPool;

/// Why a mount is served no longer.
#[derive(Debug)]
pub enum ServeEnd {
    /// The mount has gone.
    Unmounted,
    /// The readers were stopped: the mount is there, and waits for somebody who serves it by this device.
    Stopped(Arc<OwnedFd>),
}

/// Stops serving a mount between two requests.
pub struct MountStopper {
    /// Number of threads that read requests.
    pub(super) threads: usize,
    pub(super) pause: ReaderPause,
    pub(super) blocking_pool: BlockingPool,
    pub(super) reader_pool: ReaderPool,
}

impl MountStopper {
    /// Creates the stopper of a mount with so many reading threads.
    pub(super) fn new(threads: usize) -> MountStopper {
        let (pause, blocking_pool) = (ReaderPause::default(), BlockingPool::default());
        MountStopper { threads, pause, blocking_pool, reader_pool: ReaderPool::new(threads) }
    }

    /// Lets the threads finish the requests that they have, and take no other. Returns whether all have done so by the deadline.
    pub fn pause(&self, deadline: Instant) -> bool {
        self.pause.pause(deadline, &|| self.reader_pool.wake_all())
    }

    /// Returns whether no request waits for a slow disk.
    pub fn is_idle(&self) -> bool {
        self.blocking_pool.is_idle()
    }

    /// Lets the threads go on.
    pub fn resume(&self) {
        self.pause.resume();
    }

    /// Ends serving: [`PreparedMount::run`] returns.
    pub fn end(&self) {
        self.pause.end();
    }
}

impl<F: FileSystem> PreparedMount<F> {
    /// Serves until the mount has gone, or its stopper ends that.
    pub fn run(self) -> io::Result<ServeEnd> {
        let PreparedMount { fs, session, device, mut ports, transport, config, stopper } = self;
        let threads = stopper.threads;
        let owner = (config.acl == SessionACL::Owner).then(|| rustix::process::geteuid().as_raw());
        let readers = Readers::new(&*fs, owner, &device, config.clone_fd && threads > 1, stopper);
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
        let (failed, panicked) = (readers.failed(), queues.panicked());
        if let Ok(ReadEnd::Stopped) = served {
            // Dropped, it would unmount.
            std::mem::forget(session);
            return Ok(ServeEnd::Stopped(Arc::clone(&device)));
        }
        drop(session);
        served?;
        if failed || panicked { Err(io::Error::other("a request ended in a bug (see the log)")) } else { Ok(ServeEnd::Unmounted) }
    }
}
