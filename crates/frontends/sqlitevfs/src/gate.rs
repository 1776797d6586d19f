//! Locks that are waited for, where another thread has them: SQLite itself only asks again, later and later (decisions/33).
//!
//! Who lowers a lock lets in the readers that wait, before it can take it again; they have the database for [`READ`] at least. So a
//! thread that commits without end does not keep the others out, and they not it: a writer that waits lets no new reader in.
//! Only rollback journals use it: in WAL mode a connection has SHARED as long as it is open, and readers wait for nobody.

use std::time::{Duration, Instant};

use libsqlite3_sys::{SQLITE_LOCK_EXCLUSIVE, SQLITE_LOCK_RESERVED, SQLITE_LOCK_SHARED};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::locks::Locks;

/// How long a connection waits before SQLite gets BUSY: threads may wait for each other, over several databases.
const WAIT: Duration = Duration::from_millis(10);
/// How long readers that had to wait have the database before a writer may lock them out again.
const READ: Duration = Duration::from_micros(50);

/// The locks of a database.
#[derive(Default)]
pub struct Gate {
    inner: Mutex<GateState>,
    lowered: Condvar,
}

#[derive(Default)]
struct GateState {
    locks: Locks,
    /// Until then readers have it.
    readers_until: Option<Instant>,
    /// The connections that wait for that.
    writer: Option<u64>,
    /// The first who comes after that lets others run.
    owes_a_turn: bool,
}

impl GateState {
    fn is_for_readers(&self) -> bool {
        self.readers_until.is_some_and(|until| until > Instant::now())
    }

    /// The readers' time is over: who finds that out lets the writer come first, which may not be awake yet.
    fn let_writer_in(&mut self) -> bool {
        let Some(writer) = self.writer.filter(|_| !self.is_for_readers()) else { return false };
        self.writer = None;
        self.locks.lock(writer, SQLITE_LOCK_EXCLUSIVE);
        true
    }
}

impl Gate {
    /// Raises a lock, after a wait if needed; `false`: another connection is in the way. A caller without EXCLUSIVE may have PENDING.
    pub fn lock(&self, who: u64, wanted: i32) -> bool {
        let inner = &mut self.inner.lock();
        if inner.owes_a_turn && wanted == SQLITE_LOCK_SHARED && !inner.is_for_readers() {
            inner.owes_a_turn = false;
            // The writer that let this one in may be behind it, on the same CPU.
            MutexGuard::unlocked(inner, std::thread::yield_now);
        }
        // Not one that has come from SHARED: it closes the WAL if nobody else is there, or undoes what a crash has left.
        let writes = wanted == SQLITE_LOCK_EXCLUSIVE && inner.locks.level(who) >= SQLITE_LOCK_RESERVED;
        if writes {
            self.wait_for_readers(inner, who);
        } else if inner.let_writer_in() {
            self.lowered.notify_all();
        }
        if inner.locks.lock(who, wanted) {
            return true;
        }
        // RESERVED is not waited for: its owner may wait for this connection's SHARED.
        if !(writes || wanted == SQLITE_LOCK_SHARED) || inner.locks.is_with_this_thread(who) {
            return false;
        }
        let until = Instant::now() + WAIT;
        inner.locks.wait(who);
        let granted = loop {
            let late = self.lowered.wait_until(inner, until).timed_out();
            if inner.locks.lock(who, wanted) || late {
                break inner.locks.level(who) >= wanted;
            }
        };
        inner.locks.wait_no_more(who);
        granted
    }

    fn wait_for_readers(&self, inner: &mut MutexGuard<'_, GateState>, who: u64) {
        inner.locks.wait(who);
        (inner.writer, inner.owes_a_turn) = (Some(who), false);
        while let Some(until) = inner.readers_until.filter(|_| inner.writer.is_some() && inner.is_for_readers()) {
            self.lowered.wait_until(inner, until);
        }
        inner.writer = None;
        inner.locks.wait_no_more(who);
    }

    /// Lowers a lock to SHARED or NONE.
    pub fn unlock(&self, who: u64, to: i32) {
        let inner = &mut self.inner.lock();
        if inner.locks.unlock(who, to) > 0 {
            inner.readers_until = Some(Instant::now() + READ);
            inner.owes_a_turn = true;
        }
        self.lowered.notify_all();
    }

    /// The lock a connection has.
    pub fn level(&self, who: u64) -> i32 {
        self.inner.lock().locks.level(who)
    }

    /// Whether somebody is about to write.
    pub fn is_reserved(&self) -> bool {
        self.inner.lock().locks.is_reserved()
    }
}

#[cfg(test)]
mod test {
    use std::thread;

    use libsqlite3_sys::SQLITE_LOCK_NONE;

    use super::*;

    /// Until another thread waits.
    fn until_one_waits(gate: &Gate) {
        while gate.inner.lock().locks.waiting() == 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn who_waits_to_read_is_let_in_before_the_writer_comes_again() {
        let gate = Gate::default();
        for _ in 0..200 {
            assert!(gate.lock(1, SQLITE_LOCK_SHARED) && gate.lock(1, SQLITE_LOCK_EXCLUSIVE));
            thread::scope(|scope| {
                // Asked again, as SQLite does, if this thread is not run for so long.
                let reader = scope.spawn(|| while !gate.lock(2, SQLITE_LOCK_SHARED) {});
                until_one_waits(&gate);
                gate.unlock(1, SQLITE_LOCK_NONE);
                assert!(gate.lock(1, SQLITE_LOCK_SHARED) && gate.lock(1, SQLITE_LOCK_RESERVED));
                reader.join().expect("let in");
                assert_eq!(gate.level(2), SQLITE_LOCK_SHARED);
                gate.unlock(2, SQLITE_LOCK_NONE);
            });
            assert!(gate.lock(1, SQLITE_LOCK_EXCLUSIVE));
            gate.unlock(1, SQLITE_LOCK_NONE);
        }
        assert_eq!(gate.inner.lock().locks.waiting(), 0);
    }

    #[test]
    fn a_writer_waits_until_the_last_reader_has_gone() {
        let gate = Gate::default();
        assert!(gate.lock(2, SQLITE_LOCK_SHARED));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                assert!(gate.lock(1, SQLITE_LOCK_SHARED) && gate.lock(1, SQLITE_LOCK_RESERVED));
                while !gate.lock(1, SQLITE_LOCK_EXCLUSIVE) {}
                gate.level(2)
            });
            until_one_waits(&gate);
            gate.unlock(2, SQLITE_LOCK_NONE);
            assert_eq!(writer.join().expect("granted"), SQLITE_LOCK_NONE);
        });
        assert_eq!(gate.level(1), SQLITE_LOCK_EXCLUSIVE);
    }

    #[test]
    fn who_comes_when_the_readers_time_is_over_lets_the_writer_in_first() {
        let gate = Gate::default();
        assert!(gate.lock(1, SQLITE_LOCK_SHARED) && gate.lock(1, SQLITE_LOCK_RESERVED));
        {
            let inner = &mut gate.inner.lock();
            inner.locks.wait(1);
            (inner.writer, inner.readers_until) = (Some(1), Some(Instant::now() + Duration::from_secs(100)));
        }
        assert!(gate.lock(2, SQLITE_LOCK_SHARED), "it is theirs");
        gate.unlock(2, SQLITE_LOCK_NONE);
        gate.inner.lock().readers_until = Some(Instant::now());
        assert!(!gate.lock(2, SQLITE_LOCK_SHARED));
        assert_eq!((gate.level(1), gate.inner.lock().writer), (SQLITE_LOCK_EXCLUSIVE, None));
    }

    #[test]
    fn nobody_waits_for_the_own_thread_or_for_ever() {
        let gate = Gate::default();
        assert!(gate.lock(1, SQLITE_LOCK_SHARED) && gate.lock(1, SQLITE_LOCK_EXCLUSIVE));
        assert!(!gate.lock(2, SQLITE_LOCK_SHARED) && gate.inner.lock().locks.is_with_this_thread(2));
        thread::scope(|scope| assert!(!scope.spawn(|| gate.lock(3, SQLITE_LOCK_SHARED)).join().expect("comes back")));
        assert_eq!((gate.level(2), gate.level(3), gate.inner.lock().locks.waiting()), (SQLITE_LOCK_NONE, SQLITE_LOCK_NONE, 0));
    }
}
