//! Completion times from the parts that a device is made of.
//!
//! [`TimedQueue`] is the queue. It forwards a request to the inner queue when the model says that the request completes, so the device
//! touches blocks and memory until the last moment. In virtual time this is deterministic and costs nothing. In real time `poll` reports
//! what is due by the machine's clock, so completion modes can be measured.
//!
//! `cargo run --release -p sim --example real_time` measures the cost and the precision of real time. The work of the inner queue, such as
//! a memory copy, is added and happens in `poll`: use a null device to measure completion modes.

pub mod fixed;
pub mod hdd;
pub mod presets;
#[cfg(test)]
mod sheets;
pub mod ssd;
pub mod timed;
#[cfg(test)]
mod timed_test;
pub mod workload;

use block::{Request, Time};

pub use fixed::FixedLatency;
pub use hdd::HddModel;
pub use ssd::SsdModel;
pub use timed::TimedQueue;

/// Identifies a request within a model.
pub type Token = u64;

/// A model that decides when requests complete.
pub trait DeviceModel: Send {
    /// Submits a request. `now` never decreases.
    fn begin(&mut self, now: Time, token: Token, request: &Request);

    /// Returns the next completion time; `Time::NEVER` if the model is idle.
    fn next(&self) -> Time;

    /// Removes and returns the earliest request that completed at `now` or before.
    fn pop_completed(&mut self, now: Time) -> Option<Token>;

    /// Cancels a request. Returns whether it was still in the model.
    fn cancel(&mut self, now: Time, token: Token) -> bool;

    /// Removes all requests from the model.
    fn reset(&mut self, now: Time);
}

/// A model that knows the completion time at submission: later requests do not change it.
pub trait ReservationModel: Send {
    /// Returns when the request completes if it is submitted now.
    fn end(&mut self, now: Time, request: &Request) -> Time;
}

/// Queues of one device share its resources.
impl<R: ReservationModel> ReservationModel for std::sync::Arc<parking_lot::Mutex<R>> {
    fn end(&mut self, now: Time, request: &Request) -> Time {
        self.lock().end(now, request)
    }
}

impl<M: DeviceModel + ?Sized> DeviceModel for Box<M> {
    fn begin(&mut self, now: Time, token: Token, request: &Request) {
        (**self).begin(now, token, request);
    }
    fn next(&self) -> Time {
        (**self).next()
    }
    fn pop_completed(&mut self, now: Time) -> Option<Token> {
        (**self).pop_completed(now)
    }
    fn cancel(&mut self, now: Time, token: Token) -> bool {
        (**self).cancel(now, token)
    }
    fn reset(&mut self, now: Time) {
        (**self).reset(now);
    }
}
