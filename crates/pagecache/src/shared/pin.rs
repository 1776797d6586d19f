//! Pages that stay where they are while somebody looks at their bytes.
//!
//! The record says which seats have pinned a frame; how often each has is its own affair ([`SharedPages::my_pins`]). The seat's bit
//! comes and goes with the first and the last pin; whoever moves the count from or to zero holds it at [`BUSY`] meanwhile.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::frame::{Frame, NAME, PINS, WORD};
use super::list::{FREE, ORPHANS};
use super::probe::step;
use super::stats::Count;
use super::word::Word;
use super::write::check_piece;
use super::{Name, Pin, SharedPages};

const BUSY: u32 = u32::MAX;

impl SharedPages {
    /// Keeps a page in its frame until it is unpinned, or this process ends. Its bytes may be written meanwhile. None: it is not here.
    pub fn pin(&self, name: Name) -> Option<Pin> {
        self.pin_at(name, 0)
    }

    /// Likewise; the bytes from this one of the page on will be looked at first.
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline]
    pub fn pin_at(&self, name: Name, offset: usize) -> Option<Pin> {
        check_piece(offset, 0);
        let key = self.key(name);
        loop {
            let Some((at, word)) = self.look(&key, offset).or_else(|| self.find_again(&key)) else {
                self.count(Count::Misses);
                return None;
            };
            if word.is_leaving() {
                self.wait(at, word);
                continue;
            }
            // Now, for the atomic changes that follow make what comes after them wait.
            self.region.prefetch(self.data(at) + offset);
            self.add_pin(at);
            // Whoever lets a page leave says so first, and then looks at the pins; we do it the other way around. The bit was set
            // in the one order of all SeqCst operations (by us, or before the count that we added to), and this look is in it, too.
            let word = Word(self.records[at][WORD].load(SeqCst));
            if word.is_named() && !word.is_leaving() && self.records[at][NAME].load(Relaxed) == key.name {
                self.touch(at);
                self.learn(&key, at);
                self.count(Count::Hits);
                return Some(Pin { frame: at as u32 });
            }
            self.drop_pin(at);
        }
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

    #[inline]
    fn add_pin(&self, at: usize) {
        let count = &self.my_pins[at];
        loop {
            match count.load(Relaxed) {
                BUSY => std::thread::yield_now(),
                0 if count.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok() => {
                    step();
                    self.records[at][PINS].fetch_or(1 << self.me.0, SeqCst);
                    count.store(1, Release);
                    return;
                }
                // A process cannot have so many.
                0 | 0xffff_fffe => {}
                pins if count.compare_exchange(pins, pins + 1, AcqRel, Relaxed).is_ok() => return,
                _ => {}
            }
        }
    }

    #[inline]
    fn drop_pin(&self, at: usize) {
        let count = &self.my_pins[at];
        loop {
            match count.load(Relaxed) {
                0 => panic!("frame {at} is unpinned more often than pinned"),
                BUSY => std::thread::yield_now(),
                1 if count.compare_exchange(1, BUSY, Acquire, Relaxed).is_ok() => {
                    step();
                    self.records[at][PINS].fetch_and(!(1 << self.me.0), SeqCst);
                    count.store(0, Release);
                    break;
                }
                1 => {}
                pins if count.compare_exchange(pins, pins - 1, AcqRel, Relaxed).is_ok() => return,
                _ => {}
            }
        }
        // In the one order of all SeqCst operations, as in `pin`: whoever takes the name away looks at the pins after it.
        if !Word(self.records[at][WORD].load(SeqCst)).is_named() {
            self.free_orphan(at);
        }
    }

    /// A frame whose page was dropped while pinned is free when nobody looks at it any more.
    #[cold]
    fn free_orphan(&self, at: usize) {
        let frames = self.plan.frames as usize;
        let shard = self.lock(at / frames);
        shard.free_if_orphan((at % frames) as u32);
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
