//! System calls without the C library: they preserve errno, are no cancellation points, take no lock, and cannot be intercepted.

use core::arch::asm;

use libc::{c_int, c_long};

/// The errno of a failed call.
pub type Errno = c_int;

/// # Safety
/// As the call itself demands.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: c_long, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but these; what the call does to memory is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// # Safety
/// As the call itself demands.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: c_long, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but x0; what the call does to memory is the caller's promise.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d, options(nostack));
    }
    result
}

fn outcome(result: isize) -> Result<usize, Errno> {
    if result < 0 { Err(result.unsigned_abs() as c_int) } else { Ok(result.unsigned_abs()) }
}

/// Returns the descriptor's file position.
pub fn position(fd: c_int) -> Option<u64> {
    // SAFETY: no memory is given.
    outcome(unsafe { call(libc::SYS_lseek, fd as usize, 0, libc::SEEK_CUR as usize, 0) }).ok().map(|at| at as u64)
}

/// Returns the flags of the open file.
pub fn open_flags(fd: c_int) -> Option<c_int> {
    // SAFETY: no memory is given.
    outcome(unsafe { call(libc::SYS_fcntl, fd as usize, libc::F_GETFL as usize, 0, 0) }).ok().map(|flags| flags as c_int)
}

/// Returns the attributes of the descriptor.
pub fn status(fd: c_int) -> Option<libc::stat> {
    let mut buffer = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer is as large as the kernel's structure, which is that of the C library on these machines.
    outcome(unsafe { call(libc::SYS_fstat, fd as usize, buffer.as_mut_ptr() as usize, 0, 0) }).ok()?;
    // SAFETY: all zeros is a valid `stat`, and the kernel has filled it in.
    Some(unsafe { buffer.assume_init() })
}

/// Returns the magic number of the descriptor's file system.
pub fn file_system(fd: c_int) -> Option<u32> {
    let mut buffer = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the buffer is as large as the kernel's structure.
    outcome(unsafe { call(libc::SYS_fstatfs, fd as usize, buffer.as_mut_ptr() as usize, 0, 0) }).ok()?;
    // SAFETY: all zeros is a valid `statfs`, and the kernel has filled it in.
    Some(unsafe { buffer.assume_init() }.f_type as u32)
}

/// Returns the kernel's path of an open file, in `buffer`.
pub fn path_of(fd: c_int, buffer: &mut [u8]) -> Option<&[u8]> {
    let mut name = [0_u8; 32];
    let start = b"/proc/self/fd/";
    name.get_mut(..start.len())?.copy_from_slice(start);
    let mut digits = [0_u8; 12];
    let mut left = u32::try_from(fd).ok()?;
    let mut count = 0;
    loop {
        *digits.get_mut(count)? = b'0' + (left % 10) as u8;
        count += 1;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    for (place, digit) in name.iter_mut().skip(start.len()).zip(digits.iter().take(count).rev()) {
        *place = *digit;
    }
    // SAFETY: the name ends with a zero byte, and the buffer is writable for its length.
    let read =
        unsafe { call(libc::SYS_readlinkat, libc::AT_FDCWD as usize, name.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len()) };
    let length = outcome(read).ok()?;
    // A path that fills the buffer may be truncated.
    buffer.get(..length).filter(|path| path.len() < buffer.len())
}

/// Evicts clean, unmapped pages; `length` 0 means up to the end.
pub fn drop_pages(fd: c_int, at: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: no memory is given.
    let done = unsafe { call(libc::SYS_fadvise64, fd as usize, at as usize, length as usize, libc::POSIX_FADV_DONTNEED as usize) };
    outcome(done).map(drop)
}

/// Writes back dirty pages and waits; `length` 0 means up to the end.
pub fn write_out(fd: c_int, at: u64, length: u64) -> Result<(), Errno> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: no memory is given.
    outcome(unsafe { call(libc::SYS_sync_file_range, fd as usize, at as usize, length as usize, how as usize) }).map(drop)
}

/// Starts write-back of dirty pages; `length` 0 means up to the end.
pub fn begin_writing(fd: c_int, at: u64, length: u64) -> Result<(), Errno> {
    let how = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: no memory is given.
    outcome(unsafe { call(libc::SYS_sync_file_range, fd as usize, at as usize, length as usize, how as usize) }).map(drop)
}

/// Makes the file's data durable, for file systems that cannot write back ranges.
pub fn write_all(fd: c_int) -> Result<(), Errno> {
    // SAFETY: no memory is given.
    outcome(unsafe { call(libc::SYS_fdatasync, fd as usize, 0, 0, 0) }).map(drop)
}

/// Gives the calling thread its own, empty descriptor table.
pub fn own_descriptors() -> Result<(), Errno> {
    const UNSHARE: usize = 1 << 1;
    // SAFETY: no memory is given; only the calling thread, which owns no descriptor, loses any.
    outcome(unsafe { call(libc::SYS_close_range, 0, u32::MAX as usize, UNSHARE, 0) }).map(drop)
}

/// Opens a file for reading, in the calling thread's table. `name` ends with a zero byte.
pub fn open(name: &[u8]) -> Result<c_int, Errno> {
    if name.last() != Some(&0) {
        return Err(libc::EINVAL);
    }
    let how = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: the name ends with a zero byte.
    outcome(unsafe { call(libc::SYS_openat, libc::AT_FDCWD as usize, name.as_ptr() as usize, how as usize, 0) }).map(|fd| fd as c_int)
}

/// Closes a descriptor of `open`.
pub fn close(fd: c_int) {
    // SAFETY: no memory is given; the descriptor is ours.
    let _ = unsafe { call(libc::SYS_close, fd as usize, 0, 0, 0) };
}

/// Reads words at an offset; returns their number.
pub fn read_words(fd: c_int, words: &mut [u64], at: u64) -> usize {
    // SAFETY: the slice is writable for its length in bytes, and any bits are valid words.
    let read = unsafe { call(libc::SYS_pread64, fd as usize, words.as_mut_ptr() as usize, size_of_val(words), at as usize) };
    outcome(read).unwrap_or(0) / size_of::<u64>()
}

/// Writes a message, as far as possible.
pub fn write(fd: c_int, text: &[u8]) {
    // SAFETY: the slice is readable for its length.
    let _ = unsafe { call(libc::SYS_write, fd as usize, text.as_ptr() as usize, text.len(), 0) };
}

/// Returns whether the process has a file of this name open.
pub fn any_open(is: impl Fn(&[u8]) -> bool) -> bool {
    let Ok(dir) = open(b"/proc/self/fd\0") else { return false };
    let mut found = false;
    let mut entries = [0_u64; 256];
    loop {
        // SAFETY: the array is writable for its length in bytes, and any bits are valid words.
        let got = unsafe { call(libc::SYS_getdents64, dir as usize, entries.as_mut_ptr() as usize, size_of_val(&entries), 0) };
        let bytes = outcome(got).unwrap_or(0);
        if bytes == 0 || found {
            break;
        }
        let mut at = 0;
        while at < bytes {
            let (length, fd) = entry(&entries, at);
            let mut name = [0_u8; 64];
            found |= fd.and_then(|fd| path_of(fd, &mut name)).is_some_and(&is);
            at += length.max(24);
        }
    }
    close(dir);
    found
}

/// Returns the length of a directory entry at an offset, and its name if it is a number.
fn entry(entries: &[u64], at: usize) -> (usize, Option<c_int>) {
    let byte = |at: usize| entries.get(at / 8).map_or(0, |word| word.to_ne_bytes()[at % 8]);
    let length = usize::from(u16::from_ne_bytes([byte(at + 16), byte(at + 17)]));
    let digits = (at + 19..at + length).map(byte).take_while(u8::is_ascii_digit);
    let number = digits.fold(None, |sum: Option<c_int>, digit| sum.unwrap_or(0).checked_mul(10)?.checked_add(c_int::from(digit - b'0')));
    (length, number)
}

/// Writes back a shared mapping and waits.
pub fn write_mapping(at: usize, length: usize) {
    // SAFETY: changes no memory; a range that is not mapped any more is refused.
    let _ = unsafe { call(libc::SYS_msync, at, length, libc::MS_SYNC as usize, 0) };
}

/// Pages out a range: its content stays the same, whatever is mapped there.
pub fn page_out(at: usize, length: usize) {
    // SAFETY: never changes what a later access sees; a range that is not mapped any more is refused.
    let _ = unsafe { call(libc::SYS_madvise, at, length, libc::MADV_PAGEOUT as usize, 0) };
}

/// Waits until the word differs from `seen`, a wake-up, or the timeout.
pub fn wait(word: &core::sync::atomic::AtomicU32, seen: u32, milliseconds: u64) {
    let time = libc::timespec { tv_sec: (milliseconds / 1000) as i64, tv_nsec: (milliseconds % 1000) as i64 * 1_000_000 };
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time live as long as the call.
    let _ = unsafe { call(libc::SYS_futex, word.as_ptr() as usize, how as usize, seen as usize, &raw const time as usize) };
}

/// Wakes all waiters of the word.
pub fn wake(word: &core::sync::atomic::AtomicU32) {
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives as long as the call.
    let _ = unsafe { call(libc::SYS_futex, word.as_ptr() as usize, how as usize, i32::MAX as usize, 0) };
}
