//! A frame's record, and taking a frame to change it.

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use super::probe::{pause, step};
use super::word::Word;
use super::{Marks, SharedPages};
use crate::PAGE_BYTES;

/// What is kept of a frame: one cache line of eight words, by these numbers.
pub(super) type Record = [AtomicU64; 8];

/// See [`Word`].
pub(super) const WORD: usize = 0;
/// File and page, as [`stored`]; means something while the word says so.
pub(super) const NAME: usize = 1;
/// One bit for each process slot that has pinned it.
pub(super) const PINS: usize = 2;
/// Times it was asked for, up to three.
pub(super) const HITS: usize = 3;
/// Since when it has a mark, milliseconds (lower half); and what [`SharedPages::check_of`] says of the name (upper half).
pub(super) const SINCE: usize = 4;
/// In which queue it is, and since when: see [`super::list`].
pub(super) const QUEUE: usize = 5;
/// Its neighbours there.
pub(super) const LINKS: usize = 6;
/// What its writer's lane had counted when it was last written whole. A hint.
pub(super) const WRITTEN: usize = 7;
/// A page that was written whole no more writes ago is likely to be in the processor's caches: 32 MiB.
const NEAR: u64 = 1 << 13;

/// Looks at a frame that is taken before the processor is given away, and before it is slept.
const SPINS: u32 = 200;
const YIELDS: u32 = 230;
/// A sleep, and how many of them until it is asked whether the owner lives: two milliseconds.
const NAP: Duration = Duration::from_micros(100);
const NAPS: u32 = 20;
/// A copy of a page takes less than a millisecond, on a busy machine some; so long is waited for an owner who lives. And so many naps, for
/// on a machine that stood still neither has had its time.
const STUCK_AFTER: (Duration, u32) = (Duration::from_millis(300), 200);
/// Likewise soon after something was waited for in vain: who meets one such frame after the other does not wait so long for each.
const STUCK_AGAIN: (Duration, u32) = (Duration::from_millis(20), 20);
/// How soon that is, ms.
const SOON_MS: u64 = 2000;

/// How a name stands in the record of a frame, and the name that what stands there means. Each frame writes names in another way: so the
/// word of one record, copied into another or written over, is no name that anybody looks for there, and no hit has to look at more.
#[inline(always)]
pub(super) fn stored(name: u64, at: usize) -> u64 {
    name ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(super) trait Frame {
    fn word(&self) -> Word;
    /// Takes the frame if its word is still as it was seen. Nobody else reads or changes it until it is given back.
    fn take(&self, seen: Word, taken: Word) -> bool;
    /// Gives a frame back that we have taken, with a new word.
    fn give_back(&self, word: Word);
}

impl Frame for Record {
    #[inline]
    fn word(&self) -> Word {
        Word(self[WORD].load(Acquire))
    }

    #[inline(always)]
    fn take(&self, seen: Word, taken: Word) -> bool {
        step();
        let done = self[WORD].compare_exchange(seen.0, taken.0, AcqRel, Relaxed).is_ok();
        // What is changed now must not be seen by a reader who saw the word before.
        fence(Release);
        done
    }

    #[inline(always)]
    fn give_back(&self, word: Word) {
        step();
        self[WORD].store(word.0, Release);
    }
}

impl SharedPages {
    /// As [`Frame::take`].
    #[inline]
    pub(super) fn take(&self, at: usize, seen: Word, taken: Word) -> bool {
        self.records[at].take(seen, taken)
    }

    /// Takes the frame of a page, if it is here; waits for whoever has it. The word as it was.
    pub(super) fn take_named(&self, key: &super::find::HashedName, set: Marks) -> Option<(usize, Word)> {
        loop {
            let (at, word) = self.find(key)?;
            if word.is_changing() {
                if !self.wait(at, word) {
                    return None;
                }
            } else if self.take(at, word, word.taken_by(self.me).with(set)) {
                return Some((at, word));
            }
        }
    }

    /// Until the word is another than was seen. Takes the frame over if its owner is dead. False: it is not, and the word stays as it is:
    /// the owner was stopped in the middle of a copy, or never took the frame, and somebody wrote that it did. Which of both, nobody
    /// can say, so the page is left alone: see [`SharedPages::is_stuck`].
    #[cold]
    pub(super) fn wait(&self, at: usize, seen: Word) -> bool {
        let mut turn = 0_u32;
        let mut begun = None;
        while self.records[at].word() == seen {
            match turn {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                YIELDS if self.is_known_stuck(at, seen) => return false,
                _ if (turn - YIELDS).is_multiple_of(NAPS) && !self.processes.is_alive(seen.owner()) => self.take_over(at, seen),
                _ if self.is_over(*begun.get_or_insert_with(Instant::now), turn - YIELDS) => {
                    let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
                    stuck.retain(|(at, word)| self.records[*at].word().0 == *word);
                    stuck.push((at, seen.0));
                    drop(stuck);
                    self.waited_in_vain();
                    return false;
                }
                _ => std::thread::sleep(NAP),
            }
            turn = turn.saturating_add(1);
        }
        true
    }

    /// Whether the owner of a frame has had its time, after so many naps.
    fn is_over(&self, begun: Instant, naps: u32) -> bool {
        // Its time is asked for, and the list looked at, only now and then.
        if naps < STUCK_AGAIN.1 || !naps.is_multiple_of(STUCK_AGAIN.1) {
            return false;
        }
        let (at_most, least) = if self.has_waited_in_vain() { STUCK_AGAIN } else { STUCK_AFTER };
        naps >= least && begun.elapsed() > at_most
    }

    /// Whether something was waited for in vain a moment ago: only while a process is stopped, or somebody writes over the memory.
    pub(super) fn has_waited_in_vain(&self) -> bool {
        self.any_stuck.load(Relaxed) && self.ms() < self.impatient_until.load(Relaxed)
    }

    /// Something was waited for in vain, as long as it is.
    pub(super) fn waited_in_vain(&self) {
        if !self.has_waited_in_vain() {
            self.impatient_until.store(self.ms() + SOON_MS, Relaxed);
        }
        self.any_stuck.store(true, Relaxed);
    }

    fn ms(&self) -> u64 {
        self.attached.elapsed().as_millis() as u64
    }

    fn is_known_stuck(&self, at: usize, seen: Word) -> bool {
        let stuck = || self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        self.any_stuck.load(Relaxed) && stuck().contains(&(at, seen.0))
    }

    /// Whether the page is in a frame that somebody who lives has been changing for longer than any copy takes. Such a page is neither
    /// read nor written; what is below may be older.
    #[inline]
    pub fn is_stuck(&self, name: super::Name) -> bool {
        self.any_stuck.load(Relaxed) && self.is_name_stuck(name)
    }

    #[cold]
    fn is_name_stuck(&self, name: super::Name) -> bool {
        let key = self.key(name);
        match self.probe(&key) {
            Some((at, word)) => self.is_known_stuck(at, word),
            // Its shard is kept by somebody who has begun to change the index.
            None => self.is_locked(key.shard) && self.gate(&key) & 1 != 0,
        }
    }

    /// Ends a change that a dead process began. The page may be written in part; if it is marked, it stays so.
    pub(super) fn take_over(&self, at: usize, seen: Word) {
        let ours = seen.taken_by(self.me);
        if seen == ours || self.take(at, seen, ours) {
            self.set_bit(at / self.plan.frames as usize, at, !ours.marks().is_none());
            self.records[at].give_back(ours.changed());
        }
    }

    /// The bit of a frame that we have taken: whether it has a mark.
    #[inline]
    pub(super) fn set_bit(&self, shard: usize, at: usize, marked: bool) {
        let local = at - shard * self.plan.frames as usize;
        let (word, bit) = (&self.bitmap[shard * self.plan.bitmap + local / 64], 1 << (local % 64));
        if (word.load(Relaxed) & bit != 0) == marked {
            return;
        }
        step();
        let before = if marked { word.fetch_or(bit, SeqCst) } else { word.fetch_and(!bit, SeqCst) };
        if (before & bit != 0) != marked {
            step();
            let count = &self.heads[shard][super::shard::MARKED];
            count.fetch_add(if marked { 1 } else { !0 }, Relaxed);
        }
    }

    /// What stands beside a name: a name that somebody wrote over is not written into a file.
    #[inline]
    pub(super) fn check_of(&self, name: u64) -> u64 {
        let product = u128::from(name ^ self.secrets[0]) * u128::from(self.secrets[1] | 1);
        ((product >> 64) as u64 ^ product as u64) << 32
    }

    /// The name in a frame's record.
    #[inline]
    pub(super) fn name_at(&self, at: usize) -> u64 {
        stored(self.records[at][NAME].load(Relaxed), at)
    }

    /// Whether the frame was given this name by a process of ours.
    #[inline]
    pub(super) fn is_named_by_us(&self, record: &Record, name: u64) -> bool {
        record[SINCE].load(Relaxed) & (!0 << 32) == self.check_of(name)
    }

    /// Where a frame's bytes are in the region.
    #[inline]
    pub(super) fn data(&self, at: usize) -> usize {
        self.at + self.plan.data_at + at * PAGE_BYTES
    }

    /// Copies out of a frame; the word tells whether it was whole.
    #[inline(always)]
    pub(super) fn copy_out(&self, at: usize, offset: usize, to: &mut [u8]) {
        if cfg!(test) {
            let (first, second) = to.split_at_mut(to.len() / 2);
            self.region.read(self.data(at) + offset, first);
            pause();
            self.region.read(self.data(at) + offset + first.len(), second);
        } else {
            self.region.read(self.data(at) + offset, to);
        }
    }

    /// Copies what a program writes into a frame that we have taken; `no`: its lane's count of writes. Whole pages that are written again
    /// and again stay in the processor's caches, others go past them.
    #[inline(always)]
    pub(super) fn copy_written(&self, (at, record): (usize, &Record), offset: usize, from: &[u8], no: u64) {
        if self.is_large && from.len() == PAGE_BYTES && !was_written(record, no) {
            self.region.write_past(self.data(at), from);
        } else {
            self.copy_in(at, offset, from);
        }
    }

    /// Copies into a frame that we have taken.
    #[inline(always)]
    pub(super) fn copy_in(&self, at: usize, offset: usize, from: &[u8]) {
        if cfg!(test) {
            let (first, second) = from.split_at(from.len() / 2);
            step();
            self.region.write(self.data(at) + offset, first);
            step();
            self.region.write(self.data(at) + offset + first.len(), second);
        } else {
            self.region.write(self.data(at) + offset, from);
        }
    }
}

/// Whether a frame that we have taken was written whole of late. It is now.
#[inline(always)]
fn was_written(record: &Record, no: u64) -> bool {
    let last = &record[WRITTEN];
    let since = no.wrapping_sub(last.load(Relaxed));
    last.store(no, Relaxed);
    since < NEAR
}

#[cfg(test)]
mod test {
    use super::super::Replacement;
    use super::super::oracle::{cache, small};
    use super::{NEAR, was_written};

    #[test]
    fn a_page_is_near_for_so_many_writes() {
        let (pages, ..) = cache(&small(64, 1, Replacement::S3Fifo));
        let near = |at: usize, no: u64| was_written(&pages.records[at], no);
        assert!(!near(3, 2 * NEAR) && near(3, 2 * NEAR) && near(3, 3 * NEAR - 1));
        assert!(!near(3, 4 * NEAR - 1), "so many later it is not");
        assert!(near(3, 4 * NEAR) && !near(4, 4 * NEAR), "each by itself");
        // Another writer counts for himself, from anywhere.
        assert!(!near(3, 1) && near(3, 2));
    }
}
