//! Synchronous calls on devices.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use block::handle::{Data, Done, Io};
use block::{Buf, Op};

use crate::aio::{self, RequestSpec};
use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::handle::{Handle, LentData, next_length};
use crate::library::with;
use crate::memory::Memory;
use crate::pool::Found;
use crate::types::*;

/// Copies are made in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Returns the number of bytes within the device: a read at its end returns 0, as for files.
fn room(handle: &Handle, op: Op, offset: u64, bytes: usize) -> ApiResult<usize> {
    let left = handle.device.geometry().bytes().saturating_sub(offset);
    let room = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
    if room == 0 && bytes > 0 && op != Op::Read {
        return Err(ApiError::new(libc::ENOSPC, format!("byte {offset} is behind the end of the device")));
    }
    Ok(room)
}

/// Checks that direct I/O is aligned to blocks.
fn check_blocks(handle: &Handle, offset: u64, bytes: u64) -> ApiResult<()> {
    let block = u64::from(handle.device.geometry().block_bytes);
    if (offset | bytes) & (block - 1) == 0 {
        return Ok(());
    }
    let what = format!("offset {offset} and length {bytes} are not multiples of the device's {block} bytes a block: use a cached handle");
    Err(ApiError::new(libc::EINVAL, what))
}

/// Converts an offset of the program; EINVAL if it is negative.
#[inline]
pub fn offset_of(offset: i64) -> ApiResult<u64> {
    if offset < 0 { Err(negative(offset)) } else { Ok(offset as u64) }
}

/// Converts an offset on the fast path.
#[inline(always)]
pub fn fast_path_from(offset: i64) -> Result<u64, cachedfs::FastPathMiss> {
    if offset < 0 { Err(cachedfs::FastPathMiss::Done) } else { Ok(offset as u64) }
}

#[cold]
#[inline(never)]
fn negative(offset: i64) -> ApiError {
    ApiError::new(libc::EINVAL, format!("the offset is negative ({offset})"))
}

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

/// Reads or writes through the cache.
pub fn cached(handle: &Handle, op: Op, memory: &Memory, offset: u64) -> ApiResult<usize> {
    let (cache, cached) = handle.cached()?;
    match op {
        Op::Read => cache.read(cached, offset, memory)?,
        _ if handle.device.geometry().read_only => return Err(block::Error::ReadOnly.into()),
        _ => {
            let durable = handle.engine.get(block::handle::Key::Fua)? == 1;
            cache.write(cached, offset, memory, handle.is(NVMED_SYNC), durable)?;
        }
    }
    Ok(memory.len())
}

/// Returns the memory for the device: lent, or to be copied.
pub fn find(handle: &Handle, memory: &Memory) -> ApiResult<LentData> {
    let align = u64::from(handle.device.geometry().memory_align);
    match handle.device.pool.find(memory)? {
        Found::Lent(span) if (span.at | u64::from(span.bytes)) & (align - 1) == 0 => return Ok(LentData::Lent(span)),
        Found::Lent(span) => handle.device.pool.release(span),
        Found::Foreign => {}
    }
    if handle.is(NVMED_ZERO_COPY) {
        let what = format!("the memory is not of nvmed_get_buffer, at a multiple of {align} bytes, and this handle does not copy");
        return Err(ApiError::new(libc::EFAULT, what));
    }
    Ok(LentData::Copied)
}

fn direct(handle: &Handle, op: Op, memory: &Memory, offset: u64) -> ApiResult<usize> {
    handle.take_released()?;
    let bytes = offset..offset + memory.len() as u64;
    handle.make_way(op, bytes.clone())?;
    let lent = find(handle, memory)?;
    let outcome = match lent {
        LentData::Lent(span) => {
            let done = run(handle, io(op, offset, span), memory.len());
            handle.release(&lent, done.as_ref().is_ok_and(|done| done.held));
            done.and_then(|done| done.status.map_err(ApiError::from)).map(|()| memory.len())
        }
        LentData::Copied => by_copies(handle, op, memory, offset),
    };
    handle.forget(op, bytes);
    outcome
}

/// Creates a read or write of the driver.
pub fn io(op: Op, offset: u64, data: impl Into<Data>) -> Io {
    if op == Op::Read { Io::read(offset, data) } else { Io::write(offset, data) }
}

fn run(handle: &Handle, io: Io, bytes: usize) -> ApiResult<Done> {
    next_length(bytes as u64);
    handle.engine.run(io)
}

/// Transfers through a copy buffer, piece by piece. Bytes before an error count: the next call gets the error.
fn by_copies(handle: &Handle, op: Op, memory: &Memory, offset: u64) -> ApiResult<usize> {
    let mut did = 0;
    while did < memory.len() {
        let piece = copy_piece(handle, op, &memory.part(did, memory.len() - did), offset + did as u64);
        match piece {
            Ok(bytes) => did += bytes,
            Err(_) if did > 0 => break,
            Err(fail) => return Err(fail),
        }
    }
    Ok(did)
}

fn copy_piece(handle: &Handle, op: Op, memory: &Memory, offset: u64) -> ApiResult<usize> {
    let buf = piece(handle, memory.len().min(PIECE_BYTES))?;
    let memory = memory.part(0, buf.len());
    if op == Op::Write {
        memory.with(|bytes| buf.write(0, bytes));
    }
    let done = run(handle, io(op, offset, buf), memory.len())?;
    done.status?;
    if let (Op::Read, Some(buf)) = (op, done.into_buf()) {
        memory.with_mut(|bytes| buf.read(0, bytes));
    }
    Ok(memory.len())
}

/// Allocates a copy buffer: as large as possible, at least one block.
fn piece(handle: &Handle, bytes: usize) -> ApiResult<Buf> {
    let block = handle.device.geometry().block_bytes as usize;
    let mut wanted = bytes;
    loop {
        if let Some(buf) = handle.device.pool.arena().allocate(wanted) {
            return Ok(buf);
        }
        if wanted <= block {
            return Err(no_room(bytes));
        }
        wanted = (wanted / 2).next_multiple_of(block);
    }
}

/// Returns ENOMEM for a copy of this many bytes: the pool has no free buffer.
pub fn no_room(bytes: usize) -> ApiError {
    ApiError::new(libc::ENOMEM, format!("no room for a copy of {bytes} bytes: put buffers back, or open the device with more buffer_bytes"))
}

/// Makes earlier writes durable, including requests in flight.
pub fn flush(handle: &Handle) -> ApiResult<()> {
    handle.take_released()?;
    // Including earlier submitted requests.
    if handle.engine.in_flight()? > 0 {
        handle.engine.drain(std::time::Duration::MAX)??;
    }
    let cached = handle.used_cache().map_or(Ok(()), |(cache, cached)| cache.flush(cached));
    let direct = if handle.is(NVMED_CACHED) { Ok(()) } else { run(handle, Io::flush(), 0)?.status };
    cached.and(direct.map_err(|error| ApiError::of("flush", error)))
}

/// Discards or zeroes a range.
pub fn sweep(handle: &Handle, op: Op, offset: u64, bytes: u64) -> ApiResult<()> {
    handle.take_released()?;
    check_blocks(handle, offset, bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    let range = offset..offset.saturating_add(bytes);
    handle.make_way(op, range.clone())?;
    let io = if op == Op::Discard { Io::discard(offset, bytes) } else { Io::write_zeroes(offset, bytes) };
    let done = run(handle, io, usize::try_from(bytes).unwrap_or(usize::MAX))?;
    handle.forget(op, range);
    Ok(done.status?)
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
