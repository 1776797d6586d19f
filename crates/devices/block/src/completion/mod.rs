//! Detection of completions: by polling, by interrupts, or by whichever suits the request's latency.
//!
//! [`Adaptive`] is a queue that wraps a queue. Its `wait` waits in the chosen [`Mode`], and its `submit` and `poll` track the requests in
//! flight; callers need no other calls. [`Reaper`] is a thread that does the same for many queues at once.
//!
//! - [`mode`]: the modes, and the default for a machine.
//! - [`predictor`]: the predicted latency of each kind of request.
//! - [`plan`]: from a prediction and the machine's wakeup latency to the next step. Pure functions.
//! - [`calibrate`]: measures the wakeup latency. [`sleeper`]: passes time.
//! - [`adaptive`], `flight`: the queue, and its requests in flight.
//! - [`reap`]: a queue as the completion thread sees it.
//! - [`reaper`], `serve`, `notifier`, [`parking`]: the thread, and how it sleeps without missing a request.
//! - [`counters`]: the cost of waiting.
//!
//! The decisions and their reasons: docs/decisions/14-completion-modes-and-schedulers.md.

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
pub mod reap;
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
pub use reap::{QueueId, Reap, ReaperOptions};
pub use reaper::{Leftover, Reaper, Waker};
pub use sleeper::{Sleeper, System};
