//! Synchronous calls on devices, which an asynchronous handle only submits.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use block::Op;

use crate::aio;
use crate::api_error::{ApiError, ApiResult};
use crate::drequests::RequestSpec;
use crate::guard::ffi_guard;
use crate::handle::Handle;
use crate::memory::{Memory, offset_of};
use crate::objects::with;
use crate::sync_io::{cached, check_blocks, direct, flush, room, sweep};
use crate::types::*;

/// Reads or writes as the handle's modes require; returns the number of bytes.
fn transfer(handle: &Handle, op: Op, memory: &Memory, offset: u64) -> ApiResult<usize> {
    let memory = memory.part(0, room(handle, op, offset, memory.len())?);
    if memory.len() == 0 {
        return Ok(0);
    }
    if handle.is(NVMED_CACHED) {
        return cached(handle, op, &memory, offset);
    }
    check_blocks(handle, offset, memory.len() as u64)?;
    if handle.is(NVMED_ASYNC) {
        aio::submit(handle, RequestSpec::transfer(op, memory, offset), |_| ())?;
        handle.engine.ring()?;
        return Ok(memory.len());
    }
    direct(handle, op, &memory, offset)
}

fn sweep_or_submit(handle: *mut NVMED_HANDLE, op: Op, offset: i64, bytes: i64) -> i32 {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            let offset = offset_of(offset)?;
            let bytes = u64::try_from(bytes).map_err(|_| ApiError::new(libc::EINVAL, "the length is negative"))?;
            if !handle.is(NVMED_CACHED) && handle.is(NVMED_ASYNC) {
                check_blocks(handle, offset, bytes)?;
                aio::submit(handle, RequestSpec::sweep(op, offset, bytes), |_| ())?;
                return handle.engine.ring().map(|()| 0);
            }
            sweep(handle, op, offset, bytes).map(|()| 0)
        })
    })
}

/// Transfers at the handle's position and advances it.
fn at_position(handle: *mut NVMED_HANDLE, op: Op, buf: *mut c_void, bytes: usize) -> isize {
    ffi_guard(|| {
        // SAFETY: the promise of those who call nvmed_read and nvmed_write.
        let memory = unsafe { Memory::new(buf, bytes) }?;
        with(handle, |handle: &Arc<Handle>| {
            let mut position = handle.position.lock();
            let did = transfer(handle, op, &memory, *position)?;
            *position += did as u64;
            Ok(did as isize)
        })
    })
}

fn at_offset(handle: *mut NVMED_HANDLE, op: Op, buf: *mut c_void, bytes: usize, offset: i64) -> isize {
    ffi_guard(|| {
        // SAFETY: the promise of those who call nvmed_pread and nvmed_pwrite.
        let memory = unsafe { Memory::new(buf, bytes) }?;
        with(handle, |handle: &Arc<Handle>| Ok(transfer(handle, op, &memory, offset_of(offset)?)? as isize))
    })
}

/// Reads `n` bytes at `offset` (bytes from the start of the device) into `buf`. Thread-safe, as the handle is.
///
/// A direct handle needs offset and n as multiples of the device's block size; a cached one takes any. Memory of nvmed_get_buffer is
/// read into without a copy. On an asynchronous direct handle (NVMED_ASYNC) the read is only submitted.
///
/// Returns the bytes read: fewer than n at the end of the device (0 there), or when an error came after some bytes; or -1:
/// EBADF, EFAULT, EINVAL (misaligned, negative), EIO (media error), ETIMEDOUT, ENODEV (the device was removed), ENOMEM (no room for a
/// copy), EAGAIN (asynchronous, and all requests are in use), EBUSY (another call is inside a dedicated handle).
///
/// # Safety
/// `buf` has n bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_pread(handle: *mut NVMED_HANDLE, buf: *mut c_void, n: usize, offset: libc::off_t) -> libc::ssize_t {
    at_offset(handle, Op::Read, buf, n, offset)
}

/// Writes `n` bytes of `buf` at `offset` (bytes from the start of the device). Thread-safe, as the handle is.
///
/// Alignment as of nvmed_pread. When it returns, the device has the bytes (direct, or NVMED_SYNC), or the cache has (cached), or the
/// request is submitted (direct and NVMED_ASYNC); they survive a power cut after nvmed_flush, or at once with NVMED_DURABLE.
///
/// Returns the bytes written: fewer than n at the end of the device; or -1: as nvmed_pread, also ENOSPC (behind the end) and EROFS.
///
/// # Safety
/// `buf` has n bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_pwrite(handle: *mut NVMED_HANDLE, buf: *const c_void, n: usize, offset: libc::off_t) -> libc::ssize_t {
    at_offset(handle, Op::Write, buf.cast_mut(), n, offset)
}

/// Works like nvmed_pread, at the handle's position, which moves on. Calls of several threads take turns. Thread-safe, as the handle is.
///
/// # Safety
/// `buf` has n bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_read(handle: *mut NVMED_HANDLE, buf: *mut c_void, n: usize) -> libc::ssize_t {
    at_position(handle, Op::Read, buf, n)
}

/// Works like nvmed_pwrite, at the handle's position, which moves on. Calls of several threads take turns. Thread-safe, as the handle is.
///
/// # Safety
/// `buf` has n bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_write(handle: *mut NVMED_HANDLE, buf: *const c_void, n: usize) -> libc::ssize_t {
    at_position(handle, Op::Write, buf.cast_mut(), n)
}

/// Sets the handle's position for nvmed_read and nvmed_write: `whence` is SEEK_SET, SEEK_CUR or SEEK_END. Thread-safe.
///
/// Returns the position in bytes from the start of the device, or -1: EBADF; EINVAL (before the begin, or no such whence).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_lseek(handle: *mut NVMED_HANDLE, offset: libc::off_t, whence: c_int) -> libc::off_t {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            let mut position = handle.position.lock();
            let from = match whence {
                libc::SEEK_SET => 0,
                libc::SEEK_CUR => *position,
                libc::SEEK_END => handle.device.geometry().bytes(),
                _ => return Err(ApiError::new(libc::EINVAL, format!("whence {whence}: SEEK_SET, SEEK_CUR or SEEK_END"))),
            };
            let to = i64::try_from(from).ok().and_then(|from| from.checked_add(offset)).filter(|to| *to >= 0);
            let to = to.ok_or_else(|| ApiError::new(libc::EINVAL, "the position would be before the start of the device"))?;
            *position = to as u64;
            Ok(to)
        })
    })
}

/// Makes earlier writes through this handle durable: waits for its requests in flight, writes back the dirty pages of the device's cache
/// (cached handles), and flushes the device's own cache. Thread-safe, as the handle is.
///
/// Returns 0, or -1: EBADF; the errno of the first failure (EIO, ENOSPC, ETIMEDOUT, ENODEV). A cached page that could not be written, or
/// that the device lost in a failed flush, stays dirty: each flush retries it, and fails until it is written. Each cached handle gets a
/// failure of background write-back once, from its next flush. Failures of asynchronous requests are reported by their events. EBUSY
/// (another call is inside a dedicated handle).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_flush(handle: *mut NVMED_HANDLE) -> c_int {
    ffi_guard(|| with(handle, |handle: &Arc<Handle>| flush(handle).map(|()| 0)))
}

/// Discards blocks: their content is no longer needed, and reads as zeroes or unchanged. Thread-safe, as the handle is.
///
/// `offset` and `length` in bytes, multiples of the device's block size. On an asynchronous direct handle it is only submitted.
///
/// Returns 0, or -1: EBADF; EINVAL (misaligned, out of range); EOPNOTSUPP (the device cannot); EROFS; as nvmed_pwrite.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_discard(handle: *mut NVMED_HANDLE, offset: libc::off_t, length: libc::off_t) -> c_int {
    sweep_or_submit(handle, Op::Discard, offset, length)
}

/// Zeroes blocks without transferring data. Thread-safe, as the handle is. Arguments and results as of nvmed_discard.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_write_zeroes(handle: *mut NVMED_HANDLE, offset: libc::off_t, length: libc::off_t) -> c_int {
    sweep_or_submit(handle, Op::WriteZeroes, offset, length)
}
