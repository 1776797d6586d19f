//! Single kinds of load on a disk: random reads, and writes of several sequential streams.

use std::time::Duration;

use block::scheduler::{self, Options};
use block::{Arena, Clock, Completion, Geometry, Lba, Queue, Request, Scheduler, Submit, Tag};

use crate::disk::{self, Disk};
use crate::model::{Model, VirtualClock};

/// A list of latencies in milliseconds.
pub struct Latencies(Vec<f64>);

impl Latencies {
    /// Makes an empty list of latencies.
    pub fn new() -> Latencies {
        Latencies(Vec::new())
    }

    /// Adds a latency, given in nanoseconds.
    pub fn add(&mut self, nanoseconds: u64) {
        self.0.push(nanoseconds as f64 / 1e6);
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the latency of a quantile, in milliseconds.
    pub fn at(&mut self, part: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0.get((self.0.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN)
    }
}

/// Opens a scheduler on the disk, with its default or another number of requests at the disk.
fn open(
    scheduler: Scheduler,
    dispatch_depth: Option<u32>,
    reorders: bool,
    change: impl FnOnce(&mut Geometry),
    clock: &VirtualClock,
) -> Box<dyn Queue> {
    let mut geometry = disk::geometry();
    change(&mut geometry);
    let model = Model::new(Disk::new(reorders), geometry, 32, clock.clone());
    scheduler::open_with_clock(model, &Options { dispatch_depth, ..Options::of(scheduler) }, clock.clone())
}

/// Keeps 32 requests in flight for `seconds` of virtual time; `next` makes the request of a slot.
fn closed_loop(queue: &mut dyn Queue, clock: &VirtualClock, seconds: u64, mut next: impl FnMut(usize) -> Request) -> Latencies {
    let arena = Arena::private(1 << 20).expect("memory");
    let mut begun = [0; 32];
    let mut idle: Vec<usize> = (0..32).collect();
    let (mut latencies, mut ended) = (Latencies::new(), [Completion::EMPTY; 32]);
    while clock.now().0 < seconds * 1_000_000_000 {
        for slot in idle.drain(..) {
            let request = Request { tag: Tag(slot as u64), ..next(slot) };
            assert_eq!(queue.submit(&request, &[arena.span(slot * 8192, request.blocks * 512)]), Submit::Queued);
            begun[slot] = clock.now().0;
        }
        queue.wait(Duration::from_secs(1));
        let count = queue.poll(&mut ended);
        for completion in &ended[..count] {
            let slot = usize::try_from(completion.tag.0).expect("small");
            latencies.add(clock.now().0 - begun[slot]);
            idle.push(slot);
        }
        idle.sort_unstable();
    }
    latencies
}

/// Prints rates and latencies of random reads for each scheduler.
pub fn random_reads() {
    println!("disk, random 4 KiB reads at depth 32, 600 s of virtual time");
    for (scheduler, dispatch_depth, reorders) in [
        (Scheduler::None, None, false),
        (Scheduler::Elevator, Some(1), false),
        (Scheduler::Elevator, None, false),
        (Scheduler::Deadline, None, false),
        (Scheduler::None, None, true),
        (Scheduler::Elevator, None, true),
        (Scheduler::Elevator, Some(8), true),
        (Scheduler::Elevator, Some(16), true),
        (Scheduler::Deadline, None, true),
    ] {
        let clock = VirtualClock::default();
        let mut queue = open(scheduler, dispatch_depth, reorders, |_| {}, &clock);
        let mut random = fastrand::Rng::with_seed(1);
        let blocks = disk::geometry().blocks / 8;
        let mut latencies = closed_loop(&mut queue, &clock, 600, |_| Request::read(Tag(0), Lba(random.u64(..blocks) * 8), 8));
        let iops = latencies.count() as f64 / 600.0;
        println!(
            "  {:<9} {} dispatch {:<2} {iops:7.1} /s  p50 {:6.1} ms  p99 {:6.1} ms",
            scheduler.name(),
            drive(reorders),
            if scheduler == Scheduler::None { 32 } else { dispatch_depth.unwrap_or(scheduler.dispatch_depth()) },
            latencies.at(0.5),
            latencies.at(0.99)
        );
    }
}

/// Prints rates of interleaved sequential writes for each scheduler.
pub fn sequential_writes() {
    println!("disk, 4 sequential streams of 4 KiB writes, interleaved, 8 in flight each, 60 s of virtual time");
    let small = 4096;
    for (scheduler, reorders, transfer_bytes_max) in [
        (Scheduler::None, false, 1 << 20),
        (Scheduler::None, true, 1 << 20),
        (Scheduler::Elevator, false, small),
        (Scheduler::Elevator, false, 1 << 20),
        (Scheduler::Deadline, false, 1 << 20),
        (Scheduler::Elevator, true, 1 << 20),
    ] {
        let clock = VirtualClock::default();
        let mut queue = open(scheduler, None, reorders, |geometry| geometry.transfer_bytes_max = transfer_bytes_max, &clock);
        let mut written = [0; 4];
        let streams = |slot: usize| {
            let stream = slot % 4;
            written[stream] += 8;
            Request::write(Tag(0), Lba(stream as u64 * (disk::geometry().blocks / 4) + written[stream] - 8), 8)
        };
        let mut latencies = closed_loop(&mut queue, &clock, 60, streams);
        let slowest = written.iter().min().map_or(0.0, |blocks| *blocks as f64 * 512.0 / 60e6);
        let merges = if scheduler != Scheduler::None && transfer_bytes_max > small { "merges" } else { "single" };
        let rate = latencies.count() as f64 * 4096.0 / 60e6;
        println!(
            "  {:<9} {} {merges} {rate:7.2} MB/s (slowest {slowest:5.2})  p50 {:6.1} ms  p99 {:6.1} ms",
            scheduler.name(),
            drive(reorders),
            latencies.at(0.5),
            latencies.at(0.99)
        );
    }
}

fn drive(reorders: bool) -> &'static str {
    if reorders { "on a drive that reorders" } else { "on a drive that does not" }
}
