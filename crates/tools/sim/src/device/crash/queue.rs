//! The queue that tracks durability.

use std::sync::Arc;

use block::{Arena, Completion, Error, Geometry, Op, Queue, Request, Span, Status, Submit, Tag};

use super::medium::{FlushStart, Medium};

#[derive(Clone, Copy, Debug)]
enum SlotOp {
    /// The slot is free.
    Free,
    /// The request does not change the medium.
    Read,
    /// The write's id, and whether it is durable on completion.
    Write(u64, bool),
    Flush(FlushStart),
}

#[derive(Clone, Copy, Debug)]
struct RequestSlot {
    tag: Tag,
    generation: u32,
    op: SlotOp,
}

/// A queue with a volatile write cache; see [`super`]. It copies the data of each write, and so allocates.
///
/// The inner queue (a model or memory) must complete requests in the order in which it does them, and a failed request must have had no
/// effect. Fault injection goes above this queue.
pub struct VolatileQueue<Q> {
    queue: Q,
    medium: Medium,
    geometry: Geometry,
    slots: Box<[RequestSlot]>,
    free: Vec<u32>,
    arenas: Vec<Arena>,
}

impl<Q: Queue> VolatileQueue<Q> {
    /// Wraps a queue, with or without a volatile cache; without one a power cut affects requests in flight only. `medium` has the content
    /// of the inner queue; queues of one device share it.
    pub fn new(queue: Q, medium: &Medium, volatile_cache: bool) -> VolatileQueue<Q> {
        let depth = queue.depth();
        let geometry = Geometry { volatile_cache, ..queue.geometry().clone() };
        let slot = RequestSlot { tag: Tag(0), generation: 0, op: SlotOp::Free };
        let slots = vec![slot; depth as usize].into();
        VolatileQueue { queue, medium: medium.clone(), geometry, slots, free: (0..depth).rev().collect(), arenas: Vec::new() }
    }

    /// Returns the durability state of the device.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// Returns the inner queue, mutably.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn data(&self, request: &Request, spans: &[Span]) -> Arc<[u8]> {
        let mut data = vec![0; request.blocks as usize * self.geometry.block_bytes as usize];
        let mut at = 0;
        for span in spans {
            let to = &mut data[at..at + span.bytes as usize];
            if let Some(arena) = self.arenas.iter().find(|arena| arena.id() == span.arena) {
                arena.region().read(span.at as usize, to);
            }
            at += span.bytes as usize;
        }
        data.into()
    }

    /// Records the request before it is forwarded, because the inner queue may do it during `submit`.
    fn record_submit(&self, request: &Request, spans: &[Span]) -> SlotOp {
        if self.geometry.check(request, spans).is_err() {
            return SlotOp::Read;
        }
        let at = (request.lba.0 * u64::from(self.geometry.block_bytes)) as usize;
        match request.op {
            Op::Read => SlotOp::Read,
            Op::Flush => SlotOp::Flush(self.medium.begin_flush()),
            op => {
                let id = self.medium.begin_write(at, self.data(request, spans), op == Op::Discard);
                SlotOp::Write(id, op != Op::Discard && (request.fua || !self.geometry.volatile_cache))
            }
        }
    }

    fn record_completion(&mut self, op: SlotOp, status: Status) {
        match (op, status) {
            (SlotOp::Write(id, through), Ok(())) => self.medium.complete_write(id, through),
            (SlotOp::Write(id, _), Err(_)) => self.medium.fail_write(id),
            (SlotOp::Flush(from), Ok(())) => self.medium.complete_flush(from),
            _ => {}
        }
    }
}

impl<Q: Queue> block::QueueWrapper for VolatileQueue<Q> {
    type Inner = Q;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Q {
        &self.queue
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)?;
        if self.arenas.iter().all(|known| known.id() != arena.id()) {
            self.arenas.push(arena.clone());
        }
        Ok(())
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        let Some(&index) = self.free.last() else { return Submit::Full };
        let op = self.record_submit(request, data);
        let slot = &mut self.slots[index as usize];
        let below = Request { tag: Tag(u64::from(slot.generation) << 32 | u64::from(index)), ..*request };
        if self.queue.submit(&below, data) == Submit::Full {
            self.record_completion(op, Err(Error::NoResources));
            return Submit::Full;
        }
        *slot = RequestSlot { tag: request.tag, op, ..*slot };
        self.free.pop();
        Submit::Queued
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let below = self.queue.poll(completions);
        let mut count = 0;
        for at in 0..below {
            let Completion { tag, status } = completions[at];
            let index = (tag.0 & 0xffff_ffff) as usize;
            let Some(slot) = self.slots.get(index).copied() else { continue };
            if matches!(slot.op, SlotOp::Free) || u64::from(slot.generation) != tag.0 >> 32 {
                continue;
            }
            self.record_completion(slot.op, status);
            self.slots[index] = RequestSlot { generation: slot.generation.wrapping_add(1), op: SlotOp::Free, ..slot };
            self.free.push(index as u32);
            completions[count] = Completion { tag: slot.tag, status };
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    fn cancel(&mut self, tag: Tag) {
        let found = self.slots.iter().position(|slot| slot.tag == tag && !matches!(slot.op, SlotOp::Free));
        if let Some(index) = found {
            self.queue.cancel(Tag(u64::from(self.slots[index].generation) << 32 | index as u64));
        }
    }

    /// Requests in flight may or may not have been done.
    fn reset(&mut self) -> Result<(), Error> {
        self.queue.reset()?;
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            if !matches!(slot.op, SlotOp::Free) {
                if let SlotOp::Write(id, _) = slot.op {
                    self.medium.abandon_write(id);
                }
                self.slots[index] = RequestSlot { generation: slot.generation.wrapping_add(1), op: SlotOp::Free, ..slot };
                self.free.push(index as u32);
            }
        }
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}
