//! Who decides: what a [`super::Stage`] asks, and is told.

use crate::clock::Time;
use crate::request::Request;

/// What an order says when it is asked for the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// This one; the order does not have it any more.
    RequestSlot(u32),
    /// There is none, or none before another one ends.
    Nothing,
    /// None before this moment, or before another one ends.
    NotBefore(Time),
}

/// Decides which of the requests that wait goes next. It knows them by slot, a number below the depth it was made for; none
/// of those it knows at one time stands in the way of another.
pub trait Order: Send {
    /// Whether it looks at the time; else it is told none, and the clock is not read.
    const TIMED: bool;

    /// Whether [`Order::hurry`] does something.
    const HURRIES: bool;

    /// This one waits.
    fn insert(&mut self, slot: u32, request: &Request, now: Time);

    /// This one does not wait any more: cancelled, or merged into another.
    fn remove(&mut self, slot: u32, request: &Request);

    /// Takes the next one out.
    fn pick(&mut self, now: Time) -> Pick;

    /// One that waits and continues this: same operation, adjacent blocks behind it. Stays in.
    fn after(&self, _: &Request) -> Option<u32> {
        None
    }

    /// The same, before it.
    fn before(&self, _: &Request) -> Option<u32> {
        None
    }

    /// This went down: what was picked, with all that was merged into it.
    fn sent(&mut self, _: &Request) {}

    /// What was picked or merged has ended, whether it went down or not.
    fn ended(&mut self, _: &Request, _: Time) {}

    /// Somebody of another class waits for this one, which waits.
    fn hurry(&mut self, _: u32, _: &Request) {}

    /// All are given up, those that were picked too.
    fn clear(&mut self);
}
