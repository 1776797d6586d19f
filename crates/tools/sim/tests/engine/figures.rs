//! Costs and retention of the cache on segments of realistic size: write amplification, metadata, merging, pages that survive a power cut.

use std::sync::Arc;

use datapath::Worker;
use datapath::engine::{CacheEngine, Count, Layout, Limits, Open, OpenOptions, Parts, Sizes, SsdState};
use pagecache::{Replacement, Shape as Frames};
use parking_lot::Mutex;
use shm::{PageSize, ProcessSlots, Region};
use ssdcache::{AdmissionRule, FileKey, Mode, PAGE_BYTES, SsdCache};

use crate::world::{Handle, Kind, Machine, Outside, Remains, Ssd};

const SSD: ssdcache::Shape = ssdcache::Shape { segment_pages: 512, segments: 16 };
const FRAMES: Frames = Frames { frames: 1024, shards: 1, ghosts: 1024, replacement: Replacement::S3Fifo };

/// An instance over two files, and its machine.
struct Bench {
    machine: Arc<Machine>,
    engine: Arc<CacheEngine>,
    opens: Vec<Open>,
}

fn limits() -> Limits {
    Limits { dirty_percent: 60, read_ahead: 0, read_around: 0, ..Limits::new(SSD.slots()) }
}

fn empty() -> Remains {
    let mut ssd = vec![0; SSD.device_pages() as usize * PAGE_BYTES];
    for (n, page) in SsdCache::format([9; 16], SSD).iter().enumerate() {
        ssd[n * PAGE_BYTES..(n + 1) * PAGE_BYTES].copy_from_slice(page);
    }
    Machine::empty(ssd, 1..3)
}

impl Bench {
    fn new(remains: Remains, mode: Mode) -> Bench {
        Bench::with(remains, mode, limits(), AdmissionRule::Always)
    }

    fn with(remains: Remains, mode: Mode, limits: Limits, rule: AdmissionRule) -> Bench {
        let machine = Machine::new(Kind::Memory, 1, remains);
        let sizes = Sizes { frames: FRAMES, ssd: Some(SSD), files: 16 };
        let layout = Layout::of(sizes);
        let region = Arc::new(Region::private(layout.bytes, PageSize::Small).expect("memory"));
        CacheEngine::format(&region, sizes, &limits, mode, 7, "");
        let processes = Arc::new(ProcessSlots::in_process(Arc::clone(&region), layout.processes));
        let ssd: Arc<dyn block::Device> = Arc::new(Ssd(Arc::clone(&machine)));
        let world = Arc::new(Outside(Arc::clone(&machine)));
        let parts = Parts { region, processes, device: Some(Arc::clone(&ssd)), plain: Some(ssd), world, limits };
        let engine = CacheEngine::attach(parts).expect("attached");
        engine.lead_inline(Worker::begin(&engine));
        let how = OpenOptions { rule, ..OpenOptions::default() };
        let open = |key: u64| {
            let below = Arc::new(Handle { machine: Arc::clone(&machine), key });
            engine.open(FileKey(key), format!("/f{key}").as_ref(), how, below).expect("opened")
        };
        let opens = (1..3).map(open).collect();
        Bench { machine, engine, opens }
    }

    fn write(&self, file: usize, page: u64) {
        let bytes = [page as u8 | 1; PAGE_BYTES];
        assert_eq!(self.opens[file].write(page * PAGE_BYTES as u64, &bytes), Ok(PAGE_BYTES));
    }

    fn step(&self) {
        self.machine.tick(5);
        self.engine.step_inline();
    }

    fn sum(&self, what: Count) -> f64 {
        self.engine.counters().sum(what) as f64
    }

    /// Puts the first pages of a file on the SSD, clean.
    fn fill(&self, file: usize, pages: u64) {
        for page in 0..pages {
            self.write(file, page);
            if page % 64 == 0 {
                self.step();
            }
        }
        self.opens[file].clean().expect("all below");
        let mut bytes = [0; PAGE_BYTES];
        for page in 0..pages {
            self.opens[file].read(page * PAGE_BYTES as u64, &mut bytes).expect("read");
            if page % 64 == 0 {
                self.step();
            }
        }
        (0..64).for_each(|_| self.step());
    }
}

#[test]
fn random_writes_cost_the_ssd_a_tenth_more_and_metadata_a_twentieth() {
    let bench = Bench::new(empty(), Mode::WriteBack);
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..16_384 {
        bench.write(0, rng.u64(..16_384));
        if n % 64 == 0 {
            bench.step();
        }
    }
    bench.opens[0].sync().expect("durable");
    let (data, all) = (bench.sum(Count::SsdData), bench.sum(Count::SsdWritten));
    let (amplification, metadata) = (all / data, (all - data) / data);
    println!("4 KiB random write-back: write amplification of the SSD {amplification:.3}, metadata / data {metadata:.3}");
    assert!(amplification <= 1.10 && metadata <= 0.05, "{amplification} {metadata}");
}

#[test]
fn write_back_merges_random_writes_over_a_tenth_of_a_span() {
    // From a range of 40,960 pages.
    let bench = Bench::new(empty(), Mode::WriteBack);
    let mut rng = fastrand::Rng::with_seed(2);
    for n in 0..24_000 {
        bench.write(0, rng.u64(..4_096));
        if n % 64 == 0 {
            bench.step();
        }
    }
    bench.engine.clean_all(&mut |_| {}).expect("all below");
    let (calls, pages) = (bench.sum(Count::BelowWrites), bench.sum(Count::WrittenBack));
    println!("random writes over 10 % of a span: {calls} writes below for {pages} dirty pages, {:.3}", calls / pages);
    assert!(calls / pages <= 0.5);
}

/// Returns the pages on the SSD at power cuts during random writes to another file, and how many survived.
fn kept(mode: Mode, cuts: usize) -> (u64, u64) {
    let bench = Bench::new(empty(), Mode::WriteBack);
    bench.fill(0, 3_000);
    bench.engine.set_mode(mode).expect("in force");
    let taken: Arc<Mutex<Vec<(Remains, SsdState)>>> = Arc::default();
    let (out, machine, engine) = (Arc::clone(&taken), Arc::downgrade(&bench.machine), Arc::downgrade(&bench.engine));
    let mut rng = fastrand::Rng::with_seed(3);
    let mut watching = rng.fork();
    bench.machine.set_moment(Some(Box::new(move || {
        if watching.u8(..40) == 0
            && let (Some(machine), Some(engine)) = (machine.upgrade(), engine.upgrade())
        {
            out.lock().push((machine.cut(watching.u64(..)), engine.ssd_state()));
        }
    })));
    let (mut before, mut after, mut done) = (0, 0, 0);
    while done < cuts {
        for _ in 0..16 {
            bench.write(1, rng.u64(..600));
        }
        bench.step();
        let of_round = std::mem::take(&mut *taken.lock());
        for (remains, state) in of_round {
            let again = Bench::new(remains, mode);
            again.step();
            (before, after, done) = (before + state.live, after + again.engine.ssd_state().live.min(state.live), done + 1);
            if done == 1 {
                println!("recovery of {} pages: {} ms", state.live, again.engine.ssd_state().recovery_ms);
            }
        }
    }
    bench.machine.set_moment(None);
    (before, after)
}

#[test]
fn pages_are_kept_over_cuts() {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround] {
        let (before, after) = kept(mode, 20);
        let share = after as f64 / before as f64;
        println!("{mode:?}: of {before} pages on the SSD at 20 cuts {after} were there afterwards, {share:.3}");
        assert!(share >= 0.95, "{share}");
    }
}

/// Creates an empty SSD over a file that was never read, each page with its number in it; a miss reads 8 pages around.
fn unread(pages: u64) -> Bench {
    let limits = Limits { read_around: 32 << 10, slow_below: std::time::Duration::ZERO, ..limits() };
    let bench = Bench::with(empty(), Mode::WriteAround, limits, AdmissionRule::Normal);
    (0..pages).for_each(|page| bench.write(0, page));
    bench
}

impl Bench {
    /// Reads a written page and lets the leader run.
    fn read(&self, page: u64) {
        let mut bytes = [0; PAGE_BYTES];
        assert_eq!(self.opens[0].read(page * PAGE_BYTES as u64, &mut bytes), Ok(PAGE_BYTES));
        assert!(bytes.iter().all(|byte| *byte == page as u8 | 1), "page {page}");
        self.step();
    }
}

#[test]
fn what_lies_around_fills_an_empty_ssd() {
    let bench = unread(8_192);
    let mut rng = fastrand::Rng::with_seed(4);
    (0..256).for_each(|block| bench.read(1_024 + block * 8 + rng.u64(..8)));
    (0..8).for_each(|_| bench.step());
    let misses = bench.sum(Count::Misses);
    (1_024..3_072).for_each(|page| bench.read(page));
    assert_eq!(bench.sum(Count::Misses), misses, "they are on the SSD");
}

#[test]
fn what_was_asked_for_takes_the_place_of_what_was_not() {
    let bench = unread(16_384);
    let (slots, mut rng) = (f64::from(SSD.slots()), fastrand::Rng::with_seed(5));
    (0..2_048).for_each(|block| bench.read(block * 8 + rng.u64(..8)));
    let around = bench.sum(Count::ReadAround);
    assert!(around > slots * 0.6 && around < slots, "until an eighth is left: {around} of {slots}");
    // Read once each; the cache does not know that it is the first time.
    let rest: Vec<u64> = (10_000..12_000).filter(|page| page % 2 == 0).collect();
    let (first, promoted) = (bench.sum(Count::RefusedFirst), bench.sum(Count::Promoted));
    rest.iter().for_each(|page| bench.read(*page));
    assert!(bench.sum(Count::Promoted) - promoted > 0.8 * rest.len() as f64);
    assert_eq!((bench.sum(Count::RefusedFirst), bench.sum(Count::ReadAround)), (first, around));
}

#[test]
fn where_the_days_bytes_are_counted_nothing_comes_that_nobody_asked_for() {
    let mut limits = Limits { read_around: 32 << 10, slow_below: std::time::Duration::ZERO, ..limits() };
    limits.admission.bytes_per_day = 1 << 30;
    let bench = Bench::with(empty(), Mode::WriteAround, limits, AdmissionRule::Normal);
    (0..4_096).for_each(|page| bench.write(0, page));
    (0..512).for_each(|block| bench.read(block * 8));
    assert_eq!(bench.sum(Count::ReadAround), 0.0);
    assert!(bench.sum(Count::Promoted) > 400.0);
}
