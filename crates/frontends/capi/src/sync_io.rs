//! Synchronous transfers on a device: direct, by copies, or through its cache.

use block::handle::{Data, Done, Io};
use block::{Buf, Op};

use crate::api_error::{ApiError, ApiResult};
use crate::handle::{Handle, next_length};
use crate::memory::Memory;
use crate::pool::{Found, LentData};
use crate::types::{NVMED_CACHED, NVMED_SYNC, NVMED_ZERO_COPY};

/// Copies are made in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Returns the number of bytes within the device: a read at its end returns 0, as for files.
pub fn room(handle: &Handle, op: Op, offset: u64, bytes: usize) -> ApiResult<usize> {
    let left = handle.device.geometry().bytes().saturating_sub(offset);
    let room = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
    if room == 0 && bytes > 0 && op != Op::Read {
        return Err(ApiError::new(libc::ENOSPC, format!("byte {offset} is behind the end of the device")));
    }
    Ok(room)
}

/// Checks that direct I/O is aligned to blocks.
pub fn check_blocks(handle: &Handle, offset: u64, bytes: u64) -> ApiResult<()> {
    let block = u64::from(handle.device.geometry().block_bytes);
    if (offset | bytes) & (block - 1) == 0 {
        return Ok(());
    }
    let what = format!("offset {offset} and length {bytes} are not multiples of the device's {block} bytes a block: use a cached handle");
    Err(ApiError::new(libc::EINVAL, what))
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

/// Reads or writes on the device itself, without the cache.
pub fn direct(handle: &Handle, op: Op, memory: &Memory, offset: u64) -> ApiResult<usize> {
    handle.take_released()?;
    let bytes = offset..offset + memory.len() as u64;
    handle.yield_direct(op, bytes.clone())?;
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
    handle.yield_direct(op, range.clone())?;
    let io = if op == Op::Discard { Io::discard(offset, bytes) } else { Io::write_zeroes(offset, bytes) };
    let done = run(handle, io, usize::try_from(bytes).unwrap_or(usize::MAX))?;
    handle.forget(op, range);
    Ok(done.status?)
}
