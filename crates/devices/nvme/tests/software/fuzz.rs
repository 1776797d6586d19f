//! Fuzzes both sides: the requests to the driver, and the device's completions, memory writes and registers. Nothing panics, every
//! accepted request completes once, every call returns.
//!
//! FULL=1: for 30 minutes, with seeds where no run has been. NVME_FUZZ_SECONDS=n: for so long; NVME_FUZZ_FROM=seed goes on where
//! such a run ended.

use std::time::{Duration, Instant};

use block::{Buf, Completion, Lba, Queue, QueueOptions, Request, Submit, Tag, Tracked};
use nvme::Controller;
use sim::device::clock::VirtualClock;
use sim::nvme::faults::{ControllerFaultRule, Fault};
use sim::nvme::{CommandTiming, ControllerConfig, NamespaceConfig, SoftController};

use super::setting::{Stack, full, options, timeouts};

/// Of a run without FULL.
const SEEDS: u64 = 1500;

#[test]
fn whatever_the_device_does_the_driver_neither_panics_nor_hangs() {
    if let Ok(seed) = std::env::var("SEED") {
        return fuzz(seed.parse().expect("SEED is a number"), &mut Seen::default());
    }
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seconds = number("NVME_FUZZ_SECONDS").or(full().then_some(1800));
    let first = number("NVME_FUZZ_FROM").unwrap_or_else(|| if full() { fastrand::u64(..u64::MAX / 2) } else { 0 });
    println!("seeds from {first}");
    let begin = Instant::now();
    let mut seen = Seen::default();
    for seed in (first..).take(if seconds.is_some() { usize::MAX } else { SEEDS as usize }) {
        if seconds.is_some_and(|seconds| begin.elapsed() > Duration::from_secs(seconds)) {
            println!("go on with NVME_FUZZ_FROM={seed}");
            break;
        }
        let _named = Named(seed);
        seen.seeds += 1;
        fuzz(seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(seen.opened > seen.seeds / 4 && seen.ended > 0 && seen.failed > 0, "the test looks at what it should: {seen:?}");
}

struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with: SEED={} cargo test -p nvme --test software fuzz", self.0);
        }
    }
}

#[derive(Default, Debug)]
struct Seen {
    seeds: u64,
    opened: u64,
    ended: u64,
    failed: u64,
    strays: u64,
    resets: u64,
}

fn hostile(device: &SoftController, random: &mut fastrand::Rng) {
    device.with_faults(|faults| {
        faults.register_lies = [0, 0, 3, 50, 1000][random.usize(..5)];
        for _ in 0..random.u32(..4) {
            let fault = match random.u8(..6) {
                0 => Fault::Drop,
                1 => Fault::WrongId,
                2 => Fault::WrongQueue,
                3 => Fault::Twice(Duration::from_micros(random.u64(..50_000))),
                4 => Fault::Delay(Duration::from_micros(random.u64(..500_000))),
                _ => Fault::Status(nvme::Status(random.u16(1..1 << 15))),
            };
            let rule = ControllerFaultRule::one_in(random.u32(1..200), fault);
            faults.rules.push(if random.bool() { rule } else { ControllerFaultRule { admin: true, ..rule } });
        }
        faults.ignores_aborts = random.bool();
        faults.cut_off_fails = random.u32(..3);
    });
}

fn fuzz(seed: u64, seen: &mut Seen) {
    let mut random = fastrand::Rng::with_seed(seed);
    let clock = VirtualClock::default();
    let shape = ControllerConfig {
        namespaces: vec![NamespaceConfig::plain(512, 4096); random.usize(1..3)],
        entries_max: [2, 3, 64, 4096][random.usize(..4)],
        timing: CommandTiming::Between(1000, 2_000_000),
        doorbell_buffer: random.bool(),
        vectors: random.u16(..4),
        stride_shift: random.u8(..3),
        ranges_max: random.u8(..),
        shared_memory_only: random.bool(),
        ..ControllerConfig::default()
    };
    let device = SoftController::new(shape, &clock, random.u64(..));
    if random.bool() {
        hostile(&device, &mut random);
    }
    let Ok(controller) = Controller::open_with(device.function(), options(), std::sync::Arc::new(clock.clone())) else { return };
    seen.opened += 1;
    hostile(&device, &mut random);
    let Ok(namespace) = controller.namespace(1) else { return };
    let mut queues: Vec<Driven> = (0..random.usize(1..3)).filter_map(|_| Driven::new(&namespace, &clock, &mut random)).collect();
    for _ in 0..300 {
        for driven in &mut queues {
            driven.act(&device, &mut random);
        }
        if random.u8(..100) == 0 {
            device.break_down();
        }
        if random.u16(..1500) == 0 {
            device.remove();
        }
        controller.serve();
        while controller.take_notice().is_some() {}
    }
    for mut driven in queues {
        driven.drain();
        seen.ended += driven.ended;
        seen.failed += driven.failed;
        seen.strays += driven.queue.below().counters().strays;
    }
    seen.resets += u64::from(controller.resets());
}

/// A queue and its requests in flight.
struct Driven {
    queue: Stack,
    buffers: Vec<Buf>,
    open: Vec<bool>,
    ended: u64,
    failed: u64,
}

impl Driven {
    fn new(namespace: &nvme::Namespace, clock: &VirtualClock, random: &mut fastrand::Rng) -> Option<Driven> {
        let depth = 1 << random.u32(0..=5);
        let mut queue = namespace.open_queue(&QueueOptions { depth, ..QueueOptions::default() }).ok()?;
        let arena = block::Arena::private(1 << 20).expect("memory");
        queue.register(&arena).ok()?;
        let buffers: Vec<Buf> = (0..32).map(|_| arena.allocate(16 << 10).expect("room")).collect();
        let queue = Tracked::with_clock(queue, timeouts(), clock.clone());
        Some(Driven { queue, open: vec![false; buffers.len()], buffers, ended: 0, failed: 0 })
    }

    fn submit(&mut self, random: &mut fastrand::Rng) {
        let Some(free) = self.open.iter().position(|open| !open) else { return };
        let (tag, lba, blocks) = (Tag(free as u64), Lba(random.u64(..5000)), random.u32(..33));
        let request = match random.u8(..8) {
            0 => Request::flush(tag),
            1 => Request::discard(tag, lba, random.u32(..)),
            2 => Request::write_zeroes(tag, lba, blocks),
            3..=5 => Request::read(tag, lba, blocks),
            _ => Request::write(tag, lba, blocks),
        };
        let begin = random.u32(..16);
        let span = self.buffers[free].span().part(begin, (blocks * 512).min((16 << 10) - begin));
        let half = random.u32(..=span.bytes);
        let pieces = [span.part(0, half), span.part(half, span.bytes - half)];
        let data = match random.u8(..8) {
            _ if !request.op.has_data() => &[][..],
            0 => &pieces[..],
            _ => &[span][..],
        };
        if self.queue.submit(&request, data) == Submit::Queued {
            self.open[free] = true;
        }
    }

    fn act(&mut self, device: &SoftController, random: &mut fastrand::Rng) {
        match random.u8(..12) {
            0..=4 => (0..random.u8(..6)).for_each(|_| self.submit(random)),
            5 => self.queue.ring(),
            6 | 7 => self.poll(),
            8 => self.queue.wait(Duration::from_micros(random.u64(..20_000))),
            9 if random.u8(..4) == 0 => self.queue.cancel(Tag(random.u64(..40))),
            10 if random.u8(..40) == 0 => drop(self.queue.reset()),
            _ => (0..random.u8(..4)).for_each(|_| device.scribble()),
        }
    }

    fn poll(&mut self) {
        let mut ended = [Completion::EMPTY; 8];
        let count = self.queue.poll(&mut ended);
        for completion in &ended[..count] {
            let open = &mut self.open[completion.tag.0 as usize];
            assert!(std::mem::take(open), "{completion:?} is reported twice");
            self.ended += 1;
            self.failed += u64::from(completion.status.is_err());
        }
        while self.queue.take_released().is_some() {}
    }

    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.queue.in_flight() == 0 {
                break;
            }
            self.poll();
            self.queue.wait(Duration::from_millis(1));
        }
        assert_eq!(self.queue.in_flight(), 0, "something never ended");
        assert!(self.open.iter().all(|open| !open), "something was never reported");
    }
}
