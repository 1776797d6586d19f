// long: the model of one queue, its random driver and their comparison.
//! Any mix of requests, lost and late and doubled answers, wrong identifiers, aborts, resets, broken controllers and removal: every
//! request completes exactly once, with a status it may have and with data it may have; and the device touches no memory that was
//! given back.
//!
//! An oracle sees only requests and completions. The run consists of episodes, spread over the CPUs; each has its own seed, controller
//! and faults. `NVME_REQUESTS`: how many in all; without it a million in release, 60 000 in debug,
//! 100 million with FULL=1: `FULL=1 cargo test --release -p nvme --test software once`, or `make test-full`, which has it among all. It
//! says on standard error where the seeds begin, how far it has come, and which seed failed; NVME_FROM=seed goes on from one.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{Buf, Clock, Completion, Error, Lba, Op, Queue, Request, Span, Status, Submit, Tag};
use nvme::Options;
use nvme::entry::admin;
use sim::nvme::faults::{ControllerFaultRule, Fault};
use sim::nvme::{CommandTiming, ControllerConfig, NamespaceConfig};

use super::oracle::{Asked, Oracle, range};
use super::setting::{Setting, Stack, TIMEOUT, full, options};
use super::{BLOCK, BLOCKS};

/// Requests that touch one of these fail, always.
const BAD: std::ops::Range<u64> = 248..252;
const BLOCKS_PER_REQUEST: u32 = 20;
const EPISODE: u64 = 10_000;
/// What a buffer is filled with while nobody owns it.
const POISON: u8 = 0xa5;
const POISONED: [u8; BUFFER_BYTES + 4096] = [POISON; BUFFER_BYTES + 4096];
const PLACES: usize = 96;
/// Bytes of a buffer, with room to begin where no page begins.
const BUFFER_BYTES: usize = BLOCKS_PER_REQUEST as usize * BLOCK;

#[test]
fn every_request_completes_exactly_once() {
    if let Ok(seed) = std::env::var("SEED") {
        let seen = Episode::new(seed.parse().expect("SEED is a number")).run(EPISODE);
        return println!("{seen:?}");
    }
    let default = if full() { 100_000_000 } else { [1_000_000, 60_000][usize::from(cfg!(debug_assertions))] };
    let wanted: u64 = std::env::var("NVME_REQUESTS").map_or(default, |count| count.parse().expect("NVME_REQUESTS is a number"));
    // Where no run has been, or the same each time.
    let first = if full() { fastrand::u64(..u64::MAX / 2) } else { 1 };
    let first = std::env::var("NVME_FROM").map_or(first, |seed| seed.parse().expect("NVME_FROM is a number"));
    println!("seeds from {first}");
    let progress = Progress { wanted, done: AtomicU64::new(0) };
    progress.tell(&format!("{wanted} requests, seeds from {first}"));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8) as u64;
    let seen = std::thread::scope(|scope| {
        let progress = &progress;
        let run = |thread| move || episodes(first + thread, threads, wanted.div_ceil(threads), progress);
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        threads.into_iter().fold(Seen::default(), |sum, thread| match thread.join() {
            Ok(seen) => sum.with(&seen),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    });
    println!("{seen:?}");
    let all =
        [seen.ok, seen.media, seen.timeout, seen.cancelled, seen.reset, seen.gone, seen.released, seen.strays, seen.resets, seen.bounced];
    assert!(wanted < 1_000_000 || all.iter().all(|count| *count > 0), "something never came up: {seen:?}");
}

/// Seeds that once failed.
#[test]
fn what_failed_once_holds() {
    // 2: zeroes have no stamp of their own. 4: a queue that is not made anew at once. 19: rings full of doubled answers.
    for seed in [2, 4, 19] {
        Episode::new(seed).run(EPISODE);
    }
}

/// How far a long run has come, for who watches it.
struct Progress {
    wanted: u64,
    done: AtomicU64,
}

impl Progress {
    /// So many requests are between two lines; shorter runs say nothing.
    const EACH: u64 = 5_000_000;

    fn did(&self, requests: u64, seed: u64) {
        let before = self.done.fetch_add(requests, Ordering::Relaxed);
        let now = before + requests;
        if before / Progress::EACH != now / Progress::EACH {
            self.tell(&format!("{now} of {} requests, at seed {seed}", self.wanted));
        }
    }

    /// Past the harness, which keeps what a test prints until it has ended.
    fn tell(&self, words: &str) {
        if self.wanted > Progress::EACH {
            let _ = writeln!(std::io::stderr(), "once: {words}");
        }
    }
}

fn episodes(first: u64, step: u64, wanted: u64, progress: &Progress) -> Seen {
    let mut seen = Seen::default();
    let mut seed = first;
    while seen.requests < wanted {
        match std::panic::catch_unwind(|| Episode::new(seed).run(EPISODE)) {
            Ok(episode) => {
                progress.did(episode.requests, seed);
                seen = seen.with(&episode);
            }
            Err(panic) => {
                eprintln!("again with: SEED={seed} cargo test -p nvme --test software once");
                std::panic::resume_unwind(panic);
            }
        }
        seed += step;
    }
    seen
}

/// How often what was seen.
#[derive(Default, Debug)]
struct Seen {
    requests: u64,
    ok: u64,
    media: u64,
    timeout: u64,
    cancelled: u64,
    reset: u64,
    gone: u64,
    invalid: u64,
    released: u64,
    strays: u64,
    resets: u64,
    remade: u64,
    bounced: u64,
    faults: u64,
    commands: u64,
    blocks_compared: u64,
}

impl Seen {
    fn fields(&mut self) -> [&mut u64; 16] {
        let Seen { requests, ok, media, timeout, cancelled, reset, gone, invalid, released, strays, resets, remade, bounced, .. } = self;
        let (faults, commands, compared) = (&mut self.faults, &mut self.commands, &mut self.blocks_compared);
        [
            requests, ok, media, timeout, cancelled, reset, gone, invalid, released, strays, resets, remade, bounced, faults, commands,
            compared,
        ]
    }

    fn with(mut self, other: &Seen) -> Seen {
        let mut other = Seen { ..*other };
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, more)| *sum += *more);
        self
    }

    fn count(&mut self, status: Status) {
        *match status {
            Ok(()) => &mut self.ok,
            Err(Error::Media) => &mut self.media,
            Err(Error::Timeout) => &mut self.timeout,
            Err(Error::Cancelled) => &mut self.cancelled,
            Err(Error::Reset) => &mut self.reset,
            Err(Error::Gone) => &mut self.gone,
            Err(_) => &mut self.invalid,
        } += 1;
    }
}

fn shape(random: &mut fastrand::Rng) -> ControllerConfig {
    let most = [20_000, 200_000, 3_000_000][random.usize(..3)];
    ControllerConfig {
        namespaces: vec![NamespaceConfig::plain(BLOCK as u32, BLOCKS)],
        entries_max: [4, 32, 1024][random.usize(..3)],
        transfer_pages_shift: [0, 1][random.usize(..2)],
        stride_shift: random.u8(..3),
        doorbell_buffer: random.bool(),
        ranges_max: [0, 1, 3][random.usize(..3)],
        vectors: [9, 1, 0][random.usize(..3)],
        timing: CommandTiming::Between(1_000, most),
        shared_memory_only: random.u8(..8) == 0,
        ..ControllerConfig::default()
    }
}

/// Faults of an episode. In every second one the controller itself breaks, too.
fn break_it(setting: &Setting, random: &mut fastrand::Rng) {
    let later = |random: &mut fastrand::Rng| Duration::from_micros(random.u64(1..400_000));
    setting.device.with_faults(|faults| {
        faults.bad = BAD;
        for _ in 0..random.u32(..5) {
            let fault = match random.u8(..7) {
                0 => Fault::Drop,
                1 => Fault::DropAnswer,
                2 | 3 => Fault::Delay(later(random)),
                4 => Fault::WrongId,
                5 => Fault::Twice(later(random)),
                _ => Fault::Status(nvme::Status::INTERRUPTED),
            };
            faults.rules.push(ControllerFaultRule::one_in(random.u32(200..5000), fault));
        }
        for opcode in [admin::ABORT, admin::DELETE_SQ, admin::DELETE_CQ, admin::CREATE_SQ] {
            if random.u8(..4) == 0 {
                faults.rules.push(ControllerFaultRule::one_in(random.u32(2..10), Fault::Drop).admin(opcode));
            }
        }
        faults.ignores_aborts = random.u8(..4) == 0;
        faults.ready_after = Duration::from_millis(random.u64(..100));
    });
}

struct Episode {
    random: fastrand::Rng,
    setting: Setting,
    stack: Stack,
    oracle: Oracle,
    buffers: Vec<Buf>,
    free: Vec<usize>,
    /// By place, which is part of the tag.
    asked: Vec<Option<Asked>>,
    spans: Vec<Vec<Span>>,
    free_places: Vec<usize>,
    serial: u64,
    breaks: bool,
    seen: Seen,
}

impl Episode {
    fn new(seed: u64) -> Episode {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = Options { retries: random.u8(..4), ..options() };
        let setting = Setting::with(shape(&mut random), options, random.u64(..));
        let depth = 1 << random.u32(0..=6);
        let stack = setting.tracked(depth);
        break_it(&setting, &mut random);
        // Behind the first unit: their begins are no pages.
        let buffers: Vec<Buf> = (0..PLACES).map(|_| setting.arena.allocate(BUFFER_BYTES + 4096).expect("room")).collect();
        buffers.iter().for_each(|buffer| buffer.write(0, &POISONED));
        Episode {
            breaks: random.bool(),
            random,
            stack,
            oracle: Oracle::new(),
            free: (0..buffers.len()).collect(),
            buffers,
            asked: vec![None; PLACES],
            spans: vec![Vec::new(); PLACES],
            free_places: (0..PLACES).collect(),
            serial: 0,
            seen: Seen::default(),
            setting,
        }
    }

    fn run(mut self, requests: u64) -> Seen {
        let mut after_gone = 0;
        while self.seen.requests < requests && after_gone < 300 {
            for _ in 0..self.random.u32(0..8) {
                self.submit();
            }
            self.stack.ring();
            self.disturb();
            self.step();
            after_gone += u64::from(self.setting.controller.is_gone());
        }
        self.drain();
        let counters = self.stack.below().counters();
        self.seen.strays += counters.strays;
        self.seen.remade += counters.remade;
        self.seen.bounced += counters.bounced;
        self.seen.commands += counters.commands;
        self.seen.resets += u64::from(self.setting.controller.resets());
        self.seen.faults += self.setting.device.done().faults;
        drop(self.stack);
        self.setting.check();
        self.seen
    }

    /// Everything is reported in the end, and what the device can be made to give back is given back.
    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.stack.in_flight() == 0 && self.stack.abandoned() == 0 {
                break;
            }
            self.step();
        }
        assert_eq!(self.stack.in_flight(), 0, "something never ended");
        assert!(self.stack.abandoned() == 0 || self.stack.is_gone(), "memory never came back");
        self.take_released();
        let held = self.asked.iter().flatten().count();
        assert!(held == 0 || self.stack.is_gone(), "{held} requests are open");
    }

    fn step(&mut self) {
        let mut ended = [Completion::EMPTY; 16];
        let count = self.stack.poll(&mut ended);
        for completion in &ended[..count] {
            self.ended(*completion);
        }
        self.take_released();
        if count == 0 || self.random.u8(..4) == 0 {
            let most = [1, 10, 100, 5_000][self.random.usize(..4)];
            self.stack.wait(Duration::from_micros(most));
        }
        self.check_poison();
    }

    fn disturb(&mut self) {
        if self.random.u8(..40) == 0
            && let Some(place) = (0..PLACES).find(|place| self.asked[*place].is_some_and(|asked| !asked.abandoned))
        {
            let asked = self.asked[place].as_mut().expect("it is there");
            asked.cancelled = true;
            let tag = asked.request.tag;
            self.stack.cancel(tag);
        }
        if self.breaks && self.random.u32(..4000) == 0 {
            match self.random.u8(..8) {
                0 => self.setting.device.remove(),
                1 => self.setting.device.with_faults(|faults| (faults.frozen, faults.stuck_ready) = (true, true)),
                2 | 3 => self.setting.device.with_faults(|faults| faults.frozen = true),
                4 => {
                    let _ = self.stack.reset();
                }
                _ => self.setting.device.break_down(),
            }
        }
    }

    fn request(&mut self, tag: Tag) -> Request {
        let blocks = self.random.u32(1..=BLOCKS_PER_REQUEST);
        let lba = Lba(self.random.u64(..BLOCKS + 1 - u64::from(blocks)));
        match self.random.u8(..20) {
            0 => Request::flush(tag),
            1 => Request::discard(tag, lba, blocks),
            2 => Request::write_zeroes(tag, lba, blocks),
            3..=10 => Request { fua: self.random.bool(), ..Request::write(tag, lba, blocks) },
            _ => Request::read(tag, lba, blocks),
        }
    }

    /// Pieces of a buffer, in order; some begin where no page begins.
    fn pieces(&mut self, buffer: &Span, bytes: u32) -> Vec<Span> {
        let begin = self.random.u32(..3) * 4 * self.random.u32(..300);
        let mut left = buffer.part(begin, bytes);
        let mut pieces = Vec::new();
        while self.random.u8(..3) == 0 && left.bytes > 4 && pieces.len() < 4 {
            let first = self.random.u32(1..left.bytes / 4) * 4;
            pieces.push(left.part(0, first));
            left = left.part(first, left.bytes - first);
        }
        pieces.push(left);
        pieces
    }

    fn submit(&mut self) {
        let Some(place) = self.free_places.pop() else { return };
        self.serial += 1;
        let tag = Tag(self.serial << 16 | place as u64);
        let request = self.request(tag);
        if self.oracle.is_long(&request) {
            return self.free_places.push(place);
        }
        let buffer = request.op.has_data().then(|| self.free.pop().expect("as many as places"));
        let stamp = if request.op == Op::Write { self.serial } else { 0 };
        let spans = match buffer {
            Some(buffer) => self.pieces(&self.buffers[buffer].span(), request.blocks * BLOCK as u32),
            None => Vec::new(),
        };
        if request.op == Op::Write {
            self.fill(&spans, stamp, &request);
        }
        let bad = request.op != Op::Discard && (request.lba.0 < BAD.end && BAD.start < request.lba.0 + u64::from(request.blocks));
        let moment = self.oracle.tick();
        let asked = Asked {
            request,
            stamp,
            moment,
            deadline: self.setting.clock.now().after(TIMEOUT),
            buffer,
            cancelled: false,
            expected: bad.then_some(Error::Media),
            abandoned: false,
        };
        if self.stack.submit(&request, &spans) == Submit::Full {
            self.free_places.push(place);
            self.free.extend(buffer.inspect(|buffer| self.buffers[*buffer].write(0, &POISONED)));
            return;
        }
        if request.op.writes() {
            self.oracle.begins(&request, stamp);
        }
        self.seen.requests += 1;
        self.asked[place] = Some(asked);
        self.spans[place] = spans;
    }

    fn fill(&self, spans: &[Span], stamp: u64, request: &Request) {
        let mut bytes = Vec::with_capacity(BUFFER_BYTES);
        for lba in range(request) {
            for _ in 0..BLOCK / 16 {
                bytes.extend_from_slice(&stamp.to_ne_bytes());
                bytes.extend_from_slice(&(lba as u64).to_ne_bytes());
            }
        }
        let mut from = 0;
        for span in spans {
            self.setting.arena.region().write(span.at as usize, &bytes[from..from + span.bytes as usize]);
            from += span.bytes as usize;
        }
    }

    fn ended(&mut self, completion: Completion) {
        let place = (completion.tag.0 & 0xffff) as usize;
        let asked = self.asked[place].filter(|asked| asked.request.tag == completion.tag && !asked.abandoned);
        let mut asked = asked.unwrap_or_else(|| panic!("{completion:?} is reported, and nobody is owed it"));
        self.check_status(&asked, completion.status);
        self.seen.count(completion.status);
        if completion.status.is_ok() {
            self.check_data(&asked, place);
        }
        asked.abandoned = match completion.status {
            // Each of them is named when its memory is free.
            Err(Error::Timeout) => true,
            Err(Error::Gone) => self.stack.owns_buffer(completion.tag),
            _ => false,
        };
        self.asked[place] = Some(asked);
        if !asked.abandoned {
            self.over(place, completion.status.is_ok());
        }
    }

    fn take_released(&mut self) {
        while let Some(tag) = self.stack.take_released() {
            let place = (tag.0 & 0xffff) as usize;
            let asked = self.asked[place].filter(|asked| asked.request.tag == tag);
            assert!(asked.is_some_and(|asked| asked.abandoned), "{tag:?} is released, and was not abandoned: {asked:?}");
            self.seen.released += 1;
            self.over(place, false);
        }
    }

    /// The device has nothing of it any more.
    fn over(&mut self, place: usize, done: bool) {
        let asked = self.asked[place].take().expect("looked up before");
        if asked.request.op.writes() {
            self.oracle.ends(&asked, done);
            if self.oracle.is_long(&asked.request) {
                let oldest = self.asked.iter().flatten().map(|asked| asked.moment).min().unwrap_or(self.oracle.moment);
                self.oracle.forget(&asked.request, oldest);
            }
        }
        self.free_places.push(place);
        if let Some(buffer) = asked.buffer {
            self.check_around(place, buffer);
            self.buffers[buffer].write(0, &POISONED);
            let at = self.random.usize(..=self.free.len());
            self.free.insert(at, buffer);
        }
    }

    fn check_status(&self, asked: &Asked, status: Status) {
        let may = match status {
            Ok(()) => asked.expected.is_none(),
            Err(Error::Media) => asked.expected == Some(Error::Media),
            Err(Error::Gone) => self.setting.controller.is_gone(),
            Err(Error::Timeout) => asked.deadline <= self.setting.clock.now(),
            Err(Error::Cancelled) => asked.cancelled,
            // The queue was reset for another request; or the controller says "not now" too often.
            Err(Error::Reset | Error::NoResources) => true,
            _ => false,
        };
        assert!(may, "{asked:?} ended with {status:?}");
    }

    fn check_data(&mut self, asked: &Asked, place: usize) {
        let mut bytes = vec![0; asked.request.blocks as usize * BLOCK];
        let mut from = 0;
        for span in &self.spans[place] {
            self.setting.arena.region().read(span.at as usize, &mut bytes[from..from + span.bytes as usize]);
            from += span.bytes as usize;
        }
        if from == 0 {
            return;
        }
        for (bytes, block) in bytes.chunks_exact(BLOCK).zip(range(&asked.request)) {
            let stamp = stamp(bytes, block as u64);
            self.seen.blocks_compared += 1;
            match (asked.request.op, stamp) {
                (Op::Write, stamp) => assert_eq!(stamp, Some(asked.stamp), "somebody wrote into the memory of {asked:?}"),
                (_, Some(stamp)) if self.oracle.may_be_read(block, stamp, asked.moment) => {}
                (_, stamp) => panic!("block {block} reads as {stamp:?}; it may be {:?}; {asked:?}", self.oracle.blocks[block]),
            }
        }
    }

    /// What of a buffer was not named is as it was.
    fn check_around(&mut self, place: usize, buffer: usize) {
        if self.random.u8(..8) > 0 {
            return;
        }
        for span in &self.spans[place] {
            self.setting.arena.region().write(span.at as usize, &POISONED[..span.bytes as usize]);
        }
        self.assert_poisoned(buffer);
    }

    /// Memory that nobody has is not touched.
    fn check_poison(&mut self) {
        if self.random.u8(..64) == 0 && !self.free.is_empty() {
            let at = self.random.usize(..self.free.len());
            self.assert_poisoned(self.free[at]);
        }
    }

    fn assert_poisoned(&self, buffer: usize) {
        let mut bytes = [0; POISONED.len()];
        self.buffers[buffer].read(0, &mut bytes);
        assert!(bytes == POISONED, "the device wrote into memory that nobody gave it");
    }
}

/// The stamp, if all of the block is of one write to this place; 0 for zeroes.
fn stamp(bytes: &[u8], lba: u64) -> Option<u64> {
    let whole = bytes.chunks_exact(16).all(|word| word == &bytes[..16]);
    let [stamp, place] = [0, 8].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight")));
    (whole && (place == lba || (stamp == 0 && place == 0))).then_some(stamp)
}
