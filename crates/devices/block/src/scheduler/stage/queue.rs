//! The [`Queue`] interface of a stage.

use std::time::Duration;

use crate::buffer::Span;
use crate::clock::{Clock, Time};
use crate::error::Error;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request};
use crate::units::{Lba, Tag};

use super::super::slots::RequestState;
use super::{Stage, device_tag};

impl<Q: Queue, C: Clock> crate::wrapper::QueueWrapper for Stage<Q, C> {
    type Inner = Q;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Q {
        &self.queue
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn depth(&self) -> u32 {
        self.slots.len()
    }

    /// Completes invalid requests with an error.
    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.slots.len() {
            return Submit::Full;
        }
        if self.gone {
            return self.refuse(request.tag, Error::Gone);
        }
        if let Err(wrong) = self.queue.geometry().check(request, data) {
            return self.refuse(request.tag, wrong);
        }
        let request = if request.op == Op::Flush { Request { lba: Lba(0), blocks: 0, ..*request } } else { *request };
        let Some(slot) = self.slots.take(&request, data) else { return Submit::Full };
        if self.in_flight == 0 {
            self.look_at_clock();
            self.time_is_fresh = true;
        }
        self.in_flight += 1;
        self.queue_up(slot, &request);
        Submit::Queued
    }

    fn ring(&mut self) {
        self.go_on();
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let own = self.ended.take(completions);
        let below = self.queue.poll(&mut completions[own..]);
        if below > 0 || self.anything_to_send() {
            self.look_at_clock();
        }
        let mut reported = own;
        for at in own..own + below {
            if let Some(completion) = self.end(completions[at]) {
                completions[reported] = completion;
                reported += 1;
            }
        }
        reported += self.ended.take(&mut completions[reported..]);
        self.in_flight -= u32::try_from(reported).expect("no more than the depth");
        self.dispatch_and_ring();
        reported
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        self.go_on();
        if self.ended.len() > 0 {
            return;
        }
        let mut limit = at_most;
        if self.not_before != Time::NEVER {
            limit = limit.min(self.not_before.since(self.clock.now()));
        }
        self.queue.wait(limit);
    }

    /// Returns `Ready` also if requests wait for their time and the inner queue has none whose completion could signal.
    fn arm(&mut self) -> Armed {
        self.go_on();
        let silent = self.sent == 0 && self.waiting() > 0;
        if self.ended.len() > 0 || silent { Armed::Ready } else { self.queue.arm() }
    }

    fn cancel(&mut self, tag: Tag) {
        let Some(slot) = self.slots.find(tag) else { return };
        let held = self.slots[slot];
        match held.state {
            RequestState::Free => return,
            RequestState::Sent => return self.queue.cancel(device_tag(slot, held.generation)),
            RequestState::Blocked => self.blocked -= 1,
            RequestState::Ready => {
                self.order.remove(slot, &held.request);
                self.ready -= 1;
            }
            RequestState::Again => {
                self.again = None;
                self.order.complete(&held.request, self.now);
            }
        }
        let ended = self.leave(slot, Err(Error::Cancelled));
        self.ended.push(ended);
    }

    /// If the inner queue cannot be reset, waiting requests are reported as [`Error::Gone`]: their memory is free, because the
    /// device
    /// never received them. Sent requests are reported if they complete later. Until a reset succeeds, nothing is sent.
    fn reset(&mut self) -> Result<(), Error> {
        let reset = self.queue.reset();
        self.gone = reset.is_err();
        match reset {
            Ok(()) => self.forget_all(),
            Err(_) => self.give_up_waiting(),
        }
        reset
    }

    // The inner queue is a driver's, which never abandons a request: only `Tracked` does, and it wraps this queue.
    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }

    fn expected(&self) -> Option<Time> {
        None
    }
}
