//! What a request costs in the driver: submit, ring and poll, over the software controller, whose own work is not counted.
//!
//! `queue_cost` prints medians of batches. `queue_cost CASE REQUESTS` only makes so many requests, for counting instructions:
//! `valgrind --tool=callgrind --toggle-collect='queue_cost::driver*' queue_cost read 64000`; divide by the requests.

use std::hint::black_box;
use std::time::Instant;

use block::tracked::{Timeouts, Tracked};
use block::{Arena, Buf, Completion, Lba, Queue, QueueOptions, Request, Submit, Tag};
use nvme::{Controller, Options};
use sim::nvme::{ControllerConfig, NamespaceConfig, SoftController};

const BLOCKS: u64 = 4096;
const BATCHES: usize = 4000;

struct Case {
    name: &'static str,
    bytes: usize,
    depth: u32,
    shadow: bool,
    tracked: bool,
    records: u32,
    /// The recorder writes into a file in /dev/shm.
    file: bool,
}

const CASES: [Case; 8] = [
    Case { name: "read", bytes: 4096, depth: 32, shadow: false, tracked: false, records: 256, file: false },
    Case { name: "read-shadow", bytes: 4096, depth: 32, shadow: true, tracked: false, records: 256, file: false },
    Case { name: "read-no-recorder", bytes: 4096, depth: 32, shadow: false, tracked: false, records: 0, file: false },
    Case { name: "read-file", bytes: 4096, depth: 32, shadow: false, tracked: false, records: 256, file: true },
    Case { name: "read-tracked", bytes: 4096, depth: 32, shadow: false, tracked: true, records: 256, file: false },
    Case { name: "read-single", bytes: 4096, depth: 1, shadow: false, tracked: false, records: 256, file: false },
    Case { name: "read-16k", bytes: 16 << 10, depth: 32, shadow: false, tracked: false, records: 256, file: false },
    Case { name: "read-128k", bytes: 128 << 10, depth: 32, shadow: false, tracked: false, records: 256, file: false },
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [name, requests] = args.as_slice() {
        let case = CASES.iter().find(|case| case.name == name).expect("a case of the table");
        let mut bench = Bench::new(case);
        for _ in 0..requests.parse::<u32>().expect("a number") / case.depth {
            bench.batch();
        }
        return;
    }
    println!("{:<20} {:>6} {:>10} {:>10} {:>10}   ns per request, medians of {BATCHES} batches", "", "depth", "submit", "poll", "both");
    for case in &CASES {
        let mut bench = Bench::new(case);
        let mut seen: Vec<(f64, f64)> = (0..BATCHES).map(|_| bench.batch()).collect();
        let depth = f64::from(case.depth);
        let mut median = |of: &dyn Fn(&(f64, f64)) -> f64| {
            seen.sort_by(|a, b| of(a).total_cmp(&of(b)));
            of(&seen[BATCHES / 2]) / depth
        };
        let (submit, poll, both) = (median(&|seen| seen.0), median(&|seen| seen.1), median(&|seen| seen.0 + seen.1));
        println!("{:<20} {:>6} {submit:>10.1} {poll:>10.1} {both:>10.1}", case.name, case.depth);
    }
}

struct Bench {
    device: SoftController,
    queue: Box<dyn Queue>,
    _arena: Arena,
    buffers: Vec<Buf>,
    blocks: u32,
    lba: u64,
}

impl Bench {
    fn new(case: &Case) -> Bench {
        let namespaces = vec![NamespaceConfig::plain(4096, BLOCKS)];
        let device = SoftController::real(
            ControllerConfig { namespaces, doorbell_buffer: case.shadow, vectors: 0, ..ControllerConfig::default() },
            1,
        );
        let record_file = case.file.then(|| format!("/dev/shm/hotshelf-queue-cost.{}", std::process::id()).into());
        let options = Options { records: case.records, record_file, ..Options::default() };
        let controller = Controller::open(device.function(), options).expect("ready");
        let options = QueueOptions { depth: case.depth, ..QueueOptions::default() };
        let namespace = controller.namespace(1).expect("a namespace");
        let queue = namespace.open_queue(&options).expect("a queue");
        device.set_eager(false);
        let mut queue: Box<dyn Queue> = match case.tracked {
            true => Box::new(Tracked::new(queue, Timeouts::default())),
            false => Box::new(queue),
        };
        let arena = Arena::private(case.bytes * case.depth as usize).expect("memory");
        queue.register(&arena).expect("registered");
        let buffers = (0..case.depth).map(|_| arena.allocate(case.bytes).expect("room")).collect();
        Bench { device, queue, _arena: arena, buffers, blocks: (case.bytes / 4096) as u32, lba: 1 }
    }

    /// Nanoseconds of the driver: handing over, and taking back.
    fn batch(&mut self) -> (f64, f64) {
        let begin = Instant::now();
        driver_submits(self);
        let submitted = begin.elapsed();
        self.device.step();
        let begin = Instant::now();
        driver_polls(self);
        (submitted.as_nanos() as f64, begin.elapsed().as_nanos() as f64)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.device.set_eager(true);
    }
}

#[inline(never)]
fn driver_submits(bench: &mut Bench) {
    for (tag, buffer) in bench.buffers.iter().enumerate() {
        bench.lba = bench.lba.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let request = Request::read(Tag(tag as u64), Lba((bench.lba >> 33) % (BLOCKS - u64::from(bench.blocks))), bench.blocks);
        assert_eq!(bench.queue.submit(&request, &[buffer.span()]), Submit::Queued);
    }
    bench.queue.ring();
}

#[inline(never)]
fn driver_polls(bench: &mut Bench) {
    let mut ended = [Completion::EMPTY; 32];
    assert_eq!(bench.queue.poll(&mut ended), bench.buffers.len());
    assert!(ended.iter().all(|completion| completion.status.is_ok()));
    black_box(&ended);
}
