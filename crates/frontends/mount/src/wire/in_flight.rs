//! The requests of a mount that are being served, with their age, and who replies to each.
//!
//! Two may want to reply to a request: the thread that serves it, and the watchdog when that thread takes too long. A request has a slot,
//! and whoever exchanges the slot's number for zero replies. The kernel never uses a number twice, so a slot that serves another request
//! by then is not mistaken. There is no lock, and a thread that is alone uses the same slot again and again.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::Release, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::decode::RequestHeader;

/// Slots that are allocated at a time.
const CHUNK: usize = 256;
/// Chunks at most: a mount with more requests at a time refuses the rest.
const CHUNKS: usize = 64;
const FREE: u64 = 0;
/// Being filled. The kernel numbers its requests from 2 on, in steps of 2.
const TAKEN: u64 = 1;

thread_local! {
    /// The slot that this thread used last, plus one: it is most often free again.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// One request; alone in its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct RequestSlot {
    unique: AtomicU64,
    begun_ms: AtomicU64,
    ino: AtomicU64,
    opcode: AtomicU32,
    pid: AtomicU32,
    is_interrupted: AtomicBool,
}

/// A request that is being served, as the watchdog sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    slot: usize,
    /// Number that the reply must carry.
    pub unique: u64,
    /// When it came, on the watchdog's clock.
    pub begun_ms: u64,
    /// Inode that the request is about.
    pub ino: u64,
    /// Operation code of the request.
    pub opcode: u32,
    /// Thread ID of the caller, 0 if unknown.
    pub pid: u32,
    /// Whether the caller has got a signal since.
    pub is_interrupted: bool,
}

/// All requests of a mount that are being served.
#[derive(Debug)]
pub struct InFlight {
    chunks: [OnceLock<Box<[RequestSlot]>>; CHUNKS],
    /// Calls that go on although the watchdog has replied to their requests.
    unfinished: AtomicUsize,
    /// Threads that begin spread over the slots.
    next: AtomicUsize,
    /// A call failed as calls on a dead side do.
    has_failed: AtomicBool,
    /// Requests that failed as they do when a disk or a server fails.
    failed: AtomicU64,
    is_side_away: Arc<AtomicBool>,
}

impl Default for InFlight {
    fn default() -> Self {
        InFlight {
            chunks: [const { OnceLock::new() }; CHUNKS],
            unfinished: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            failed: AtomicU64::new(0),
            is_side_away: Arc::default(),
        }
    }
}

/// The right to reply to one request, as long as the watchdog has not replied.
#[derive(Clone, Debug)]
pub struct Ticket {
    requests: Arc<InFlight>,
    slot: usize,
    unique: u64,
}

/// Returns whether an error says that there is nobody on the other side.
pub fn is_of_dead_side(error: Errno) -> bool {
    directoryfs::is_of_dead_server(error) || error == Errno::NODEV
}

/// Returns whether an error says that a disk or a server failed, and not that a request was refused for a reason.
fn is_failure(error: Errno) -> bool {
    is_of_dead_side(error) || error == Errno::IO || error == Errno::REMOTEIO
}

impl Ticket {
    /// Returns whether the caller is to reply. To be called once for a request: if the watchdog has replied, the call has ended now.
    pub fn claim(&self) -> bool {
        let is_ours = self.requests.free(self.slot, self.unique);
        if !is_ours {
            self.requests.unfinished.fetch_sub(1, SeqCst);
        }
        is_ours
    }

    /// Looks at the error of the call: the side may be dead.
    pub fn note_error(&self, error: Errno) {
        if is_of_dead_side(error) {
            self.requests.has_failed.store(true, Relaxed);
        }
        // One that the watchdog has replied to is counted there, and while the side is away requests are refused with ETIMEDOUT.
        let is_refused = error == Errno::TIMEDOUT && self.requests.is_side_away.load(Relaxed);
        if is_failure(error) && !is_refused && self.is_wanted() {
            self.requests.failed.fetch_add(1, Relaxed);
        }
    }

    /// Returns whether the kernel still waits for the reply. A call that has not begun must not begin otherwise.
    pub fn is_wanted(&self) -> bool {
        self.requests.slot(self.slot).is_some_and(|slot| slot.unique.load(Acquire) == self.unique)
    }
}

impl InFlight {
    fn slot(&self, number: usize) -> Option<&RequestSlot> {
        self.chunks.get(number / CHUNK)?.get()?.get(number % CHUNK)
    }

    fn free(&self, slot: usize, unique: u64) -> bool {
        self.slot(slot).is_some_and(|slot| slot.unique.compare_exchange(unique, FREE, AcqRel, Relaxed).is_ok())
    }

    /// Registers a request. None: there are too many.
    pub fn begin(self: &Arc<Self>, head: &RequestHeader, now_ms: u64) -> Option<Ticket> {
        let slot = self.take_slot()?;
        let here = self.slot(slot)?;
        here.begun_ms.store(now_ms, Relaxed);
        here.ino.store(head.ino, Relaxed);
        here.opcode.store(head.opcode, Relaxed);
        here.pid.store(head.pid, Relaxed);
        here.is_interrupted.store(false, Relaxed);
        here.unique.store(head.unique, Release);
        Some(Ticket { requests: Arc::clone(self), slot, unique: head.unique })
    }

    fn take_slot(&self) -> Option<usize> {
        let first = match LAST.get() {
            0 => self.next.fetch_add(1, Relaxed) % CHUNK,
            last => last - 1,
        };
        let try_slot = |number: usize| {
            let slot = self.slot(number)?;
            let is_free = slot.unique.load(Relaxed) == FREE && slot.unique.compare_exchange(FREE, TAKEN, AcqRel, Relaxed).is_ok();
            is_free.then_some(number)
        };
        let found = try_slot(first).or_else(|| {
            (0..CHUNKS).find_map(|chunk| {
                self.chunks[chunk].get_or_init(|| (0..CHUNK).map(|_| RequestSlot::default()).collect());
                (0..CHUNK).find_map(|at| try_slot(chunk * CHUNK + (first + at) % CHUNK))
            })
        })?;
        LAST.set(found + 1);
        Some(found)
    }

    /// Notes that the caller of a request got a signal. False: no such request is registered, or not yet.
    pub fn interrupt(&self, unique: u64) -> bool {
        let mut slots = self.chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter());
        unique > TAKEN
            && slots.any(|slot| {
                let is_it = slot.unique.load(Acquire) == unique;
                if is_it {
                    slot.is_interrupted.store(true, Relaxed);
                }
                is_it
            })
    }

    /// Calls `look` for each request.
    pub fn each(&self, mut look: impl FnMut(SeenRequest)) {
        for (chunk, slots) in self.chunks.iter().enumerate() {
            for (at, slot) in slots.get().into_iter().flat_map(|slots| slots.iter().enumerate()) {
                let unique = slot.unique.load(Acquire);
                if unique > TAKEN {
                    look(SeenRequest {
                        slot: chunk * CHUNK + at,
                        unique,
                        begun_ms: slot.begun_ms.load(Relaxed),
                        ino: slot.ino.load(Relaxed),
                        opcode: slot.opcode.load(Relaxed),
                        pid: slot.pid.load(Relaxed),
                        is_interrupted: slot.is_interrupted.load(Relaxed),
                    });
                }
            }
        }
    }

    /// Takes the right to reply from the thread that serves the request. False: it has just replied.
    pub fn take_over(&self, seen: &SeenRequest) -> bool {
        self.unfinished.fetch_add(1, SeqCst);
        let is_ours = self.free(seen.slot, seen.unique);
        if !is_ours {
            self.unfinished.fetch_sub(1, SeqCst);
        }
        is_ours
    }

    /// Returns whether a call has failed as calls on a dead side do, since this was called last.
    pub fn take_failed(&self) -> bool {
        self.has_failed.load(Relaxed) && self.has_failed.swap(false, Relaxed)
    }

    /// Returns the number of requests that failed as they do when a disk or a server fails.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Returns what the watchdog sets while the side is away.
    pub fn away_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_side_away)
    }

    /// Returns the number of calls that go on although the watchdog has replied to their requests.
    pub fn unfinished(&self) -> usize {
        self.unfinished.load(SeqCst)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn head(unique: u64) -> RequestHeader {
        RequestHeader { opcode: 3, unique, ino: 7, uid: 0, gid: 0, pid: 9 }
    }

    fn all(requests: &InFlight) -> Vec<SeenRequest> {
        let mut seen = Vec::new();
        requests.each(|request| seen.push(request));
        seen
    }

    #[test]
    fn of_two_that_want_to_reply_one_does() {
        let requests = Arc::<InFlight>::default();
        for unique in (2..2000).step_by(2) {
            let ticket = requests.begin(&head(unique), 5).expect("room");
            let seen = all(&requests)[0];
            assert_eq!((seen.unique, seen.begun_ms, seen.ino, seen.opcode, seen.pid), (unique, 5, 7, 3, 9));
            let (by_thread, by_watchdog) = std::thread::scope(|scope| {
                let by_thread = scope.spawn(|| ticket.claim());
                let by_watchdog = requests.take_over(&seen);
                (by_thread.join().expect("ends"), by_watchdog)
            });
            assert!(by_thread != by_watchdog);
            assert_eq!((requests.unfinished(), all(&requests).len()), (0, 0));
        }
    }

    #[test]
    fn a_request_in_the_slot_of_another_is_not_mistaken() {
        let requests = Arc::<InFlight>::default();
        let first = requests.begin(&head(2), 0).expect("room");
        let seen = all(&requests)[0];
        assert!(first.is_wanted() && first.claim());
        let second = requests.begin(&head(4), 0).expect("room");
        assert_eq!(second.slot, first.slot);
        assert!(!first.is_wanted() && second.is_wanted());
        assert!(!requests.take_over(&seen) && second.claim());
    }

    #[test]
    fn a_call_goes_on_until_its_late_reply() {
        let requests = Arc::<InFlight>::default();
        let ticket = requests.begin(&head(2), 0).expect("room");
        assert!(requests.take_over(&all(&requests)[0]));
        assert_eq!(requests.unfinished(), 1);
        assert!(!ticket.is_wanted() && !ticket.claim());
        assert_eq!(requests.unfinished(), 0);
    }

    #[test]
    fn signals_reach_requests_that_are_served_and_the_number_of_requests_is_bounded() {
        let requests = Arc::<InFlight>::default();
        let tickets: Vec<Ticket> = (1..=(CHUNK * CHUNKS) as u64).map(|n| requests.begin(&head(2 * n), 0).expect("room")).collect();
        assert!(requests.begin(&head(1 << 40), 0).is_none());
        assert!(requests.interrupt(4) && !requests.interrupt(1 << 40) && !requests.interrupt(0));
        assert_eq!(all(&requests).iter().filter(|seen| seen.is_interrupted).count(), 1);
        assert!(tickets.iter().all(Ticket::claim) && all(&requests).is_empty());
    }
}
