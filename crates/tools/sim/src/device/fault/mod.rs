//! A device that fails by rule, in every way a device can.
//!
//! [`FaultyQueue`] is the queue. [`Faults`] holds the rules, which can change at any time from any thread, and counters that prove that a
//! fault was injected. The first rule that matches a request decides. The queue goes above a model, so that time passes while a request
//! hangs; damage to the medium is written through the inner queue.

mod queue;
mod rules;
#[cfg(test)]
mod tests;

pub use queue::FaultyQueue;
pub use rules::{Fault, FaultKind, FaultRule, FaultTrigger, Faults, HangKind, RuleId, TornPart};
