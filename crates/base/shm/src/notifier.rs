//! A notifier in shared memory: a producer of work wakes a consumer that sleeps on it.
//!
//! ```text
//! word: rings, counted modulo 2^31 (bits 1 to 31) | somebody sleeps (bit 0)
//! ```
//!
//! The sleeper reads the count, *then* checks for work, and then sleeps unless the count has changed. So
//! a ring is never lost. Ringing costs a system call only when somebody sleeps.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::futex;
use crate::lock::protocol::Word;
use crate::region::Region;

const ASLEEP: u32 = 1;
const ONE_RING: u32 = 2;

/// A notifier: a word of a region. Zero means that nothing was notified yet.
#[derive(Clone, Copy)]
pub struct Notifier<'a>(&'a std::sync::atomic::AtomicU32);

/// The number of notifications at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotifyCount(u32);

impl<'a> Notifier<'a> {
    /// Returns the notifier at byte `at`, a multiple of four.
    pub fn new(region: &'a Region, at: usize) -> Notifier<'a> {
        Notifier(region.u32(at))
    }

    /// What [`Notifier::wait`] wants to know. Whatever was done before the rings counted here is seen.
    #[inline]
    pub fn look(&self) -> NotifyCount {
        look(self.0)
    }

    /// Wakes every sleeper, and keeps those about to sleep awake.
    #[inline]
    pub fn notify(&self) {
        if count_notification(self.0) {
            futex::wake(self.0, u32::MAX);
        }
    }

    /// Sleeps until it rings again after `since`, for `at_most`. True: it rang.
    pub fn wait(&self, since: NotifyCount, at_most: Duration) -> bool {
        let begin = Instant::now();
        while let Some(expected) = prepare_sleep(self.0, since) {
            let left = at_most.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return false;
            }
            futex::wait(self.0, expected, Some(left));
        }
        true
    }
}

fn look(word: &impl Word) -> NotifyCount {
    NotifyCount(word.load(Ordering::Acquire) & !ASLEEP)
}

/// Counts a ring. True: somebody sleeps and has to be woken.
fn count_notification(word: &impl Word) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let rung = seen.wrapping_add(ONE_RING) & !ASLEEP;
        match word.exchange(seen, rung, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return seen & ASLEEP != 0,
            Err(now) => seen = now,
        }
    }
}

/// Says that somebody sleeps; the value to sleep on. None: it rang.
fn prepare_sleep(word: &impl Word, since: NotifyCount) -> Option<u32> {
    let mut seen = word.load(Ordering::Acquire);
    loop {
        if seen & !ASLEEP != since.0 {
            return None;
        }
        if seen & ASLEEP != 0 {
            return Some(seen);
        }
        match word.exchange(seen, seen | ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(seen | ASLEEP),
            Err(now) => seen = now,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::PageSize;

    #[test]
    fn a_ring_after_the_look_is_heard_and_silence_ends() {
        let region = Region::private(4096, PageSize::Small).expect("memory");
        let notifier = Notifier::new(&region, 8);
        let since = notifier.look();
        assert!(!notifier.wait(since, Duration::ZERO));
        notifier.notify();
        assert!(notifier.wait(since, Duration::MAX), "it rang already");
        assert!(!notifier.wait(notifier.look(), Duration::from_millis(1)), "that ring was seen");
        // Across the end of the numbers.
        region.u32(8).store(u32::MAX, Ordering::Relaxed);
        let since = notifier.look();
        notifier.notify();
        assert!(notifier.wait(since, Duration::MAX));
    }

    #[test]
    fn two_threads_wake_each_other() {
        let region = Region::private(4096, PageSize::Small).expect("memory");
        let (there, back) = (Notifier::new(&region, 0), Notifier::new(&region, 4));
        let times = if cfg!(miri) { 50 } else { 5_000 };
        let turns = region.u32(8);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..times {
                    await_turn(&there, turns, 2 * turn + 1);
                    turns.store(2 * turn + 2, Ordering::Relaxed);
                    back.notify();
                }
            });
            for turn in 0..times {
                turns.store(2 * turn + 1, Ordering::Relaxed);
                there.notify();
                await_turn(&back, turns, 2 * turn + 2);
            }
        });
    }

    fn await_turn(notifier: &Notifier<'_>, turns: &std::sync::atomic::AtomicU32, turn: u32) {
        loop {
            let since = notifier.look();
            if turns.load(Ordering::Relaxed) == turn {
                return;
            }
            notifier.wait(since, Duration::MAX);
        }
    }

    #[cfg(not(miri))]
    mod every_order {
        use super::super::*;
        use crate::lock::protocol::every_order::{FutexModel, full};
        use loom::sync::Arc;
        use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};

        struct TestWorld {
            word: AtomicU32,
            work: AtomicU32,
            bed: FutexModel,
        }

        impl TestWorld {
            fn notify(&self) {
                self.work.fetch_add(1, Relaxed);
                if count_notification(&self.word) {
                    self.bed.wake_all();
                }
            }

            /// Without a time: a ring that is lost is a deadlock.
            fn until(&self, work: u32) {
                loop {
                    let since = look(&self.word);
                    if self.work.load(Relaxed) >= work {
                        return;
                    }
                    while let Some(expected) = prepare_sleep(&self.word, since) {
                        self.bed.wait(&self.word, expected, || false);
                    }
                }
            }
        }

        fn explore(ringers: u32, sleepers: u32) {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = Some(if full() { 2 } else { 1 });
            model.check(move || {
                let world = Arc::new(TestWorld { word: AtomicU32::new(0), work: AtomicU32::new(0), bed: FutexModel::new() });
                let threads: Vec<_> = (1..ringers + sleepers)
                    .map(|thread| {
                        let world = world.clone();
                        loom::thread::spawn(move || if thread < sleepers { world.until(ringers) } else { world.notify() })
                    })
                    .collect();
                world.until(ringers);
                threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            });
        }

        #[test]
        fn no_ring_is_lost_by_one_who_sleeps() {
            explore(2, 1);
        }

        #[test]
        fn no_ring_is_lost_by_two_who_sleep() {
            explore(1, 2);
        }
    }
}
