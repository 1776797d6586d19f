//! One client's queue, as the broker's device thread serves it.
//!
//! ```text
//!               turn: take, check, submit, forward
//!              .---.
//!              v   |    close, revoke, broken ring, client gone
//!            Open -+----------------------------------> Draining --- nothing in flight ---> over: memory and
//!              ^          reset                            | |                             quota given back
//!              '------------------ nothing in flight ------' | timeout: the device's queue is reset,
//!                                                            v and if that fails too
//!                                                          lost: kept for ever, memory included
//! ```
//!
//! All content of the shared memory is untrusted. The ring checks indexes; an entry is copied before it is checked. A slot must be free
//! and less than the depth, so there are never more requests than `depth`. The completion ring has twice as many places, and a request is
//! taken only while a place for its completion is free. A client that takes no completions therefore stalls only itself.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use rustix::net::SendFlags;
use shm::Region;
use shm::ring::{Consumer, Producer, RingError};

use super::entry::{self, Command, Ended, Layout, SEGMENTS_MAX, Segment};
use super::log_limit::LogLimit;
use super::pace::Pace;
use super::places::QuotaSlot;
use crate::buffer::{Arena, Span};
use crate::clock::Time;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Class, Completion, Op, Request, Status};
use crate::units::{Lba, Tag};

/// Requests taken from one client before the next client is served.
const TURN: u32 = 64;

/// The channel that reports when a queue has been drained.
pub(super) type Drained = SyncSender<Result<(), Error>>;

/// The parts of a queue, sent to the device thread that will serve it.
pub(super) struct Seed {
    pub(super) place: QuotaSlot,
    pub(super) region: Arc<Region>,
    pub(super) layout: Layout,
    pub(super) bell: OwnedFd,
    /// The geometry of the window, as the client sees it.
    pub(super) geometry: Geometry,
    pub(super) first: u64,
    pub(super) arenas: Vec<Arena>,
    pub(super) hang_up: Arc<UnixStream>,
    pub(super) log_limit: Arc<LogLimit>,
}

/// The reason why a queue is being drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drain {
    /// The client will use the queue again.
    Reset,
    /// The queue is closed afterwards.
    End(Ended),
}

enum Phase {
    Open,
    Draining { why: Drain, due: Time, waiting: Vec<Drained> },
}

/// The result of serving a queue once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// There was nothing to do.
    Idle,
    /// Progress was made, and there may be more to do.
    Moved,
    /// The queue is drained and closed: drop it.
    Over,
    /// The device may still access the queue's memory: keep it, and never touch it again.
    Lost,
}

/// A request that was checked but could not be submitted yet.
struct DeferredRequest {
    request: Request,
    slot: u32,
}

pub(super) struct Served {
    queue: Box<dyn Queue>,
    seed: Seed,
    commands: Consumer<Arc<Region>>,
    completions: Producer<Arc<Region>>,
    /// By slot: the byte count of the request in flight, if any.
    slots: Box<[Option<u64>]>,
    in_flight: u32,
    held: Option<DeferredRequest>,
    /// The time at which the deferred request may be submitted.
    held_until: Time,
    /// The spans of the request being checked or deferred.
    spans: Vec<Span>,
    phase: Phase,
    /// Whether a refused request has been logged.
    has_refused: bool,
    /// The time that the device has to complete cancelled requests.
    reset_timeout: Duration,
}

impl Served {
    /// Creates the queue and registers every arena of the seed.
    pub(super) fn new(mut queue: Box<dyn Queue>, seed: Seed, reset_timeout: Duration) -> Result<Served, Error> {
        for arena in &seed.arenas {
            queue.register(arena)?;
        }
        Ok(Served {
            commands: Consumer::new(seed.region.clone(), seed.layout.commands),
            completions: Producer::new(seed.region.clone(), seed.layout.completions),
            slots: vec![None; seed.layout.depth as usize].into(),
            in_flight: 0,
            held: None,
            held_until: Time(0),
            spans: Vec::with_capacity(SEGMENTS_MAX),
            phase: Phase::Open,
            has_refused: false,
            reset_timeout,
            queue,
            seed,
        })
    }

    pub(super) fn place(&self) -> &QuotaSlot {
        &self.seed.place
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.seed.bell
    }

    pub(super) fn queue(&mut self) -> &mut dyn Queue {
        &mut *self.queue
    }

    /// Registers memory with the device.
    pub(super) fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)?;
        self.seed.arenas.push(arena.clone());
        Ok(())
    }

    /// Returns whether the device has requests of this queue.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Takes requests of the client, and forwards completions of the device.
    pub(super) fn turn(&mut self, now: Time, pace: &mut Pace) -> Turn {
        let done = match self.phase {
            Phase::Open => self.take(now, pace).and_then(|taken| Ok(taken | self.forward()?)),
            Phase::Draining { .. } => Ok(self.forward_while_draining()),
        };
        let moved = done.unwrap_or_else(|why| {
            let (queue, user) = (self.seed.place.info.id, self.seed.place.info.peer.user);
            if self.seed.log_limit.may_log(user) {
                tracing::warn!(queue, user, %why, "a client's session ends");
            }
            // The client's other queues end with the connection.
            let _ = self.seed.hang_up.shutdown(std::net::Shutdown::Both);
            self.drain(now, Drain::End(why), None);
            true
        });
        match self.end_of_draining(now) {
            None if moved => Turn::Moved,
            None => Turn::Idle,
            Some(turn) => turn,
        }
    }

    /// Starts to drain the queue; `waiting` is notified once the device no longer accesses its memory.
    pub(super) fn drain(&mut self, now: Time, why: Drain, waiting: Option<Drained>) {
        if let Phase::Draining { why: known, waiting: all, .. } = &mut self.phase {
            // An end takes precedence over a reset, and the first end over later ones.
            *known = if *known == Drain::Reset { why } else { *known };
            all.extend(waiting);
            return;
        }
        self.held = None;
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                self.queue.cancel(Tag(slot as u64));
            }
        }
        self.queue.ring();
        self.phase = Phase::Draining { why, due: now.after(self.reset_timeout), waiting: waiting.into_iter().collect() };
    }

    /// Arms the notifiers; returns `false` if there is work already.
    pub(super) fn sleep(&mut self) -> bool {
        let device = self.queue.event().is_none() || self.queue.arm() == Armed::Waiting;
        // The next turn finds a broken ring. While a request is deferred, or during a drain, commands have to wait.
        let client = !matches!(self.phase, Phase::Open) || self.held.is_some() || matches!(self.commands.sleep(), Ok(true));
        device && (client || self.is_stalled())
    }

    /// Returns whether the client leaves its completions in the ring; only its notifier then wakes the thread.
    fn is_stalled(&mut self) -> bool {
        matches!(self.has_place(), Ok(false))
    }

    /// Disarms the client's notifier.
    pub(super) fn wake(&mut self) {
        self.commands.wake();
    }

    /// Returns the time at which there is work even without a notification.
    pub(super) fn due(&self) -> Time {
        match &self.phase {
            Phase::Draining { due, .. } => *due,
            Phase::Open if self.held.is_some() => self.held_until,
            Phase::Open => Time::NEVER,
        }
    }

    fn take(&mut self, now: Time, pace: &mut Pace) -> Result<bool, Ended> {
        if self.held.is_some() && !self.submit_held(now, pace) {
            return Ok(false);
        }
        let broken = |_: RingError| Ended::BrokenRing;
        let mut taken = 0;
        let mut bytes = [0; 64];
        while taken < TURN && self.held.is_none() && self.has_place().map_err(broken)? && self.commands.take(&mut bytes).map_err(broken)? {
            taken += 1;
            match entry::decode(&bytes).ok_or(Ended::BadCommand)? {
                Command::Cancel { slot } => self.cancel(slot),
                Command::Request { request, segments } => {
                    let slot = request.tag.0 as usize;
                    if self.slots.get(slot).ok_or(Ended::BadCommand)?.is_some() {
                        return Err(Ended::BadCommand);
                    }
                    let found = self.find_memory(&bytes, segments);
                    self.run(request, found, now, pace)?;
                }
            }
        }
        self.commands.show();
        if taken > 0 {
            self.queue.ring();
        }
        Ok(taken > 0)
    }

    /// Returns whether the ring has a place for the completion of one more request.
    fn has_place(&mut self) -> Result<bool, RingError> {
        self.completions.has_room_for(self.in_flight + 1)
    }

    /// Translates arena numbers into spans, and checks that every byte lies inside its arena.
    fn find_memory(&mut self, bytes: &entry::CommandBytes, segments: usize) -> Status {
        self.spans.clear();
        for index in 0..segments {
            let segment = entry::decode_segment(&self.seed.region, &self.seed.layout, self.commands.last_slot(), bytes, index);
            let Segment { at, bytes, arena } = segment;
            let arena = self.seed.arenas.get(arena as usize).ok_or(Error::NotPermitted)?;
            let end = at.checked_add(u64::from(bytes)).ok_or(Error::NotPermitted)?;
            if end > arena.region().len() as u64 {
                return Err(Error::NotPermitted);
            }
            self.spans.push(Span { arena: arena.id(), bytes, at });
        }
        Ok(())
    }

    fn run(&mut self, request: Request, memory: Status, now: Time, pace: &mut Pace) -> Result<(), Ended> {
        let slot = u32::try_from(request.tag.0).expect("a slot");
        if let Err(error) = memory.and_then(|()| self.seed.geometry.check(&request, &self.spans)) {
            self.refused(&request, error);
            return self.complete(slot, Err(error));
        }
        // The check used blocks of the window, which lies within the device. The client's class is dropped: classes are for the broker.
        let lba = if request.op == Op::Flush { Lba(0) } else { Lba(request.lba.0 + self.seed.first) };
        self.held = Some(DeferredRequest { request: Request { lba, class: Class(0), ..request }, slot });
        self.held_until = Time(0);
        self.submit_held(now, pace);
        Ok(())
    }

    /// Counts every refused request, and logs the first.
    #[cold]
    fn refused(&mut self, request: &Request, error: Error) {
        let info = &self.seed.place.info;
        info.counters.refused();
        if !std::mem::replace(&mut self.has_refused, true) && self.seed.log_limit.may_log(info.peer.user) {
            let (queue, user, pid) = (info.id, info.peer.user, info.peer.pid);
            let (op, first, blocks) = (request.op, request.lba.0, request.blocks);
            tracing::warn!(queue, user, pid, ?op, first, blocks, %error, "a request is refused");
        }
    }

    /// Returns `false` if the request has to wait, for its rate or for the device.
    fn submit_held(&mut self, now: Time, pace: &mut Pace) -> bool {
        let Some(held) = &self.held else { return true };
        let bytes = self.spans.iter().map(|span| u64::from(span.bytes)).sum();
        // The rate is charged once per request: if the device was full, the request was counted before. Blocks that are zeroed or
        // discarded without data count like others.
        if self.held_until != Time::NEVER {
            let cost = u64::from(held.request.blocks) * u64::from(self.seed.geometry.block_bytes);
            if let Err(due) = pace.take(now, cost) {
                self.held_until = due;
                return false;
            }
            self.held_until = Time::NEVER;
        }
        if self.queue.submit(&held.request, &self.spans) == Submit::Full {
            return false;
        }
        self.slots[held.slot as usize] = Some(bytes);
        self.in_flight += 1;
        self.held = None;
        true
    }

    fn cancel(&mut self, slot: u32) {
        if self.slots.get(slot as usize).is_some_and(Option::is_some) {
            self.queue.cancel(Tag(u64::from(slot)));
        }
    }

    fn complete(&mut self, slot: u32, status: Status) -> Result<(), Ended> {
        match self.completions.push(&entry::encode_completion(slot, status)) {
            Ok(true) => Ok(()),
            // There was room when the request was taken, and room does not shrink.
            Ok(false) | Err(RingError) => Err(Ended::BrokenRing),
        }
    }

    /// Forwards completions of the device to the client.
    fn forward(&mut self) -> Result<bool, Ended> {
        let mut ended = [Completion::EMPTY; TURN as usize];
        let count = if self.in_flight == 0 { 0 } else { self.queue.poll(&mut ended) };
        let mut pushed = Ok(());
        for completion in &ended[..count] {
            // Every slot is counted, even if the client broke its ring.
            if let Some(slot) = self.free(completion) {
                pushed = pushed.and_then(|()| self.complete(slot, completion.status));
            }
        }
        pushed?;
        if self.completions.show() {
            self.ring_client();
        }
        Ok(count > 0)
    }

    fn free(&mut self, completion: &Completion) -> Option<u32> {
        let index = usize::try_from(completion.tag.0).ok()?;
        let bytes = self.slots.get_mut(index)?.take()?;
        self.in_flight -= 1;
        self.seed.place.info.counters.ended(bytes, completion.status);
        u32::try_from(index).ok()
    }

    fn forward_while_draining(&mut self) -> bool {
        // A ring that breaks now changes nothing.
        self.forward().unwrap_or(true)
    }

    /// Returns the outcome of the drain once it is complete.
    fn end_of_draining(&mut self, now: Time) -> Option<Turn> {
        let Phase::Draining { due, .. } = &self.phase else { return None };
        let mut outcome = Ok(());
        if self.in_flight > 0 {
            if now < *due {
                return None;
            }
            outcome = self.queue.reset();
        }
        let Phase::Draining { why, waiting, .. } = std::mem::replace(&mut self.phase, Phase::Open) else { return None };
        let turn = self.drained(why, outcome);
        // The place in the quota is free before any waiter is notified, unless the memory is lost.
        if turn == Turn::Over {
            self.seed.place.give_back();
        }
        for waiting in waiting {
            let _ = waiting.try_send(outcome);
        }
        Some(turn)
    }

    fn drained(&mut self, why: Drain, outcome: Result<(), Error>) -> Turn {
        if outcome.is_err() {
            self.seed.place.info.counters.set_lost();
            self.close(Ended::Lost);
            return Turn::Lost;
        }
        self.slots.fill(None);
        self.in_flight = 0;
        match why {
            // Requests still in the ring are dropped too. The next turn finds a broken ring.
            Drain::Reset => {
                let _ = self.commands.discard();
                Turn::Moved
            }
            Drain::End(ended) => {
                self.close(ended);
                Turn::Over
            }
        }
    }

    /// Notifies the client, which may not react.
    fn close(&self, ended: Ended) {
        entry::write_state(&self.seed.region, ended);
        self.ring_client();
    }

    /// Never blocks: if the socket is full, earlier notifications are still unread and wake the client.
    fn ring_client(&self) {
        let _ = rustix::net::send(&self.seed.bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}
