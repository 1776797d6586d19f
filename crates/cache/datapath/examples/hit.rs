//! Measures the cache of a device beside the kernel's page cache, in the same run.
//!
//! `hit FILE`: prints a table. FILE is created, 256 MiB, and stays in the kernel's page cache.
//! `hit count CASE N`: makes only N accesses, to count instructions.
#![forbid(unsafe_code)]

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use block::driver::MemoryDevice;
use block::{Params, Tracked};
use datapath::{DeviceCache, DeviceCacheOptions, DeviceFile, DeviceHandle};

const PAGE: usize = 4096;
const ROUNDS: usize = 7;
const BIGGEST: usize = 256 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", case, times] => count(case, times.parse().expect("a number")),
        [file] => table(file),
        _ => panic!("usage: hit FILE | hit count loop|read4096|read64|write64 N"),
    }
}

fn table(path: &str) {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path).expect("the file");
    let bytes = vec![1; 1 << 20];
    (0..BIGGEST >> 20).for_each(|at| file.write_all_at(&bytes, (at << 20) as u64).expect("room for 256 MiB"));
    file.sync_all().expect("on its disk");
    println!("medians of {ROUNDS} rounds, one thread, random pages; nanoseconds for each access");
    println!("{:<20} {:>7} {:>9} {:>7}", "", "cache", "kernel", "ratio");
    for (name, set) in [("64 KiB", 64 << 10), ("16 MiB", 16 << 20), ("256 MiB", BIGGEST)] {
        let resident = Resident::new(set, set);
        for bytes in [4096, 64] {
            let (mut to, mut other) = (vec![0; bytes], vec![0; bytes]);
            let kernel: Side<'_> = &mut |at| file.read_exact_at(black_box(&mut other), at as u64).expect("read");
            print_row(&format!("read {bytes}, {name}"), set, [&mut |at| resident.read(at, &mut to), kernel]);
        }
        if set < BIGGEST {
            let from = [3; PAGE];
            let kernel: Side<'_> = &mut |at| file.write_all_at(black_box(&from), at as u64).expect("written");
            print_row(&format!("write 4096, {name}"), set, [&mut |at| resident.write(at, &from), kernel]);
        }
    }
    // One page in 64 of this device fits into the cache; the kernel is not measured.
    let missing = Resident::new(BIGGEST, BIGGEST / 64);
    let mut to = vec![0; PAGE];
    print_row("miss 4096", BIGGEST, [&mut |at| missing.read(at, &mut to), &mut |_| ()]);
}

/// A device in memory, and a cache in front of it.
struct Resident {
    cache: DeviceCache,
    handle: DeviceHandle,
}

impl Resident {
    fn new(set: usize, cached: usize) -> Resident {
        let device = MemoryDevice::new(4096, set as u64).expect("memory");
        device.region().fill(0..set, 1);
        let queue = || Tracked::new(device.open_queue(64), Params::default().timeouts());
        let file = Arc::new(DeviceFile::new(queue(), queue(), &Params::default()).expect("it fits"));
        let frames = (cached / PAGE + cached / PAGE / 16) as u32 + 64;
        let options = DeviceCacheOptions { dirty_percent: 100, ..DeviceCacheOptions::new(frames) };
        let cache = DeviceCache::open(file, &options).expect("opened");
        let handle = cache.handle().expect("a handle");
        let mut bytes = vec![0; 64 << 10];
        for at in (0..set).step_by(bytes.len()) {
            cache.read(&handle, at as u64, &mut bytes).expect("read");
        }
        Resident { cache, handle }
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        self.cache.read(&self.handle, at as u64, black_box(to)).expect("read");
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.cache.write(&self.handle, at as u64, black_box(from)).expect("taken");
    }
}

/// Accesses the byte at a position.
type Side<'a> = &'a mut dyn FnMut(usize);

/// Prints the medians of both sides, which take turns.
fn print_row(name: &str, set: usize, mut sides: [Side<'_>; 2]) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let places: Vec<usize> = (0..40_000).map(|_| random.usize(..set / PAGE) * PAGE).collect();
        for (side, times) in sides.iter_mut().zip(&mut times) {
            let begin = Instant::now();
            places.iter().for_each(|at| side(*at));
            times.push(begin.elapsed().as_nanos() as f64 / places.len() as f64);
        }
    }
    let [cache, kernel] = times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!("{name:<20} {cache:>7.0} {kernel:>9.0} {:>7.2}", cache / kernel);
}

fn count(case: &str, times: usize) {
    let resident = Resident::new(64 << 10, 64 << 10);
    let mut bytes = [0; PAGE];
    for n in 0..times {
        let at = black_box(n % 16 * PAGE);
        match case {
            "loop" => _ = black_box(at),
            "read4096" => resident.read(at, &mut bytes),
            "read64" => resident.read(at, &mut bytes[..64]),
            "write64" => resident.write(at, &bytes[..64]),
            _ => panic!("no case {case}"),
        }
    }
}
