//! The client's side of one queue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use shm::Region;
use shm::ring::{Consumer, Producer};

use super::client::{BrokerError, Session};
use super::entry::{self, Ended, Layout, SEGMENTS_MAX, Segment};
use super::refusal::Refusal;
use crate::buffer::{Arena, ArenaId, Span};
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Request};
use crate::units::Tag;

/// Polls that found nothing, between two looks whether the broker still lives.
const POLLS_PER_LOOK: u32 = 4096;

/// A queue of the broker's. A request is an entry in shared memory; the broker is called only when it sleeps.
///
/// Memory is the device's arena, or one that was registered and can be shared ([`Region::shared`]); any other is refused with
/// [`Error::Unsupported`]. When the broker ends the queue, requests it has not done end as [`Ended::error`] says; when the
/// broker dies, they end with [`Error::Gone`], and their memory may still be written by the device until it has cleaned up
/// after the broker.
#[derive(Debug)]
pub struct BrokerQueue {
    session: Arc<Session>,
    geometry: Geometry,
    id: u64,
    region: Arc<Region>,
    layout: Layout,
    bell: OwnedFd,
    commands: Producer<Arc<Region>>,
    completions: Consumer<Arc<Region>>,
    arenas: Vec<(ArenaId, u32)>,
    /// The tags in flight, by slot.
    slots: Box<[Option<Tag>]>,
    free: Vec<u32>,
    /// Ended here.
    own: CompletionRing,
    /// Taken and not reported.
    in_flight: u32,
    ended: Option<Ended>,
    empty_polls: u32,
}

impl BrokerQueue {
    pub(super) fn new(
        session: Arc<Session>,
        geometry: Geometry,
        id: u64,
        region: Arc<Region>,
        layout: Layout,
        bell: OwnedFd,
    ) -> BrokerQueue {
        let depth = layout.depth;
        BrokerQueue {
            commands: Producer::new(region.clone(), layout.commands),
            completions: Consumer::new(region.clone(), layout.completions),
            arenas: session.arenas(),
            slots: vec![None; depth as usize].into(),
            free: (0..depth).rev().collect(),
            own: CompletionRing::new(depth),
            in_flight: 0,
            ended: None,
            empty_polls: 0,
            session,
            geometry,
            id,
            region,
            layout,
            bell,
        }
    }

    /// Why the queue takes nothing any more, if so. As far as a poll has seen it.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Its name in the broker's `stat`.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn fail(&mut self, tag: Tag, error: Error) -> Submit {
        self.in_flight += 1;
        self.own.push(Completion { tag, status: Err(error) });
        Submit::Queued
    }

    #[inline]
    fn segment(arenas: &[(ArenaId, u32)], span: &Span) -> Option<Segment> {
        let (_, arena) = arenas.iter().find(|(id, _)| *id == span.arena)?;
        Some(Segment { at: span.at, bytes: span.bytes, arena: *arena })
    }

    fn ring_broker(&self) {
        let _ = rustix::net::send(&self.bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Moves out what the broker has ended.
    #[inline]
    fn take(&mut self, to: &mut [Completion]) -> usize {
        let mut count = 0;
        let mut bytes = [0; 8];
        while count < to.len() {
            match self.completions.take(&mut bytes) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    self.ended = Some(Ended::BrokenRing);
                    break;
                }
            }
            let (slot, status) = entry::decode_completion(&bytes);
            // A broker that reports what was not asked for is at fault; nothing of ours ends by it.
            if let Some(tag) = self.slots.get_mut(slot as usize).and_then(Option::take) {
                self.free.push(slot);
                to[count] = Completion { tag, status };
                count += 1;
            }
        }
        self.completions.show();
        count
    }

    /// Looks whether the queue was closed, or the broker died. Whatever was completed before that is in the ring.
    #[cold]
    fn look(&mut self) {
        self.empty_polls = 0;
        if self.ended.is_none() {
            let mut bell = [PollFd::new(&self.bell, PollFlags::RDHUP)];
            let dead = rustix::event::poll(&mut bell, Some(&Timespec::default())).is_ok_and(|count| count > 0)
                && bell[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP);
            // In this order: who closes says why, then hangs up.
            self.ended = entry::read_state(&self.region).or(dead.then_some(Ended::BrokerEnds));
        }
    }

    /// Ends what the broker will not.
    fn end_all(&mut self, ended: Ended) {
        for slot in 0..self.slots.len() {
            if let Some(tag) = self.slots[slot].take() {
                self.free.push(u32::try_from(slot).expect("a slot"));
                self.own.push(Completion { tag, status: Err(ended.error()) });
            }
        }
    }

    /// Takes the bytes of the bell.
    fn hear(&self) {
        while matches!(rustix::net::recv(&self.bell, &mut [0; 256], RecvFlags::DONTWAIT), Ok((_, 1..))) {}
    }
}

impl Queue for BrokerQueue {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.layout.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        if self.arenas.iter().any(|(id, _)| *id == arena.id()) {
            return Ok(());
        }
        let number = self.session.register(arena).map_err(|error| match error {
            BrokerError::Refused(Refusal::BadMemory { .. }) => Error::Unsupported,
            BrokerError::Refused(Refusal::DeviceFailed { .. } | Refusal::TooMuchMemory { .. }) => Error::NoResources,
            BrokerError::Refused(_) => Error::NotPermitted,
            _ => Error::Gone,
        })?;
        self.arenas.push((arena.id(), number));
        Ok(())
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.layout.depth {
            return Submit::Full;
        }
        if let Some(ended) = self.ended {
            return self.fail(request.tag, ended.error());
        }
        if data.len() > SEGMENTS_MAX {
            return self.fail(request.tag, Error::Misaligned);
        }
        if !data.iter().all(|span| BrokerQueue::segment(&self.arenas, span).is_some()) {
            return self.fail(request.tag, Error::NotPermitted);
        }
        let Some(&slot) = self.free.last() else { return Submit::Full };
        let segments = data.iter().map(|span| BrokerQueue::segment(&self.arenas, span).expect("looked for above"));
        let ring_slot = self.commands.next_slot();
        // Before there is room nothing may be written beside the ring.
        if let Ok(false) = self.commands.has_room() {
            return Submit::Full;
        }
        let bytes = entry::encode_request(&self.region, &self.layout, ring_slot, request, slot, segments);
        match self.commands.push(&bytes) {
            Ok(true) => {}
            Ok(false) => return Submit::Full,
            Err(_) => {
                self.ended = Some(Ended::BrokenRing);
                return self.fail(request.tag, Error::NotPermitted);
            }
        }
        self.free.pop();
        self.slots[slot as usize] = Some(request.tag);
        self.in_flight += 1;
        Submit::Queued
    }

    #[inline]
    fn ring(&mut self) {
        if self.commands.show() {
            self.ring_broker();
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let own = self.own.take(completions);
        let mut count = own + self.take(&mut completions[own..]);
        if count == 0 && self.in_flight > 0 {
            self.empty_polls += 1;
            if self.empty_polls >= POLLS_PER_LOOK || self.ended.is_some() {
                self.look();
            }
            if let Some(ended) = self.ended {
                // What was completed before the end.
                count = self.take(completions);
                if count == 0 {
                    self.end_all(ended);
                    count = self.own.take(completions);
                }
            }
        }
        self.in_flight -= u32::try_from(count).expect("no more than the depth");
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        self.ring();
        let end = Instant::now().checked_add(at_most);
        loop {
            if self.own.len() > 0 || self.in_flight == 0 || self.ended.is_some() || self.arm() == Armed::Ready {
                break;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            let limit = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
            let _ = rustix::event::poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], limit.as_ref());
            // The bell of a queue that was closed, or of a broker that died, rings for ever.
            self.look();
        }
        self.completions.wake();
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn arm(&mut self) -> Armed {
        self.hear();
        if self.own.len() > 0 || self.ended.is_some() {
            return Armed::Ready;
        }
        let asleep = self.completions.sleep();
        // Closed before the flag was up: that bell was taken just now.
        self.look();
        match asleep {
            Ok(true) if self.ended.is_none() => Armed::Waiting,
            Ok(_) => Armed::Ready,
            Err(_) => {
                self.ended = Some(Ended::BrokenRing);
                Armed::Ready
            }
        }
    }

    /// Best effort: a broker whose ring is full hears nothing of it.
    fn cancel(&mut self, tag: Tag) {
        let Some(slot) = self.slots.iter().position(|known| *known == Some(tag)) else { return };
        let slot = u32::try_from(slot).expect("a slot");
        if let Ok(true) = self.commands.push(&entry::encode_cancel(slot)) {
            self.ring();
        }
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.ring();
        let drained = match self.ended {
            // The broker has drained it before it said so.
            Some(Ended::Closed | Ended::Revoked | Ended::BadCommand) => Ok(()),
            Some(_) => Err(Error::Gone),
            None => self.session.drain(self.id, false),
        };
        if self.completions.discard().is_err() {
            self.ended = Some(Ended::BrokenRing);
        }
        drained.inspect_err(|_| self.look())?;
        let mut none = [Completion::EMPTY; 64];
        while self.own.take(&mut none) > 0 {}
        self.slots.fill(None);
        self.free.clear();
        self.free.extend((0..self.layout.depth).rev());
        self.in_flight = 0;
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

impl Drop for BrokerQueue {
    /// Gives it back, and waits until the device touches no memory of its requests.
    fn drop(&mut self) {
        let _ = self.session.drain(self.id, true);
    }
}
