//! The thread that makes checkpoints.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::inner::StoreCore;
use crate::error::Error;

/// Wakes the checkpoint thread when one is due.
#[derive(Default)]
pub struct CheckpointSignal {
    asked: Mutex<CheckpointRequests>,
    rung: Condvar,
}

#[derive(Default)]
struct CheckpointRequests {
    checkpoint: bool,
    end: bool,
}

impl CheckpointSignal {
    /// Wakes the thread because a checkpoint is due.
    pub fn ring(&self) {
        let mut asked = self.asked.lock();
        if !asked.checkpoint {
            asked.checkpoint = true;
            self.rung.notify_all();
        }
    }

    fn end(&self) {
        self.asked.lock().end = true;
        self.rung.notify_all();
    }

    /// Waits for the next wish; false: no more will come.
    fn wait(&self) -> bool {
        let mut asked = self.asked.lock();
        while !asked.checkpoint && !asked.end {
            self.rung.wait(&mut asked);
        }
        asked.checkpoint = false;
        !asked.end
    }
}

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
