//! A device that fails by rule, every way a device can.
//!
//! [`FaultyQueue`] is the queue, [`Faults`] the rules, which can be changed at any time from anywhere, and the counters that
//! prove that a fault was injected. The first rule that a request meets decides. Stands above a model, so that time passes
//! while a request hangs; what it damages on the medium it writes through the queue below.

mod queue;
mod rules;
#[cfg(test)]
mod tests;

pub use queue::FaultyQueue;
pub use rules::{Fault, FaultKind, FaultRule, FaultTrigger, Faults, HangKind, RuleId, TornPart};
