//! The life of asynchronous requests. A read of a cached file is begun by whoever submits it: what is in memory has ended then, what is
//! on the SSD comes through one queue (`cachedfs::Reads`), and is collected by whoever reaps. The rest, which has to go below or to
//! wait, is done by threads: they are started when they are needed.
//!
//! Waiting. Whoever reaps and finds too little waits for the queue: with the lock held as long as no other thread has ever used these
//! requests and the threads have nothing to do, which costs one system call. Else by its event and one of ours, without the lock; one
//! thread does that, and the others wait until it lets them look.
#![expect(unsafe_code, reason = "a request has an address in it")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use block::Armed;
use cachedfs::{Begun, Outcome as Way, Reads};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::fail::{Fail, Outcome};
use crate::memory::Memory;
use crate::open::Open;
use crate::types::*;

/// Most threads of one UAIO. A read that has to wait for a disk occupies one.
const THREADS_MAX: usize = 64;
/// How long nobody looks whether something else is to be done.
const SLICE: Duration = Duration::from_secs(1);
/// More than one thread uses it.
const SEVERAL: usize = 1;

/// What a UAIO is.
pub struct Requests {
    /// For threads.
    me: Weak<Requests>,
    depth: usize,
    state: Mutex<State>,
    to_do: Condvar,
    done: Condvar,
    /// Wakes who waits for the queue without the lock.
    wake: OwnedFd,
    /// Which thread uses it; 0: none yet.
    user: AtomicUsize,
}

struct State {
    reads: Reads<Job, Memory>,
    waiting: VecDeque<(Job, Memory)>,
    under_way: usize,
    ended: VecDeque<Ended>,
    threads: usize,
    idle: usize,
    /// Somebody waits for the queue, without the lock.
    has_reaper: bool,
    closed: bool,
}

impl State {
    fn all(&self) -> usize {
        self.waiting.len() + self.under_way + self.ended.len() + self.reads.under_way()
    }
}

/// As it came, with the result filled in.
struct Ended(uaio);

// SAFETY: numbers, and an address that only the program looks at.
unsafe impl Send for Ended {}

/// A request that is not a read, or not begun yet.
pub struct Job {
    request: Ended,
    open: Arc<Open>,
    at: u64,
}

impl Job {
    pub fn new(request: uaio, open: Arc<Open>, at: u64) -> Job {
        Job { request: Ended(request), open, at }
    }

    /// It is the next one to be begun.
    fn expect(&self) {
        if let (UAIO_READ, Some(file)) = (self.request.0.op, self.open.cached()) {
            file.expect(self.at);
        }
    }

    fn run(&self, memory: Memory) -> Outcome<usize> {
        self.open.run(|open| match self.request.0.op {
            UAIO_READ => memory.with_mut(|bytes| open.read_at(self.at, bytes)),
            UAIO_WRITE => memory.with(|bytes| open.write_at(self.at, bytes)),
            op => open.sync(op == UAIO_FDATASYNC).map(|()| 0),
        })
    }

    /// Does it, with the thread that calls.
    fn end(self, memory: Memory) -> Ended {
        let done = catch_unwind(AssertUnwindSafe(|| self.run(memory)));
        let done = done.unwrap_or_else(|_| Err(Fail::new(libc::EIO, "a mistake inside hotshelf")));
        self.ended(done.map_or_else(|fail| -i64::from(fail.errno), |bytes| bytes as i64))
    }

    fn ended(mut self, result: i64) -> Ended {
        self.request.0.result = result;
        self.request
    }
}

/// The calling thread, by an address that no other living thread has.
fn me() -> usize {
    thread_local! { static ME: u64 = const { 0 } }
    ME.try_with(|me| std::ptr::from_ref(me).addr()).unwrap_or(SEVERAL)
}

impl Requests {
    pub fn new(depth: u32) -> Outcome<Arc<Requests>> {
        let no_event = |errno: rustix::io::Errno| Fail::new(errno.raw_os_error(), "an event for requests (eventfd)");
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(no_event)?;
        let places = depth as usize;
        let state = State {
            reads: Reads::new(depth),
            waiting: VecDeque::with_capacity(places),
            under_way: 0,
            ended: VecDeque::with_capacity(places),
            threads: 0,
            idle: 0,
            has_reaper: false,
            closed: false,
        };
        let (state, user) = (Mutex::new(state), AtomicUsize::new(0));
        let (to_do, done) = (Condvar::new(), Condvar::new());
        Ok(Arc::new_cyclic(|me| Requests { me: Weak::clone(me), depth: places, state, to_do, done, wake, user }))
    }

    /// For a call of the program's.
    fn enter(&self) -> MutexGuard<'_, State> {
        let (user, me) = (self.user.load(Ordering::Relaxed), me());
        let is_first = || self.user.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if user != me && user != SEVERAL && !(user == 0 && is_first()) {
            self.user.store(SEVERAL, Ordering::Relaxed);
        }
        self.state.lock()
    }

    /// Takes in as many as there is room for, until one is wrong.
    pub fn submit(&self, requests: &mut dyn Iterator<Item = Outcome<(Job, Memory)>>) -> Outcome<usize> {
        let mut state = self.enter();
        let mut done = 0;
        let mut failed = None;
        let mut last = None;
        let mut next = requests.next();
        while let Some(request) = next {
            next = requests.next();
            if let Some(Ok((job, _))) = &next {
                job.expect();
            }
            match request.and_then(|(job, memory)| self.add(&mut state, &mut last, job, memory)) {
                Ok(()) => done += 1,
                Err(fail) => {
                    failed = Some(fail);
                    break;
                }
            }
        }
        state.reads.ring();
        match failed {
            Some(fail) if done == 0 => Err(fail),
            _ => Ok(done),
        }
    }

    /// `last`: a share of the file of the request before, which mostly is that of the next, too.
    fn add(&self, state: &mut State, last: &mut Option<Arc<Open>>, job: Job, memory: Memory) -> Outcome<()> {
        if state.closed {
            return Err(Fail::new(libc::EBADF, "it is being destroyed"));
        }
        let full = || Fail::new(libc::EAGAIN, "as many requests as it is deep are under way or not reaped");
        if state.all() >= self.depth {
            return Err(full());
        }
        let open = match last {
            Some(open) if Arc::ptr_eq(open, &job.open) => open,
            _ => last.insert(Arc::clone(&job.open)),
        };
        let Some(file) = open.cached().filter(|_| job.request.0.op == UAIO_READ) else { return self.hand_over(state, job, memory) };
        match open.run(|_| Ok(state.reads.begin(file, job.at, memory, job)))? {
            Begun::UnderWay => Ok(()),
            Begun::Full(..) => Err(full()),
            Begun::Ended(ended) => match ended.outcome {
                Way::Read(bytes) => {
                    state.ended.push_back(ended.token.ended(bytes as i64));
                    Ok(())
                }
                Way::Slow => self.hand_over(state, ended.token, memory),
            },
        }
    }

    /// To a thread.
    fn hand_over(&self, state: &mut State, job: Job, memory: Memory) -> Outcome<()> {
        if !self.has_thread(state) {
            return Err(Fail::new(libc::EAGAIN, "no thread can be started"));
        }
        state.waiting.push_back((job, memory));
        self.to_do.notify_one();
        Ok(())
    }

    /// Whether there is a thread for one more; one is started if all are busy and there may be another.
    fn has_thread(&self, state: &mut State) -> bool {
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
            if let Some((job, memory)) = state.waiting.pop_front() {
                state.under_way += 1;
                drop(state);
                let ended = job.end(memory);
                state = self.state.lock();
                state.under_way -= 1;
                state.ended.push_back(ended);
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

    /// Who waits shall look.
    fn tell(&self, state: &State) {
        self.done.notify_all();
        if state.has_reaper {
            // Full is fine: it is readable then.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// What the queue has ended.
    fn collect(&self, state: &mut State) {
        while let Some(ended) = state.reads.take() {
            let (job, memory) = (ended.token, ended.buffer);
            match ended.outcome {
                Way::Read(bytes) => state.ended.push_back(job.ended(bytes as i64)),
                Way::Slow if self.has_thread(state) => {
                    state.waiting.push_back((job, memory));
                    self.to_do.notify_one();
                }
                Way::Slow => state.ended.push_back(job.end(memory)),
            }
        }
    }

    /// Hands out what has ended: waits for `min` of them, all there are, or the time.
    pub fn reap(&self, min: usize, max: usize, until: Option<Instant>, mut out: impl FnMut(uaio)) -> usize {
        let mut state = self.enter();
        loop {
            self.collect(&mut state);
            if state.ended.len() >= min.min(state.all()) || until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            self.wait(&mut state, until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()).min(SLICE)));
        }
        let count = state.ended.len().min(max);
        state.ended.drain(..count).for_each(|Ended(request)| out(request));
        if self.user.load(Ordering::Relaxed) == SEVERAL {
            // What we collected may be theirs, and somebody has to wait for the queue.
            self.tell(&state);
        }
        count
    }

    /// Until something may have ended.
    fn wait(&self, state: &mut MutexGuard<'_, State>, at_most: Duration) {
        let is_alone = self.user.load(Ordering::Relaxed) != SEVERAL && state.waiting.is_empty() && state.under_way == 0;
        if state.reads.under_way() == 0 || state.has_reaper {
            self.done.wait_for(state, at_most);
        } else if is_alone {
            state.reads.wait(at_most);
        } else if state.reads.arm() == Armed::Waiting {
            self.wait_unlocked(state, at_most);
        }
    }

    fn wait_unlocked(&self, state: &mut MutexGuard<'_, State>, at_most: Duration) {
        // A share of the event: the queue may be gone before we look again.
        let Some(event) = state.reads.event().and_then(|event| event.try_clone_to_owned().ok()) else {
            return state.reads.wait(at_most.min(Duration::from_millis(1)));
        };
        state.has_reaper = true;
        MutexGuard::unlocked(state, || {
            let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            let time = rustix::time::Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
            // Interrupted: it is looked again.
            let _ = poll(&mut fds, Some(&time));
        });
        state.has_reaper = false;
        let _ = rustix::io::read(&self.wake, &mut [0; 8]); // empty already is fine
    }

    /// Waits for all that is under way.
    pub fn finish(&self) -> Outcome<()> {
        let mut state = self.enter();
        state.closed = true;
        self.to_do.notify_all();
        loop {
            self.collect(&mut state);
            if state.reads.under_way() == 0 {
                break;
            }
            self.wait(&mut state, SLICE);
        }
        self.tell(&state);
        while state.threads > 0 {
            self.done.wait(&mut state);
        }
        // With its queue.
        state.reads = Reads::new(0);
        Ok(())
    }
}
