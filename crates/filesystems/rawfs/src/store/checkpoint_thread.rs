//! The thread that makes checkpoints.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::inner::StoreCore;
use crate::error::Error;

/// Ends the thread when dropped.
pub struct CheckpointThread {
    inner: Arc<StoreCore>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointThread {
    /// Begins.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(inner: &Arc<StoreCore>) -> Result<CheckpointThread, Error> {
        let of_thread = Arc::clone(inner);
        let run = move || {
            while of_thread.bell.wait() {
                // The log remembers a failure, and reports it to all waiters.
                let _ = of_thread.checkpoint_ahead();
            }
        };
        let thread = std::thread::Builder::new().name("rawfs-checkpoint".to_owned()).spawn(run).map_err(|_| Error::NoResources)?;
        inner.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(CheckpointThread { inner: Arc::clone(inner), thread: Some(thread) })
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.inner.waiting.fetch_add(1, Ordering::Relaxed);
        self.inner.bell.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
