//! Requests to the write-back thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::job::WriteBackJob;

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
    /// A caller waits for this.
    job: Option<Arc<WriteBackJob>>,
}

/// Why the write-back thread wakes.
pub enum WakeReason {
    /// A caller waits for this job.
    Help(Arc<WriteBackJob>),
    /// Memory is getting full.
    Full,
    /// The time is over.
    Time,
    /// The thread is to end.
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

    /// Requests that the thread ends.
    pub fn end(&self) {
        self.asked.lock().end = true;
        self.heard.notify_all();
    }

    /// Waits for a request, at most until this time.
    pub fn wait(&self, until: Instant) -> WakeReason {
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
