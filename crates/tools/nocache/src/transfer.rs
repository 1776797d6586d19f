//! Reads and writes: one or several buffers, at an offset or at the file position.

use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

use crate::byte_range::{self, ByteRange};
use crate::evict;
use crate::files::{self, Direction, File};
use crate::next::hooks;
use crate::sys;

/// Handles an access at the file position.
#[inline]
pub fn here(fd: c_int, direction: Direction, access: impl FnOnce() -> ssize_t) -> ssize_t {
    match files::look(fd) {
        None => access(),
        Some(file) => here_chosen(file, direction, access),
    }
}

fn here_chosen(file: File, direction: Direction, access: impl FnOnce() -> ssize_t) -> ssize_t {
    let appends = direction == Direction::Write && file.appends();
    let stood = sys::position(file.fd).unwrap_or(0);
    if !appends {
        evict::before(file, direction, stood);
    }
    let count = access();
    let now = sys::position(file.fd);
    match (u64::try_from(count), now) {
        (Ok(0), _) if direction == Direction::Read => evict::at_end(file),
        (Ok(moved), Some(now)) if appends => evict::done(file, direction, ByteRange { from: now.saturating_sub(moved), to: now }),
        (Ok(moved), Some(now)) if moved > 0 => evict::done(file, direction, byte_range::moved(stood, now, moved)),
        _ => {}
    }
    count
}

/// Handles an access at an offset.
#[inline]
pub fn at(fd: c_int, offset: off_t, direction: Direction, access: impl FnOnce() -> ssize_t) -> ssize_t {
    match files::look(fd) {
        None => access(),
        Some(file) => at_chosen(file, offset, direction, access),
    }
}

fn at_chosen(file: File, offset: off_t, direction: Direction, access: impl FnOnce() -> ssize_t) -> ssize_t {
    let from = offset.unsigned_abs();
    evict::before(file, direction, from);
    let count = access();
    match u64::try_from(count) {
        Ok(0) if direction == Direction::Read => evict::at_end(file),
        Ok(moved) => evict::done(file, direction, where_written(file, direction, from, moved)),
        Err(_) => {}
    }
    count
}

/// Returns the written range: with O_APPEND Linux ignores the offset.
fn where_written(file: File, direction: Direction, from: u64, count: u64) -> ByteRange {
    if direction == Direction::Write && file.appends() {
        let end = sys::status(file.fd).map_or(from + count, |status| status.st_size.unsigned_abs());
        return ByteRange { from: end.saturating_sub(count), to: end };
    }
    ByteRange { from, to: from.saturating_add(count) }
}

/// Handles an access at an offset, or at the file position for -1.
#[inline]
pub fn at_or_here(fd: c_int, offset: off_t, direction: Direction, access: impl FnOnce() -> ssize_t) -> ssize_t {
    if offset == -1 { here(fd, direction, access) } else { at(fd, offset, direction, access) }
}

use Direction::{Read, Write};

hooks! {
    fn read[real](fd: c_int, data: *mut c_void, size: size_t) -> ssize_t { here(fd, Read, || real(fd, data, size)) }
    fn __read_chk[real](fd: c_int, data: *mut c_void, size: size_t, room: size_t) -> ssize_t {
        here(fd, Read, || real(fd, data, size, room))
    }
    fn write[real](fd: c_int, data: *const c_void, size: size_t) -> ssize_t { here(fd, Write, || real(fd, data, size)) }
    fn readv[real](fd: c_int, parts: *const iovec, count: c_int) -> ssize_t { here(fd, Read, || real(fd, parts, count)) }
    fn writev[real](fd: c_int, parts: *const iovec, count: c_int) -> ssize_t { here(fd, Write, || real(fd, parts, count)) }
    fn pread[real](fd: c_int, data: *mut c_void, size: size_t, offset: off_t) -> ssize_t {
        at(fd, offset, Read, || real(fd, data, size, offset))
    }
    fn pread64[real](fd: c_int, data: *mut c_void, size: size_t, offset: off_t) -> ssize_t {
        at(fd, offset, Read, || real(fd, data, size, offset))
    }
    fn __pread_chk[real](fd: c_int, data: *mut c_void, size: size_t, offset: off_t, room: size_t) -> ssize_t {
        at(fd, offset, Read, || real(fd, data, size, offset, room))
    }
    fn __pread64_chk[real](fd: c_int, data: *mut c_void, size: size_t, offset: off_t, room: size_t) -> ssize_t {
        at(fd, offset, Read, || real(fd, data, size, offset, room))
    }
    fn pwrite[real](fd: c_int, data: *const c_void, size: size_t, offset: off_t) -> ssize_t {
        at(fd, offset, Write, || real(fd, data, size, offset))
    }
    fn pwrite64[real](fd: c_int, data: *const c_void, size: size_t, offset: off_t) -> ssize_t {
        at(fd, offset, Write, || real(fd, data, size, offset))
    }
    fn preadv[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        at(fd, offset, Read, || real(fd, parts, count, offset))
    }
    fn preadv64[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        at(fd, offset, Read, || real(fd, parts, count, offset))
    }
    fn pwritev[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        at(fd, offset, Write, || real(fd, parts, count, offset))
    }
    fn pwritev64[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        at(fd, offset, Write, || real(fd, parts, count, offset))
    }
    fn preadv2[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        at_or_here(fd, offset, Read, || real(fd, parts, count, offset, flags))
    }
    fn preadv64v2[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        at_or_here(fd, offset, Read, || real(fd, parts, count, offset, flags))
    }
    fn pwritev2[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        at_or_here(fd, offset, Write, || real(fd, parts, count, offset, flags))
    }
    fn pwritev64v2[real](fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        at_or_here(fd, offset, Write, || real(fd, parts, count, offset, flags))
    }
}
