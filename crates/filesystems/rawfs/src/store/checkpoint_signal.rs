//! Requests to the checkpoint thread.

use parking_lot::{Condvar, Mutex};

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

    /// Ends the thread once it has finished its checkpoint.
    pub fn end(&self) {
        self.asked.lock().end = true;
        self.rung.notify_all();
    }

    /// Waits for the next request; returns `false` once the thread is to end.
    pub fn wait(&self) -> bool {
        let mut asked = self.asked.lock();
        while !asked.checkpoint && !asked.end {
            self.rung.wait(&mut asked);
        }
        asked.checkpoint = false;
        !asked.end
    }
}
