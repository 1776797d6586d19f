//! Caches for tests, and the model they are compared with: a map of everything that was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use shm::{PageSize, ProcessSlot, ProcessSlots, Region};

use super::*;
use crate::{PAGE_BYTES, PageIndex};

/// The position of the cache in a test's region; the process slots are before it.
pub(super) const AT: usize = PAGE_BYTES;

/// Returns a cache in a separate region, and the process slots.
pub(super) fn cache(shape: &Shape) -> (SharedPages, Arc<Region>, Arc<ProcessSlots>) {
    let region = Arc::new(Region::private(AT + SharedPages::bytes(shape), PageSize::Small).expect("memory"));
    let processes = Arc::new(ProcessSlots::in_process(region.clone(), 0));
    SharedPages::format(&region, AT, shape, 7);
    (attached(&region, &processes), region, processes)
}

/// Attaches one more process.
pub(super) fn attached(region: &Arc<Region>, processes: &Arc<ProcessSlots>) -> SharedPages {
    let me: ProcessSlot = processes.attach().expect("a process slot");
    SharedPages::attach(region, AT, region.len() - AT, processes, me).expect("a cache")
}

pub(super) fn small(frames: u32, shards: u32, replacement: Replacement) -> Shape {
    Shape { frames, shards, ghosts: frames, replacement }
}

pub(super) fn name(file: u32, page: u64) -> Name {
    Name { file: FileNo(file), page: PageIndex(page) }
}

pub(super) fn page(byte: u8) -> Page {
    [byte; PAGE_BYTES]
}

pub(super) fn put(pages: &SharedPages, name: Name, byte: u8, marks: Marks) -> Inserted {
    pages.insert(name, &page(byte), marks, pages.ticket(name), 0)
}

/// Calls on the hit path, with the long path if that fails.
impl SharedPages {
    pub(super) fn read_at_once(&self, name: Name, offset: usize, to: &mut [u8]) -> bool {
        self.find_frame(name, Some(offset)).is_some_and(|frame| frame.read(offset, to, self.thread_counters()))
            || self.read(name, offset, to)
    }

    pub(super) fn write_at_once(&self, name: Name, offset: usize, from: &[u8], marks: Marks, now_ms: u32) -> bool {
        let is_written = self.find_frame(name, None).is_some_and(|frame| frame.write_marked(offset, from, marks, self.thread_counters()));
        is_written || self.write(name, offset, from, marks, now_ms)
    }

    pub(super) fn pin_at_once(&self, name: Name) -> Option<Pin> {
        self.find_frame(name, Some(0)).and_then(|frame| frame.pin(|pin| pin)).or_else(|| self.pin(name))
    }
}

/// The model's state of a page that is or may be cached.
#[derive(Clone, Debug)]
struct Known {
    bytes: Page,
    marks: Marks,
    since_ms: u32,
}

struct ModelRun {
    pages: SharedPages,
    /// Every page that was ever inserted and not dropped; those without marks may have been evicted.
    model: BTreeMap<Name, Known>,
    pins: Vec<(Name, Pin)>,
    random: fastrand::Rng,
    now_ms: u32,
}

impl ModelRun {
    fn any_name(&mut self) -> Name {
        name(self.random.u32(0..3), self.random.u64(0..40))
    }

    fn any_marks(&mut self) -> Marks {
        Marks([0, 1, 2, 3][self.random.usize(0..4)])
    }

    fn step(&mut self) {
        self.now_ms += 1;
        let name = self.any_name();
        match self.random.u32(0..100) {
            0..25 => self.read(name),
            25..50 => self.insert(name),
            50..65 => self.write(name),
            65..80 => self.clean(name),
            80..84 => self.pin(name),
            84..90 => self.unpin(),
            90..93 => self.invalidate(name),
            93..95 => self.cut(name),
            95..96 => self.drop_clean(name.file),
            96..97 => drop(self.pages.evict_ahead(2, 5)),
            97..98 => self.release(name),
            _ => self.compare(),
        }
    }

    fn release(&mut self, name: Name) {
        if self.pages.release(name) {
            let known = self.model.remove(&name).expect("it was brought");
            assert!(known.marks.is_none() && self.pins.iter().all(|(pinned, _)| *pinned != name), "{name:?}");
        }
    }

    fn read(&mut self, name: Name) {
        let offset = self.random.usize(0..PAGE_BYTES);
        let mut to = vec![0; self.random.usize(0..=PAGE_BYTES - offset)];
        let read = if self.random.bool() { SharedPages::read } else { SharedPages::read_at_once };
        let hit = read(&self.pages, name, offset, &mut to);
        match self.model.get(&name) {
            Some(known) if hit => assert!(to == known.bytes[offset..offset + to.len()], "{name:?}"),
            Some(known) => assert!(known.marks.is_none(), "a marked page left: {name:?}"),
            None => assert!(!hit, "{name:?} was dropped"),
        }
        assert_eq!(self.pages.contains(name), hit);
        if !hit {
            self.model.remove(&name);
        }
    }

    fn insert(&mut self, name: Name) {
        let (byte, is_asked) = (self.random.u8(..), self.random.u8(..4) > 0);
        let marks = if is_asked { self.any_marks() } else { Marks::NONE };
        let (was_here, ticket) = (self.pages.contains(name), self.pages.ticket(name));
        let inserted = match is_asked {
            true => self.pages.insert(name, &page(byte), marks, ticket, self.now_ms),
            false => self.pages.insert_unasked(name, &page(byte), ticket, self.now_ms),
        };
        match inserted {
            Inserted::Present => assert!(was_here),
            Inserted::Done => {
                assert!(!was_here);
                self.model.insert(name, Known { bytes: page(byte), marks, since_ms: self.now_ms });
            }
            Inserted::NoRoom => assert!(!was_here),
            Inserted::Stale | Inserted::Locked => panic!("nobody else is here"),
        }
    }

    fn write(&mut self, name: Name) {
        let (offset, marks) = (self.random.usize(0..PAGE_BYTES), self.any_marks());
        let from = vec![self.random.u8(..); self.random.usize(0..=PAGE_BYTES - offset)];
        let write = if self.random.bool() { SharedPages::write } else { SharedPages::write_at_once };
        if !write(&self.pages, name, offset, &from, marks, self.now_ms) {
            assert!(self.model.remove(&name).is_none_or(|known| known.marks.is_none()), "a marked page left");
            return;
        }
        let known = self.model.get_mut(&name).expect("a page that was dropped");
        known.bytes[offset..offset + from.len()].copy_from_slice(&from);
        if known.marks.is_none() {
            known.since_ms = self.now_ms;
        }
        known.marks = known.marks | marks;
    }

    fn clean(&mut self, name: Name) {
        let mut bytes = page(0);
        let Some(snapshot) = self.pages.snapshot(name, &mut bytes) else { return };
        let cleared = self.any_marks();
        let known = self.model.get_mut(&name).expect("a page that was dropped");
        assert!(bytes == known.bytes && snapshot.marks == known.marks, "{name:?}");
        let changed = self.random.bool() && self.pages.write(name, 0, &known.bytes[..1], Marks::NONE, self.now_ms);
        assert_eq!(self.pages.settle(name, &snapshot, cleared), !changed);
        if !changed {
            known.marks = Marks(known.marks.0 & !cleared.0);
        }
    }

    fn pin(&mut self, name: Name) {
        let pin = if self.random.bool() { SharedPages::pin } else { SharedPages::pin_at_once };
        if let Some(pin) = pin(&self.pages, name).filter(|_| self.model.contains_key(&name)) {
            self.pins.push((name, pin));
        }
    }

    fn unpin(&mut self) {
        if !self.pins.is_empty() {
            let (_, pin) = self.pins.swap_remove(self.random.usize(0..self.pins.len()));
            self.pages.unpin(pin);
        }
    }

    fn invalidate(&mut self, first: Name) {
        let end = if self.random.bool() { first.page.0 + self.random.u64(0..20) } else { u64::MAX };
        let old = self.pages.ticket(first);
        assert_eq!(self.pages.invalidate(first.file, first.page.0..end), Leftover::None);
        self.model.retain(|name, _| name.file != first.file || !(first.page.0..end).contains(&name.page.0));
        if end > first.page.0 {
            assert_eq!(self.pages.insert(first, &page(0), Marks::NONE, old, 0), Inserted::Stale);
        }
        // The pinned frames lost their names; they stay pinned.
        self.pins.iter().for_each(|(_, pin)| assert!(!self.pages.address(pin).is_null()));
    }

    fn cut(&mut self, name: Name) {
        let (from, old) = (self.random.usize(0..=PAGE_BYTES), self.pages.ticket(name));
        assert!(self.pages.cut_tail(name, from));
        assert_ne!(self.pages.ticket(name), old);
        if let Some(known) = self.model.get_mut(&name) {
            known.bytes[from..].fill(0);
        }
    }

    fn drop_clean(&mut self, file: FileNo) {
        let absent = name(file.0, 99);
        let old = self.pages.ticket(absent);
        let all = self.pages.drop_clean(file);
        assert_ne!(self.pages.ticket(absent), old);
        self.model.retain(|name, known| name.file != file || !known.marks.is_none());
        assert_eq!(all == Leftover::None, !self.model.keys().any(|name| name.file == file));
        assert_eq!(all == Leftover::None, !self.pages.marked_of(file));
    }

    fn compare(&mut self) {
        self.pages.check().expect("consistent metadata");
        let wanted = |which: MarkFilter| {
            let marked = self.model.iter().filter(|(_, known)| !known.marks.is_none());
            let all = marked.map(|(name, known)| (*name, known.since_ms));
            all.filter(|(name, since_ms)| match which {
                MarkFilter::All => true,
                MarkFilter::File(file) => name.file == file,
                MarkFilter::OlderThan(time_ms) => *since_ms < time_ms,
            })
            .collect::<Vec<_>>()
        };
        for which in [MarkFilter::All, MarkFilter::File(FileNo(1)), MarkFilter::OlderThan(self.now_ms / 2)] {
            let mut found = Vec::new();
            self.pages.marked(which, usize::MAX, &mut found);
            found.sort_unstable();
            assert_eq!(found, wanted(which), "{which:?}");
        }
        assert_eq!(self.pages.marked_count() as usize, wanted(MarkFilter::All).len());
        for (name, _) in &self.pins {
            assert!(!self.model.contains_key(name) || self.pages.contains(*name), "{name:?} is pinned and left");
        }
    }
}

fn try_out(seed: u64, replacement: Replacement) {
    let mut random = fastrand::Rng::with_seed(seed);
    let shards = 1 << random.u32(0..3);
    let (pages, region, processes) = cache(&small(shards * random.u32(1..24), shards, replacement));
    let mut trial = ModelRun { pages, model: BTreeMap::new(), pins: Vec::new(), random, now_ms: 1 };
    for _ in 0..1_500 {
        trial.step();
    }
    for (_, pin) in std::mem::take(&mut trial.pins) {
        trial.pages.unpin(pin);
    }
    trial.compare();
    let _ = trial.pages.drop_clean(FileNo(0));
    (0..3).for_each(|file| _ = trial.pages.invalidate(FileNo(file), 0..u64::MAX));
    let stats = attached(&region, &processes).stats();
    assert_eq!((stats.free, stats.orphans, stats.marked, stats.repairs), (stats.frames, 0, 0, 0), "seed {seed}");
}

#[test]
fn every_order_of_calls_gives_what_a_plain_map_gives() {
    let seeds = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 3_000 } else { 40 };
    for seed in 0..if cfg!(miri) { 2 } else { seeds } {
        for replacement in [Replacement::S3Fifo, Replacement::Lru, Replacement::Fifo] {
            println!("seed {seed} {replacement:?}");
            try_out(seed, replacement);
        }
    }
}
