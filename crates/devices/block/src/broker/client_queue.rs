//! The client side of one queue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use shm::Region;
use shm::ring::{Consumer, Producer};

use super::connection::{BrokerError, Connection};
use super::entry::{self, Ended, Layout, SEGMENTS_MAX, Segment};
use super::refusal::Refusal;
use crate::buffer::{Arena, ArenaId, Span};
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Request};
use crate::units::Tag;

/// Empty polls after which the queue checks again whether the broker is alive.
const POLLS_PER_CHECK: u32 = 4096;

/// A queue served by the broker. A request is an entry in shared memory; the client calls the broker only when the broker sleeps.
///
/// Data must lie in the device's arena, or in a registered arena that can be shared ([`Region::shared`]). Other memory is refused
/// with [`Error::Unsupported`].
///
/// If the broker closes the queue, its unfinished requests complete with [`Ended::error`]. If the broker dies, they complete with
/// [`Error::Gone`]. The device may then still write to their memory until it has cleaned up after the broker.
#[derive(Debug)]
pub struct BrokerQueue {
    connection: Arc<Connection>,
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
    /// Completions that this side produced, of requests that the broker will not complete.
    own: CompletionRing,
    /// Requests submitted and not reported yet.
    in_flight: u32,
    ended: Option<Ended>,
    empty_polls: u32,
}

impl BrokerQueue {
    pub(super) fn new(
        connection: Arc<Connection>,
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
            arenas: connection.arenas(),
            slots: vec![None; depth as usize].into(),
            free: (0..depth).rev().collect(),
            own: CompletionRing::new(depth),
            in_flight: 0,
            ended: None,
            empty_polls: 0,
            connection,
            geometry,
            id,
            region,
            layout,
            bell,
        }
    }

    /// Returns why the queue was closed, or `None` as long as no poll has found it closed.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Returns the number of this queue in the broker's `stat`.
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

    /// Takes completions of the broker out of the ring.
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
            // A completion of an unknown slot is the broker's error; no request completes by it.
            if let Some(tag) = self.slots.get_mut(slot as usize).and_then(Option::take) {
                self.free.push(slot);
                to[count] = Completion { tag, status };
                count += 1;
            }
        }
        self.completions.show();
        count
    }

    /// Checks whether the queue was closed or the broker died. All earlier completions are in the ring.
    #[cold]
    fn look(&mut self) {
        self.empty_polls = 0;
        if self.ended.is_none() {
            let mut bell = [PollFd::new(&self.bell, PollFlags::RDHUP)];
            let dead = rustix::event::poll(&mut bell, Some(&Timespec::default())).is_ok_and(|count| count > 0)
                && bell[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP);
            // The order matters: the broker writes the reason before it closes the socket.
            self.ended = entry::read_state(&self.region).or(dead.then_some(Ended::BrokerEnds));
        }
    }

    /// Completes all requests that the broker will no longer complete.
    fn end_all(&mut self, ended: Ended) {
        for slot in 0..self.slots.len() {
            if let Some(tag) = self.slots[slot].take() {
                self.free.push(u32::try_from(slot).expect("a slot"));
                self.own.push(Completion { tag, status: Err(ended.error()) });
            }
        }
    }

    /// Drains the notifier's socket.
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
        let number = self.connection.register(arena).map_err(|error| match error {
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
        // While the ring is full, the segment table must not be written: its place is still in use.
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
            if self.empty_polls >= POLLS_PER_CHECK || self.ended.is_some() {
                self.look();
            }
            if let Some(ended) = self.ended {
                // Completions that arrived before the queue was closed come first.
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
            // The notifier of a closed queue, or of a dead broker, stays readable.
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
        // The queue may have been closed before the flag was set; `hear` has consumed that notification.
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

    /// Best effort: if the ring is full, the cancellation is dropped.
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
            // The broker drained the queue before it reported this state.
            Some(Ended::Closed | Ended::Revoked | Ended::BadCommand) => Ok(()),
            Some(_) => Err(Error::Gone),
            None => self.connection.drain(self.id, false),
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
    /// Closes the queue, and waits until the device no longer accesses memory of its requests.
    fn drop(&mut self) {
        let _ = self.connection.drain(self.id, true);
    }
}
