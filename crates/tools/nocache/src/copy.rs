//! Calls that copy inside the kernel: one file is read, the other written.

use libc::{c_int, c_uint, off_t, size_t, ssize_t};

use crate::byte_range::ByteRange;
use crate::evict;
use crate::files::{self, Direction, File};
use crate::next::hooks;
use crate::sys;

/// One file of a copy and its start offset.
struct CopySide {
    file: File,
    direction: Direction,
    from: u64,
}

/// # Safety
/// `offset` is null or readable.
unsafe fn side(fd: c_int, direction: Direction, offset: *const off_t) -> Option<CopySide> {
    let file = files::look(fd)?;
    // SAFETY: promised by the caller; null is none.
    let given = unsafe { offset.as_ref() }.map(|at| at.unsigned_abs());
    let from = given.or_else(|| sys::position(fd)).unwrap_or(0);
    evict::before(file, direction, from);
    Some(CopySide { file, direction, from })
}

/// # Safety
/// Both offsets are null or readable.
pub unsafe fn copied(from: (c_int, *const off_t), to: (c_int, *const off_t), copy: impl FnOnce() -> ssize_t) -> ssize_t {
    // SAFETY: promised by the caller.
    let sides = unsafe { [side(from.0, Direction::Read, from.1), side(to.0, Direction::Write, to.1)] };
    let count = copy();
    if let Ok(moved) = u64::try_from(count) {
        for side in sides.iter().flatten() {
            let end = if side.file.appends() { sys::position(side.file.fd) } else { None }.unwrap_or(side.from.saturating_add(moved));
            evict::done(side.file, side.direction, ByteRange { from: end.saturating_sub(moved), to: end });
        }
    }
    count
}

hooks! {
    fn sendfile[real](out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // SAFETY: the offset is the program's, null or good.
        unsafe { copied((input, offset), (out, core::ptr::null()), || real(out, input, offset, count)) }
    }
    fn sendfile64[real](out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // SAFETY: the offset is the program's, null or good.
        unsafe { copied((input, offset), (out, core::ptr::null()), || real(out, input, offset, count)) }
    }
    fn splice[real](input: c_int, input_at: *mut off_t, out: c_int, out_at: *mut off_t, size: size_t, flags: c_uint) -> ssize_t {
        // SAFETY: the offsets are the program's, null or good.
        unsafe { copied((input, input_at), (out, out_at), || real(input, input_at, out, out_at, size, flags)) }
    }
    fn copy_file_range[real](input: c_int, input_at: *mut off_t, out: c_int, out_at: *mut off_t, size: size_t, flags: c_uint) -> ssize_t {
        // SAFETY: the offsets are the program's, null or good.
        unsafe { copied((input, input_at), (out, out_at), || real(input, input_at, out, out_at, size, flags)) }
    }
}
