//! Shares of the device by [`Class`]: weights, rate limits, and a guard for the latency of the foreground.
//!
//! - *Weights*: start-time fair queueing (Goyal, Vin, Cheng 1996). A request costs its bytes and a constant; a class's
//!   requests begin in virtual time one after the other, cost divided by weight apart; who begins first goes first. Classes
//!   that wait all the time get service by weight, within one request each; the share of one that does not wait goes to the
//!   others, and is not owed to it. Only what waits here is weighed: with fewer requests than may be with the device
//!   ([`super::Options::dispatch_depth`]), all go at once.
//! - *Limits*: a class over its rate does not take part. Others take its share; if there is none the device idles.
//! - *Guard*: while the foreground waits or is with the device, and for a moment after (a thread that reads one block after
//!   the other is away for microseconds only), all others together have no more than a few requests with the device. They
//!   still have these, so that nobody starves; and with no foreground everything is theirs. Told to have none, they have one
//!   at a time, and only what their weight gives them against the foreground: for disks, where each costs a seek.
//!
//! Within a class it is first come, first served. What another class has to wait for because of its blocks goes at once,
//! whatever its class, and is counted to it all the same: else the foreground would wait for a background's limit.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::clock::Time;
use crate::request::{Class, Op, Request};

use super::limits::{Bucket, Rate};
use super::lists::{Fifo, Links};
use super::order::{Order, Pick};

/// What one class gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Against those of the other classes.
    pub weight: NonZeroU32,
    /// Most bytes of reads and writes.
    pub bytes: Option<Rate>,
    /// Most requests.
    pub requests: Option<Rate>,
}

impl Share {
    /// Without limits; a weight of zero counts as one.
    pub fn weighted(weight: u32) -> Share {
        Share { weight: NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN), bytes: None, requests: None }
    }
}

/// How the device is shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassesOptions {
    /// By class, the foreground first. Requests of classes that are not listed count to the last.
    pub shares: Vec<Share>,
    /// Bytes that a request costs beside its own: what the device could have moved while it begins.
    pub request_cost_bytes: u32,
    /// The guard: most requests with the device of all classes but the foreground, while that is there. 0: one, when it is
    /// its turn by weight; the device may then idle while the foreground lingers.
    pub background_in_flight_max: u32,
    /// The guard holds so long after the foreground's last request has ended.
    pub foreground_linger: Duration,
}

impl Default for ClassesOptions {
    /// A foreground with eight times the weight of everything else. The guard outlasts the pauses of a reader that computes
    /// between two blocks.
    fn default() -> Self {
        ClassesOptions {
            shares: vec![Share::weighted(8), Share::weighted(1)],
            request_cost_bytes: 16 << 10,
            background_in_flight_max: 1,
            foreground_linger: Duration::from_millis(2),
        }
    }
}

/// The order of classes.
#[derive(Debug)]
pub struct Classes {
    queues: Box<[ClassQueue]>,
    links: Links,
    /// By slot: what it costs in bytes, whose it is, and whether it is in `hurried`.
    waiting: Box<[Waiting]>,
    /// These go first.
    hurried: Fifo,
    block_bytes: u32,
    request_cost_bytes: u32,
    background_max: u32,
    background_in_flight: u32,
    linger: Duration,
    foreground_left: Time,
    /// Virtual time: where the request that went last began.
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
    /// Virtual time at which its next request begins.
    begin: u128,
    /// It did not take part in the last pick though it had requests.
    held: bool,
    in_flight: u32,
    weight: u64,
    bytes: Option<Bucket>,
    requests: Option<Bucket>,
}

/// Parts of a byte in virtual time, at weight one. Wide enough never to be used up.
const SCALE: u64 = 1 << 10;

impl ClassQueue {
    fn new(share: &Share) -> ClassQueue {
        let (bytes, requests) = (share.bytes.map(Bucket::new), share.requests.map(Bucket::new));
        ClassQueue { waiting: Fifo::EMPTY, begin: 0, held: false, in_flight: 0, weight: u64::from(share.weight.get()), bytes, requests }
    }

    /// From when on its limits let a request of so many bytes go.
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
    /// For `depth` requests to a device with blocks of this size.
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

    /// Requests of a class that wait for their turn.
    pub fn waiting_of(&self, class: Class) -> u32 {
        self.queues[self.class(class)].waiting.len()
    }

    fn class(&self, class: Class) -> usize {
        usize::from(class.0).min(self.queues.len() - 1)
    }

    /// Bytes that go over the wire: what only names blocks has none.
    fn bytes(&self, request: &Request) -> u64 {
        match request.op {
            Op::Read | Op::Write => u64::from(request.blocks) * u64::from(self.block_bytes),
            Op::Flush | Op::Discard | Op::WriteZeroes => 0,
        }
    }

    /// Whether the guard is up.
    fn guards(&self, now: Time) -> bool {
        let foreground = &self.queues[0];
        let waits = foreground.waiting.first().is_some_and(|slot| foreground.ready_at(self.waiting[slot as usize].bytes) <= now);
        waits || foreground.in_flight > 0 || now < self.foreground_left
    }

    /// The class that goes next, or the moment from which on one may.
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
            // Who only waits for its turn by weight keeps its place.
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

    /// It goes: counted to its class.
    fn charge(&mut self, class: usize, slot: u32, now: Time) -> Pick {
        self.queues[class].charge(self.waiting[slot as usize].bytes, self.request_cost_bytes, now);
        self.background_in_flight += u32::from(class > 0);
        Pick::RequestSlot(slot)
    }
}

impl Order for Classes {
    const TIMED: bool = true;
    const HURRIES: bool = true;

    #[inline]
    fn insert(&mut self, slot: u32, request: &Request, _: Time) {
        let class = self.class(request.class);
        let index = u8::try_from(class).expect("at most 256 classes");
        self.waiting[slot as usize] = Waiting { bytes: self.bytes(request), class: index, hurried: false };
        let queue = &mut self.queues[class];
        if queue.waiting.is_empty() {
            queue.begin = queue.begin.max(self.now);
        }
        queue.waiting.push(&mut self.links, slot);
    }

    fn remove(&mut self, slot: u32, request: &Request) {
        let class = self.class(request.class);
        let list = if self.waiting[slot as usize].hurried { &mut self.hurried } else { &mut self.queues[class].waiting };
        list.remove(&mut self.links, slot);
    }

    #[inline]
    fn pick(&mut self, now: Time) -> Pick {
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

    #[inline]
    fn ended(&mut self, request: &Request, now: Time) {
        let class = self.class(request.class);
        self.queues[class].in_flight -= 1;
        if class > 0 {
            self.background_in_flight -= 1;
        } else {
            self.foreground_left = now.after(self.linger);
        }
    }

    fn hurry(&mut self, slot: u32, request: &Request) {
        let class = self.class(request.class);
        self.queues[class].waiting.remove(&mut self.links, slot);
        self.waiting[slot as usize].hurried = true;
        self.hurried.push(&mut self.links, slot);
    }

    fn clear(&mut self) {
        self.hurried = Fifo::EMPTY;
        self.background_in_flight = 0;
        for queue in &mut self.queues {
            queue.waiting = Fifo::EMPTY;
            queue.in_flight = 0;
        }
    }
}
