//! The thread that listens to changes by other processes of the cache, as those see it that serve requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// The thread that listens to changes.
#[derive(Default)]
pub struct ListenerThread {
    has_ended: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ListenerThread {
    /// Stores the thread, which [`ListenerThread::end`] waits for.
    pub fn set_thread(&self, thread: JoinHandle<()>) {
        *self.thread.lock() = Some(thread);
    }

    /// Returns whether the thread has to end.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the thread, which `wake` wakes, and waits for it.
    pub fn end(&self, wake: impl FnOnce()) {
        self.has_ended.store(true, Ordering::Release);
        wake();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}
