//! The thread that writes back what has waited long enough, or what there is too much of, and that helps large syncs. Errors
//! are kept with the files, for their handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::core::FsCore;
use super::error::{Error, Result};
use super::job::WriteBackJob;

/// The thread that writes dirty files back.
pub struct WriteBackThread {
    bell: Arc<WriteBackSignal>,
    thread: Option<JoinHandle<()>>,
}

/// Wakes the write-back thread when there is work.
#[derive(Default)]
pub struct WriteBackSignal {
    rung: AtomicBool,
    asked: Mutex<WriteBackRequests>,
    heard: Condvar,
}

#[derive(Default)]
struct WriteBackRequests {
    end: bool,
    /// Somebody waits for this.
    job: Option<Arc<WriteBackJob>>,
}

/// Why the thread goes on.
enum WakeReason {
    /// Somebody waits.
    Help(Arc<WriteBackJob>),
    /// Memory is getting full.
    Full,
    /// It is time.
    Time,
    End,
}

impl WriteBackSignal {
    /// Wakes the thread because memory is getting full.
    pub fn ring(&self) {
        if !self.rung.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::SeqCst) {
            let _asked = self.asked.lock();
            self.heard.notify_all();
        }
    }

    /// Asks for help with a job, once the thread has time; one at a time.
    pub fn help(&self, job: &Arc<WriteBackJob>) {
        let mut asked = self.asked.lock();
        if asked.job.is_none() {
            asked.job = Some(Arc::clone(job));
            self.heard.notify_all();
        }
    }

    /// Nothing of it is left for the thread.
    pub fn take_back(&self, job: &Arc<WriteBackJob>) {
        let mut asked = self.asked.lock();
        if asked.job.as_ref().is_some_and(|asked| Arc::ptr_eq(asked, job)) {
            asked.job = None;
        }
    }

    fn wait(&self, until: Instant) -> WakeReason {
        let mut asked = self.asked.lock();
        let mut late = false;
        loop {
            if asked.end {
                return WakeReason::End;
            }
            if let Some(job) = asked.job.take() {
                return WakeReason::Help(job);
            }
            if self.rung.swap(false, Ordering::SeqCst) {
                return WakeReason::Full;
            }
            if late {
                return WakeReason::Time;
            }
            late = self.heard.wait_until(&mut asked, until).timed_out();
        }
    }
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
                        WakeReason::Help(job) => job.work(&core),
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
        self.bell.asked.lock().end = true;
        self.bell.heard.notify_all();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
