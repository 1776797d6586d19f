//! How a process leads: in a separate thread, or in steps that the requesters run.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use crate::engine::layout::Word;
use crate::engine::{CacheEngine, InlineLeader};

/// After a panic of its thread, a process tries to lead again after this delay, unless another process leads by then.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

impl InlineLeader for Worker {
    fn step(&mut self, engine: &CacheEngine) -> bool {
        Worker::step(self, engine)
    }
}

impl CacheEngine {
    /// Lets requesters run the leader's steps. For a single process without threads, and for simulations.
    pub fn lead_inline(&self, worker: Box<Worker>) {
        self.set_inline(worker);
    }

    /// Works as leader until the process detaches: waits for leadership, takes it, works. Needs a dedicated thread.
    pub fn work(self: &Arc<Self>) {
        while self.processes.lead_unless(&self.stopping, || self.reads_in_flight.restore_marks()) {
            let ended = self.beside_a_pulse(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Worker::run(self))));
            // Whatever ended the work, another process leads from here.
            self.processes.resign();
            if ended.is_err() {
                if self.header.get(Word::Beginning) != 0 {
                    Worker::refuse_all(self);
                }
                self.world.report("the thread that leads the cache ended by a mistake inside hotshelf: another goes on; please report it");
                std::thread::sleep(AGAIN_AFTER);
            }
        }
    }
}
