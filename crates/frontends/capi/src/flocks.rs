//! The table of flock locks of the library file system.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::api_error::{ApiError, ApiResult};

/// A locked file: its mount and its inode number.
pub type LockedFile = (usize, u64);

/// The holders of a lock, by open file.
#[derive(Default)]
struct Lock {
    shared: Vec<usize>,
    alone: Option<usize>,
}

static LOCKS: LazyLock<Mutex<HashMap<LockedFile, Lock>>> = LazyLock::new(Mutex::default);
/// Number of locked files, for a quick check.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FREED: Condvar = Condvar::new();

impl Lock {
    fn drop_of(&mut self, who: usize) {
        self.shared.retain(|other| *other != who);
        self.alone = self.alone.filter(|other| *other != who);
    }

    fn is_free_for(&self, who: usize, alone: bool) -> bool {
        let others = self.shared.iter().any(|other| *other != who);
        self.alone.is_none_or(|other| other == who) && !(alone && others)
    }

    fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.alone.is_none()
    }
}

/// Releases the lock that an open file has on a file.
pub fn release(which: LockedFile, who: usize) {
    let mut locks = LOCKS.lock();
    if let Some(lock) = locks.get_mut(&which) {
        lock.drop_of(who);
        if lock.is_empty() {
            locks.remove(&which);
        }
    }
    COUNT.store(locks.len(), Ordering::Release);
    FREED.notify_all();
}

/// Releases the lock, if there is one, when the last number of an open file is closed.
pub fn release_at_close(which: LockedFile, who: usize) {
    if COUNT.load(Ordering::Acquire) > 0 {
        release(which, who);
    }
}

/// Locks a file for an open file; waits for others if `waits`.
pub fn take(which: LockedFile, who: usize, alone: bool, waits: bool) -> ApiResult<()> {
    let mut locks = LOCKS.lock();
    // As flock(2): a conversion first releases the old lock.
    if let Some(lock) = locks.get_mut(&which) {
        lock.drop_of(who);
        FREED.notify_all();
    }
    loop {
        let lock = locks.entry(which).or_default();
        if lock.is_free_for(who, alone) {
            if alone {
                lock.alone = Some(who)
            } else {
                lock.shared.push(who)
            }
            COUNT.store(locks.len(), Ordering::Release);
            return Ok(());
        }
        if !waits {
            return Err(ApiError::new(libc::EWOULDBLOCK, "another open file has the lock"));
        }
        FREED.wait(&mut locks);
    }
}
