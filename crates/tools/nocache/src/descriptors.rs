//! Calls that change the file behind a descriptor, or the file itself.

use libc::{c_char, c_int, c_uint, mode_t, off_t};

use crate::next::hooks;
use crate::{evict, files};

/// Evicts the file of a descriptor before it is closed or reused.
pub fn leave(fd: c_int) {
    if let Some(file) = files::used(fd) {
        evict::all(file);
    }
    files::forget(fd);
}

fn new(fd: c_int) -> c_int {
    if fd >= 0 {
        files::forget(fd);
    }
    fd
}

fn leave_all(from: c_int, to: c_int) {
    (from.max(0)..=to.min(files::highest())).for_each(leave);
}

const CLOSE_RANGE_CLOEXEC: c_int = 4;

hooks! {
    fn close[real](fd: c_int) -> c_int {
        leave(fd);
        real(fd)
    }
    fn close_range[real](from: c_uint, to: c_uint, flags: c_int) -> c_int {
        if flags & CLOSE_RANGE_CLOEXEC == 0 {
            leave_all(c_int::try_from(from).unwrap_or(c_int::MAX), c_int::try_from(to).unwrap_or(c_int::MAX));
        }
        real(from, to, flags)
    }
    fn closefrom[real](from: c_int) {
        leave_all(from, c_int::MAX);
        real(from)
    }
    fn dup[real](fd: c_int) -> c_int { new(real(fd)) }
    fn dup2[real](fd: c_int, to: c_int) -> c_int {
        if fd != to {
            leave(to);
        }
        real(fd, to)
    }
    fn dup3[real](fd: c_int, to: c_int, flags: c_int) -> c_int {
        leave(to);
        real(fd, to, flags)
    }
    fn open[real](path: *const c_char, flags: c_int, mode: mode_t) -> c_int { new(real(path, flags, mode)) }
    fn open64[real](path: *const c_char, flags: c_int, mode: mode_t) -> c_int { new(real(path, flags, mode)) }
    fn openat[real](dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int { new(real(dir, path, flags, mode)) }
    fn openat64[real](dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int { new(real(dir, path, flags, mode)) }
    fn __open_2[real](path: *const c_char, flags: c_int) -> c_int { new(real(path, flags)) }
    fn __open64_2[real](path: *const c_char, flags: c_int) -> c_int { new(real(path, flags)) }
    fn __openat_2[real](dir: c_int, path: *const c_char, flags: c_int) -> c_int { new(real(dir, path, flags)) }
    fn __openat64_2[real](dir: c_int, path: *const c_char, flags: c_int) -> c_int { new(real(dir, path, flags)) }
    fn creat[real](path: *const c_char, mode: mode_t) -> c_int { new(real(path, mode)) }
    fn creat64[real](path: *const c_char, mode: mode_t) -> c_int { new(real(path, mode)) }
    fn fcntl[real](fd: c_int, command: c_int, argument: usize) -> c_int { controlled(fd, real(fd, command, argument), command) }
    fn fcntl64[real](fd: c_int, command: c_int, argument: usize) -> c_int { controlled(fd, real(fd, command, argument), command) }
    fn ftruncate[real](fd: c_int, size: off_t) -> c_int { cut(fd, real(fd, size)) }
    fn ftruncate64[real](fd: c_int, size: off_t) -> c_int { cut(fd, real(fd, size)) }
    fn fallocate[real](fd: c_int, mode: c_int, at: off_t, size: off_t) -> c_int { cut(fd, real(fd, mode, at, size)) }
    fn fallocate64[real](fd: c_int, mode: c_int, at: off_t, size: off_t) -> c_int { cut(fd, real(fd, mode, at, size)) }
    fn posix_fallocate[real](fd: c_int, at: off_t, size: off_t) -> c_int { cut(fd, real(fd, at, size)) }
    fn posix_fallocate64[real](fd: c_int, at: off_t, size: off_t) -> c_int { cut(fd, real(fd, at, size)) }
}

fn controlled(fd: c_int, result: c_int, command: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return new(result),
        // `O_DIRECT` and `O_APPEND` may have changed.
        libc::F_SETFL => leave(fd),
        _ => {}
    }
    result
}

/// Handles the page at a new end of file.
fn cut(fd: c_int, result: c_int) -> c_int {
    if let Some(file) = files::look(fd) {
        evict::all_written(file);
    }
    result
}
