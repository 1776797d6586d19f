//! Calls that go to the kernel unchanged: for files that cannot be cached, and in pass-through mode.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::{FallocateFlags, SeekFrom, Stat};
use rustix::io::Errno;

type Outcome<T> = Result<T, Errno>;

/// Reads at an offset, as pread(2) does.
#[inline]
pub fn read_at(fd: BorrowedFd<'_>, at: u64, to: &mut [u8]) -> Outcome<usize> {
    rustix::io::pread(fd, to, at)
}

/// Writes at an offset, as pwrite(2) does.
#[inline]
pub fn write_at(fd: BorrowedFd<'_>, at: u64, from: &[u8]) -> Outcome<usize> {
    rustix::io::pwrite(fd, from, at)
}

/// Reads at an offset into several slices, as preadv(2) does.
pub fn read_vectored_at(fd: BorrowedFd<'_>, at: u64, to: &mut [IoSliceMut<'_>]) -> Outcome<usize> {
    rustix::io::preadv(fd, to, at)
}

/// Writes several slices at an offset, as pwritev(2) does.
pub fn write_vectored_at(fd: BorrowedFd<'_>, at: u64, from: &[IoSlice<'_>]) -> Outcome<usize> {
    rustix::io::pwritev(fd, from, at)
}

/// Flushes the file: calls fsync(2), or with `data_only` fdatasync(2).
pub fn sync(fd: BorrowedFd<'_>, data_only: bool) -> Outcome<()> {
    if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }
}

/// Deallocates a range of the file; its size stays.
pub fn punch_hole(fd: BorrowedFd<'_>, range: &Range<u64>) -> Outcome<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, how, range.start, range.end.saturating_sub(range.start))
}

/// Moves the file position and returns the new one.
pub fn seek(fd: BorrowedFd<'_>, to: SeekFrom) -> Outcome<u64> {
    rustix::fs::seek(fd, to)
}

/// Appends to the file. Returns where the bytes are, and their number, which is less at a limit of the file size. Other processes may
/// write between the pieces that the kernel writes, but not within one.
pub fn append(fd: BorrowedFd<'_>, from: &[u8]) -> Outcome<(u64, usize)> {
    use rustix::io::{ReadWriteFlags, pwritev2};
    let mut done = 0;
    let mut begin = None;
    while done < from.len() {
        let got = match pwritev2(fd, &[IoSlice::new(&from[done..])], u64::MAX, ReadWriteFlags::APPEND) {
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        done += got;
        let end = seek_end(fd)?;
        begin.get_or_insert(end.saturating_sub(got as u64));
    }
    Ok((begin.map_or_else(|| seek_end(fd), Ok)?, done))
}

fn seek_end(fd: BorrowedFd<'_>) -> Outcome<u64> {
    Ok(rustix::fs::fstat(fd)?.st_size as u64)
}

/// Applies the cache's size, and the time of a write that is later than the backing file's times, to its attributes; 0: there is none.
pub fn as_cached(stat: &mut Stat, size: u64, written_ns: u64) {
    stat.st_size = size as _;
    if written_ns == 0 {
        return;
    }
    let (seconds, ns) = (written_ns / 1_000_000_000, written_ns % 1_000_000_000);
    (stat.st_mtime, stat.st_mtime_nsec) = (seconds as _, ns as _);
    // The mode or the owner may have changed since.
    if written_ns.cast_signed() > crate::below::stamp_of(stat).ctime {
        (stat.st_ctime, stat.st_ctime_nsec) = (seconds as _, ns as _);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_before_1970_stay_where_nothing_was_written() {
        let file = tempfile::tempfile().expect("a file");
        let mut stat = rustix::fs::fstat(&file).expect("its attributes");
        stat.st_mtime = -2;
        as_cached(&mut stat, 7, 0);
        assert_eq!((stat.st_size, stat.st_mtime), (7, -2));
        as_cached(&mut stat, 7, 3_000_000_001);
        assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (3, 1));
    }
}
