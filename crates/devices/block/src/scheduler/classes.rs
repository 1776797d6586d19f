//! Shares of the device by [`Class`]: weights, rate limits, and a guard for the latency of the foreground.
//!
//! - *Weights*: start-time fair queueing (Goyal, Vin, Cheng 1996). A request costs its bytes and a constant. The requests of a class
//!   start in virtual time one after the other, at distances of cost divided by weight; the earliest start goes first. Classes that
//!   always have waiting requests get service by weight, within one request each. The share of an idle class goes to the others and is
//!   not made up for. Only waiting requests are weighed: if fewer requests exist than may be with the device
//!   ([`super::Options::dispatch_depth`]), all are dispatched immediately.
//! - *Limits*: a class over its rate is skipped. Others get its share; if there are none, the device idles.
//! - *Guard*: it holds while the foreground has requests, and briefly after (a thread that reads block by block pauses only for
//!   microseconds). While it holds, all other classes together have at most a few requests with the device. They keep these, so that
//!   none starves; without a foreground there is no limit. With a limit of 0 they have one at a time, and only as their weight
//!   against the foreground allows: for disks, where each request costs a seek.
//!
//! Within a class, requests are served in order of arrival. A request that blocks another class because of common blocks is
//! dispatched
//! immediately, whatever its class, and is still charged to its class. Otherwise the foreground would wait for a background's limit.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::clock::Time;
use crate::request::{Class, Op, Request};

use super::limits::{Bucket, Rate};
use super::lists::{Fifo, Links};

/// The next request to send, as [`Classes::pick`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// The next request, which is no longer in the order.
    Slot(u32),
    /// There is no request, or none may proceed before another one completes.
    Nothing,
    /// No request may proceed before this time, or before another one completes.
    NotBefore(Time),
}

/// The share of the device that one class gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The weight relative to the other classes.
    pub weight: NonZeroU32,
    /// The rate limit for bytes of reads and writes.
    pub bytes: Option<Rate>,
    /// The rate limit for the number of requests.
    pub requests: Option<Rate>,
}

impl Share {
    /// Returns a share without limits; a weight of zero counts as one.
    pub fn weighted(weight: u32) -> Share {
        Share { weight: NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN), bytes: None, requests: None }
    }
}

/// The division of the device among classes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassesOptions {
    /// The share of each class, the foreground first. Requests of classes that are not listed count as the last class.
    pub shares: Vec<Share>,
    /// The fixed cost of a request in bytes: the amount that the device could have transferred while it starts the request.
    pub request_cost_bytes: u32,
    /// The guard: the most requests of all background classes that are with the device while the foreground is active. 0: one, when
    /// it is due by weight; the device may then idle while the foreground lingers.
    pub background_in_flight_max: u32,
    /// How long the guard holds after the foreground's last request has completed.
    pub foreground_linger: Duration,
}

impl Default for ClassesOptions {
    /// The foreground has eight times the weight of everything else. The guard outlasts the pauses of a reader that computes between
    /// two blocks.
    fn default() -> Self {
        ClassesOptions {
            shares: vec![Share::weighted(8), Share::weighted(1)],
            request_cost_bytes: 16 << 10,
            background_in_flight_max: 1,
            foreground_linger: Duration::from_millis(2),
        }
    }
}

/// The order that shares the device among classes. It knows the waiting requests by slot, a number below its depth.
#[derive(Debug)]
pub struct Classes {
    queues: Box<[ClassQueue]>,
    links: Links,
    /// By slot: the cost in bytes, the class, and whether the request is in `hurried`.
    waiting: Box<[Waiting]>,
    /// Requests that are dispatched before all others.
    hurried: Fifo,
    block_bytes: u32,
    request_cost_bytes: u32,
    background_max: u32,
    background_in_flight: u32,
    linger: Duration,
    foreground_left: Time,
    /// The virtual time at which the last dispatched request started.
    now: u128,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    bytes: u64,
    class: u8,
    hurried: bool,
}

#[derive(Debug)]
struct ClassQueue {
    waiting: Fifo,
    /// The virtual time at which its next request starts.
    begin: u128,
    /// Whether it was excluded from the last pick although it had requests.
    held: bool,
    in_flight: u32,
    weight: u64,
    bytes: Option<Bucket>,
    requests: Option<Bucket>,
}

/// Units of virtual time for a byte at weight one. The counter is wide enough never to overflow.
const SCALE: u64 = 1 << 10;

impl ClassQueue {
    fn new(share: &Share) -> ClassQueue {
        let (bytes, requests) = (share.bytes.map(Bucket::new), share.requests.map(Bucket::new));
        ClassQueue { waiting: Fifo::EMPTY, begin: 0, held: false, in_flight: 0, weight: u64::from(share.weight.get()), bytes, requests }
    }

    /// Returns when the limits allow a request of this size.
    #[inline]
    fn ready_at(&self, bytes: u64) -> Time {
        let by_bytes = self.bytes.as_ref().map_or(Time(0), |bucket| bucket.ready_at(bytes));
        by_bytes.max(self.requests.as_ref().map_or(Time(0), |bucket| bucket.ready_at(1)))
    }

    #[inline]
    fn charge(&mut self, bytes: u64, request_cost_bytes: u32, now: Time) {
        self.in_flight += 1;
        self.begin += u128::from((bytes + u64::from(request_cost_bytes)) * SCALE / self.weight);
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes, now);
        }
        if let Some(bucket) = &mut self.requests {
            bucket.take(1, now);
        }
    }
}

impl Classes {
    /// Makes an order for `depth` requests to a device with this block size.
    pub fn new(depth: u32, block_bytes: u32, options: &ClassesOptions) -> Classes {
        let mut queues: Vec<ClassQueue> = options.shares.iter().take(256).map(ClassQueue::new).collect();
        if queues.is_empty() {
            queues.push(ClassQueue::new(&Share::weighted(1)));
        }
        Classes {
            queues: queues.into(),
            links: Links::new(depth),
            waiting: vec![Waiting { bytes: 0, class: 0, hurried: false }; depth as usize].into(),
            hurried: Fifo::EMPTY,
            block_bytes,
            request_cost_bytes: options.request_cost_bytes,
            background_max: options.background_in_flight_max,
            background_in_flight: 0,
            linger: options.foreground_linger,
            foreground_left: Time(0),
            now: 0,
        }
    }

    /// Returns the number of waiting requests of a class.
    pub fn waiting_of(&self, class: Class) -> u32 {
        self.queues[self.class(class)].waiting.len()
    }

    fn class(&self, class: Class) -> usize {
        usize::from(class.0).min(self.queues.len() - 1)
    }

    /// Returns the bytes to transfer: operations that only name blocks have none.
    fn bytes(&self, request: &Request) -> u64 {
        match request.op {
            Op::Read | Op::Write => u64::from(request.blocks) * u64::from(self.block_bytes),
            Op::Flush | Op::Discard | Op::WriteZeroes => 0,
        }
    }

    /// Returns whether the guard holds.
    fn guards(&self, now: Time) -> bool {
        let foreground = &self.queues[0];
        let waits = foreground.waiting.first().is_some_and(|slot| foreground.ready_at(self.waiting[slot as usize].bytes) <= now);
        waits || foreground.in_flight > 0 || now < self.foreground_left
    }

    /// Returns the class whose request goes next, or the time from which a class may proceed.
    fn fairest(&mut self, now: Time) -> Result<usize, Time> {
        let guarded = self.guards(now);
        let full = guarded && self.background_in_flight >= self.background_max.max(1);
        let by_weight = guarded && self.background_max == 0;
        let foreground_begin = self.queues[0].begin;
        let (mut best, mut earliest) = (None, Time::NEVER);
        for (class, queue) in self.queues.iter_mut().enumerate() {
            let Some(slot) = queue.waiting.first() else { continue };
            let ready_at = queue.ready_at(self.waiting[slot as usize].bytes);
            let turn = class == 0 || !(by_weight && queue.begin > foreground_begin);
            // A class that is not due by weight keeps its start time.
            queue.held |= ready_at > now || class > 0 && full && !by_weight;
            if ready_at > now {
                earliest = earliest.min(ready_at);
            } else if class == 0 || turn && !full {
                if std::mem::take(&mut queue.held) {
                    queue.begin = queue.begin.max(self.now);
                }
                if best.is_none_or(|(_, begin)| queue.begin < begin) {
                    best = Some((class, queue.begin));
                }
            } else if self.foreground_left > now {
                earliest = earliest.min(self.foreground_left);
            }
        }
        best.map(|(class, _)| class).ok_or(earliest)
    }

    /// Charges a picked request to its class.
    fn charge(&mut self, class: usize, slot: u32, now: Time) -> Pick {
        self.queues[class].charge(self.waiting[slot as usize].bytes, self.request_cost_bytes, now);
        self.background_in_flight += u32::from(class > 0);
        Pick::Slot(slot)
    }
}

impl Classes {
    /// Adds a request that waits.
    #[inline]
    pub fn insert(&mut self, slot: u32, request: &Request) {
        let class = self.class(request.class);
        let index = u8::try_from(class).expect("at most 256 classes");
        self.waiting[slot as usize] = Waiting { bytes: self.bytes(request), class: index, hurried: false };
        let queue = &mut self.queues[class];
        if queue.waiting.is_empty() {
            queue.begin = queue.begin.max(self.now);
        }
        queue.waiting.push(&mut self.links, slot);
    }

    /// Removes a request that no longer waits, because it was cancelled.
    pub fn remove(&mut self, slot: u32, request: &Request) {
        let class = self.class(request.class);
        let list = if self.waiting[slot as usize].hurried { &mut self.hurried } else { &mut self.queues[class].waiting };
        list.remove(&mut self.links, slot);
    }

    /// Removes and returns the next request.
    #[inline]
    pub fn pick(&mut self, now: Time) -> Pick {
        if let Some(slot) = self.hurried.pop(&mut self.links) {
            return self.charge(usize::from(self.waiting[slot as usize].class), slot, now);
        }
        match self.fairest(now) {
            Ok(class) => {
                self.now = self.queues[class].begin;
                let slot = self.queues[class].waiting.pop(&mut self.links).expect("it has one");
                self.charge(class, slot, now)
            }
            Err(Time::NEVER) => Pick::Nothing,
            Err(time) => Pick::NotBefore(time),
        }
    }

    /// Records that a picked request has completed, whether it was sent or not.
    #[inline]
    pub fn complete(&mut self, request: &Request, now: Time) {
        let class = self.class(request.class);
        self.queues[class].in_flight -= 1;
        if class > 0 {
            self.background_in_flight -= 1;
        } else {
            self.foreground_left = now.after(self.linger);
        }
    }

    /// Gives priority to a waiting request, because a request of another class waits for it.
    pub fn hurry(&mut self, slot: u32, request: &Request) {
        let class = self.class(request.class);
        self.queues[class].waiting.remove(&mut self.links, slot);
        self.waiting[slot as usize].hurried = true;
        self.hurried.push(&mut self.links, slot);
    }

    /// Forgets all requests, including those that were picked.
    pub fn clear(&mut self) {
        self.hurried = Fifo::EMPTY;
        self.background_in_flight = 0;
        for queue in &mut self.queues {
            queue.waiting = Fifo::EMPTY;
            queue.in_flight = 0;
        }
    }
}
