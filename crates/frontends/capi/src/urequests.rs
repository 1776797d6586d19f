//! Execution of asynchronous requests. The submitting thread starts reads of cached files: reads from memory complete at once, reads from
//! the SSD go through one queue (`cachedfs::AsyncReader`), and the reaping thread collects them. Threads, started on demand, do the
//! rest, which
//! accesses the backing file or waits.
//!
//! Waiting: a reaping thread without enough completions waits for the queue. It holds the lock while no other thread has used these
//! requests and the worker threads are idle, which costs one system call. Otherwise it waits for the queue's event and ours, without the
//! lock; one thread does that, and the others wait for it.
//!
//! One thread (UAIO_ONE_THREAD): the queue is then of a kind that the kernel restricts to one thread (decisions/24). The first thread that
//! submits or reaps is the one; others are refused. Another thread may destroy it if the queue is empty or its thread has ended; a
//! shutdown does not ask, and leaks what it cannot wait for.
#![expect(unsafe_code, reason = "a request has an address in it")]

mod reap;
mod submit;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cachedfs::{AsyncReader, AsyncReaderOptions};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};

use crate::api_error::{ApiError, ApiResult};
use crate::memory::Memory;
use crate::objects::{CloseOrder, ObjectKind};
use crate::open::Open;
use crate::types::*;
pub use reap::SubmittedBatch;

/// Maximum threads of one UAIO. A read that waits for a disk occupies one.
const THREADS_MAX: usize = 64;
/// Number of reads whose index entries are prefetched: a cache miss takes as long as starting several reads.
const AHEAD: usize = 16;
/// Number of reads whose frames are prefetched.
const AHEAD_FOUND: usize = 6;
/// Duration of polling with UAIO_POLLS: longer than a read of an SSD takes.
const AWAKE: Duration = Duration::from_micros(100);
/// Maximum time between two checks of a waiting thread.
const SLICE: Duration = Duration::from_secs(1);
/// How long uaio_destroy waits for a call of the one thread.
const INSIDE: Duration = Duration::from_millis(10);
/// No thread uses it yet.
const NOBODY: u64 = 0;
/// Several threads use it.
const SEVERAL: u64 = u64::MAX;

/// The state of a UAIO.
pub struct Requests {
    /// Reference for threads.
    me: Weak<Requests>,
    depth: usize,
    has_one_thread: bool,
    state: Mutex<QueueState>,
    to_do: Condvar,
    done: Condvar,
    /// Wakes the thread that waits for the queue without the lock.
    wake: OwnedFd,
    /// The thread that uses it.
    user: AtomicU64,
    /// It is being destroyed: no new waits.
    is_ending: AtomicBool,
}

struct QueueState {
    reads: AsyncReader<u32, Memory>,
    /// Unreaped requests; `free` has the unused numbers.
    jobs: Box<[QueuedRequest]>,
    free: Vec<u32>,
    files: OpenFiles,
    waiting: VecDeque<u32>,
    under_way: usize,
    ended: VecDeque<u32>,
    threads: usize,
    idle: usize,
    /// A thread waits for the queue without the lock.
    has_reaper: bool,
    closed: bool,
    /// Of the one thread, while it lives.
    life: Weak<()>,
}

/// A request as submitted; the result is set on completion.
#[derive(Clone, Copy)]
struct QueuedRequest {
    request: uaio,
    /// Index into `files`.
    file: u32,
}

// SAFETY: numbers, and an address that only the program looks at.
unsafe impl Send for QueuedRequest {}

impl QueuedRequest {
    const NONE: QueuedRequest =
        QueuedRequest { request: uaio { ufd: -1, op: 0, buf: std::ptr::null_mut(), n: 0, off: 0, user: 0, result: 0 }, file: u32::MAX };

    /// Executes the request in the calling thread.
    fn run(&self, open: &Open, memory: Memory) -> i64 {
        let at = self.request.off as u64; // validated at submission
        let run = || {
            open.run(|open| match self.request.op {
                UAIO_READ => memory.with_mut(|bytes| open.read_at(at, bytes)),
                UAIO_WRITE => memory.with(|bytes| open.write_at(at, bytes)),
                op => open.sync(op == UAIO_FDATASYNC).map(|()| 0),
            })
        };
        let done = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(ApiError::new(libc::EIO, "a mistake inside hotshelf")));
        done.map_or_else(|fail| -i64::from(fail.errno), |bytes| bytes as i64)
    }
}

/// Open files with their number of requests: counted under the lock, so that a request changes no shared word.
#[derive(Default)]
struct OpenFiles(Vec<Option<(Arc<Open>, u32)>>);

impl OpenFiles {
    fn get(&self, file: u32) -> Option<&Arc<Open>> {
        self.0.get(file as usize)?.as_ref().map(|(open, _)| open)
    }

    /// Adds a request to a file.
    fn take(&mut self, open: &Arc<Open>) -> u32 {
        let is_this = |place: &Option<(Arc<Open>, u32)>| place.as_ref().is_some_and(|(other, _)| Arc::ptr_eq(other, open));
        let known = self.0.iter().position(is_this);
        let at = known.or_else(|| self.0.iter().position(Option::is_none)).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[at].get_or_insert_with(|| (Arc::clone(open), 0)).1 += 1;
        at as u32
    }

    fn take_again(&mut self, file: u32) {
        if let Some(Some((_, requests))) = self.0.get_mut(file as usize) {
            *requests += 1;
        }
    }

    /// Removes a request from a file. An unused file is returned, because its close may take long.
    fn give(&mut self, file: u32) -> Option<Arc<Open>> {
        let place = self.0.get_mut(file as usize)?;
        let (_, requests) = place.as_mut()?;
        *requests -= 1;
        if *requests == 0 { place.take().map(|(open, _)| open) } else { None }
    }
}

impl QueueState {
    fn all(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    /// Returns a free slot for a request.
    #[inline]
    fn place(&self) -> ApiResult<u32> {
        if self.closed {
            return Err(ApiError::new(libc::EBADF, "it is being destroyed"));
        }
        self.free.last().copied().ok_or_else(full)
    }

    /// Stores a request in the slot returned last.
    #[inline]
    fn put(&mut self, token: u32, job: QueuedRequest) {
        self.free.pop();
        self.files.take_again(job.file);
        self.jobs[token as usize] = job;
    }

    /// Releases the file of a request whose work is done.
    fn release(&mut self, token: u32) -> Option<Arc<Open>> {
        let file = std::mem::replace(&mut self.jobs[token as usize].file, u32::MAX);
        self.files.give(file)
    }

    fn end(&mut self, token: u32, result: i64) -> Option<Arc<Open>> {
        let job = &mut self.jobs[token as usize];
        job.request.result = result;
        self.ended.push_back(token);
        self.files.give(job.file)
    }

    /// Returns a request for the calling thread to execute.
    fn job(&self, token: u32) -> Option<(QueuedRequest, Arc<Open>, Memory)> {
        let job = self.jobs[token as usize];
        let open = Arc::clone(self.files.get(job.file)?);
        // SAFETY: who submitted it promised that.
        let memory = unsafe { memory_of(&job.request) }.ok()?;
        Some((job, open, memory))
    }
}

/// # Safety
/// As `uaio_submit` requires of `buf`.
unsafe fn memory_of(request: &uaio) -> ApiResult<Memory> {
    if matches!(request.op, UAIO_READ | UAIO_WRITE) {
        // SAFETY: the caller's promise.
        unsafe { Memory::new(request.buf, request.n) }
    } else {
        Ok(Memory::NONE)
    }
}

/// Returns a unique number of the calling thread.
#[inline]
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(NOBODY);
    thread_local!(static ME: Cell<u64> = const { Cell::new(NOBODY) });
    match ME.get() {
        NOBODY => {
            ME.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            ME.get()
        }
        me => me,
    }
}

/// Dropped when the calling thread ends; a thread that is ending has none.
fn life() -> Weak<()> {
    thread_local!(static LIFE: Arc<()> = Arc::new(()));
    LIFE.try_with(Arc::downgrade).unwrap_or_default()
}

#[cold]
fn full() -> ApiError {
    ApiError::new(libc::EAGAIN, "the queue is full: reap completed requests first")
}

#[cold]
fn no_thread() -> ApiError {
    ApiError::new(libc::EAGAIN, "no thread can be started")
}

#[cold]
fn of_another() -> ApiError {
    ApiError::new(libc::EBUSY, "it was promised to one thread (UAIO_ONE_THREAD), which is another one")
}

impl Requests {
    /// Creates a queue for `depth` requests, with the UAIO flags.
    pub fn new(depth: u32, flags: u32) -> ApiResult<Arc<Requests>> {
        let no_event = |errno: rustix::io::Errno| ApiError::new(errno.raw_os_error(), "an event for requests (eventfd)");
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(no_event)?;
        let places = depth as usize;
        let has_one_thread = flags & UAIO_ONE_THREAD != 0;
        let spin_duration = if flags & UAIO_POLLS != 0 { AWAKE } else { Duration::ZERO };
        let options = AsyncReaderOptions {
            single_issuer: has_one_thread,
            waits: flags & UAIO_WAITS != 0,
            spin_duration,
            ..AsyncReaderOptions::default()
        };
        let state = QueueState {
            reads: AsyncReader::with(depth, options),
            jobs: vec![QueuedRequest::NONE; places].into(),
            free: (0..depth).rev().collect(),
            files: OpenFiles::default(),
            waiting: VecDeque::with_capacity(places),
            under_way: 0,
            ended: VecDeque::with_capacity(places),
            threads: 0,
            idle: 0,
            has_reaper: false,
            closed: false,
            life: Weak::new(),
        };
        let (user, is_ending) = (AtomicU64::new(NOBODY), AtomicBool::new(false));
        let (state, to_do, done) = (Mutex::new(state), Condvar::new(), Condvar::new());
        let make = |me: &Weak<Requests>| Requests {
            me: Weak::clone(me),
            depth: places,
            has_one_thread,
            state,
            to_do,
            done,
            wake,
            user,
            is_ending,
        };
        Ok(Arc::new_cyclic(make))
    }

    /// Locks the state for a call of the program.
    fn enter(&self) -> ApiResult<MutexGuard<'_, QueueState>> {
        let me = this_thread();
        if self.user.load(Ordering::Relaxed) == me { Ok(self.state.lock()) } else { self.enter_as_another(me) }
    }

    #[cold]
    fn enter_as_another(&self, me: u64) -> ApiResult<MutexGuard<'_, QueueState>> {
        let before = self.user.compare_exchange(NOBODY, me, Ordering::Relaxed, Ordering::Relaxed);
        if self.has_one_thread && before.is_err() {
            return Err(of_another());
        }
        if before.is_err() {
            self.user.store(SEVERAL, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        if self.has_one_thread {
            state.life = life();
        }
        Ok(state)
    }

    /// Allocates memory for its reads, freed when it is destroyed.
    pub fn memory(&self, bytes: usize) -> ApiResult<*mut c_void> {
        if bytes == 0 || bytes > isize::MAX as usize {
            return Err(ApiError::new(libc::EINVAL, format!("memory of {bytes} bytes")));
        }
        let none = |error| ApiError::new(libc::ENOMEM, format!("{bytes} bytes for reads: {error}"));
        let mut state = self.enter()?;
        if state.closed {
            return Err(ApiError::new(libc::EBADF, "it is being destroyed"));
        }
        let arena = state.reads.memory(bytes.next_multiple_of(pagecache::PAGE_BYTES)).map_err(none)?;
        Ok(arena.region().address(0).cast())
    }

    /// Hands a request to a worker thread.
    fn hand_over(&self, state: &mut QueueState, token: u32) {
        state.waiting.push_back(token);
        self.to_do.notify_one();
    }

    /// Returns whether a worker thread is available; starts one if all are busy and the limit permits.
    fn has_thread(&self, state: &mut QueueState) -> bool {
        let is_short = state.idle <= state.waiting.len() && state.threads < THREADS_MAX.min(self.depth);
        if is_short && !state.closed && self.start() {
            state.threads += 1;
        }
        state.threads > 0
    }

    fn start(&self) -> bool {
        let Some(ours) = self.me.upgrade() else { return false };
        crate::threads::start("uaio", move || ours.serve())
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(token) = state.waiting.pop_front() {
                state.under_way += 1;
                let job = state.job(token);
                let result =
                    MutexGuard::unlocked(&mut state, || job.map_or(i64::from(-libc::EIO), |(job, open, memory)| job.run(&open, memory)));
                // Before the completion is visible: a following uclose is the last one, and returns its errors.
                let unused = state.release(token);
                MutexGuard::unlocked(&mut state, || drop(unused));
                state.under_way -= 1;
                drop(state.end(token, result));
                self.tell(&state);
            } else if state.closed {
                state.threads -= 1;
                self.done.notify_all();
                return;
            } else {
                state.idle += 1;
                self.to_do.wait(&mut state);
                state.idle -= 1;
            }
        }
    }

    /// Wakes waiting threads.
    fn tell(&self, state: &QueueState) {
        self.done.notify_all();
        if state.has_reaper {
            // A full counter is fine: it is readable then.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Reaps completions: waits for `min` of them, all outstanding ones, or the timeout.
    pub fn reap(&self, min: usize, max: usize, until: Option<Instant>, out: impl FnMut(uaio)) -> ApiResult<usize> {
        Ok(self.reap_with(&mut self.enter()?, min, max, until, out))
    }
}

impl ObjectKind for Requests {
    const NAME: &'static str = "UAIO";
    const CLOSE_ORDER: CloseOrder = CloseOrder::Requests;
    /// Waits for all requests in flight, as far as this thread may.
    fn finish(&self) -> ApiResult<()> {
        self.is_ending.store(true, Ordering::Relaxed);
        let is_ours = self.is_ours();
        let mut state = if is_ours { self.enter()? } else { self.state.lock() };
        state.closed = true;
        self.to_do.notify_all();
        if is_ours {
            self.collect(&mut state, usize::MAX);
        }
        while is_ours && state.reads.under_way() > 0 {
            self.wait(&mut state, SLICE);
            self.collect(&mut state, usize::MAX);
        }
        self.tell(&state);
        while state.threads > 0 {
            self.done.wait(&mut state);
        }
        // Dropped with its queue.
        state.reads = AsyncReader::new(0);
        state.files = OpenFiles::default();
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_thread_has_a_number_of_its_own_and_a_life() {
        let (mine, other) = (this_thread(), std::thread::spawn(|| (this_thread(), life())).join().expect("ended"));
        assert_eq!(this_thread(), mine);
        assert_ne!(other.0, mine);
        assert_eq!((other.1.strong_count(), life().strong_count()), (0, 1));
        // Nor has a later thread, which may reuse the memory.
        let later = std::thread::spawn(this_thread).join().expect("ended");
        assert!(later != mine && later != other.0);
    }

    #[test]
    fn another_thread_is_refused_and_the_first_is_not_disturbed() {
        let requests = Requests::new(4, UAIO_ONE_THREAD).expect("made");
        let reap = |requests: &Requests| requests.reap(0, 4, None, |_| {}).map_err(|fail| fail.errno);
        assert_eq!(reap(&requests), Ok(0));
        let other = Arc::clone(&requests);
        std::thread::spawn(move || {
            assert_eq!(reap(&other), Err(libc::EBUSY));
            // SAFETY: there is none.
            assert_eq!(unsafe { other.submit(&[]) }.map_err(|fail| fail.errno), Err(libc::EBUSY));
            assert!(other.may_end().is_ok(), "nothing is under way");
        })
        .join()
        .expect("refused");
        assert_eq!(reap(&requests), Ok(0));
        assert!(requests.finish().is_ok());
    }

    #[test]
    fn without_the_promise_anybody_comes() {
        let requests = Requests::new(4, 0).expect("made");
        for _ in 0..3 {
            let requests = Arc::clone(&requests);
            std::thread::spawn(move || assert!(matches!(requests.reap(0, 4, None, |_| {}), Ok(0)))).join().expect("reaped");
        }
        assert_eq!(requests.user.load(Ordering::Relaxed), SEVERAL);
        assert!(requests.finish().is_ok());
    }
}
