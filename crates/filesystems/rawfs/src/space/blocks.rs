//! The allocator of data blocks. Blocks are counted from the data region's begin.
//!
//! The region is divided into groups of 16 MiB, each with its lock; a thread begins where it found some last, and threads
//! begin far from each other. So no lock is everybody's.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::bits::{Bitmap, words};

/// Words of a group.
const GROUP_WORDS: usize = 64;
/// Blocks of a group: also of the longest extent.
pub const GROUP_BLOCKS: u64 = GROUP_WORDS as u64 * 64;
/// Threads with a place of their own; more share.
const HINTS: usize = 64;
/// Groups looked at for a row that is long enough, before a shorter one will do.
const TRIES: usize = 4;

/// The allocator of data blocks, in groups with a lock each.
pub struct BlockAllocator {
    groups: Box<[Mutex<BlockGroup>]>,
    blocks: u64,
    free: AtomicU64,
    /// By thread: where it found some last.
    hints: Box<[AtomicU32]>,
}

struct BlockGroup {
    /// Bits set: taken. Those behind the end are.
    words: [u64; GROUP_WORDS],
    free: u32,
    /// Where to look first.
    next: u32,
}

/// Which hint the calling thread has.
fn hint() -> usize {
    use std::cell::Cell;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static HINT: Cell<Option<usize>> = const { Cell::new(None) });
    HINT.with(|hint| {
        let own = hint.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) as usize % HINTS);
        hint.set(Some(own));
        own
    })
}

impl BlockAllocator {
    /// What is in use is taken, all else free.
    pub fn new(used: &Bitmap) -> BlockAllocator {
        let blocks = used.len();
        let count = blocks.div_ceil(GROUP_BLOCKS) as usize;
        let all = used.as_words();
        let groups: Box<[Mutex<BlockGroup>]> = (0..count)
            .map(|group| {
                let mut words = [u64::MAX; GROUP_WORDS];
                let from = &all[group * GROUP_WORDS..];
                let len = from.len().min(GROUP_WORDS);
                words[..len].copy_from_slice(&from[..len]);
                if group + 1 == count && !blocks.is_multiple_of(64) {
                    words[len - 1] |= u64::MAX << (blocks % 64);
                }
                let free = words.iter().map(|word| word.count_zeros()).sum();
                Mutex::new(BlockGroup { words, free, next: 0 })
            })
            .collect();
        // One thread after the other begins in the middle of the widest gap between those before.
        let begin = |hint: usize| ((hint as u64).reverse_bits() >> 58) * count as u64 / HINTS as u64;
        let hints = (0..HINTS).map(|hint| AtomicU32::new(begin(hint) as u32)).collect();
        BlockAllocator { groups, blocks, free: AtomicU64::new(blocks - used.used()), hints }
    }

    /// Returns the number of blocks available for allocation.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Returns the memory it takes in bytes.
    pub fn bytes(&self) -> u64 {
        self.groups.len() as u64 * size_of::<Mutex<BlockGroup>>() as u64
    }

    /// Takes up to so many in a row, from `goal` on if those are free.
    pub fn allocate(&self, goal: Option<u64>, blocks: u32) -> Option<Range<u64>> {
        let wanted = blocks.clamp(1, GROUP_BLOCKS as u32);
        let hint = &self.hints[hint()];
        let goal = goal.filter(|goal| *goal < self.blocks);
        let first = goal.map_or(hint.load(Ordering::Relaxed) as usize, |goal| (goal / GROUP_BLOCKS) as usize);
        let count = self.groups.len();
        for (least, tries) in [(wanted, TRIES), (1, count)] {
            for step in 0..tries.min(count) {
                let at = (first + step) % count;
                let goal = goal.filter(|_| step == 0).map(|goal| (goal % GROUP_BLOCKS) as u32);
                let found = self.groups[at].lock().take(goal, wanted, least);
                if let Some(found) = found {
                    hint.store(at as u32, Ordering::Relaxed);
                    self.free.fetch_sub(u64::from(found.end - found.start), Ordering::Relaxed);
                    let from = at as u64 * GROUP_BLOCKS;
                    return Some(from + u64::from(found.start)..from + u64::from(found.end));
                }
            }
        }
        None
    }

    /// Gives back what is taken. False: something of it was free, and nothing was done in that group.
    pub fn give(&self, range: Range<u64>) -> bool {
        self.each(range, |group, within| group.change(within, false))
    }

    /// Takes exactly these, if all are free.
    pub fn claim(&self, range: Range<u64>) -> bool {
        let claimed = self.each(range.clone(), |group, within| group.change(within, true));
        debug_assert!(claimed || range.end - range.start <= GROUP_BLOCKS);
        claimed
    }

    /// Nothing from a block on is given out, until something there is given back.
    pub fn fence(&self, from: u64) {
        if from >= self.blocks {
            return;
        }
        self.each(from..self.blocks, |group, within| {
            for (word, mask) in words(within) {
                group.free -= (mask & !group.words[word]).count_ones();
                group.words[word] |= mask;
            }
            true
        });
    }

    /// Whether all of them are taken.
    pub fn all_taken(&self, range: Range<u64>) -> bool {
        self.parts(range).all(|(group, within)| {
            let group = self.groups[group].lock();
            words(within).all(|(word, mask)| group.words[word] & mask == mask)
        })
    }

    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        assert!(range.end <= self.blocks && range.start < range.end, "{range:?} of {}", self.blocks);
        let mut at = range.start;
        std::iter::from_fn(move || {
            let group = at / GROUP_BLOCKS;
            let (from, to) = (at - group * GROUP_BLOCKS, (range.end - group * GROUP_BLOCKS).min(GROUP_BLOCKS));
            let part = (at < range.end).then_some((group as usize, from..to));
            at = group * GROUP_BLOCKS + to;
            part
        })
    }

    fn each(&self, range: Range<u64>, mut change: impl FnMut(&mut BlockGroup, Range<u64>) -> bool) -> bool {
        let mut all = true;
        for (group, within) in self.parts(range) {
            let mut group = self.groups[group].lock();
            let before = group.free;
            all &= change(&mut group, within);
            let after = group.free;
            drop(group);
            self.free.fetch_add(u64::from(after.saturating_sub(before)), Ordering::Relaxed);
            self.free.fetch_sub(u64::from(before.saturating_sub(after)), Ordering::Relaxed);
        }
        all
    }
}

impl BlockGroup {
    /// A row of `wanted`, or the longest there is if that is at least `least`.
    fn take(&mut self, goal: Option<u32>, wanted: u32, least: u32) -> Option<Range<u32>> {
        if self.free < least || self.free == 0 {
            return None;
        }
        let from = goal.unwrap_or(self.next).min(GROUP_BLOCKS as u32 - 1);
        let found = self.look(from..GROUP_BLOCKS as u32, wanted);
        let found = if found.end - found.start < wanted { longer(found, self.look(0..GROUP_BLOCKS as u32, wanted)) } else { found };
        if found.end - found.start < least {
            return None;
        }
        let taken = self.change(u64::from(found.start)..u64::from(found.end), true);
        assert!(taken, "a row that was just found free");
        self.next = found.end % GROUP_BLOCKS as u32;
        Some(found)
    }

    /// The first row of free blocks of this length, else the longest.
    fn look(&self, within: Range<u32>, wanted: u32) -> Range<u32> {
        let mut best = 0..0;
        let mut at = within.start;
        while let Some(start) = self.next(at, within.end, false) {
            let end = self.next(start, within.end.min(start + wanted), true).unwrap_or(within.end.min(start + wanted));
            best = longer(best, start..end);
            if end - start >= wanted {
                break;
            }
            at = end;
        }
        best
    }

    /// The first from `at` on, before `end`, that is (not) taken.
    fn next(&self, mut at: u32, end: u32, taken: bool) -> Option<u32> {
        while at < end {
            let word = self.words[(at / 64) as usize];
            let word = if taken { word } else { !word } & (u64::MAX << (at % 64));
            if word != 0 {
                let found = at / 64 * 64 + word.trailing_zeros();
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// All of them were the other way before, or nothing is done.
    fn change(&mut self, within: Range<u64>, take: bool) -> bool {
        let count = (within.end - within.start) as u32;
        let right = words(within.clone()).all(|(word, mask)| self.words[word] & mask == if take { 0 } else { mask });
        if !right {
            return false;
        }
        for (word, mask) in words(within) {
            self.words[word] ^= mask;
        }
        self.free = if take { self.free - count } else { self.free + count };
        true
    }
}

/// The first, if they are alike.
fn longer(one: Range<u32>, other: Range<u32>) -> Range<u32> {
    if other.end - other.start > one.end - one.start { other } else { one }
}
