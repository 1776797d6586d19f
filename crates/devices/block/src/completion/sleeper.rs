//! How a thread passes time: a parameter like the clock, so that the simulator never sleeps.

use std::num::NonZeroU64;
use std::thread::ThreadId;
use std::time::Duration;

use rustix::thread::{ClockId as SleepClock, clock_nanosleep_relative, set_current_timer_slack};
use rustix::time::{ClockId, clock_gettime};

use crate::sync::look_again;

/// Passes time for the calling thread.
pub trait Sleeper: Send {
    /// Yields the CPU for about `duration`. May return early.
    fn sleep(&mut self, duration: Duration);

    /// Runs one iteration of a spin loop.
    fn relax(&mut self);

    /// Returns the CPU time of the calling thread so far.
    fn cpu(&self) -> Duration;
}

/// The sleeper of the operating system. It sets the timer slack of each thread in which it sleeps to 1 ns (prctl(2), PR_SET_TIMERSLACK):
/// the default of 50 microseconds is longer than most requests. The slack remains set, also for other sleeps of the thread.
#[derive(Debug, Default)]
pub struct System {
    exact: Option<ThreadId>,
    turns: u32,
}

impl Sleeper for System {
    fn sleep(&mut self, duration: Duration) {
        let thread = std::thread::current().id();
        if self.exact != Some(thread) {
            // If this fails, sleeps are late, and the lead adapts.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
            self.exact = Some(thread);
        }
        if let Ok(request) = duration.try_into() {
            let _ = clock_nanosleep_relative(SleepClock::Monotonic, &request);
        }
    }

    #[inline]
    fn relax(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        look_again(self.turns);
    }

    fn cpu(&self) -> Duration {
        clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
    }
}
