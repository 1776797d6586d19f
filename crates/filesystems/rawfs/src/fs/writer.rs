//! The thread that writes back what has waited long enough, or what there is too much of, and that helps large syncs. Errors
//! are kept with the files, for their handles.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::core::FsCore;
use super::error::{Error, Result};
use super::write_back_signal::{WakeReason, WriteBackSignal};

/// The thread that writes dirty files back.
pub struct WriteBackThread {
    bell: Arc<WriteBackSignal>,
    thread: Option<JoinHandle<()>>,
}

impl WriteBackThread {
    /// `None`, if nothing is to be written by time.
    pub fn start(core: &Arc<FsCore>) -> Result<Option<WriteBackThread>> {
        let every = core.settings.write_back;
        if every.is_zero() {
            return Ok(None);
        }
        let bell = Arc::clone(&core.bell);
        let core = Arc::downgrade(core);
        let work = {
            let bell = Arc::clone(&bell);
            move || {
                let mut next = later(every);
                loop {
                    let why = bell.wait(next);
                    let Some(core) = core.upgrade() else { break };
                    match why {
                        WakeReason::End => break,
                        WakeReason::Help(job) => job.work(|files| core.write_back_each(files, true)),
                        WakeReason::Full => core.keep_room(),
                        WakeReason::Time => {
                            if let Err(error) = core.write_back_all(false) {
                                tracing::warn!(%error, "write-back");
                            }
                            next = later(every);
                        }
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("rawfs-writer".into()).spawn(work);
        let thread = thread.map_err(|_| Error::Store(crate::Error::NoResources))?;
        Ok(Some(WriteBackThread { bell, thread: Some(thread) }))
    }
}

fn later(every: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(every).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}

impl Drop for WriteBackThread {
    fn drop(&mut self) {
        self.bell.end();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
