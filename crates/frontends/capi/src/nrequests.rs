//! Execution of asynchronous requests of a file system. Reads from memory complete at once; other reads are done by threads of the
//! library, as many as needed, in any order. All else goes to the file system's own thread (`rawfs`, `later.rs`), which works in order of
//! submission and batches waiting requests. Completions are reaped, and callbacks called, by the program's threads.
#![expect(unsafe_code, reason = "a request has addresses in it")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};

use crate::api_error::{ApiError, ApiResult};
use crate::memory::Memory;
use crate::mounted::{Mount, MountGuard};
use crate::nfile::{read_parts, write_parts};
use crate::nfiles::Open;
use crate::ntypes::*;
use crate::objects::{CloseOrder, ObjectKind};

/// Maximum threads of one NVMEDFS_AIO. A read that waits for the device occupies one.
const THREADS_MAX: usize = 32;
/// Maximum time between two checks of a waiting thread.
const SLICE: Duration = Duration::from_secs(1);

/// The state of an NVMEDFS_AIO.
pub struct Aio {
    /// Reference for threads.
    me: Weak<Aio>,
    mount: Arc<Mount>,
    /// Taken when it is destroyed.
    holds: Mutex<Option<MountGuard>>,
    depth: usize,
    state: Mutex<AioState>,
    to_do: Condvar,
    done: Condvar,
    /// Readable while completions wait to be reaped.
    event: OwnedFd,
}

#[derive(Default)]
struct AioState {
    reads: VecDeque<(QueuedRead, CompletionNotice)>,
    /// Number of requests in flight.
    under_way: usize,
    ended: VecDeque<AioCompletion>,
    /// The first failure since the last wait.
    failed: Option<ApiError>,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// The completion of a request and its callback.
#[derive(Clone, Copy)]
pub struct AioCompletion {
    event: nvmedfs_event,
    callback: Option<unsafe extern "C" fn(*const nvmedfs_event, *mut c_void)>,
    userdata: *mut c_void,
}

// SAFETY: numbers, a function, and an address that only the program looks at.
unsafe impl Send for AioCompletion {}

impl AioCompletion {
    /// Returns the completion of a request that has not completed yet: its result is 0.
    pub fn of(io: &nvmedfs_io) -> AioCompletion {
        let event = nvmedfs_event { user: io.user, result: 0, op: io.op, flags: 0 };
        AioCompletion { event, callback: io.callback, userdata: io.userdata }
    }
}

/// The completion of one request, delivered exactly once: dropping it delivers a failure.
pub struct CompletionNotice(Option<(Arc<Aio>, AioCompletion)>);

impl CompletionNotice {
    /// Delivers the completion. The request's resources must be dropped before, because the receiver may close everything.
    pub fn deliver(mut self, outcome: ApiResult<i64>) {
        if let Some((aio, ended)) = self.0.take() {
            aio.end(ended, outcome);
        }
    }
}

impl CompletionNotice {
    /// Undoes the submission: the request delivers no completion.
    pub fn cancel_unsubmitted(mut self) {
        if let Some((aio, _)) = self.0.take() {
            aio.state.lock().under_way -= 1;
            aio.done.notify_all();
        }
    }
}

impl Drop for CompletionNotice {
    fn drop(&mut self) {
        if let Some((aio, ended)) = self.0.take() {
            aio.end(ended, Err(ApiError::new(libc::EIO, "the request was not carried out: no thread, or a mistake inside hotshelf")));
        }
    }
}

/// A read that waits for a thread.
pub struct QueuedRead {
    /// The open file that is read.
    pub open: Arc<Open>,
    /// The memory of the program that the read fills.
    pub parts: Vec<Memory>,
    /// The offset in the file, in bytes.
    pub at: u64,
}

impl QueuedRead {
    /// Does the read if it need not wait.
    fn here(&mut self) -> Option<ApiResult<i64>> {
        let [part] = &mut self.parts[..] else { return None };
        let read = self.open.run(|file| Ok(file.read_here(part.as_mut(), self.at)?));
        read.map(|done| done.map(|bytes| bytes as i64)).transpose()
    }

    fn run(self) -> ApiResult<i64> {
        let QueuedRead { open, mut parts, at } = self;
        let mut slices: Vec<std::io::IoSliceMut<'_>> = parts.iter_mut().map(|part| std::io::IoSliceMut::new(part.as_mut())).collect();
        read_parts(&open, &mut slices, Some(at)).map(|bytes| bytes as i64)
    }
}

/// Writes several parts as one write, completely or with an error.
pub fn write_all(open: &Open, parts: &[Memory], at: u64) -> ApiResult<i64> {
    let slices: Vec<std::io::IoSlice<'_>> = parts.iter().map(|part| std::io::IoSlice::new(part.as_ref())).collect();
    let wanted: usize = parts.iter().map(Memory::len).sum();
    let done = write_parts(open, &slices, Some(at))?;
    if done == wanted { Ok(done as i64) } else { Err(ApiError::new(libc::ENOSPC, "no space is left for all of the write")) }
}

/// Runs a call; a panic is a failure and breaks the mount.
pub fn guarded(mount: &Mount, run: impl FnOnce() -> ApiResult<i64>) -> ApiResult<i64> {
    let done = catch_unwind(AssertUnwindSafe(|| mount.watch(run)));
    done.unwrap_or_else(|_| Err(ApiError::new(libc::EIO, "a mistake inside hotshelf: please report it; unmount the file system")))
}

impl ObjectKind for Aio {
    const NAME: &'static str = "NVMEDFS_AIO";
    const CLOSE_ORDER: CloseOrder = CloseOrder::FileSystemRequests;
    /// Waits for all requests in flight.
    fn finish(&self) -> ApiResult<()> {
        let mut state = self.state.lock();
        state.closed = true;
        while state.under_way > 0 || state.threads > 0 {
            self.to_do.notify_all();
            self.done.wait_for(&mut state, SLICE);
        }
        drop(state);
        drop(self.holds.lock().take());
        Ok(())
    }
}

impl Aio {
    /// Creates a queue for at most `depth` requests to the files of a mount.
    pub fn new(mount: &Arc<Mount>, depth: u32) -> ApiResult<Arc<Aio>> {
        let no_event = |errno: rustix::io::Errno| ApiError::new(errno.raw_os_error(), "an event for requests (eventfd)");
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(no_event)?;
        let (holds, depth) = (Mutex::new(Some(mount.used())), depth as usize);
        let (state, to_do, done, mount) = (Mutex::default(), Condvar::new(), Condvar::new(), Arc::clone(mount));
        Ok(Arc::new_cyclic(|me| Aio { me: Weak::clone(me), mount, holds, depth, state, to_do, done, event }))
    }

    /// Returns the mount of its files.
    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    /// Returns the eventfd that signals completions.
    pub fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Reserves a slot for one more request.
    pub fn reserve(self: &Arc<Aio>, io: &nvmedfs_io) -> ApiResult<CompletionNotice> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(ApiError::new(libc::EBADF, "it is being destroyed"));
        }
        if state.under_way + state.ended.len() >= self.depth {
            return Err(ApiError::new(libc::EAGAIN, "the queue is full: call nvmedfs_aio_reap first"));
        }
        state.under_way += 1;
        Ok(CompletionNotice(Some((Arc::clone(self), AioCompletion::of(io)))))
    }

    /// Does a read from memory at once, others in a thread; starts a thread if all are busy and the limit permits.
    pub fn read(&self, mut read: QueuedRead, notice: CompletionNotice) {
        if let Some(done) = read.here() {
            drop(read);
            return notice.deliver(done);
        }
        let mut state = self.state.lock();
        let is_short = state.idle <= state.reads.len() && state.threads < THREADS_MAX.min(self.depth);
        if is_short && self.start() {
            state.threads += 1;
        }
        if state.threads == 0 {
            drop(state);
            return notice.deliver(Err(ApiError::new(libc::EAGAIN, "no thread can be started")));
        }
        state.reads.push_back((read, notice));
        self.to_do.notify_one();
    }

    fn start(&self) -> bool {
        let Some(ours) = self.me.upgrade() else { return false };
        crate::threads::start("nvmedfs-aio", move || ours.serve())
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((read, notice)) = state.reads.pop_front() {
                drop(state);
                notice.deliver(guarded(&self.mount, || read.run()));
                state = self.state.lock();
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

    fn end(&self, mut ended: AioCompletion, outcome: ApiResult<i64>) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        ended.event.result = match outcome {
            Ok(result) => result,
            Err(fail) => {
                let result = -i64::from(fail.errno);
                state.failed.get_or_insert(fail);
                result
            }
        };
        if state.ended.is_empty() {
            // A full counter is fine: it is readable then.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
        state.ended.push_back(ended);
        self.done.notify_all();
    }

    fn take(&self, state: &mut MutexGuard<'_, AioState>, most: usize) -> Vec<AioCompletion> {
        let count = state.ended.len().min(most);
        let taken = state.ended.drain(..count).collect();
        if state.ended.is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]); // an empty counter is fine
        }
        taken
    }

    /// Reaps completions: waits for `min` of them, all outstanding ones, or the timeout. Calls callbacks.
    pub fn reap(&self, min: usize, max: usize, until: Option<Instant>, mut out: impl FnMut(nvmedfs_event)) -> usize {
        let mut state = self.state.lock();
        loop {
            let there = state.under_way + state.ended.len();
            if state.ended.len() >= min.min(there) || until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            self.wait_a_while(&mut state, until);
        }
        let taken = self.take(&mut state, max);
        drop(state);
        for ended in &taken {
            out(ended.event);
        }
        taken.iter().for_each(call_back);
        taken.len()
    }

    fn wait_a_while(&self, state: &mut MutexGuard<'_, AioState>, until: Option<Instant>) {
        let at_most = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()).min(SLICE));
        self.done.wait_for(state, at_most);
    }

    /// Waits until nothing is in flight, reaps all, and returns the first failure since the last wait.
    pub fn wait(&self, until: Option<Instant>) -> ApiResult<()> {
        loop {
            self.reap(usize::MAX, usize::MAX, until, |_| {});
            let mut state = self.state.lock();
            if state.under_way == 0 && state.ended.is_empty() {
                return state.failed.take().map_or(Ok(()), Err);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(ApiError::new(libc::ETIMEDOUT, format!("{} requests are still under way", state.under_way)));
            }
        }
    }
}

/// Calls a callback without holding a lock.
fn call_back(ended: &AioCompletion) {
    if let Some(callback) = ended.callback {
        // SAFETY: the program gave this function for just this.
        unsafe { callback(&raw const ended.event, ended.userdata) }
    }
}
