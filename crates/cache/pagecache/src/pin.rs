//! Pins pages in their frames while a caller uses their bytes in place.
//!
//! The record says which process slots have pinned a frame; each process counts its own pins ([`SharedPages::my_pins`]). The process
//! slot's bit is set with the first pin and cleared with the last. A thread that changes the count from or to zero holds it at [`BUSY`]
//! meanwhile.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::list::{FREE, ORPHANS};
use super::probe::step;
use super::record::{Frame, NAME, PINS, Record, WORD, stored};
use super::stats::Count;
use super::word::Word;
use super::write::check_piece;
use super::{Name, Pin, SharedPages};

const BUSY: u32 = u32::MAX;

impl SharedPages {
    /// Keeps a page in its frame until it is unpinned, or this process ends. Its bytes may be written meanwhile. Returns `None` if the
    /// page is not cached.
    pub fn pin(&self, name: Name) -> Option<Pin> {
        self.pin_at(name, 0).map(|(pin, _)| pin)
    }

    /// Pins as [`SharedPages::pin`] does, and prefetches the bytes from `offset` on. Also returns their address
    /// ([`SharedPages::address`]).
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline]
    pub fn pin_at(&self, name: Name, offset: usize) -> Option<(Pin, *const u8)> {
        check_piece(offset, 0);
        let key = self.key(name);
        loop {
            let Some((at, word)) = self.find(&key) else {
                self.count(Count::Misses);
                return None;
            };
            if word.is_leaving() {
                if !self.wait(at, word) {
                    return None;
                }
                continue;
            }
            // Prefetched now: the atomic operations that follow delay all later loads.
            let bytes = self.region.prefetch(self.data(at) + offset);
            if self.pin_seen(at, &self.records[at], word, key.name) {
                return Some((Pin { frame: at as u32 }, bytes));
            }
        }
    }

    /// Pins the frame that had the name with this word. Returns false if it has the name no more. Rare cases are separate functions, so
    /// that nothing is prepared for them here.
    #[inline(always)]
    pub(super) fn pin_seen(&self, at: usize, record: &Record, word: Word, name: u64) -> bool {
        let count = &self.my_pins[at];
        if count.compare_exchange(0, BUSY, Acquire, Relaxed).is_err() {
            return self.pin_again(at, word, name);
        }
        self.add_bit(count, record);
        self.is_pinned(at, record, word, name)
    }

    /// Returns whether the pin holds: the frame still had the name when the process slot's bit was set.
    #[inline(always)]
    fn is_pinned(&self, at: usize, record: &Record, word: Word, name: u64) -> bool {
        // An evicting thread sets `LEAVING` first, and then reads the pins; this does it in the opposite order. The bit was set in the
        // single order of all SeqCst operations (by us, or before the count that we added to), and this load is in that order too.
        if record[WORD].load(SeqCst) != word.0 {
            return self.pin_changed(at, name);
        }
        self.touch(at, record);
        self.count(Count::Hits);
        true
    }

    /// Pins a frame that this process has pinned already, or had when that was checked.
    #[cold]
    #[inline(never)]
    fn pin_again(&self, at: usize, word: Word, name: u64) -> bool {
        let (count, record) = (&self.my_pins[at], &self.records[at]);
        if is_first(count) {
            self.add_bit(count, record);
        }
        self.is_pinned(at, record, word, name)
    }

    #[inline(always)]
    fn add_bit(&self, count: &AtomicU32, record: &Record) {
        step();
        record[PINS].fetch_or(self.my_bit, SeqCst);
        count.store(1, Release);
    }

    /// Handles a word that has changed: returns whether the pinned frame still has the name, and unpins it if not.
    #[cold]
    #[inline(never)]
    fn pin_changed(&self, at: usize, name: u64) -> bool {
        let record = &self.records[at];
        let now = Word(record[WORD].load(SeqCst));
        let has = now.is_named() && !now.is_leaving() && record[NAME].load(Relaxed) == stored(name, at);
        if has {
            self.touch(at, record);
            self.count(Count::Hits);
        } else {
            self.drop_pin(at);
        }
        has
    }

    /// Releases a pin. Its address must not be used any more.
    #[inline]
    pub fn unpin(&self, pin: Pin) {
        self.drop_pin(pin.frame as usize);
    }

    /// Returns the address of a pinned page's 4096 bytes. Others may change them at any time.
    #[inline]
    pub fn address(&self, pin: &Pin) -> *const u8 {
        self.region.address(self.data(pin.frame as usize))
    }

    #[inline(always)]
    fn drop_pin(&self, at: usize) {
        let count = &self.my_pins[at];
        if count.compare_exchange(1, BUSY, Acquire, Relaxed).is_err() {
            return self.drop_one_of_several(at);
        }
        self.drop_bit(at, count);
    }

    #[cold]
    #[inline(never)]
    fn drop_one_of_several(&self, at: usize) {
        let count = &self.my_pins[at];
        if is_last(count, at) {
            self.drop_bit(at, count);
        }
    }

    #[inline(always)]
    fn drop_bit(&self, at: usize, count: &AtomicU32) {
        let record = &self.records[at];
        step();
        record[PINS].fetch_and(!self.my_bit, SeqCst);
        count.store(0, Release);
        // In the single order of all SeqCst operations, as in `pin`: a thread that removes the name reads the pins after that.
        if !Word(record[WORD].load(SeqCst)).is_named() {
            self.free_orphan(at);
        }
    }

    /// Frees a frame whose page was dropped while pinned, unless it is still pinned.
    #[cold]
    fn free_orphan(&self, at: usize) {
        let frames = self.plan.frames as usize;
        // If that fails, the next repair of the shard frees it.
        if let Some(shard) = self.lock(at / frames) {
            shard.free_if_orphan((at % frames) as u32);
        }
    }
}

/// Adds a pin to a frame that this process had pinned when that was checked. Returns true if it has none any more; the count is then
/// `BUSY`.
fn is_first(count: &AtomicU32) -> bool {
    loop {
        match count.load(Relaxed) {
            BUSY => std::thread::yield_now(),
            0 if count.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok() => return true,
            // A process cannot have this many.
            0 | 0xffff_fffe => {}
            pins if count.compare_exchange(pins, pins + 1, AcqRel, Relaxed).is_ok() => return false,
            _ => {}
        }
    }
}

/// Removes one of several pins. Returns true if it is the last one; the count is then `BUSY`.
fn is_last(count: &AtomicU32, at: usize) -> bool {
    loop {
        match count.load(Relaxed) {
            0 => panic!("frame {at} is unpinned more often than pinned"),
            BUSY => std::thread::yield_now(),
            1 if count.compare_exchange(1, BUSY, Acquire, Relaxed).is_ok() => return true,
            1 => {}
            pins if count.compare_exchange(pins, pins - 1, AcqRel, Relaxed).is_ok() => return false,
            _ => {}
        }
    }
}

impl super::shard::Shard<'_> {
    /// Frees a frame of the orphans that is not pinned any more.
    pub fn free_if_orphan(&self, local: u32) {
        let record = &self.records[local as usize];
        if self.queue(local) == ORPHANS && !record.word().is_named() && record[PINS].load(SeqCst) == 0 {
            self.unlink(local);
            self.push_first(FREE, local);
        }
    }
}
