//! The interface between a [`super::Stage`] and the order that it follows.

use crate::clock::Time;
use crate::request::Request;

/// The next request to send, as [`Order::pick`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// The next request, which is no longer in the order.
    Slot(u32),
    /// There is no request, or none may proceed before another one completes.
    Nothing,
    /// No request may proceed before this time, or before another one completes.
    NotBefore(Time),
}

/// Decides which of the waiting requests goes next. It knows them by slot, a number below its depth. The requests that it knows at
/// one time do not conflict with each other.
pub trait Order: Send {
    /// Whether the order depends on the time. If not, the stage does not read the clock.
    const TIMED: bool;

    /// Whether [`Order::hurry`] has an effect.
    const HURRIES: bool;

    /// Adds a request that waits.
    fn insert(&mut self, slot: u32, request: &Request, now: Time);

    /// Removes a request that no longer waits: it was cancelled, or merged into another.
    fn remove(&mut self, slot: u32, request: &Request);

    /// Removes and returns the next request.
    fn pick(&mut self, now: Time) -> Pick;

    /// Returns a waiting request that continues this one: the same operation, on the blocks that follow. Does not remove it.
    fn after(&self, _: &Request) -> Option<u32> {
        None
    }

    /// Returns a waiting request that this one continues. Does not remove it.
    fn before(&self, _: &Request) -> Option<u32> {
        None
    }

    /// Records that a request was sent: the one that was picked, with all requests that were merged into it.
    fn sent(&mut self, _: &Request) {}

    /// Records that a picked or merged request has completed, whether it was sent or not.
    fn ended(&mut self, _: &Request, _: Time) {}

    /// Gives priority to a waiting request, because a request of another class waits for it.
    fn hurry(&mut self, _: u32, _: &Request) {}

    /// Forgets all requests, including those that were picked.
    fn clear(&mut self);
}
