//! Death at any step, for tests: an operation calls [`step`] before each change that others see, and the one that is told to
//! die there unwinds; or, among threads, lets another go on now and then. Outside of this crate's tests it is nothing.

#[cfg(not(test))]
#[inline(always)]
pub(super) fn step() {}

/// Where the order of what several threads do matters, and nothing is changed.
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
        /// Of so many steps one gives the processor away; 0: none.
        static PAUSES: Cell<u8> = const { Cell::new(0) };
    }

    /// From now on this thread gives the processor away at one of so many steps.
    pub fn pause_at_one_of(steps: u8) {
        PAUSES.set(steps);
    }

    pub fn pause() {
        if PAUSES.get() != 0 && fastrand::u8(..PAUSES.get()) == 0 {
            std::thread::yield_now();
        }
    }

    struct Died;

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

    /// Runs it, and dies at its n-th step. None: it died.
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
