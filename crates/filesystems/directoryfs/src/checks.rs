//! The directories that are to be read again.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use fusedev::Caller;
use parking_lot::{Condvar, Mutex};

/// How many directories wait to be read again at most. Those beyond it are read again when they are next used.
const WAITING_MAX: usize = 65_536;

/// The directories that wait to be read again, each with a user who has looked at it.
#[derive(Default)]
pub(crate) struct Checks {
    waiting: Mutex<Waiting>,
    added: Condvar,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<(u64, Caller)>,
    known: HashSet<u64>,
    has_ended: bool,
}

impl Checks {
    /// Adds a directory, unless it waits already.
    pub fn add(&self, number: u64, caller: Caller) {
        let mut waiting = self.waiting.lock();
        if waiting.queue.len() < WAITING_MAX && waiting.known.insert(number) {
            waiting.queue.push_back((number, caller));
            self.added.notify_one();
        }
    }

    /// Waits for a directory. None: the mount ends.
    pub fn next(&self) -> Option<(u64, Caller)> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.has_ended {
                return None;
            }
            if let Some((number, caller)) = waiting.queue.pop_front() {
                waiting.known.remove(&number);
                return Some((number, caller));
            }
            self.added.wait_for(&mut waiting, Duration::from_secs(3600));
        }
    }

    /// Ends all calls that wait.
    pub fn end(&self) {
        self.waiting.lock().has_ended = true;
        self.added.notify_all();
    }
}
