//! The requests in flight: their tags above, their kinds, and their submission times.
//!
//! Requests of one kind are chained in submission order, so the next one due of a kind is the first of its chain.

use std::time::Duration;

use super::predictor::{Kind, Predictor};
use crate::clock::Time;
use crate::request::Urgency;
use crate::units::Tag;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Flown {
    /// The tag that the caller gave to the request.
    pub tag: Tag,
    /// The earliest time at which the device could see the request; `NEVER` if nothing is predicted for it.
    pub since: Time,
    /// The kind of the request, for the prediction.
    pub kind: Kind,
    /// The urgency that the caller gave to the request.
    pub urgency: Urgency,
}

#[derive(Clone, Copy, Debug)]
struct FlightSlot {
    flown: Flown,
    taken: bool,
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    last: u32,
}

/// The next completion for which a poll is worthwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    /// The kind of the request that is due.
    pub kind: Kind,
    /// The time when its completion is predicted.
    pub at: Time,
    /// The predicted latency; `None` if nothing is known of its kind.
    pub latency: Option<Duration>,
    /// The time by which a poll may be late.
    pub slack: Duration,
}

/// The requests in flight, at most the depth of the queue. The index of a slot is the tag that the driver sees.
#[derive(Debug)]
pub(super) struct Flight {
    slots: Box<[FlightSlot]>,
    free: Vec<u32>,
    chains: [Chain; Kind::COUNT],
    /// A bit for each kind with requests in flight.
    kinds: u32,
    urgent: u32,
    batch: u32,
    /// One [`Predictor`] for each kind of request.
    pub predictors: [Predictor; Kind::COUNT],
}

const _: () = assert!(Kind::COUNT <= 32);

impl Flight {
    pub(super) fn new(depth: u32) -> Flight {
        let flown = Flown { tag: Tag(0), since: Time::NEVER, kind: Kind(0), urgency: Urgency::Normal };
        Flight {
            slots: vec![FlightSlot { flown, taken: false, before: NONE, after: NONE }; depth as usize].into(),
            free: (0..depth).rev().collect(),
            chains: [Chain { first: NONE, last: NONE }; Kind::COUNT],
            kinds: 0,
            urgent: 0,
            batch: 0,
            predictors: [Predictor::default(); Kind::COUNT],
        }
    }

    pub(super) fn len(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Returns the driver tag of the next request; `None` if the queue is full.
    #[inline]
    pub(super) fn next(&self) -> Option<Tag> {
        self.free.last().map(|index| Tag(u64::from(*index)))
    }

    /// Takes the slot that `next` returned.
    #[inline]
    pub(super) fn take(&mut self, flown: Flown) {
        let index = self.free.pop().expect("next named one");
        let slot = &mut self.slots[index as usize];
        slot.flown = flown;
        slot.taken = true;
        if flown.since != Time::NEVER {
            self.chain(index, flown);
        }
    }

    fn chain(&mut self, index: u32, flown: Flown) {
        let chain = &mut self.chains[usize::from(flown.kind.0)];
        let slot = &mut self.slots[index as usize];
        (slot.before, slot.after) = (chain.last, NONE);
        match chain.last {
            NONE => chain.first = index,
            last => self.slots[last as usize].after = index,
        }
        chain.last = index;
        self.kinds |= 1 << flown.kind.0;
        self.count(flown.urgency, 1);
    }

    /// Frees the slot of a completed request; returns `None` if no request has this driver tag.
    #[inline]
    pub(super) fn end(&mut self, below: Tag) -> Option<Flown> {
        let index = u32::try_from(below.0).ok()?;
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.taken)?;
        slot.taken = false;
        let flown = slot.flown;
        self.free.push(index);
        if flown.since != Time::NEVER {
            self.unchain(index);
        }
        Some(flown)
    }

    fn unchain(&mut self, index: u32) {
        let slot = self.slots[index as usize];
        let chain = &mut self.chains[usize::from(slot.flown.kind.0)];
        match slot.before {
            NONE => chain.first = slot.after,
            before => self.slots[before as usize].after = slot.after,
        }
        match slot.after {
            NONE => chain.last = slot.before,
            after => self.slots[after as usize].before = slot.before,
        }
        if chain.first == NONE {
            self.kinds &= !(1 << slot.flown.kind.0);
        }
        self.count(slot.flown.urgency, -1);
    }

    fn count(&mut self, urgency: Urgency, change: i32) {
        match urgency {
            Urgency::Urgent => self.urgent = self.urgent.wrapping_add_signed(change),
            Urgency::Batch => self.batch = self.batch.wrapping_add_signed(change),
            Urgency::Normal => {}
        }
    }

    /// Returns the driver tag of a request. Searches all slots: for cancellation only.
    pub(super) fn below(&self, tag: Tag) -> Option<Tag> {
        self.slots.iter().position(|slot| slot.taken && slot.flown.tag == tag).map(|index| Tag(index as u64))
    }

    pub(super) fn clear(&mut self) {
        for index in 0..self.slots.len() {
            self.end(Tag(index as u64));
        }
    }

    pub(super) fn has_urgent(&self) -> bool {
        self.urgent > 0
    }

    /// Returns the next completion worth a poll: the last of a batch, else the first. `None` if nothing in flight is predicted.
    #[inline]
    pub(super) fn due(&self) -> Option<Due> {
        let all_batch = self.batch > 0 && self.batch == self.len();
        let mut next: Option<Due> = None;
        let mut kinds = self.kinds;
        while kinds != 0 {
            let kind = kinds.trailing_zeros();
            kinds &= kinds - 1;
            let due = self.due_of(Kind(kind as u8), all_batch);
            next = match next {
                Some(next) if (next.at <= due.at) != all_batch => Some(next),
                _ => Some(due),
            };
        }
        next
    }

    fn due_of(&self, kind: Kind, last: bool) -> Due {
        let chain = self.chains[usize::from(kind.0)];
        let since = self.slots[if last { chain.last } else { chain.first } as usize].flown.since;
        let latency = self.predictors[usize::from(kind.0)].estimate();
        let slack = if kind.is_large() { latency.unwrap_or_default() / 8 } else { Duration::ZERO };
        Due { kind, at: since.after(latency.unwrap_or_default()), latency, slack }
    }
}
