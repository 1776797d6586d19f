//! Measures a hit of the shared page cache beside one of the kernel's, in nanoseconds of CPU time (other load on the machine hardly
//! shows): medians of short runs that take turns.
//!
//! `cargo run --release -p pagecache --example shared -- [MiB]... [--dir DIR]`; `--one OPERATION` runs only that, for callgrind.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Barrier};

use pagecache::PageIndex;
use pagecache::{FileNo, Inserted, Marks, Name, Shape, SharedPages};
use rustix::time::{ClockId, clock_gettime};
use shm::{ProcessSlots, Region};

const PAGE: usize = 4096;
const AT: usize = PAGE;
const RUNS: usize = 200;
const CALLS: u64 = 4_000;

struct Bench {
    pages: SharedPages,
    /// A second cache, which is always full.
    full: SharedPages,
    bare: Region,
    file: File,
    count: u64,
}

type Call = fn(&Bench, u64, &mut [u8; PAGE]);

const CALLS_TO_TIME: &[(&str, Call)] = &[
    ("bare copy 4 KiB out", |bench, page, to| bench.bare.read(page as usize * PAGE, to)),
    ("bare copy 4 KiB in", |bench, page, to| bench.bare.write(page as usize * PAGE, to)),
    ("pread 4 KiB", |bench, page, to| bench.file.read_exact_at(to, page * PAGE as u64).expect("read")),
    ("read 4 KiB", |bench, page, to| assert!(bench.pages.read(name(page), 0, to))),
    ("pread 64 B", |bench, page, to| bench.file.read_exact_at(&mut to[..64], page * PAGE as u64 + 128).expect("read")),
    ("read 64 B", |bench, page, to| assert!(bench.pages.read(name(page), 128, &mut to[..64]))),
    ("pin, unpin", |bench, page, _| bench.pages.unpin(bench.pages.pin(name(page)).expect("here"))),
    ("pwrite 4 KiB", |bench, page, to| bench.file.write_all_at(to, page * PAGE as u64).expect("written")),
    ("write 4 KiB", |bench, page, to| assert!(bench.pages.write(name(page), 0, to, Marks::DIRTY, 1))),
    ("miss, insert, evict", |bench, page, to| {
        let name = name(page << 20 | fastrand::u64(..1 << 20));
        let ticket = bench.full.ticket(name);
        let _ = bench.full.read(name, 0, &mut [0; 1]) || bench.full.insert(name, to, Marks::NONE, ticket, 1) == Inserted::Done;
    }),
];

fn name(page: u64) -> Name {
    Name { file: FileNo(1), page: PageIndex(page) }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn run(bench: &Bench, call: Call, random: &mut fastrand::Rng, calls: u64) -> f64 {
    let mut to = [7; PAGE];
    let from = cpu_ns();
    for _ in 0..calls {
        call(bench, random.u64(0..bench.count), &mut to);
    }
    (cpu_ns() - from) as f64 / calls as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures each operation in turn; returns the nanoseconds of each call.
fn times(bench: &Bench, seed: u64) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = vec![Vec::new(); CALLS_TO_TIME.len()];
    for _ in 0..RUNS {
        for ((what, call), times) in CALLS_TO_TIME.iter().zip(&mut all) {
            let calls = if what.contains("insert") { CALLS / 8 } else { CALLS };
            times.push(run(bench, *call, &mut random, calls));
        }
    }
    all.into_iter().map(median).collect()
}

fn cache(frames: u64) -> SharedPages {
    let shape = Shape::new(frames as u32);
    let region = Arc::new(Region::shared("hotshelf-bench", AT + SharedPages::bytes(&shape)).expect("memory"));
    let processes = Arc::new(ProcessSlots::in_process(region.clone(), 0));
    SharedPages::format(&region, AT, &shape, fastrand::u64(..));
    let me = processes.attach().expect("a process slot");
    SharedPages::attach(&region, AT, region.len() - AT, &processes, me).expect("a cache")
}

fn prepare(mib: u64, dir: &str) -> Bench {
    let count = mib * 256;
    let (pages, full) = (cache(count), cache(4096));
    let bare = Region::shared("hotshelf-bench", count as usize * PAGE).expect("memory");
    let path = std::path::Path::new(dir).join(format!("hotshelf-bench-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("removed");
    for page in 0..count {
        bare.fill(page as usize * PAGE..(page as usize + 1) * PAGE, 1);
        file.write_all_at(&[page as u8; PAGE], page * PAGE as u64).expect("written");
        assert_eq!(pages.insert(name(page), &[page as u8; PAGE], Marks::NONE, pages.ticket(name(page)), 0), Inserted::Done);
    }
    Bench { pages, full, bare, file, count }
}

/// Measures reads by several threads at once; returns the nanoseconds of a thread's CPU time for each.
fn together(bench: &Bench, call: Call, threads: u64) -> f64 {
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let run_one = |seed| {
            let barrier = &barrier;
            move || {
                let mut random = fastrand::Rng::with_seed(seed);
                barrier.wait();
                median((0..RUNS).map(|_| run(bench, call, &mut random, CALLS)).collect())
            }
        };
        let all: Vec<_> = (0..threads).map(|seed| scope.spawn(run_one(seed))).collect();
        median(all.into_iter().map(|thread| thread.join().expect("no panic")).collect())
    })
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1)).cloned();
    let dir = after("--dir").unwrap_or_else(|| "/tmp".to_owned());
    if let Some(what) = after("--one") {
        let bench = prepare(4, &dir);
        let call = CALLS_TO_TIME.iter().find(|(known, _)| *known == what).expect("a known operation").1;
        run(&bench, call, &mut fastrand::Rng::with_seed(1), 100_000);
        return;
    }
    let mut sizes: Vec<u64> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![16, 256, 1024];
    }
    for mib in sizes {
        let bench = prepare(mib, &dir);
        println!("{mib} MiB");
        for ((what, _), ns) in CALLS_TO_TIME.iter().zip(times(&bench, 1)) {
            println!("  {what:20} {ns:7.1} ns");
        }
        for what in ["read 4 KiB", "read 64 B"] {
            let call = CALLS_TO_TIME.iter().find(|(known, _)| *known == what).expect("known").1;
            let (one, two) = (together(&bench, call, 1), together(&bench, call, 2));
            println!("  {what} by two threads at once: {two:.1} ns each, alone {one:.1}: {:.2} times one", 2.0 * one / two);
        }
        bench.pages.check().expect("consistent metadata");
    }
}
