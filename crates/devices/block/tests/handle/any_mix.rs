//! Random mixes of calls on a faulty device. Every ticket comes back exactly once, with the right status and data, and memory that
//! the
//! device still holds is not reused. SEED replays a run, FULL=1 makes many.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use block::handle::{Data, Done, Full, Io, Released, Selector, Ticket};
use block::tracked::{Timeouts, Tracked};
use block::{Arena, Buf, Error, Geometry, Handle, Lba, Op, Params, SharedHandle, SharedQueue};

use crate::unruly::{BLOCK, GRACE, Manners, RESET_AFTER, TIMEOUT, Ticking, Unruly};

const BLOCKS: u64 = 128;
const ARENA_BYTES: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(1);

/// Both kinds of handles; of the shared kind there are two.
enum AnyHandle {
    Dedicated(Handle<Unruly, Ticking>),
    Shared(Arc<SharedQueue<Unruly, Ticking>>, [SharedHandle<Unruly, Ticking>; 2]),
}

impl AnyHandle {
    fn submit(&mut self, at: usize, io: Io) -> Result<Ticket, Full> {
        match self {
            AnyHandle::Dedicated(handle) => handle.submit(io),
            AnyHandle::Shared(_, handles) => handles[at].submit(io),
        }
    }
    fn ring(&mut self, at: usize) {
        match self {
            AnyHandle::Dedicated(handle) => handle.ring(),
            AnyHandle::Shared(_, handles) => handles[at].ring(),
        }
    }
    fn wait(&mut self, at: usize, at_most: Duration) -> Option<Done> {
        match self {
            AnyHandle::Dedicated(handle) => handle.wait(at_most),
            AnyHandle::Shared(_, handles) => handles[at].wait(at_most),
        }
    }
    fn wait_for(&mut self, at: usize, ticket: Ticket, at_most: Duration) -> Option<Done> {
        match self {
            AnyHandle::Dedicated(handle) => handle.wait_for(ticket, at_most),
            AnyHandle::Shared(_, handles) => handles[at].wait_for(ticket, at_most),
        }
    }
    fn run(&mut self, at: usize, io: Io) -> Done {
        match self {
            AnyHandle::Dedicated(handle) => handle.run(io),
            AnyHandle::Shared(_, handles) => handles[at].run(io),
        }
    }
    fn cancel(&mut self, at: usize, ticket: Ticket) -> bool {
        match self {
            AnyHandle::Dedicated(handle) => handle.cancel(ticket),
            AnyHandle::Shared(_, handles) => handles[at].cancel(ticket),
        }
    }
    fn drain(&mut self, at: usize) -> Result<(), Error> {
        match self {
            AnyHandle::Dedicated(handle) => handle.drain(LONG),
            AnyHandle::Shared(_, handles) => handles[at].drain(LONG),
        }
    }
    fn reset(&mut self) -> Result<(), Error> {
        match self {
            AnyHandle::Dedicated(handle) => handle.reset(),
            AnyHandle::Shared(queue, _) => queue.reset(),
        }
    }
    fn take_released(&mut self, at: usize) -> Option<Released> {
        match self {
            AnyHandle::Dedicated(handle) => handle.take_released(),
            AnyHandle::Shared(_, handles) => handles[at].take_released(),
        }
    }
    fn handles(&self) -> usize {
        if matches!(self, AnyHandle::Shared(..)) { 2 } else { 1 }
    }
}

/// The oracle's knowledge of a request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    op: Op,
    lba: u64,
    blocks: u64,
    stamp: u8,
    cancelled: bool,
    cut: bool,
    /// The address of memory that the test manages itself.
    mine: Option<u64>,
}

struct Test {
    front: AnyHandle,
    clock: Ticking,
    arena: Arena,
    random: fastrand::Rng,
    /// The content of each block; `None`: unknown from now on.
    model: Vec<Option<u8>>,
    /// Whether a request uses the block.
    busy: Vec<bool>,
    asked: HashMap<(usize, Ticket), Asked>,
    /// Memory of the test that the device still holds.
    held: HashMap<(usize, Ticket), Buf>,
    mine: HashMap<u64, Buf>,
    /// Whether the device can always be reset.
    comes_back: bool,
    completed: u64,
}

fn open(seed: u64, random: &mut fastrand::Rng) -> (AnyHandle, Ticking, Arena, bool) {
    let manners = match random.u32(..4) {
        0 => Manners { fails: 0, slow: 0, lost: 0, hears: 1000, goes: 0 },
        1 => Manners { fails: 100, slow: 50, lost: 10, hears: 500, goes: 0 },
        2 => Manners { fails: 30, slow: 200, lost: 100, hears: 300, goes: 0 },
        _ => Manners { fails: 50, slow: 100, lost: 50, hears: 500, goes: 300 },
    };
    let geometry = Geometry { transfer_bytes_max: 2048, segments_max: 3, memory_align: 512, ..Geometry::plain(BLOCK as u32, BLOCKS) };
    let (clock, blocks, depth) = (Ticking::default(), Unruly::blocks(BLOCKS), 1 << random.u32(..4));
    let timeouts = Timeouts { timeout: Some(TIMEOUT), cancel_grace: GRACE, reset_after: Some(RESET_AFTER) };
    let queue = |blocks: &_, seed| {
        Tracked::with_clock(Unruly::new(blocks, geometry.clone(), depth, &clock, manners, seed), timeouts, clock.clone())
    };
    let params = Params { timeout: Some(TIMEOUT), requests_max: random.u32(1..12), ..Params::default() };
    let arena = Arena::private(ARENA_BYTES).expect("memory");
    let front = if random.bool() {
        let queues = (0..random.u64(1..=2)).map(|n| queue(&blocks, seed + n)).collect();
        let mut handle = Handle::over(queues, Selector::RoundRobin, params).expect("a handle");
        handle.register(&arena).expect("registered");
        AnyHandle::Dedicated(handle)
    } else {
        let shared = SharedQueue::over(queue(&blocks, seed)).expect("a queue");
        shared.register(&arena).expect("registered");
        let handles = [0, 1].map(|_| SharedHandle::new(&shared, params.clone()).expect("a handle"));
        AnyHandle::Shared(shared, handles)
    };
    (front, clock, arena, manners.goes == 0)
}

impl Test {
    fn new(seed: u64) -> Test {
        let mut random = fastrand::Rng::with_seed(seed);
        let (front, clock, arena, comes_back) = open(seed, &mut random);
        Test {
            front,
            clock,
            arena,
            random,
            model: vec![Some(0); BLOCKS as usize],
            busy: vec![false; BLOCKS as usize],
            asked: HashMap::new(),
            held: HashMap::new(),
            mine: HashMap::new(),
            comes_back,
            completed: 0,
        }
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step();
        }
        for at in 0..self.front.handles() {
            self.front.drain(at).expect("every request has a deadline");
            while let Some(done) = self.front.wait(at, Duration::ZERO) {
                self.check(at, done);
            }
        }
        assert!(self.asked.is_empty(), "never came back: {:?}", self.asked);
    }

    fn step(&mut self) {
        let at = self.random.usize(..self.front.handles());
        match self.random.u32(..100) {
            0..40 => self.submit(at),
            40..50 => self.front.ring(at),
            50..70 => {
                let micros = self.random.u64(..60);
                if let Some(done) = self.front.wait(at, Duration::from_micros(micros)) {
                    self.check(at, done);
                }
            }
            70..78 => self.wait_for(at),
            78..86 => self.cancel(at),
            86..93 => self.synchronous(at),
            93..96 => self.clock.pass(Duration::from_micros(100)),
            96 => self.front.drain(at).expect("every request has a deadline"),
            97 if self.random.u32(..4) == 0 => assert!(self.front.reset().is_ok() || !self.comes_back),
            _ => self.take_released(at),
        }
    }

    /// Returns a request for blocks that no other request uses.
    fn request(&mut self) -> Option<(Io, Asked)> {
        let (lba, blocks) = (self.random.u64(..BLOCKS), self.random.u64(1..20));
        let range = lba as usize..(lba + blocks).min(BLOCKS) as usize;
        let blocks = range.len() as u64;
        if range.clone().any(|block| self.busy[block]) {
            return None;
        }
        self.busy[range].fill(true);
        let op = [Op::Read, Op::Write, Op::Read, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush][self.random.usize(..7)];
        let stamp = self.random.u8(1..0xEE);
        let asked = |op, cut| Asked { op, lba, blocks, stamp, cancelled: false, cut, mine: None };
        let bytes = blocks as usize * BLOCK;
        let io = match op {
            Op::WriteZeroes => return Some((Io::write_zeroes(Lba(lba), blocks), asked(op, false))),
            Op::Discard => return Some((Io::discard(Lba(lba), blocks), asked(op, false))),
            Op::Flush => return Some((Io::flush(), asked(op, false))),
            Op::Read | Op::Write => {
                let data = self.data(bytes, stamp);
                let cut = bytes > 2048 || data.len() > 1;
                let mine = if let Data::Span(span) = &data { Some(span.at) } else { None };
                let io = if op == Op::Read { Io::read(Lba(lba), data) } else { Io::write(lba * BLOCK as u64, data) };
                (io.user(self.completed), Asked { mine, ..asked(op, cut) })
            }
        };
        Some(io)
    }

    /// Returns memory of any kind, filled with the stamp.
    fn data(&mut self, bytes: usize, stamp: u8) -> Data {
        let allocate = |bytes| {
            let buf = self.arena.allocate(bytes).expect("room");
            buf.write(0, &vec![stamp; bytes]);
            buf
        };
        match self.random.u32(..3) {
            0 => Data::Buf(allocate(bytes)),
            1 => {
                let buf = allocate(bytes);
                let span = buf.span();
                self.mine.insert(span.at, buf);
                Data::Span(span)
            }
            _ => {
                let first = self.random.usize(..=bytes / BLOCK) * BLOCK;
                Data::Bufs([first, bytes - first].into_iter().filter(|bytes| *bytes > 0).map(allocate).collect())
            }
        }
    }

    fn submit(&mut self, at: usize) {
        let Some((io, asked)) = self.request() else { return };
        match self.front.submit(at, io) {
            Ok(ticket) => assert!(self.asked.insert((at, ticket), asked).is_none(), "a ticket twice"),
            Err(Full(io)) => {
                self.take_mine(&io.into_data());
                self.free(asked);
            }
        }
    }

    fn take_mine(&mut self, data: &Data) -> Option<Buf> {
        match data {
            Data::Span(span) => Some(self.mine.remove(&span.at).expect("ours")),
            _ => None,
        }
    }

    fn free(&mut self, asked: Asked) {
        self.busy[asked.lba as usize..(asked.lba + asked.blocks) as usize].fill(false);
    }

    fn some_ticket(&mut self, at: usize) -> Option<Ticket> {
        let mut tickets: Vec<Ticket> = self.asked.keys().filter(|key| key.0 == at).map(|key| key.1).collect();
        tickets.sort_unstable();
        (!tickets.is_empty()).then(|| tickets[self.random.usize(..tickets.len())])
    }

    fn wait_for(&mut self, at: usize) {
        let Some(ticket) = self.some_ticket(at) else { return };
        let micros = self.random.u64(..400);
        if let Some(done) = self.front.wait_for(at, ticket, Duration::from_micros(micros)) {
            assert_eq!(done.ticket, ticket);
            self.check(at, done);
        }
    }

    fn cancel(&mut self, at: usize) {
        let Some(ticket) = self.some_ticket(at) else { return };
        assert!(self.front.cancel(at, ticket), "it was not given back yet");
        self.asked.get_mut(&(at, ticket)).expect("known").cancelled = true;
    }

    fn synchronous(&mut self, at: usize) {
        let Some((io, asked)) = self.request() else { return };
        let done = self.front.run(at, io);
        if done.ticket == Ticket(u64::MAX) {
            assert_eq!(done.status, Err(Error::NoResources));
            self.take_mine(&done.data);
            return self.free(asked);
        }
        self.asked.insert((at, done.ticket), asked);
        self.check(at, done);
    }

    fn take_released(&mut self, at: usize) {
        while let Some(released) = self.front.take_released(at) {
            let Data::Span(span) = released.data else { panic!("buffers go back by themselves") };
            let buf = self.held.remove(&(at, released.ticket)).expect("held, and once");
            assert_eq!(buf.span(), span);
        }
    }

    /// Compares a completion with its request.
    fn check(&mut self, at: usize, mut done: Done) {
        self.completed += 1;
        let asked = self.asked.remove(&(at, done.ticket)).unwrap_or_else(|| panic!("twice, or invented: {done:?}"));
        assert_eq!(done.op, asked.op);
        match done.status {
            Ok(()) | Err(Error::Media | Error::Timeout) => {}
            Err(Error::Cancelled) => assert!(asked.cancelled, "{done:?}"),
            // The test reset the queue, or the handle did because memory was not released.
            Err(Error::Reset | Error::Gone) => {}
            Err(error) => panic!("{error:?} of {asked:?}"),
        }
        assert!(done.status.is_err() || done.failures().is_empty());
        assert!(done.status.is_ok() || !asked.cut || !done.failures().is_empty(), "{done:?}");
        let bad: Vec<u64> = match (done.status, asked.cut) {
            (Ok(()), _) => Vec::new(),
            (Err(_), false) => (asked.lba..asked.lba + asked.blocks).collect(),
            (Err(_), true) => done.failures().iter().flat_map(|part| part.lba.0..part.lba.0 + u64::from(part.blocks)).collect(),
        };
        let within = |block: &u64| (asked.lba..asked.lba + asked.blocks).contains(block);
        assert!(bad.iter().all(within), "{done:?} of {asked:?}");
        self.check_data(at, &mut done, asked, &bad);
        self.free(asked);
    }

    fn check_data(&mut self, at: usize, done: &mut Done, asked: Asked, bad: &[u64]) {
        let content = match std::mem::take(&mut done.data) {
            Data::None => Vec::new(),
            Data::Buf(buf) => buf.to_vec(),
            Data::Bufs(bufs) => bufs.iter().flat_map(Buf::to_vec).collect(),
            data @ Data::Span(_) => self.take_mine(&data).expect("ours").to_vec(),
            Data::Spans(_) => unreachable!("none is made"),
        };
        if done.held {
            assert!(content.is_empty() && done.status.is_err());
            if let Some(mine) = asked.mine {
                self.held.insert((at, done.ticket), self.mine.remove(&mine).expect("ours"));
            }
        }
        for n in 0..asked.blocks {
            let block = asked.lba + n;
            let (known, is_bad) = (&mut self.model[block as usize], bad.contains(&block));
            match asked.op {
                Op::Write => *known = (!is_bad && known.is_some()).then_some(asked.stamp),
                Op::WriteZeroes => *known = (!is_bad && known.is_some()).then_some(0),
                Op::Read if !is_bad && !done.held => {
                    let found = &content[n as usize * BLOCK..(n as usize + 1) * BLOCK];
                    let Some(expected) = *known else { continue };
                    assert!(found.iter().all(|byte| *byte == expected), "block {block}: {} instead of {expected}, {asked:?}", found[0]);
                }
                Op::Read | Op::Flush | Op::Discard => {}
            }
        }
    }
}

/// Runs a test. Afterwards all memory is free again, unless the device is gone and still holds some.
fn run(seed: u64, steps: u32) -> u64 {
    let mut test = Test::new(seed);
    test.run(steps);
    let Test { front, arena, held, mine, completed, comes_back, .. } = test;
    drop(front);
    drop((held, mine));
    assert!(!comes_back || arena.free_bytes() == ARENA_BYTES, "{} bytes were not given back", ARENA_BYTES - arena.free_bytes());
    completed
}

#[test]
fn every_request_comes_back_once_with_the_right_status_and_data() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    let (runs, steps) = if cfg!(miri) { (4, 40) } else { (if full { 20_000 } else { 150 }, 400) };
    let first = std::env::var("SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = first.map_or(1..=runs, |seed| seed..=seed);
    let mut completed = 0;
    for seed in seeds {
        let run = std::panic::catch_unwind(|| run(seed, steps));
        completed += run.unwrap_or_else(|_| panic!("replay with SEED={seed}"));
    }
    println!("{completed} requests");
}
