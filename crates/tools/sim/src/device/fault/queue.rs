//! The queue that injects.

mod damage;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use block::buffer::ArenaId;
use block::{Arena, Armed, Clock, Completion, Error, Geometry, Lba, Queue, Request, Span, Status, Submit, Tag, Time};
use shm::{PageSize, Region};

use self::damage::flip;
use super::rules::{Active, Fault, Faults, Hang, Kind};

/// The biggest write that can be torn or flipped, bytes.
const SCRATCH_BYTES: usize = 128 << 10;
/// How many of them at a time; with more the queue is full.
const SCRATCHES: u32 = 16;
/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Below,
    /// A torn write waits until it is alone: between reading what is there and writing it back nobody else may write.
    Waits,
    /// A torn write reads what is there.
    ReadsOld,
    Hangs(Hang),
    /// It has ended, and is reported later.
    Held(Status, Until),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Until {
    Time(Time),
    /// So many others are reported.
    Others(u32),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    request: Request,
    spans: u16,
    generation: u32,
    state: State,
    fault: Option<Fault>,
    scratch: Option<u32>,
}

/// See [`super`].
///
/// The life of a slot: Free, `submit`, Below (Waits and ReadsOld before it for a torn write), completion, (Held,) Free; or Free, `submit`,
/// Hangs, `cancel` or `reset`, Free.
pub struct Faulty<Q, C> {
    queue: Q,
    clock: C,
    faults: Faults,
    rules: Vec<Arc<Active>>,
    version: u64,
    random: fastrand::Rng,
    slots: Box<[Slot]>,
    spans: Box<[Span]>,
    segments: usize,
    free: Vec<u32>,
    own: VecDeque<Completion>,
    /// Completions that nobody is owed.
    extra: VecDeque<Completion>,
    held: u32,
    hung: u32,
    below: u32,
    /// The torn write under way: until it has ended the queue is full.
    torn: Option<u32>,
    arenas: Vec<Arena>,
    scratch: Arena,
    scratch_free: Vec<u32>,
    bytes: Vec<u8>,
    strays: u64,
    gone: bool,
}

impl<Q: Queue, C: Clock> Faulty<Q, C> {
    /// As deep as the queue below. The clock is that of the model below.
    ///
    /// # Errors
    /// No memory.
    pub fn new(mut queue: Q, clock: C, faults: &Faults, seed: u64) -> io::Result<Faulty<Q, C>> {
        let depth = queue.depth();
        let segments = usize::from(queue.geometry().segments_max);
        // Pages that no fault needs are never touched.
        let scratch = Arena::over(Arc::new(Region::private(SCRATCH_BYTES * SCRATCHES as usize, PageSize::Small)?));
        queue.register(&scratch).map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        let request = Request::flush(Tag(0));
        let slot = Slot { request, spans: 0, generation: 0, state: State::Free, fault: None, scratch: None };
        Ok(Faulty {
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
            own: VecDeque::with_capacity(depth as usize),
            extra: VecDeque::with_capacity(depth as usize),
            held: 0,
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

    /// The rules and counters.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The queue below.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// What happens to this request.
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
        let ours = matches!(slot.state, State::Below | State::ReadsOld) && u64::from(slot.generation) == tag.0 >> 32;
        ours.then_some(index)
    }

    fn memory(&self, index: u32) -> &[Span] {
        let first = index as usize * self.segments;
        &self.spans[first..first + usize::from(self.slots[index as usize].spans)]
    }

    fn release(&mut self, index: u32) -> Tag {
        let slot = &mut self.slots[index as usize];
        match slot.state {
            State::Held(..) => self.held -= 1,
            State::Hangs(_) => self.hung -= 1,
            State::Below | State::ReadsOld => self.below -= 1,
            State::Free | State::Waits => {}
        }
        self.torn = self.torn.filter(|torn| *torn != index);
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(scratch) = slot.scratch.take() {
            self.scratch_free.push(scratch);
        }
        self.free.push(index);
        slot.request.tag
    }

    fn end_here(&mut self, index: u32, status: Status) -> Submit {
        let tag = self.release(index);
        self.own.push_back(Completion { tag, status });
        Submit::Queued
    }

    /// Hands a request down as its fault has it.
    fn begin(&mut self, index: u32) -> Submit {
        let slot = self.slots[index as usize];
        let below = Request { tag: self.tag(index), ..slot.request };
        match slot.fault {
            Some(Fault::Fail(error)) => self.end_here(index, Err(error)),
            Some(Fault::Lost) => self.end_here(index, Ok(())),
            Some(Fault::Gone) => {
                self.gone = true;
                self.end_here(index, Err(Error::Gone))
            }
            Some(Fault::Hang(hang)) => {
                self.enter(index, State::Hangs(hang));
                self.hung += 1;
                Submit::Queued
            }
            Some(Fault::Torn(..)) => {
                self.enter(index, State::Waits);
                self.torn = Some(index);
                self.read_old()
            }
            Some(Fault::FlipWrite(bits)) => {
                let bytes = self.gather(index);
                flip(&mut self.bytes[..bytes], bits, &mut self.random);
                self.fill_scratch(index, bytes);
                self.submit_scratch(index, below)
            }
            Some(Fault::Misdirected(to)) => {
                let last = self.queue.geometry().blocks - u64::from(below.blocks);
                let lba = to.map_or_else(|| self.random.u64(..=last), |lba| lba.0.min(last));
                self.hand_down(index, &Request { lba: Lba(lba), ..below })
            }
            _ => self.hand_down(index, &below),
        }
    }

    /// From Below, where every slot begins.
    fn enter(&mut self, index: u32, state: State) {
        debug_assert_eq!(self.slots[index as usize].state, State::Below);
        self.below -= 1;
        self.slots[index as usize].state = state;
    }

    fn hand_down(&mut self, index: u32, below: &Request) -> Submit {
        let first = index as usize * self.segments;
        let spans = usize::from(self.slots[index as usize].spans);
        self.queue.submit(below, &self.spans[first..first + spans])
    }

    /// What the queue below says of a slot, as it is reported now, if it is.
    fn end(&mut self, index: u32, status: Status) -> Option<Completion> {
        let slot = self.slots[index as usize];
        if slot.state == State::ReadsOld && status.is_ok() {
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
                return self.hold(index, status, Until::Time(until));
            }
            Some(Fault::Late(others)) => return self.hold(index, status, Until::Others(others)),
            Some(Fault::Twice) => self.extra.push_back(Completion { tag: slot.request.tag, status }),
            Some(Fault::Stray) => {
                self.strays += 1;
                self.extra.push_back(Completion { tag: Tag(u64::MAX - self.strays), status });
            }
            _ => {}
        }
        let tag = self.release(index);
        Some(Completion { tag, status })
    }

    fn hold(&mut self, index: u32, status: Status, until: Until) -> Option<Completion> {
        self.enter(index, State::Held(status, until));
        self.held += 1;
        None
    }

    /// Reports what was held back long enough.
    fn let_go(&mut self, completions: &mut [Completion]) -> usize {
        let now = self.clock.now();
        let alone = self.in_flight() == self.held + self.hung;
        let mut count = 0;
        for index in 0..self.slots.len() as u32 {
            let State::Held(status, until) = self.slots[index as usize].state else { continue };
            let over = match until {
                Until::Time(time) => time <= now,
                Until::Others(others) => others == 0 || alone,
            };
            if over && count < completions.len() {
                completions[count] = Completion { tag: self.release(index), status };
                count += 1;
            }
        }
        count
    }

    fn reported(&mut self, count: usize) {
        if self.held == 0 || count == 0 {
            return;
        }
        for slot in &mut self.slots {
            if let State::Held(_, Until::Others(others)) = &mut slot.state {
                *others = others.saturating_sub(count as u32);
            }
        }
    }

    fn next_held(&self) -> Time {
        let until = |slot: &Slot| match slot.state {
            State::Held(_, Until::Time(time)) => time,
            State::Held(_, Until::Others(0)) => Time(0),
            _ => Time::NEVER,
        };
        if self.held == 0 { Time::NEVER } else { self.slots.iter().map(until).min().unwrap_or(Time::NEVER) }
    }

    fn take(from: &mut VecDeque<Completion>, to: &mut [Completion]) -> usize {
        let count = from.len().min(to.len());
        to.iter_mut().zip(from.drain(..count)).for_each(|(place, completion)| *place = completion);
        count
    }

    fn needs_scratch(fault: Option<Fault>) -> bool {
        matches!(fault, Some(Fault::Torn(..) | Fault::FlipWrite(_)))
    }

    /// A device that goes takes everything with it, and touches nothing any more.
    fn end_all_as_gone(&mut self) {
        let _ = self.queue.reset();
        for index in 0..self.slots.len() as u32 {
            if self.slots[index as usize].state != State::Free {
                let _ = self.end_here(index, Err(Error::Gone));
            }
        }
    }
}

impl<Q: Queue, C: Clock> Queue for Faulty<Q, C> {
    fn geometry(&self) -> &Geometry {
        self.queue.geometry()
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
        if self.in_flight() >= self.depth() || self.scratch_free.is_empty() || self.torn.is_some() {
            return Submit::Full;
        }
        let fits = if self.gone { Err(Error::Gone) } else { self.queue.geometry().check(request, data) };
        if fits.is_err() {
            self.own.push_back(Completion { tag: request.tag, status: fits });
            return Submit::Queued;
        }
        let index = self.free.pop().expect("fewer in flight than slots");
        let fault = self.choose(request);
        let scratch = if Self::needs_scratch(fault) { self.scratch_free.pop() } else { None };
        let slot = &mut self.slots[index as usize];
        slot.request = *request;
        slot.spans = data.len() as u16;
        slot.state = State::Below;
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
            self.end_all_as_gone();
        }
        taken
    }

    #[inline]
    fn ring(&mut self) {
        self.queue.ring();
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = Self::take(&mut self.own, completions);
        count += Self::take(&mut self.extra, &mut completions[count..]);
        let from = count;
        let below = self.queue.poll(&mut completions[from..]);
        for at in from..from + below {
            let Completion { tag, status } = completions[at];
            if let Some(index) = self.index(tag)
                && let Some(completion) = self.end(index, status)
            {
                completions[count] = completion;
                count += 1;
            }
        }
        if self.read_old() == Submit::Full {
            let index = self.torn.expect("just tried");
            let _ = self.end_here(index, Err(Error::NoResources));
        }
        self.reported(count);
        if self.held > 0 {
            count += self.let_go(&mut completions[count..]);
        }
        if self.hung > 0 {
            self.touch_hung();
        }
        count
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len() + self.own.len()) as u32
    }

    fn wait(&mut self, at_most: Duration) {
        self.ring();
        let next = self.next_held();
        let now = self.clock.now();
        if !self.own.is_empty() || !self.extra.is_empty() || next <= now {
            return;
        }
        self.queue.wait(if next == Time::NEVER { at_most } else { at_most.min(next.since(now)) });
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event()
    }

    /// While completions are held back it says that there are some: they have no event of their own.
    fn arm(&mut self) -> Armed {
        if self.own.is_empty() && self.extra.is_empty() && self.held == 0 { self.queue.arm() } else { Armed::Ready }
    }

    fn cancel(&mut self, tag: Tag) {
        let found = self.slots.iter().position(|slot| slot.request.tag == tag && slot.state != State::Free);
        let Some(index) = found.map(|index| index as u32) else { return };
        match self.slots[index as usize].state {
            State::Hangs(Hang::UntilCancel) | State::Waits => {
                let _ = self.end_here(index, Err(Error::Cancelled));
            }
            State::Below | State::ReadsOld => self.queue.cancel(self.tag(index)),
            _ => {}
        }
    }

    fn reset(&mut self) -> Result<(), Error> {
        let stuck = self.slots.iter().any(|slot| slot.state == State::Hangs(Hang::ForEver));
        if self.gone || stuck || self.faults.reset_fails() {
            self.faults.count(Kind::Reset);
            return Err(if self.gone { Error::Gone } else { Error::Timeout });
        }
        self.queue.reset()?;
        for index in 0..self.slots.len() as u32 {
            if self.slots[index as usize].state != State::Free {
                self.release(index);
            }
        }
        self.own.clear();
        self.extra.clear();
        Ok(())
    }
}
