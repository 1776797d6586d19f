//! io_uring: reads and writes without a library call. The program can be denied io_uring and then uses other calls. If it is not denied
//! and sets up a ring, a warning on standard error says that the page cache is being measured.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{c_char, c_int, c_uint, c_void, size_t};

use crate::next::hooks;
use crate::{config, sys};

/// Device and inode of standard error at the start of the program.
static ERRORS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static SAID: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    static program_invocation_short_name: *const c_char;
}

/// Runs at the start of the program.
pub fn begin() {
    if let Some(status) = sys::status(2) {
        let [device, inode] = &ERRORS;
        device.store(status.st_dev, Ordering::Relaxed);
        inode.store(status.st_ino, Ordering::Relaxed);
    }
}

/// Warns once that a ring was set up, if standard error is unchanged.
fn noticed() {
    let [device, inode] = &ERRORS;
    let same = |status: libc::stat| status.st_dev == device.load(Ordering::Relaxed) && status.st_ino == inode.load(Ordering::Relaxed);
    if config::chosen().is_none() || SAID.swap(true, Ordering::Relaxed) || !sys::status(2).is_some_and(same) {
        return;
    }
    // SAFETY: the C library's own variable.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: it is a string, as long as the program lives.
    let name = if name.is_null() { b"?" } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    let parts: [&[u8]; 3] = [
        b"hotshelf nocache: ",
        name.get(..64).unwrap_or(name),
        b" uses io_uring, whose reads and writes pass the page cache unseen: refuse it with --no-io-uring, or use the kernel module\n",
    ];
    let (mut text, mut used) = ([0_u8; 256], 0);
    for part in parts {
        if let Some(room) = text.get_mut(used..used + part.len()) {
            room.copy_from_slice(part);
            used += part.len();
        }
    }
    sys::write(2, text.get(..used).unwrap_or_default());
}

fn made(result: isize) {
    if result >= 0 {
        noticed();
    }
}

/// Runs after a system call that sets up a ring.
pub fn set_up(result: isize) -> isize {
    made(result);
    result
}

/// Checks at exit for rings that were set up unnoticed.
pub fn look() {
    if config::chosen().is_some_and(|config| !config.no_rings)
        && !SAID.load(Ordering::Relaxed)
        && sys::any_open(|name| name == b"anon_inode:[io_uring]")
    {
        noticed();
    }
}

// liburing makes its system calls itself, but programs start with one of these functions.
hooks! {
    fn io_uring_setup[real](entries: c_uint, how: *mut c_void) -> c_int {
        let result = real(entries, how);
        made(result as isize);
        result
    }
    fn io_uring_queue_init[real](entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        let result = real(entries, ring, flags);
        made(result as isize);
        result
    }
    fn io_uring_queue_init_params[real](entries: c_uint, ring: *mut c_void, how: *mut c_void) -> c_int {
        let result = real(entries, ring, how);
        made(result as isize);
        result
    }
    fn io_uring_queue_init_mem[real](entries: c_uint, ring: *mut c_void, how: *mut c_void, room: *mut c_void, size: size_t) -> c_int {
        let result = real(entries, ring, how, room, size);
        made(result as isize);
        result
    }
}

/// Makes io_uring_setup fail with ENOSYS in this process and its children. They can no longer gain privileges.
pub fn refuse() {
    // SAFETY: no memory is given.
    let there = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, 0) } != -1 || errno() != libc::ENOSYS;
    if !there {
        return;
    }
    let one = |code: u32, yes: u8, no: u8, value: u32| libc::sock_filter { code: code as u16, jt: yes, jf: no, k: value };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // The system call number is the first word of the filter's data, and io_uring's is the same on every machine.
    let mut lines = [
        one(load, 0, 0, 0),
        one(equal, 0, 1, libc::SYS_io_uring_setup as u32),
        one(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        one(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: the program and its lines live as long as the calls, which copy them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
    }
}

fn errno() -> libc::c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}
