//! Bringing a page.

use std::sync::atomic::Ordering::Relaxed;

use super::find::Key;
use super::frame::{Frame, HITS, NAME};
use super::list::{FREE, MAIN, SMALL};
use super::shard::{FILLED, INSERTS, Shard};
use super::{Inserted, Marks, Name, Page, Replacement, SharedPages, Ticket};

impl SharedPages {
    /// Brings a page that was not here, and lets another leave if there is no free frame.
    pub fn insert(&self, name: Name, bytes: &Page, marks: Marks, ticket: Ticket, now_ms: u32) -> Inserted {
        let key = self.key(name);
        let shard = self.lock(key.shard);
        if self.probe(&key).is_some() {
            return Inserted::Present;
        }
        if self.ticket_of(&key) != ticket {
            return Inserted::Stale;
        }
        match shard.take_free() {
            Some(local) if shard.fill(&key, local, bytes, marks, now_ms) => Inserted::Done,
            _ => Inserted::NoRoom,
        }
    }
}

impl Shard<'_> {
    /// A frame without a page, in no list.
    fn take_free(&self) -> Option<u32> {
        for _ in 0..2 {
            let local = match self.first(FREE) {
                Some(local) => local,
                None if self.evict() => self.first(FREE)?,
                None => return None,
            };
            let word = self.records[local as usize].word();
            if self.queue(local) == FREE && !word.is_named() && !word.is_changing() {
                self.unlink(local);
                return Some(local);
            }
            self.repair();
        }
        None
    }

    fn fill(&self, key: &Key, local: u32, bytes: &Page, marks: Marks, now_ms: u32) -> bool {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let word = record.word();
        if !self.pages.take(at, word, word.taken_by(self.pages.me)) {
            self.torn.set(true);
            return false;
        }
        self.pages.copy_in(at, 0, bytes);
        record[NAME].store(key.name, Relaxed);
        record[HITS].store(0, Relaxed);
        if !marks.is_none() {
            self.pages.marked_from(self.no, at, Marks::NONE, now_ms);
        }
        // The word is the moment: who looks without the index sees it from then on, and who looks with it, too.
        self.index_insert(key, local);
        record.give_back(word.named(marks));
        self.push_last(self.queue_for(key), local);
        self.add(INSERTS, 1);
        true
    }

    /// Newcomers wait in the small queue; but until the first page has left, those beyond its share go to the main queue.
    fn queue_for(&self, key: &Key) -> usize {
        let spare = self.get(FILLED) == 0 && self.len(SMALL) >= self.small_share();
        let known = self.pages.replacement != Replacement::S3Fifo || self.was_here(key) || spare;
        if known { MAIN } else { SMALL }
    }
}
