//! Asynchronous calls on devices. Completions are collected, and callbacks called, by the threads that poll or wait: the library has no
//! thread for them.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::Op;
use block::handle::{Done, Full, Io, Timeout};

use crate::api_error::{ApiError, ApiResult};
use crate::drequests::{AioContext, CompletedRequest, Request, RequestSpec};
use crate::guard::ffi_guard;
use crate::handle::{Handle, next_length};
use crate::memory::{Memory, offset_of, store};
use crate::objects::with;
use crate::options;
use crate::pool::LentData;
use crate::sync_io::{self, find, flush, no_room, sweep};
use crate::types::*;

fn all_in_use() -> ApiError {
    ApiError::new(libc::EAGAIN, "all requests of the handle are in use: collect what has ended (nvmed_poll), then try again")
}

/// Submits a request; the device sees it at the next ring, poll or wait. `announce` gets its number before any thread can reap it.
pub fn submit(handle: &Handle, wish: RequestSpec, announce: impl FnOnce(u64)) -> ApiResult<u64> {
    if handle.is(NVMED_CACHED) {
        return through_cache(handle, wish, announce);
    }
    handle.take_released()?;
    handle.yield_direct(wish.op, wish.offset..wish.offset.saturating_add(wish.bytes))?;
    let data = if wish.op.has_data() { find(handle, &wish.memory)? } else { LentData::Copied };
    let io = match make_io(handle, &wish, &data) {
        Ok(io) => io,
        Err(fail) => {
            handle.release(&data, false);
            return Err(fail);
        }
    };
    let added = handle.requests.lock().add(Request { wish, data, ticket: None });
    let Some(number) = added else {
        handle.release(&data, false);
        return Err(all_in_use());
    };
    announce(number);
    next_length(wish.bytes);
    let failed = match handle.engine.submit(io.user(number)) {
        Ok(Ok(ticket)) => {
            if let Some(request) = handle.requests.lock().find(number) {
                request.ticket = Some(ticket);
            }
            return Ok(number);
        }
        Ok(Err(Full(_))) => all_in_use(),
        Err(fail) => fail,
    };
    handle.requests.lock().take(number);
    handle.release(&data, false);
    Err(failed)
}

fn make_io(handle: &Handle, wish: &RequestSpec, data: &LentData) -> ApiResult<Io> {
    let io = match (wish.op, data) {
        (Op::Read | Op::Write, LentData::Lent(span)) => sync_io::io(wish.op, wish.offset, *span),
        (Op::Read | Op::Write, LentData::Copied) => {
            let bytes = wish.memory.len();
            let arena = handle.device.pool.arena();
            let full = || if bytes > arena.region().len() { no_room(bytes) } else { ApiError::new(libc::EAGAIN, &no_room(bytes).text) };
            let buf = arena.allocate(bytes).ok_or_else(full)?;
            if wish.op == Op::Write {
                wish.memory.with(|bytes| buf.write(0, bytes));
            }
            sync_io::io(wish.op, wish.offset, buf)
        }
        (Op::Flush, _) => Io::flush(),
        (Op::Discard, _) => Io::discard(wish.offset, wish.bytes),
        (Op::WriteZeroes, _) => Io::write_zeroes(wish.offset, wish.bytes),
    };
    let io = if wish.timeout_ms > 0 { io.timeout(Timeout::After(Duration::from_millis(wish.timeout_ms.into()))) } else { io };
    Ok(if wish.durable { io.fua(true) } else { io })
}

/// Does a request through the cache, at once or after waiting for the device, and reports it like any other.
fn through_cache(handle: &Handle, wish: RequestSpec, announce: impl FnOnce(u64)) -> ApiResult<u64> {
    let added = handle.requests.lock().add(Request { wish, data: LentData::Copied, ticket: None });
    let number = added.ok_or_else(all_in_use)?;
    announce(number);
    let done = match wish.op {
        Op::Read | Op::Write => sync_io::cached(handle, wish.op, &wish.memory, wish.offset).map(|_| ()),
        Op::Flush => flush(handle),
        Op::Discard | Op::WriteZeroes => sweep(handle, wish.op, wish.offset, wish.bytes),
    };
    let done = if wish.durable && wish.op == Op::Write { done.and_then(|()| flush(handle)) } else { done };
    let result = done.map_or_else(|fail| -i64::from(fail.errno), |()| wish.bytes as i64);
    let event = nvmed_event { user: wish.user, request: number, result, op: op_number(wish.op), flags: 0 };
    let mut requests = handle.requests.lock();
    requests.take(number);
    requests.ended.push_back(CompletedRequest { event, context: wish.context });
    Ok(number)
}

fn op_number(op: Op) -> u32 {
    match op {
        Op::Read => NVMED_OP_READ,
        Op::Write => NVMED_OP_WRITE,
        Op::Flush => NVMED_OP_FLUSH,
        Op::Discard => NVMED_OP_DISCARD,
        Op::WriteZeroes => NVMED_OP_WRITE_ZEROES,
    }
}

/// Converts a completion of the engine into one for the program.
fn end(handle: &Handle, done: Done) -> Option<CompletedRequest> {
    let number = done.user;
    let request = handle.requests.lock().take(number)?;
    let (wish, held, status) = (request.wish, done.held, done.status);
    handle.release(&request.data, held);
    if let (Op::Read, Ok(()), Some(buf)) = (wish.op, status, done.into_buf()) {
        wish.memory.with_mut(|bytes| buf.read(0, bytes));
    }
    handle.forget(wish.op, wish.offset..wish.offset.saturating_add(wish.bytes));
    let result = status.map_or_else(|error| -i64::from(error.errno()), |()| wish.bytes as i64);
    let flags = if held { NVMED_EVENT_HELD } else { 0 };
    let event = nvmed_event { user: wish.user, request: number, result, op: op_number(wish.op), flags };
    Some(CompletedRequest { event, context: wish.context })
}

/// Returns the next completion without waiting.
fn next(handle: &Handle, contexts_only: bool) -> ApiResult<Option<CompletedRequest>> {
    let mut requests = handle.requests.lock();
    let at = requests.ended.iter().position(|ended| !contexts_only || ended.context.is_some());
    if let Some(ended) = at.and_then(|at| requests.ended.remove(at)) {
        return Ok(Some(ended));
    }
    drop(requests);
    while let Some(done) = handle.engine.poll()? {
        match end(handle, done) {
            Some(ended) if contexts_only && ended.context.is_none() => handle.requests.lock().ended.push_back(ended),
            Some(ended) => return Ok(Some(ended)),
            None => {}
        }
    }
    Ok(None)
}

/// Updates a context and calls its callback. No lock is held, and no call is inside the handle.
fn call_back(context: AioContext, event: &nvmed_event) {
    let pointer = context.0;
    // SAFETY: the program keeps the context until its completion (hotshelf.h), which happens here, once.
    let (callback, userdata) = unsafe {
        (*pointer).error = if event.result < 0 { (-event.result) as i32 } else { 0 };
        (*pointer).request = 0;
        (*pointer).status = if event.result < 0 { NVMED_AIO_ERROR } else { NVMED_AIO_DONE };
        ((*pointer).aio_callback, (*pointer).cb_userdata)
    };
    if let Some(callback) = callback {
        // SAFETY: the program gave this function for just this.
        unsafe { callback(pointer, userdata) }
    }
}

/// Reports at most `most` completions; waits for the first.
fn tell(handle: &Handle, most: usize, timeout: Option<Duration>, mut out: impl FnMut(nvmed_event)) -> ApiResult<(usize, usize)> {
    let mut begin = None;
    let (mut events, mut callbacks) = (0, 0);
    // A callback may submit requests that complete at once: the limit is the number of slots.
    let limit = handle.requests.lock().limit();
    loop {
        while (events < most || most == 0) && events + callbacks < limit {
            let Some(ended) = next(handle, most == 0)? else { break };
            match ended.context {
                Some(context) => {
                    callbacks += 1;
                    call_back(context, &ended.event);
                }
                None => {
                    events += 1;
                    out(ended.event);
                }
            }
        }
        if events + callbacks > 0 || timeout == Some(Duration::ZERO) {
            return Ok((events, callbacks));
        }
        let begin = *begin.get_or_insert_with(Instant::now);
        let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
        if left == Some(Duration::ZERO) {
            return Ok((0, 0));
        }
        let done = match handle.engine.wait(left.unwrap_or(Duration::MAX))? {
            Some(done) => done,
            None if handle.engine.in_flight()? == 0 && handle.requests.lock().ended.is_empty() => return Ok((0, 0)),
            None => continue,
        };
        if let Some(ended) = end(handle, done) {
            handle.requests.lock().ended.push_back(ended);
        }
    }
}

/// Starts an asynchronous read or write of NVMeDirect.
fn start(context: *mut NVMED_AIO_CTX, op: Op) -> i32 {
    ffi_guard(|| {
        if context.is_null() {
            return Err(ApiError::new(libc::EFAULT, "the context is NULL"));
        }
        // SAFETY: the program's promise: a context of nvmed_aio_ctx_init that is not under way.
        let (size, handle, buf, len, offset) =
            unsafe { ((*context).size, (*context).handle, (*context).buf, (*context).len, (*context).offset) };
        if size < size_of::<NVMED_AIO_CTX>() {
            return Err(ApiError::new(libc::EINVAL, "the context is not from nvmed_aio_ctx_init"));
        }
        // SAFETY: the program's promise.
        let memory = unsafe { Memory::new(buf, len) }?;
        with(handle, |handle: &Arc<Handle>| {
            let wish = RequestSpec { context: Some(AioContext(context)), ..RequestSpec::transfer(op, memory, offset_of(offset)?) };
            // SAFETY: as above; nobody else has it before it is submitted.
            let set = |status, request| unsafe {
                (*context).status = status;
                (*context).error = 0;
                (*context).request = request;
            };
            submit(handle, wish, |number| set(NVMED_AIO_BUSY, number)).inspect_err(|_| set(NVMED_AIO_DONE, 0)).map(|_| 0)
        })
    })
}

/// Starts an asynchronous read for a context (NVMeDirect). The device sees it at nvmed_aio_queue_submit, or when completions are polled.
/// Thread-safe, as the handle is.
///
/// On a direct handle it is asynchronous; offset and length must be multiples of the device's block size and within the device, otherwise
/// it completes with EINVAL. On a cached handle it is done before the call returns, and completes in the same way.
///
/// Returns 0, or -1 (the context is then not in flight): EBADF; EFAULT; EINVAL; EAGAIN (all requests of the handle, or all copy buffers,
/// are in use); EBUSY (another call is inside a dedicated handle).
///
/// # Safety
/// `context` is from nvmed_aio_ctx_init, not in flight, and stays valid; its `buf` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_aio_read(context: *mut NVMED_AIO_CTX) -> c_int {
    start(context, Op::Read)
}

/// Starts an asynchronous write for a context (NVMeDirect). See nvmed_aio_read.
///
/// # Safety
/// Works like nvmed_aio_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_aio_write(context: *mut NVMED_AIO_CTX) -> c_int {
    start(context, Op::Write)
}

/// Notifies the device of all submitted requests: one doorbell, one system call. Thread-safe, as the handle is.
///
/// Returns 0, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_aio_queue_submit(handle: *mut NVMED_HANDLE) -> c_int {
    ffi_guard(|| with(handle, |handle: &Arc<Handle>| handle.engine.ring().map(|()| 0)))
}

/// Completes the contexts whose requests are done, and calls their callbacks in this thread. Does not wait. Thread-safe, as the handle is:
/// each context is completed by one thread.
///
/// Returns the number of completed contexts, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_aio_handle_complete(handle: *mut NVMED_HANDLE) -> c_int {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            let (_, callbacks) = tell(handle, 0, Some(Duration::ZERO), |_| ())?;
            Ok(callbacks as i32)
        })
    })
}

fn wish_of(io: &nvmed_io) -> ApiResult<RequestSpec> {
    let op = match io.op {
        NVMED_OP_READ => Op::Read,
        NVMED_OP_WRITE => Op::Write,
        NVMED_OP_FLUSH => Op::Flush,
        NVMED_OP_DISCARD => Op::Discard,
        NVMED_OP_WRITE_ZEROES => Op::WriteZeroes,
        op => return Err(ApiError::new(libc::EINVAL, format!("op {op} of a request: NVMED_OP_..."))),
    };
    if io.flags & !NVMED_DURABLE != 0 || io.reserved != 0 {
        return Err(ApiError::new(libc::EINVAL, format!("flags {:#x} of a request: only NVMED_DURABLE is known", io.flags)));
    }
    let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset_of(io.offset)?, io.len) };
    // SAFETY: the promise of those who call nvmed_submit.
    let memory = if op.has_data() { unsafe { Memory::new(io.buf, len) }? } else { Memory::NONE };
    let wish = RequestSpec { bytes: len as u64, ..RequestSpec::transfer(op, memory, offset) };
    Ok(RequestSpec { user: io.user, timeout_ms: io.timeout_ms, durable: io.flags & NVMED_DURABLE != 0, ..wish })
}

/// Submits a request; nvmed_poll or nvmed_wait returns its completion. The device sees it at nvmed_aio_queue_submit, or when completions
/// are polled. Thread-safe, as the handle is.
///
/// `io`: initialised with nvmed_io_init; it is copied. `request` (or NULL) receives the number of the request. Requests in flight have no
/// order. For cached handles see nvmed_aio_read.
///
/// Returns 0, or -1: EBADF; EFAULT; EINVAL; E2BIG (a field that this version does not support); EAGAIN (all requests of the handle, or all
/// copy buffers, are in use); EBUSY (another call is inside a dedicated handle).
///
/// # Safety
/// `io` has as many bytes as its size says; its `buf` has `len` bytes until the completion; `request` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_submit(handle: *mut NVMED_HANDLE, io: *const nvmed_io, request: *mut u64) -> c_int {
    ffi_guard(|| {
        if io.is_null() {
            return Err(ApiError::new(libc::EFAULT, "io is NULL"));
        }
        // SAFETY: the caller's promise.
        let wish = wish_of(&unsafe { options::read(io) }?)?;
        with(handle, |handle: &Arc<Handle>| {
            // SAFETY: the caller's promise.
            submit(handle, wish, |number| unsafe { store(request, number) }).map(|_| 0)
        })
    })
}

fn collect(handle: *mut NVMED_HANDLE, events: *mut nvmed_event, max: i32, timeout: Option<Duration>) -> i32 {
    ffi_guard(|| {
        let most = usize::try_from(max).ok().filter(|max| *max > 0);
        let most = most.ok_or_else(|| ApiError::new(libc::EINVAL, format!("room for {max} events: one or more")))?;
        if events.is_null() {
            return Err(ApiError::new(libc::EFAULT, "events is NULL"));
        }
        with(handle, |handle: &Arc<Handle>| {
            let mut at = events;
            let out = |event| {
                // SAFETY: the caller's promise; `tell` has `most` events at most.
                unsafe {
                    at.write(event);
                    at = at.add(1);
                }
            };
            Ok(tell(handle, most, timeout, out)?.0 as i32)
        })
    })
}

/// Returns completions without waiting, at most `max`. Contexts of NVMeDirect's calls are completed too, with their callbacks.
/// Thread-safe, as the handle is: each completion goes to one thread.
///
/// Returns the number of events, or -1: EBADF; EFAULT; EINVAL (max); EBUSY (another call is inside a dedicated handle).
///
/// # Safety
/// `events` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_poll(handle: *mut NVMED_HANDLE, events: *mut nvmed_event, max: c_int) -> c_int {
    collect(handle, events, max, Some(Duration::ZERO))
}

/// Waits for completions until one is available, nothing is in flight, or `timeout_ms` have passed (negative: no timeout), then works like
/// nvmed_poll.
///
/// Returns as nvmed_poll; 0 also if only contexts completed, nothing is in flight, or the timeout passed.
///
/// # Safety
/// `events` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_wait(handle: *mut NVMED_HANDLE, events: *mut nvmed_event, max: c_int, timeout_ms: c_int) -> c_int {
    collect(handle, events, max, u64::try_from(timeout_ms).ok().map(Duration::from_millis))
}

/// Requests the cancellation of a request of nvmed_submit, or of the `request` of a context. The request completes in any case, with
/// ECANCELED or its own result. Thread-safe, as the handle is.
///
/// Returns 0, or -1: EBADF; ENOENT (it has completed already); EBUSY (another call is inside a dedicated handle).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_cancel(handle: *mut NVMED_HANDLE, request: u64) -> c_int {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            let ticket = handle.requests.lock().find(request).and_then(|request| request.ticket);
            let there = match ticket {
                Some(ticket) => handle.engine.cancel(ticket)?,
                None => false,
            };
            let ended = || ApiError::new(libc::ENOENT, format!("no request {request} is under way"));
            if there { Ok(0) } else { Err(ended()) }
        })
    })
}

/// Returns the number of requests of the handle in flight. Thread-safe, as the handle is.
///
/// Returns the number, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_in_flight(handle: *mut NVMED_HANDLE) -> c_int {
    ffi_guard(|| with(handle, |handle: &Arc<Handle>| Ok(handle.engine.in_flight()? as i32)))
}

const _: () = assert!(size_of::<nvmed_event>() == 32 && std::mem::offset_of!(NVMED_AIO_CTX, size) == 0);
