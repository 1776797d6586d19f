//! Requests by read(2) from `/dev/fuse`, each with a deadline.
//!
//! A call on the slow side may not return. It then keeps its thread, which nothing can get back; so the threads are not waited for when
//! the mount ends, and another one reads requests in the place of one that is stuck. Once the side is suspect, nothing that may wait
//! runs on a thread that reads requests. The thread that mounted replies to what is overdue.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::MESSAGE_MAX;
use super::decode::{self, FuseOp, RequestHeader};
use super::device::ReadEnd;
use super::filesystem::{BlockingExecutor, FileSystem, Job};
use super::in_flight::Ticket;
use super::opcodes;
use super::pause::RegisteredReader;
use super::pending_reply::PendingReply;
use super::perform::{dispatch, perform};
use super::reply::ReplyAttr;
use super::stopper::MountStopper;
use super::wanted::serving;
use super::watchdog::{OverdueRequest, TICK, Watchdog};
use crate::blocking_pool::BlockingPool;

/// Threads that read requests in the place of stuck ones, at most.
const EXTRA_MAX: usize = 64;
/// A thread that serves one request for so long is taken for stuck, ms.
const STUCK_MS: u64 = 300;
/// Requests that wait for a thread, beyond which no long one may join them: each may have the data of a write, of a MiB, also after the
/// watchdog has replied to it. While the slow side is away it is refused, and while the side is suspect the thread that has read it serves
/// it.
const WAITING_MAX: usize = 128;
/// How long the end of the mount waits for threads.
const ENDING_MAX: Duration = Duration::from_secs(2);
/// How often it looks whether they have ended.
const ENDING_TICK: Duration = Duration::from_millis(1);

/// Returns whether a request closes a file or directory that nobody uses any more, which is done however late.
fn is_close(opcode: u32) -> bool {
    matches!(opcode, opcodes::RELEASE | opcodes::RELEASEDIR)
}

/// The threads that read the device, and what they have in common.
pub struct WatchedReaders<F> {
    fs: Arc<F>,
    /// If set, requests of all other users are refused.
    owner: Option<u32>,
    device: Arc<OwnedFd>,
    watchdog: Arc<Watchdog>,
    /// Says how many threads read requests while none is stuck, and makes them end for a restart of the daemon.
    stopper: Arc<MountStopper>,
    /// Threads that read requests, stuck or not.
    threads: AtomicUsize,
    stuck: AtomicUsize,
    /// When each thread began with its request on the watchdog's clock, or 0.
    busy: Mutex<Vec<Arc<AtomicU64>>>,
    /// Why requests are read no longer.
    end: Mutex<Option<ReadEnd>>,
    has_ended: Condvar,
    failed: AtomicBool,
}

/// Runs what may wait on a pool, unless the watchdog has replied before it began.
struct TicketExecutor<'a> {
    pool: &'a BlockingPool,
    ticket: Ticket,
}

impl BlockingExecutor for TicketExecutor<'_> {
    fn run(&self, job: Job) {
        let ticket = self.ticket.clone();
        self.pool.run(move || {
            if ticket.is_wanted() {
                serving(ticket, job);
            }
        });
    }

    /// Any thread may answer.
    fn may_wait(&self) -> bool {
        true
    }
}

/// Runs what may wait at once: this thread serves one request.
struct InPlace;

impl BlockingExecutor for InPlace {
    fn run(&self, job: Job) {
        job();
    }

    fn may_wait(&self) -> bool {
        true
    }
}

impl<F: FileSystem> WatchedReaders<F> {
    /// Creates the readers without starting a thread.
    pub fn new(fs: Arc<F>, owner: Option<u32>, device: Arc<OwnedFd>, stopper: Arc<MountStopper>, watchdog: Arc<Watchdog>) -> Self {
        // Each thread joins when it starts.
        (0..stopper.threads).for_each(|_| stopper.reader_pool.leave());
        WatchedReaders {
            fs,
            owner,
            device,
            watchdog,
            stopper,
            threads: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
            busy: Mutex::default(),
            end: Mutex::default(),
            has_ended: Condvar::new(),
            failed: AtomicBool::new(false),
        }
    }

    /// Serves until the mount has gone, or its stopper ends that.
    pub fn serve(self: Arc<Self>) -> io::Result<ReadEnd> {
        for _ in 0..self.stopper.threads {
            self.start_reader()?;
        }
        self.watchdog.start_probes()?;
        let (mut last, mut ending) = (Instant::now(), None);
        let end = loop {
            let mut end = self.end.lock();
            if end.is_none() {
                self.has_ended.wait_for(&mut end, TICK);
            }
            let ended = *end;
            drop(end);
            if let Some(end) = ended {
                // Threads that are stuck may come back meanwhile, and programs wait for replies until the mount has gone. None is stuck
                // when the readers are stopped.
                let since = *ending.get_or_insert_with(Instant::now);
                if self.threads.load(SeqCst) == 0 || end == ReadEnd::Gone && since.elapsed() >= ENDING_MAX {
                    break end;
                }
                std::thread::sleep(ENDING_TICK);
            }
            let now = Instant::now();
            for overdue in self.watchdog.tick(now - last) {
                self.answer_overdue(&overdue);
            }
            last = now;
            self.replace_stuck();
            self.fs.side_changed();
        };
        if end == ReadEnd::Stopped {
            return Ok(end);
        }
        if self.failed.load(Relaxed) { Err(io::Error::other("a request ended in a bug (see the log)")) } else { Ok(end) }
    }

    fn start_reader(self: &Arc<Self>) -> io::Result<()> {
        let number = self.threads.fetch_add(1, SeqCst);
        let busy = Arc::new(AtomicU64::new(0));
        let (readers, own) = (Arc::clone(self), Arc::clone(&busy));
        self.stopper.reader_pool.join();
        let started = Builder::new().name(format!("reader-{number}")).spawn(move || readers.read_and_leave(&own));
        match started {
            Ok(_) => {
                self.busy.lock().push(busy);
                Ok(())
            }
            Err(error) => {
                self.stopper.reader_pool.leave();
                self.threads.fetch_sub(1, SeqCst);
                Err(error)
            }
        }
    }

    /// Starts threads in the place of those that are stuck.
    fn replace_stuck(self: &Arc<Self>) {
        let now = self.watchdog.now_ms();
        let is_stuck = |begun: u64| begun != 0 && now.saturating_sub(begun) >= STUCK_MS;
        let stuck = self.busy.lock().iter().filter(|busy| is_stuck(busy.load(Relaxed))).count();
        self.stuck.store(stuck, SeqCst);
        let wanted = self.stopper.threads + stuck.min(EXTRA_MAX);
        while self.threads.load(SeqCst) < wanted && self.end.lock().is_none() {
            if let Err(error) = self.start_reader() {
                tracing::warn!(%error, "no thread in the place of one that waits for the slow side");
                return;
            }
        }
    }

    fn read_and_leave(self: &Arc<Self>, busy: &Arc<AtomicU64>) {
        let me = self.stopper.pause.register();
        if let Err(error) = self.read(&me, busy) {
            tracing::error!(%error, "a thread that reads requests ends");
            self.failed.store(true, Relaxed);
        }
        self.stopper.reader_pool.leave();
        self.busy.lock().retain(|other| !Arc::ptr_eq(other, busy));
    }

    /// Serves until the mount has gone, the stopper ends that, or there are too many threads; the thread is counted out by then.
    fn read(self: &Arc<Self>, me: &RegisteredReader<'_>, busy: &AtomicU64) -> io::Result<()> {
        let mut buffer = vec![0; MESSAGE_MAX];
        let (end, outcome) = loop {
            if me.has_to_end() {
                break (ReadEnd::Stopped, Ok(()));
            }
            match rustix::io::read(&self.device, &mut buffer) {
                Ok(length) => {
                    let _serving = me.serving();
                    busy.store(self.watchdog.now_ms(), Relaxed);
                    let is_last = self.serve_one(&buffer[..length]);
                    busy.store(0, Relaxed);
                    match is_last {
                        Ok(false) => {}
                        Ok(true) => break (ReadEnd::Gone, Ok(())),
                        Err(error) => break (ReadEnd::Gone, Err(error)),
                    }
                    let most = self.stopper.threads + self.stuck.load(SeqCst);
                    if self.threads.load(SeqCst) > most
                        && self.threads.fetch_update(SeqCst, SeqCst, |threads| (threads > most).then(|| threads - 1)).is_ok()
                    {
                        return Ok(());
                    }
                }
                // ENOENT: the caller went away before the daemon read the request.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => break (ReadEnd::Gone, Ok(())),
                Err(error) => break (ReadEnd::Gone, Err(error.into())),
            }
        };
        self.threads.fetch_sub(1, SeqCst);
        self.end.lock().get_or_insert(end);
        self.has_ended.notify_all();
        outcome
    }

    /// True: it was the last one.
    fn serve_one(self: &Arc<Self>, message: &[u8]) -> io::Result<bool> {
        dispatch(&*self.fs, &self.device, message, |head, op| {
            let FuseOp::Interrupt { unique } = op else {
                let _turn = self.stopper.reader_pool.take();
                return self.route(head, op, message);
            };
            // The thread that has read the request may not have registered it yet; the kernel then sends the signal again. If the request
            // has been replied to, the kernel takes no reply.
            if !self.watchdog.interrupt(unique) {
                PendingReply::by_device(head.unique, &self.device).fail(Errno::AGAIN);
            }
        })
    }

    /// Decides where a request is served.
    fn route(self: &Arc<Self>, head: RequestHeader, op: FuseOp<'_>, message: &[u8]) {
        let is_away = self.watchdog.is_away();
        if is_away && (!self.fs.serves_away(head.opcode) || self.is_too_much(head.opcode)) {
            return self.answer_without_side(&head, Errno::TIMEDOUT);
        }
        let Some(ticket) = self.watchdog.begin(&head) else { return self.answer_without_side(&head, Errno::TIMEDOUT) };
        let answer = PendingReply::with_ticket(head.unique, &self.device, ticket.clone());
        let is_read = matches!(op, FuseOp::Read { .. });
        // What is served of names while the side is away is in memory, or fails at once.
        let is_in_memory = is_away && opcodes::only_looks(head.opcode);
        if !is_read && !is_in_memory && self.watchdog.is_suspect() {
            if self.is_too_much(head.opcode) {
                // This thread is replaced if it gets stuck. What none reads, the kernel keeps: its caller can be killed.
                return serving(ticket, || self.perform(head, op, &InPlace, answer));
            }
            let (readers, message) = (Arc::clone(self), message.to_vec());
            return self.stopper.blocking_pool.run(move || {
                // A file that nobody uses any more is closed, however late.
                if !ticket.is_wanted() && !is_close(head.opcode) {
                    return;
                }
                if let Ok((head, args, rest)) = decode::split(&message)
                    && let Ok(op) = decode::decode(head.opcode, args, rest)
                {
                    serving(ticket, || readers.perform(head, op, &InPlace, answer));
                }
            });
        }
        let pool = if is_read { &self.stopper.read_pool } else { &self.stopper.blocking_pool };
        let executor = TicketExecutor { pool, ticket: ticket.clone() };
        serving(ticket, || self.perform(head, op, &executor, answer));
    }

    /// Returns whether a request with data is one too many of those that wait for a thread. Other requests are short.
    fn is_too_much(&self, opcode: u32) -> bool {
        matches!(opcode, opcodes::WRITE | opcodes::SETXATTR) && self.stopper.blocking_pool.waiting() >= WAITING_MAX
    }

    fn perform(&self, head: RequestHeader, op: FuseOp<'_>, executor: &dyn BlockingExecutor, answer: PendingReply) {
        // After a panic, dropping the pending reply sends EIO.
        if catch_unwind(AssertUnwindSafe(|| perform(&*self.fs, self.owner, head, op, executor, answer))).is_err() {
            self.failed.store(true, Relaxed);
        }
    }

    fn answer_overdue(&self, overdue: &OverdueRequest) {
        let head = RequestHeader { opcode: overdue.opcode, unique: overdue.unique, ino: overdue.ino, uid: 0, gid: 0, pid: 0 };
        tracing::debug!(opcode = head.opcode, ino = head.ino, error = %overdue.error, "a request is overdue");
        self.answer_without_side(&head, overdue.error);
    }

    /// Replies with what is known, or with an error.
    fn answer_without_side(&self, head: &RequestHeader, error: Errno) {
        let answer = PendingReply::by_device(head.unique, &self.device);
        match head.opcode {
            // Nobody looks at this reply.
            opcode if is_close(opcode) => _ = answer.send(&[]),
            opcodes::GETATTR if error == Errno::TIMEDOUT => match self.fs.known_attributes(head.ino) {
                Some((ttl, attr)) => ReplyAttr::from(answer).attr(ttl, &attr),
                None => _ = answer.fail(error),
            },
            _ => _ = answer.fail(error),
        }
    }
}
