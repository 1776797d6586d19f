//! Writes into cached pages.

use std::sync::atomic::Ordering::Relaxed;

use super::record::{Frame, Record, SINCE};
use super::stats::Count;
use super::word::Word;
use super::{Marks, Name, SharedPages, ThreadCounters, WriteOutcome};
use crate::PAGE_BYTES;

/// Panics unless the piece is within a page.
#[inline(always)]
pub(super) fn check_piece(offset: usize, len: usize) {
    assert!(offset <= PAGE_BYTES && len <= PAGE_BYTES - offset, "{len} bytes at {offset} of a page");
}

impl SharedPages {
    /// Writes a piece of a page, from its byte `offset` on, and marks it. It is marked before the first byte changes, so a page that a
    /// dead process left partly written is marked too. Returns false if the page is not cached.
    ///
    /// # Panics
    /// The piece is not within a page.
    pub fn write(&self, name: Name, offset: usize, from: &[u8], marks: Marks, now_ms: u32) -> bool {
        check_piece(offset, from.len());
        let key = self.key(name);
        let Some((at, word)) = self.take_named(&key, marks) else { return false };
        if !marks.is_none() {
            self.marked_from(key.shard, at, word.marks(), now_ms);
        }
        self.write_taken((at, &self.records[at]), word.with(marks), (offset, from), self.thread_counters());
        true
    }

    /// Writes as `write` does, unless this would be the page's first mark: a page that has one takes no more of the dirty limit. Does not
    /// wait.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline]
    pub fn write_marked(&self, name: Name, offset: usize, from: &[u8], marks: Marks) -> WriteOutcome {
        check_piece(offset, from.len());
        // The caller that inserts the page checks the miss again.
        let Some((at, word)) = self.probe(&self.key(name)) else { return WriteOutcome::Missing };
        if self.write_seen((at, &self.records[at], word), (offset, from), marks, self.thread_counters()) {
            WriteOutcome::Done
        } else {
            WriteOutcome::Unmarked
        }
    }

    /// Writes into the frame that had the name with this word. Returns false if this would be its first mark, or if another thread is or
    /// was changing it.
    #[inline(always)]
    pub(super) fn write_seen(
        &self,
        (at, record, word): (usize, &Record, Word),
        piece: (usize, &[u8]),
        marks: Marks,
        counters: ThreadCounters<'_>,
    ) -> bool {
        let is_first = word.marks().is_none() && !marks.is_none();
        if is_first || word.is_changing() || !record.take(word, word.taken_by(self.me).with(marks)) {
            return false;
        }
        // The bit of a marked frame is set already: only the owner of the frame changes it.
        self.write_taken((at, record), word.with(marks), piece, counters);
        true
    }

    /// Writes into a frame that we have taken; `word` is the word before that, with the marks that it is to get.
    #[inline(always)]
    fn write_taken(&self, (at, record): (usize, &Record), word: Word, (offset, from): (usize, &[u8]), counters: ThreadCounters<'_>) {
        let no = counters.count(Count::Writes);
        self.copy_written((at, record), offset, from, no);
        record.give_back(word.changed());
        self.touch(at, record);
    }

    /// Records that a frame that we have taken has a mark; `before` are its earlier marks.
    #[inline]
    pub(super) fn marked_from(&self, shard: usize, at: usize, before: Marks, now_ms: u32) {
        if before.is_none() {
            // The check of the name is not renewed: that would validate a name that was overwritten.
            let record = &self.records[at];
            record[SINCE].store(record[SINCE].load(Relaxed) & (!0 << 32) | u64::from(now_ms), Relaxed);
        }
        self.set_bit(shard, at, true);
    }

    /// Zeroes a page's bytes from `from` on: the file is truncated there. Earlier tickets of the page become invalid, and snapshots of it
    /// no longer settle. Its marks are unchanged. Returns false if a process that makes no progress prevents it.
    ///
    /// # Panics
    /// `from` is not within a page.
    #[must_use]
    pub fn cut_tail(&self, name: Name, from: usize) -> bool {
        const ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        assert!(from <= PAGE_BYTES, "byte {from} of a page");
        let key = self.key(name);
        let Some(shard) = self.lock(key.shard) else { return false };
        shard.move_epoch(&key);
        drop(shard);
        let Some((at, word)) = self.take_named(&key, Marks::NONE) else { return !self.is_stuck(name) };
        self.copy_in(at, from, &ZEROES[from..]);
        self.records[at].give_back(word.changed());
        true
    }
}

#[cfg(test)]
mod test {
    use super::super::oracle::cache;
    use super::super::{FileNo, Inserted, Marks, Name, Replacement, Shape, WriteOutcome};
    use crate::{PAGE_BYTES, PageIndex};

    #[test]
    fn only_a_page_that_has_a_mark_already_is_written_without_asking() {
        let (pages, ..) = cache(&Shape { frames: 64, shards: 1, ghosts: 0, replacement: Replacement::S3Fifo });
        let name = Name { file: FileNo(1), page: PageIndex(5) };
        let write = |from: &[u8], marks| pages.write_marked(name, 10, from, marks);
        assert_eq!(write(&[1], Marks::DIRTY), WriteOutcome::Missing);
        assert_eq!(pages.insert(name, &[0; PAGE_BYTES], Marks::NONE, pages.ticket(name), 0), Inserted::Done);
        assert_eq!(write(&[2], Marks::DIRTY), WriteOutcome::Unmarked);
        assert_eq!(write(&[3], Marks::NONE), WriteOutcome::Done);
        assert_eq!(pages.marked_count(), 0);
        assert!(pages.write(name, 10, &[4, 4], Marks::SSD_STALE, 7));
        assert_eq!(write(&[5], Marks::DIRTY), WriteOutcome::Done);
        let mut bytes = [0; 4];
        assert!(pages.read(name, 9, &mut bytes));
        assert_eq!((bytes, pages.marked_count()), ([0, 5, 4, 0], 1));
        let snapshot = pages.snapshot(name, &mut [0; PAGE_BYTES]).expect("here");
        assert_eq!(snapshot.marks, Marks::DIRTY | Marks::SSD_STALE);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 of a page")]
    fn a_piece_beyond_the_page_is_our_own_mistake() {
        let (pages, ..) = cache(&Shape { frames: 64, shards: 1, ghosts: 0, replacement: Replacement::S3Fifo });
        let _ = pages.write_marked(Name { file: FileNo(1), page: PageIndex(5) }, PAGE_BYTES - 1, &[0, 0], Marks::DIRTY);
    }
}
