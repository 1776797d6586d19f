//! Pages recently evicted from the small queue, by hash: a page that returns is not a new page (the ghost queue of S3-FIFO).
//!
//! A table of cache lines of eight entries, each a piece of the hash and the number of the eviction. An entry is a ghost until as many
//! later evictions as there may be ghosts. Entries are not linked, so there is nothing to repair. A full line forgets its oldest entry.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::list::{FREE, len_in};
use super::name_hash::HashedName;
use super::probe::step;
use super::shape::WAYS;
use super::shard::{FILLED, GHOSTS, Shard};
use super::{LookupKey, Name, SharedPages};

/// One frame of this many is kept free by the leader; more than that are spare.
const SPARE: u32 = 16;
const WAYS_SHIFT: u32 = WAYS.ilog2();

impl SharedPages {
    /// Returns whether a clean page, just read from an SSD, is worth a frame: if one is spare, or at the page's second request. Otherwise
    /// the page is remembered, so that it is worth one the next time. A scan, or a load much larger than memory, therefore costs no
    /// frame, copy or eviction per page.
    ///
    /// Each hit on an SSD calls this, so it takes no lock. Concurrent updates may use one eviction number twice, or set the counter back.
    /// A few pages are then remembered a little longer, or not at all.
    pub fn is_wanted(&self, name: Name) -> bool {
        self.wants(&self.key(name))
    }

    /// Returns the same for a page that a lookup did not find.
    #[inline]
    pub fn is_key_wanted(&self, sought: &LookupKey) -> bool {
        self.wants(&sought.0)
    }

    #[inline]
    fn wants(&self, key: &HashedName) -> bool {
        let head = &self.heads[key.shard];
        head[FILLED].load(Relaxed) == 0 || len_in(head, FREE) > self.plan.frames / SPARE || self.is_known(key)
    }

    /// Prefetches the lines that a lookup of the page reads, and those of [`SharedPages::is_key_wanted`]: for pages that are probably not
    /// cached.
    #[inline]
    pub fn prefetch(&self, sought: &LookupKey) {
        let key = &sought.0;
        self.index.prefetch(key.shard * self.plan.places + self.home(key));
        if let Some(line) = self.ghost_place(key) {
            self.ghosts.prefetch(line);
        }
    }

    #[inline]
    fn ghost_place(&self, key: &HashedName) -> Option<usize> {
        let lines = self.plan.ghost_lines;
        let line = ((key.hash & 0xffff_ffff) * lines as u64) >> 32;
        (lines > 0).then_some(key.shard * lines + line as usize)
    }

    #[inline]
    fn ghost_line(&self, key: &HashedName) -> Option<&[AtomicU64; WAYS]> {
        self.ghosts.get(self.ghost_place(key)?)
    }

    /// Returns whether a page is remembered, and remembers it from now on, in one pass over its line. Without ghosts (LRU, FIFO) every
    /// page is.
    #[inline]
    fn is_known(&self, key: &HashedName) -> bool {
        let Some(line) = self.ghost_line(key) else { return true };
        let departures = &self.heads[key.shard][GHOSTS];
        let now = departures.load(Relaxed) as u32;
        let this = key.hash >> 32 << 32;
        let entries = line.each_ref().map(|place| place.load(Relaxed));
        let age = |entry: u64| now.wrapping_sub(entry as u32);
        let is_this = |entry: u64| entry ^ this <= u64::from(u32::MAX);
        if entries.iter().any(|&entry| is_this(entry) && age(entry) < self.plan.ghosts && entry != 0) {
            return true;
        }
        // Age and position in one number: the greatest is forgotten. An empty entry counts as the oldest.
        let oldest = (0..WAYS).fold(0, |oldest, at| oldest.max(u64::from(age(entries[at])) << WAYS_SHIFT | at as u64));
        step();
        departures.store(u64::from(now.wrapping_add(1)), Relaxed);
        step();
        line[oldest as usize % WAYS].store(this | u64::from(now.wrapping_add(1)), Relaxed);
        false
    }
}

impl Shard<'_> {
    /// Returns the number of evictions since that of an entry.
    fn age(&self, entry: u64) -> u32 {
        (self.get(GHOSTS) as u32).wrapping_sub(entry as u32)
    }

    /// Remembers a page that is evicted as a ghost.
    pub fn remember(&self, key: &HashedName) {
        let Some(line) = self.pages.ghost_line(key) else { return };
        self.add(GHOSTS, 1);
        let worst = |entry: &&AtomicU64| match entry.load(Relaxed) {
            0 => u32::MAX,
            known if known >> 32 == key.hash >> 32 => u32::MAX,
            other => self.age(other),
        };
        if let Some(entry) = line.iter().max_by_key(worst) {
            step();
            entry.store(key.hash >> 32 << 32 | self.get(GHOSTS) & 0xffff_ffff, Relaxed);
        }
    }

    /// Returns whether a page that is inserted was a ghost, and forgets it.
    pub fn was_here(&self, key: &HashedName) -> bool {
        let Some(line) = self.pages.ghost_line(key) else { return false };
        let known = |entry: &&AtomicU64| {
            let entry = entry.load(Relaxed);
            entry != 0 && entry >> 32 == key.hash >> 32 && self.age(entry) < self.pages.plan.ghosts
        };
        let Some(entry) = line.iter().find(known) else { return false };
        step();
        entry.store(0, Relaxed);
        true
    }
}

#[cfg(test)]
mod test {
    use super::super::oracle::{cache, name, put, small};
    use super::super::{Inserted, Marks};
    use crate::Replacement;

    #[test]
    fn a_full_cache_wants_what_is_asked_for_again() {
        let full = |replacement| {
            let (pages, ..) = cache(&small(64, 1, replacement));
            for n in 0.. {
                if pages.stats().evictions > 0 {
                    break;
                }
                assert!(pages.is_wanted(name(0, n)), "there is room for page {n}");
                assert_eq!(put(&pages, name(0, n), 1, Marks::NONE), Inserted::Done);
            }
            pages
        };
        let pages = full(Replacement::S3Fifo);
        assert!(!pages.is_wanted(name(1, 0)) && !pages.is_wanted(name(1, 1)));
        assert!(pages.is_wanted(name(1, 0)) && pages.is_wanted(name(1, 0)), "asked for again");
        // After many others it is forgotten.
        (2..1000).for_each(|n| assert!(!pages.is_wanted(name(1, n))));
        assert!(!pages.is_wanted(name(1, 1)));
        let _ = pages.invalidate(super::super::FileNo(0), 0..u64::MAX);
        assert!(pages.is_wanted(name(2, 0)), "room again");
        assert!(full(Replacement::Lru).is_wanted(name(1, 0)), "who remembers nothing wants all");
    }

    #[test]
    fn who_asks_waits_for_nobody_and_is_answered() {
        let (pages, ..) = cache(&small(64, 1, Replacement::S3Fifo));
        (0..200).for_each(|n| assert_ne!(put(&pages, name(0, n), 1, Marks::NONE), Inserted::NoRoom));
        let held = pages.lock(0).expect("nobody has it");
        assert!(!pages.is_wanted(name(1, 0)) && pages.is_wanted(name(1, 0)), "remembered while somebody has the shard");
        drop(held);
        assert!(pages.is_wanted(name(1, 0)));
        let sought = pages.sought(name(1, 0));
        pages.prefetch(&sought);
        assert!(!pages.read_by_key(&sought, 0, &mut [0]), "not there");
        assert!(pages.is_key_wanted(&sought));
        let ticket = pages.ticket_of_missing(&sought).expect("not there");
        assert_eq!(pages.insert(name(1, 0), &[1; 4096], Marks::NONE, ticket, 0), Inserted::Done);
        assert_eq!(pages.ticket_of_missing(&sought), None, "there");
        pages.check().expect("whole");
    }

    #[test]
    fn a_scan_of_what_is_not_wanted_moves_nothing() {
        let (pages, ..) = cache(&small(64, 4, Replacement::S3Fifo));
        (0..200).for_each(|n| assert_ne!(put(&pages, name(0, n), 1, Marks::NONE), Inserted::NoRoom));
        let before = pages.stats();
        assert!((0..10_000).filter(|n| pages.is_wanted(name(3, *n))).count() < 200, "hashes may meet");
        let after = pages.stats();
        assert_eq!((before.inserts, before.evictions), (after.inserts, after.evictions));
        pages.check().expect("whole");
    }
}
