//! No stale version of a page is ever read while pages are inserted, written, written back and evicted.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::oracle::{attached, cache, name, small};
use super::*;
use crate::PAGE_BYTES;

const PAGES: u64 = 96;
const PROCESSES: u64 = 3;

struct Fixture {
    /// The version of each page in the backing file.
    below: Vec<AtomicU32>,
    /// The newest version whose writer knows that it is cached.
    published: Vec<AtomicU32>,
    stop: AtomicBool,
}

struct Process<'a> {
    pages: SharedPages,
    world: &'a Fixture,
    no: u64,
    random: fastrand::Rng,
    /// The newest version of each page that this process wrote or read.
    seen: Vec<u32>,
}

fn stamped(version: u32) -> Page {
    let mut bytes = [0; PAGE_BYTES];
    bytes.as_chunks_mut::<4>().0.fill(version.to_le_bytes());
    bytes
}

fn version_of(bytes: &Page) -> u32 {
    let words = bytes.as_chunks::<4>().0;
    assert!(words.iter().all(|word| *word == words[0]), "torn");
    u32::from_le_bytes(words[0])
}

impl Process<'_> {
    fn saw(&mut self, page: u64, version: u32, least: u32) {
        let seen = &mut self.seen[page as usize];
        assert!(version >= least && version >= *seen, "page {page}: version {version} after {} and {least}", *seen);
        *seen = version;
    }

    /// Reads as `datapath` does: a page from the backing file counts only if it could be inserted.
    fn read(&mut self, page: u64) {
        let least = self.world.published[page as usize].load(SeqCst);
        let mut bytes = stamped(0);
        loop {
            let ticket = self.pages.ticket(name(0, page));
            let read = if self.random.bool() { SharedPages::read } else { SharedPages::read_at_once };
            if read(&self.pages, name(0, page), 0, &mut bytes) {
                return self.saw(page, version_of(&bytes), least);
            }
            let below = self.world.below[page as usize].load(SeqCst);
            if self.random.bool() {
                std::thread::yield_now();
            }
            if let Inserted::Done | Inserted::NoRoom = self.pages.insert(name(0, page), &stamped(below), Marks::NONE, ticket, 0) {
                return self.saw(page, below, least);
            }
        }
    }

    /// Writes a page; each page has exactly one writer.
    fn write(&mut self, page: u64) {
        let page = page / PROCESSES * PROCESSES + self.no;
        let version = self.seen[page as usize].max(self.world.published[page as usize].load(SeqCst)) + 1;
        let bytes = stamped(version);
        for _ in 0..9 {
            let ticket = self.pages.ticket(name(0, page));
            let write = if self.random.bool() { SharedPages::write } else { SharedPages::write_at_once };
            if write(&self.pages, name(0, page), 0, &bytes, Marks::DIRTY, 0)
                || self.pages.insert(name(0, page), &bytes, Marks::DIRTY, ticket, 0) == Inserted::Done
            {
                self.world.published[page as usize].store(version, SeqCst);
                return self.saw(page, version, version);
            }
        }
    }

    /// Pins a page. No process invalidates here, so a pinned page stays.
    fn pin(&mut self, page: u64) {
        let pin = if self.random.bool() { SharedPages::pin } else { SharedPages::pin_at_once };
        if let Some(pin) = pin(&self.pages, name(0, page)) {
            std::thread::yield_now();
            assert!(self.pages.contains(name(0, page)), "page {page} left though it is pinned");
            self.pages.unpin(pin);
        }
    }

    /// Acts as the leader: writes marked pages to the backing file, and makes room.
    fn lead(&mut self) {
        let mut marked = Vec::new();
        self.pages.marked(MarkFilter::All, 8, &mut marked);
        for (name, _) in marked {
            let mut bytes = stamped(0);
            let Some(snapshot) = self.pages.snapshot(name, &mut bytes) else { continue };
            self.world.below[name.page.0 as usize].store(version_of(&bytes), SeqCst);
            self.pages.settle(name, &snapshot, Marks::DIRTY);
        }
        self.pages.evict_ahead(2, 6);
    }

    fn work(&mut self, calls: u32) {
        probe::dying::pause_at_one_of(6);
        let mut done = 0;
        while (done < calls || self.no == 0) && !self.world.stop.load(SeqCst) {
            done += 1;
            let page = self.random.u64(0..PAGES);
            match self.random.u32(0..10) {
                0..5 => self.read(page),
                5..7 => self.write(page),
                7..9 => self.pin(page),
                _ if self.no == 0 => self.lead(),
                _ => assert!(self.pages.marked_count() <= self.pages.frames()),
            }
        }
    }
}

#[test]
#[cfg(not(miri))]
fn no_old_version_is_ever_seen() {
    let calls = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 3_000_000 } else { 8_000 };
    for (frames, shards, replacement) in [(48, 1, Replacement::S3Fifo), (32, 4, Replacement::Fifo), (24, 2, Replacement::Lru)] {
        let (first, region, processes) = cache(&small(frames, shards, replacement));
        let zeroes = || (0..PAGES).map(|_| AtomicU32::new(0)).collect();
        let world = Fixture { below: zeroes(), published: zeroes(), stop: AtomicBool::new(false) };
        let process = |no: u64, pages: SharedPages| {
            let random = fastrand::Rng::with_seed(no);
            Process { pages, world: &world, no, random, seen: vec![0; PAGES as usize] }
        };
        let mut leader = process(0, attached(&region, &processes));
        let mut others = [process(1, attached(&region, &processes)), process(2, attached(&region, &processes))];
        std::thread::scope(|scope| {
            let leader = scope.spawn(move || leader.work(calls));
            let others: Vec<_> = others.iter_mut().map(|other| scope.spawn(move || other.work(calls))).collect();
            let all: Vec<_> = others.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            world.stop.store(true, SeqCst);
            leader.join().expect("no panic");
            all.into_iter().for_each(|end| end.expect("no panic"));
        });
        first.check().expect("consistent metadata");
        assert!(first.stats().evictions > 0, "nothing was tried");
    }
}

/// A page that must not be evicted is found each time, however the index is rearranged around it.
#[test]
#[cfg(not(miri))]
fn a_marked_page_is_never_missed() {
    let rounds = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 3_000_000 } else { 10_000 };
    let (reader, region, processes) = cache(&small(16, 1, Replacement::Fifo));
    let churn = attached(&region, &processes);
    for page in 0..6 {
        assert_eq!(oracle::put(&reader, name(0, page), 1, Marks::DIRTY), Inserted::Done);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            probe::dying::pause_at_one_of(2);
            let mut page = 0;
            while !stop.load(SeqCst) {
                page += 1;
                let _ = oracle::put(&churn, name(1, page), 2, Marks::NONE);
            }
        });
        probe::dying::pause_at_one_of(2);
        let missed = (0..rounds).find(|n| !reader.contains(name(0, n % 6)) || !reader.read(name(0, n % 6), 0, &mut [0; 8]));
        stop.store(true, SeqCst);
        assert_eq!(missed, None);
    });
}

/// Behind a closed gate an index without the page proves nothing: the reader waits for the lock.
#[test]
fn a_miss_behind_a_closed_gate_is_not_believed() {
    let (reader, region, processes) = cache(&small(16, 1, Replacement::S3Fifo));
    let other = attached(&region, &processes);
    assert_eq!(oracle::put(&reader, name(0, 1), 1, Marks::NONE), Inserted::Done);
    let key = other.key(name(0, 1));
    let (at, _) = other.find(&key).expect("here");
    let shard = other.lock(0).expect("nobody has it");
    shard.close_gate();
    shard.index_remove(&key, at as u32);
    std::thread::scope(|scope| {
        let found = scope.spawn(|| reader.contains(name(0, 1)));
        let somebody_waits = || region.u32(oracle::AT + reader.plan.heads_at).load(SeqCst) >> 31 == 1;
        while !found.is_finished() && !somebody_waits() {
            std::thread::yield_now();
        }
        shard.index_insert(&key, at as u32);
        shard.open_gate();
        drop(shard);
        assert!(found.join().expect("no panic"));
    });
}

/// Prints how long other processes wait for a shard whose holder died. It is not part of the result, for it depends on the machine.
#[test]
#[cfg(not(miri))]
fn a_shard_of_any_size_is_repaired() {
    for frames in [1 << 14, 1 << 16] {
        let (pages, ..) = cache(&small(frames, 1, Replacement::S3Fifo));
        for page in 0..u64::from(frames) {
            assert_eq!(pages.insert(name(0, page), &stamped(1), Marks::NONE, pages.ticket(name(0, page)), 0), Inserted::Done);
        }
        let before = std::time::Instant::now();
        pages.lock(0).expect("nobody has it").torn.set(true);
        println!("{frames} frames: {:?}", before.elapsed());
        pages.check().expect("consistent metadata");
        assert_eq!((pages.stats().repairs, pages.contains(name(0, 5))), (1, true));
    }
}
