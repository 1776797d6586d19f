//! Reads cached pages.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use super::list::MAIN;
use super::name_hash::HashedName;
use super::record::{Frame, HITS, Record};
use super::stats::Count;
use super::word::Word;
use super::write::check_piece;
use super::{LookupKey, Marks, Name, Page, Replacement, SharedPages, Snapshot, ThreadCounters, Ticket};

/// Copies torn by writers before the reader takes the frame to copy it.
const TRIES: u32 = 32;
/// Hits are counted up to this number.
pub(super) const HITS_MOST: u64 = 3;

/// Returns the value of [`SharedPages::hits_most`].
pub(super) fn hits_most(replacement: Replacement) -> u64 {
    match replacement {
        Replacement::S3Fifo => HITS_MOST,
        // Each hit moves the page.
        Replacement::Lru => u64::MAX,
        Replacement::Fifo => 0,
    }
}

impl SharedPages {
    /// Copies a piece of a page, from its byte `offset` on. Returns false if the page is not cached.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn read(&self, name: Name, offset: usize, to: &mut [u8]) -> bool {
        check_piece(offset, to.len());
        self.read_by_index(&self.key(name), offset, to)
    }

    /// Computes the place of a page in the index.
    #[inline]
    pub fn sought(&self, name: Name) -> LookupKey {
        LookupKey(self.key(name))
    }

    /// Reads as [`SharedPages::read`] does, by a key.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn read_by_key(&self, sought: &LookupKey, offset: usize, to: &mut [u8]) -> bool {
        check_piece(offset, to.len());
        self.read_by_index(&sought.0, offset, to)
    }

    /// Returns a ticket for a page that is not cached, before the caller reads it from another tier. `None`: it was inserted meanwhile.
    pub fn ticket_of_missing(&self, sought: &LookupKey) -> Option<Ticket> {
        let ticket = self.ticket_of(&sought.0);
        self.find(&sought.0).is_none().then_some(ticket)
    }

    /// Looks up as [`SharedPages::probe`] does, and prefetches the byte at `offset` as soon as the index names a frame.
    ///
    /// # Panics
    /// There is no such byte in a page.
    #[inline(always)]
    pub(super) fn probe_for_read(&self, key: &HashedName, offset: usize) -> Option<(usize, Word)> {
        check_piece(offset, 0);
        self.probe_each(key, |at| {
            self.region.prefetch(self.data(at) + offset);
        })
    }

    #[inline(always)]
    fn read_by_index(&self, key: &HashedName, offset: usize, to: &mut [u8]) -> bool {
        let gate = self.gate(key);
        match self.probe_for_read(key, offset) {
            Some((at, word)) if self.read_counted((at, &self.records[at], word), offset, to, self.thread_counters()) => return true,
            None if self.is_still(key, gate) || self.find_again(key).is_none() => {
                self.count(Count::Misses);
                return false;
            }
            _ => {}
        }
        self.read_again(key, offset, to)
    }

    /// Reads from the frame that had the name with this word, and counts in the given set. Returns false if another thread is or was
    /// changing it.
    #[inline(always)]
    pub(super) fn read_counted(
        &self,
        (at, record, word): (usize, &Record, Word),
        offset: usize,
        to: &mut [u8],
        counters: ThreadCounters<'_>,
    ) -> bool {
        if word.is_changing() {
            return false;
        }
        self.copy_out(at, offset, to);
        fence(Acquire);
        if !word.is_same_version(record.word()) {
            return false;
        }
        self.touch(at, record);
        counters.count(Count::Hits);
        true
    }

    #[cold]
    fn read_again(&self, key: &HashedName, offset: usize, to: &mut [u8]) -> bool {
        let found = self.copy_whole(key, offset, to);
        if let Some((at, _)) = found {
            self.touch(at, &self.records[at]);
        }
        self.count(if found.is_some() { Count::Hits } else { Count::Misses });
        found.is_some()
    }

    /// Copies a piece that is not torn; returns the frame and its word.
    fn copy_whole(&self, key: &HashedName, offset: usize, to: &mut [u8]) -> Option<(usize, Word)> {
        for _ in 0..TRIES {
            let (at, word) = self.find(key)?;
            if word.is_changing() {
                if !self.wait(at, word) {
                    return None;
                }
                continue;
            }
            self.copy_out(at, offset, to);
            fence(Acquire);
            let after = self.records[at].word();
            if word.is_same_version(after) {
                return Some((at, after));
            }
        }
        let (at, word) = self.take_named(key, Marks::NONE)?;
        self.copy_out(at, offset, to);
        self.records[at].give_back(word);
        Some((at, word))
    }

    /// Copies a whole page, of one version, without counting a hit: it is no more likely to stay. Returns `None` if it is not cached.
    pub fn snapshot(&self, name: Name, to: &mut Page) -> Option<Snapshot> {
        let (at, word) = self.copy_whole(&self.key(name), 0, to)?;
        // The copy is about to be written to a file: only if a process of the cache gave the frame this name.
        if !self.is_named_by_us(&self.records[at], name.word()) {
            return None;
        }
        Some(Snapshot { frame: at as u32, version: word.version(), marks: word.marks() })
    }

    /// Records a hit of a page: it stays longer.
    #[inline(always)]
    pub(super) fn touch(&self, at: usize, record: &Record) {
        let hits = record[HITS].load(Relaxed);
        if hits < self.hits_most {
            match self.replacement {
                Replacement::S3Fifo => record[HITS].store(hits + 1, Relaxed),
                Replacement::Lru => self.move_last(at),
                Replacement::Fifo => {}
            }
        }
    }

    /// LRU: moves the page to the end of the list, or notes that it belongs there if another thread has the list.
    #[cold]
    #[inline(never)]
    fn move_last(&self, at: usize) {
        let (no, local) = (at / self.plan.frames as usize, (at % self.plan.frames as usize) as u32);
        match self.try_lock(no) {
            Some(shard) if shard.queue(local) == MAIN && self.records[at].word().is_named() => shard.send_to(MAIN, local),
            Some(_) => {}
            None => self.records[at][HITS].store(1, Relaxed),
        }
    }
}
