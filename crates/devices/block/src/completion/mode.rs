//! The completion modes, and the default for a machine.

use std::num::NonZero;
use std::thread::available_parallelism;

/// How a queue waits for completions: set by its owner, or by [`Mode::default_for`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Polls without pause: the shortest latency, at the cost of a whole CPU.
    Polling,
    /// Waits as the driver does: the CPU is free, but each wait costs two context switches.
    Interrupt,
    /// Chooses for each wait the cheapest method that is predicted to be in time.
    Adaptive,
}

/// With fewer CPUs than this, a polling thread takes CPU time from the submitting threads.
pub const CORES_TO_POLL: usize = 3;

impl Mode {
    /// Returns the default mode on a machine with this number of CPUs.
    pub fn default_for(cores: usize) -> Mode {
        if cores < CORES_TO_POLL { Mode::Interrupt } else { Mode::Adaptive }
    }

    /// Returns the reason for the choice of [`Mode::default_for`], for messages.
    pub fn reason_for(cores: usize) -> &'static str {
        match Mode::default_for(cores) {
            Mode::Interrupt => "with so few CPUs, polling takes them from the submitting threads",
            _ => "there are CPUs to spare for polling short requests",
        }
    }

    /// Returns the name of the mode, as options spell it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Polling => "polling",
            Mode::Interrupt => "interrupt",
            Mode::Adaptive => "adaptive",
        }
    }
}

/// Returns the number of CPUs that this process may use, after affinity and control groups.
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// The state of waiting on a queue.
///
/// ```text
///               submit                        due soon
///   Idle -----------------> Sleep or Block --------------> Poll ----> Idle    nothing is in flight any more
///                               ^                            |
///                               '---- far off, or overdue ---'
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitState {
    /// Nothing is in flight.
    Idle,
    /// The thread sleeps for a predicted time, and then polls.
    Sleep,
    /// The thread polls without pause.
    Poll,
    /// The thread is blocked until the driver wakes it.
    Block,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn few_cores_do_not_poll() {
        assert_eq!([1, 2, 3, 64].map(Mode::default_for), [Mode::Interrupt, Mode::Interrupt, Mode::Adaptive, Mode::Adaptive]);
        assert_ne!(Mode::reason_for(2), Mode::reason_for(8));
        assert!(cores() > 0);
    }
}
