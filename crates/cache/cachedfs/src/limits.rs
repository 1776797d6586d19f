//! The maximum size of a file: the kernel's limits, which hold at the call and not at write-back.
//!
//! There are three limits. No position is above `i64::MAX`; a process may be allowed less (RLIMIT_FSIZE); and each file system has a
//! maximum file size. The last is found with lseek(2), which refuses positions that the file cannot have. A write that crosses a limit is
//! shortened, and a write that starts behind it fails with EFBIG (and SIGXFSZ at the process's limit), as in the kernel's
//! `generic_write_checks`.
//!
//! The cache indexes pages up to 4 PiB ([`FILE_BYTES_MAX`]). Calls on a longer file bypass the cache.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

pub use datapath::engine::FILE_BYTES_MAX;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The last position of a file, by its type.
pub const END: u64 = i64::MAX as u64;
/// A length that every file system supports, so that no limit is checked below it.
const SURE: u64 = 1 << 26;

/// The last known RLIMIT_FSIZE, and when it was read (ms, plus 1).
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Returns the limit of this process for file sizes, read from the kernel, which costs as much as a small write.
pub fn own() -> u64 {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    LIMIT.store(limit, Ordering::Relaxed);
    limit
}

/// Returns the limit as of the last tick of the coarse clock.
pub fn own_lately(now_ms: u32) -> u64 {
    let now = u64::from(now_ms) + 1;
    if ASKED.load(Ordering::Relaxed) == now {
        return LIMIT.load(Ordering::Relaxed);
    }
    ASKED.store(now, Ordering::Relaxed);
    own()
}

/// Returns whether the last known limit is finite.
#[inline(always)]
pub fn is_limited() -> bool {
    LIMIT.load(Ordering::Relaxed) != u64::MAX
}

/// Returns the maximum size of this file.
pub fn largest(fd: BorrowedFd<'_>) -> u64 {
    let access = rustix::fs::fcntl_getfl(fd).map(|flags| flags & rustix::fs::OFlags::RWMODE);
    // Uses a separate open file description, because it moves the position.
    let own = access.and_then(|access| crate::descriptor::reopen(fd, access));
    match own {
        Ok(own) => largest_by(|at| rustix::fs::seek(&own, SeekFrom::Start(at)).is_ok()),
        Err(_) => {
            let Ok(before) = rustix::fs::tell(fd) else { return END };
            let largest = largest_by(|at| rustix::fs::seek(fd, SeekFrom::Start(at)).is_ok());
            let _ = rustix::fs::seek(fd, SeekFrom::Start(before));
            largest
        }
    }
}

fn largest_by(is_possible: impl Fn(u64) -> bool) -> u64 {
    if is_possible(END) || !is_possible(SURE) {
        return END;
    }
    let (mut good, mut bad) = (SURE, END);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if is_possible(middle) { good = middle } else { bad = middle }
    }
    good
}

/// Returns how many of `len` bytes at a position are within the limits.
///
/// # Errors
/// EFBIG: none of them; the second value says whether the limit of the process is the reason.
pub fn within(at: u64, len: usize, own: u64, largest: impl FnOnce() -> u64) -> Result<usize, (Errno, bool)> {
    if at >= own {
        return Err((Errno::FBIG, true));
    }
    let len = len.min(usize::try_from(own - at).unwrap_or(usize::MAX));
    if at.saturating_add(len as u64) <= SURE {
        return Ok(len);
    }
    let largest = largest();
    if at >= largest { Err((Errno::FBIG, false)) } else { Ok(len.min(usize::try_from(largest - at).unwrap_or(usize::MAX))) }
}

/// Returns whether every file can have this position.
pub fn is_sure(at: u64) -> bool {
    at <= SURE
}

#[cfg(test)]
mod test {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_largest_is_found_wherever_it_is() {
        for wanted in [SURE, SURE + 1, u64::from(u32::MAX), (1 << 44) - 4096, END - 1, END] {
            assert_eq!(largest_by(|at| at <= wanted), wanted);
        }
        let file = tempfile::tempfile().expect("a file");
        let found = largest(file.as_fd());
        let seek = |at| rustix::fs::seek(&file, SeekFrom::Start(at));
        assert!(seek(found).is_ok() && (found == END || seek(found + 1).is_err()));
    }

    #[test]
    fn a_write_is_cut_at_the_nearest_limit() {
        assert_eq!(within(10, 20, u64::MAX, || unreachable!("not asked")), Ok(20));
        assert_eq!(within(10, 20, 15, || END), Ok(5));
        assert_eq!(within(15, 20, 15, || END), Err((Errno::FBIG, true)));
        let largest = 1 << 40;
        assert_eq!(within(largest - 1, 20, u64::MAX, || largest), Ok(1));
        assert_eq!(within(largest, 20, u64::MAX, || largest), Err((Errno::FBIG, false)));
        assert_eq!(within(largest, 20, largest, || largest), Err((Errno::FBIG, true)));
    }
}
