//! Taking a frame to change it: waiting for its owner, copying into it, giving it back.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use shm::{LivenessWatch, ProcessSlots};

use super::name_hash::HashedName;
use super::probe::{pause, step};
use super::record::{Frame, NAME, Record, SINCE, WRITTEN, stored};
use super::word::Word;
use super::{Marks, SharedPages};
use crate::PAGE_BYTES;

/// A page that was written whole at most this many writes ago is likely to be in the CPU caches: 32 MiB.
const NEAR: u64 = 1 << 13;

/// How often a waiter checks a taken frame before it yields the CPU, and before it sleeps.
const SPINS: u32 = 200;
const YIELDS: u32 = 230;
/// One sleep, and the number of sleeps between checks that the owner lives: two milliseconds.
const NAP: Duration = Duration::from_micros(100);
const NAPS: u32 = 20;
/// How long a waiter waits for a living owner. A copy of a page takes less than a millisecond, on a busy machine some. While the owner gets
/// no CPU ([`LivenessWatch::is_starved`]), the time does not pass. The number of sleeps counts too: while the machine is suspended, the
/// owner makes no progress either.
const STUCK_AFTER: (Duration, u32) = (Duration::from_millis(300), 200);
/// The same soon after a wait that timed out: a caller that meets several such frames does not wait as long for each.
const STUCK_AGAIN: (Duration, u32) = (Duration::from_millis(20), 20);
/// How long "soon" is, ms.
const SOON_MS: u64 = 2000;

/// A wait for the owner of a frame.
struct FrameWait<'a> {
    /// When the owner was last known to be only slow, at first the begin, and the number of sleeps until then.
    since: (Instant, u32),
    watch: LivenessWatch<'a>,
}

impl<'a> FrameWait<'a> {
    fn new(processes: &'a ProcessSlots, seen: Word) -> FrameWait<'a> {
        FrameWait { since: (Instant::now(), 0), watch: processes.watch(seen.owner()) }
    }
}

impl SharedPages {
    /// Takes the frame at an index, as [`Frame::take`].
    #[inline]
    pub(super) fn take(&self, at: usize, seen: Word, taken: Word) -> bool {
        self.records[at].take(seen, taken)
    }

    /// Takes the frame of a page, if the cache has it; waits for its current owner. Returns the word as it was.
    pub(super) fn take_named(&self, key: &HashedName, set: Marks) -> Option<(usize, Word)> {
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

    /// Waits until the word differs from `seen`, and takes the frame over if its owner is dead. Returns false if the word does not
    /// change. Then the owner was stopped during a copy, or another process wrote the word and no process ever took the frame. These
    /// cases cannot be distinguished, so the page is left alone: see [`SharedPages::is_stuck`].
    #[cold]
    pub(super) fn wait(&self, at: usize, seen: Word) -> bool {
        let mut turn = 0_u32;
        let mut wait = None;
        while self.records[at].word() == seen {
            match turn {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                YIELDS if self.is_known_stuck(at, seen) => return false,
                _ if (turn - YIELDS).is_multiple_of(NAPS) && !self.processes.is_alive(seen.owner()) => self.take_over(at, seen),
                _ if self.is_over(wait.get_or_insert_with(|| FrameWait::new(&self.processes, seen)), turn - YIELDS) => {
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

    /// Returns whether the time for the owner of a frame is over, after this many sleeps.
    fn is_over(&self, wait: &mut FrameWait<'_>, naps: u32) -> bool {
        // The clock and the list are checked only now and then.
        if naps < STUCK_AGAIN.1 || !naps.is_multiple_of(STUCK_AGAIN.1) {
            return false;
        }
        if wait.watch.is_starved() {
            wait.since = (Instant::now(), naps);
        }
        let (at_most, least) = if self.has_waited_in_vain() { STUCK_AGAIN } else { STUCK_AFTER };
        naps - wait.since.1 >= least && wait.since.0.elapsed() > at_most
    }

    /// Returns whether a wait timed out recently. That only happens while a process is stopped, or writes to memory that is not its own.
    pub(super) fn has_waited_in_vain(&self) -> bool {
        self.any_stuck.load(Relaxed) && self.ms() < self.impatient_until.load(Relaxed)
    }

    /// Records that a wait timed out, after its full time.
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

    /// Returns whether a living process has been changing the page's frame for longer than any copy takes. Such a page can be neither
    /// read nor written; the backing file may be older.
    #[inline]
    pub fn is_stuck(&self, name: super::Name) -> bool {
        self.any_stuck.load(Relaxed) && self.is_name_stuck(name)
    }

    #[cold]
    fn is_name_stuck(&self, name: super::Name) -> bool {
        let key = self.key(name);
        match self.probe(&key) {
            Some((at, word)) => self.is_known_stuck(at, word),
            // A process has started to change the index, and keeps the lock of the shard.
            None => self.is_locked(key.shard) && self.gate(&key) & 1 != 0,
        }
    }

    /// Finishes a change that a dead process started. The page may be partly written; a marked page stays marked.
    pub(super) fn take_over(&self, at: usize, seen: Word) {
        let ours = seen.taken_by(self.me);
        if seen == ours || self.take(at, seen, ours) {
            self.set_bit(at / self.plan.frames as usize, at, !ours.marks().is_none());
            self.records[at].give_back(ours.changed());
        }
    }

    /// Sets or clears the mark's bit of a frame that we have taken.
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

    /// Returns the check value stored beside a name: an overwritten name is never used to write to a file.
    #[inline]
    pub(super) fn check_of(&self, name: u64) -> u64 {
        let product = u128::from(name ^ self.secrets[0]) * u128::from(self.secrets[1] | 1);
        ((product >> 64) as u64 ^ product as u64) << 32
    }

    /// Returns the name in a frame's record.
    #[inline]
    pub(super) fn name_at(&self, at: usize) -> u64 {
        stored(self.records[at][NAME].load(Relaxed), at)
    }

    /// Returns whether a process of the cache gave the frame this name.
    #[inline]
    pub(super) fn is_named_by_us(&self, record: &Record, name: u64) -> bool {
        record[SINCE].load(Relaxed) & (!0 << 32) == self.check_of(name)
    }

    /// Returns the position of a frame's bytes in the region.
    #[inline]
    pub(super) fn data(&self, at: usize) -> usize {
        self.at + self.plan.data_at + at * PAGE_BYTES
    }

    /// Copies out of a frame; the word tells afterwards whether the copy is consistent.
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

    /// Copies a program's write into a frame that we have taken; `no` is the thread's count of writes. Whole pages that are written
    /// repeatedly stay in the CPU caches; others bypass them.
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

/// Returns whether a frame that we have taken was written whole recently, and records that it is now.
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
        // Another writer has its own count, from any start.
        assert!(!near(3, 1) && near(3, 2));
    }
}
