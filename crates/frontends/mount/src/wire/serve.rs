//! Serving a mount, by the queues or by the device.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fusedev::Port;
use fuser::SessionACL;

use super::begin::PreparedMount;
use super::device::{ReadEnd, Readers};
use super::filesystem::FileSystem;
use super::queues::CpuQueues;
use super::transport::Transport;
use super::watched::WatchedReaders;

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
        let PreparedMount { fs, session, device, ports, transport, config, stopper } = self;
        let threads = stopper.threads;
        let owner = (config.acl == SessionACL::Owner).then(|| rustix::process::geteuid().as_raw());
        // Requests over io_uring have no deadline: each waits on the thread that must hand its reply over.
        let served = match fs.watchdog().filter(|_| ports.is_empty()).cloned() {
            Some(watchdog) => Arc::new(WatchedReaders::new(fs, owner, Arc::clone(&device), stopper, watchdog)).serve(),
            None => {
                let readers = Readers::new(&*fs, owner, &device, config.clone_fd && threads > 1, stopper);
                serve_without_deadline(&readers, &transport, ports)
            }
        };
        if let Ok(ReadEnd::Stopped) = served {
            // Dropped, it would unmount.
            let _ = std::mem::ManuallyDrop::new(session);
            return Ok(ServeEnd::Stopped(device));
        }
        drop(session);
        served.map(|_| ServeEnd::Unmounted)
    }
}

fn serve_without_deadline<F: FileSystem>(readers: &Readers<'_, F>, transport: &Transport, mut ports: Vec<Port>) -> io::Result<ReadEnd> {
    let spare = ports.pop();
    let queues = CpuQueues::new(readers, transport, ports.len());
    let served = std::thread::scope(|scope| match spare {
        None => {
            readers.start_others(scope)?;
            readers.read(readers.device, true)
        }
        Some(spare) => {
            queues.start(scope, ports, spare);
            // What the kernel does not put there still comes by the device: which inodes it forgets.
            readers.read(readers.device, false)
        }
    });
    if !matches!(served, Ok(ReadEnd::Stopped)) && (readers.failed() || queues.panicked()) {
        served?;
        return Err(io::Error::other("a request ended in a bug (see the log)"));
    }
    served
}
