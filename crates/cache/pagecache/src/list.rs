//! The lists of a shard: each frame is in one of four, linked by its number plus one.
//!
//! They are derived: a process that finds an invalid link marks the shard as torn, and its lists are rebuilt.

use std::sync::atomic::Ordering::Relaxed;

use super::probe::step;
use super::record::{LINKS, QUEUE};
use super::shard::{Head, LISTS, SEQUENCE, Shard};

/// Frames without a page.
pub(super) const FREE: usize = 0;
/// New pages of S3-FIFO.
pub(super) const SMALL: usize = 1;
/// All other pages.
pub(super) const MAIN: usize = 2;
/// Frames without a page that are still pinned.
pub(super) const ORPHANS: usize = 3;

const FIRST: usize = 0;
const LAST: usize = 1;
const LEN: usize = 2;

/// Returns the queue and the sequence number in a record's word.
pub(super) fn queue_of(word: u64) -> (usize, u64) {
    ((word & 3) as usize, word >> 2)
}

/// Returns the number of frames in a list of a shard; needs no lock.
pub(super) fn len_in(head: &Head, list: usize) -> u32 {
    head[LISTS + 3 * list + LEN].load(Relaxed) as u32
}

impl Shard<'_> {
    /// Returns the number of frames in a list.
    #[inline]
    pub fn len(&self, list: usize) -> u32 {
        self.get(LISTS + 3 * list + LEN).min(self.pages.plan.frames.into()) as u32
    }

    /// Returns the first frame of a list.
    pub fn first(&self, list: usize) -> Option<u32> {
        self.follow(self.get(LISTS + 3 * list + FIRST))
    }

    /// Returns the frame after this one.
    pub fn after(&self, local: u32) -> Option<u32> {
        self.follow(self.links(local).1)
    }

    /// Returns the list that a frame is in.
    #[inline]
    pub fn queue(&self, local: u32) -> usize {
        queue_of(self.records[local as usize][QUEUE].load(Relaxed)).0
    }

    /// Returns the links (before, after), each a frame number plus one.
    #[inline]
    fn links(&self, local: u32) -> (u64, u64) {
        let links = self.records[local as usize][LINKS].load(Relaxed);
        (links & 0xffff_ffff, links >> 32)
    }

    fn set_links(&self, local: u32, before: u64, after: u64) {
        step();
        self.records[local as usize][LINKS].store(before | after << 32, Relaxed);
    }

    #[inline]
    fn follow(&self, link: u64) -> Option<u32> {
        match link.checked_sub(1) {
            Some(local) if local < u64::from(self.pages.plan.frames) => Some(local as u32),
            Some(_) => {
                self.torn.set(true);
                None
            }
            None => None,
        }
    }

    /// Appends a frame to a list.
    pub fn push_last(&self, list: usize, local: u32) {
        let at = LISTS + 3 * list;
        let last = self.get(at + LAST);
        self.set_links(local, last, 0);
        self.enter(list, local);
        match self.follow(last) {
            Some(last) => self.set_links(last, self.links(last).0, u64::from(local) + 1),
            None => self.set(at + FIRST, u64::from(local) + 1),
        }
        self.set(at + LAST, u64::from(local) + 1);
        self.add(at + LEN, 1);
    }

    /// Puts a frame at the head of a list.
    pub fn push_first(&self, list: usize, local: u32) {
        let at = LISTS + 3 * list;
        let first = self.get(at + FIRST);
        self.set_links(local, 0, first);
        self.enter(list, local);
        match self.follow(first) {
            Some(first) => self.set_links(first, u64::from(local) + 1, self.links(first).1),
            None => self.set(at + LAST, u64::from(local) + 1),
        }
        self.set(at + FIRST, u64::from(local) + 1);
        self.add(at + LEN, 1);
    }

    fn enter(&self, list: usize, local: u32) {
        self.add(SEQUENCE, 1);
        step();
        self.records[local as usize][QUEUE].store(self.get(SEQUENCE) << 2 | list as u64, Relaxed);
    }

    /// Takes a frame out of its list.
    pub fn unlink(&self, local: u32) {
        let at = LISTS + 3 * self.queue(local);
        let (before, after) = self.links(local);
        match self.follow(before) {
            Some(before) => self.set_links(before, self.links(before).0, after),
            None => self.set(at + FIRST, after),
        }
        match self.follow(after) {
            Some(after) => self.set_links(after, before, self.links(after).1),
            None => self.set(at + LAST, before),
        }
        match self.get(at + LEN).checked_sub(1) {
            Some(len) => self.set(at + LEN, len),
            None => self.torn.set(true),
        }
    }

    /// Moves a frame to the end of a list.
    pub fn send_to(&self, list: usize, local: u32) {
        self.unlink(local);
        self.push_last(list, local);
    }

    /// Clears all lists; the caller pushes the frames again.
    pub fn clear_lists(&self) {
        for word in LISTS..LISTS + 12 {
            self.set(word, 0);
        }
    }
}
