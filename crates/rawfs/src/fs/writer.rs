//! The thread that writes back what has waited long enough. Errors are kept with the files, for their handles.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::core::Core;
use super::error::{Error, Result};

/// See the module.
pub struct Writer {
    /// Taken to end it.
    running: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// `None`, if nothing is to be written by time.
    pub fn start(core: &Arc<Core>) -> Result<Option<Writer>> {
        let every = core.settings.write_back;
        if every.is_zero() {
            return Ok(None);
        }
        let (running, ended) = sync_channel(0);
        let core = Arc::downgrade(core);
        let work = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let Some(core) = core.upgrade() else { break };
                if let Err(error) = core.write_back_all(false) {
                    tracing::warn!(%error, "write-back");
                }
            }
        };
        let thread = std::thread::Builder::new().name("rawfs-writer".into()).spawn(work);
        let thread = thread.map_err(|_| Error::Store(crate::Error::NoResources))?;
        Ok(Some(Writer { running: Some(running), thread: Some(thread) }))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.running = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
