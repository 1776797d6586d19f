//! Threads that act as processes use one small cache at once; every byte that they read is checked.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::oracle::{attached, cache, name, small};
use super::*;
use crate::PAGE_BYTES;

const FILES: u32 = 2;
const PAGES: u64 = 48;

/// Returns a page with its name and version in each of its eight-byte words.
fn stamped(name: Name, version: u32) -> Page {
    let word = u64::from(name.file.0) << 56 | name.page.0 << 32 | u64::from(version);
    let mut bytes = [0; PAGE_BYTES];
    bytes.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
    bytes
}

/// Returns the version; asserts that all words are of this page and of one version.
fn version_of(name: Name, bytes: &[u8]) -> u32 {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert_eq!(word >> 32, stamped_word(name), "another page than {name:?}");
    assert!(bytes.as_chunks::<8>().0.iter().all(|other| *other == word.to_le_bytes()), "{name:?} is torn");
    word as u32
}

fn stamped_word(name: Name) -> u64 {
    u64::from(name.file.0) << 24 | name.page.0
}

/// Runs one process: it reads, writes, inserts, drops and cleans at random. The backing file has version 0 of every page.
fn work(pages: &SharedPages, seed: u64, stop: &AtomicBool) -> u64 {
    probe::dying::pause_at_one_of(64);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut calls, mut pins) = (0, Vec::new());
    while !stop.load(Relaxed) {
        calls += 1;
        let name = name(random.u32(0..FILES), random.u64(0..PAGES));
        match random.u32(0..100) {
            0..45 => read_or_bring(pages, name, &mut random),
            45..55 => drop(pages.write(name, 0, &stamped(name, random.u32(..)), Marks::DIRTY, calls as u32)),
            55..65 => drop(pages.write_at_once(name, 0, &stamped(name, random.u32(..)), Marks::DIRTY, calls as u32)),
            65..75 => write_back(pages, name),
            75..80 => pins.extend(pages.pin(name).map(|pin| (name, pin))),
            80..85 => pins.extend(pages.pin_at_once(name).map(|pin| (name, pin))),
            85..90 => _ = pages.invalidate(name.file, name.page.0..name.page.0 + 2),
            90 => _ = pages.invalidate(name.file, 0..u64::MAX),
            91 => drop(pages.evict_ahead(4, 8)),
            92 => pages.check().expect("consistent metadata"),
            93 => _ = pages.drop_clean(name.file),
            94 => assert!(pages.marked_count() <= pages.frames()),
            _ => drop(pages.marked_of(name.file)),
        }
        if pins.len() > 3 {
            let (name, pin) = pins.swap_remove(random.usize(0..4));
            look_at(pages, name, &pin);
            pages.unpin(pin);
        }
    }
    pins.into_iter().for_each(|(_, pin)| pages.unpin(pin));
    calls
}

fn read_or_bring(pages: &SharedPages, name: Name, random: &mut fastrand::Rng) {
    let mut bytes = [0; PAGE_BYTES];
    let ticket = pages.ticket(name);
    let read = if random.bool() { SharedPages::read } else { SharedPages::read_at_once };
    if read(pages, name, 0, &mut bytes) {
        version_of(name, &bytes);
    } else {
        let marks = if random.u32(0..8) == 0 { Marks::SSD_STALE } else { Marks::NONE };
        // Any result is possible here.
        let _ = pages.insert(name, &stamped(name, 0), marks, ticket, 0);
    }
}

fn write_back(pages: &SharedPages, name: Name) {
    let mut bytes = [0; PAGE_BYTES];
    if let Some(snapshot) = pages.snapshot(name, &mut bytes) {
        let version = version_of(name, &bytes);
        if pages.settle(name, &snapshot, Marks::DIRTY | Marks::SSD_STALE) && version != 0 {
            // The backing file would have it now; the page starts again from version 0.
            let _ = pages.invalidate(name.file, name.page.0..name.page.0 + 1);
        }
    }
}

/// Checks that a pinned frame keeps its page, whatever becomes of the page. Writers may be active, so only single words are checked.
fn look_at(pages: &SharedPages, name: Name, pin: &Pin) {
    let at = pages.region.position(pages.address(pin)).expect("within the region");
    for offset in [0, PAGE_BYTES / 2, PAGE_BYTES - 8] {
        let mut word = [0; 8];
        pages.region.read(at + offset, &mut word);
        assert_eq!(u64::from_le_bytes(word) >> 32, stamped_word(name), "the frame of {name:?} was given to another");
    }
}

/// So many calls of each of three, on a cache of this shape; then everything is still there.
fn together(shape: &Shape, seed: u64, calls: u64) {
    let (first, region, processes) = cache(shape);
    let others = [attached(&region, &processes), attached(&region, &processes)];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (n, pages) in others.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || work(pages, seed + n as u64, stop));
        }
        let (never, mut done, mut turn) = (AtomicBool::new(false), 0, 0);
        std::thread::scope(|scope| {
            // The third ends the others: by calls, not by time.
            let watcher = scope.spawn(|| work(&first, seed + 9, &never));
            while done < calls && !watcher.is_finished() {
                std::thread::yield_now();
                let stats = first.stats();
                done = stats.hits + stats.misses + stats.writes;
                turn += 1;
            }
            never.store(true, Relaxed);
        });
        assert!(turn > 0);
        stop.store(true, Relaxed);
    });
    first.check().expect("consistent metadata");
    (0..FILES).for_each(|file| _ = first.invalidate(FileNo(file), 0..u64::MAX));
    first.evict_ahead(0, 0);
    first.evict_ahead(0, 0);
    let stats = first.stats();
    assert_eq!((stats.free, stats.orphans, stats.marked, stats.repairs), (stats.frames, 0, 0, 0), "seed {seed}");
}

#[test]
#[cfg(not(miri))]
fn no_wrong_byte_is_seen_whatever_three_do_at_once() {
    let calls = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 3_000_000 } else { 10_000 };
    for (frames, shards, replacement) in
        [(40, 1, Replacement::S3Fifo), (64, 4, Replacement::S3Fifo), (24, 1, Replacement::Lru), (32, 2, Replacement::Fifo)]
    {
        together(&small(frames, shards, replacement), u64::from(frames), calls);
    }
}

/// One of three dies now and then, in the middle of whatever it does, and another sits down.
#[test]
#[cfg(not(miri))]
fn nor_when_one_dies_again_and_again() {
    let deaths = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 20_000 } else { 150 };
    let (first, region, processes) = cache(&small(40, 2, Replacement::S3Fifo));
    let other = attached(&region, &processes);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work_torn(&other, 5, &stop));
        let mut random = fastrand::Rng::with_seed(11);
        for n in 0..deaths {
            let victim = attached(&region, &processes);
            let steps = random.u32(0..2_000);
            assert!(probe::dying::die_at(steps, || work_torn(&victim, n, &AtomicBool::new(false))).is_none());
            processes.kill(victim.me);
            if random.bool() {
                work_a_while(&first, n);
            }
            first.reap(victim.me);
            processes.clear(victim.me);
            first.check().expect("consistent metadata");
        }
        stop.store(true, Relaxed);
    });
    (0..FILES).for_each(|file| _ = first.invalidate(FileNo(file), 0..u64::MAX));
    first.evict_ahead(0, 0);
    first.evict_ahead(0, 0);
    let stats = first.stats();
    assert_eq!((stats.free, stats.orphans, stats.marked), (stats.frames, 0, 0));
}

/// As `work`, where a page may be written in part by who died: halves of it may be of two versions, but never of another page.
fn work_torn(pages: &SharedPages, seed: u64, stop: &AtomicBool) {
    probe::dying::pause_at_one_of(64);
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Relaxed) {
        torn_call(pages, &mut random);
    }
}

fn work_a_while(pages: &SharedPages, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..200).for_each(|_| torn_call(pages, &mut random));
}

fn torn_call(pages: &SharedPages, random: &mut fastrand::Rng) {
    let name = name(random.u32(0..FILES), random.u64(0..PAGES));
    let mut bytes = [0; PAGE_BYTES];
    match random.u32(0..100) {
        0..50 => {
            let ticket = pages.ticket(name);
            let read = if random.bool() { SharedPages::read } else { SharedPages::read_at_once };
            if read(pages, name, 0, &mut bytes) {
                let halves = bytes.split_at(PAGE_BYTES / 2);
                version_of(name, halves.0);
                version_of(name, halves.1);
            } else {
                let _ = pages.insert(name, &stamped(name, 0), Marks::NONE, ticket, 0);
            }
        }
        50..60 => drop(pages.write(name, 0, &stamped(name, random.u32(..)), Marks::DIRTY, 0)),
        60..70 => drop(pages.write_at_once(name, 0, &stamped(name, random.u32(..)), Marks::DIRTY, 0)),
        70..85 => {
            if let Some(snapshot) = pages.snapshot(name, &mut bytes) {
                pages.settle(name, &snapshot, Marks::DIRTY);
            }
        }
        85..88 => drop(pages.pin(name).map(|pin| pages.unpin(pin))),
        88..92 => drop(pages.pin_at_once(name).map(|pin| pages.unpin(pin))),
        92..96 => _ = pages.invalidate(name.file, name.page.0..name.page.0 + 2),
        96 => _ = pages.invalidate(name.file, 0..u64::MAX),
        _ => drop(pages.evict_ahead(4, 8)),
    }
}
