//! When a request ends, by the parts a device is made of.
//!
//! [`TimedQueue`] is the queue: it hands a request to the queue below at the moment at which the model says that it ends, so the
//! device touches blocks and memory until the last moment. In virtual time that is deterministic and costs nothing; in
//! real time `poll` reports what is due by the machine's clock, and completion modes can be measured.
//!
//! What real time costs, and how precise it is: `cargo run --release -p sim --example real_time`. On a virtual machine with two
//! busy cores a poll that finds nothing due took 60 ns (3 ns with nothing in flight), polling saw a request 0.1 us after its time
//! in the median, and a wait or the event 15 us after: that is the timer and the wake-up, of which a device's interrupt has
//! the second part too. The work of the queue below, such as the copy of a memory device, comes on top and is done in `poll`:
//! to measure completion modes take a null device.

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

/// A request in a model: who began it knows it by this.
pub type Token = u64;

/// Says when requests end.
pub trait DeviceModel: Send {
    /// A request arrives. `now` never goes back.
    fn begin(&mut self, now: Time, token: Token, request: &Request);

    /// When something ends next; never, if nothing is in it.
    fn next(&self) -> Time;

    /// Takes out one request that ended at `now` or before, the earliest first.
    fn pop_completed(&mut self, now: Time) -> Option<Token>;

    /// Forgets a request, if it is still there.
    fn cancel(&mut self, now: Time, token: Token) -> bool;

    /// Forgets all requests.
    fn reset(&mut self, now: Time);
}

/// A device whose requests end when they must, known at their begin: nothing that comes later changes it.
pub trait ReservationModel: Send {
    /// When this request ends, if it begins now.
    fn end(&mut self, now: Time, request: &Request) -> Time;
}

/// Queues of one device share what it is made of.
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
