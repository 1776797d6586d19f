//! How long it takes over vfio-user, to a software controller in another process: from the store into the doorbell to the completion
//! seen by who polls, one request at a time; and with both sides asleep in between.
//!
//! Prints the median and the 99th of a hundred, in nanoseconds; first of what every such request takes at least, a word that another
//! processor answers, which is 100 ns where both share a cache and 500 where they do not. Needs two processors that nobody else uses.

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
    /// Of this many blocks of 4 KiB, one after the other; they were all written before.
    over: u64,
    /// Nothing is asked for so long before each request, so that the drive sleeps; and the host sleeps, too.
    asleep: bool,
    rounds: usize,
}

/// As many as stay in the processor's caches, so that the data costs next to nothing; and as many as do not.
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
        // Nothing of it is needed any more.
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

/// The least there can be: a word written here is seen by another processor, whose answer is seen here.
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

/// In a cache line of its own, and of that which is fetched beside it.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    /// Looks until it is there.
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

/// Each block of the drive has memory of its own from then on.
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
