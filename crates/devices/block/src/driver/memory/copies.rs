//! The deferred copies of a shared queue: any thread that rings runs them, in parallel, and no holder of the queue waits for them.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shm::Region;

use crate::buffer::Arena;
use crate::driver::CompletionRing;
use crate::queue::Doorbell;
use crate::request::{Completion, Op};
use crate::sync::{Condvar, Mutex};
use crate::units::Tag;

/// The maximum number of registered arenas; requests that use others are not deferred.
pub(super) const ARENAS_MAX: usize = 64;
/// Copies that one thread takes at a time: few, so that other threads get some too.
const BATCH: usize = 8;

/// A copy whose request was checked.
#[derive(Clone, Copy)]
pub(super) struct Copy {
    /// The tag of the request, for its completion.
    pub tag: Tag,
    /// The operation, either read or write.
    pub op: Op,
    /// The offset in the device, in bytes.
    pub at: usize,
    /// The number of the arena that holds the data.
    pub arena: usize,
    /// The offset in the arena, in bytes.
    pub memory_at: usize,
    /// The length of the copy in bytes.
    pub bytes: usize,
}

/// The deferred and the completed copies of a queue.
pub(super) struct Copies {
    blocks: Arc<Region>,
    arenas: Box<[OnceLock<Arena>]>,
    list: Mutex<List>,
    quiet: Condvar,
}

struct List {
    left: VecDeque<Copy>,
    ended: CompletionRing,
    /// Copies that threads have taken and not completed.
    under_way: u32,
    /// Whether `forget` is waiting for running copies, whose completions are dropped.
    forgetting: bool,
}

impl Copies {
    pub(super) fn new(blocks: Arc<Region>, depth: u32) -> Copies {
        let left = VecDeque::with_capacity(depth as usize);
        let list = List { left, ended: CompletionRing::new(depth), under_way: 0, forgetting: false };
        let arenas = (0..ARENAS_MAX).map(|_| OnceLock::new()).collect();
        Copies { blocks, arenas, list: Mutex::new(list), quiet: Condvar::default() }
    }

    /// Registers an arena under the next free number.
    pub(super) fn register(&self, arena: &Arena) {
        if let Some(place) = self.arenas.iter().find(|place| place.get().is_none()) {
            let _ = place.set(arena.clone());
        }
    }

    pub(super) fn leave(&self, copy: Copy) {
        self.list.lock().left.push_back(copy);
    }

    /// Runs the deferred copies; copies taken by other threads may still be running.
    pub(super) fn run(&self) {
        let mut taken = [const { None }; BATCH];
        let mut list = self.list.lock();
        while !list.left.is_empty() {
            let count = list.left.len().min(BATCH);
            taken[..count].fill_with(|| list.left.pop_front());
            list.under_way += count as u32;
            drop(list);
            taken[..count].iter().flatten().for_each(|copy| self.make(copy));
            list = self.list.lock();
            list.end(&taken[..count]);
            if list.forgetting {
                self.quiet.notify_all();
            }
        }
    }

    fn make(&self, copy: &Copy) {
        let memory = self.arenas[copy.arena].get().expect("registered").region();
        match copy.op {
            Op::Read => self.blocks.copy(copy.at, memory, copy.memory_at, copy.bytes),
            _ => memory.copy(copy.memory_at, &self.blocks, copy.at, copy.bytes),
        }
    }

    pub(super) fn take_ended(&self, completions: &mut [Completion]) -> usize {
        self.list.lock().ended.take(completions)
    }

    /// Drops deferred and completed copies; returns once no thread is copying.
    pub(super) fn forget(&self) {
        let mut list = self.list.lock();
        list.left.clear();
        list.forgetting = true;
        while list.under_way > 0 {
            self.quiet.wait(&mut list, Duration::MAX);
        }
        list.forgetting = false;
        list.ended.clear();
    }
}

impl List {
    fn end(&mut self, taken: &[Option<Copy>]) {
        self.under_way -= taken.len() as u32;
        for copy in taken.iter().flatten() {
            self.ended.push(Completion { tag: copy.tag, status: Ok(()) });
        }
    }
}

impl Doorbell for Copies {
    fn ring(&self) -> bool {
        self.run();
        true
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").finish_non_exhaustive()
    }
}
