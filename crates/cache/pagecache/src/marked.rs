//! Finds marked pages, which must not be evicted, and clears their marks.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use super::record::{Frame, SINCE};
use super::shard::{Head, MARKED};
use super::{FileNo, MarkFilter, Marks, Name, SharedPages, Snapshot};
use crate::PageIndex;

/// Returns the number of marked pages of a shard. The counter may be off, and even below zero.
pub(super) fn marked_in(head: &Head) -> u32 {
    (head[MARKED].load(Relaxed) as i32).max(0) as u32
}

impl SharedPages {
    /// Adds up to `most` marked pages with the time of their first mark, in no order. If there are more, the next call starts where this
    /// one ended. A page whose marks change meanwhile may be missed.
    pub fn marked(&self, which: MarkFilter, most: usize, out: &mut Vec<(Name, u32)>) {
        let end = out.len().saturating_add(most);
        self.each_marked(|name, since_ms| {
            let wanted = match which {
                MarkFilter::All => true,
                MarkFilter::File(file) => name.file == file,
                MarkFilter::OlderThan(time_ms) => (since_ms.wrapping_sub(time_ms) as i32) < 0,
            };
            if wanted && out.len() < end {
                out.push((name, since_ms));
            }
            out.len() < end
        });
    }

    /// Returns the number of marked pages. If a process died marking one, it may be off by one, until two calls of `evict_ahead`.
    pub fn marked_count(&self) -> u32 {
        self.heads.iter().map(marked_in).fold(0, u32::saturating_add).min(self.frames())
    }

    /// Returns whether a page of this file has a mark.
    pub fn marked_of(&self, file: FileNo) -> bool {
        self.has_marked(file, Marks::DIRTY | Marks::SSD_STALE)
    }

    /// Returns whether a page of this file has one of these marks.
    pub fn has_marked(&self, file: FileNo, marks: Marks) -> bool {
        let mut found = false;
        self.each_mark(|name, _, has| {
            found |= name.file == file && has.0 & marks.0 != 0;
            !found
        });
        found
    }

    /// Returns the dirty pages of a file. A page whose marks change meanwhile may be missed.
    pub fn dirty_of(&self, file: FileNo) -> HashSet<PageIndex> {
        let mut dirty = HashSet::new();
        self.each_mark(|name, _, has| {
            if name.file == file && has.has(Marks::DIRTY) {
                dirty.insert(name.page);
            }
            true
        });
        dirty
    }

    fn each_marked(&self, mut more: impl FnMut(Name, u32) -> bool) {
        self.each_mark(|name, since_ms, _| more(name, since_ms));
    }

    /// Calls `more` for each marked page until it returns false.
    fn each_mark(&self, mut more: impl FnMut(Name, u32, Marks) -> bool) {
        let words = self.bitmap.len();
        let from = self.sweep.load(Relaxed) as usize;
        for n in 0..words {
            let no = (from + n) % words;
            let mut bits = self.bitmap[no].load(Acquire);
            while bits != 0 {
                let local = no % self.plan.bitmap * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if local < self.plan.frames as usize
                    && let Some((name, since_ms, marks)) = self.mark_at(no / self.plan.bitmap * self.plan.frames as usize + local)
                    && !more(name, since_ms, marks)
                {
                    self.sweep.store(no as u32, Relaxed);
                    return;
                }
            }
        }
    }

    fn mark_at(&self, at: usize) -> Option<(Name, u32, Marks)> {
        let record = &self.records[at];
        let word = record.word();
        let (name, since_ms) = (self.name_at(at), record[SINCE].load(Relaxed) as u32);
        fence(Acquire);
        if word.is_named() && !word.is_changing() && word == record.word() && !self.is_named_by_us(record, name) {
            self.drop_misnamed(at);
            return None;
        }
        // A frame keeps its name while it is written.
        let same = word.version() == record.word().version() || self.name_at(at) == name;
        (same && word.is_named() && !word.marks().is_none()).then_some((Name::of(name), since_ms, word.marks()))
    }

    /// Frees a frame whose name was overwritten, by a repair of its shard. Its dirty bytes belong to no file, and it would never be
    /// evicted.
    #[cold]
    pub(super) fn drop_misnamed(&self, at: usize) {
        if let Some(shard) = self.lock(at / self.plan.frames as usize) {
            shard.torn.set(true);
        }
    }

    /// Clears marks of a page whose copy is safe, unless it was changed since. Returns false if it was changed, or is not cached.
    pub fn settle(&self, name: Name, snapshot: &Snapshot, cleared: Marks) -> bool {
        let (at, name) = (snapshot.frame as usize, name.word());
        let Some(record) = self.records.get(at) else { return false };
        loop {
            let word = record.word();
            if !word.is_named() || word.version() != snapshot.version || self.name_at(at) != name {
                return false;
            }
            if word.is_changing() {
                // A change normally makes another version of the page.
                if self.has_waited_in_vain() || !self.wait(at, word) {
                    return false;
                }
            } else if self.take(at, word, word.taken_by(self.me)) {
                let after = word.without(cleared);
                self.set_bit(at / self.plan.frames as usize, at, !after.marks().is_none());
                record.give_back(after);
                return true;
            }
        }
    }
}
