//! Inserts pages into the cache.

use std::sync::atomic::Ordering::Relaxed;

use super::list::{FREE, MAIN, SMALL};
use super::name_hash::HashedName;
use super::record::{Frame, HITS, NAME, SINCE, stored};
use super::shard::{FILLED, INSERTS, Shard};
use super::{Inserted, Marks, Name, Page, Replacement, SharedPages, Ticket};

impl SharedPages {
    /// Inserts a page that is not cached; evicts another if there is no free frame.
    pub fn insert(&self, name: Name, bytes: &Page, marks: Marks, ticket: Ticket, now_ms: u32) -> Inserted {
        self.bring(name, ticket, |shard, key, local| shard.fill(key, local, bytes, marks, now_ms, shard.queue_for(key)))
    }

    /// Inserts a page that was read around a request. It must stay until the leader calls [`SharedPages::release`]: many such pages come
    /// at once, and would evict each other from the small queue before that.
    pub fn insert_unasked(&self, name: Name, bytes: &Page, ticket: Ticket, now_ms: u32) -> Inserted {
        self.bring(name, ticket, |shard, key, local| shard.fill(key, local, bytes, Marks::NONE, now_ms, MAIN))
    }

    #[inline(always)]
    fn bring(&self, name: Name, ticket: Ticket, fill: impl FnOnce(&Shard<'_>, &HashedName, u32) -> bool) -> Inserted {
        let key = self.key(name);
        let Some(shard) = self.lock(key.shard) else { return Inserted::Locked };
        if self.probe(&key).is_some() {
            return Inserted::Present;
        }
        if self.ticket_of(&key) != ticket {
            return Inserted::Stale;
        }
        match shard.take_free() {
            Some(local) if fill(&shard, &key, local) => Inserted::Done,
            _ => Inserted::NoRoom,
        }
    }
}

impl Shard<'_> {
    /// Returns a frame without a page, in no list.
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

    fn fill(&self, key: &HashedName, local: u32, bytes: &Page, marks: Marks, now_ms: u32, queue: usize) -> bool {
        let (at, record) = (self.global(local), &self.records[local as usize]);
        let word = record.word();
        if !self.pages.take(at, word, word.taken_by(self.pages.me)) {
            self.torn.set(true);
            return false;
        }
        self.pages.copy_in(at, 0, bytes);
        record[NAME].store(stored(key.name, at), Relaxed);
        record[HITS].store(0, Relaxed);
        record[SINCE].store(self.pages.check_of(key.name), Relaxed);
        if !marks.is_none() {
            self.pages.marked_from(self.no, at, Marks::NONE, now_ms);
        }
        // The page becomes visible with the word.
        self.index_insert(key, local);
        record.give_back(word.named(marks));
        self.push_last(queue, local);
        self.add(INSERTS, 1);
        true
    }

    /// Returns the queue of a new page: the small one. Until the first eviction, pages beyond its share go to the main queue.
    fn queue_for(&self, key: &HashedName) -> usize {
        let spare = self.get(FILLED) == 0 && self.len(SMALL) >= self.small_share();
        let known = self.pages.replacement != Replacement::S3Fifo || self.was_here(key) || spare;
        if known { MAIN } else { SMALL }
    }
}

#[cfg(test)]
mod test {
    use super::super::oracle::{cache, name, page, put, small};
    use super::*;

    #[test]
    fn what_nobody_asked_for_stays_until_it_was_taken_on() {
        for replacement in [Replacement::S3Fifo, Replacement::Lru] {
            let (pages, ..) = cache(&small(64, 1, replacement));
            // Full, and half of it in use.
            (0..100).for_each(|n| assert_eq!(put(&pages, name(0, n), 1, Marks::NONE), Inserted::Done));
            let in_use: Vec<_> = (0..100).filter(|n| n % 2 == 0 && pages.contains(name(0, *n))).collect();
            in_use.iter().for_each(|n| assert!(pages.read(name(0, *n), 0, &mut [0; 8])));
            for n in 0..24 {
                let (name, ticket) = (name(1, n), pages.ticket(name(1, n)));
                assert_eq!(pages.insert_unasked(name, &page(2), ticket, 0), Inserted::Done);
                assert_eq!(pages.insert_unasked(name, &page(3), ticket, 0), Inserted::Present);
            }
            // Pages inserted meanwhile are evicted first.
            (100..110).for_each(|n| assert_eq!(put(&pages, name(0, n), 1, Marks::NONE), Inserted::Done));
            let mut bytes = page(0);
            for n in 0..24 {
                assert!(pages.snapshot(name(1, n), &mut bytes).is_some() && bytes == page(2), "{replacement:?}: page {n} was pushed out");
                assert!(pages.release(name(1, n)), "it gives its frame back");
            }
        }
    }

    #[test]
    fn what_nobody_asked_for_and_was_read_too_long_ago_is_stale() {
        let (pages, ..) = cache(&small(8, 1, Replacement::S3Fifo));
        let ticket = pages.ticket(name(0, 0));
        assert_eq!(put(&pages, name(0, 0), 1, Marks::NONE), Inserted::Done);
        let _ = pages.invalidate(name(0, 0).file, 0..1);
        assert_eq!(pages.insert_unasked(name(0, 0), &page(2), ticket, 0), Inserted::Stale);
    }
}
