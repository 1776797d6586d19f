//! Measures the cost of sharing a queue: one thread that owns it, four that share it through handles with the same total depth,
//! and four dedicated handles with a queue each.
//!
//! `handle_sharing [SECONDS] [ROUNDS] [null|memory|cached|direct]` prints IOPS, and CPU time per request, medians of
//! alternating rounds, for 4 KiB random reads: of the null device, the memory device, and a file in TMPDIR through the page cache and
//! with direct I/O; or of one of them.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use block::driver::{FileDevice, FileOptions, MemoryDevice, NullDevice};
use block::handle::{Data, Done, Io};
use block::{Arena, Buf, Device, Geometry, Handle, Lba, Params, Queue, QueueOptions, SharedHandle, SharedQueue};

const THREADS: usize = 4;
/// The requests in flight, of all threads together.
const DEPTH: u32 = 32;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 64 << 10;

/// How the threads access the device.
#[derive(Clone, Copy, PartialEq, Debug)]
enum SharingMode {
    /// One thread that owns the queue.
    Owned,
    /// One thread on a shared queue.
    SharedByOne,
    /// All threads on one queue, with a call for each request.
    Shared,
    /// All threads on one queue, with a call for each batch.
    SharedBatch,
    /// A queue for each thread.
    Dedicated,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| args.get(at).map_or(default, |arg| arg.parse().expect("a number"));
    let (seconds, rounds) = (number(0, 0.3), number(1, 5.0) as usize);
    let null = NullDevice::new(Geometry::plain(BLOCK as u32, BLOCKS));
    let memory = MemoryDevice::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("memory");
    memory.region().fill(0..memory.region().len(), 1);
    let scratch = tempfile::NamedTempFile::new().expect("a file");
    scratch.as_file().set_len(BLOCKS * BLOCK as u64).expect("room");
    std::fs::write(scratch.path(), vec![1; usize::try_from(BLOCKS).expect("small") * BLOCK]).expect("room");
    scratch.as_file().sync_all().expect("written");
    let open = |buffered| FileDevice::open(scratch.path(), &FileOptions { buffered, ..FileOptions::default() }).expect("a device");
    let (cached, direct) = (open(true), open(false));
    let devices: [(&str, &dyn Device); 4] = [("null", &null), ("memory", &memory), ("cached", &cached), ("direct", &direct)];
    println!("{:<8} {:<12} {:>12} {:>9} {:>9}   4 KiB reads, {DEPTH} in flight in all", "device", "way", "IOPS", "to owned", "cpu ns");
    for (name, device) in devices.into_iter().filter(|(name, _)| args.get(2).is_none_or(|only| only == name)) {
        let modes = [SharingMode::Owned, SharingMode::SharedByOne, SharingMode::Shared, SharingMode::SharedBatch, SharingMode::Dedicated];
        let mut seen = modes.map(|_| Vec::new());
        for _ in 0..rounds {
            for (mode, seen) in modes.iter().zip(&mut seen) {
                seen.push(measure(device, *mode, Duration::from_secs_f64(seconds)));
            }
        }
        let medians = seen.map(|values: Vec<(f64, f64)>| {
            let (iops, cpu): (Vec<_>, Vec<_>) = values.into_iter().unzip();
            (median(iops), median(cpu))
        });
        for (mode, (iops, cpu)) in modes.iter().zip(medians) {
            println!("{name:<8} {:<12} {iops:>12.0} {:>9.2} {cpu:>9.0}", format!("{mode:?}"), iops / medians[0].0);
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the CPU time of all threads, in nanoseconds.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the IOPS of a mode, and the CPU nanoseconds per request.
fn measure(device: &dyn Device, mode: SharingMode, time: Duration) -> (f64, f64) {
    let threads = if matches!(mode, SharingMode::Owned | SharingMode::SharedByOne) { 1 } else { THREADS };
    let depth = DEPTH / threads as u32;
    let open = |depth| device.queue(&QueueOptions { depth, ..QueueOptions::default() }).expect("a queue");
    let arena = Arena::private(2 * DEPTH as usize * BLOCK).expect("memory");
    let params = Params { requests_max: depth, ..Params::default() };
    let shared = SharedQueue::new(open(DEPTH), &params).expect("a queue");
    shared.register(&arena).expect("registered");
    let barrier = Barrier::new(threads);
    let (barrier, arena, shared, params) = (&barrier, &arena, &shared, &params);
    let work = |n: usize| {
        let load = Load::new(arena, depth, n as u64);
        match mode {
            SharingMode::Owned | SharingMode::Dedicated => {
                let mut handle = Handle::new(open(depth), params.clone()).expect("a handle");
                handle.register(arena).expect("registered");
                barrier.wait();
                load.owned(&mut handle, time)
            }
            SharingMode::SharedByOne | SharingMode::Shared | SharingMode::SharedBatch => {
                let handle = SharedHandle::new(shared, params.clone()).expect("a handle");
                barrier.wait();
                if mode == SharingMode::SharedBatch { load.shared_batch(&handle, time) } else { load.shared(&handle, time) }
            }
        }
    };
    let (work, before) = (&work, cpu_ns());
    let iops: f64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    (iops, (cpu_ns() - before) / (iops * time.as_secs_f64()))
}

/// The work of one thread, which keeps its share of requests in flight.
struct Load {
    bufs: Vec<Buf>,
    random: u64,
}

impl Load {
    fn new(arena: &Arena, depth: u32, seed: u64) -> Load {
        let bufs = (0..depth).map(|_| arena.allocate(BLOCK).expect("room")).collect();
        Load { bufs, random: seed * 0x9E37_79B9 + 1 }
    }

    fn next(&mut self) -> Option<Io> {
        let buf = self.bufs.pop()?;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(Io::read(Lba((self.random >> 33) % BLOCKS), buf))
    }

    fn back(&mut self, done: Done) {
        assert_eq!(done.status, Ok(()));
        if let Data::Buf(buf) = done.data {
            self.bufs.push(buf);
        }
    }

    fn owned<Q: Queue>(mut self, handle: &mut Handle<Q>, time: Duration) -> f64 {
        let (begin, mut count) = (Instant::now(), 0_u64);
        while begin.elapsed() < time {
            for _ in 0..64 {
                while let Some(io) = self.next() {
                    handle.submit(io).expect("room");
                }
                let mut done = handle.wait(Duration::MAX);
                while let Some(ended) = done {
                    self.back(ended);
                    count += 1;
                    done = handle.poll();
                }
            }
        }
        count as f64 / begin.elapsed().as_secs_f64()
    }

    fn shared<Q: Queue>(mut self, handle: &SharedHandle<Q>, time: Duration) -> f64 {
        let (begin, mut count) = (Instant::now(), 0_u64);
        while begin.elapsed() < time {
            for _ in 0..64 {
                while let Some(io) = self.next() {
                    handle.submit(io).expect("room");
                }
                let mut done = handle.wait(Duration::MAX);
                while let Some(ended) = done {
                    self.back(ended);
                    count += 1;
                    done = handle.poll();
                }
            }
        }
        count as f64 / begin.elapsed().as_secs_f64()
    }

    fn shared_batch<Q: Queue>(mut self, handle: &SharedHandle<Q>, time: Duration) -> f64 {
        let (begin, mut count) = (Instant::now(), 0_u64);
        let room = self.bufs.len();
        let (mut ios, mut tickets) = (std::collections::VecDeque::with_capacity(room), Vec::with_capacity(room));
        let mut done = Vec::with_capacity(room);
        while begin.elapsed() < time {
            for _ in 0..64 {
                while let Some(io) = self.next() {
                    ios.push_back(io);
                }
                handle.submit_batch(&mut ios, &mut tickets);
                tickets.clear();
                handle.poll_batch(&mut done);
                if done.is_empty() {
                    done.extend(handle.wait(Duration::MAX));
                }
                count += done.len() as u64;
                done.drain(..).for_each(|ended| self.back(ended));
            }
        }
        count as f64 / begin.elapsed().as_secs_f64()
    }
}
