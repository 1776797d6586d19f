//! A queue without io_uring: a few threads that block.
//!
//! It is used where io_uring is forbidden (containers, old kernels, hardened machines). The kernel has no other way to accept many
//! transfers without waiting for each, so each batch costs a lock and a wakeup. Memory is bounded by the depth. A request that a thread
//! has started cannot be cancelled.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{fallocate, fdatasync};
use rustix::io::Errno;

use super::ring::CompletionRing;
use super::target::FileTarget;
use super::uring::{Buffers, Transfer, transfer};
use crate::buffer::{Arena, Span};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request, Status};
use crate::units::Tag;

/// Threads of one queue: enough to saturate a SATA drive. More threads speed up faster drives, and slow everything else down.
const THREADS_MAX: u32 = 8;
/// How long `reset` and `drop` wait for running calls.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// A queue whose requests run in blocking system calls on a few threads.
pub(super) struct PlainQueue {
    shared: Arc<Shared>,
    depth: u32,
    in_flight: u32,
    /// Requests submitted since the threads were last notified.
    unrung: u32,
    threads: Vec<thread::JoinHandle<()>>,
}

/// The state of the threads. Its last owner frees the memory: a thread that hangs in the kernel keeps it alive.
struct Shared {
    target: Arc<FileTarget>,
    /// Replaced when an arena is added, so that a call that hangs in the kernel blocks no other thread.
    buffers: Mutex<Arc<Buffers>>,
    jobs: Mutex<JobQueue>,
    work: Condvar,
    ended: Condvar,
    event: OwnedFd,
}

struct JobQueue {
    waiting: VecDeque<Job>,
    /// Span vectors of completed jobs, for reuse.
    spare: Vec<Vec<Span>>,
    ended: CompletionRing,
    running: u32,
    armed: bool,
    closed: bool,
}

struct Job {
    request: Request,
    data: Vec<Span>,
}

impl PlainQueue {
    pub(super) fn new(target: Arc<FileTarget>, depth: u32) -> io::Result<PlainQueue> {
        let segments = usize::from(target.geometry().segments_max);
        let jobs = JobQueue {
            waiting: VecDeque::with_capacity(depth as usize),
            spare: (0..depth).map(|_| Vec::with_capacity(segments)).collect(),
            ended: CompletionRing::new(depth),
            running: 0,
            armed: false,
            closed: false,
        };
        let shared = Arc::new(Shared {
            target,
            buffers: Mutex::default(),
            jobs: Mutex::new(jobs),
            work: Condvar::new(),
            ended: Condvar::new(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let mut queue = PlainQueue { shared, depth, in_flight: 0, unrung: 0, threads: Vec::new() };
        for _ in 0..depth.min(THREADS_MAX) {
            let shared = queue.shared.clone();
            queue.threads.push(thread::Builder::new().name("block-plain".into()).spawn(move || shared.serve())?);
        }
        Ok(queue)
    }

    /// Completes jobs that no thread has started with an error, and waits for the running ones.
    fn give_up(&self, close: bool) -> Result<(), Error> {
        let end = Instant::now() + GIVE_UP_AFTER;
        let mut jobs = self.shared.jobs.lock();
        jobs.closed |= close;
        while let Some(job) = jobs.waiting.pop_front() {
            jobs.end(job, Err(Error::Reset));
        }
        self.shared.work.notify_all();
        while jobs.running > 0 {
            if self.shared.ended.wait_until(&mut jobs, end).timed_out() {
                return Err(Error::Timeout);
            }
        }
        Ok(())
    }
}

impl JobQueue {
    fn end(&mut self, job: Job, status: Status) {
        self.ended.push(Completion { tag: job.request.tag, status });
        self.spare.push(job.data);
    }
}

impl Shared {
    /// Runs jobs until the queue is closed: the body of each thread.
    fn serve(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            let Some(job) = jobs.waiting.pop_front() else {
                if jobs.closed {
                    return;
                }
                self.work.wait(&mut jobs);
                continue;
            };
            jobs.running += 1;
            drop(jobs);
            let status = self.run(&job);
            jobs = self.jobs.lock();
            jobs.running -= 1;
            jobs.end(job, status);
            self.tell(&mut jobs);
        }
    }

    fn tell(&self, jobs: &mut JobQueue) {
        self.ended.notify_all();
        if std::mem::take(&mut jobs.armed) {
            let signalled = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
            debug_assert!(signalled.is_ok(), "{signalled:?}");
        }
    }

    fn run(&self, job: &Job) -> Status {
        let (request, target) = (&job.request, &self.target);
        let offset = request.lba.0 * u64::from(target.geometry().block_bytes);
        let bytes = u64::from(request.blocks) * u64::from(target.geometry().block_bytes);
        match request.op {
            Op::Read => self.transfer(Transfer::Read, offset, bytes, &job.data),
            Op::Write if request.fua => self.transfer(Transfer::WriteThrough, offset, bytes, &job.data),
            Op::Write => self.transfer(Transfer::Write, offset, bytes, &job.data),
            Op::Flush => retry(|| fdatasync(target.fd())),
            Op::Discard | Op::WriteZeroes => {
                let allocate = |holes| retry(|| fallocate(target.fd(), target.fallocate_mode(request.op, holes), offset, bytes));
                match allocate(false) {
                    Err(Error::Unsupported) if request.op == Op::WriteZeroes && target.zero_by_holes() => allocate(true),
                    status => status,
                }
            }
        }
    }

    /// Repeats the call until all bytes are transferred: each call may transfer fewer.
    fn transfer(&self, kind: Transfer, offset: u64, bytes: u64, data: &[Span]) -> Status {
        let buffers = self.buffers.lock().clone();
        let mut done = 0;
        loop {
            match transfer(self.target.fd(), kind, offset + done, &buffers, data, done) {
                Ok(did) if self.target.after(did, bytes - done)? => return Ok(()),
                Ok(did) => done += did,
                Err(Error::Other(errno)) if i32::from(errno) == Errno::INTR.raw_os_error() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Status {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::from_errno(error.raw_os_error())),
            Ok(()) => return Ok(()),
        }
    }
}

impl Queue for PlainQueue {
    fn geometry(&self) -> &Geometry {
        self.shared.target.geometry()
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        let mut buffers = self.shared.buffers.lock();
        Arc::make_mut(&mut buffers).add(arena);
        Ok(())
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.depth {
            return Submit::Full;
        }
        self.in_flight += 1;
        let checked = self.geometry().check(request, data);
        let mut jobs = self.shared.jobs.lock();
        let mut job = Job { request: *request, data: jobs.spare.pop().expect("as many as the queue is deep") };
        job.data.clear();
        match checked {
            Ok(()) => {
                job.data.extend_from_slice(data);
                jobs.waiting.push_back(job);
                self.unrung += 1;
            }
            Err(error) => jobs.end(job, Err(error)),
        }
        Submit::Queued
    }

    fn ring(&mut self) {
        match std::mem::take(&mut self.unrung) {
            0 => {}
            1 => drop(self.shared.work.notify_one()),
            _ => drop(self.shared.work.notify_all()),
        }
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.ring();
        let count = self.shared.jobs.lock().ended.take(completions);
        self.in_flight -= u32::try_from(count).expect("no more than the depth");
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        self.ring();
        let mut jobs = self.shared.jobs.lock();
        if jobs.ended.len() == 0 && self.in_flight > 0 {
            self.shared.ended.wait_for(&mut jobs, at_most);
        }
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.event.as_fd())
    }

    fn arm(&mut self) -> Armed {
        self.ring();
        let mut jobs = self.shared.jobs.lock();
        let _ = rustix::io::read(&self.shared.event, &mut [0; 8]); // empty already is fine
        jobs.armed = jobs.ended.len() == 0;
        if jobs.armed { Armed::Waiting } else { Armed::Ready }
    }

    fn cancel(&mut self, tag: Tag) {
        let mut jobs = self.shared.jobs.lock();
        let Some(at) = jobs.waiting.iter().position(|job| job.request.tag == tag) else { return };
        let job = jobs.waiting.remove(at).expect("just found");
        jobs.end(job, Err(Error::Cancelled));
        self.shared.tell(&mut jobs);
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.give_up(false)?;
        self.shared.jobs.lock().ended.clear();
        (self.in_flight, self.unrung) = (0, 0);
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

impl Drop for PlainQueue {
    /// Waits for the threads. A thread that hangs in the kernel keeps the memory of its request alive.
    fn drop(&mut self) {
        if self.give_up(true).is_err() {
            tracing::error!("a queue is closed while the kernel still works for it: that memory is kept until it is done");
            return;
        }
        for thread in self.threads.drain(..) {
            let joined = thread.join();
            debug_assert!(joined.is_ok(), "a thread of the queue panicked");
        }
    }
}
