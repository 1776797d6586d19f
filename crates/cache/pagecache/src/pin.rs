//! Pages that stay where they are while somebody looks at their bytes.
//!
//! The record says which process slots have pinned a frame; how often each has is its own affair ([`SharedPages::my_pins`]). The process
//! slot's bit comes and goes with the first and the last pin; whoever moves the count from or to zero holds it at [`BUSY`] meanwhile.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::find::IndexPlace;
use super::frame::{Frame, NAME, PINS, Record, WORD, stored};
use super::list::{FREE, ORPHANS};
use super::prediction::Seen;
use super::probe::step;
use super::stats::Count;
use super::word::Word;
use super::write::check_piece;
use super::{Name, Pin, SharedPages};

const BUSY: u32 = u32::MAX;

impl SharedPages {
    /// Keeps a page in its frame until it is unpinned, or this process ends. Its bytes may be written meanwhile. None: it is not here.
    pub fn pin(&self, name: Name) -> Option<Pin> {
        self.pin_at(name, 0).map(|(pin, _)| pin)
    }

    /// Likewise; the bytes from this one of the page on will be looked at first. They are where it says ([`SharedPages::address`]).
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline]
    pub fn pin_at(&self, name: Name, offset: usize) -> Option<(Pin, *const u8)> {
        check_piece(offset, 0);
        let place = self.place(name.word());
        if let Some(Seen { at, record, word, bytes }) = self.look(&place, offset)
            && !word.is_leaving()
            && self.pin_seen(at, record, word, place.name)
        {
            return Some((Pin { frame: at as u32 }, bytes));
        }
        self.pin_unguessed(place, offset)
    }

    /// By the index. By itself, so that what is prepared for it is no part of a pin that was guessed.
    #[inline(never)]
    fn pin_unguessed(&self, place: IndexPlace, offset: usize) -> Option<(Pin, *const u8)> {
        let key = self.key_of(place);
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
            // Now, for the atomic changes that follow make what comes after them wait.
            let bytes = self.region.prefetch(self.data(at) + offset);
            if self.pin_seen(at, &self.records[at], word, key.name) {
                self.learn(&place, at);
                return Some((Pin { frame: at as u32 }, bytes));
            }
        }
    }

    /// In the frame that had the name with this word. False: it has it no more. What is not usual is done by others to its end, so that
    /// nothing of this is kept for them in vain.
    #[inline(always)]
    pub(super) fn pin_seen(&self, at: usize, record: &Record, word: Word, name: u64) -> bool {
        let count = &self.my_pins[at];
        if count.compare_exchange(0, BUSY, Acquire, Relaxed).is_err() {
            return self.pin_again(at, word, name);
        }
        self.add_bit(count, record);
        self.is_pinned(at, record, word, name)
    }

    /// It is, if it still had the name when the process slot's bit was set.
    #[inline(always)]
    fn is_pinned(&self, at: usize, record: &Record, word: Word, name: u64) -> bool {
        // Whoever lets a page leave says so first, and then looks at the pins; we do it the other way around. The bit was set
        // in the one order of all SeqCst operations (by us, or before the count that we added to), and this look is in it, too.
        if record[WORD].load(SeqCst) != word.0 {
            return self.pin_changed(at, name);
        }
        self.touch(at, record);
        self.count(Count::Hits);
        true
    }

    /// Somebody of this process has pinned it, or had when this was found out.
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

    /// The word is another one since: whether the frame, which is pinned, has the name all the same. If not, it is unpinned.
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

    /// The page need not stay any longer. The address is not to be used any more.
    #[inline]
    pub fn unpin(&self, pin: Pin) {
        self.drop_pin(pin.frame as usize);
    }

    /// Where the bytes of a pinned page are. 4096 of them, while it is pinned; others may change them at any time.
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
        // In the one order of all SeqCst operations, as in `pin`: whoever takes the name away looks at the pins after it.
        if !Word(record[WORD].load(SeqCst)).is_named() {
            self.free_orphan(at);
        }
    }

    /// A frame whose page was dropped while pinned is free when nobody looks at it any more.
    #[cold]
    fn free_orphan(&self, at: usize) {
        let frames = self.plan.frames as usize;
        // Else the next repair of the shard frees it.
        if let Some(shard) = self.lock(at / frames) {
            shard.free_if_orphan((at % frames) as u32);
        }
    }
}

/// Counts one more of a frame that this process had pinned at the first look. True: it has not any more, and the count is `BUSY`.
fn is_first(count: &AtomicU32) -> bool {
    loop {
        match count.load(Relaxed) {
            BUSY => std::thread::yield_now(),
            0 if count.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok() => return true,
            // A process cannot have so many.
            0 | 0xffff_fffe => {}
            pins if count.compare_exchange(pins, pins + 1, AcqRel, Relaxed).is_ok() => return false,
            _ => {}
        }
    }
}

/// Counts one less of several. True: it is the last now, and the count is `BUSY`.
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
    pub fn free_if_orphan(&self, local: u32) {
        let record = &self.records[local as usize];
        if self.queue(local) == ORPHANS && !record.word().is_named() && record[PINS].load(SeqCst) == 0 {
            self.unlink(local);
            self.push_first(FREE, local);
        }
    }
}
