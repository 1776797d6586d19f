//! Compares the durability state with a slow oracle that knows only the history of requests and completions.

use std::collections::HashSet;
use std::time::Duration;

use block::driver::MemoryDevice;
use block::{Arena, Completion, Lba, Op, Queue, Request, Submit, Tag};

use super::*;
use crate::device::clock::VirtualClock;
use crate::device::model::fixed::Reservations;
use crate::device::model::{ReservationModel, TimedQueue};

const SECTOR: usize = 512;
const BLOCK: usize = 1024;
const BLOCKS: u64 = 4;

/// Random latencies, so that requests overtake each other.
struct Chance(fastrand::Rng);

impl ReservationModel for Chance {
    fn end(&mut self, now: block::Time, _: &Request) -> block::Time {
        now.after(Duration::from_nanos(self.0.u64(1..1000)))
    }
}

/// One event of the history, numbered by position.
#[derive(Clone, Copy, Debug)]
struct Line {
    request: Request,
    /// The value of every byte of the write.
    value: u8,
    begun: usize,
    ended: Option<usize>,
}

struct Bed {
    queue: VolatileQueue<TimedQueue<block::driver::memory::MemoryQueue, Reservations<Chance>, crate::device::clock::Virtual>>,
    device: MemoryDevice,
    arena: Arena,
    history: Vec<Line>,
    moment: usize,
    volatile: bool,
}

impl Bed {
    fn new(seed: u64, volatile: bool) -> Bed {
        let device = MemoryDevice::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("memory");
        let model = TimedQueue::simulated(device.open_queue(4), Chance(fastrand::Rng::with_seed(seed)), &VirtualClock::default());
        let medium = Medium::new(vec![0; BLOCKS as usize * BLOCK], SECTOR);
        let mut queue = VolatileQueue::new(model, &medium, volatile);
        let arena = Arena::private(64 << 10).expect("memory");
        queue.register(&arena).expect("registered");
        Bed { queue, device, arena, history: Vec::new(), moment: 0, volatile }
    }

    /// The memory of a request is that of its slot, so it is stable while the request is in flight.
    fn submit(&mut self, mut request: Request, value: u8) {
        let line = self.history.len();
        request.tag = Tag(line as u64);
        let bytes = request.blocks as usize * BLOCK;
        let at = line % 8 * 8192;
        self.arena.region().fill(at..at + bytes, value);
        let spans = [self.arena.span(at, bytes as u32)];
        if self.queue.submit(&request, if request.op.has_data() { &spans } else { &[] }) == Submit::Queued {
            self.moment += 1;
            self.history.push(Line { request, value, begun: self.moment, ended: None });
        }
    }

    fn step(&mut self) -> bool {
        let mut one = [Completion::EMPTY; 1];
        if self.queue.poll(&mut one) == 0 {
            self.queue.wait(Duration::from_secs(1));
            return self.queue.in_flight() > 0;
        }
        self.moment += 1;
        self.history[one[0].tag.0 as usize].ended = Some(self.moment);
        true
    }

    /// Returns the values that a sector may have after a power cut now.
    fn legal(&self, sector: usize) -> HashSet<u8> {
        let block = (sector * SECTOR / BLOCK) as u64;
        let touches = |line: &&Line| line.request.lba.0 <= block && block < line.request.lba.0 + u64::from(line.request.blocks);
        let writes: Vec<&Line> = self.history.iter().filter(|line| line.request.op.writes()).filter(touches).collect();
        // A write is durable by FUA, or by a flush submitted after its completion.
        let durable = |line: &Line| {
            let flushed = |flush: &Line| flush.request.op == Op::Flush && flush.ended.is_some() && line.ended < Some(flush.begun);
            line.ended.is_some() && (line.request.fua || !self.volatile || self.history.iter().any(flushed))
        };
        // A durable write that completed later replaces it.
        let replaced = |line: &Line| {
            let by = |other: &&Line| other.request.op != Op::Discard && durable(other) && line.ended.is_some() && other.ended > line.ended;
            writes.iter().any(by)
        };
        let mut legal: HashSet<u8> = writes.iter().filter(|line| !replaced(line)).map(|line| line.value).collect();
        if !writes.iter().any(|line| line.request.op != Op::Discard && durable(line)) {
            legal.insert(0);
        }
        legal
    }

    fn check(&self, medium: &[u8]) {
        for (sector, bytes) in medium.chunks(SECTOR).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "sector {sector} is torn within");
            let legal = self.legal(sector);
            assert!(legal.contains(&bytes[0]), "sector {sector} has {}, not one of {legal:?}: {:#?}", bytes[0], self.history);
        }
    }
}

/// Creates a random history of random length.
fn bed(seed: u64, requests: usize) -> Bed {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bed = Bed::new(seed, random.u8(..4) > 0);
    for value in 1..=requests as u8 {
        let blocks = random.u32(1..=2);
        let lba = Lba(random.u64(..=BLOCKS - u64::from(blocks)));
        match random.u8(..16) {
            0..3 => bed.submit(Request::flush(Tag(0)), 0),
            3 => bed.submit(Request::discard(Tag(0), lba, blocks), 0),
            4 => bed.submit(Request::write_zeroes(Tag(0), lba, blocks), 0),
            5 | 6 => bed.submit(Request::write_fua(Tag(0), lba, blocks), value),
            _ => bed.submit(Request::write(Tag(0), lba, blocks), value),
        }
        for _ in 0..random.u8(..4) {
            bed.step();
        }
    }
    bed
}

#[test]
fn a_loss_of_power_leaves_what_the_history_allows() {
    for seed in 0..2000 {
        let bed = bed(seed, 1 + seed as usize % 12);
        for cut in 0..8 {
            bed.check(&bed.queue.medium().power_cut(cut));
        }
    }
}

#[test]
fn every_cut_is_every_legal_medium_once_and_chance_finds_them() {
    for seed in 0..150 {
        let bed = bed(seed, 5);
        let every = bed.queue.medium().all_power_cuts();
        let legal: u64 = (0..BLOCKS as usize * BLOCK / SECTOR).map(|sector| bed.legal(sector).len() as u64).product();
        let count = every.media().expect("few");
        assert_eq!(count, legal, "{:#?}", bed.history);
        if count > 256 {
            continue;
        }
        let media: HashSet<Vec<u8>> = every.collect();
        assert_eq!(media.len() as u64, count, "each once");
        media.iter().for_each(|medium| bed.check(medium));
        let found: HashSet<Vec<u8>> = (0..100 + count).map(|cut| bed.queue.medium().power_cut(cut)).collect();
        assert!(found.is_subset(&media), "chance finds nothing else");
        assert!(count > 4 || found.len() as u64 == count, "{} of {count} come up", found.len());
    }
}

#[test]
fn with_everything_flushed_the_medium_is_what_reads_see() {
    for seed in 0..300 {
        let mut bed = bed(seed, 10);
        if bed.history.iter().any(|line| line.request.op == Op::Discard) {
            continue;
        }
        while bed.step() {}
        bed.submit(Request::flush(Tag(0)), 0);
        while bed.step() {}
        let mut seen = vec![0; BLOCKS as usize * BLOCK];
        bed.device.region().read(0, &mut seen);
        assert_eq!(bed.queue.medium().pending(), 0);
        assert_eq!(bed.queue.medium().all_power_cuts().media(), Some(1));
        assert_eq!(bed.queue.medium().power_cut(seed), seen);
    }
}

#[test]
fn a_write_that_was_given_up_may_show_until_it_is_replaced() {
    let mut bed = Bed::new(1, true);
    bed.submit(Request::write(Tag(0), Lba(0), 1), 7);
    bed.queue.reset().expect("a model obeys");
    bed.history.clear();
    let first = |bed: &Bed| -> HashSet<u8> { (0..100).map(|seed| bed.queue.medium().power_cut(seed)[0]).collect() };
    let settle = |bed: &mut Bed, request, value| {
        bed.submit(request, value);
        while bed.step() {}
    };
    settle(&mut bed, Request::flush(Tag(0)), 0);
    assert_eq!(first(&bed), HashSet::from([0, 7]));
    settle(&mut bed, Request::write(Tag(0), Lba(0), 1), 8);
    assert_eq!(first(&bed), HashSet::from([0, 7, 8]));
    settle(&mut bed, Request::flush(Tag(0)), 0);
    assert_eq!(first(&bed), HashSet::from([8]));
    assert_eq!(bed.queue.medium().pending(), 0);
}
