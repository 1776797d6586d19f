//! Doorbells in memory (Doorbell Buffer Config, NVMe base specification 2.0, section 5.8): the protocol of both sides.
//!
//! The host stores a value in memory, and the controller polls it. Before the controller sleeps, it stores the value seen as its event
//! index. The host also writes the register only if a value passes that index. Each side stores its word, then a fence, then reads the
//! other's word. So one of the two sees the other, and no wake-up is lost. Loom tests every order of events.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A word that both sides change: an atomic, or loom's, which tries every order.
pub trait Cell {
    /// Loads the value, as an atomic does.
    fn load(&self, order: Ordering) -> u32;
    /// Stores a value, as an atomic does.
    fn store(&self, value: u32, order: Ordering);
    /// Orders accesses to all words, as `std::sync::atomic::fence` does.
    fn fence(order: Ordering);
}

impl Cell for AtomicU32 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }
    #[inline(always)]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }
    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Stores a new value for the controller, after `before` (the host's side). Returns true if the register must be written.
#[inline]
pub fn tell<C: Cell>(value: &C, mark: &C, before: u16, now: u16) -> bool {
    value.store(now.into(), Release);
    C::fence(SeqCst);
    let mark = mark.load(Relaxed) as u16;
    now.wrapping_sub(mark).wrapping_sub(1) < now.wrapping_sub(before)
}

/// Returns the host's value and stores it as event index (the controller's side). Then the controller may sleep until the register is
/// written.
#[inline]
pub fn look<C: Cell>(value: &C, mark: &C) -> u32 {
    loop {
        let seen = value.load(Acquire);
        mark.store(seen, Relaxed);
        C::fence(SeqCst);
        if value.load(Acquire) == seen {
            return seen;
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_register_is_written_when_the_mark_is_passed() {
        let (value, mark) = (AtomicU32::new(0), AtomicU32::new(0));
        assert!(tell(&value, &mark, 0, 3), "it sleeps since 0");
        assert!(!tell(&value, &mark, 3, 5), "it has been called, and did not look yet");
        assert_eq!((look(&value, &mark), mark.load(Relaxed)), (5, 5));
        assert!(tell(&value, &mark, 5, 6));
        // Over the end of a ring of eight.
        assert_eq!(look(&value, &mark), 6);
        assert!(tell(&value, &mark, 6, 1));
        assert_eq!(look(&value, &mark), 1);
    }
}

#[cfg(all(test, not(miri)))]
mod loom_test {
    use super::*;
    use loom::sync::atomic::AtomicU32 as LoomU32;
    use loom::sync::{Arc, Condvar, Mutex};

    impl Cell for LoomU32 {
        fn load(&self, order: Ordering) -> u32 {
            LoomU32::load(self, order)
        }
        fn store(&self, value: u32, order: Ordering) {
            LoomU32::store(self, value, order);
        }
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }

    #[derive(Default)]
    struct DoorbellModel {
        value: LoomU32,
        mark: LoomU32,
        /// Entries of the ring.
        entries: [LoomU32; 4],
        register: Mutex<bool>,
        written: Condvar,
    }

    impl DoorbellModel {
        /// The host: `values` of the tail, one after the other, in a ring of four.
        fn host(&self, values: &[u16]) {
            let mut before = 0;
            for tail in values.iter().copied() {
                let last = (tail + 3) % 4;
                self.entries[usize::from(last)].store(1, Relaxed);
                if tell(&self.value, &self.mark, before, tail) {
                    *self.register.lock().expect("no panic") = true;
                    self.written.notify_one();
                }
                before = tail;
            }
        }

        /// The controller, until it has seen the last: a wake-up that is lost is a deadlock, which loom reports.
        fn controller(&self, last: u16) {
            loop {
                let seen = look(&self.value, &self.mark);
                if seen > 0 {
                    assert_eq!(self.entries[(seen as usize + 3) % 4].load(Relaxed), 1, "the entry is there before its doorbell");
                }
                if seen == u32::from(last) {
                    return;
                }
                let mut register = self.register.lock().expect("no panic");
                while !*register {
                    register = self.written.wait(register).expect("no panic");
                }
                *register = false;
            }
        }
    }

    fn check(values: &'static [u16]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let world = Arc::new(DoorbellModel::default());
            let host = Arc::clone(&world);
            let host = loom::thread::spawn(move || host.host(values));
            world.controller(*values.last().expect("some"));
            host.join().expect("ended");
        });
    }

    #[test]
    fn loom_no_doorbell_is_lost() {
        check(&[1, 2]);
        check(&[1, 2, 3]);
        check(&[2, 3]);
        // Over the end.
        check(&[3, 1]);
    }
}
