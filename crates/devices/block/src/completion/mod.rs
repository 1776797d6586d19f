//! How the end of a request is noticed: by polling, by interrupts, or by whichever the request's latency calls for.
//!
//! [`Adaptive`] is a queue around a queue. Its `wait` does the waiting in the [`Mode`] chosen, its `submit` and `poll` keep the
//! books, and whoever stands above calls nothing else. [`Reaper`] is a thread that does the same for many queues at once.
//!
//! - [`mode`]: what can be chosen, and what is right for a machine.
//! - [`predictor`]: how long a request of its kind takes.
//! - [`plan`]: from a prediction and the costs of this machine to what to do next. Pure.
//! - [`calibrate`]: those costs. [`sleeper`]: passing time.
//! - [`adaptive`], `flight`: the queue, and what it knows of requests in flight.
//! - [`reaper`], `serve`, `bell`, [`parking`]: the thread, and how it goes to sleep without missing anything.
//! - [`counters`]: what it cost.
//!
//! What is decided here and why: docs/decisions/14-completion-modes-and-schedulers.md.

pub mod adaptive;
pub mod calibrate;
pub mod counters;
mod flight;
pub mod mode;
mod notifier;
mod pace;
pub mod parking;
pub mod plan;
pub mod predictor;
pub mod reaper;
mod serve;
#[cfg(test)]
mod simulated;
pub mod sleeper;

pub use adaptive::Adaptive;
pub use calibrate::WakeupLatency;
pub use counters::{Counters, Published};
pub use mode::{Mode, WaitState};
pub use plan::{Limits, Outlook, Plan};
pub use predictor::Predictor;
pub use reaper::{Leftover, QueueId, Reap, Reaper, ReaperOptions, Waker};
pub use sleeper::{Sleeper, System};
