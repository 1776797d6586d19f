//! Requests over io_uring: the kernel has a queue for each CPU, and puts a request into the queue of the CPU on which
//! the caller runs.
//!
//! A thread of a queue has one place in it ([`Port`]) and serves what is put there, all by itself. The place that was free last is
//! taken first, so somebody alone has the same thread again and again, with a warm CPU cache. A request may
//! take as long as a disk does: a queue has `threads` of them, and of all queues together up to [`SLOW_MAX`] more are started when
//! requests say that they will be long.
//!
//! They are there before they are needed: a request that finds no place free is not given to a thread that comes later, but to the
//! next one that has answered, which may be as long as a disk takes (fuse_uring_do_register in the kernel looks for none).

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{Builder, Scope};

use fusedev::{Entry, Port};
use fuser::WriteFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::cpu_placement::CpuPlacement;
use super::decode::{self, FuseOp};
use super::device::Readers;
use super::filesystem::{BlockingExecutor, FileSystem, Job};
use super::pending_reply::{PendingReply, ReplySlot};
use super::perform::perform;
use super::transport::Transport;
use super::{DATA_MAX, encode};

/// More threads for requests that wait for a slow disk.
const SLOW_MAX: usize = 64;
/// Threads that wait before another is started.
const SPARE: usize = 2;
/// Threads started at first for all queues together: a machine may have hundreds of CPUs.
const FIRST_MAX: usize = 512;
/// From this size on, a transfer gains from a second CPU.
const LARGE: usize = 64 << 10;

/// The threads of one CPU's queue.
#[derive(Debug, Default)]
struct CpuQueue {
    /// Waiting for a request, or about to.
    waiting: AtomicUsize,
    threads: AtomicUsize,
    /// The number of threads whose reply waits for other replies.
    held: AtomicUsize,
}

/// All queues of a mount.
pub struct CpuQueues<'a, F> {
    readers: &'a Readers<'a, F>,
    transport: &'a Transport,
    queues: Vec<CpuQueue>,
    /// Where the daemon may run: a thread has it from the one that starts it, which is bound.
    allowed: CpuSet,
    /// Threads beyond those that each queue may have.
    slow: AtomicUsize,
    panicked: AtomicBool,
}

/// Where a thread is started from.
struct QueueContext<'scope, 'env, F> {
    scope: &'scope Scope<'scope, 'env>,
    all: &'env CpuQueues<'env, F>,
    queue: usize,
}

impl<F> Clone for QueueContext<'_, '_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for QueueContext<'_, '_, F> {}

/// One request, and the thread that serves it.
struct RequestExecutor<'a, 'scope, 'env, F> {
    here: &'a QueueContext<'scope, 'env, F>,
    /// It is among those that are held.
    held: Cell<bool>,
}

/// A request that is long goes on here: the thread is nobody else's.
impl<F: FileSystem> BlockingExecutor for RequestExecutor<'_, '_, '_, F> {
    fn run(&self, job: Job) {
        self.here.start_for_slow();
        job();
    }

    /// As long as others are left to serve what this one waits for. Those may be busy, but not with waiting for answers.
    fn may_wait(&self) -> bool {
        self.here.start_for_slow();
        let mine = &self.here.all.queues[self.here.queue];
        let threads = mine.threads.load(SeqCst);
        let held = mine.held.fetch_update(SeqCst, SeqCst, |held| (held + SPARE < threads).then_some(held + 1)).is_ok();
        self.held.set(held);
        held
    }
}

impl<F> Drop for RequestExecutor<'_, '_, '_, F> {
    fn drop(&mut self) {
        if self.held.get() {
            self.here.all.queues[self.here.queue].held.fetch_sub(1, SeqCst);
        }
    }
}

impl<'env, F: FileSystem> CpuQueues<'env, F> {
    /// Creates the queues, one for each CPU, without any thread.
    pub fn new(readers: &'env Readers<'env, F>, transport: &'env Transport, processors: usize) -> Self {
        let queues = (0..processors).map(|_| CpuQueue::default()).collect();
        let allowed = sched_getaffinity(None).unwrap_or_default();
        CpuQueues { readers, transport, queues, allowed, slow: AtomicUsize::new(0), panicked: AtomicBool::new(false) }
    }

    /// Starts a thread for each queue. The kernel begins with them when all have an entry; if one cannot, it is refused by `spare`.
    pub fn start<'scope>(&'env self, scope: &'scope Scope<'scope, 'env>, ports: Vec<Port>, mut spare: Port) {
        for (queue, port) in ports.into_iter().enumerate() {
            let here = QueueContext { scope, all: self, queue };
            here.counted_in();
            if let Err(error) = here.start(port, true) {
                here.counted_out();
                let refused = Entry::new(0).map_err(io::Error::from).and_then(|no_room| spare.register(self.readers.device, no_room));
                tracing::warn!(?refused, "FUSE over io_uring is called off");
                here.back_to_the_device(&error);
                return;
            }
        }
        let each = self.readers.threads.min((FIRST_MAX / self.queues.len().max(1)).max(SPARE));
        for queue in 0..self.queues.len() {
            let here = QueueContext { scope, all: self, queue };
            (1..each).for_each(|_| here.start_another());
        }
    }

    /// Returns whether a request panicked.
    pub fn panicked(&self) -> bool {
        self.panicked.load(Relaxed)
    }
}

impl<'scope, 'env, F: FileSystem> QueueContext<'scope, 'env, F> {
    fn counted_in(&self) {
        let mine = &self.all.queues[self.queue];
        mine.threads.fetch_add(1, SeqCst);
        mine.waiting.fetch_add(1, SeqCst);
    }

    fn counted_out(&self) {
        let mine = &self.all.queues[self.queue];
        mine.threads.fetch_sub(1, SeqCst);
        mine.waiting.fetch_sub(1, SeqCst);
    }

    /// `first`: without it there is no serving by queues.
    fn start(self, port: Port, first: bool) -> io::Result<()> {
        let started = Builder::new().name(format!("queue-{}", self.queue)).spawn_scoped(self.scope, move || self.serve(port, first));
        started.map(drop)
    }

    /// Starts another thread if this one's request may take long and few others wait.
    fn start_for_slow(&self) {
        let mine = &self.all.queues[self.queue];
        if mine.waiting.load(SeqCst) < SPARE
            && self.all.slow.fetch_update(SeqCst, SeqCst, |slow| (slow < SLOW_MAX).then_some(slow + 1)).is_ok()
        {
            self.start_another();
        }
    }

    fn start_another(&self) {
        self.counted_in();
        let started = Port::new(self.queue as u16).and_then(|port| self.start(port, false));
        if let Err(error) = started {
            self.counted_out();
            tracing::warn!(queue = self.queue, %error, "no more threads");
        }
    }

    /// The kernel did not start the queues and never will.
    fn back_to_the_device(&self, why: &io::Error) {
        if self.all.transport.is_device(format!("the kernel refused its queues ({why})"))
            && let Err(error) = self.all.readers.start_others(self.scope)
        {
            tracing::error!(%error, "fewer threads than asked for read requests");
        }
    }

    fn register(&self, port: &mut Port) -> io::Result<Entry> {
        port.register(self.all.readers.device, Entry::new(DATA_MAX)?)
    }

    /// Serves until the mount has gone.
    fn serve(self, mut port: Port, first: bool) {
        let mine = &self.all.queues[self.queue];
        let mut place = CpuPlacement::of(self.queue, self.all.allowed);
        let reply_slot = Arc::default();
        let mut next = self.register(&mut port);
        if let Err(error) = &next
            && !is_gone(error)
        {
            self.counted_out();
            if first {
                self.back_to_the_device(error);
            }
            return;
        }
        loop {
            match next {
                Ok(entry) => {
                    if mine.waiting.fetch_sub(1, SeqCst) <= SPARE && mine.threads.load(SeqCst) < self.all.readers.threads {
                        self.start_another();
                    }
                    let answered = self.serve_one(entry, &reply_slot, &mut place);
                    mine.waiting.fetch_add(1, SeqCst);
                    next = match answered {
                        Some(entry) => port.answer(entry),
                        None => Err(Errno::IO.into()),
                    };
                }
                Err(error) if is_gone(&error) => break,
                Err(error) => {
                    // The request of that entry is lost, the queue is not.
                    tracing::error!(queue = self.queue, %error, "an answer was not taken");
                    let again = Port::new(self.queue as u16).and_then(|fresh| {
                        port = fresh;
                        self.register(&mut port)
                    });
                    match again {
                        Err(error) if !is_gone(&error) => {
                            tracing::error!(queue = self.queue, %error, "a thread of a queue ends");
                            break;
                        }
                        again => next = again,
                    }
                }
            }
        }
        self.counted_out();
    }

    /// From a request to its answer, both in the entry.
    fn serve_one(&self, mut entry: Entry, reply_slot: &Arc<ReplySlot>, place: &mut CpuPlacement) -> Option<Entry> {
        let readers = self.all.readers;
        let Some(request) = entry.request() else {
            tracing::error!("a request is longer than its room");
            return None;
        };
        let (Some(header), args, rest) = (request.header.first_chunk(), request.args, request.rest) else { return None };
        let (head, _) = decode::head(header);
        let answer = |lent| PendingReply::by_queue(head.unique, readers.device, reply_slot, lent);
        let op = match decode::decode(head.opcode, args, rest) {
            Ok(op) => op,
            Err(_) => {
                tracing::error!(opcode = head.opcode, "a request makes no sense");
                entry.address(encode::header(head.unique, Some(Errno::IO), 0), 0);
                return Some(entry);
            }
        };
        place.note(is_waited_for(&op));
        let serving = &RequestExecutor { here: self, held: Cell::new(false) };
        // After a panic the pending reply has been sent, because it was dropped.
        let outcome;
        let kept = match op.answered_in_place() {
            Some(op) => {
                let answer = answer(Some(entry));
                outcome = catch_unwind(AssertUnwindSafe(|| perform(readers.fs, readers.owner, head, op, serving, answer)));
                None
            }
            None => {
                let answer = answer(None);
                outcome = catch_unwind(AssertUnwindSafe(|| perform(readers.fs, readers.owner, head, op, serving, answer)));
                Some(entry)
            }
        };
        if outcome.is_err() {
            self.all.panicked.store(true, Relaxed);
        }
        reply_slot.take(kept)
    }
}

/// Of the mount.
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED))
}

/// Returns whether the process that caused the request blocks until the reply.
fn is_waited_for(op: &FuseOp<'_>) -> bool {
    match op {
        FuseOp::Read { size, flags, .. } => (*size as usize) < LARGE || flags.cast_unsigned() & OFlags::DIRECT.bits() != 0,
        FuseOp::Write { data, write_flags, .. } => data.len() < LARGE || write_flags & WriteFlags::FUSE_WRITE_CACHE.bits() == 0,
        _ => true,
    }
}
