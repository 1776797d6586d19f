//! POSIX AIO and libaio: an access is handled when its completion is seen.

use libc::{aiocb, c_int, c_long, c_void, ssize_t, timespec};

use crate::byte_range::ByteRange;
use crate::evict;
use crate::files::{self, Direction};
use crate::next::hooks;

fn ended(fd: c_int, direction: Direction, offset: u64, count: u64) {
    if let Some(file) = files::look(fd) {
        evict::before(file, direction, offset);
        evict::done(file, direction, ByteRange { from: offset, to: offset.saturating_add(count) });
    }
}

/// # Safety
/// Null, or a completed request that the program has not freed.
unsafe fn request_ended(request: *const aiocb) {
    // SAFETY: promised by the caller.
    if let Some(request) = unsafe { request.as_ref() } {
        ended(request.aio_fildes, Direction::Read, request.aio_offset.unsigned_abs(), request.aio_nbytes as u64);
    }
}

/// The start of libaio's `io_event`, with its request.
#[repr(C)]
pub struct IoEvent {
    data: u64,
    request: *const IoControlBlock,
    result: i64,
    more: i64,
}

/// The fields of a libaio request that are read here.
#[repr(C)]
struct IoControlBlock {
    data: u64,
    key: u32,
    flags: u32,
    what: u16,
    priority: i16,
    fd: c_int,
    buffer: u64,
    size: u64,
    offset: i64,
}

const READS_AND_WRITES: [u16; 4] = [0, 1, 7, 8];

/// # Safety
/// The kernel has filled in `count` events, of requests that the program still keeps.
pub unsafe fn events_ended(events: *const IoEvent, count: c_int) {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: promised by the caller.
        let event = unsafe { &*events.add(at) };
        // SAFETY: the request the program gave to the kernel, which it keeps until it has seen this event.
        let request = unsafe { event.request.as_ref() };
        if let Some(request) = request.filter(|request| READS_AND_WRITES.contains(&request.what)) {
            ended(
                request.fd,
                if [0, 7].contains(&request.what) { Direction::Read } else { Direction::Write },
                request.offset.unsigned_abs(),
                u64::try_from(event.result).unwrap_or(0),
            );
        }
    }
}

hooks! {
    fn aio_error[real](request: *const aiocb) -> c_int {
        let result = real(request);
        if result == 0 {
            // SAFETY: the program's own request, whose access has ended.
            unsafe { request_ended(request) };
        }
        result
    }
    fn aio_error64[real](request: *const aiocb) -> c_int {
        let result = real(request);
        if result == 0 {
            // SAFETY: the program's own request, whose access has ended.
            unsafe { request_ended(request) };
        }
        result
    }
    fn aio_return[real](request: *mut aiocb) -> ssize_t {
        // SAFETY: the program's own request, whose access has ended: that is when it may ask.
        unsafe { request_ended(request) };
        real(request)
    }
    fn aio_return64[real](request: *mut aiocb) -> ssize_t {
        // SAFETY: the program's own request, whose access has ended: that is when it may ask.
        unsafe { request_ended(request) };
        real(request)
    }
    fn io_getevents[real](context: *mut c_void, least: c_long, most: c_long, events: *mut IoEvent, time: *mut timespec) -> c_int {
        let count = real(context, least, most, events, time);
        // SAFETY: so many events were filled in.
        unsafe { events_ended(events, count) };
        count
    }
    fn io_pgetevents[real](
        context: *mut c_void, least: c_long, most: c_long, events: *mut IoEvent, time: *mut timespec, mask: *mut c_void,
    ) -> c_int {
        let count = real(context, least, most, events, time, mask);
        // SAFETY: so many events were filled in.
        unsafe { events_ended(events, count) };
        count
    }
}
