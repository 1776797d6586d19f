//! SQLite's locks on a database, between the connections of this process: it alone has the image.
//!
//! Many may have SHARED; one of them RESERVED, who will write; PENDING lets no new reader in; EXCLUSIVE: nobody else reads.

use std::collections::HashMap;
use std::thread::{self, ThreadId};

use libsqlite3_sys::{SQLITE_LOCK_EXCLUSIVE, SQLITE_LOCK_NONE, SQLITE_LOCK_PENDING, SQLITE_LOCK_RESERVED, SQLITE_LOCK_SHARED};

/// The holders of each lock; connections by number.
#[derive(Default)]
pub struct Locks {
    levels: HashMap<u64, HeldLock>,
    /// Who sleeps until it gets more.
    waiting: HashMap<u64, ThreadId>,
}

struct HeldLock {
    level: i32,
    /// Who raised it last.
    thread: ThreadId,
}

impl Locks {
    /// The lock a connection has.
    pub fn level(&self, who: u64) -> i32 {
        self.levels.get(&who).map_or(SQLITE_LOCK_NONE, |held| held.level)
    }

    fn set(&mut self, who: u64, level: i32) {
        let thread = self.waiting.get(&who).copied().unwrap_or_else(|| thread::current().id());
        self.levels.insert(who, HeldLock { level, thread });
    }

    /// The highest lock that others have.
    fn others(&self, who: u64) -> i32 {
        let others = self.levels.iter().filter(|(other, _)| **other != who);
        others.map(|(_, held)| held.level).max().unwrap_or(SQLITE_LOCK_NONE)
    }

    /// Whether this thread has one by another connection: it would wait for itself.
    pub fn is_with_this_thread(&self, who: u64) -> bool {
        let this = thread::current().id();
        self.levels.iter().any(|(other, held)| *other != who && held.thread == this)
    }

    /// Raises a lock, at once or not at all; `false`: another connection is in the way. Who could not get EXCLUSIVE may have PENDING.
    pub fn lock(&mut self, who: u64, wanted: i32) -> bool {
        let (own, others) = (self.level(who), self.others(who));
        if own >= wanted {
            return true;
        }
        let granted = match wanted {
            SQLITE_LOCK_SHARED if others < SQLITE_LOCK_PENDING => SQLITE_LOCK_SHARED,
            SQLITE_LOCK_RESERVED if others < SQLITE_LOCK_RESERVED => SQLITE_LOCK_RESERVED,
            SQLITE_LOCK_EXCLUSIVE if others == SQLITE_LOCK_NONE => SQLITE_LOCK_EXCLUSIVE,
            SQLITE_LOCK_EXCLUSIVE | SQLITE_LOCK_PENDING if others < SQLITE_LOCK_RESERVED => SQLITE_LOCK_PENDING,
            _ => return false,
        };
        self.set(who, granted);
        granted == wanted
    }

    /// Lowers a lock to SHARED or NONE, and admits the waiting readers; returns how many.
    pub fn unlock(&mut self, who: u64, to: i32) -> usize {
        if to == SQLITE_LOCK_NONE {
            self.levels.remove(&who);
        } else if self.level(who) > to {
            self.set(who, to);
        }
        let readers: Vec<u64> = self.waiting.keys().copied().filter(|who| self.level(*who) == SQLITE_LOCK_NONE).collect();
        readers.into_iter().filter(|reader| self.lock(*reader, SQLITE_LOCK_SHARED)).count()
    }

    /// This thread sleeps for it now; one that has no lock wants to read.
    pub fn wait(&mut self, who: u64) {
        self.waiting.insert(who, thread::current().id());
    }

    /// It does not any more.
    pub fn wait_no_more(&mut self, who: u64) {
        self.waiting.remove(&who);
    }

    /// Returns the number of sleeping connections.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether somebody is about to write.
    pub fn is_reserved(&self) -> bool {
        self.levels.values().any(|held| held.level >= SQLITE_LOCK_RESERVED)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// What must be true between any two connections.
    fn fit(a: i32, b: i32) -> bool {
        let (low, high) = (a.min(b), a.max(b));
        match high {
            SQLITE_LOCK_EXCLUSIVE => low == SQLITE_LOCK_NONE,
            SQLITE_LOCK_PENDING | SQLITE_LOCK_RESERVED => low <= SQLITE_LOCK_SHARED,
            _ => true,
        }
    }

    #[test]
    fn no_two_hold_what_does_not_go_together() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut locks = Locks::default();
        for _ in 0..20_000 {
            let who = rng.u64(0..4);
            let own = locks.level(who);
            if rng.u8(0..3) == 0 {
                locks.unlock(who, if rng.bool() { SQLITE_LOCK_NONE } else { SQLITE_LOCK_SHARED });
            } else if own == SQLITE_LOCK_NONE {
                locks.lock(who, SQLITE_LOCK_SHARED);
            } else {
                locks.lock(who, if rng.bool() { SQLITE_LOCK_RESERVED } else { SQLITE_LOCK_EXCLUSIVE });
            }
            let all: Vec<i32> = (0..4).map(|who| locks.level(who)).collect();
            for a in 0..4 {
                assert!((0..a).all(|b| fit(all[a], all[b])), "{all:?}");
            }
        }
    }

    #[test]
    fn who_waits_to_read_has_it_when_the_writer_has_unlocked() {
        let mut locks = Locks::default();
        assert!(locks.lock(1, SQLITE_LOCK_SHARED) && locks.lock(1, SQLITE_LOCK_EXCLUSIVE) && !locks.lock(2, SQLITE_LOCK_SHARED));
        locks.wait(2);
        assert_eq!((locks.unlock(1, SQLITE_LOCK_NONE), locks.level(2), locks.unlock(1, SQLITE_LOCK_NONE)), (1, SQLITE_LOCK_SHARED, 0));
        assert!(locks.lock(1, SQLITE_LOCK_SHARED) && locks.lock(1, SQLITE_LOCK_RESERVED) && !locks.lock(1, SQLITE_LOCK_EXCLUSIVE));
    }

    #[test]
    fn a_writer_that_waits_lets_no_reader_in() {
        let mut locks = Locks::default();
        assert!(locks.lock(1, SQLITE_LOCK_SHARED) && locks.lock(2, SQLITE_LOCK_SHARED));
        assert!(locks.lock(1, SQLITE_LOCK_RESERVED) && !locks.lock(2, SQLITE_LOCK_RESERVED));
        assert!(!locks.lock(1, SQLITE_LOCK_EXCLUSIVE) && !locks.lock(3, SQLITE_LOCK_SHARED));
        locks.unlock(2, SQLITE_LOCK_NONE);
        assert!(locks.lock(1, SQLITE_LOCK_EXCLUSIVE));
        locks.unlock(1, SQLITE_LOCK_SHARED);
        assert!(locks.lock(3, SQLITE_LOCK_SHARED) && !locks.is_reserved());
    }
}
