//! Serving a mount, by the queues or by the device.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuser::SessionACL;

use super::begin::PreparedMount;
use super::device::{ReadEnd, Readers};
use super::filesystem::FileSystem;
use super::queues::CpuQueues;

/// Why a mount is served no longer.
#[derive(Debug)]
pub enum ServeEnd {
    /// The mount has gone.
    Unmounted,
    /// The readers were stopped: the mount is there, and waits for somebody who serves it by this device.
    Stopped(Arc<OwnedFd>),
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
            let _ = std::mem::ManuallyDrop::new(session);
            return Ok(ServeEnd::Stopped(Arc::clone(&device)));
        }
        drop(session);
        served?;
        if failed || panicked { Err(io::Error::other("a request ended in a bug (see the log)")) } else { Ok(ServeEnd::Unmounted) }
    }
}
