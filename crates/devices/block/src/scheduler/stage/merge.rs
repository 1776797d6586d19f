//! Several requests as one, and one as several again.

use crate::clock::Clock;
use crate::error::Error;
use crate::queue::Queue;
use crate::request::{Request, Status, Urgency};

use super::super::order::Order;
use super::super::slots::NONE;
use super::Stage;

impl<Q: Queue, O: Order, C: Clock> Stage<Q, O, C> {
    /// Chains to it what goes with it in one request; returns the first part.
    pub(super) fn merge(&mut self, slot: u32) -> u32 {
        let mut sum = Sum { request: self.slots[slot].request, segments: self.slots[slot].segments };
        let (mut first, mut last) = (slot, slot);
        while let Some(part) = self.order.before(&sum.request) {
            let Some(larger) = self.sum_of(part, first, &sum, part) else { break };
            sum = larger;
            self.slots[part].next = first;
            first = part;
            self.take_out(part);
        }
        while let Some(part) = self.order.after(&sum.request) {
            let Some(larger) = self.sum_of(last, part, &sum, part) else { break };
            sum = larger;
            self.slots[last].next = part;
            last = part;
            self.take_out(part);
        }
        first
    }

    pub(super) fn take_out(&mut self, slot: u32) {
        let request = self.slots[slot].request;
        self.order.remove(slot, &request);
        self.ready -= 1;
    }

    /// What it becomes with this part, of which `before` and `after` then touch; none if the device does not take so much.
    fn sum_of(&self, before: u32, after: u32, sum: &Sum, part: u32) -> Option<Sum> {
        let added = &self.slots[part];
        let segments = sum.segments + added.segments - u32::from(self.slots.touch(before, after));
        let request = joined(&sum.request, &added.request)?;
        let geometry = self.queue.geometry();
        let bytes = u64::from(request.blocks) * u64::from(geometry.block_bytes);
        let fits = bytes <= u64::from(geometry.transfer_bytes_max) && segments <= u32::from(geometry.segments_max);
        (fits || !request.op.has_data()).then_some(Sum { request, segments })
    }

    /// A merged request has ended: so have its parts, or they go down again, each alone. After a reset that failed nothing
    /// goes down: then nobody knows how the others were, who did not ask to be cancelled.
    pub(super) fn end_merged(&mut self, leader: u32, status: Status) {
        let split = status.is_err_and(worth_splitting);
        // A second completion of the merged one would find a slot that is sent again under the same tag.
        self.slots[leader].generation = self.slots[leader].generation.wrapping_add(1);
        let mut part = leader;
        while part != NONE {
            let held = &mut self.slots[part];
            let next = std::mem::replace(&mut held.next, NONE);
            let is_its_own = !split || held.cancelled && status == Err(Error::Cancelled);
            if is_its_own || self.gone {
                let ended = self.finish(part, if is_its_own { status } else { Err(Error::Gone) });
                self.ended.push(ended);
            } else {
                self.wait_again(part, false);
            }
            part = next;
        }
    }
}

/// A merged request while it grows.
struct Sum {
    request: Request,
    segments: u32,
}

/// Whether the parts of a merged request that failed so are asked for again. Not when the device may still read or write
/// their memory (Timeout, from a queue below that gives up), nor when it answers nothing (Gone) or was reset: then who is
/// above decides.
pub(in super::super) fn worth_splitting(error: Error) -> bool {
    !matches!(error, Error::Timeout | Error::Gone | Error::Reset)
}

/// Two adjacent requests as one; none if it has too many blocks. As urgent as the more urgent, and of the class that comes
/// first.
pub(super) fn joined(one: &Request, other: &Request) -> Option<Request> {
    let urgency = match (one.urgency, other.urgency) {
        (Urgency::Urgent, _) | (_, Urgency::Urgent) => Urgency::Urgent,
        (Urgency::Normal, _) | (_, Urgency::Normal) => Urgency::Normal,
        (Urgency::Batch, Urgency::Batch) => Urgency::Batch,
    };
    let blocks = one.blocks.checked_add(other.blocks)?;
    Some(Request { lba: one.lba.min(other.lba), blocks, urgency, class: one.class.min(other.class), ..*one })
}
