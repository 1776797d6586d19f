//! A lock in shared memory that outlives its owner: a word that names the owner.
//!
//! ```text
//! bit 31 somebody waits | 30 abandoned | 29 held | 28..6 generation of the process slot, modulo 2^23 | 5..0 process slot
//! ```
//!
//! A free lock without waiters is zero. A waiter sleeps on a futex; each time the sleep ends without a wake-up it checks whether
//! the owner lives ([`ProcessSlots`]): a stopped process does, a killed one does not. Then it takes the lock over, by exchanging exactly
//! the word it had asked about: the *generation* counts how often somebody sat down in the process slot, so that a new owner in the process
//! slot of an old one is never taken for it. The new owner is notified, and has to repair what the lock guards; if it dies too, or
//! panics, so is the next.
//!
//! Every process of the group can write the word: it may name an owner that does not hold the lock. Each process knows for
//! itself what its threads hold (`lock/claims.rs`). A waiter that gets no wake-up puts a query into the table of the process slots, where
//! that process looks now and then ([`ProcessSlots::answer_owner_queries`]) and gives up what it never took.
//!
//! A waiter with a limit ([`OwnedLock::lock_within`]) still waits for an owner that is only slow: a thread of its own process that holds
//! the lock, or a process of the same user that gets no CPU ([`LivenessWatch::is_starved`]). No other process can pretend that.
//!
//! The owner is a process (its process slot), not a thread: threads of one process wait for each other in the same way. A thread that
//! asks twice waits for itself for ever.

pub(crate) mod claims;
pub(crate) mod protocol;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use crate::futex;
use crate::process_slots::{LivenessWatch, ProcessSlot, ProcessSlots};
use crate::region::Region;
use claims::LockClaim;
use protocol::{Owner, WaitKernel};

/// The first sleep of a waiter before it checks the owner; then twice as long each time, up to [`OWNER_CHECK_MAX`].
/// Under Miri a look at the claims takes longer than a waiter sleeps elsewhere, and none would see them unchanged.
const OWNER_CHECK: Duration = Duration::from_millis(if cfg!(miri) { 500 } else { 2 });
const OWNER_CHECK_MAX: Duration = OWNER_CHECK.saturating_mul(4);

/// A lock on four bytes of a region, on behalf of one process slot. Small and copied at will: it is made where it is used.
#[derive(Clone, Copy)]
pub struct OwnedLock<'a> {
    word: &'a AtomicU32,
    at: usize,
    processes: &'a ProcessSlots,
    me: Owner,
}

impl<'a> OwnedLock<'a> {
    /// The lock at byte `at`, a multiple of four.
    ///
    /// # Panics
    /// This process does not sit in `me`: it never did, rose, or is a fork of the one that does.
    #[inline]
    pub fn new(region: &'a Region, at: usize, processes: &'a ProcessSlots, me: ProcessSlot) -> OwnedLock<'a> {
        OwnedLock { word: region.u32(at), at, processes, me: Owner::new(me, processes.my_generation(me)) }
    }

    /// Takes it; waits for whoever has it, as long as that lives.
    #[inline]
    pub fn lock(&self) -> OwnedLockGuard<'a> {
        let claim = self.claim();
        match protocol::try_lock(self.word, self.me) {
            Some(abandoned) => OwnedLockGuard { word: self.word, me: self.me, abandoned, leaves_broken: false, _claim: claim },
            None => match self.wait(claim, None) {
                Some(held) => held,
                None => unreachable!("a wait without a limit ends with the lock"),
            },
        }
    }

    /// As [`OwnedLock::lock`], for at most so long; for no more than 0.4 s if the process that holds it gives no sign of life
    /// ([`ProcessSlots::watch`]). While its owner is known to be only slow (see the module), the time does not pass; a thread of this
    /// process is waited for up to ten minutes. None: somebody keeps it.
    #[inline]
    pub fn lock_within(&self, at_most: Duration) -> Option<OwnedLockGuard<'a>> {
        let claim = self.claim();
        match protocol::try_lock(self.word, self.me) {
            Some(abandoned) => Some(OwnedLockGuard { word: self.word, me: self.me, abandoned, leaves_broken: false, _claim: claim }),
            None => self.wait(claim, Some(at_most)),
        }
    }

    #[cold]
    fn wait(&self, mut claim: LockClaim<'a>, at_most: Option<Duration>) -> Option<OwnedLockGuard<'a>> {
        claim.begin_wait();
        let limit = at_most.map(WaitLimit::new);
        let waits = LockWaiter { limit, ..self.waits(claim) };
        let abandoned = protocol::lock(self.word, self.me, &waits);
        if waits.queries.get() > 0 {
            self.processes.end_owner_query(self.at);
        }
        let mut claim = waits.claim.into_inner();
        claim.end_wait();
        abandoned.map(|abandoned| OwnedLockGuard { word: self.word, me: self.me, abandoned, leaves_broken: false, _claim: claim })
    }

    fn waits(&self, claim: LockClaim<'a>) -> LockWaiter<'a> {
        let (claim, queries) = (RefCell::new(claim), Cell::new(0));
        LockWaiter { processes: self.processes, at: self.at, word: self.word, claim, queries, limit: None }
    }

    #[inline]
    fn claim(&self) -> LockClaim<'a> {
        self.processes.claims().note(self.at, self.me.process())
    }

    /// Takes it if it is free. Who died holding it keeps it here: [`OwnedLock::lock`] asks.
    #[inline]
    pub fn try_lock(&self) -> Option<OwnedLockGuard<'a>> {
        let claim = self.claim();
        let abandoned = protocol::try_lock(self.word, self.me)?;
        Some(OwnedLockGuard { word: self.word, me: self.me, abandoned, leaves_broken: false, _claim: claim })
    }

    /// Takes it over if its owner is dead, without waiting: for whoever cleans up after the dead. None: it is free, or its
    /// owner lives.
    pub fn take_over(&self) -> Option<OwnedLockGuard<'a>> {
        let waits = self.waits(self.claim());
        let is_ours = protocol::take_over(self.word, self.me, &waits);
        is_ours.then(|| OwnedLockGuard {
            word: self.word,
            me: self.me,
            abandoned: true,
            leaves_broken: false,
            _claim: waits.claim.into_inner(),
        })
    }

    /// Returns the process slot that holds the lock now.
    pub fn owner(&self) -> Option<ProcessSlot> {
        Owner::of(self.word.load(std::sync::atomic::Ordering::Acquire)).map(Owner::process)
    }
}

impl fmt::Debug for OwnedLock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedLock({:?})", self.owner())
    }
}

/// The lock is ours until this is dropped. Dropped by a panic, it is free but abandoned: the next one repairs.
#[must_use = "the lock is free again when this is dropped"]
pub struct OwnedLockGuard<'a> {
    word: &'a AtomicU32,
    me: Owner,
    abandoned: bool,
    leaves_broken: bool,
    /// Dropped last: the lock is given back by then.
    _claim: LockClaim<'a>,
}

impl OwnedLockGuard<'_> {
    /// Whoever had it before did not give it back: what it guards may be half changed, and has to be repaired first.
    #[inline]
    pub fn was_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Releases it unrepaired: the next owner is notified again.
    pub fn abandon(mut self) {
        self.leaves_broken = true;
    }

    #[inline]
    fn release(&self, abandoned: bool) {
        if protocol::unlock(self.word, self.me, abandoned) {
            futex::wake(self.word, 1);
        }
    }
}

impl Drop for OwnedLockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.release(self.leaves_broken || std::thread::panicking());
    }
}

impl fmt::Debug for OwnedLockGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedLockGuard(abandoned: {})", self.abandoned)
    }
}

/// The kernel's part: sleeping, and who lives.
struct LockWaiter<'a> {
    processes: &'a ProcessSlots,
    at: usize,
    word: &'a AtomicU32,
    claim: RefCell<LockClaim<'a>>,
    /// How often the owner's liveness was checked.
    queries: Cell<u32>,
    limit: Option<WaitLimit<'a>>,
}

/// How long is waited.
struct WaitLimit<'a> {
    begun: Instant,
    at_most: Duration,
    /// When the owner was last known to be only slow, at first the begin.
    since: Cell<Instant>,
    /// Looks at the word after that: on a machine that stood still the owner has not had its time.
    checks: Cell<u32>,
    /// Whoever holds it, and whether it lives.
    watch: RefCell<Option<(Owner, LivenessWatch<'a>)>>,
}

impl WaitLimit<'_> {
    fn new(at_most: Duration) -> Self {
        let begun = Instant::now();
        WaitLimit { begun, at_most, since: Cell::new(begun), checks: Cell::new(0), watch: RefCell::new(None) }
    }
}

/// A thread of this process that holds a lock is waited for so long, unless the caller's limit is longer.
const HELD_HERE_MAX: Duration = Duration::from_secs(600);

/// At least one look is made in that time before the time is up.
const CHECK_PERIOD: Duration = Duration::from_millis(20);

/// After so many checks of a living owner, that process is queried whether it holds the lock.
const QUERIES: u32 = 4;

impl WaitKernel<AtomicU32> for LockWaiter<'_> {
    const SPINS: u32 = if cfg!(miri) { 1 } else { 60 };

    fn wait(&self, word: &AtomicU32, expected: u32, times: u32) -> bool {
        self.claim.borrow_mut().pause();
        let woken = futex::wait(word, expected, Some((OWNER_CHECK * (1 << times.min(2))).min(OWNER_CHECK_MAX)));
        self.claim.borrow_mut().resume();
        woken
    }

    fn is_alive(&self, owner: Owner) -> bool {
        if !self.processes.is_attached(owner.process(), owner.generation()) {
            return false;
        }
        let seen = self.word.load(std::sync::atomic::Ordering::SeqCst);
        if self.processes.is_ours(owner) && Owner::of(seen) == Some(owner) {
            return !self.processes.claims().is_false_claim(self.at, owner.process(), Some(&self.claim.borrow()), self.word, seen);
        }
        self.queries.set(self.queries.get().saturating_add(1));
        if self.queries.get() >= QUERIES {
            self.processes.query_owner(self.at);
        }
        true
    }

    fn gives_up(&self, owner: Owner) -> bool {
        let Some(limit) = &self.limit else { return false };
        let mut watched = limit.watch.borrow_mut();
        let is_new = watched.as_ref().is_none_or(|(watched, _)| *watched != owner);
        if is_new {
            *watched = Some((owner, self.processes.watch(owner.process())));
        }
        let Some((_, watch)) = &mut *watched else { return false };
        let is_held_here = self.processes.is_ours(owner) && self.processes.claims().is_held(self.at, owner.process());
        if is_held_here || limit.begun.elapsed() < LivenessWatch::STARVED_MAX && watch.is_starved() {
            limit.since.set(Instant::now());
            limit.checks.set(0);
            return limit.begun.elapsed() >= limit.at_most.max(HELD_HERE_MAX);
        }
        let checks = limit.checks.get().saturating_add(1);
        limit.checks.set(checks);
        let is_over =
            limit.since.get().elapsed() >= limit.at_most && u128::from(checks) > limit.at_most.as_nanos() / CHECK_PERIOD.as_nanos();
        // Of a new one it is found out first whether it is dead.
        is_over || !is_new && watch.is_silent()
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::PageSize;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    const LOCK: usize = 2048;
    const COUNT: usize = 2056;

    fn processes() -> (Arc<Region>, ProcessSlots) {
        let region = Arc::new(Region::private(4096, PageSize::Small).expect("memory"));
        (region.clone(), ProcessSlots::in_process(region, 0))
    }

    #[test]
    fn it_names_its_owner_and_is_zero_when_free() {
        let (region, processes) = processes();
        let (me, you) = (processes.attach().expect("a process slot"), processes.attach().expect("a process slot"));
        let (mine, yours) = (OwnedLock::new(&region, LOCK, &processes, me), OwnedLock::new(&region, LOCK, &processes, you));
        assert_eq!(mine.owner(), None);
        let held = yours.lock();
        assert!(!held.was_abandoned());
        assert_eq!(mine.owner(), Some(you));
        assert!(mine.try_lock().is_none() && mine.take_over().is_none(), "the owner lives");
        drop(held);
        assert_eq!(region.u32(LOCK).load(Relaxed), 0);
        assert!(mine.try_lock().is_some());
    }

    #[test]
    fn a_dead_owner_loses_it_and_cannot_give_it_back() {
        let (region, processes) = processes();
        let (me, you) = (processes.attach().expect("a process slot"), processes.attach().expect("a process slot"));
        let (mine, yours) = (OwnedLock::new(&region, LOCK, &processes, me), OwnedLock::new(&region, LOCK, &processes, you));
        let theirs = yours.lock();
        processes.kill(you);
        let held = mine.lock();
        assert!(held.was_abandoned());
        drop(theirs);
        assert_eq!(mine.owner(), Some(me), "only the owner gives it back");
        held.abandon();
        assert!(mine.lock().was_abandoned(), "not repaired");
        assert!(!mine.lock().was_abandoned(), "repaired");
    }

    #[test]
    fn a_lock_that_the_leader_forgot_is_still_a_dead_one_s() {
        let (region, processes) = processes();
        let (me, you) = (processes.attach().expect("a process slot"), processes.attach().expect("a process slot"));
        let _theirs = OwnedLock::new(&region, LOCK, &processes, you).lock();
        processes.kill(you);
        processes.clear(you);
        assert_eq!(processes.attach().expect("a process slot"), you, "the same process slot, in another generation");
        assert!(OwnedLock::new(&region, LOCK, &processes, me).lock().was_abandoned());
    }

    #[test]
    fn a_panic_leaves_it_abandoned() {
        let (region, processes) = processes();
        let me = processes.attach().expect("a process slot");
        let panicked = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _held = OwnedLock::new(&region, LOCK, &processes, me).lock();
                    std::panic::resume_unwind(Box::new(()));
                })
                .join()
        });
        assert!(panicked.is_err());
        assert!(OwnedLock::new(&region, LOCK, &processes, me).try_lock().expect("free").was_abandoned());
    }

    #[test]
    fn threads_of_one_seat_and_of_others_take_turns() {
        let (region, processes) = processes();
        let all = [processes.attach(), processes.attach()].map(|process| process.expect("a process slot"));
        let times = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for process in [all[0], all[0], all[1]] {
                let (region, processes) = (&region, &processes);
                scope.spawn(move || {
                    for _ in 0..times {
                        let held = OwnedLock::new(region, LOCK, processes, process).lock();
                        assert!(!held.was_abandoned());
                        let count = region.u64(COUNT);
                        count.store(count.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(region.u64(COUNT).load(Relaxed), 3 * times);
        assert_eq!(region.u32(LOCK).load(Relaxed), 0);
    }

    /// A word that somebody wrote over with the name of one who lives and does not hold it.
    #[test]
    fn a_lie_about_who_holds_it_keeps_nobody_waiting() {
        let (region, processes) = processes();
        let (me, you) = (processes.attach().expect("a process slot"), processes.attach().expect("a process slot"));
        let (mine, yours) = (OwnedLock::new(&region, LOCK, &processes, me), OwnedLock::new(&region, LOCK, &processes, you));
        region.u32(LOCK).store(mine.me.word(), Relaxed);
        let held = mine.lock();
        assert!(held.was_abandoned(), "to be repaired");
        drop(held);
        // Of another process: that process disowns it when it is queried.
        processes.estrange(you, true);
        region.u32(LOCK).store(yours.me.word(), Relaxed);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| mine.lock().was_abandoned());
            std::thread::sleep(OWNER_CHECK * 20);
            assert!(!waiting.is_finished(), "it is not known to be a lie");
            processes.estrange(you, false);
            while !waiting.is_finished() {
                processes.answer_owner_queries();
                std::thread::yield_now();
            }
            assert!(waiting.join().expect("no panic"));
        });
        // What is true is not given up.
        let held = yours.lock();
        processes.query_owner(LOCK);
        processes.answer_owner_queries();
        assert_eq!(mine.owner(), Some(you));
        drop(held);
        // Queries about what is no lock harm nobody.
        for at in [0, 5, 4092, 1 << 40, usize::MAX] {
            processes.query_owner(at);
        }
        processes.answer_owner_queries();
    }

    /// A living owner that does not give it back is waited for no longer than said; the lock is whole afterwards.
    #[test]
    fn a_lock_that_is_kept_is_given_up_in_time() {
        let (region, processes) = processes();
        let (me, you) = (processes.attach().expect("a process slot"), processes.attach().expect("a process slot"));
        let (mine, yours) = (OwnedLock::new(&region, LOCK, &processes, me), OwnedLock::new(&region, LOCK, &processes, you));
        let held = yours.lock();
        processes.estrange(you, true);
        let begun = Instant::now();
        assert!(mine.lock_within(Duration::from_millis(30)).is_none());
        assert!(begun.elapsed() >= Duration::from_millis(30));
        assert_eq!(yours.owner(), Some(you), "it is still the owner's");
        drop(held);
        assert!(!mine.lock_within(Duration::from_millis(30)).expect("free").was_abandoned());
        assert_eq!(region.u32(LOCK).load(Relaxed), 0);
    }

    /// A thread of our own that holds it and does not go on is waited for, by threads of its process slot and of others of this process.
    #[test]
    #[cfg_attr(miri, ignore = "takes two seconds of wall time")]
    fn a_slow_thread_of_ours_is_waited_for() {
        let (region, processes) = processes();
        let all = [processes.attach(), processes.attach()].map(|process| process.expect("a process slot"));
        let lock = |process| OwnedLock::new(&region, LOCK, &processes, process);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let held = lock(all[0]).lock();
            for process in [all[0], all[1], all[0]] {
                let lock = &lock;
                scope.spawn(move || {
                    let held = lock(process).lock_within(Duration::from_millis(100));
                    assert!(!held.expect("it was waited for").was_abandoned());
                });
            }
            std::thread::sleep(Duration::from_secs(2));
            drop(held);
        });
        assert!(begun.elapsed() >= Duration::from_secs(2));
        assert_eq!(region.u32(LOCK).load(Relaxed), 0);
    }

    /// The word names a thread of ours that others wait for as well: none of the waiters takes another for the holder.
    #[test]
    #[cfg_attr(miri, ignore = "many waiters")]
    fn waiters_do_not_keep_each_other_waiting_for_a_lie() {
        let (region, processes) = processes();
        let (me, you) = (processes.attach().expect("a process slot"), processes.attach().expect("a process slot"));
        let forged = OwnedLock::new(&region, LOCK, &processes, you).me.word();
        processes.estrange(you, true);
        region.u32(LOCK).store(forged, Relaxed);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let waits = || assert!(OwnedLock::new(&region, LOCK, &processes, me).lock_within(Duration::from_millis(100)).is_none());
            (0..6).for_each(|_| _ = scope.spawn(waits));
        });
        println!("{:?}", begun.elapsed());
        // In our own name it is a lie that we can see.
        region.u32(LOCK).store(OwnedLock::new(&region, LOCK, &processes, me).me.word(), Relaxed);
        std::thread::scope(|scope| {
            let takes = || assert!(OwnedLock::new(&region, LOCK, &processes, me).lock_within(Duration::from_secs(60)).is_some());
            (0..6).for_each(|_| _ = scope.spawn(takes));
        });
    }

    #[test]
    #[should_panic(expected = "this process does not sit in ProcessSlot(3)")]
    fn nobody_locks_in_the_name_of_another() {
        let (region, processes) = processes();
        OwnedLock::new(&region, LOCK, &processes, ProcessSlot(3));
    }
}
