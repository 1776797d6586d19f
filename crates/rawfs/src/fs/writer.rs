//! The thread that writes back what has waited long enough, or what there is too much of. Errors are kept with the files, for their
//! handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::core::Core;
use super::error::{Error, Result};

/// See the module.
pub struct Writer {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

/// Wakes the thread.
#[derive(Default)]
pub struct Bell {
    rung: AtomicBool,
    end: Mutex<bool>,
    heard: Condvar,
}

/// Why the thread goes on.
#[derive(PartialEq, Eq)]
enum Why {
    /// Memory is getting full.
    Full,
    /// It is time.
    Time,
    End,
}

impl Bell {
    /// Memory is getting full.
    pub fn ring(&self) {
        if !self.rung.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::SeqCst) {
            let _end = self.end.lock();
            self.heard.notify_all();
        }
    }

    fn wait(&self, until: Instant) -> Why {
        let mut end = self.end.lock();
        loop {
            if *end {
                return Why::End;
            }
            if self.rung.swap(false, Ordering::SeqCst) {
                return Why::Full;
            }
            if self.heard.wait_until(&mut end, until).timed_out() {
                return if *end { Why::End } else { Why::Time };
            }
        }
    }
}

impl Writer {
    /// `None`, if nothing is to be written by time.
    pub fn start(core: &Arc<Core>) -> Result<Option<Writer>> {
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
                    let Some(core) = core.upgrade().filter(|_| why != Why::End) else { break };
                    if why == Why::Full {
                        core.keep_room();
                        continue;
                    }
                    if let Err(error) = core.write_back_all(false) {
                        tracing::warn!(%error, "write-back");
                    }
                    next = later(every);
                }
            }
        };
        let thread = std::thread::Builder::new().name("rawfs-writer".into()).spawn(work);
        let thread = thread.map_err(|_| Error::Store(crate::Error::NoResources))?;
        Ok(Some(Writer { bell, thread: Some(thread) }))
    }
}

fn later(every: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(every).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}

impl Drop for Writer {
    fn drop(&mut self) {
        *self.bell.end.lock() = true;
        self.bell.heard.notify_all();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
