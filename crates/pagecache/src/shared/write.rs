//! Writing into a page that is here.

use std::sync::atomic::Ordering::Relaxed;

use super::frame::{Frame, SINCE};
use super::stats::Count;
use super::{Marks, Name, SharedPages};
use crate::PAGE_BYTES;

impl SharedPages {
    /// Writes a piece of a page, from its byte `offset` on, and marks it: before the first byte changes, so that a page which was
    /// written in part by a process that died is marked too. False: it is not here.
    ///
    /// # Panics
    /// The piece is not within a page.
    pub fn write(&self, name: Name, offset: usize, from: &[u8], marks: Marks, now_ms: u32) -> bool {
        assert!(offset <= PAGE_BYTES && from.len() <= PAGE_BYTES - offset, "{} bytes at {offset} of a page", from.len());
        let key = self.key(name);
        let Some((at, word)) = self.take_named(&key, marks) else { return false };
        if !marks.is_none() {
            self.marked_from(key.shard, at, word.marks(), now_ms);
        }
        self.copy_in(at, offset, from);
        self.records[at].give_back(word.with(marks).changed());
        self.touch(at);
        self.count(Count::Writes);
        true
    }

    /// A frame that we have taken has a mark now; it had these before.
    #[inline]
    pub(super) fn marked_from(&self, shard: usize, at: usize, before: Marks, now_ms: u32) {
        if before.is_none() {
            self.records[at][SINCE].store(now_ms.into(), Relaxed);
        }
        self.set_bit(shard, at, true);
    }

    /// The file ends within this page: zeroes its bytes from `from` on, if it is here, and lets nobody bring it as it was. Its
    /// marks stay as they are; a snapshot of it does not settle any more.
    ///
    /// # Panics
    /// `from` is not within a page.
    pub fn cut_tail(&self, name: Name, from: usize) {
        const ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        assert!(from <= PAGE_BYTES, "byte {from} of a page");
        let key = self.key(name);
        let shard = self.lock(key.shard);
        shard.move_epoch(&key);
        drop(shard);
        if let Some((at, word)) = self.take_named(&key, Marks::NONE) {
            self.copy_in(at, from, &ZEROES[from..]);
            self.records[at].give_back(word.changed());
        }
    }
}
