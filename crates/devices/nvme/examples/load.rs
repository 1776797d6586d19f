//! Random reads of a drive behind VFIO: keeps a queue full and tells what came out (bench/vm/nvme.sh).
//!
//! `cargo run --release -p nvme --example load -- ADDRESS [namespace=1] [bs=4096] [depth=32] [seconds=2] [mode=polling|interrupt|adaptive]
//! [seed=1]`
//!
//! Prints one line: `iops=... cpu_us=...`; `cpu_us` is the process's user and system time for each read. With depth 1 the time of a
//! polled read is one over `iops`.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use block::completion::{Adaptive, Mode};
use block::{Arena, Buf, Completion, Device, Lba, Queue, QueueOptions, Request, Submit, Tag};
use nvme::{Controller, Options};
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

fn run() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let address = args.next().ok_or("name a drive: 0000:03:00.0")?.parse()?;
    let mut words: HashMap<String, String> = HashMap::new();
    for arg in args {
        let (key, value) = arg.split_once('=').ok_or_else(|| format!("{arg}: KEY=VALUE"))?;
        words.insert(key.into(), value.into());
    }
    let mut word = |key: &str, default: &str| words.remove(key).unwrap_or_else(|| default.into());
    let mode = match word("mode", "polling").as_str() {
        "polling" => Mode::Polling,
        "interrupt" => Mode::Interrupt,
        "adaptive" => Mode::Adaptive,
        other => return Err(format!("mode={other}: polling, interrupt or adaptive").into()),
    };
    let (namespace, bytes, depth): (u32, usize, u32) =
        (word("namespace", "1").parse()?, word("bs", "4096").parse()?, word("depth", "32").parse()?);
    let (seconds, seed): (f64, u64) = (word("seconds", "2").parse()?, word("seed", "1").parse()?);
    if let Some(unknown) = words.keys().next() {
        return Err(format!("{unknown}= is not known").into());
    }
    let controller = Controller::open(pci::vfio::open(address)?, Options::default())?;
    let namespace = controller.namespace(namespace)?;
    let options = QueueOptions { depth, device_polled: mode == Mode::Polling, ..QueueOptions::default() };
    let arena = Arena::private((bytes * depth as usize).next_multiple_of(1 << 21))?;
    let bufs: Vec<Buf> = (0..depth).map(|_| arena.allocate(bytes).ok_or("no room")).collect::<Result<_, _>>()?;
    let mut queue = namespace.open_queue(&options)?;
    queue.register(&arena)?;
    let load = Load {
        blocks: bytes as u32 / namespace.geometry().block_bytes,
        places: namespace.geometry().bytes() / bytes as u64,
        seconds,
        seed,
    };
    // A polling loop needs no notification.
    if mode == Mode::Polling {
        return load.drive(&mut queue, &bufs, true);
    }
    let mut queue = Adaptive::new(queue);
    queue.set_mode(mode);
    load.drive(&mut queue, &bufs, false)
}

/// Reads between two looks at the clock.
const CHECK_PERIOD: usize = 32;

struct Load {
    blocks: u32,
    places: u64,
    seconds: f64,
    seed: u64,
}

impl Load {
    fn drive(&self, queue: &mut impl Queue, bufs: &[Buf], busy: bool) -> Result<(), Error> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut ended = vec![Completion::EMPTY; bufs.len()];
        let mut submit = |queue: &mut dyn Queue, tag: usize| {
            let lba = Lba(random.u64(..self.places) * u64::from(self.blocks));
            assert_eq!(queue.submit(&Request::read(Tag(tag as u64), lba, self.blocks), &[bufs[tag].span()]), Submit::Queued);
        };
        let (begin, cpu_begin) = (Instant::now(), cpu());
        // A guest's clock may cost more than a read.
        let (mut count, mut until_check, mut now, end) = (0_u64, CHECK_PERIOD, begin, begin + Duration::from_secs_f64(self.seconds));
        (0..bufs.len()).for_each(|tag| submit(queue, tag));
        while now < end || queue.in_flight() > 0 {
            if busy {
                queue.ring();
            } else {
                queue.wait(Duration::MAX);
            }
            let reaped = queue.poll(&mut ended);
            // No pause instruction: an emulated CPU leaves its loop for one, and waits for a lock of the whole machine.
            if reaped == 0 {
                continue;
            }
            until_check = until_check.saturating_sub(reaped);
            if until_check == 0 {
                (now, until_check) = (Instant::now(), CHECK_PERIOD);
            }
            for completion in &ended[..reaped] {
                completion.status?;
                if now < end {
                    count += 1;
                    submit(queue, completion.tag.0 as usize);
                }
            }
        }
        let cpu = cpu() - cpu_begin;
        println!("iops={:.0} cpu_us={:.3}", count as f64 / begin.elapsed().as_secs_f64(), cpu.as_secs_f64() * 1e6 / count.max(1) as f64);
        Ok(())
    }
}

/// User and system time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
