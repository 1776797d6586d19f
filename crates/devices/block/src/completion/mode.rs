//! What can be chosen, and what is right for a machine.

use std::num::NonZero;
use std::thread::available_parallelism;

/// How to wait for completions. Forced on a queue, or left to [`Mode::default_for`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Looks without pause: the shortest latency, a whole processor.
    Polling,
    /// As the driver waits: the processor is free, each wait costs a switch away and back.
    Interrupt,
    /// Whichever is predicted to be cheap and still in time, for each wait anew.
    Adaptive,
}

/// Below this many processors a thread that spins takes them from those who submit.
pub const CORES_TO_POLL: usize = 3;

impl Mode {
    /// The mode for a queue nobody has an opinion about, on a machine with so many processors.
    pub fn default_for(cores: usize) -> Mode {
        if cores < CORES_TO_POLL { Mode::Interrupt } else { Mode::Adaptive }
    }

    /// Why [`Mode::default_for`] says so, for people.
    pub fn reason_for(cores: usize) -> &'static str {
        match Mode::default_for(cores) {
            Mode::Interrupt => "with so few processors whoever polls takes them from whoever submits",
            _ => "there are processors to spare for polling short requests",
        }
    }

    /// Its name, as options spell it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Polling => "polling",
            Mode::Interrupt => "interrupt",
            Mode::Adaptive => "adaptive",
        }
    }
}

/// Processors this process may use: those of the machine, less by affinity and control group.
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// What the waiting of a queue is at.
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
    /// Away for a time known beforehand, then looking without pause.
    Sleep,
    /// Looking without pause.
    Poll,
    /// Away until the driver wakes it.
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
