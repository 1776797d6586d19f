//! Synchronous foreground reads while a copy runs in the background.

use std::time::Duration;

use block::scheduler::{self, ClassesOptions, Options};
use block::{Arena, Class, Clock, Completion, Lba, Queue, Request, Scheduler, Submit, Tag};

use crate::disk::{self, Disk};
use crate::flash::{self, Flash};
use crate::latencies::Latencies;
use crate::model::{Model, VirtualClock};

const COPIES: u64 = 16;
const PIECE_BLOCKS: u32 = 1024;
const FOREGROUND: u64 = 1000;

/// The loads that run at the same time.
struct Load {
    foreground: bool,
    background: bool,
    /// How long the foreground computes between two reads.
    pause: Duration,
}

struct Run {
    queue: Box<dyn Queue>,
    clock: VirtualClock,
    arena: Arena,
    random: fastrand::Rng,
    blocks: u64,
    copied: u64,
    /// The state of each copy: its piece, and whether that is already read.
    copies: Vec<(u64, bool)>,
    idle: Vec<u64>,
    read_at: u64,
    latencies: Latencies,
}

impl Run {
    fn new(queue: Box<dyn Queue>, clock: VirtualClock) -> Run {
        let blocks = queue.geometry().blocks;
        Run {
            queue,
            clock,
            arena: Arena::private(16 << 20).expect("memory"),
            random: fastrand::Rng::with_seed(2),
            blocks,
            copied: 0,
            copies: vec![(0, true); COPIES as usize],
            idle: (0..COPIES).collect(),
            read_at: 0,
            latencies: Latencies::new(),
        }
    }

    /// Submits the next read or write of a copy, which copies from the first half of the device to the second.
    fn go_on_copying(&mut self, copy: u64) {
        let (piece, is_read) = &mut self.copies[copy as usize];
        *is_read = !*is_read;
        let tag = Tag(copy);
        let mut request = Request::write(tag, Lba(*piece + self.blocks / 2), PIECE_BLOCKS);
        if !*is_read {
            *piece = self.copied * u64::from(PIECE_BLOCKS) % (self.blocks / 2);
            self.copied += 1;
            request = Request::read(tag, Lba(*piece), PIECE_BLOCKS);
        }
        let at = copy as usize * PIECE_BLOCKS as usize * 512;
        let data = [self.arena.span(at, PIECE_BLOCKS * 512)];
        assert_eq!(self.queue.submit(&Request { class: Class(1), ..request }, &data), Submit::Queued);
    }

    fn read(&mut self) {
        let lba = self.random.u64(..self.blocks / 8) * 8;
        let data = [self.arena.span(12 << 20, 4096)];
        assert_eq!(self.queue.submit(&Request::read(Tag(FOREGROUND), Lba(lba), 8), &data), Submit::Queued);
        self.read_at = self.clock.now().0;
    }

    fn run(&mut self, load: &Load, seconds: u64) {
        let (mut ended, mut reads_at) = ([Completion::EMPTY; 32], load.foreground.then_some(0));
        while self.clock.now().0 < seconds * 1_000_000_000 {
            if load.background {
                let mut idle = std::mem::take(&mut self.idle);
                idle.drain(..).for_each(|copy| self.go_on_copying(copy));
            }
            if reads_at.is_some_and(|at| at <= self.clock.now().0) {
                reads_at = None;
                self.read();
            }
            self.queue.ring();
            let at_most = reads_at.map_or(1_000_000_000, |at| at - self.clock.now().0);
            self.queue.wait(Duration::from_nanos(at_most));
            let count = self.queue.poll(&mut ended);
            for completion in &ended[..count] {
                if completion.tag.0 == FOREGROUND {
                    self.latencies.add(self.clock.now().0 - self.read_at);
                    reads_at = Some(self.clock.now().after(load.pause).0);
                } else {
                    self.idle.push(completion.tag.0);
                }
            }
        }
    }
}

fn open(flash: bool, options: &Options, clock: &VirtualClock) -> Box<dyn Queue> {
    let of = clock.clone();
    match flash {
        true => scheduler::open_with_clock(Model::new(Flash::default(), flash::geometry(), 128, of.clone()), options, of),
        false => scheduler::open_with_clock(Model::new(Disk::new(true), disk::geometry(), 32, of.clone()), options, of),
    }
}

/// Prints latencies and copy rates for each way to share the device.
pub fn compare() {
    for (flash, seconds) in [(true, 10), (false, 300)] {
        let device = if flash { "flash" } else { "disk that reorders" };
        println!(
            "{device}, {seconds} s of virtual time: 4 KiB random reads, one by one, 20 us between two; a copy, 16 x 512 KiB in flight"
        );
        let pause = Duration::from_micros(20);
        let both = Load { foreground: true, background: true, pause };
        let no_linger = ClassesOptions { foreground_linger: Duration::ZERO, ..ClassesOptions::default() };
        let unguarded = ClassesOptions { background_in_flight_max: u32::MAX, ..no_linger.clone() };
        let by_weight = ClassesOptions { background_in_flight_max: 0, ..ClassesOptions::default() };
        let with = |classes: ClassesOptions| Options { classes, ..Options::of(Scheduler::Classes) };
        for (name, options, load) in [
            ("reads alone", Options::of(Scheduler::None), &Load { background: false, ..both }),
            ("copy alone", Options::of(Scheduler::None), &Load { foreground: false, ..both }),
            ("none", Options::of(Scheduler::None), &both),
            ("classes, weights only", with(unguarded), &both),
            ("classes, no linger", with(no_linger), &both),
            ("classes", Options::of(Scheduler::Classes), &both),
            ("classes, none in flight", with(by_weight), &both),
            ("classes, copy alone", Options::of(Scheduler::Classes), &Load { foreground: false, ..both }),
        ] {
            let clock = VirtualClock::default();
            let mut run = Run::new(open(flash, &options, &clock), clock);
            run.run(load, seconds);
            let copied = run.copied as f64 * f64::from(PIECE_BLOCKS) * 512.0 / 1e6 / seconds as f64;
            let reads = run.latencies.count() as f64 / seconds as f64;
            let (p50, p99) = (run.latencies.at(0.5), run.latencies.at(0.99));
            println!("  {name:<23} reads {reads:8.1} /s  p50 {p50:8.3} ms  p99 {p99:8.3} ms   copy {copied:7.1} MB/s");
        }
    }
}
