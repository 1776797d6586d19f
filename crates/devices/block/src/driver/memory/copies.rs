//! The copies of a queue that many share: whoever rings makes them, several at once, and nobody who holds the queue waits for one.

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

/// Arenas known here; requests with others are not left.
pub(super) const ARENAS_MAX: usize = 64;
/// Copies that one thread takes at a time: so few that the next one has some left.
const BATCH: usize = 8;

/// One copy, checked.
#[derive(Clone, Copy)]
pub(super) struct Copy {
    pub tag: Tag,
    pub op: Op,
    /// In the device, in bytes.
    pub at: usize,
    /// Its number.
    pub arena: usize,
    pub memory_at: usize,
    pub bytes: usize,
}

/// See the module.
pub(super) struct Copies {
    blocks: Arc<Region>,
    arenas: Box<[OnceLock<Arena>]>,
    list: Mutex<List>,
    quiet: Condvar,
}

struct List {
    left: VecDeque<Copy>,
    ended: CompletionRing,
    /// Taken, and not ended.
    under_way: u32,
    /// Nobody wants to know of what is under way.
    forgetting: bool,
}

impl Copies {
    pub(super) fn new(blocks: Arc<Region>, depth: u32) -> Copies {
        let left = VecDeque::with_capacity(depth as usize);
        let list = List { left, ended: CompletionRing::new(depth), under_way: 0, forgetting: false };
        let arenas = (0..ARENAS_MAX).map(|_| OnceLock::new()).collect();
        Copies { blocks, arenas, list: Mutex::new(list), quiet: Condvar::default() }
    }

    /// The next number's.
    pub(super) fn register(&self, arena: &Arena) {
        if let Some(place) = self.arenas.iter().find(|place| place.get().is_none()) {
            let _ = place.set(arena.clone());
        }
    }

    pub(super) fn leave(&self, copy: Copy) {
        self.list.lock().left.push_back(copy);
    }

    /// Makes what is left; what others have taken may be under way still.
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

    /// Gives up what is left, and what has ended; returns when nobody copies any more.
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
