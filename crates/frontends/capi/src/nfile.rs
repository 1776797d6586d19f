//! Content of files of the library file system: reads, writes, seeks, sizes and syncs.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, off_t, ssize_t};
use rustix::fs::{FallocateFlags, SeekFrom};
use stack::rawfs::fs::Advice;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::memory::{Memory, gather, offset_of, scatter};
use crate::nfiles::{Open, with};

/// Works like read(2). Thread-safe: reads and writes at the file's position come one after the other.
///
/// Returns the number of bytes, 0 at the end of the file, or -1: any error of read(2); EFAULT (`buf` is NULL); EIO (the device failed, or
/// what is on it is not what was written).
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_read(fd: c_int, buf: *mut c_void, n: usize) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::new(buf, n) }?;
        with(fd, |open, file| {
            open.check_direct([&memory], None)?;
            Ok(memory.with_mut(|bytes| file.read(bytes))? as isize)
        })
    })
}

/// Works like write(2): visible to all at once, and durable after nvmedfs_fsync. Thread-safe.
///
/// Returns the number of bytes, or -1: any error of write(2); EFAULT (`buf` is NULL).
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_write(fd: c_int, buf: *const c_void, n: usize) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::new(buf.cast_mut(), n) }?;
        with(fd, |open, file| {
            open.check_direct([&memory], None)?;
            Ok(memory.with(|bytes| file.write(bytes))? as isize)
        })
    })
}

/// Works like pread(2). Thread-safe. Returns as nvmedfs_read; also EINVAL (a negative offset).
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_pread(fd: c_int, buf: *mut c_void, n: usize, off: off_t) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let (memory, at) = (unsafe { Memory::new(buf, n) }?, offset_of(off)?);
        with(fd, |open, file| {
            open.check_direct([&memory], Some(at))?;
            Ok(memory.with_mut(|bytes| file.read_at(bytes, at))? as isize)
        })
    })
}

/// Works like pwrite(2); with O_APPEND at the end of the file, as Linux has it. Thread-safe. Returns as nvmedfs_write; also EINVAL.
///
/// # Safety
/// `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_pwrite(fd: c_int, buf: *const c_void, n: usize, off: off_t) -> ssize_t {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let (memory, at) = (unsafe { Memory::new(buf.cast_mut(), n) }?, offset_of(off)?);
        with(fd, |open, file| {
            open.check_direct([&memory], Some(at))?;
            Ok(memory.with(|bytes| file.write_at(bytes, at))? as isize)
        })
    })
}

fn memory_of(bytes: &[u8]) -> Memory {
    // SAFETY: only its address and length are looked at.
    unsafe { Memory::new(bytes.as_ptr().cast_mut().cast(), bytes.len()) }.unwrap_or(Memory::NONE)
}

/// Reads into the parts, as one read.
pub fn read_parts(open: &Open, parts: &mut [IoSliceMut<'_>], at: Option<u64>) -> ApiResult<usize> {
    if open.is_direct() {
        let memory: Vec<Memory> = parts.iter().map(|part| memory_of(part)).collect();
        open.check_direct(&memory, at)?;
    }
    open.run(|file| Ok(file.read_vectored(parts, at)?))
}

/// Writes the parts, as one write.
pub fn write_parts(open: &Open, parts: &[IoSlice<'_>], at: Option<u64>) -> ApiResult<usize> {
    if open.is_direct() {
        let memory: Vec<Memory> = parts.iter().map(|part| memory_of(part)).collect();
        open.check_direct(&memory, at)?;
    }
    open.run(|file| Ok(file.write_vectored(parts, at)?))
}

unsafe fn read_vectored(fd: c_int, iov: *const iovec, count: c_int, at: Option<off_t>) -> ssize_t {
    ffi_guard(|| {
        let at = at.map(offset_of).transpose()?;
        // SAFETY: the promise of those who call.
        unsafe { scatter(iov, count, |parts| with(fd, |open, _| Ok(read_parts(open, parts, at)? as isize))) }
    })
}

unsafe fn write_vectored(fd: c_int, iov: *const iovec, count: c_int, at: Option<off_t>) -> ssize_t {
    ffi_guard(|| {
        let at = at.map(offset_of).transpose()?;
        // SAFETY: the promise of those who call.
        unsafe { gather(iov, count, |parts| with(fd, |open, _| Ok(write_parts(open, parts, at)? as isize))) }
    })
}

/// Works like readv(2). Thread-safe. Returns as nvmedfs_read; also EINVAL (a count that is negative or above 1024).
///
/// # Safety
/// `iov` has `count` elements, whose memory has as many bytes as each says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { read_vectored(fd, iov, count, None) }
}

/// Works like writev(2), as one atomic write. Thread-safe. Returns as nvmedfs_write; also EINVAL.
///
/// # Safety
/// Works like nvmedfs_readv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { write_vectored(fd, iov, count, None) }
}

/// Works like preadv(2). Thread-safe. Returns as nvmedfs_readv.
///
/// # Safety
/// Works like nvmedfs_readv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_preadv(fd: c_int, iov: *const iovec, count: c_int, off: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { read_vectored(fd, iov, count, Some(off)) }
}

/// Works like pwritev(2). Thread-safe. Returns as nvmedfs_writev.
///
/// # Safety
/// Works like nvmedfs_readv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_pwritev(fd: c_int, iov: *const iovec, count: c_int, off: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { write_vectored(fd, iov, count, Some(off)) }
}

/// Works like lseek(2), SEEK_DATA and SEEK_HOLE included. Thread-safe.
///
/// Returns the new position, or -1: any error of lseek(2).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_lseek(fd: c_int, off: off_t, whence: c_int) -> off_t {
    ffi_guard(|| {
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(offset_of(off)?),
            libc::SEEK_CUR => SeekFrom::Current(off),
            libc::SEEK_END => SeekFrom::End(off),
            // As in the kernel: a negative offset is ENXIO.
            libc::SEEK_DATA | libc::SEEK_HOLE if off < 0 => return Err(ApiError::new(libc::ENXIO, "a negative offset")),
            libc::SEEK_DATA => SeekFrom::Data(off.cast_unsigned()),
            libc::SEEK_HOLE => SeekFrom::Hole(off.cast_unsigned()),
            _ => return Err(ApiError::new(libc::EINVAL, format!("whence {whence}: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE"))),
        };
        with(fd, |_, file| Ok(file.seek(to)?.cast_signed()))
    })
}

/// Works like fsync(2): when it returns 0, the file with its name, and every byte written before, survives any crash. Thread-safe.
///
/// Returns 0, or -1: EBADF; EIO, ENOSPC (written data may be lost at a power cut; each open file gets a failure once).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fsync(fd: c_int) -> c_int {
    ffi_guard(|| with(fd, |_, file| Ok(file.sync()?)).map(|()| 0))
}

/// Works like fdatasync(2), and is the same as nvmedfs_fsync here: times cost nothing extra. Thread-safe. Returns as nvmedfs_fsync.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fdatasync(fd: c_int) -> c_int {
    nvmedfs_fsync(fd)
}

/// Works like syncfs(2), of the file's file system; see nvmedfs_sync. Thread-safe. Returns 0, or -1: EBADF; EIO, ENOSPC.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_syncfs(fd: c_int) -> c_int {
    ffi_guard(|| crate::nfiles::with_fs(fd, |fs, _, _| Ok(fs.sync()?)).map(|()| 0))
}

/// Works like ftruncate(2). Thread-safe. Returns 0, or -1: any error of ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_ftruncate(fd: c_int, len: off_t) -> c_int {
    ffi_guard(|| {
        let len = offset_of(len)?;
        with(fd, |open, file| {
            file.set_len(len)?;
            sync_if_wanted(open)
        })
    })
}

/// Syncs after a change that is not a write, if the file has O_SYNC.
fn sync_if_wanted(open: &Open) -> ApiResult<c_int> {
    if open.mount.is(crate::ntypes::NVMEDFS_SYNC) {
        open.file.sync()?;
    }
    Ok(0)
}

/// Works like fallocate(2), with the modes 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE with it or without, and FALLOC_FL_PUNCH_HOLE with
/// it. Thread-safe.
///
/// Returns 0, or -1: any error of fallocate(2); EOPNOTSUPP (another mode).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fallocate(fd: c_int, mode: c_int, off: off_t, len: off_t) -> c_int {
    ffi_guard(|| {
        let (at, len) = (offset_of(off)?, offset_of(len)?);
        with(fd, |open, file| {
            file.allocate(FallocateFlags::from_bits_retain(mode.cast_unsigned()), at, len)?;
            sync_if_wanted(open)
        })
    })
}

/// Works like posix_fadvise(3), but with -1 and errno: POSIX_FADV_NORMAL, _SEQUENTIAL (maximum read-ahead), _RANDOM (no read-ahead),
/// _WILLNEED (read into the cache, up to half of it), _DONTNEED (write back and evict), _NOREUSE (ignored). Thread-safe.
///
/// Returns 0, or -1: EBADF; EINVAL; EIO.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fadvise(fd: c_int, off: off_t, len: off_t, advice: c_int) -> c_int {
    ffi_guard(|| {
        let (at, len) = (offset_of(off)?, offset_of(len)?);
        let advice = match advice {
            libc::POSIX_FADV_NORMAL | libc::POSIX_FADV_NOREUSE => Advice::Normal,
            libc::POSIX_FADV_SEQUENTIAL => Advice::Sequential,
            libc::POSIX_FADV_RANDOM => Advice::Random,
            libc::POSIX_FADV_WILLNEED => Advice::WillNeed,
            libc::POSIX_FADV_DONTNEED => Advice::DontNeed,
            _ => return Err(ApiError::new(libc::EINVAL, format!("advice {advice}: POSIX_FADV_..."))),
        };
        with(fd, |_, file| Ok(file.advise(advice, at, len)?)).map(|()| 0)
    })
}

/// Works like copy_file_range(2), also between two file systems of the library. `flags` is 0. Thread-safe.
///
/// Returns the number of bytes, 0 at the end of the first file, or -1: any error of copy_file_range(2).
///
/// # Safety
/// `off_in` and `off_out` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_copy_file_range(
    fd_in: c_int,
    off_in: *mut off_t,
    fd_out: c_int,
    off_out: *mut off_t,
    n: usize,
    flags: u32,
) -> ssize_t {
    ffi_guard(|| {
        if flags != 0 {
            return Err(ApiError::new(libc::EINVAL, "copy_file_range has no flags"));
        }
        let n = n.min(isize::MAX as usize) as u64;
        with(fd_in, |_, from| {
            with(fd_out, |_, to| {
                // SAFETY: the caller's promise.
                let place = |off: *mut off_t| unsafe { off.as_ref() }.map(|off| offset_of(*off)).transpose();
                let (own_from, own_to) = (place(off_in)?, place(off_out)?);
                let from_at = own_from.map_or_else(|| from.seek(SeekFrom::Current(0)), Ok)?;
                let to_at = own_to.map_or_else(|| to.seek(SeekFrom::Current(0)), Ok)?;
                let done = from.copy_range(from_at, to, to_at, n)?;
                for (file, off, at) in [(from, off_in, from_at), (to, off_out, to_at)] {
                    if off.is_null() {
                        file.seek(SeekFrom::Start(at + done))?;
                    } else {
                        // SAFETY: not NULL, the rest is the caller's promise.
                        unsafe { off.write((at + done).cast_signed()) };
                    }
                }
                Ok(done as isize)
            })
        })
    })
}
