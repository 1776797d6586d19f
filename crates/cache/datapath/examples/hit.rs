//! What the block cache costs, and what it saves, beside the kernel's page cache in the same run.
//!
//! `hit FILE`: a table; FILE is made, 256 MiB, and stays in the kernel's page cache.
//! `hit count CASE N`: only N accesses, for counting instructions.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::driver::MemoryDevice;
use block::driver::memory::MemoryQueue;
use block::{Arena, Completion, Error, Geometry, Queue, Request, Span, Submit, Tag};
use datapath::{BlockCache, Handle, Settings, SharedCache};
use pagecache::PageIndex;

const PAGE: usize = 4096;
const ROUNDS: usize = 7;
const BIGGEST: usize = 256 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", case, times] => count(case, times.parse().expect("a number")),
        [file] => table(file),
        _ => panic!("usage: hit FILE | hit count loop|read4096|read64|shared64|pin|write64|stream|stream-without N"),
    }
}

fn table(path: &str) {
    let file = kernel_file(path);
    println!("medians of {ROUNDS} rounds, one thread, random places; nanoseconds for each access");
    println!("{:<12} {:>9} {:>9} {:>9} {:>9} {:>7}", "", "copy", "cache", "shared", "kernel", "ratio");
    for (name, set) in [("64 KiB", 64 << 10), ("16 MiB", 16 << 20), ("256 MiB", BIGGEST)] {
        let mut caches = Caches::new(set);
        caches.line(&format!("read 4096, {name}"), &file, 4096);
        caches.line(&format!("read 64, {name}"), &file, 64);
        caches.pins(&format!("pin, {name}"), &file);
        if set < BIGGEST {
            caches.writes(&format!("write 4096, {name}"), &file);
        }
    }
    misses();
    sequential(&file);
}

fn kernel_file(path: &str) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path).expect("the file");
    let bytes = vec![1; 1 << 20];
    (0..BIGGEST >> 20).for_each(|at| file.write_all_at(&bytes, (at << 20) as u64).expect("room for 256 MiB"));
    file.sync_all().expect("on its disk");
    file
}

/// Resident caches over a set, and plain memory.
struct Caches {
    set: usize,
    owned: BlockCache<MemoryQueue>,
    owned_handle: Handle,
    shared: SharedCache<MemoryQueue>,
    shared_handle: Handle,
    memory: MemoryDevice,
}

impl Caches {
    fn new(set: usize) -> Caches {
        let memory = MemoryDevice::new(4096, set as u64).expect("memory");
        memory.region().fill(0..set, 1);
        let frames = (set / PAGE) as u32 + 64;
        let mut settings = Settings::new(frames);
        (settings.dirty_background, settings.dirty_max, settings.pages.free_low) = (frames, frames, 0);
        let mut owned = BlockCache::open(vec![memory.open_queue(64)], settings.clone()).expect("opened");
        let shared = SharedCache::open(vec![memory.open_queue(64)], settings).expect("opened");
        let (mut owned_handle, mut shared_handle) = (owned.handle(), shared.handle());
        let mut bytes = vec![0; 64 << 10];
        for at in (0..set).step_by(bytes.len()) {
            owned.read(&mut owned_handle, at as u64, &mut bytes).expect("read");
            shared.read(&mut shared_handle, at as u64, &mut bytes).expect("read");
        }
        Caches { set, owned, owned_handle, shared, shared_handle, memory }
    }

    fn line(&mut self, name: &str, file: &File, bytes: usize) {
        let mut to = vec![0; bytes];
        let set = self.set;
        let row = rounds([
            &mut |places| each(places, set, |at| self.memory.region().read(at, black_box(&mut to[..]))),
            &mut |places| {
                let mut to = vec![0; bytes];
                each(places, set, |at| self.owned.read(&mut self.owned_handle, at as u64, black_box(&mut to)).expect("a hit"))
            },
            &mut |places| {
                let mut to = vec![0; bytes];
                each(places, set, |at| self.shared.read(&mut self.shared_handle, at as u64, black_box(&mut to)).expect("a hit"))
            },
            &mut |places| {
                let mut to = vec![0; bytes];
                each(places, set, |at| file.read_exact_at(black_box(&mut to), at as u64).expect("read"))
            },
        ]);
        print_row(name, row);
    }

    fn pins(&mut self, name: &str, file: &File) {
        let set = self.set;
        let row = rounds([
            &mut |places| each(places, set, |at| _ = black_box(self.memory.region().address(at))),
            &mut |places| {
                each(places, set, |at| {
                    let pinned = self.owned.pin(&mut self.owned_handle, PageIndex::of(at as u64)).expect("a hit");
                    self.owned.unpin(black_box(pinned));
                })
            },
            &mut |places| {
                each(places, set, |at| {
                    let pinned = self.shared.pin(&mut self.shared_handle, PageIndex::of(at as u64)).expect("a hit");
                    self.shared.unpin(black_box(pinned));
                })
            },
            &mut |places| {
                let mut to = vec![0; PAGE];
                each(places, set, |at| file.read_exact_at(black_box(&mut to), at as u64).expect("read"))
            },
        ]);
        print_row(name, row);
    }

    fn writes(&mut self, name: &str, file: &File) {
        let (set, from) = (self.set, vec![3; PAGE]);
        let row = rounds([
            &mut |places| each(places, set, |at| self.memory.region().write(at, black_box(&from))),
            &mut |places| each(places, set, |at| self.owned.write(&mut self.owned_handle, at as u64, black_box(&from)).expect("taken")),
            &mut |places| each(places, set, |at| self.shared.write(&mut self.shared_handle, at as u64, black_box(&from)).expect("taken")),
            &mut |places| each(places, set, |at| file.write_all_at(black_box(&from), at as u64).expect("written")),
        ]);
        print_row(name, row);
    }
}

/// Accesses the places it is given; says how long each took.
type Side<'a> = &'a mut dyn FnMut(&[u32]) -> f64;

/// The four sides in turn, round after round; the median of each.
fn rounds(mut sides: [Side<'_>; 4]) -> [f64; 4] {
    let mut random = fastrand::Rng::with_seed(1);
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let places: Vec<u32> = (0..40_000).map(|_| random.u32(..)).collect();
        for (side, times) in sides.iter_mut().zip(&mut times) {
            times.push(side(&places));
        }
    }
    times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    })
}

/// Nanoseconds for each access to a page at random.
fn each(places: &[u32], set: usize, mut access: impl FnMut(usize)) -> f64 {
    let pages = (set / PAGE) as u64;
    let begin = Instant::now();
    for place in places {
        access(((u64::from(*place) * pages) >> 32) as usize * PAGE);
    }
    begin.elapsed().as_nanos() as f64 / places.len() as f64
}

fn print_row(name: &str, [copy, cache, shared, kernel]: [f64; 4]) {
    println!("{name:<20} {copy:>7.0} {cache:>9.0} {shared:>9.0} {kernel:>9.0} {:>7.2}", cache / kernel);
}

/// A cache of 4 MiB over 256 MiB in memory: nearly every read misses.
fn misses() {
    let memory = MemoryDevice::new(4096, BIGGEST as u64).expect("memory");
    memory.region().fill(0..BIGGEST, 1);
    let mut cache = BlockCache::open(vec![memory.open_queue(64)], Settings::new(1024)).expect("opened");
    let mut handle = cache.handle();
    let mut to = vec![0; PAGE];
    let row = rounds([
        &mut |places| each(places, BIGGEST, |at| memory.region().read(at, black_box(&mut vec![0; PAGE]))),
        &mut |places| each(places, BIGGEST, |at| cache.read(&mut handle, at as u64, black_box(&mut to)).expect("read")),
        &mut |_| 0.0,
        &mut |_| 0.0,
    ]);
    println!("a miss over memory: {:.0} ns, of which {:.0} is one copy (it makes two)", row[1], row[0]);
}

/// 64 MiB in order, 4 KiB at a time, from a device of 80 us whose time is virtual.
fn sequential(file: &File) {
    let bytes = 64 << 20;
    println!("sequential 4 KiB reads of 64 MiB, a device of 80 us (virtual time) and a program that takes no time:");
    for ahead_max in [0, 64, 256] {
        let (device_us, own_ns) = stream(bytes, ahead_max);
        println!("  ahead {ahead_max:>3} pages: {device_us:.2} us of device time for a page, {own_ns} ns of our own");
    }
    let mut to = vec![0; PAGE];
    let begin = Instant::now();
    (0..bytes).step_by(PAGE).for_each(|at| file.read_exact_at(&mut to, at as u64).expect("read"));
    println!("  pread of the cached file: {} ns", begin.elapsed().as_nanos() as usize / (bytes / PAGE));
}

/// Microseconds of the device's time, and nanoseconds of ours, for each page.
fn stream(bytes: usize, ahead_max: u32) -> (f64, usize) {
    let memory = MemoryDevice::new(4096, bytes as u64).expect("memory");
    memory.region().fill(0..bytes, 1);
    let now_ns = Arc::new(AtomicU64::new(0));
    let queue = Slow { inner: memory.open_queue(64), now_ns: now_ns.clone(), in_flight: BTreeMap::new(), next: 0 };
    let mut settings = Settings { ahead_max, ..Settings::new(4096) };
    settings.pages.eager = true;
    let mut cache = BlockCache::open(vec![queue], settings).expect("opened");
    let mut handle = cache.handle();
    let mut to = vec![0; PAGE];
    let begin = Instant::now();
    (0..bytes).step_by(PAGE).for_each(|at| cache.read(&mut handle, at as u64, &mut to).expect("read"));
    let own_ns = begin.elapsed().as_nanos() as usize / (bytes / PAGE);
    (now_ns.load(Ordering::Relaxed) as f64 / 1000.0 / (bytes / PAGE) as f64, own_ns)
}

/// Every request takes 80 us, any number of them at a time.
struct Slow {
    inner: MemoryQueue,
    now_ns: Arc<AtomicU64>,
    in_flight: BTreeMap<(u64, u64), Tag>,
    next: u64,
}

impl Queue for Slow {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }
    fn depth(&self) -> u32 {
        self.inner.depth()
    }
    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.inner.register(arena)
    }
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        self.next += 1;
        self.in_flight.insert((self.now_ns.load(Ordering::Relaxed) + 80_000, self.next), request.tag);
        self.inner.submit(request, data)
    }
    fn ring(&mut self) {}
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let now = self.now_ns.load(Ordering::Relaxed);
        let due = self.in_flight.first_key_value().is_some_and(|((due, _), _)| *due <= now);
        if !due {
            return 0;
        }
        self.in_flight.pop_first();
        self.inner.poll(&mut completions[..1])
    }
    fn in_flight(&self) -> u32 {
        self.in_flight.len() as u32
    }
    fn wait(&mut self, _: Duration) {
        if let Some(((due, _), _)) = self.in_flight.first_key_value() {
            self.now_ns.fetch_max(*due, Ordering::Relaxed);
        }
    }
    fn cancel(&mut self, _: Tag) {}
    fn reset(&mut self) -> Result<(), Error> {
        self.in_flight.clear();
        self.inner.reset()
    }
}

fn count(case: &str, times: u64) {
    let mut caches = Caches::new(1 << 20);
    let (owned, handle) = (&mut caches.owned, &mut caches.owned_handle);
    let mut to = [0; PAGE];
    match case {
        "loop" => repeat(times, |at| _ = black_box(at)),
        "read4096" => repeat(times, |at| owned.read(handle, at, black_box(&mut to)).expect("a hit")),
        "read64" => repeat(times, |at| owned.read(handle, at, black_box(&mut to[..64])).expect("a hit")),
        "shared64" => {
            repeat(times, |at| caches.shared.read(&mut caches.shared_handle, at, black_box(&mut to[..64])).expect("a hit"));
        }
        "write64" => repeat(times, |at| owned.write(handle, at, black_box(&to[..64])).expect("taken")),
        "pin" => repeat(times, |at| {
            let pinned = owned.pin(handle, PageIndex::of(at)).expect("a hit");
            owned.unpin(black_box(pinned));
        }),
        "stream" => _ = stream(times as usize * PAGE, 64),
        "stream-without" => _ = stream(times as usize * PAGE, 0),
        other => panic!("no case {other}"),
    }
}

fn repeat(times: u64, mut access: impl FnMut(u64)) {
    (0..times).for_each(|time| access(time * 7 % 256 * PAGE as u64));
}
