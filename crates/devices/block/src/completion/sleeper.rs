//! How a thread passes time: a parameter like the clock, so that the simulator never sleeps.

use std::num::NonZeroU64;
use std::thread::ThreadId;
use std::time::Duration;

use rustix::thread::{ClockId as SleepClock, clock_nanosleep_relative, set_current_timer_slack};
use rustix::time::{ClockId, clock_gettime};

use crate::sync::look_again;

/// Passes time for the thread that calls.
pub trait Sleeper: Send {
    /// Gives the processor away for about so long. May return early.
    fn sleep(&mut self, duration: Duration);

    /// One turn of a spinning loop.
    fn relax(&mut self);

    /// Processor time of the calling thread so far.
    fn cpu(&self) -> Duration;
}

/// The machine's own. Sets the timer slack of each thread it sleeps in to 1 ns (prctl(2), PR_SET_TIMERSLACK): the 50
/// microseconds every thread begins with are longer than most requests. The slack stays so, also for other sleeps of the thread.
#[derive(Debug, Default)]
pub struct System {
    exact: Option<ThreadId>,
    turns: u32,
}

impl Sleeper for System {
    fn sleep(&mut self, duration: Duration) {
        let thread = std::thread::current().id();
        if self.exact != Some(thread) {
            // Without it sleeps are late, which the margin learns.
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
