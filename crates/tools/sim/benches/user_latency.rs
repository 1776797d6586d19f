//! Latency over vfio-user to a software controller in another process: from the doorbell store to the completion seen by a polling host,
//! one request at a time; and with both sides asleep in between.
//!
//! Prints the median and the 99th percentile in nanoseconds; first the lower bound, a round trip of one word between two CPUs (100 ns with
//! a shared cache, 500 ns without). Needs two idle CPUs.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::{Arena, Completion, Lba, Op, Queue, QueueOptions, Request, Submit, Tag};
use nvme::{Controller, NvmeQueue, Options};
use shm::Region;

struct Case {
    name: &'static str,
    args: &'static [&'static str],
    op: Op,
    blocks: u32,
    /// Number of 4 KiB blocks, read in sequence; all were written before.
    over: u64,
    /// Idle time before each request, so that drive and host sleep.
    asleep: bool,
    rounds: usize,
}

/// As many blocks as fit in the CPU caches, so that data is nearly free; and as many as do not.
const FEW: u64 = 64;
const MANY: u64 = BYTES / 4096;
const BYTES: u64 = 64 << 20;

const fn case(name: &'static str, op: Op, blocks: u32, over: u64) -> Case {
    Case { name, args: &[], op, blocks, over, asleep: false, rounds: 200_000 }
}

const CASES: [Case; 9] = [
    case("flush, polled", Op::Flush, 0, FEW),
    case("read 512, polled", Op::Read, 1, FEW),
    case("read 4096, polled", Op::Read, 8, FEW),
    case("write 4096, polled", Op::Write, 8, FEW),
    case("read 4096, of 64 MiB", Op::Read, 8, MANY),
    case("write 4096, of 64 MiB", Op::Write, 8, MANY),
    Case { args: &["--no-doorbell-buffer"], rounds: 50_000, ..case("read 4096, doorbells alone", Op::Read, 8, FEW) },
    Case { args: &["--no-doorbell-buffer"], rounds: 50_000, ..case("write 4096, doorbells alone", Op::Write, 8, FEW) },
    Case { args: &["--spin-us", "0"], asleep: true, rounds: 5_000, ..case("read 4096, both asleep", Op::Read, 8, FEW) },
];

struct Drive(Child);

impl Drop for Drive {
    fn drop(&mut self) {
        // The process is no longer needed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(socket: &std::path::Path, args: &[&str]) -> Drive {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvme-sim"));
    command.arg("--socket").arg(socket).args(["--size", &BYTES.to_string(), "--block", "512"]).args(args).stdout(Stdio::piped());
    let mut child = command.spawn().expect("nvme-sim");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    Drive(child)
}

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    println!("{:<28} {:>8} {:>8}   ns from the doorbell to the completion seen", "", "median", "p99");
    print("the machine: a word and back", there_and_back());
    for (number, case) in CASES.iter().enumerate() {
        let socket = dir.path().join(format!("{number}.sock"));
        let _drive = start(&socket, case.args);
        let controller = Controller::open(pci::user::open(&socket).expect("connected"), Options::default()).expect("ready");
        let options = QueueOptions { depth: 1, device_polled: !case.asleep, ..QueueOptions::default() };
        let mut queue = controller.namespace(1).expect("a namespace").open_queue(&options).expect("a queue");
        let arena = Arena::over(Arc::new(Region::shared("bench", 64 << 10).expect("memory")));
        queue.register(&arena).expect("registered");
        print(case.name, measure(&mut queue, &arena, case));
    }
}

fn print(name: &str, mut took: Vec<u64>) {
    took.sort_unstable();
    println!("{name:<28} {:>8} {:>8}", took[took.len() / 2], took[took.len() * 99 / 100]);
}

/// Measures the lower bound: a word written here is read by another CPU, whose reply is read here.
fn there_and_back() -> Vec<u64> {
    const ROUNDS: u64 = 200_000;
    let [call, answer] = [(); 2].map(|()| Line(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=ROUNDS).for_each(|round| answer.0.store(call.seen(round), Ordering::Release)));
        let one = |round| {
            let begun = Instant::now();
            call.0.store(round, Ordering::Release);
            answer.seen(round);
            begun.elapsed().as_nanos() as u64
        };
        (1..=ROUNDS).map(one).collect()
    })
}

/// Alone in its cache line and in the adjacent one, which may be prefetched.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    /// Polls until the value is seen.
    fn seen(&self, wanted: u64) -> u64 {
        while self.0.load(Ordering::Acquire) != wanted {
            std::hint::spin_loop();
        }
        wanted
    }
}

fn measure(queue: &mut NvmeQueue, arena: &Arena, case: &Case) -> Vec<u64> {
    let buf = arena.allocate(4096).expect("room");
    fill(queue, arena);
    let mut ended = [Completion::EMPTY; 4];
    let mut took = Vec::with_capacity(case.rounds);
    for round in 0..case.rounds as u64 {
        let mut request = Request::read(Tag(round), Lba(round % case.over * 8), case.blocks);
        request.op = case.op;
        if case.op == Op::Flush {
            request = Request::flush(Tag(round));
        }
        let whole = [buf.span().part(0, case.blocks * 512)];
        let spans = if case.op == Op::Flush { &[][..] } else { &whole[..] };
        if case.asleep {
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(queue.submit(&request, spans), Submit::Queued);
        let begun = Instant::now();
        queue.ring();
        while queue.poll(&mut ended) == 0 {
            if case.asleep {
                queue.wait(Duration::from_secs(1));
            }
        }
        took.push(begun.elapsed().as_nanos() as u64);
        assert_eq!(ended[0].status, Ok(()));
    }
    took
}

/// Writes every block, so that each has its own memory.
fn fill(queue: &mut NvmeQueue, arena: &Arena) {
    let buf = arena.allocate(32 << 10).expect("room");
    let whole = [buf.span().part(0, 32 << 10)];
    let mut ended = [Completion::EMPTY; 4];
    for first in (0..queue.geometry().blocks).step_by(64) {
        let request = Request { op: Op::Write, ..Request::read(Tag(first), Lba(first), 64) };
        assert_eq!(queue.submit(&request, &whole), Submit::Queued);
        queue.ring();
        while queue.poll(&mut ended) == 0 {}
        assert_eq!(ended[0].status, Ok(()));
    }
}
