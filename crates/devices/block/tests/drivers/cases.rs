//! The test cases. Each takes a device; its name says what must hold.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use block::{Arena, Armed, Buf, Completion, Device, Error, Lba, Op, Queue, QueueOptions, Request, Span, Status, Submit, Tag};
use rustix::event::{PollFd, PollFlags, poll};

/// The time limit of a wait, after which a test counts as hung.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A queue with its own registered arena.
pub struct Bench {
    /// The queue that is under test.
    pub queue: Box<dyn Queue>,
    /// The memory for requests, registered with the queue.
    pub arena: Arena,
    block: usize,
}

impl Bench {
    /// Opens a queue and registers an arena with it.
    pub fn new(device: &dyn Device, options: &QueueOptions) -> Bench {
        let mut queue = device.queue(options).expect("a queue");
        let arena = Arena::private(8 << 20).expect("memory");
        queue.register(&arena).expect("registered");
        let block = queue.geometry().block_bytes as usize;
        Bench { queue, arena, block }
    }

    /// Returns a buffer of this many blocks, filled according to `seed`.
    fn buf(&self, blocks: usize, seed: u64) -> Buf {
        let buf = self.arena.allocate(blocks * self.block).expect("room");
        buf.write(0, &bytes(seed, blocks * self.block));
        buf
    }

    /// Waits for the next completions.
    fn next(&mut self) -> Vec<Completion> {
        let mut ended = [Completion::EMPTY; 64];
        let begin = std::time::Instant::now();
        loop {
            let count = self.queue.poll(&mut ended);
            if count > 0 {
                return ended[..count].to_vec();
            }
            assert!(begin.elapsed() < TIMEOUT, "no answer");
            self.queue.wait(TIMEOUT);
        }
    }

    /// Executes one request and returns its status.
    pub fn run(&mut self, request: Request, data: &[Span]) -> Status {
        assert_eq!(self.queue.submit(&request, data), Submit::Queued);
        let ended = self.next();
        assert_eq!((ended.len(), ended[0].tag), (1, request.tag));
        assert_eq!(self.queue.in_flight(), 0);
        ended[0].status
    }

    fn write(&mut self, lba: u64, buf: &Buf) {
        let blocks = u32::try_from(buf.len() / self.block).expect("few");
        assert_eq!(self.run(Request::write(Tag(1), Lba(lba), blocks), &[buf.span()]), Ok(()));
    }

    fn read(&mut self, lba: u64, blocks: u32) -> Vec<u8> {
        let buf = self.buf(blocks as usize, 0x55);
        assert_eq!(self.run(Request::read(Tag(2), Lba(lba), blocks), &[buf.span()]), Ok(()));
        buf.to_vec()
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn full() -> bool {
    std::env::var("FULL").is_ok_and(|full| full == "1")
}

fn shallow() -> QueueOptions {
    QueueOptions { depth: 16, ..QueueOptions::default() }
}

/// Runs all cases. The output has `name` when one fails.
pub fn all(name: &str, device: &dyn Device, options: &QueueOptions) {
    println!("{name}: {:?}, {options:?}", device.geometry());
    what_was_written_is_read(device, options);
    wrong_requests_are_answered_with_the_reason(device, options);
    pieces_are_put_together_in_order(device, options);
    every_place_is_filled_and_every_tag_comes_back_once(device, options);
    no_wakeup_is_lost(device, options);
    what_is_cancelled_or_reset_ends_once_or_never(device, options);
    a_queue_may_be_dropped_at_any_time(device, options);
    random_requests_do_what_they_do_to_a_vector(device, options);
}

fn what_was_written_is_read(device: &dyn Device, options: &QueueOptions) {
    let mut bench = Bench::new(device, options);
    let last = bench.queue.geometry().blocks - 1;
    let (one, four) = (bench.buf(1, 1), bench.buf(4, 2));
    bench.write(last, &one);
    bench.write(3, &four);
    assert_eq!(bench.read(last, 1), one.to_vec());
    assert_eq!(bench.read(3, 4), four.to_vec());
    assert_eq!(bench.run(Request::write_fua(Tag(3), Lba(4), 1), &[one.span()]), Ok(()));
    assert_eq!(bench.run(Request::flush(Tag(4)), &[]), Ok(()));
    assert_eq!(bench.read(3, 4)[bench.block..2 * bench.block], one.to_vec());
    let large = bench.queue.geometry().transfer_bytes_max as usize / bench.block;
    let large = bench.buf(large.min(bench.queue.geometry().blocks as usize), 3);
    bench.write(0, &large);
    assert_eq!(bench.read(0, (large.len() / bench.block) as u32), large.to_vec());
    for (able, op) in [(device.geometry().discard, Op::Discard), (device.geometry().write_zeroes, Op::WriteZeroes)] {
        bench.write(3, &four);
        let request = Request { op, ..Request::discard(Tag(5), Lba(4), 2) };
        let status = bench.run(request, &[]);
        assert_eq!(status, if able { Ok(()) } else { Err(Error::Unsupported) }, "{op:?}");
        let (found, block) = (bench.read(3, 4), bench.block);
        assert_eq!(found[..block], four.to_vec()[..block], "{op:?} reached too far down");
        assert_eq!(found[3 * block..], four.to_vec()[3 * block..], "{op:?} reached too far up");
        if op == Op::WriteZeroes && able {
            assert!(found[block..3 * block].iter().all(|byte| *byte == 0));
        }
    }
}

fn wrong_requests_are_answered_with_the_reason(device: &dyn Device, options: &QueueOptions) {
    let mut bench = Bench::new(device, options);
    let geometry = bench.queue.geometry().clone();
    let buf = bench.buf(2, 1);
    let span = buf.span();
    let one = u32::try_from(bench.block).expect("small");
    let read = |lba, blocks| Request::read(Tag(9), Lba(lba), blocks);
    assert_eq!(bench.run(read(geometry.blocks, 1), &[span.part(0, one)]), Err(Error::OutOfRange));
    assert_eq!(bench.run(read(geometry.blocks - 1, 2), &[span]), Err(Error::OutOfRange));
    assert_eq!(bench.run(read(u64::MAX, 1), &[span.part(0, one)]), Err(Error::OutOfRange));
    assert_eq!(bench.run(read(0, 0), &[]), Err(Error::OutOfRange));
    assert_eq!(bench.run(read(0, 1), &[span]), Err(Error::Misaligned));
    assert_eq!(bench.run(read(0, 1), &[]), Err(Error::Misaligned));
    if geometry.memory_align > 1 {
        assert_eq!(bench.run(read(0, 1), &[span.part(1, one)]), Err(Error::Misaligned));
    }
    let stranger = Arena::private(1 << 16).expect("memory");
    assert_eq!(bench.run(read(0, 1), &[stranger.span(0, one)]), Err(Error::NotPermitted), "memory nobody registered");
    // The queue still works afterwards.
    bench.write(0, &buf);
    assert_eq!(bench.read(0, 2), buf.to_vec());
}

fn pieces_are_put_together_in_order(device: &dyn Device, options: &QueueOptions) {
    let mut bench = Bench::new(device, options);
    let block = bench.block as u32;
    let most = usize::from(bench.queue.geometry().segments_max).min((bench.queue.geometry().transfer_bytes_max / block) as usize).min(40);
    let whole = bench.buf(2 * most, 7);
    // Every second block, in descending order: no two are adjacent.
    let pieces: Vec<Span> = (0..most as u32).rev().map(|at| whole.span().part(2 * at * block, block)).collect();
    assert_eq!(bench.run(Request::write(Tag(1), Lba(1), most as u32), &pieces), Ok(()));
    let expected: Vec<u8> =
        (0..most).rev().flat_map(|at| whole.to_vec()[2 * at * block as usize..(2 * at + 1) * block as usize].to_vec()).collect();
    assert!(bench.read(1, most as u32) == expected, "pieces are written in their order");
    let back = bench.buf(2 * most, 8);
    let pieces: Vec<Span> = pieces.iter().map(|piece| back.span().part((piece.at - whole.span().at) as u32, block)).collect();
    assert_eq!(bench.run(Request::read(Tag(2), Lba(1), most as u32), &pieces), Ok(()));
    for at in 0..most {
        let range = 2 * at * block as usize..(2 * at + 1) * block as usize;
        assert!(back.to_vec()[range.clone()] == whole.to_vec()[range], "piece {at} is read into its place");
    }
    // Adjacent pieces, and a piece of another arena.
    let other = Arena::private(1 << 16).expect("memory");
    bench.queue.register(&other).expect("registered");
    bench.queue.register(&other).expect("registered again");
    let spans = [whole.span().part(0, block), whole.span().part(block, block), other.span(0, block)];
    assert_eq!(bench.run(Request::read(Tag(3), Lba(1), 3), &spans), Ok(()));
    let mut last = vec![0; block as usize];
    other.region().read(0, &mut last);
    assert!([&whole.to_vec()[..2 * block as usize], &last].concat() == expected[..3 * block as usize]);
}

fn every_place_is_filled_and_every_tag_comes_back_once(device: &dyn Device, options: &QueueOptions) {
    let mut bench = Bench::new(device, options);
    let (depth, blocks) = (bench.queue.depth(), bench.queue.geometry().blocks);
    let bufs: Vec<Buf> = (0..depth).map(|at| bench.buf(1, u64::from(at))).collect();
    let mut tag = 1 << 60;
    for op in [Op::Write, Op::Read, Op::Read, Op::Flush] {
        let mut waiting = HashSet::new();
        for at in 0..depth {
            tag += 0x1_0000_0001;
            let (lba, blocks) = if op == Op::Flush { (0, 0) } else { (u64::from(at) % blocks, 1) };
            let request = Request { op, ..Request::read(Tag(tag), Lba(lba), blocks) };
            let data = [bufs[at as usize].span()];
            assert_eq!(bench.queue.submit(&request, if op.has_data() { &data } else { &[] }), Submit::Queued);
            waiting.insert(tag);
        }
        assert_eq!(bench.queue.submit(&Request::flush(Tag(0)), &[]), Submit::Full);
        assert_eq!(bench.queue.in_flight(), depth);
        bench.queue.ring();
        while !waiting.is_empty() {
            for completion in bench.next() {
                assert_eq!(completion.status, Ok(()), "{op:?}");
                assert!(waiting.remove(&completion.tag.0), "{:?} came twice", completion.tag);
            }
        }
        assert_eq!(bench.queue.in_flight(), 0);
    }
    let mut none = [];
    assert_eq!(bench.queue.poll(&mut none), 0);
}

/// Tests the wait itself, a few hundred times. Another thread could submit requests meanwhile; this test does not.
fn no_wakeup_is_lost(device: &dyn Device, options: &QueueOptions) {
    let mut bench = Bench::new(device, options);
    if bench.queue.event().is_none() {
        return;
    }
    let rounds = if full() { 20_000 } else { 300 };
    let bufs: Vec<Buf> = (0..4).map(|at| bench.buf(1, at)).collect();
    let mut ended = [Completion::EMPTY; 2];
    let mut slept = 0;
    for round in 0..rounds {
        let count = (round % 4 + 1).min(bench.queue.depth() as usize);
        for (at, buf) in bufs.iter().take(count).enumerate() {
            assert_eq!(bench.queue.submit(&Request::read(Tag(at as u64), Lba(at as u64), 1), &[buf.span()]), Submit::Queued);
        }
        bench.queue.ring();
        let mut left = count;
        while left > 0 {
            if bench.queue.arm() == Armed::Waiting {
                let event = bench.queue.event().expect("an event");
                let mut wait = [PollFd::new(&event, PollFlags::IN)];
                let timeout = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
                assert_eq!(poll(&mut wait, Some(&timeout)).expect("polled"), 1, "round {round}: armed, completed, and no event");
                slept += 1;
            }
            left -= bench.queue.poll(&mut ended);
        }
    }
    println!("  slept {slept} times in {rounds} rounds");
}

fn what_is_cancelled_or_reset_ends_once_or_never(device: &dyn Device, options: &QueueOptions) {
    let mut bench = Bench::new(device, options);
    let depth = u64::from(bench.queue.depth());
    let bufs: Vec<Buf> = (0..depth).map(|at| bench.buf(1, at)).collect();
    bench.queue.cancel(Tag(99)); // no such request was submitted
    for round in 0..20 {
        for (tag, buf) in bufs.iter().enumerate() {
            let request = Request::write(Tag(tag as u64), Lba(tag as u64), 1);
            assert_eq!(bench.queue.submit(&request, &[buf.span()]), Submit::Queued);
            if tag % 3 == 0 {
                bench.queue.cancel(Tag(tag as u64));
            }
        }
        if round % 2 == 0 {
            let mut waiting: HashSet<u64> = (0..depth).collect();
            while !waiting.is_empty() {
                for completion in bench.next() {
                    let allowed = completion.status == Ok(()) || (completion.tag.0 % 3 == 0 && completion.status == Err(Error::Cancelled));
                    assert!(allowed, "{completion:?}");
                    assert!(waiting.remove(&completion.tag.0), "{completion:?} came twice");
                }
            }
        } else {
            bench.queue.reset().expect("these end by themselves");
            assert_eq!(bench.queue.in_flight(), 0);
            assert_eq!(bench.queue.poll(&mut [Completion::EMPTY; 64]), 0, "nothing is reported after a reset");
        }
    }
    bench.write(0, &bufs[0]);
    assert!(bench.read(0, 1) == bufs[0].to_vec());
}

fn a_queue_may_be_dropped_at_any_time(device: &dyn Device, options: &QueueOptions) {
    for rung in [false, true] {
        let mut bench = Bench::new(device, options);
        let buf = bench.buf(1, 1);
        for tag in 0..u64::from(bench.queue.depth()) {
            assert_eq!(bench.queue.submit(&Request::read(Tag(tag), Lba(0), 1), &[buf.span()]), Submit::Queued);
        }
        if rung {
            bench.queue.ring();
        }
        drop(bench);
    }
    drop(device.queue(&shallow()).expect("a queue nobody uses"));
}

/// Keeps at most one request in flight for each block: the result of two at a time is undefined.
fn random_requests_do_what_they_do_to_a_vector(device: &dyn Device, options: &QueueOptions) {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let rounds = if full() { 50_000 } else { 1_500 };
    println!("  SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bench = Bench::new(device, options);
    let geometry = bench.queue.geometry().clone();
    let (block, span) = (bench.block, geometry.blocks.min(512) as usize);
    let mut oracle = Oracle { bytes: vec![0; span * block], known: vec![true; span], busy: vec![false; span], block };
    for at in (0..span).step_by(16) {
        let zero = bench.arena.allocate(16.min(span - at) * block).expect("room");
        zero.write(0, &vec![0; zero.len()]);
        bench.write(at as u64, &zero);
    }
    let mut flight: HashMap<u64, (Request, Option<Buf>)> = HashMap::new();
    for tag in 0..rounds {
        let (at, blocks) = (random.usize(..span), random.usize(1..9));
        if at + blocks > span || oracle.busy[at..at + blocks].contains(&true) {
            continue;
        }
        let op = match random.u8(..20) {
            0 => Op::Flush,
            1 if geometry.discard => Op::Discard,
            2 | 3 if geometry.write_zeroes => Op::WriteZeroes,
            4..=11 => Op::Write,
            _ => Op::Read,
        };
        let buf = op.has_data().then(|| bench.buf(blocks, random.u64(..)));
        let (lba, count) = if op == Op::Flush { (0, 0) } else { (at as u64, blocks as u32) };
        let request = Request { op, fua: op == Op::Write && random.bool(), ..Request::read(Tag(tag), Lba(lba), count) };
        let data = buf.as_ref().map_or(Vec::new(), |buf| cut(&mut random, buf.span(), block, usize::from(geometry.segments_max)));
        while bench.queue.submit(&request, &data) == Submit::Full {
            bench.next().iter().for_each(|completion| oracle.end(completion, &mut flight));
        }
        oracle.busy[at..at + request.blocks as usize].fill(true);
        flight.insert(tag, (request, buf));
        if random.u8(..4) == 0 {
            bench.queue.ring();
        }
    }
    while !flight.is_empty() {
        bench.next().iter().for_each(|completion| oracle.end(completion, &mut flight));
    }
}

/// Splits a span into pieces at random.
fn cut(random: &mut fastrand::Rng, span: Span, block: usize, most: usize) -> Vec<Span> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < span.bytes {
        let left = span.bytes - at;
        let some = random.u32(1..=left / block as u32) * block as u32;
        let bytes = if pieces.len() + 1 == most { left } else { some };
        pieces.push(span.part(at, bytes));
        at += bytes;
    }
    pieces
}

struct Oracle {
    bytes: Vec<u8>,
    /// False after a discard: the block has zeroes or its old content.
    known: Vec<bool>,
    busy: Vec<bool>,
    block: usize,
}

impl Oracle {
    fn end(&mut self, completion: &Completion, flight: &mut HashMap<u64, (Request, Option<Buf>)>) {
        let (request, buf) = flight.remove(&completion.tag.0).expect("once");
        assert_eq!(completion.status, Ok(()), "{request:?}");
        let blocks = request.lba.0 as usize..request.lba.0 as usize + request.blocks as usize;
        let range = blocks.start * self.block..blocks.end * self.block;
        match (request.op, buf) {
            (Op::Write, Some(buf)) => self.bytes[range].copy_from_slice(&buf.to_vec()),
            (Op::WriteZeroes, _) => self.bytes[range].fill(0),
            (Op::Read, Some(buf)) => self.check(blocks.clone(), &buf.to_vec()),
            _ => {}
        }
        if request.op.writes() {
            self.known[blocks.clone()].fill(request.op != Op::Discard);
        }
        self.busy[blocks].fill(false);
    }

    fn check(&self, blocks: std::ops::Range<usize>, found: &[u8]) {
        for (block, found) in blocks.zip(found.chunks(self.block)) {
            let as_written = found == &self.bytes[block * self.block..(block + 1) * self.block];
            let as_discarded = || !self.known[block] && found.iter().all(|byte| *byte == 0);
            assert!(as_written || as_discarded(), "block {block} has other bytes than were written");
        }
    }
}
