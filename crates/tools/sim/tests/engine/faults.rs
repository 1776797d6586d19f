//! The SSD fails at any moment, and leaders die around it: a reader gets the newest bytes or EIO, never older ones; a successful sync
//! means that nothing is lost; newly written data is present.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use shm::{ProcessSlots, Region};
use ssdcache::{Mode, PAGE_BYTES};

use super::model::{CELL, CELLS, cell_bytes};
use super::world::{Kind, Machine};
use super::{FILES, Process, Setup, formatted};

/// Number of cells of a page.
const PAGE: usize = PAGE_BYTES / CELL;
const STEPS: usize = 120;

struct Run {
    rng: fastrand::Rng,
    machine: Arc<Machine>,
    region: Arc<Region>,
    processes: Arc<ProcessSlots>,
    process: Process,
    setup: Setup,
    /// By file, the legal values of each cell: several after a failed write.
    files: BTreeMap<u64, Vec<BTreeSet<u64>>>,
    version: u64,
    has_failed: bool,
    lost: usize,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mode = [Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough][rng.usize(..3)];
        let machine = Machine::new(Kind::Memory, 0, formatted());
        let setup = Setup::plain(mode);
        let region = setup.segment();
        let processes = setup.processes(&region);
        let process = Process::start(&machine, &region, &processes, setup);
        let files = FILES.map(|key| (key, vec![BTreeSet::from([0]); CELLS])).collect();
        let mut run = Run { rng, machine, region, processes, process, setup, files, version: 0, has_failed: false, lost: 0 };
        // All files at their final length.
        FILES.for_each(|key| run.write(key, 0..CELLS));
        run
    }

    fn open(&self, key: u64) -> &datapath::engine::Open {
        &self.process.opens[(key - FILES.start) as usize]
    }

    fn write(&mut self, key: u64, cells: std::ops::Range<usize>) {
        self.version += 1;
        let version = self.version;
        let bytes: Vec<u8> = cells.clone().flat_map(|cell| cell_bytes(key, cell, version)).collect();
        let written = self.open(key).write((cells.start * CELL) as u64, &bytes);
        let known = self.files.get_mut(&key).expect("a file");
        match written {
            Ok(count) => {
                assert_eq!(count, bytes.len());
                known[cells].fill(BTreeSet::from([version]));
            }
            Err(errno) => {
                assert!(self.has_failed && errno == Errno::IO, "a write: {errno}");
                known[cells].iter_mut().for_each(|cell| _ = cell.insert(version));
            }
        }
    }

    /// Returns whether it could be read.
    fn read(&mut self, key: u64, cells: std::ops::Range<usize>) -> bool {
        let mut bytes = vec![0; cells.len() * CELL];
        match self.open(key).read((cells.start * CELL) as u64, &mut bytes) {
            Ok(count) => assert_eq!(count, bytes.len()),
            Err(errno) => {
                assert!(self.has_failed && errno == Errno::IO, "a read: {errno}");
                self.lost += 1;
                return false;
            }
        }
        for (cell, bytes) in cells.zip(bytes.chunks(CELL)) {
            let may_be = &self.files[&key][cell];
            let is_right = may_be.iter().any(|version| cell_bytes(key, cell, *version) == bytes);
            let found = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
            assert!(is_right, "file {key} cell {cell}: version {found}, not one of {may_be:?}");
        }
        true
    }

    fn sync(&mut self, key: u64) {
        // While an SSD accepts writes, it is unknown whether it will return them.
        let is_known = self.process.engine.ssd_state().failed.is_some();
        match self.open(key).sync() {
            Ok(()) => {
                let looked_at = if is_known || !self.has_failed { CELLS / PAGE } else { 0 };
                for page in 0..looked_at {
                    assert!(self.read(key, page * PAGE..(page + 1) * PAGE), "file {key} page {page} is lost, and sync had nothing to say");
                }
            }
            Err(errno) => assert!(self.has_failed && errno == Errno::IO, "a sync: {errno}"),
        }
    }

    /// The process dies, and the next one may not find the SSD at all.
    fn succeed(&mut self) {
        for process in (0..64).filter(|process| self.processes.taken() >> process & 1 == 1) {
            self.processes.kill(shm::ProcessSlot(process));
        }
        let has_ssd = !self.has_failed || self.rng.bool();
        self.process = Process::start(&self.machine, &self.region, &self.processes, Setup { has_ssd, ..self.setup });
    }

    fn act(&mut self) {
        let key = self.rng.u64(FILES);
        let at = self.rng.usize(..CELLS);
        let end = (at + 1 + self.rng.usize(..30)).min(CELLS);
        match self.rng.u8(..100) {
            0..45 => self.write(key, at..end),
            45..80 => _ = self.read(key, at..end),
            80..88 => self.sync(key),
            88..92 => self.succeed(),
            _ => {
                self.machine.tick(self.rng.u32(..2000));
                self.process.engine.step_inline();
            }
        }
    }
}

/// Returns how often data was lost.
fn run(seed: u64) -> usize {
    let mut run = Run::new(seed);
    let fails_at = run.rng.usize(STEPS / 4..STEPS);
    for step in 0..STEPS {
        if step == fails_at {
            run.machine.ssd_failing.store(run.rng.u32(1..4), Ordering::Relaxed);
            run.has_failed = true;
        }
        run.act();
    }
    // After a complete rewrite everything is present.
    for key in FILES {
        let mut is_there = false;
        // The failure of the SSD may be detected only now.
        for _ in 0..4 {
            run.write(key, 0..CELLS);
            // Each open reports a loss once, and keeps failing while data is lost.
            let _ = run.open(key).sync();
            let synced = run.open(key).sync();
            assert!(matches!(synced, Ok(()) | Err(Errno::IO)), "file {key}: {synced:?}");
            is_there = run.read(key, 0..CELLS) && synced.is_ok();
            if is_there {
                break;
            }
        }
        assert!(is_there, "file {key}");
        run.open(key).clean().expect("below");
        let below = run.machine.bytes(key);
        for (cell, bytes) in below.chunks(CELL).enumerate() {
            assert!(cell_bytes(key, cell, *run.files[&key][cell].first().expect("a version")) == bytes, "file {key} cell {cell} below");
        }
    }
    run.lost
}

/// Runs that failed once: an SSD that could not release an entry was reported as full; a loss reported by two syncs, which is correct.
const KEPT: [u64; 2] = [5_288, 6_641];

#[test]
fn an_ssd_that_fails_at_any_moment_costs_what_only_it_had_and_no_byte_is_older() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let is_full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let many = match is_full {
        true => 20_000,
        false if cfg!(debug_assertions) => 60,
        false => 600,
    };
    let seeds: Vec<u64> = number("SIM_SEED").map_or_else(|| KEPT.into_iter().chain(0..many).collect(), |seed| vec![seed]);
    let mut lost = 0;
    for seed in seeds {
        lost += std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| panic!("replay with SIM_SEED={seed}"));
    }
    assert!(lost > 0 || number("SIM_SEED").is_some(), "nothing was ever lost: this proves nothing");
}
