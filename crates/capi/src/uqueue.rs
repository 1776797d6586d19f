//! Requests that the program does not wait for: taken by threads of the library, collected by whoever asks.
#![expect(unsafe_code, reason = "called by C")]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::timespec;
use parking_lot::{Condvar, Mutex};

use crate::edge::answer;
use crate::fail::{Fail, Outcome};
use crate::library::{Kind, Object, end, enroll, ensure_init, with};
use crate::memory::Memory;
use crate::open::Open;
use crate::transfer::offset_of;
use crate::types::*;
use crate::uopen::share;

/// Most requests under way or not collected, of one UAIO.
const DEPTH_MAX: u32 = 1 << 16;
/// Most threads of one UAIO. A read that has to wait for a disk occupies one.
const THREADS_MAX: usize = 64;

/// What a UAIO is.
pub struct Requests {
    depth: usize,
    state: Mutex<State>,
    to_do: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    under_way: usize,
    ended: VecDeque<Ended>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl State {
    fn all(&self) -> usize {
        self.waiting.len() + self.under_way + self.ended.len()
    }
}

/// As it came, with the result filled in.
struct Ended(uaio);

// SAFETY: numbers, and an address that only the program looks at.
unsafe impl Send for Ended {}

struct Job {
    request: Ended,
    open: Arc<Open>,
    memory: Memory,
    at: u64,
}

impl Job {
    /// # Safety
    /// As `uaio_submit`.
    unsafe fn new(request: &uaio) -> Outcome<Job> {
        let moves = match request.op {
            UAIO_READ | UAIO_WRITE => true,
            UAIO_FSYNC | UAIO_FDATASYNC => false,
            op => return Err(Fail::new(libc::EINVAL, format!("op {op} of a request: UAIO_..."))),
        };
        // SAFETY: the caller's promise.
        let memory = if moves { unsafe { Memory::new(request.buf, request.n) }? } else { Memory::NONE };
        let at = if moves { offset_of(request.off)? } else { 0 };
        Ok(Job { request: Ended(*request), open: share(request.ufd)?, memory, at })
    }

    fn run(&self) -> Outcome<usize> {
        self.open.run(|open| match self.request.0.op {
            UAIO_READ => self.memory.with_mut(|bytes| open.read_at(self.at, bytes)),
            UAIO_WRITE => self.memory.with(|bytes| open.write_at(self.at, bytes)),
            op => open.sync(op == UAIO_FDATASYNC).map(|()| 0),
        })
    }

    fn end(mut self) -> Ended {
        let done = catch_unwind(AssertUnwindSafe(|| self.run()));
        let done = done.unwrap_or_else(|_| Err(Fail::new(libc::EIO, "a mistake inside hotshelf")));
        self.request.0.result = done.map_or_else(|fail| -i64::from(fail.errno), |bytes| bytes as i64);
        self.request
    }
}

impl Requests {
    fn new(depth: u32) -> Requests {
        let depth = depth as usize;
        let (waiting, ended) = (VecDeque::with_capacity(depth), VecDeque::with_capacity(depth));
        let state = Mutex::new(State { waiting, ended, ..State::default() });
        Requests { depth, state, to_do: Condvar::new(), done: Condvar::new() }
    }

    /// Takes one in; false: there is no room.
    fn add(self: &Arc<Self>, job: Job) -> Outcome<bool> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Fail::new(libc::EBADF, "it is being destroyed"));
        }
        if state.all() >= self.depth {
            return Ok(false);
        }
        state.waiting.push_back(job);
        let short = state.idle < state.waiting.len() && state.threads < THREADS_MAX.min(self.depth);
        if short && self.start() {
            state.threads += 1;
        } else if short && state.threads == 0 {
            state.waiting.pop_back();
            return Err(Fail::new(libc::EAGAIN, "no thread can be started"));
        }
        drop(state);
        self.to_do.notify_one();
        Ok(true)
    }

    /// Starts a thread that signals of the program do not reach.
    fn start(self: &Arc<Self>) -> bool {
        let ours = Arc::clone(self);
        // SAFETY: both sets are filled before they are read.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            let started = std::thread::Builder::new().name("uaio".to_owned()).spawn(move || ours.serve());
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            started.is_ok()
        }
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                state.under_way += 1;
                drop(state);
                let ended = job.end();
                state = self.state.lock();
                state.under_way -= 1;
                state.ended.push_back(ended);
                self.done.notify_all();
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

    /// Hands out what has ended: waits for `min` of them, all there are, or the time.
    fn reap(&self, min: usize, max: usize, until: Option<Instant>, mut out: impl FnMut(uaio)) -> usize {
        let mut state = self.state.lock();
        while state.ended.len() < min.min(state.all()) {
            let late = match until {
                Some(until) => self.done.wait_until(&mut state, until).timed_out(),
                None => {
                    self.done.wait(&mut state);
                    false
                }
            };
            if late {
                break;
            }
        }
        let count = state.ended.len().min(max);
        state.ended.drain(..count).for_each(|Ended(request)| out(request));
        count
    }

    /// Waits for all that is under way.
    pub fn finish(&self) -> Outcome<()> {
        let mut state = self.state.lock();
        state.closed = true;
        self.to_do.notify_all();
        while state.threads > 0 {
            self.done.wait(&mut state);
        }
        Ok(())
    }
}

impl Kind for Requests {
    const NAME: &'static str = "UAIO";
    fn of(object: &Object) -> Option<&Arc<Requests>> {
        if let Object::Requests(requests) = object { Some(requests) } else { None }
    }
}

/// Makes room for asynchronous requests: `depth` of them under way or not reaped, 1 to 65536. Thread-safe.
///
/// Returns it, or NULL: EINVAL (depth), EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn uaio_create(depth: u32) -> *mut UAIO {
    answer(|| {
        ensure_init()?;
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(Fail::new(libc::EINVAL, format!("a depth of {depth}: 1 to {DEPTH_MAX}")));
        }
        enroll(Object::Requests(Arc::new(Requests::new(depth))))
    })
}

/// Submits requests, which are copied: `count` of them, or as many as there is room for. They have no order among each other: who wants
/// one after the other waits for the first. Thread-safe.
///
/// Returns how many were taken, or -1 if none was: EBADF; EFAULT; EINVAL; EAGAIN (no room: uaio_reap first). One that is wrong ends
/// the call, and those before it are taken.
///
/// # Safety
/// `requests` has `count` elements; the `buf` of each has `n` bytes and belongs to the library until it is reaped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uaio_submit(aio: *mut UAIO, requests: *const uaio, count: c_int) -> c_int {
    answer(|| {
        let count = usize::try_from(count).map_err(|_| Fail::new(libc::EINVAL, "fewer requests than none"))?;
        if requests.is_null() && count > 0 {
            return Err(Fail::new(libc::EFAULT, "requests is NULL"));
        }
        with(aio, |ours: &Arc<Requests>| {
            for done in 0..count {
                // SAFETY: the caller's promise.
                let job = unsafe { Job::new(&*requests.add(done)) };
                let full = || Fail::new(libc::EAGAIN, "as many requests as it is deep are under way or not reaped");
                let taken = job.and_then(|job| ours.add(job)).and_then(|taken| if taken { Ok(()) } else { Err(full()) });
                match taken {
                    Ok(()) => {}
                    Err(fail) if done == 0 => return Err(fail),
                    Err(_) => return Ok(done as c_int),
                }
            }
            Ok(count as c_int)
        })
    })
}

/// # Safety
/// NULL or valid.
unsafe fn time_of(timeout: *const timespec) -> Outcome<Option<Instant>> {
    // SAFETY: the caller's promise.
    let Some(timeout) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    let wrong = || Fail::new(libc::EINVAL, "the timeout is not a time");
    let (seconds, nanos) = (u64::try_from(timeout.tv_sec).map_err(|_| wrong())?, u32::try_from(timeout.tv_nsec).map_err(|_| wrong())?);
    if nanos >= 1_000_000_000 {
        return Err(wrong());
    }
    Ok(Instant::now().checked_add(Duration::new(seconds, nanos)))
}

/// Takes requests that have ended: at least `min`, unless fewer are there at all or `timeout` (NULL: none) is over, at most `max`.
/// `result` of each is what the call would have returned, or a negative errno. Thread-safe: each goes to one thread.
///
/// Returns how many, or -1: EBADF; EFAULT; EINVAL (min, max or timeout).
///
/// # Safety
/// `done` has room for `max`; `timeout` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uaio_reap(aio: *mut UAIO, done: *mut uaio, min: c_int, max: c_int, timeout: *const timespec) -> c_int {
    answer(|| {
        let wrong = || Fail::new(libc::EINVAL, format!("from {min} to {max} requests"));
        let (least, most) = (usize::try_from(min).map_err(|_| wrong())?, usize::try_from(max).map_err(|_| wrong())?);
        if least > most {
            return Err(wrong());
        }
        if done.is_null() && most > 0 {
            return Err(Fail::new(libc::EFAULT, "there is no room for them"));
        }
        // SAFETY: the caller's promise.
        let until = unsafe { time_of(timeout) }?;
        with(aio, |ours: &Arc<Requests>| {
            let mut to = done;
            // SAFETY: the caller's promise; `reap` hands out `most` at most.
            let out = |request| unsafe {
                to.write(request);
                to = to.add(1);
            };
            Ok(ours.reap(least, most, until, out) as c_int)
        })
    })
}

/// Waits for what is under way, and forgets it. Thread-safe. Returns 0, or -1: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn uaio_destroy(aio: *mut UAIO) -> c_int {
    answer(|| end(aio, |_: &Requests| Ok(()), Requests::finish))
}
