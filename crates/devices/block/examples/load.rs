//! A load generator for any driver: keeps a queue full and prints the throughput and latencies.
//!
//! `cargo run --release -p block --example load -- FILE [op=randread] [bs=4096] [depth=32] [seconds=2] [bytes=SIZE] [seed=1]
//! [engine=uring|plain|passthrough|memory] [direct=yes|no] [single_issuer=yes|no] [device_polled=no]
//! [kernel_submits=no] [waits=no] [spin=0] [busy=no] [latency=yes] [batch=0] [cpu=process|thread]`
//!
//! `batch` is the number of requests per submission to the kernel; 0: all that replace completed requests (fio uses 1).
//! `op` is read, write, randread or randwrite (writes destroy the file's content). `spin`: microseconds that a wait spins.
//! `busy`: poll instead of waiting. The output is one line: `iops=... cpu_us=... p50_us=... p99_us=...`; `cpu_us` is the process's user and
//! system time per request, including its kernel threads (io-wq, SQPOLL); with `cpu=thread` it is that of the submitting
//! thread alone, as fio reports it.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use block::driver::{Engine, FileDevice, FileOptions, MemoryDevice, Passthrough};
use block::{Arena, Buf, Completion, Device, Lba, Queue, QueueOptions, Request, Submit, Tag};
use rustix::time::{ClockId, clock_gettime};

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The options of the command line.
struct Load {
    write: bool,
    random: bool,
    blocks: u32,
    seconds: f64,
    busy: bool,
    latency: bool,
    clock: ClockId,
    batch: u32,
}

fn run() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("name a file or device")?;
    let mut words: HashMap<String, String> = HashMap::new();
    for arg in args {
        let (key, value) = arg.split_once('=').ok_or_else(|| format!("{arg}: KEY=VALUE"))?;
        words.insert(key.into(), value.into());
    }
    let mut word = |key: &str, default: &str| words.remove(key).unwrap_or_else(|| default.into());
    let op = word("op", "randread");
    let device = open(&path, &word("engine", "uring"), word("direct", "yes") == "yes", &op)?;
    let options = QueueOptions {
        depth: word("depth", "32").parse()?,
        single_issuer: word("single_issuer", "yes") == "yes",
        device_polled: word("device_polled", "no") == "yes",
        kernel_submits: word("kernel_submits", "no") == "yes",
        waits: word("waits", "no") == "yes",
        spin_duration: Duration::from_micros(word("spin", "0").parse()?),
    };
    let bytes: u32 = word("bs", "4096").parse()?;
    let load = Load {
        write: op.ends_with("write"),
        random: op.starts_with("rand"),
        blocks: bytes / device.geometry().block_bytes,
        seconds: word("seconds", "2").parse()?,
        busy: word("busy", "no") == "yes",
        latency: word("latency", "yes") == "yes",
        batch: word("batch", "0").parse()?,
        clock: if word("cpu", "process") == "thread" { ClockId::ThreadCPUTime } else { ClockId::ProcessCPUTime },
    };
    let size: u64 = word("bytes", "0").parse()?;
    let seed = word("seed", "1").parse()?;
    if let Some(unknown) = words.keys().next() {
        return Err(format!("{unknown}= is not known").into());
    }
    let positions = device.geometry().bytes().min(if size > 0 { size } else { u64::MAX }) / u64::from(bytes);
    if load.blocks == 0 || positions == 0 {
        return Err(format!("requests of {bytes} bytes do not fit {:?}", device.geometry()).into());
    }
    let mut queue = device.queue(&options)?;
    let arena = Arena::private((bytes as usize * options.depth as usize).next_multiple_of(1 << 21))?;
    queue.register(&arena)?;
    drive(&mut *queue, &arena, &load, bytes, positions, seed)
}

fn open(path: &str, engine: &str, direct: bool, op: &str) -> Result<Box<dyn Device>, Error> {
    let read_only = op.ends_with("read");
    let options = FileOptions { read_only, buffered: !direct, round_down: true, ..FileOptions::default() };
    Ok(match engine {
        "uring" => Box::new(FileDevice::open(path, &FileOptions { engine: Engine::Uring, ..options })?),
        "plain" => Box::new(FileDevice::open(path, &FileOptions { engine: Engine::Plain, ..options })?),
        "passthrough" => Box::new(Passthrough::open(path, read_only)?),
        "memory" => Box::new(MemoryDevice::new(512, 1 << 30)?),
        _ => return Err(format!("engine={engine}: uring, plain, passthrough or memory").into()),
    })
}

fn drive(queue: &mut dyn Queue, arena: &Arena, load: &Load, bytes: u32, positions: u64, seed: u64) -> Result<(), Error> {
    let depth = queue.depth() as usize;
    let bufs: Vec<Buf> = (0..depth).map(|_| arena.allocate(bytes as usize).ok_or("no room")).collect::<Result<_, _>>()?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut next = 0;
    let mut begun = vec![Instant::now(); depth];
    let mut latencies = Histogram::new();
    let mut ended = vec![Completion::EMPTY; depth];
    let mut submit = |queue: &mut dyn Queue, tag: usize, now: Instant, begun: &mut [Instant]| {
        next = if load.random { random.u64(..positions) } else { (next + 1) % positions };
        let lba = Lba(next * u64::from(load.blocks));
        let make = if load.write { Request::write } else { Request::read };
        begun[tag] = now;
        assert_eq!(queue.submit(&make(Tag(tag as u64), lba, load.blocks), &[bufs[tag].span()]), Submit::Queued);
    };
    let (begin, cpu_begin) = (Instant::now(), cpu(load.clock));
    (0..depth).for_each(|tag| submit(queue, tag, begin, &mut begun));
    let (mut count, mut now, end) = (0_u64, begin, begin + Duration::from_secs_f64(load.seconds));
    while now < end || queue.in_flight() > 0 {
        if load.busy {
            queue.ring();
        } else {
            queue.wait(Duration::MAX);
        }
        let reaped = queue.poll(&mut ended);
        let mut unrung = 0;
        now = Instant::now();
        for completion in &ended[..reaped] {
            completion.status?;
            let tag = completion.tag.0 as usize;
            if load.latency {
                latencies.add(now - begun[tag]);
            }
            if now < end {
                count += 1;
                // Like fio, this measures each request separately.
                let at = if load.latency { Instant::now() } else { now };
                submit(queue, tag, at, &mut begun);
                unrung += 1;
                if unrung == load.batch {
                    queue.ring();
                    unrung = 0;
                }
            }
        }
    }
    let (elapsed, cpu) = (load.seconds, cpu(load.clock) - cpu_begin);
    let (p50, p99) = (latencies.at(0.50), latencies.at(0.99));
    println!(
        "iops={:.0} cpu_us={:.3} p50_us={p50:.1} p99_us={p99:.1}",
        count as f64 / elapsed,
        cpu.as_secs_f64() * 1e6 / count.max(1) as f64
    );
    Ok(())
}

/// Returns the user and system time.
fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Counts per power of two, each divided into 32 parts.
struct Histogram(Vec<u64>);

impl Histogram {
    fn new() -> Histogram {
        Histogram(vec![0; 64 * 32])
    }

    fn add(&mut self, latency: Duration) {
        let ns = (latency.as_nanos() as u64).max(32);
        let power = ns.ilog2();
        self.0[((power - 4) * 32) as usize + (ns >> (power - 5) & 31) as usize] += 1;
    }

    /// Returns the latency of a quantile, in microseconds.
    fn at(&self, share: f64) -> f64 {
        let wanted = (self.0.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (at, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                let (power, part) = (at / 32 + 4, at % 32);
                return (32 + part) as f64 * 2_f64.powi(power as i32 - 5) / 1000.0;
            }
        }
        0.0
    }
}
