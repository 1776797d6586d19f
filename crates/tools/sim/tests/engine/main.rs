// long: the random calls of one test and what each does to the model.
//! The cache loses power, and its leader dies, at any moment: no synced byte is lost, and none is wrong.
//!
//! The engine with its worker, inline, over an SSD and files that lose unflushed data (torn sectors, any order). At random moments between
//! two changes of the SSD or of a file, the machine is captured as after a power cut and reopened; and processes die, and others attach to
//! the segment. `SIM_CUTS`: number of cuts (CI: 4,000; FULL=1: 100,000). `SIM_SEED`: one run, as a failure names it.

mod blocks;
mod faults;
mod figures;
mod foreign;
mod hanging;
mod model;
mod unsettled;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};

use datapath::Worker;
use datapath::engine::{CacheEngine, Layout, Limits, Open, OpenFileError, OpenOptions, Parts, Sizes};
use pagecache::{Replacement, Shape as Frames};
use parking_lot::Mutex;
use shm::{PageSize, ProcessSlots, Region};
use ssdcache::{FileKey, Mode, PAGE_BYTES, SsdCache};

use model::{CELL, CELLS, File, Files, cell_bytes};
use world::{Died, Handle, Kind, Machine, Outside, Remains, Ssd};

const FILES: std::ops::Range<u64> = 1..4;
const SSD: ssdcache::Shape = ssdcache::Shape { segment_pages: 32, segments: 6 };
const FRAMES: Frames = Frames { frames: 24, shards: 1, ghosts: 24, replacement: Replacement::S3Fifo };

/// The parameters of a run.
#[derive(Clone, Copy)]
struct Setup {
    kind: Kind,
    has_ssd: bool,
    mode: Mode,
    /// Number of file records: with fewer than files, they are opened for each call.
    records: u32,
    /// The SSD accepts a limited number of writes.
    has_budget: bool,
    /// The mode changes.
    switches: bool,
    /// Writes to backing files fail at times.
    fails: bool,
    /// A second process reads.
    has_peer: bool,
}

/// Creates an empty SSD and empty files.
fn formatted() -> Remains {
    let mut ssd = vec![0; SSD.device_pages() as usize * PAGE_BYTES];
    for (page, bytes) in ssd.chunks_exact_mut(PAGE_BYTES).zip(SsdCache::format([9; 16], SSD)) {
        page.copy_from_slice(&bytes);
    }
    Machine::empty(ssd, FILES)
}

impl Setup {
    /// Creates an SSD and one process, without changes or failures.
    fn plain(mode: Mode) -> Setup {
        Setup { kind: Kind::Memory, has_ssd: true, mode, records: 16, has_budget: false, switches: false, fails: false, has_peer: false }
    }

    fn of(kind: Kind, seed: u64, rng: &mut fastrand::Rng) -> Setup {
        let mode = [Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround][rng.usize(..4)];
        let records = if rng.u8(..5) == 0 { 2 } else { 16 };
        let mut one_of = |of: u8| rng.u8(..of) == 0;
        Setup {
            kind,
            has_ssd: !seed.is_multiple_of(8),
            mode,
            records,
            has_budget: one_of(6),
            switches: one_of(4),
            fails: one_of(5),
            has_peer: records > 2 && one_of(3),
        }
    }

    fn limits(self) -> Limits {
        // Reads around each miss, however fast the device is.
        let around = Limits { read_around: 32 << 10, slow_below: std::time::Duration::ZERO, ..Limits::new(0) };
        let mut limits = Limits { dirty_age_ms: 50, dirty_percent: 60, ssd_dirty_percent: 40, read_ahead: 32 << 10, ..around };
        if self.has_budget {
            (limits.admission.bytes_per_day, limits.admission.burst_bytes) = (1, 100 * PAGE_BYTES as u64);
        }
        limits
    }

    fn sizes(self) -> Sizes {
        Sizes { frames: FRAMES, ssd: self.has_ssd.then_some(SSD), files: self.records }
    }

    fn segment(self) -> Arc<Region> {
        let layout = Layout::of(self.sizes());
        let region = Arc::new(Region::private(layout.bytes, PageSize::Small).expect("memory"));
        CacheEngine::format(&region, self.sizes(), &self.limits(), self.mode, 7, "");
        region
    }

    fn processes(self, region: &Arc<Region>) -> Arc<ProcessSlots> {
        Arc::new(ProcessSlots::in_process(Arc::clone(region), Layout::of(self.sizes()).processes))
    }

    /// Lengths are written back in steps, not with the file's entry.
    fn in_pieces(self) -> bool {
        !self.has_ssd || self.mode != Mode::WriteBack || self.switches || self.has_budget
    }
}

/// One process on a machine, and possibly a second one that reads.
struct Process {
    machine: Arc<Machine>,
    engine: Arc<CacheEngine>,
    /// Empty: files are opened for each call.
    opens: Vec<Open>,
    peer: Vec<Open>,
}

fn open_at(machine: &Arc<Machine>, engine: &Arc<CacheEngine>, key: u64) -> Open {
    let below = || Arc::new(Handle { machine: Arc::clone(machine), key });
    let open = || engine.open(FileKey(key), format!("/f{key}").as_ref(), OpenOptions::default(), below());
    match open() {
        Err(OpenFileError::NoRecord) => {
            // The other processes have marked pages.
            engine.clean_all(&mut |_| {}).expect("all below");
            open()
        }
        other => other,
    }
    .unwrap_or_else(|error| panic!("file {key}: {error}"))
}

impl Process {
    fn attach(machine: &Arc<Machine>, region: &Arc<Region>, processes: &Arc<ProcessSlots>, setup: Setup) -> Arc<CacheEngine> {
        let ssd: Option<Arc<dyn block::Device>> = setup.has_ssd.then(|| Arc::new(Ssd(Arc::clone(machine))) as Arc<dyn block::Device>);
        let world = Arc::new(Outside(Arc::clone(machine)));
        let (region, processes, limits) = (Arc::clone(region), Arc::clone(processes), setup.limits());
        CacheEngine::attach(Parts { region, processes, device: ssd.clone(), plain: ssd, world, limits }).expect("attached")
    }

    /// Attaches, becomes leader, opens all files.
    fn start(machine: &Arc<Machine>, region: &Arc<Region>, processes: &Arc<ProcessSlots>, setup: Setup) -> Process {
        let attach = || Process::attach(machine, region, processes, setup);
        let engine = attach();
        engine.lead_inline(Worker::begin(&engine));
        let keys = || FILES.filter(|_| setup.records > 2);
        let opens = keys().map(|key| open_at(machine, &engine, key)).collect();
        let peer = if setup.has_peer {
            let peer = attach();
            peer.follow_inline(&engine);
            keys().map(|key| open_at(machine, &peer, key)).collect()
        } else {
            Vec::new()
        };
        Process { machine: Arc::clone(machine), engine, opens, peer }
    }

    fn with<T>(&self, file: u64, call: impl FnOnce(&Open) -> T) -> T {
        match self.opens.get((file - FILES.start) as usize) {
            Some(open) => call(open),
            None => call(&open_at(&self.machine, &self.engine, file)),
        }
    }

    fn read(&self, file: u64, cells: std::ops::Range<usize>) -> Vec<u8> {
        self.with(file, |open| read(open, cells))
    }
}

fn read(open: &Open, cells: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; cells.len() * CELL];
    let count = open.read((cells.start * CELL) as u64, &mut bytes).expect("read");
    bytes.truncate(count);
    bytes
}

/// Verifies the machine after a power cut: everything that must be visible is.
fn check_remains(label: u32, remains: Remains, mut files: Files, setup: Setup) {
    let machine = Machine::new(setup.kind, label, remains);
    let region = setup.segment();
    let process = Process::start(&machine, &region, &setup.processes(&region), setup);
    if label.is_multiple_of(2) {
        // The leader may write to files that no process has opened since.
        process.engine.clean_all(&mut |_| {}).expect("all below");
    }
    for (key, file) in &mut files {
        let bytes = process.read(*key, 0..CELLS);
        machine.trace(|| {
            let (cells, below) = (bytes.len() / CELL, machine.bytes(*key).len() / CELL);
            format!("after the cut: file {key}: {cells} cells, below {below}, {:?}", process.engine.ssd_state())
        });
        file.check_crashed(*key, &bytes, setup.in_pieces());
        if label.is_multiple_of(2) {
            assert_eq!(machine.bytes(*key).len(), file.len() * CELL, "file {key}: its length below");
        }
    }
    // And it continues: a file that grows shows zeroes behind its old end, and everything is written back.
    for (key, file) in &mut files {
        file.truncate(CELLS);
        process.with(*key, |open| open.set_len((CELLS * CELL) as u64)).expect("grown");
        let bytes = process.read(*key, 0..CELLS);
        assert_eq!(bytes.len(), CELLS * CELL, "file {key}: its length");
        file.check_now(*key, &bytes, 0);
    }
    process.engine.clean_all(&mut |_| {}).expect("all below");
    let reports = machine.reports.lock();
    assert!(reports.is_empty(), "{reports:?}");
    for (key, file) in &files {
        let below = machine.bytes(*key);
        assert_eq!(below.len(), file.len() * CELL, "file {key}: its length below");
        file.check_now(*key, &below, 0);
    }
}

/// The result of a call.
enum Ended {
    Done(std::thread::Result<()>),
    Died,
}

type Call = Box<dyn FnOnce(&Process) + Send>;

/// A process that can die during a call: its thread then stops, with all that it holds, until the run ends.
struct Alive {
    process: Arc<Process>,
    /// Whether it may die: then it runs in its own thread, which is slower.
    is_mortal: bool,
    calls: mpsc::Sender<Call>,
    ended: mpsc::Receiver<Ended>,
    /// Reports a death; dropped at the end of the run.
    dying: mpsc::Sender<Ended>,
}

impl Alive {
    fn new(process: Process) -> Alive {
        let (calls, to_do) = mpsc::channel::<Call>();
        let (dying, ended) = mpsc::channel();
        let (done, process) = (dying.clone(), Arc::new(process));
        let works = Arc::clone(&process);
        let work = move || {
            while let Ok(call) = to_do.recv() {
                let result = catch_unwind(AssertUnwindSafe(|| call(&works)));
                if result.as_ref().is_err_and(|payload| payload.is::<Died>()) {
                    break;
                }
                if done.send(Ended::Done(result)).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread");
        Alive { process, is_mortal: false, calls, ended, dying }
    }

    /// Returns whether the process is still alive.
    fn call(&self, call: Call) -> bool {
        if !self.is_mortal {
            call(&self.process);
            return true;
        }
        self.calls.send(call).expect("a process");
        match self.ended.recv().expect("a process") {
            Ended::Done(result) => {
                result.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
                true
            }
            Ended::Died => false,
        }
    }
}

struct Run {
    rng: fastrand::Rng,
    machine: Arc<Machine>,
    region: Arc<Region>,
    processes: Arc<ProcessSlots>,
    process: Alive,
    files: Arc<Mutex<Files>>,
    setup: Setup,
    version: u64,
    /// The state before the last call.
    before: Files,
    /// Dropping these ends the dead threads.
    graves: Vec<mpsc::Sender<()>>,
}

impl Run {
    fn new(kind: Kind, seed: u64) -> Run {
        let mut rng = fastrand::Rng::with_seed(seed);
        let setup = Setup::of(kind, seed, &mut rng);
        let machine = Machine::new(kind, 0, formatted());
        let region = setup.segment();
        let processes = setup.processes(&region);
        let process = Alive::new(Process::start(&machine, &region, &processes, setup));
        let files = Arc::new(Mutex::new(FILES.map(|key| (key, File::default())).collect()));
        Run { rng, machine, region, processes, process, files, setup, version: 0, before: Files::new(), graves: Vec::new() }
    }

    /// Makes one call of a user, or advances time. Returns whether the process survived.
    fn act(&mut self) -> bool {
        self.before = self.files.lock().clone();
        let call = self.next_call();
        self.process.call(call)
    }

    // long: one match over the random calls with their weights.
    fn next_call(&mut self) -> Call {
        let key = self.rng.u64(FILES);
        let at = self.rng.usize(..CELLS);
        let most = if self.rng.u8(..8) == 0 { 40 } else { 10 };
        let mut end = (at + 1 + self.rng.usize(..most)).min(CELLS);
        let what = self.rng.u8(..100);
        let len = self.files.lock()[&key].len();
        self.machine.trace(|| format!("file {key} cells {at}..{end}: {what}, version {}, length {len}", self.version + 1));
        let files = Arc::clone(&self.files);
        let model = |change: &mut dyn FnMut(&mut File)| change(files.lock().get_mut(&key).expect("a file"));
        let fails = self.setup.fails;
        let open = move |process: &Process, call: &dyn Fn(&Open)| process.with(key, call);
        match what {
            0..35 => {
                self.version += 1;
                let version = self.version;
                let bytes: Vec<u8> = (at..end).flat_map(|cell| cell_bytes(key, cell, version)).collect();
                model(&mut |file| file.write(at..end, version));
                Box::new(move |process| open(process, &|open| assert_eq!(open.write((at * CELL) as u64, &bytes), Ok(bytes.len()))))
            }
            35..40 => {
                self.version += 1;
                let version = self.version;
                end = (len + 3).min(CELLS);
                let bytes: Vec<u8> = (len..end).flat_map(|cell| cell_bytes(key, cell, version)).collect();
                model(&mut |file| file.write(len..end, version));
                let append = move |open: &Open| {
                    if !bytes.is_empty() {
                        assert_eq!(open.append(&bytes), Ok((len * CELL) as u64));
                    }
                };
                Box::new(move |process| open(process, &append))
            }
            40..44 => {
                model(&mut |file| file.truncate(at));
                Box::new(move |process| open(process, &|open| assert_eq!(open.set_len((at * CELL) as u64), Ok(()))))
            }
            44..46 => {
                end = end.min(len);
                if at < end {
                    model(&mut |file| file.punch(at..end));
                }
                let (at, len) = ((at * CELL) as u64, (end.saturating_sub(at) * CELL) as u64);
                Box::new(move |process| open(process, &|open| assert_eq!(open.punch(at, len), Ok(()))))
            }
            46..56 => Box::new(move |process| {
                open(process, &|open| sync(open, fails));
                files.lock().get_mut(&key).expect("a file").synced();
            }),
            56..57 => Box::new(move |process| open(process, &|open| assert_eq!(open.clean(), Ok(())))),
            57..59 if self.setup.switches => {
                let mode = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough][self.rng.usize(..4)];
                self.machine.trace(|| format!("to {mode:?}"));
                Box::new(move |process| assert_eq!(process.engine.set_mode(mode), Ok(())))
            }
            59..61 if fails => {
                self.version += 1;
                let version = self.version;
                let bytes: Vec<u8> = (at..end).flat_map(|cell| cell_bytes(key, cell, version)).collect();
                let before = self.before[&key].clone();
                model(&mut |file| file.write(at..end, version));
                let times = self.rng.u32(1..4);
                Box::new(move |process| {
                    process.with(key, |open| {
                        process.machine.failing.store(times, Ordering::Relaxed);
                        let _ = open.write((at * CELL) as u64, &bytes);
                        let _ = open.sync();
                        process.machine.failing.store(0, Ordering::Relaxed);
                        process.machine.tick(2_000);
                        let bytes = read(open, 0..CELLS);
                        files.lock().get_mut(&key).expect("a file").check_died(key, &bytes, &before);
                        sync(open, true);
                        files.lock().get_mut(&key).expect("a file").synced();
                    });
                })
            }
            57..70 => {
                self.machine.tick(self.rng.u32(..30));
                Box::new(|process| _ = process.engine.step_inline())
            }
            _ => Box::new(move |process| {
                let bytes = match process.peer.get((key - FILES.start) as usize) {
                    Some(peer) if at.is_multiple_of(2) => read(peer, at..end),
                    _ => process.read(key, at..end),
                };
                let files = files.lock();
                let file = &files[&key];
                assert_eq!(bytes.len(), file.len().clamp(at, end).saturating_sub(at) * CELL, "file {key}, from {at}");
                file.check_now(key, &bytes, at);
            }),
        }
    }

    /// The process stops in the middle of its work; another one attaches to the segment.
    fn succeed(&mut self) {
        self.machine.set_moment(None);
        self.machine.failing.store(0, Ordering::Relaxed);
        for process in 0..64 {
            if self.processes.taken() >> process & 1 == 1 {
                self.processes.kill(shm::ProcessSlot(process));
            }
        }
        let process = Process::start(&self.machine, &self.region, &self.processes, self.setup);
        // An interrupted call was done completely, in part, or not at all.
        for (key, file) in self.files.lock().iter_mut() {
            file.check_died(*key, &process.read(*key, 0..CELLS), &self.before[key]);
        }
        self.process = Alive::new(process);
    }

    /// Captures the machine at some of the coming moments, and may die at one.
    fn watch(&mut self, taken: &Arc<Mutex<Vec<(Remains, Files)>>>) {
        let (files, machine, out) = (Arc::clone(&self.files), Arc::downgrade(&self.machine), Arc::clone(taken));
        let mut rng = self.rng.fork();
        let dies_at = if rng.u8(..4) == 0 { rng.u32(1..60) } else { u32::MAX };
        self.process.is_mortal = dies_at != u32::MAX;
        let (grave, end) = mpsc::channel::<()>();
        self.graves.push(grave);
        let (dying, engine) = (self.process.dying.clone(), Arc::downgrade(&self.process.process.engine));
        let mut moments = 0;
        self.machine.set_moment(Some(Box::new(move || {
            moments += 1;
            if rng.u8(..12) == 0
                && out.lock().len() < 16
                && let Some(machine) = machine.upgrade()
            {
                machine.trace(|| "  a cut here".into());
                out.lock().push((machine.cut(rng.u64(..)), files.lock().clone()));
            }
            if moments == dies_at {
                let _ = dying.send(Ended::Died);
                end_with_the_run(&end, &engine);
            }
        })));
    }
}

/// Ends the thread of a dead process once the run is over. What is dropped then, such as an open file, must not let the interrupted worker
/// continue: a killed process drops nothing.
fn end_with_the_run(end: &mpsc::Receiver<()>, engine: &Weak<CacheEngine>) -> ! {
    let _ = end.recv();
    if let Some(engine) = engine.upgrade() {
        engine.detach();
    }
    std::panic::panic_any(Died);
}

/// A write error is reported once.
fn sync(open: &Open, fails: bool) {
    let first = open.sync();
    if first.is_err() && fails {
        assert_eq!(open.sync(), Ok(()), "again");
    } else {
        assert_eq!(first, Ok(()));
    }
}

fn run(kind: Kind, seed: u64, cuts: u32) -> u32 {
    let mut run = Run::new(kind, seed);
    let taken = Arc::new(Mutex::new(Vec::new()));
    let mut done = 0;
    while done < cuts {
        run.watch(&taken);
        for _ in 0..40 {
            if !run.act() {
                run.machine.trace(|| "dies".into());
                run.succeed();
                break;
            }
        }
        run.machine.set_moment(None);
        for (remains, files) in taken.lock().drain(..) {
            done += 1;
            check_remains(done, remains, files, run.setup);
        }
    }
    done
}

#[test]
fn power_cuts_and_dead_leaders_lose_nothing_that_was_synced() {
    cuts(Kind::Memory, [500, 4_000, 100_000]);
}

#[test]
fn nor_do_they_on_the_nvme_driver() {
    cuts(Kind::Nvme, [60, 400, 20_000]);
}

/// Runs that failed once: a second process that sent a request without a leader; data written at the old end of file, lost when the file
/// grew; data of a dead writer behind the end, in one place and not in the other, or in all; a death while publishing that a file is
/// written through; pages written back past the SSD's budget, of a truncated file; a truncation tried before its entry was written;
/// an open for which the full log had no room to drop clean pages; bytes behind a truncation that a power cut interrupted, back when the
/// file grew; a sync in which the leader died, and after which the next sync did not flush the backing file.
const KEPT: [u64; 10] = [63, 82, 462, 1_183, 1_685, 5_267, 100_017, 200_443, 700_175, 3_000_063];

/// The end of a dead process's thread is not reported as a failure.
fn hide_deaths() {
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<Died>().is_none() {
            eprintln!("{info}\n{}", std::backtrace::Backtrace::force_capture());
        }
    }));
}

/// The number of cuts in debug, in release, and with FULL=1.
fn cuts(kind: Kind, [debug, release, many]: [u64; 3]) {
    hide_deaths();
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let is_full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let cuts = number("SIM_CUTS").unwrap_or(if is_full {
        many
    } else if cfg!(debug_assertions) {
        debug
    } else {
        release
    });
    let from = number("SIM_FROM").unwrap_or(0);
    let one = number("SIM_SEED");
    let kept = KEPT.into_iter().filter(|_| one.is_none());
    let mut done = 0;
    for seed in kept.chain(one.map_or(from..u64::MAX, |seed| seed..seed + 1)) {
        let ended = catch_unwind(|| run(kind, seed, 50));
        let cuts_of_it = u64::from(ended.unwrap_or_else(|_| panic!("replay with SIM_SEED={seed}")));
        done += cuts_of_it;
        if is_full && done % 1000 < cuts_of_it {
            println!("{done} power cuts, the last of seed {seed}");
        }
        if done >= cuts {
            break;
        }
    }
    println!("{done} power cuts, {kind:?}");
}
