//! Lets a thread that waits for other threads' requests sleep without missing one.
//!
//! One word holds the time until which the thread sleeps, or 0 while it is awake. Both sides write first and read afterwards, with a fence
//! between:
//!
//! ```text
//!   sleeper                                  submitter
//!   until = T                                make the request visible
//!   fence                                    fence
//!   check all requests                       read `until`
//!   none due before T: wait for the signal   if it is later than the due time: exchange it with 0, signal
//! ```
//!
//! Of two such pairs at least one side sees what the other wrote (C++20, [atomics.fences]). Either the sleeper finds the request and does
//! not sleep, or the submitter finds it sleeping and signals. A signal is kept: if it precedes the wait, the wait returns at once. Because
//! `until` is exchanged with 0, only one of many submitters signals.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::clock::Time;

const AWAKE: u64 = 0;

/// The word that the sleeping thread and the submitters share.
#[derive(Debug, Default)]
pub struct Parking {
    until: AtomicU64,
}

impl Parking {
    /// Announces that the sleeper will sleep until `until`, before its last check. Requests due earlier will wake it.
    pub fn announce(&self, until: Time) {
        self.until.store(until.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the sleeper does not sleep, or has woken up.
    pub fn awake(&self) {
        self.until.store(AWAKE, Ordering::Relaxed);
    }

    /// Returns whether the submitter has to signal the sleeper; called once its request is visible.
    #[inline]
    #[must_use]
    pub fn must_ring(&self, due: Time) -> bool {
        fence(Ordering::SeqCst);
        let mut until = self.until.load(Ordering::Relaxed);
        while until > due.0 {
            match self.until.compare_exchange(until, AWAKE, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => until = found,
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod test {
    use super::*;

    #[test]
    fn only_a_sleeper_is_woken_and_by_one() {
        let parking = Parking::default();
        assert!(!parking.must_ring(Time(5)), "awake");
        parking.announce(Time(100));
        assert!(!parking.must_ring(Time(100)), "it will be awake by then");
        assert!(parking.must_ring(Time(99)));
        assert!(!parking.must_ring(Time(98)), "rung for already");
        parking.announce(Time::NEVER);
        parking.awake();
        assert!(!parking.must_ring(Time(0)));
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p block --lib parking`
#[cfg(all(test, loom))]
mod exhaustive {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};

    #[derive(Default)]
    struct ThreadNotifier {
        rung: Mutex<bool>,
        heard: Condvar,
    }

    /// Two submitters, and one sleeper that ends once it has seen both requests: a lost wake-up is a deadlock, which loom reports.
    #[test]
    fn no_wake_up_is_lost_in_any_order() {
        let mut model = loom::model::Builder::new();
        // Two submitters take hours without a bound; one submitter needs none.
        model.preemption_bound = Some(2);
        model.check(|| explore::<2>());
        loom::model(|| explore::<1>());
    }

    fn explore<const SUBMITTERS: usize>() {
        let parking = Arc::new(Parking::default());
        let bell = Arc::new(ThreadNotifier::default());
        let requests = Arc::new([(); SUBMITTERS].map(|()| AtomicU64::new(0)));
        let submitters = std::array::from_fn::<_, SUBMITTERS, _>(|which| {
            let (parking, bell, requests) = (parking.clone(), bell.clone(), requests.clone());
            loom::thread::spawn(move || {
                requests[which].store(1, Ordering::Relaxed);
                if parking.must_ring(Time(7)) {
                    *bell.rung.lock().unwrap() = true;
                    bell.heard.notify_one();
                }
            })
        });
        let mut seen = [false; SUBMITTERS];
        let look = |seen: &mut [bool; SUBMITTERS]| {
            let before = *seen;
            requests.iter().zip(seen.iter_mut()).for_each(|(request, seen)| *seen |= request.load(Ordering::Relaxed) == 1);
            *seen != before
        };
        while seen != [true; SUBMITTERS] {
            parking.announce(Time::NEVER);
            if !look(&mut seen) {
                let mut rung = bell.rung.lock().unwrap();
                while !*rung {
                    rung = bell.heard.wait(rung).unwrap();
                }
                *rung = false;
            }
            parking.awake();
            look(&mut seen);
        }
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
    }
}
