//! The queue that injects faults.

mod damage;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use block::buffer::ArenaId;
use block::{Arena, Armed, Clock, Completion, Error, Lba, Queue, Request, Span, Status, Submit, Tag, Time};
use shm::{PageSize, Region};

use self::damage::flip;
use super::rules::{ActiveRule, Fault, FaultKind, Faults, HangKind};

/// Size of the largest write that can be torn or flipped, bytes.
const SCRATCH_BYTES: usize = 128 << 10;
/// Number of such writes at a time; beyond it the queue is full.
const SCRATCHES: u32 = 16;
/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    Forwarded,
    /// A torn write waits until it is alone: no other write may happen between its read and its write.
    AwaitingIdle,
    /// A torn write reads the old content.
    ReadingOld,
    Hung(HangKind),
    /// The request has completed and is reported later.
    Delayed(Status, DelayUntil),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DelayUntil {
    Time(Time),
    /// Until this many other requests are reported.
    Others(u32),
}

#[derive(Clone, Copy, Debug)]
struct RequestSlot {
    request: Request,
    spans: u16,
    generation: u32,
    state: SlotState,
    fault: Option<Fault>,
    scratch: Option<u32>,
}

/// A queue that injects faults; see [`super`].
///
/// States of a slot: Free, `submit`, Forwarded (before it AwaitingIdle and ReadingOld for a torn write), completion, (Delayed,) Free; or
/// Free, `submit`, Hung, `cancel` or `reset`, Free.
pub struct FaultyQueue<Q, C> {
    queue: Q,
    clock: C,
    faults: Faults,
    rules: Vec<Arc<ActiveRule>>,
    version: u64,
    random: fastrand::Rng,
    slots: Box<[RequestSlot]>,
    spans: Box<[Span]>,
    segments: usize,
    free: Vec<u32>,
    local: VecDeque<Completion>,
    /// Completions without a request.
    spurious: VecDeque<Completion>,
    delayed: u32,
    hung: u32,
    below: u32,
    /// The torn write in progress; the queue is full until it completes.
    torn: Option<u32>,
    arenas: Vec<Arena>,
    scratch: Arena,
    scratch_free: Vec<u32>,
    bytes: Vec<u8>,
    strays: u64,
    gone: bool,
}

impl<Q: Queue, C: Clock> FaultyQueue<Q, C> {
    /// Wraps a queue, with the same depth. `clock` is the clock of the model below.
    ///
    /// # Errors
    /// No memory.
    pub fn new(mut queue: Q, clock: C, faults: &Faults, seed: u64) -> io::Result<FaultyQueue<Q, C>> {
        let depth = queue.depth();
        let segments = usize::from(queue.geometry().segments_max);
        // Pages are touched on first use only.
        let scratch = Arena::over(Arc::new(Region::private(SCRATCH_BYTES * SCRATCHES as usize, PageSize::Small)?));
        queue.register(&scratch).map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        let request = Request::flush(Tag(0));
        let slot = RequestSlot { request, spans: 0, generation: 0, state: SlotState::Free, fault: None, scratch: None };
        Ok(FaultyQueue {
            queue,
            clock,
            faults: faults.clone(),
            rules: faults.rules(),
            version: faults.version(),
            random: fastrand::Rng::with_seed(seed),
            slots: vec![slot; depth as usize].into(),
            spans: vec![Span { arena: ArenaId(0), bytes: 0, at: 0 }; depth as usize * segments].into(),
            segments,
            free: (0..depth).rev().collect(),
            local: VecDeque::with_capacity(depth as usize),
            spurious: VecDeque::with_capacity(depth as usize),
            delayed: 0,
            hung: 0,
            below: 0,
            torn: None,
            arenas: Vec::new(),
            scratch,
            scratch_free: (0..SCRATCHES).collect(),
            bytes: vec![0; SCRATCH_BYTES],
            strays: 0,
            gone: false,
        })
    }

    /// Returns the rules and counters.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the inner queue, mutably.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Returns the fault to inject into this request.
    fn choose(&mut self, request: &Request) -> Option<Fault> {
        if self.version != self.faults.version() {
            self.version = self.faults.version();
            self.rules = self.faults.rules();
        }
        for rule in &self.rules {
            if let Some(fault) = rule.meets(request, &mut self.random) {
                let bytes = request.blocks as usize * self.queue.geometry().block_bytes as usize;
                if matches!(fault, Fault::Torn(..) | Fault::FlipWrite(_)) && bytes > SCRATCH_BYTES {
                    continue;
                }
                rule.count();
                self.faults.count(fault.kind());
                return Some(fault);
            }
        }
        None
    }

    fn tag(&self, index: u32) -> Tag {
        Tag(u64::from(self.slots[index as usize].generation) << 32 | u64::from(index))
    }

    fn index(&self, tag: Tag) -> Option<u32> {
        let index = (tag.0 & 0xffff_ffff) as u32;
        let slot = self.slots.get(index as usize)?;
        let ours = matches!(slot.state, SlotState::Forwarded | SlotState::ReadingOld) && u64::from(slot.generation) == tag.0 >> 32;
        ours.then_some(index)
    }

    fn memory(&self, index: u32) -> &[Span] {
        let first = index as usize * self.segments;
        &self.spans[first..first + usize::from(self.slots[index as usize].spans)]
    }

    fn release(&mut self, index: u32) -> Tag {
        let slot = &mut self.slots[index as usize];
        match slot.state {
            SlotState::Delayed(..) => self.delayed -= 1,
            SlotState::Hung(_) => self.hung -= 1,
            SlotState::Forwarded | SlotState::ReadingOld => self.below -= 1,
            SlotState::Free | SlotState::AwaitingIdle => {}
        }
        self.torn = self.torn.filter(|torn| *torn != index);
        slot.state = SlotState::Free;
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(scratch) = slot.scratch.take() {
            self.scratch_free.push(scratch);
        }
        self.free.push(index);
        slot.request.tag
    }

    fn complete_locally(&mut self, index: u32, status: Status) -> Submit {
        let tag = self.release(index);
        self.local.push_back(Completion { tag, status });
        Submit::Queued
    }

    /// Forwards a request with its fault.
    fn begin(&mut self, index: u32) -> Submit {
        let slot = self.slots[index as usize];
        let below = Request { tag: self.tag(index), ..slot.request };
        match slot.fault {
            Some(Fault::Fail(error)) => self.complete_locally(index, Err(error)),
            Some(Fault::Lost) => self.complete_locally(index, Ok(())),
            Some(Fault::Gone) => {
                self.gone = true;
                self.complete_locally(index, Err(Error::Gone))
            }
            Some(Fault::Hang(hang)) => {
                self.set_state(index, SlotState::Hung(hang));
                self.hung += 1;
                Submit::Queued
            }
            Some(Fault::Torn(..)) => {
                self.set_state(index, SlotState::AwaitingIdle);
                self.torn = Some(index);
                self.read_old()
            }
            Some(Fault::FlipWrite(bits)) => {
                let bytes = self.copy_to_scratch(index);
                flip(&mut self.bytes[..bytes], bits, &mut self.random);
                self.fill_scratch(index, bytes);
                self.submit_scratch(index, below)
            }
            Some(Fault::Misdirected(to)) => {
                let last = self.queue.geometry().blocks - u64::from(below.blocks);
                let lba = to.map_or_else(|| self.random.u64(..=last), |lba| lba.0.min(last));
                self.forward(index, &Request { lba: Lba(lba), ..below })
            }
            _ => self.forward(index, &below),
        }
    }

    /// Changes the state of a slot from Forwarded, the initial state.
    fn set_state(&mut self, index: u32, state: SlotState) {
        debug_assert_eq!(self.slots[index as usize].state, SlotState::Forwarded);
        self.below -= 1;
        self.slots[index as usize].state = state;
    }

    fn forward(&mut self, index: u32, below: &Request) -> Submit {
        let first = index as usize * self.segments;
        let spans = usize::from(self.slots[index as usize].spans);
        self.queue.submit(below, &self.spans[first..first + spans])
    }

    /// Handles a completion of the inner queue. Returns it if it is to be reported now.
    fn complete(&mut self, index: u32, status: Status) -> Option<Completion> {
        let slot = self.slots[index as usize];
        if slot.state == SlotState::ReadingOld && status.is_ok() {
            if self.tear(index) == Submit::Queued {
                return None;
            }
            let tag = self.release(index);
            return Some(Completion { tag, status: Err(Error::NoResources) });
        }
        let mut status = status;
        match slot.fault {
            Some(Fault::Torn(_, reported)) if status.is_ok() => status = reported,
            Some(Fault::FlipRead(bits)) if status.is_ok() => self.flip_memory(index, bits),
            Some(Fault::Slow(more)) => {
                let until = self.clock.now().after(more);
                return self.hold(index, status, DelayUntil::Time(until));
            }
            Some(Fault::Late(others)) => return self.hold(index, status, DelayUntil::Others(others)),
            Some(Fault::Twice) => self.spurious.push_back(Completion { tag: slot.request.tag, status }),
            Some(Fault::Stray) => {
                self.strays += 1;
                self.spurious.push_back(Completion { tag: Tag(u64::MAX - self.strays), status });
            }
            _ => {}
        }
        let tag = self.release(index);
        Some(Completion { tag, status })
    }

    fn hold(&mut self, index: u32, status: Status, until: DelayUntil) -> Option<Completion> {
        self.set_state(index, SlotState::Delayed(status, until));
        self.delayed += 1;
        None
    }

    /// Reports delayed requests whose delay is over.
    fn release_delayed(&mut self, completions: &mut [Completion]) -> usize {
        let now = self.clock.now();
        let alone = self.in_flight() == self.delayed + self.hung;
        let mut count = 0;
        for index in 0..self.slots.len() as u32 {
            let SlotState::Delayed(status, until) = self.slots[index as usize].state else { continue };
            let over = match until {
                DelayUntil::Time(time) => time <= now,
                DelayUntil::Others(others) => others == 0 || alone,
            };
            if over && count < completions.len() {
                completions[count] = Completion { tag: self.release(index), status };
                count += 1;
            }
        }
        count
    }

    fn reported(&mut self, count: usize) {
        if self.delayed == 0 || count == 0 {
            return;
        }
        for slot in &mut self.slots {
            if let SlotState::Delayed(_, DelayUntil::Others(others)) = &mut slot.state {
                *others = others.saturating_sub(count as u32);
            }
        }
    }

    fn next_delayed(&self) -> Time {
        let until = |slot: &RequestSlot| match slot.state {
            SlotState::Delayed(_, DelayUntil::Time(time)) => time,
            SlotState::Delayed(_, DelayUntil::Others(0)) => Time(0),
            _ => Time::NEVER,
        };
        if self.delayed == 0 { Time::NEVER } else { self.slots.iter().map(until).min().unwrap_or(Time::NEVER) }
    }

    fn take(from: &mut VecDeque<Completion>, to: &mut [Completion]) -> usize {
        let count = from.len().min(to.len());
        to.iter_mut().zip(from.drain(..count)).for_each(|(place, completion)| *place = completion);
        count
    }

    fn needs_scratch(fault: Option<Fault>) -> bool {
        matches!(fault, Some(Fault::Torn(..) | Fault::FlipWrite(_)))
    }

    /// Fails all requests: a device that is gone touches no memory any more.
    fn fail_all_as_gone(&mut self) {
        let _ = self.queue.reset();
        for index in 0..self.slots.len() as u32 {
            if self.slots[index as usize].state != SlotState::Free {
                let _ = self.complete_locally(index, Err(Error::Gone));
            }
        }
    }
}

impl<Q: Queue, C: Clock> block::QueueWrapper for FaultyQueue<Q, C> {
    type Inner = Q;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Q {
        &self.queue
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)?;
        if self.arenas.iter().all(|known| known.id() != arena.id()) {
            self.arenas.push(arena.clone());
        }
        Ok(())
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if Queue::in_flight(self) >= Queue::depth(self) || self.scratch_free.is_empty() || self.torn.is_some() {
            return Submit::Full;
        }
        let fits = if self.gone { Err(Error::Gone) } else { self.queue.geometry().check(request, data) };
        if fits.is_err() {
            self.local.push_back(Completion { tag: request.tag, status: fits });
            return Submit::Queued;
        }
        let index = self.free.pop().expect("fewer in flight than slots");
        let fault = self.choose(request);
        let scratch = if Self::needs_scratch(fault) { self.scratch_free.pop() } else { None };
        let slot = &mut self.slots[index as usize];
        slot.request = *request;
        slot.spans = data.len() as u16;
        slot.state = SlotState::Forwarded;
        self.below += 1;
        slot.fault = fault;
        slot.scratch = scratch;
        let first = index as usize * self.segments;
        self.spans[first..first + data.len()].copy_from_slice(data);
        let taken = self.begin(index);
        if taken == Submit::Full {
            self.release(index);
        }
        if self.gone {
            self.fail_all_as_gone();
        }
        taken
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = Self::take(&mut self.local, completions);
        count += Self::take(&mut self.spurious, &mut completions[count..]);
        let from = count;
        let below = self.queue.poll(&mut completions[from..]);
        for at in from..from + below {
            let Completion { tag, status } = completions[at];
            if let Some(index) = self.index(tag)
                && let Some(completion) = self.complete(index, status)
            {
                completions[count] = completion;
                count += 1;
            }
        }
        if self.read_old() == Submit::Full {
            let index = self.torn.expect("just tried");
            let _ = self.complete_locally(index, Err(Error::NoResources));
        }
        self.reported(count);
        if self.delayed > 0 {
            count += self.release_delayed(&mut completions[count..]);
        }
        if self.hung > 0 {
            self.touch_hung();
        }
        count
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len() + self.local.len()) as u32
    }

    fn wait(&mut self, at_most: Duration) {
        Queue::ring(self);
        let next = self.next_delayed();
        let now = self.clock.now();
        if !self.local.is_empty() || !self.spurious.is_empty() || next <= now {
            return;
        }
        self.queue.wait(if next == Time::NEVER { at_most } else { at_most.min(next.since(now)) });
    }

    /// Returns `Ready` while completions are delayed: they have no event.
    fn arm(&mut self) -> Armed {
        if self.local.is_empty() && self.spurious.is_empty() && self.delayed == 0 { self.queue.arm() } else { Armed::Ready }
    }

    fn cancel(&mut self, tag: Tag) {
        let found = self.slots.iter().position(|slot| slot.request.tag == tag && slot.state != SlotState::Free);
        let Some(index) = found.map(|index| index as u32) else { return };
        match self.slots[index as usize].state {
            SlotState::Hung(HangKind::UntilCancel) | SlotState::AwaitingIdle => {
                let _ = self.complete_locally(index, Err(Error::Cancelled));
            }
            SlotState::Forwarded | SlotState::ReadingOld => self.queue.cancel(self.tag(index)),
            _ => {}
        }
    }

    fn reset(&mut self) -> Result<(), Error> {
        let stuck = self.slots.iter().any(|slot| slot.state == SlotState::Hung(HangKind::ForEver));
        if self.gone || stuck || self.faults.reset_fails() {
            self.faults.count(FaultKind::Reset);
            return Err(if self.gone { Error::Gone } else { Error::Timeout });
        }
        self.queue.reset()?;
        for index in 0..self.slots.len() as u32 {
            if self.slots[index as usize].state != SlotState::Free {
                self.release(index);
            }
        }
        self.local.clear();
        self.spurious.clear();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }

    fn expected(&self) -> Option<block::Time> {
        None
    }
}
