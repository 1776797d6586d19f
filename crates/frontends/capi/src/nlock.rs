//! Locks of open files (flock), between the threads of the process that has the image open.
#![expect(unsafe_code, reason = "called by C; a struct flock")]

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::flock;
use parking_lot::{Condvar, Mutex};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::nfd::{Open, share};

/// A file: its mount and its inode number.
type Which = (usize, u64);

/// The holders of a lock, by open file.
#[derive(Default)]
struct Lock {
    shared: Vec<usize>,
    alone: Option<usize>,
}

static LOCKS: LazyLock<Mutex<HashMap<Which, Lock>>> = LazyLock::new(Mutex::default);
/// Number of locked files, for a quick check.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FREED: Condvar = Condvar::new();

/// Identifies an open file.
fn who(open: &Open) -> usize {
    Arc::as_ptr(&open.file).addr()
}

fn which(open: &Open) -> Which {
    (Arc::as_ptr(&open.mount).addr(), open.file.node().ino())
}

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

fn release(which: Which, who: usize) {
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

/// Releases the lock when the last number of an open file is closed.
pub fn let_go(open: &Open) {
    if COUNT.load(Ordering::Acquire) > 0 {
        release(which(open), who(open));
    }
}

fn take(which: Which, who: usize, alone: bool, waits: bool) -> ApiResult<()> {
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

/// Works like flock(2): LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB: locks of the open file, shared by duplicates of its number, between
/// threads of this process (no other process has the image open). Thread-safe.
///
/// Returns 0, or -1: EBADF; EINVAL; EWOULDBLOCK (LOCK_NB, and another open file holds it).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_flock(fd: c_int, operation: c_int) -> c_int {
    ffi_guard(|| {
        let open = share(fd)?;
        let (which, who, waits) = (which(&open), who(&open), operation & libc::LOCK_NB == 0);
        match operation & !libc::LOCK_NB {
            libc::LOCK_SH => take(which, who, false, waits)?,
            libc::LOCK_EX => take(which, who, true, waits)?,
            libc::LOCK_UN => release(which, who),
            _ => return Err(ApiError::new(libc::EINVAL, format!("flock operation {operation}: LOCK_SH, LOCK_EX or LOCK_UN"))),
        }
        Ok(0)
    })
}

/// Handles a record lock, which never conflicts.
///
/// # Safety
/// `lock` is NULL or valid for reads and writes.
pub unsafe fn record(command: c_int, lock: *mut flock) -> ApiResult<c_int> {
    if lock.is_null() {
        return Err(ApiError::new(libc::EFAULT, "the struct flock is NULL"));
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    let kind = unsafe { (&raw const (*lock).l_type).read() };
    if ![libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].contains(&kind.into()) {
        return Err(ApiError::new(libc::EINVAL, format!("a lock of type {kind}")));
    }
    if command == libc::F_GETLK {
        // SAFETY: as above.
        unsafe { (&raw mut (*lock).l_type).write(libc::F_UNLCK as _) };
    }
    Ok(0)
}
