//! A process dies at every step of every operation, and the others continue.

use std::collections::BTreeMap;

use super::oracle::{cache, name, page, put, small};
use super::probe::dying::die_at;
use super::*;
use crate::PAGE_BYTES;

/// The page cached before the death that has a mark; `PINNED` is pinned by the process that dies.
const DIRTY: u64 = 1;
const PINNED: u64 = 2;

/// The bytes that each half of a page may have.
type Allowed = BTreeMap<Name, Vec<u8>>;

struct Fixture {
    ours: SharedPages,
    theirs: SharedPages,
    processes: Arc<ProcessSlots>,
    allowed: Allowed,
}

fn world(replacement: Replacement) -> Fixture {
    let (ours, region, processes) = cache(&small(6, 1, replacement));
    let theirs = oracle::attached(&region, &processes);
    let mut allowed = Allowed::new();
    for n in 0..6 {
        let marks = if n == DIRTY { Marks::DIRTY } else { Marks::NONE };
        assert_eq!(put(&ours, name(0, n), n as u8, marks), Inserted::Done);
        allowed.insert(name(0, n), vec![n as u8]);
    }
    Fixture { ours, theirs, processes, allowed }
}

type Operation = fn(&SharedPages);

/// The operations during which the process dies.
const OPERATIONS: &[(&str, Operation)] = &[
    ("read", |pages| {
        pages.read(name(0, 3), 0, &mut page(0));
    }),
    ("read at once", |pages| {
        pages.read_at_once(name(0, 3), 0, &mut page(0));
    }),
    ("write", |pages| {
        pages.write(name(0, 3), 0, &page(103), Marks::DIRTY, 9);
    }),
    ("write into a marked page", |pages| {
        pages.write(name(0, DIRTY), 0, &page(103), Marks::SSD_STALE, 9);
    }),
    ("write at once into a marked page", |pages| {
        pages.write_at_once(name(0, DIRTY), 0, &page(103), Marks::SSD_STALE, 9);
    }),
    ("insert over others", |pages| {
        for n in 10..14 {
            let _ = put(pages, name(0, n), 103, Marks::NONE);
        }
    }),
    ("insert a marked page", |pages| {
        let _ = put(pages, name(0, 10), 103, Marks::DIRTY);
    }),
    ("pin and unpin", |pages| {
        let pin = pages.pin(name(0, PINNED)).expect("here");
        pages.unpin(pin);
    }),
    ("pin at once, twice, and unpin", |pages| {
        let pins = [(); 2].map(|()| pages.pin_at_once(name(0, PINNED)).expect("here"));
        pins.into_iter().for_each(|pin| pages.unpin(pin));
    }),
    ("unpin an orphan", |pages| {
        let pin = pages.pin(name(0, PINNED)).expect("here");
        let _ = pages.invalidate(FileNo(0), PINNED..PINNED + 1);
        pages.unpin(pin);
    }),
    ("settle", |pages| {
        let mut bytes = page(0);
        let snapshot = pages.snapshot(name(0, DIRTY), &mut bytes).expect("here");
        pages.settle(name(0, DIRTY), &snapshot, Marks::DIRTY);
    }),
    ("invalidate one", |pages| _ = pages.invalidate(FileNo(0), 3..4)),
    ("invalidate all", |pages| _ = pages.invalidate(FileNo(0), 0..u64::MAX)),
    ("drop what is clean", |pages| {
        let _ = pages.drop_clean(FileNo(0));
    }),
    ("cut", |pages| _ = pages.cut_tail(name(0, 3), 0)),
    ("evict ahead", |pages| {
        pages.evict_ahead(4, 4);
    }),
];

/// Returns whether a marked page may be gone or without its mark after this operation.
fn may_clear(what: &str) -> bool {
    matches!(what, "settle" | "invalidate all")
}

/// Allows old and new bytes for each page that was changed.
fn may_be(allowed: &mut Allowed) {
    for n in (0..6).chain(10..14) {
        let bytes = allowed.entry(name(0, n)).or_default();
        bytes.extend(match n {
            3 => vec![103, 0],
            DIRTY | 10.. => vec![103],
            _ => vec![],
        });
    }
}

fn look(world: &Fixture, what: &str) {
    let pages = &world.theirs;
    for (name, allowed) in &world.allowed {
        let mut bytes = page(0);
        if pages.read(*name, 0, &mut bytes) {
            assert!(bytes.iter().all(|byte| allowed.contains(byte)), "{what}: {name:?} has wrong bytes");
            let halves = (&bytes[..PAGE_BYTES / 2], &bytes[PAGE_BYTES / 2..]);
            assert!([halves.0, halves.1].iter().all(|half| half.iter().all(|byte| *byte == half[0])), "{what}: {name:?} is torn");
        }
    }
    let mut marked = Vec::new();
    pages.marked(MarkFilter::All, 99, &mut marked);
    if !may_clear(what) {
        assert!(marked.iter().any(|found| found.0 == name(0, DIRTY)), "{what}: a mark is lost");
    }
    // A partly written page is marked, if the writer sets marks.
    let mut bytes = page(0);
    if what == "write" && pages.read(name(0, 3), 0, &mut bytes) && bytes.contains(&103) {
        assert!(marked.iter().any(|found| found.0 == name(0, 3)), "a page that was written in part is not marked");
    }
}

/// Checks that the others find the cache usable, and that every frame is free after all pages are dropped.
fn go_on(world: &Fixture, what: &str) {
    let pages = &world.theirs;
    for n in 20..30 {
        assert_ne!(put(pages, name(1, n), 200, Marks::NONE), Inserted::Stale, "{what}");
        assert!(pages.read(name(1, n), 0, &mut [0; 9]), "{what}: no room");
    }
    pages.check().unwrap_or_else(|damaged| panic!("{what}: {damaged}"));
    let _ = pages.invalidate(FileNo(0), 0..u64::MAX);
    let _ = pages.invalidate(FileNo(1), 0..u64::MAX);
    let stats = pages.stats();
    assert_eq!((stats.free, stats.orphans, stats.marked), (stats.frames, 0, 0), "{what}");
}

/// Runs an operation that dies at step `n`; returns whether it died.
fn die(n: u32, (what, run): (&str, Operation), replacement: Replacement, reap_first: bool) -> bool {
    let mut world = world(replacement);
    may_be(&mut world.allowed);
    let died = die_at(n, || run(&world.ours)).is_none();
    world.processes.kill(world.ours.me);
    let what = format!("{what}, step {n}, {replacement:?}, reaped first: {reap_first}");
    let name = what.split(',').next().unwrap_or_default().to_owned();
    if !reap_first {
        look(&world, &name);
    }
    world.theirs.reap(world.ours.me);
    world.theirs.check().unwrap_or_else(|damaged| panic!("{what}: {damaged}"));
    look(&world, &name);
    go_on(&world, &what);
    died
}

#[test]
fn whoever_dies_at_any_step_leaves_what_others_can_put_right() {
    for operation in OPERATIONS {
        for replacement in [Replacement::S3Fifo, Replacement::Lru] {
            for reap_first in [true, false] {
                let steps = (0..).take_while(|&n| die(n, *operation, replacement, reap_first)).count();
                println!("{}: {steps} steps", operation.0);
            }
        }
    }
}

/// The repairing process dies too, at each step.
#[test]
fn a_repair_that_is_cut_short_is_done_again() {
    let insert = OPERATIONS[3];
    for n in (0..200).step_by(if std::env::var_os("FULL").is_some_and(|full| full == "1") { 1 } else { 19 }) {
        for m in 0..1_000 {
            let mut world = world(Replacement::S3Fifo);
            may_be(&mut world.allowed);
            if die_at(n, || (insert.1)(&world.ours)).is_some() {
                break;
            }
            world.processes.kill(world.ours.me);
            let heir = oracle::attached(&world.theirs.region, &world.processes);
            let died = die_at(m, || heir.reap(world.ours.me)).is_none();
            world.processes.kill(heir.me);
            world.theirs.reap(world.ours.me);
            world.theirs.reap(heir.me);
            look(&world, "insert over others");
            go_on(&world, &format!("insert over others, step {n}, repair step {m}"));
            if !died {
                break;
            }
        }
    }
}
