//! The transfers of [`super::files`] as system calls that block (preadv2(2), pwritev2(2)).
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, ReadWriteFlags};

use super::buffers::Buffers;
use super::owner::SEGMENTS_MAX;
use crate::buffer::Span;
use crate::error::Error;

/// The direction and durability of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transfer {
    Read,
    Write,
    /// Writes past every volatile cache.
    WriteThrough,
}

/// Makes one call that transfers `data` from its byte `done` on; `offset` is the file offset of that byte. Returns the number of bytes
/// transferred.
pub(crate) fn transfer(fd: BorrowedFd<'_>, kind: Transfer, offset: u64, buffers: &Buffers, data: &[Span], done: u64) -> Result<u64, Error> {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SEGMENTS_MAX as usize];
    let (mut count, mut skip) = (0, done);
    for span in data {
        let piece = buffers.find(*span).ok_or(Error::NotPermitted)?;
        let skipped = skip.min(u64::from(piece.bytes));
        skip -= skipped;
        let left = u64::from(piece.bytes) - skipped;
        if left > 0 {
            vectors[count] = libc::iovec { iov_base: (piece.address + skipped) as *mut libc::c_void, iov_len: left as usize };
            count += 1;
        }
    }
    let count = i32::try_from(count).expect("no more than segments_max");
    let offset = i64::try_from(offset).map_err(|_| Error::OutOfRange)?;
    let flags = ReadWriteFlags::DSYNC.bits().cast_signed();
    // SAFETY: each vector lies in an arena that `buffers` keeps until after the call; nobody has a reference to these bytes.
    let moved = unsafe {
        match kind {
            Transfer::Read => libc::preadv2(fd.as_raw_fd(), vectors.as_ptr(), count, offset, 0),
            Transfer::Write => libc::pwritev2(fd.as_raw_fd(), vectors.as_ptr(), count, offset, 0),
            Transfer::WriteThrough => libc::pwritev2(fd.as_raw_fd(), vectors.as_ptr(), count, offset, flags),
        }
    };
    match u64::try_from(moved) {
        Ok(moved) => Ok(moved),
        Err(_) => {
            let error = std::io::Error::last_os_error();
            Err(Error::from_errno(Errno::from_io_error(&error).unwrap_or(Errno::IO).raw_os_error()))
        }
    }
}
