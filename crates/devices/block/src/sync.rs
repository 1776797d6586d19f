//! Locks and atomics for data that threads share: those of parking_lot and the standard library, or loom's, which explores every
//! interleaving: `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p block --release --lib loom`
//! (`handle/loom_test.rs`,
//! `future.rs`).

pub(crate) use inner::Signal;
pub(crate) use inner::{Arc, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, fence, look_again, spin_hint, yield_now};

#[cfg(not(loom))]
mod inner {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::thread::yield_now;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    pub(crate) use parking_lot::MutexGuard;

    /// Attempts to take a lock that is held: the first few spin, and each later one yields first.
    const SPINS: u32 = 3;
    const TRIES: u32 = 40;

    /// A parking_lot mutex for data that is locked for a few microseconds. A waiting thread yields before it sleeps, because the
    /// unlocking
    /// thread then need not wake it, which would take longer than the lock is held.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(parking_lot::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.try_lock().unwrap_or_else(|| self.lock_held())
        }

        #[cold]
        fn lock_held(&self) -> MutexGuard<'_, T> {
            for turn in 0..TRIES {
                if turn < SPINS {
                    (0..16 << turn).for_each(|_| std::hint::spin_loop())
                } else {
                    yield_now()
                }
                if let Some(guard) = self.0.try_lock() {
                    return guard;
                }
            }
            self.0.lock()
        }
    }

    /// A parking_lot condition variable; one method waits with and without a time limit.
    #[derive(Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// Waits for a notification, or for `at_most`; may return early.
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) {
            if at_most == Duration::MAX {
                self.0.wait(guard);
            } else {
                self.0.wait_for(guard, at_most);
            }
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    pub(crate) fn spin_hint() {
        std::hint::spin_loop();
    }

    /// The number of polls of a device for each pause instruction of a polling loop. A poll takes about as long as a pause on
    /// hardware (40 ns), and the loop does not speculate ahead. A hypervisor may intercept a pause and stop the virtual CPU for the
    /// duration of an I/O.
    const POLLS_TO_PAUSE: u32 = 16;

    /// Pauses between two polls of a device, if it is time for that.
    #[inline]
    pub(crate) fn look_again(turn: u32) {
        if turn.is_multiple_of(POLLS_TO_PAUSE) {
            std::hint::spin_loop();
        }
    }

    /// Wakes one thread that sleeps for a device. It is an eventfd, so that the thread can wait for both.
    pub(crate) struct Signal(OwnedFd);

    impl Signal {
        pub(crate) fn new() -> std::io::Result<Signal> {
            Ok(Signal(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(crate) fn set(&self) {
            // The eventfd is full only if it is already set.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }

        pub(crate) fn clear(&self) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }

        /// Waits until the signal is set or the descriptor is readable, or for `at_most`. May return early.
        pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, at_most: Duration) {
            crate::handle::until_readable(&[self.0.as_fd(), other.unwrap_or(self.0.as_fd())], at_most);
        }
    }
}

/// Loom has no time: a thread waits until it is notified, so that a lost notification shows as a deadlock.
#[cfg(loom)]
mod inner {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::thread::yield_now;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    /// Empty only while a thread waits on the condition variable.
    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("not poisoned")))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("locked")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("locked")
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            let locked = guard.0.take().expect("locked");
            guard.0 = Some(self.0.wait(locked).expect("not poisoned"));
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    pub(crate) fn spin_hint() {
        loom::thread::yield_now();
    }

    pub(crate) fn look_again(_: u32) {
        loom::thread::yield_now();
    }

    /// In loom tests the device also sets the signal.
    #[derive(Default)]
    pub(crate) struct Signal(Mutex<bool>, Condvar);

    impl Signal {
        pub(crate) fn new() -> std::io::Result<Signal> {
            Ok(Signal::default())
        }

        pub(crate) fn set(&self) {
            *self.0.lock() = true;
            self.1.notify_all();
        }

        pub(crate) fn clear(&self) {
            *self.0.lock() = false;
        }

        pub(crate) fn wait(&self, _: Option<std::os::fd::BorrowedFd<'_>>, _: Duration) {
            let mut set = self.0.lock();
            while !*set {
                self.1.wait(&mut set, Duration::MAX);
            }
        }
    }
}
