//! A device in memory that completes requests late and in any order, fails on bad blocks, and is full at random. It checks its
//! requests:
//! each fits the device, no more are in flight than allowed, and no two of them conflict.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::clock::VirtualClock;
use crate::buffer::{Arena, Span};
use crate::driver::MemoryDevice;
use crate::driver::memory::MemoryQueue;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request, Status};
use crate::units::Tag;

/// Clones refer to the same device: the scheduler wraps one, and the test observes it through another.
#[derive(Clone)]
pub(super) struct Rogue {
    geometry: Geometry,
    depth: u32,
    clock: VirtualClock,
    inner: Arc<Mutex<Inner>>,
}

pub(super) struct Inner {
    memory: MemoryQueue,
    device: MemoryDevice,
    random: fastrand::Rng,
    accepted: Vec<(Request, Vec<Span>, u64)>,
    ended: Vec<Completion>,
    /// The requests in the order of submission, each with its number of pieces.
    pub log: Vec<(Request, usize)>,
    /// The blocks on which requests fail.
    pub bad_blocks: BTreeSet<u64>,
    /// The most requests that may be in flight.
    pub allowed: u32,
    /// Reports being full once in this many submissions, although it is not; zero: never.
    pub full_once_in: u32,
    /// The most completions of one poll, in any order; `None`: all of them, in order.
    pub ends_at_most: Option<usize>,
    /// Whether resets of the device fail.
    pub reset_fails: bool,
    /// The number of completed writes.
    pub written: u64,
    /// The number of writes that a flush has covered.
    pub safe: u64,
}

impl Rogue {
    pub(super) fn new(seed: u64, blocks: u64, depth: u32, change: impl FnOnce(&mut Geometry)) -> Rogue {
        let device = MemoryDevice::new(512, blocks * 512).expect("memory").with_geometry(change);
        let inner = Inner {
            memory: device.open_queue(1),
            device: device.clone(),
            random: fastrand::Rng::with_seed(seed),
            accepted: Vec::new(),
            ended: Vec::new(),
            log: Vec::new(),
            bad_blocks: BTreeSet::new(),
            allowed: depth,
            full_once_in: 0,
            ends_at_most: None,
            reset_fails: false,
            written: 0,
            safe: 0,
        };
        let geometry = crate::device::Device::geometry(&device).clone();
        Rogue { geometry, depth, clock: VirtualClock::default(), inner: Arc::new(Mutex::new(inner)) }
    }

    pub(super) fn clock(&self) -> VirtualClock {
        self.clock.clone()
    }

    pub(super) fn look(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Inner {
    pub(super) fn in_flight(&self) -> usize {
        self.accepted.len()
    }

    /// Copies the content of its blocks into `to`.
    pub(super) fn read(&self, blocks: std::ops::Range<usize>, to: &mut [u8]) {
        self.device.region().read(blocks.start, &mut to[blocks]);
    }

    fn run(&mut self, request: &Request, data: &[Span], written_before: u64) -> Status {
        if self.bad_blocks.range(request.lba.0..request.lba.0 + u64::from(request.blocks)).next().is_some() {
            return Err(Error::Media);
        }
        match request.op {
            Op::Flush => self.safe = self.safe.max(written_before),
            op => self.written += u64::from(op.writes()),
        }
        assert_eq!(self.memory.submit(request, data), Submit::Queued);
        let mut ended = [Completion::EMPTY; 1];
        assert_eq!(self.memory.poll(&mut ended), 1);
        ended[0].status
    }

    fn work(&mut self) {
        let most = self.ends_at_most.map_or(usize::MAX, |most| self.random.usize(..=most));
        for _ in 0..most.min(self.accepted.len()) {
            let at = if self.ends_at_most.is_some() { self.random.usize(..self.accepted.len()) } else { 0 };
            let (request, data, written_before) = self.accepted.remove(at);
            let status = self.run(&request, &data, written_before);
            self.ended.push(Completion { tag: request.tag, status });
        }
    }

    fn check(&self, request: &Request) {
        assert!(self.in_flight() + self.ended.len() < self.allowed as usize, "more in flight than allowed");
        for (other, ..) in &self.accepted {
            assert!(!super::mix::conflict(request, other), "{request:?} may overtake {other:?}");
            assert_ne!(request.tag, other.tag);
        }
    }
}

impl Queue for Rogue {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.inner.lock().memory.register(arena)
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        let mut inner = self.inner.lock();
        if inner.full_once_in > 0 {
            let once_in = inner.full_once_in;
            if inner.random.u32(..once_in) == 0 {
                return Submit::Full;
            }
        }
        assert_eq!(self.geometry.check(request, data), Ok(()), "{request:?} {data:?}");
        inner.check(request);
        let written_before = inner.written;
        inner.accepted.push((*request, data.to_vec(), written_before));
        inner.log.push((*request, data.len()));
        Submit::Queued
    }

    fn ring(&mut self) {}

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut inner = self.inner.lock();
        inner.work();
        let count = completions.len().min(inner.ended.len());
        for (place, ended) in completions.iter_mut().zip(inner.ended.drain(..count)) {
            *place = ended;
        }
        count
    }

    fn in_flight(&self) -> u32 {
        let inner = self.inner.lock();
        u32::try_from(inner.accepted.len() + inner.ended.len()).expect("few")
    }

    fn wait(&mut self, at_most: Duration) {
        if self.in_flight() == 0 {
            self.clock.advance(at_most);
        }
    }

    fn arm(&mut self) -> Armed {
        if self.inner.lock().ended.is_empty() { Armed::Waiting } else { Armed::Ready }
    }

    fn cancel(&mut self, tag: Tag) {
        let mut inner = self.inner.lock();
        let found = inner.accepted.iter().position(|(request, ..)| request.tag == tag);
        if let Some(at) = found
            && inner.random.bool()
        {
            inner.accepted.remove(at);
            inner.ended.push(Completion { tag, status: Err(Error::Cancelled) });
        }
    }

    fn reset(&mut self) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        if inner.reset_fails {
            return Err(Error::Gone);
        }
        inner.accepted.clear();
        inner.ended.clear();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}
