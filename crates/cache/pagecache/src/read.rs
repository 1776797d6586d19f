//! Reading a page that is here.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use super::find::{HashedName, IndexPlace};
use super::frame::{Frame, HITS, Record};
use super::list::MAIN;
use super::prediction::Seen;
use super::stats::Count;
use super::word::Word;
use super::write::check_piece;
use super::{LookupKey, Marks, Name, Page, Replacement, SharedPages, Snapshot, ThreadCounters, Ticket};

/// Copies that were torn by writers before the frame is taken to copy it.
const TRIES: u32 = 32;
/// More hits than this are not told apart.
pub(super) const HITS_MOST: u64 = 3;

/// See [`SharedPages::hits_most`].
pub(super) fn hits_most(replacement: Replacement) -> u64 {
    match replacement {
        Replacement::S3Fifo => HITS_MOST,
        // Each hit moves it.
        Replacement::Lru => u64::MAX,
        Replacement::Fifo => 0,
    }
}

impl SharedPages {
    /// Copies a piece of a page, from its byte `offset` on. False: it is not here.
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn read(&self, name: Name, offset: usize, to: &mut [u8]) -> bool {
        check_piece(offset, to.len());
        let place = self.place(name.word());
        match self.look(&place, offset) {
            Some(Seen { at, record, word, .. }) if self.read_seen((at, record, word), offset, to) => true,
            _ => self.read_unguessed(place, offset, to),
        }
    }

    /// Where a page is looked for.
    #[inline]
    pub fn sought(&self, name: Name) -> LookupKey {
        let place = self.place(name.word());
        LookupKey { place, hash: self.hash(&place) }
    }

    /// As [`SharedPages::read`].
    ///
    /// # Panics
    /// The piece is not within a page.
    #[inline(always)]
    pub fn read_by_key(&self, sought: &LookupKey, offset: usize, to: &mut [u8]) -> bool {
        check_piece(offset, to.len());
        match self.look(&sought.place, offset) {
            Some(Seen { at, record, word, .. }) if self.read_seen((at, record, word), offset, to) => true,
            _ => self.read_by_index(&sought.place, &sought.key(), offset, to),
        }
    }

    /// For who brings a page from elsewhere that was not here: a ticket from before he looks there. None: it has come meanwhile.
    pub fn ticket_of_missing(&self, sought: &LookupKey) -> Option<Ticket> {
        let key = sought.key();
        let ticket = self.ticket_of(&key);
        self.find(&key).is_none().then_some(ticket)
    }

    /// By itself, so that what is prepared for it is no part of a read that was guessed.
    #[inline(never)]
    fn read_unguessed(&self, place: IndexPlace, offset: usize, to: &mut [u8]) -> bool {
        self.read_by_index(&place, &self.key_of(place), offset, to)
    }

    #[inline(always)]
    fn read_by_index(&self, place: &IndexPlace, key: &HashedName, offset: usize, to: &mut [u8]) -> bool {
        let gate = self.gate(key);
        match self.probe(key) {
            Some((at, word)) if self.read_seen((at, &self.records[at], word), offset, to) => {
                self.learn(place, at);
                return true;
            }
            None if self.is_still(key, gate) || self.find_again(key).is_none() => {
                self.count(Count::Misses);
                return false;
            }
            _ => {}
        }
        self.read_again(key, offset, to)
    }

    /// From the frame that had the name with this word. False: somebody changes or changed it.
    #[inline(always)]
    pub(super) fn read_seen(&self, seen: (usize, &Record, Word), offset: usize, to: &mut [u8]) -> bool {
        self.read_counted(seen, offset, to, self.lane())
    }

    /// Likewise, counted there.
    #[inline(always)]
    pub(super) fn read_counted(
        &self,
        (at, record, word): (usize, &Record, Word),
        offset: usize,
        to: &mut [u8],
        lane: ThreadCounters<'_>,
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
        lane.count(Count::Hits);
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

    /// Copies a piece that is not torn; the frame and its word.
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

    /// Copies a whole page, of one version, without asking for it: it is no more likely to stay. None: it is not here.
    pub fn snapshot(&self, name: Name, to: &mut Page) -> Option<Snapshot> {
        let (at, word) = self.copy_whole(&self.key(name), 0, to)?;
        // It is about to be written into a file: into this one only if the frame was given this name by a process of ours.
        if !self.is_named_by_us(&self.records[at], name.word()) {
            return None;
        }
        Some(Snapshot { frame: at as u32, version: word.version(), marks: word.marks() })
    }

    /// A page was asked for: it stays longer.
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

    /// LRU: to the end of the list, or a note that it belongs there when others have the list.
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
