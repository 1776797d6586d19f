//! A range of bytes in a file, and its write-back and eviction.

use libc::c_int;

use crate::files::{self, File};
use crate::sys;

/// A range of bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub from: u64,
    /// Offset behind the last byte.
    pub to: u64,
}

/// Returns the range of an access that moved the position by `count`, which other threads may have moved too.
pub fn moved(before: u64, now: u64, count: u64) -> ByteRange {
    let from = now.saturating_sub(count);
    if before.saturating_add(count) == now {
        ByteRange { from, to: now }
    } else {
        ByteRange { from: from.min(before), to: now.max(before + count) }
    }
}

/// Writes the range back and waits.
pub fn write_out(file: File, range: ByteRange) {
    let outcome = if file.is_whole() { Err(libc::ENOSYS) } else { sys::write_out(file.fd, range.from, range.to - range.from) };
    match outcome {
        Ok(()) => {}
        // The descriptor was reused unnoticed.
        Err(libc::ESPIPE | libc::EBADF) => files::forget(file.fd),
        // The device failed: the program's own fsync reports it.
        Err(libc::EIO | libc::ENOSPC | libc::EDQUOT) => {}
        Err(_) => drop(sys::write_all(file.fd)),
    }
}

/// Writes the whole file back and waits.
pub fn write_all(file: File) {
    if file.is_whole() {
        let _ = sys::write_all(file.fd);
    } else {
        let _ = sys::write_out(file.fd, 0, 0);
    }
}

/// Evicts the pages of the range.
pub fn drop_range(fd: c_int, range: ByteRange) {
    // A length of zero would mean everything.
    if range.from < range.to {
        let _ = sys::drop_pages(fd, range.from, range.to - range.from);
    }
}

#[cfg(test)]
mod test {
    use super::{ByteRange, moved};

    fn range(from: u64, to: u64) -> ByteRange {
        ByteRange { from, to }
    }

    #[test]
    fn a_position_that_others_moved_too_gives_the_larger_range() {
        assert_eq!(moved(10, 20, 10), range(10, 20));
        assert_eq!(moved(10, 30, 10), range(10, 30));
        assert_eq!(moved(0, 100, 10), range(0, 100));
        assert_eq!(moved(100, 50, 10), range(40, 110));
    }
}
