//! The u calls as include/hotshelf.h declares them, and answers as both sides give them.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hotshelf::uaio;
use libc::{gid_t, iovec, mode_t, off_t, size_t, ssize_t, stat, timespec, uid_t};

/// What uopendir gives.
#[repr(C)]
pub struct Directory {
    hidden: [u8; 0],
}

/// What uaio_create gives.
#[repr(C)]
pub struct Requests {
    hidden: [u8; 0],
}

unsafe extern "C" {
    pub fn hs_init(config: *const c_char) -> c_int;
    pub fn hs_shutdown() -> c_int;
    pub fn hs_error() -> *const c_char;
    pub fn hs_export(path: *const c_char, to: *const c_char) -> c_int;
    pub fn hs_discard(path: *const c_char) -> c_int;
    pub fn hs_force(path: *const c_char) -> c_int;
    pub fn uopen(path: *const c_char, flags: c_int, ...) -> c_int;
    pub fn uopenat(dir: c_int, path: *const c_char, flags: c_int, ...) -> c_int;
    pub fn ucreat(path: *const c_char, mode: mode_t) -> c_int;
    pub fn uclose(ufd: c_int) -> c_int;
    pub fn udup(ufd: c_int) -> c_int;
    pub fn udup2(ufd: c_int, to: c_int) -> c_int;
    pub fn ufcntl(ufd: c_int, command: c_int, ...) -> c_int;
    pub fn ufileno(ufd: c_int) -> c_int;
    pub fn uread(ufd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    pub fn uwrite(ufd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    pub fn upread(ufd: c_int, buf: *mut c_void, n: size_t, off: off_t) -> ssize_t;
    pub fn upwrite(ufd: c_int, buf: *const c_void, n: size_t, off: off_t) -> ssize_t;
    pub fn ureadv(ufd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    pub fn uwritev(ufd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    pub fn upreadv(ufd: c_int, iov: *const iovec, count: c_int, off: off_t) -> ssize_t;
    pub fn upwritev(ufd: c_int, iov: *const iovec, count: c_int, off: off_t) -> ssize_t;
    pub fn ulseek(ufd: c_int, off: off_t, whence: c_int) -> off_t;
    pub fn ufsync(ufd: c_int) -> c_int;
    pub fn ufdatasync(ufd: c_int) -> c_int;
    pub fn uftruncate(ufd: c_int, len: off_t) -> c_int;
    pub fn ufallocate(ufd: c_int, mode: c_int, off: off_t, len: off_t) -> c_int;
    pub fn ufstat(ufd: c_int, st: *mut stat) -> c_int;
    pub fn ufchmod(ufd: c_int, mode: mode_t) -> c_int;
    pub fn ufchown(ufd: c_int, owner: uid_t, group: gid_t) -> c_int;
    pub fn uflock(ufd: c_int, operation: c_int) -> c_int;
    pub fn ufutimens(ufd: c_int, times: *const timespec) -> c_int;
    pub fn upin(ufd: c_int, off: off_t, n: size_t, p: *mut *const c_void) -> ssize_t;
    pub fn uunpin(ufd: c_int, off: off_t, p: *const c_void) -> c_int;
    pub fn umap(ufd: c_int, off: off_t, n: size_t) -> *const c_void;
    pub fn uunmap(p: *const c_void) -> c_int;
    pub fn ummap(addr: *mut c_void, n: size_t, prot: c_int, flags: c_int, ufd: c_int, off: off_t) -> *mut c_void;
    pub fn ustat(path: *const c_char, st: *mut stat) -> c_int;
    pub fn ulstat(path: *const c_char, st: *mut stat) -> c_int;
    pub fn ufstatat(dir: c_int, path: *const c_char, st: *mut stat, flags: c_int) -> c_int;
    pub fn utruncate(path: *const c_char, len: off_t) -> c_int;
    pub fn uunlink(path: *const c_char) -> c_int;
    pub fn uunlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    pub fn urename(from: *const c_char, to: *const c_char) -> c_int;
    pub fn urenameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int;
    pub fn umkdir(path: *const c_char, mode: mode_t) -> c_int;
    pub fn urmdir(path: *const c_char) -> c_int;
    pub fn uopendir(path: *const c_char) -> *mut Directory;
    pub fn ureaddir(dir: *mut Directory) -> *mut libc::dirent;
    pub fn urewinddir(dir: *mut Directory) -> c_int;
    pub fn uclosedir(dir: *mut Directory) -> c_int;
    pub fn uaio_create_with(depth: u32, flags: u32) -> *mut Requests;
    pub fn uaio_memory(aio: *mut Requests, bytes: size_t) -> *mut c_void;
    pub fn uaio_submit(aio: *mut Requests, requests: *const uaio, count: c_int) -> c_int;
    pub fn uaio_reap(aio: *mut Requests, done: *mut uaio, min: c_int, max: c_int, timeout: *const timespec) -> c_int;
    // long: the signature is part of the C interface.
    pub fn uaio_submit_and_reap(
        aio: *mut Requests,
        requests: *const uaio,
        count: c_int,
        done: *mut uaio,
        min: c_int,
        max: c_int,
        timeout: *const timespec,
    ) -> c_int;
    pub fn uaio_destroy(aio: *mut Requests) -> c_int;
}

/// What a call answers: its value, or its errno.
pub type Outcome = Result<i64, i32>;

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Of a call that has just returned.
pub fn outcome(value: impl Into<i64>) -> Outcome {
    match value.into() {
        -1 => Err(errno()),
        value => Ok(value),
    }
}

/// Of one that returns a size.
pub fn sized(value: ssize_t) -> Outcome {
    outcome(value as i64)
}

/// Whether it worked.
pub fn done(value: impl Into<i64>) -> Outcome {
    outcome(value).map(|_| 0)
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero byte")
}

pub fn said() -> String {
    // SAFETY: never NULL, a string until this thread's next failure.
    unsafe { std::ffi::CStr::from_ptr(hs_error()) }.to_string_lossy().into_owned()
}

pub fn zeroed_stat() -> stat {
    // SAFETY: integers alone, for which zeroes are values.
    unsafe { std::mem::zeroed() }
}
