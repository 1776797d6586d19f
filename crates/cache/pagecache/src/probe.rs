//! Injects death at any step, for tests. An operation calls [`step`] before each change that others see; the selected step unwinds. Among
//! threads, a step yields now and then. Outside of this crate's tests it does nothing.

#[cfg(not(test))]
#[inline(always)]
pub(super) fn step() {}

/// Marks a point where the order of several threads matters, and nothing is changed.
#[cfg(not(test))]
#[inline(always)]
pub(super) fn pause() {}

#[cfg(test)]
pub(super) use dying::{pause, step};

#[cfg(test)]
pub(super) mod dying {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
        /// One step of this many yields the CPU; 0: none.
        static PAUSES: Cell<u8> = const { Cell::new(0) };
    }

    /// Makes this thread yield the CPU at one of so many steps, from now on.
    pub fn pause_at_one_of(steps: u8) {
        PAUSES.set(steps);
    }

    /// Yields the CPU at a random share of its calls.
    pub fn pause() {
        if PAUSES.get() != 0 && fastrand::u8(..PAUSES.get()) == 0 {
            std::thread::yield_now();
        }
    }

    struct Died;

    /// Dies here if this step was selected; otherwise may yield.
    pub fn step() {
        pause();
        match LEFT.get() {
            None => {}
            Some(0) => {
                LEFT.set(None);
                resume_unwind(Box::new(Died));
            }
            Some(left) => LEFT.set(Some(left - 1)),
        }
    }

    /// Runs a closure that dies at its n-th step. Returns `None` if it died.
    pub fn die_at<T>(n: u32, run: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(Some(n));
        let end = catch_unwind(AssertUnwindSafe(run));
        LEFT.set(None);
        match end {
            Ok(value) => Some(value),
            Err(why) if why.is::<Died>() => None,
            Err(why) => resume_unwind(why),
        }
    }
}
