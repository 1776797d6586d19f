//! Counters in sets: up to eight threads of a process each have their own.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use shm::ProcessSlot;

use super::list::{FREE, ORPHANS, len_in};
use super::record::PINS;
use super::shape::COUNTER_SETS;
use super::shard::{EVICTIONS, INSERTS, REPAIRS};
use super::{Counters, SharedPages, Stats};

/// The events that are counted without a lock.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Hits,
    Misses,
    Writes,
}

const NO_COUNTER_SET: usize = usize::MAX;
/// One access of this many is timed: the clock costs as much as a hit.
const TIMED: u64 = 64;

thread_local! {
    static COUNTER_SET: Cell<usize> = const { Cell::new(NO_COUNTER_SET) };
}

#[inline(always)]
fn counter_set() -> usize {
    match COUNTER_SET.get() {
        NO_COUNTER_SET => new_counter_set(),
        set => set,
    }
}

#[cold]
#[inline(never)]
fn new_counter_set() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    COUNTER_SET.set(NEXT.fetch_add(1, Relaxed) % COUNTER_SETS);
    COUNTER_SET.get()
}

/// The set of counters that this thread uses.
#[derive(Clone, Copy)]
pub struct ThreadCounters<'a>(&'a Counters);

impl ThreadCounters<'_> {
    /// Increments a counter of this set; returns its value. It uses a load and a store: an atomic addition would wait for all earlier
    /// stores of the copy.
    #[inline(always)]
    pub(super) fn count(self, what: Count) -> u64 {
        let counter = &self.0[what as usize];
        let now = counter.load(Relaxed).wrapping_add(1);
        counter.store(now, Relaxed);
        now
    }

    /// Returns whether the next hit is one of 64 that are timed.
    #[inline(always)]
    pub fn is_read_timed(self) -> bool {
        self.0[Count::Hits as usize].load(Relaxed).is_multiple_of(TIMED)
    }

    /// Returns whether the next write is one of 64 that are timed.
    #[inline(always)]
    pub fn is_write_timed(self) -> bool {
        self.0[Count::Writes as usize].load(Relaxed).is_multiple_of(TIMED)
    }
}

impl SharedPages {
    /// Returns the set of counters that this thread uses.
    #[inline(always)]
    pub fn thread_counters(&self) -> ThreadCounters<'_> {
        ThreadCounters(&self.my_counters[counter_set() % COUNTER_SETS])
    }

    #[inline(always)]
    pub(super) fn count(&self, what: Count) -> u64 {
        self.thread_counters().count(what)
    }

    /// Returns the state of the cache and its counts.
    pub fn stats(&self) -> Stats {
        let counted = |what: Count| self.counters.iter().fold(0_u64, |sum, set| sum.wrapping_add(set[what as usize].load(Relaxed)));
        let summed = |word: usize| self.heads.iter().fold(0_u64, |sum, head| sum.wrapping_add(head[word].load(Relaxed)));
        Stats {
            frames: self.frames(),
            free: self.free(),
            marked: self.marked_count(),
            orphans: self.heads.iter().map(|head| len_in(head, ORPHANS)).sum(),
            hits: counted(Count::Hits),
            misses: counted(Count::Misses),
            writes: counted(Count::Writes),
            inserts: summed(INSERTS),
            evictions: summed(EVICTIONS),
            repairs: summed(REPAIRS),
        }
    }

    /// Returns the number of pages that the owners of a process slot have read from frames.
    pub fn hits_of(&self, process: ProcessSlot) -> u64 {
        let sets = self.counters.iter().skip(usize::from(process.0) * COUNTER_SETS).take(COUNTER_SETS);
        sets.fold(0, |sum, set| sum.wrapping_add(set[Count::Hits as usize].load(Relaxed)))
    }

    /// Returns the number of pinned frames. Reads all records.
    pub fn pinned(&self) -> u32 {
        self.records.iter().map(|record| u32::from(record[PINS].load(Relaxed) != 0)).sum()
    }

    /// Returns the number of free frames.
    pub fn free(&self) -> u32 {
        self.heads.iter().map(|head| len_in(head, FREE)).fold(0, u32::saturating_add)
    }
}
