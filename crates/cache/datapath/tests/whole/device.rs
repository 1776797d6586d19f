//! A device in memory that takes its time and can go wrong.
//!
//! A request is done when it completes, not when it is submitted, and requests complete in any order: memory that the cache
//! uses while the device has it shows as wrong bytes. The clock is virtual; only waiting lets it go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use block::driver::MemoryDevice;
use block::driver::memory::MemoryQueue;
use block::{Arena, Clock, Completion, Error, Geometry, Op, Queue, Request, Span, Submit, Tag, Time};
use parking_lot::Mutex;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Not done.
    Failed(Error),
    /// Half of it done.
    Torn,
    /// Reported as timed out; done later all the same.
    Hung,
    /// A flush that fails, and what was not flushed is gone (any other request: not done).
    Forgot,
}

/// What the device has, and does: shared by its queues and the test.
pub struct State {
    pub now_ns: u64,
    pub latency_ns: u64,
    /// Requests that ended.
    pub requests: u64,
    /// The request of this number goes wrong.
    pub fault: Option<(u64, Fault)>,
    /// Requests that touch these blocks fail.
    pub bad_blocks: std::ops::Range<u64>,
    /// How many requests went wrong.
    pub faults: u64,
    /// What survives a loss of power.
    pub durable: Vec<u8>,
    /// What was written since it was last flushed: first byte, bytes.
    pub unflushed: Vec<(usize, Vec<u8>)>,
    /// Every request as it came: operation, first block, blocks, when.
    pub log: Vec<(Op, u64, u32, u64)>,
    pub rings: u64,
    random: fastrand::Rng,
}

#[derive(Clone)]
pub struct Device {
    pub memory: MemoryDevice,
    pub state: Arc<Mutex<State>>,
}

impl Clock for Device {
    fn now(&self) -> Time {
        Time(self.state.lock().now_ns)
    }
}

impl Device {
    pub fn new(block_bytes: u32, bytes: u64, seed: u64) -> Device {
        let memory = MemoryDevice::new(block_bytes, bytes).expect("memory").with_geometry(|geometry| {
            geometry.volatile_cache = true;
            geometry.transfer_bytes_max = 32 << 10;
            geometry.segments_max = 5;
        });
        let state = State {
            now_ns: 0,
            latency_ns: 1000,
            requests: 0,
            fault: None,
            bad_blocks: 0..0,
            faults: 0,
            durable: vec![0; bytes as usize],
            unflushed: Vec::new(),
            log: Vec::new(),
            rings: 0,
            random: fastrand::Rng::with_seed(seed),
        };
        Device { memory, state: Arc::new(Mutex::new(state)) }
    }

    pub fn queue(&self, depth: u32) -> TestQueue {
        TestQueue {
            device: self.clone(),
            inner: self.memory.open_queue(depth),
            in_flight: BTreeMap::new(),
            kept: BTreeMap::new(),
            released: Vec::new(),
            next: 0,
        }
    }

    /// What may be on it after a loss of power: of what was written since the last flush any sectors, in any order.
    pub fn after_power_cut(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let state = self.state.lock();
        let mut bytes = state.durable.clone();
        let mut sectors: Vec<(usize, &[u8])> = Vec::new();
        for (at, written) in &state.unflushed {
            sectors.extend(written.chunks(512).enumerate().map(|(number, sector)| (at + number * 512, sector)));
        }
        random.shuffle(&mut sectors);
        for (at, sector) in &sectors[..random.usize(0..=sectors.len())] {
            bytes[*at..*at + sector.len()].copy_from_slice(sector);
        }
        bytes
    }

    /// What is on it now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.state.lock().durable.len()];
        self.memory.region().read(0, &mut bytes);
        bytes
    }
}

struct Job {
    request: Request,
    data: Vec<Span>,
    /// The device took the bytes at once; otherwise it takes them when it completes.
    taken: bool,
}

pub struct TestQueue {
    device: Device,
    inner: MemoryQueue,
    /// By when they are due, and in order.
    in_flight: BTreeMap<(u64, u64), Job>,
    /// Hung, until then.
    kept: BTreeMap<(u64, u64), Job>,
    released: Vec<Tag>,
    next: u64,
}

impl TestQueue {
    fn run(&mut self, job: &Job) -> Result<(), Error> {
        assert_eq!(self.inner.submit(&job.request, &job.data), Submit::Queued);
        let mut ended = [Completion::EMPTY];
        assert_eq!(self.inner.poll(&mut ended), 1);
        let mut state = self.device.state.lock();
        let block = u64::from(self.inner.geometry().block_bytes);
        let (at, bytes) = ((job.request.lba.0 * block) as usize, (u64::from(job.request.blocks) * block) as usize);
        match job.request.op {
            Op::Flush => {
                self.device.memory.region().read(0, &mut state.durable);
                state.unflushed.clear();
            }
            Op::Write => {
                let mut written = vec![0; bytes];
                self.device.memory.region().read(at, &mut written);
                if job.request.fua {
                    state.durable[at..at + bytes].copy_from_slice(&written);
                }
                state.unflushed.push((at, written));
            }
            _ => {}
        }
        ended[0].status
    }

    fn end(&mut self, job: Job) -> Completion {
        let tag = job.request.tag;
        let blocks = job.request.lba.0..job.request.lba.0 + u64::from(job.request.blocks);
        let fault = {
            let mut state = self.device.state.lock();
            state.requests += 1;
            let bad = blocks.start < state.bad_blocks.end && blocks.end > state.bad_blocks.start;
            let number = state.requests;
            let fault = state.fault.filter(|(wrong, _)| *wrong == number).map(|(_, fault)| fault);
            let fault = fault.or(bad.then_some(Fault::Failed(Error::Media)));
            state.faults += u64::from(fault.is_some());
            fault
        };
        let status = match fault {
            None if job.taken => Ok(()),
            None => self.run(&job),
            Some(Fault::Failed(error)) => Err(error),
            Some(Fault::Torn) => self.tear(&job),
            Some(Fault::Hung) => {
                let due = self.device.state.lock().now_ns + 50_000;
                self.next += 1;
                self.kept.insert((due, self.next), job);
                Err(Error::Timeout)
            }
            Some(Fault::Forgot) => {
                if job.request.op == Op::Flush {
                    self.device.memory.region().write(0, &self.device.state.lock().durable);
                }
                Err(Error::Media)
            }
        };
        Completion { tag, status }
    }

    fn tear(&mut self, job: &Job) -> Result<(), Error> {
        let block = self.inner.geometry().block_bytes;
        if job.request.op.has_data() && job.request.blocks > 1 && job.data[0].bytes > block {
            let half = Request { blocks: 1, ..job.request };
            let _ = self.run(&Job { request: half, data: vec![job.data[0].part(0, block)], taken: false });
        }
        Err(Error::Media)
    }

    fn let_go(&mut self) {
        let now = self.device.state.lock().now_ns;
        while let Some(entry) = self.kept.first_entry().filter(|entry| entry.key().0 <= now) {
            let job = entry.remove();
            let _ = self.run(&job);
            self.released.push(job.request.tag);
        }
    }
}

impl Queue for TestQueue {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.inner.register(arena)
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight.len() as u32 >= self.depth() {
            return Submit::Full;
        }
        assert_eq!(self.geometry().check(request, data), Ok(()), "{request:?}");
        // A read that hangs goes into memory nobody looks at: it harms nothing.
        let kept = self.kept.values().filter(|job| job.request.op != Op::Read);
        for job in self.in_flight.values().chain(kept) {
            let other = job.request;
            let apart = request.lba.0 + u64::from(request.blocks) <= other.lba.0 || other.lba.0 + u64::from(other.blocks) <= request.lba.0;
            let writes = request.op == Op::Write || other.op == Op::Write;
            assert!(apart || !writes || request.blocks == 0, "{request:?} races with {other:?}");
        }
        let mut state = self.device.state.lock();
        let latency_ns = state.latency_ns;
        let due = state.now_ns + latency_ns / 2 + state.random.u64(0..=latency_ns);
        let now_ns = state.now_ns;
        let taken = request.op == Op::Write && state.random.bool();
        state.log.push((request.op, request.lba.0, request.blocks, now_ns));
        self.next += 1;
        drop(state);
        let job = Job { request: *request, data: data.to_vec(), taken };
        if taken {
            let _ = self.run(&job);
        }
        self.in_flight.insert((due, self.next), job);
        Submit::Queued
    }

    fn ring(&mut self) {
        self.device.state.lock().rings += 1;
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.let_go();
        let now = self.device.state.lock().now_ns;
        let mut count = 0;
        while count < completions.len()
            && let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= now)
        {
            let job = entry.remove();
            completions[count] = self.end(job);
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight.len() as u32
    }

    fn wait(&mut self, _: Duration) {
        let due = self.in_flight.keys().next().map_or(0, |(due, _)| *due);
        let mut state = self.device.state.lock();
        state.now_ns = state.now_ns.max(due);
    }

    fn cancel(&mut self, _: Tag) {}

    fn holds(&self, tag: Tag) -> bool {
        self.kept.values().any(|job| job.request.tag == tag) || self.released.contains(&tag)
    }

    fn take_released(&mut self) -> Option<Tag> {
        self.let_go();
        self.released.pop()
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.in_flight.clear();
        Ok(())
    }
}
