//! Models that know the completion time at submission, and the simplest of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use block::{Request, Time};

use super::{DeviceModel, ReservationModel, Token};

/// Every request takes the same time, with any number in parallel: for experiments with completion modes.
#[derive(Clone, Copy, Debug)]
pub struct FixedLatency(pub Duration);

impl ReservationModel for FixedLatency {
    #[inline]
    fn end(&mut self, now: Time, _: &Request) -> Time {
        now.after(self.0)
    }
}

/// Adapts a [`ReservationModel`] to a [`DeviceModel`] by keeping the requests in flight.
#[derive(Debug)]
pub struct Reservations<R> {
    device: R,
    /// At equal times the request submitted first comes first.
    due: BinaryHeap<Reverse<(Time, u64, Token)>>,
    begun: u64,
}

impl<R: ReservationModel> Reservations<R> {
    /// Creates the adapter for at most `depth` requests.
    pub fn new(device: R, depth: u32) -> Reservations<R> {
        Reservations { device, due: BinaryHeap::with_capacity(depth as usize), begun: 0 }
    }
}

impl<R: ReservationModel> DeviceModel for Reservations<R> {
    #[inline]
    fn begin(&mut self, now: Time, token: Token, request: &Request) {
        let end = self.device.end(now, request).max(now);
        self.begun += 1;
        self.due.push(Reverse((end, self.begun, token)));
    }

    #[inline]
    fn next(&self) -> Time {
        self.due.peek().map_or(Time::NEVER, |Reverse((end, ..))| *end)
    }

    #[inline]
    fn pop_completed(&mut self, now: Time) -> Option<Token> {
        if self.next() > now {
            return None;
        }
        self.due.pop().map(|Reverse((.., token))| token)
    }

    fn cancel(&mut self, _: Time, token: Token) -> bool {
        let before = self.due.len();
        self.due.retain(|Reverse((.., other))| *other != token);
        self.due.len() < before
    }

    fn reset(&mut self, _: Time) {
        self.due.clear();
    }
}
