//! Signals that ask the daemon to end while nobody serves the mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Remembers signals that ask this process to end while nobody serves the mount, which could not be unmounted then.
pub struct EndingSignals {
    has_come: Arc<AtomicBool>,
    registered: Vec<SigId>,
}

impl EndingSignals {
    /// Begins to remember these signals.
    pub fn remember() -> EndingSignals {
        let has_come = Arc::new(AtomicBool::new(false));
        let register = |signal| signal_hook::flag::register(signal, Arc::clone(&has_come)).ok();
        let registered = [SIGTERM, SIGINT, SIGHUP].into_iter().filter_map(register).collect();
        EndingSignals { has_come, registered }
    }

    /// Returns whether one has come.
    pub fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }
}

impl Drop for EndingSignals {
    fn drop(&mut self) {
        self.registered.drain(..).for_each(|id| _ = signal_hook::low_level::unregister(id));
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_signal_that_comes_meanwhile_is_remembered() {
        let signals = EndingSignals::remember();
        assert!(!signals.has_come());
        signal_hook::low_level::raise(SIGHUP).expect("raised");
        assert!(signals.has_come());
    }
}
