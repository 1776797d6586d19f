//! The io_uring driver of `block` as fio's engine calls it: one queue of one thread, memory that it has registered.
//!
//! A request's tag is fio's own address of it, so nothing is looked up. What goes wrong ends the job with a word on stderr: it is for a
//! bench alone.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::exit;
use std::time::Duration;

use block::driver::{Engine, FileDevice, FileOptions};
use block::{Arena, Buf, Completion, Device, Lba, Queue, QueueOptions, Request, Span, Submit, Tag};

/// A queue over a file or block device.
pub struct Job {
    queue: Box<dyn Queue>,
    block_shift: u32,
    depth: u32,
    /// The wait tells the kernel of the last request.
    untold: bool,
    memory: Option<Buf>,
    /// Where that begins, and what the driver calls it.
    base: usize,
    span: Option<Span>,
    ended: Vec<Completion>,
}

fn given<T, E: std::fmt::Display>(what: &str, outcome: Result<T, E>) -> T {
    outcome.unwrap_or_else(|error| {
        eprintln!("fio-block: {what}: {error}");
        exit(1)
    })
}

/// # Safety
/// `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_open(path: *const c_char, direct: c_int, writes: c_int, depth: u32) -> *mut Job {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy();
    let options =
        FileOptions { engine: Engine::Uring, read_only: writes == 0, buffered: direct == 0, round_down: true, ..FileOptions::default() };
    let device = given(&path, FileDevice::open(&*path, &options));
    let places = depth.next_power_of_two();
    let options = QueueOptions { depth: places, single_issuer: true, waits: true, ..QueueOptions::default() };
    let queue = given(&path, device.queue(&options));
    let block_shift = device.geometry().block_bytes.ilog2();
    Box::into_raw(Box::new(Job {
        queue,
        block_shift,
        depth,
        untold: false,
        memory: None,
        base: 0,
        span: None,
        ended: vec![Completion::EMPTY; places as usize],
    }))
}

/// Memory for fio's buffers.
///
/// # Safety
/// `job` is of [`job_open`], and in use by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_memory(job: *mut Job, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let job = unsafe { &mut *job };
    let arena = given("memory", Arena::private(bytes));
    given("registering memory", job.queue.register(&arena));
    let buf = given("memory", arena.allocate(bytes).ok_or("no room"));
    let begin = buf.address();
    (job.base, job.span) = (begin.addr(), Some(buf.span()));
    job.memory = Some(buf);
    begin.cast()
}

/// Submits a request to the queue; [`job_ring`] notifies the kernel.
///
/// # Safety
/// As of [`job_memory`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_submit(job: *mut Job, tag: u64, writes: c_int, data: *const u8, bytes: u32, offset: u64) {
    // SAFETY: the caller's promise.
    let job = unsafe { &mut *job };
    let span = job.span.expect("fio asks for its buffers first").part((data.addr() - job.base) as u32, bytes);
    let (lba, blocks) = (Lba(offset >> job.block_shift), bytes >> job.block_shift);
    let request = if writes != 0 { Request::write(Tag(tag), lba, blocks) } else { Request::read(Tag(tag), lba, blocks) };
    match job.queue.submit(&request, &[span]) {
        Submit::Queued => {}
        Submit::Full => given("submission", Err("no place, though fio keeps to its depth")),
    }
}

/// Notifies the kernel of the submitted requests. Skips it if fio waits next because the queue is full: the driver then does both in
/// one call. At depth 1 it always notifies at once: if the program slept in the same call, the kernel could wake its worker on
/// another CPU.
///
/// # Safety
/// As of [`job_memory`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_ring(job: *mut Job) {
    // SAFETY: the caller's promise.
    let job = unsafe { &mut *job };
    job.untold = job.depth > 1 && job.queue.in_flight() == job.depth;
    if !job.untold {
        job.queue.ring();
    }
}

/// Waits until `least` requests have ended; returns how many have, at most `most`. [`job_event`] has them until the next time.
///
/// # Safety
/// As of [`job_memory`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_reap(job: *mut Job, least: u32, most: u32) -> c_int {
    // SAFETY: the caller's promise.
    let job = unsafe { &mut *job };
    let (least, most) = (least as usize, (most as usize).min(job.ended.len()));
    let mut count = 0;
    if std::mem::take(&mut job.untold) && least == 0 {
        job.queue.ring();
    }
    loop {
        let ended = &mut job.ended[count..most];
        count += if count < least { job.queue.wait_and_poll(Duration::MAX, ended) } else { job.queue.poll(ended) };
        if count >= least {
            return count as c_int;
        }
    }
}

/// The tag of one of these requests.
///
/// # Safety
/// As of [`job_memory`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_event(job: *const Job, at: c_int) -> u64 {
    // SAFETY: the caller's promise.
    let completion = unsafe { &(*job).ended }[at as usize];
    given("a request", completion.status);
    completion.tag.0
}

/// # Safety
/// As of [`job_memory`]; it is not used again, nor is its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn job_close(job: *mut Job) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(job) });
}
