//! Random mixes of requests, cancels, resets and faults. Each tag completes exactly once, with the status and the data of a
//! sequential
//! execution.
//!
//! The oracle executes requests when they are reported. That is valid because requests with common blocks are reported in the order
//! of submission, which the test checks too.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::{Options, Scheduler, open_with_clock};
use super::rogue::Rogue;
use crate::buffer::{Arena, Span, UNIT_BYTES};
use crate::clock::Clock;
use crate::error::Error;
use crate::queue::{Queue, Submit};
use crate::request::{Class, Completion, Op, Request, Status, Urgency};
use crate::units::{Lba, Tag};

const BLOCKS: u64 = 64;
const DEPTH: usize = 24;

pub(super) fn conflict(one: &Request, other: &Request) -> bool {
    let (one_end, other_end) = (one.lba.0 + u64::from(one.blocks), other.lba.0 + u64::from(other.blocks));
    one.lba.0 < other_end && other.lba.0 < one_end && (one.op.writes() || other.op.writes())
}

struct Asked {
    request: Request,
    spans: Vec<Span>,
    content: Vec<u8>,
    number: u64,
    cancelled: bool,
    /// A reset has failed since its submission: it may remain unexecuted.
    lost: bool,
    /// For a flush: the number of writes that had been reported before.
    covers: u64,
}

struct Mix {
    random: fastrand::Rng,
    queue: Box<dyn Queue>,
    device: Rogue,
    arena: Arena,
    oracle: Vec<u8>,
    asked: BTreeMap<u64, Asked>,
    /// Memory that no request uses, in units.
    free: Vec<usize>,
    number: u64,
    gone: bool,
    ended: u64,
}

fn options(random: &mut fastrand::Rng, scheduler: Scheduler) -> Options {
    let mut options = Options::of(scheduler);
    options.depth = u32::try_from(DEPTH).expect("few");
    options.dispatch_depth = Some(random.u32(1..8));
    options.classes.background_in_flight_max = random.u32(..3);
    options.classes.foreground_linger = Duration::from_micros(random.u64(..5));
    if random.bool() {
        options.classes.shares[1].requests = super::super::Rate::per_second(random.u64(1_000_000..10_000_000));
        options.classes.shares[1].bytes = super::super::Rate::per_second(random.u64(1..1_000_000_000));
    }
    options
}

impl Mix {
    fn new(seed: u64, scheduler: Scheduler) -> Mix {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = options(&mut random, scheduler);
        let (transfer, segments) = (random.u32(8..40) * 512, random.u16(4..12));
        let device = Rogue::new(random.u64(..), BLOCKS, 16, |geometry| {
            geometry.transfer_bytes_max = transfer;
            geometry.segments_max = segments;
        });
        {
            let mut inner = device.look();
            inner.ends_at_most = random.bool().then_some(3);
            inner.full_once_in = [0, 5][random.usize(..2)];
            inner.allowed = options.dispatch_depth.expect("given");
            inner.bad_blocks = (0..random.usize(..4)).map(|_| random.u64(..BLOCKS)).collect();
        }
        let arena = Arena::private((DEPTH + 1) * 2 * UNIT_BYTES).expect("memory");
        let mut queue = open_with_clock(device.clone(), &options, device.clock());
        queue.register(&arena).expect("registered");
        let oracle = vec![0; usize::try_from(BLOCKS * 512).expect("small")];
        let free = (0..=DEPTH).collect();
        Mix { random, queue, device, arena, oracle, asked: BTreeMap::new(), free, number: 0, gone: false, ended: 0 }
    }

    fn request(&mut self) -> Request {
        let (tag, lba, blocks) = (Tag(self.number), Lba(self.random.u64(..BLOCKS)), self.random.u32(1..7));
        let blocks = if self.random.u8(..50) == 0 { blocks } else { blocks.min(u32::try_from(BLOCKS - lba.0).expect("few")) };
        let mut request = match self.random.u8(..16) {
            0 => Request::flush(tag),
            1 => Request::discard(tag, lba, blocks),
            2 => Request::write_zeroes(tag, lba, blocks),
            3 => Request::write_fua(tag, lba, blocks),
            4..10 => Request::write(tag, lba, blocks),
            _ => Request::read(tag, lba, blocks),
        };
        request.class = Class(self.random.u8(..3));
        request.urgency = [Urgency::Urgent, Urgency::Normal, Urgency::Batch][self.random.usize(..3)];
        request
    }

    /// Splits the unit's two pages into pieces: adjacent, or with gaps between them.
    fn spans(&mut self, request: &Request, unit: usize) -> Vec<Span> {
        let (mut at, mut left, mut spans) = (unit * 2 * UNIT_BYTES, request.blocks * 512, Vec::new());
        while request.op.has_data() && left > 0 {
            let bytes = if spans.len() == 3 { left } else { (self.random.u32(1..=4) * 512).min(left) };
            spans.push(self.arena.span(at, bytes));
            at += bytes as usize + self.random.usize(..2) * 512;
            left -= bytes;
        }
        spans
    }

    fn submit(&mut self) {
        let Some(unit) = self.free.pop() else { return };
        let request = self.request();
        let spans = self.spans(&request, unit);
        let content: Vec<u8> = spans.iter().flat_map(|span| vec![self.random.u8(..); span.bytes as usize]).collect();
        self.copy(&spans, Some(&content));
        let full = self.queue.in_flight() >= self.queue.depth();
        match self.queue.submit(&request, &spans) {
            Submit::Full => {
                assert!(full || self.queue.in_flight() > 0, "nothing is in flight, and still no place");
                self.free.push(unit);
            }
            Submit::Queued => {
                assert!(!full);
                let covers = self.device.look().written;
                let asked = Asked { request, spans, content, number: unit as u64, cancelled: false, lost: self.gone, covers };
                self.asked.insert(self.number, asked);
                self.number += 1;
            }
        }
    }

    /// Overwrites pieces of memory with `content`, if given, and returns their bytes.
    fn copy(&self, spans: &[Span], content: Option<&[u8]>) -> Vec<u8> {
        let (region, mut bytes) = (self.arena.region(), Vec::new());
        for span in spans {
            let (at, from) = (usize::try_from(span.at).expect("small"), bytes.len());
            let mut piece = vec![0; span.bytes as usize];
            if let Some(content) = content {
                region.write(at, &content[from..from + piece.len()]);
            }
            region.read(at, &mut piece);
            bytes.extend(piece);
        }
        bytes
    }

    fn poll(&mut self) {
        let mut ended = [Completion::EMPTY; 8];
        let room = self.random.usize(..=8);
        let count = self.queue.poll(&mut ended[..room]);
        for completion in &ended[..count] {
            self.report(completion);
        }
        assert_eq!(self.queue.in_flight() as usize, self.asked.len());
    }

    fn report(&mut self, completion: &Completion) {
        let asked = self.asked.remove(&completion.tag.0).unwrap_or_else(|| panic!("nobody waits for {completion:?}"));
        self.free.push(usize::try_from(asked.number).expect("small"));
        self.ended += 1;
        self.check_status(&asked, completion.status);
        if matches!(completion.status, Ok(()) | Err(Error::Media)) {
            let earlier = self.asked.range(..completion.tag.0).find(|(_, other)| conflict(&other.request, &asked.request));
            assert!(earlier.is_none(), "{:?} has overtaken {:?}", asked.request, earlier.map(|(_, other)| other.request));
        }
        if completion.status.is_ok() {
            self.check_data(&asked);
        }
    }

    fn check_status(&self, asked: &Asked, status: Status) {
        let (request, first) = (&asked.request, asked.request.lba.0);
        let bad = self.device.look().bad_blocks.range(first..first + u64::from(request.blocks)).next().is_some();
        let expected = match request.op {
            _ if first + u64::from(request.blocks) > BLOCKS => Err(Error::OutOfRange),
            _ if bad => Err(Error::Media),
            _ => Ok(()),
        };
        let excused = match status {
            Err(Error::Cancelled) => asked.cancelled,
            Err(Error::Gone) => asked.lost,
            _ => false,
        };
        assert!(status == expected || excused, "{request:?} ended as {status:?}, not as {expected:?}");
    }

    fn check_data(&mut self, asked: &Asked) {
        let at = usize::try_from(asked.request.lba.0 * 512).expect("small");
        let blocks = at..at + asked.request.blocks as usize * 512;
        match asked.request.op {
            Op::Write => self.oracle[blocks].copy_from_slice(&asked.content),
            Op::WriteZeroes => self.oracle[blocks].fill(0),
            Op::Read => assert!(self.copy(&asked.spans, None) == self.oracle[blocks], "{:?} reads something else", asked.request),
            Op::Flush => assert!(self.device.look().safe >= asked.covers, "a flush that covers less than it shall"),
            Op::Discard => {}
        }
    }

    fn cancel(&mut self) {
        let tags: Vec<u64> = self.asked.keys().copied().collect();
        if !tags.is_empty() {
            let tag = tags[self.random.usize(..tags.len())];
            self.asked.get_mut(&tag).expect("asked").cancelled = true;
            self.queue.cancel(Tag(tag));
        }
    }

    fn reset(&mut self) {
        let fails = self.random.bool();
        self.device.look().reset_fails = fails;
        assert_eq!(self.queue.reset().is_err(), fails);
        self.gone = fails;
        if fails {
            self.asked.values_mut().for_each(|asked| asked.lost = true);
            return;
        }
        for (_, asked) in std::mem::take(&mut self.asked) {
            self.relearn(&asked.request);
            self.free.push(usize::try_from(asked.number).expect("small"));
        }
        assert_eq!(self.queue.in_flight(), 0);
    }

    /// Reads blocks back from the device: an aborted request may or may not have been executed.
    fn relearn(&mut self, request: &Request) {
        let end = (request.lba.0 + u64::from(request.blocks)).min(BLOCKS);
        let byte = |block: u64| usize::try_from(block * 512).expect("small");
        self.device.look().read(byte(request.lba.0)..byte(end), &mut self.oracle);
    }

    fn step(&mut self) {
        self.device.clock().advance(Duration::from_nanos(self.random.u64(..500)));
        match self.random.u16(..1000) {
            0..600 => self.submit(),
            600..650 => self.queue.ring(),
            650..680 => self.cancel(),
            680..690 => {
                let _ = self.queue.arm();
            }
            690..692 => self.reset(),
            692..700 => self.queue.wait(Duration::from_micros(self.random.u64(..3))),
            _ => self.poll(),
        }
    }

    fn drain(&mut self) {
        let begin = self.device.clock().now();
        while !self.asked.is_empty() {
            self.queue.wait(Duration::from_millis(1));
            self.poll();
            assert!(self.device.clock().now().since(begin) < Duration::from_secs(100_000), "it never ends");
        }
        if self.gone {
            self.device.look().reset_fails = false;
            self.queue.reset().expect("reset");
        }
        let device = self.device.look();
        assert_eq!((device.in_flight(), self.queue.in_flight()), (0, 0));
    }
}

fn run(scheduler: Scheduler) {
    let steps = if cfg!(miri) { 8 } else { 1_500 };
    let base = u64::from(scheduler.dispatch_depth()) << 32;
    for seed in base..base + super::rounds(20) {
        // The output appears when the test fails.
        println!("{} seed {seed}", scheduler.name());
        let mut mix = Mix::new(seed, scheduler);
        (0..steps).for_each(|_| mix.step());
        mix.drain();
        assert!(cfg!(miri) || mix.ended > 100, "too little has happened");
    }
}

#[test]
fn classes_do_what_was_asked_for() {
    run(Scheduler::Classes);
}
