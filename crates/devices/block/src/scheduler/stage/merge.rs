//! Merges requests into one, and splits a merged request that failed.

use crate::clock::Clock;
use crate::error::Error;
use crate::queue::Queue;
use crate::request::{Request, Status, Urgency};

use super::super::order::Order;
use super::super::slots::NONE;
use super::Stage;

impl<Q: Queue, O: Order, C: Clock> Stage<Q, O, C> {
    /// Merges adjacent requests with this one and chains the parts. Returns the first part.
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

    /// Returns the merged request with this part; in it, the memory of `before` and `after` is adjacent. `None` if the device does
    /// not
    /// accept a request of that size.
    fn sum_of(&self, before: u32, after: u32, sum: &Sum, part: u32) -> Option<Sum> {
        let added = &self.slots[part];
        let segments = sum.segments + added.segments - u32::from(self.slots.touch(before, after));
        let request = joined(&sum.request, &added.request)?;
        let geometry = self.queue.geometry();
        let bytes = u64::from(request.blocks) * u64::from(geometry.block_bytes);
        let fits = bytes <= u64::from(geometry.transfer_bytes_max) && segments <= u32::from(geometry.segments_max);
        (fits || !request.op.has_data()).then_some(Sum { request, segments })
    }

    /// Completes the parts of a merged request, or queues them to be sent again, each alone. After a failed reset nothing is sent:
    /// parts
    /// that were not cancelled are then reported as gone, because their own status is unknown.
    pub(super) fn end_merged(&mut self, leader: u32, status: Status) {
        let split = status.is_err_and(worth_splitting);
        // A second completion of the merged request would match a slot that is sent again with the same tag.
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

/// A merged request while parts are added.
struct Sum {
    request: Request,
    segments: u32,
}

/// Returns whether the parts of a merged request are sent again after this error. They are not if the device may still access their
/// memory (Timeout, from an inner queue that abandons requests), no longer responds (Gone), or was reset. The layer that uses the
/// scheduler then decides.
pub(in super::super) fn worth_splitting(error: Error) -> bool {
    !matches!(error, Error::Timeout | Error::Gone | Error::Reset)
}

/// Returns two adjacent requests as one; `None` if it has too many blocks. It has the higher urgency and the lower class number.
pub(super) fn joined(one: &Request, other: &Request) -> Option<Request> {
    let urgency = match (one.urgency, other.urgency) {
        (Urgency::Urgent, _) | (_, Urgency::Urgent) => Urgency::Urgent,
        (Urgency::Normal, _) | (_, Urgency::Normal) => Urgency::Normal,
        (Urgency::Batch, Urgency::Batch) => Urgency::Batch,
    };
    let blocks = one.blocks.checked_add(other.blocks)?;
    Some(Request { lba: one.lba.min(other.lba), blocks, urgency, class: one.class.min(other.class), ..*one })
}
