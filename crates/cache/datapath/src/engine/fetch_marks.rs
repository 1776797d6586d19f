//! Marks in shared memory for the reads of backing files that are in flight, so that processes that miss the same pages wait for one read.
//!
//! Each process slot has marks of its own. A process marks the pages that it is about to read from a backing file, unless another process
//! has them marked: then it waits for the end of that read and looks into the cache again. A mark promises nothing about the cache: what
//! was read may not be kept there, and then the waiter reads the pages itself. So whether bytes are right never depends on a mark.
//!
//! A wait ends when the read ends, when the reading process is dead (checked every 10 ms), when it shows no heartbeat
//! ([`shm::LivenessWatch`]), or after [`WAIT_MAX`]. In a segment that several users can write, all waits of one read together end after
//! [`WAIT_MAX_IN_GROUP`], for a member can free a false mark and make it again. As it can do so at each read, waits for other processes
//! are then suspended for [`SUSPENDED`]. Each process removes false marks in its own name some ten times a second
//! ([`FetchMarks::restore`]).

#[cfg(all(test, not(miri)))]
mod every_order;
mod protocol;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use shm::{ProcessSlot, ProcessSlots, Region, futex};

pub(super) use protocol::{Claim, MARKS, SeenMark};
use protocol::{Kernel, Mark, Memory, OwnMark};

/// How long a thread waits for another one's read. Then it reads by itself: the file may have been replaced by one that can be read.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);
/// The same for processes of what may be other users: for all waits of one read of the caller's together.
const WAIT_MAX_IN_GROUP: Duration = Duration::from_millis(500);
/// How long no other process is waited for after one was waited for in vain.
const SUSPENDED: Duration = Duration::from_secs(10);
/// The interval of checks whether the reading process is alive.
const SLEEP: Duration = Duration::from_millis(10);
/// The same for one that has not decided whether it reads.
const SLEEP_BRIEFLY: Duration = Duration::from_millis(1);

/// The marks of a segment, as one process sees them.
#[derive(Debug)]
pub(super) struct FetchMarks {
    words: Words,
    me: u8,
    /// How long one wait may take, and all waits of one read of the caller's together.
    wait_max: Duration,
    waits_max: Duration,
    begun: Instant,
    /// Until when no other process is waited for, ms since `begun`.
    suspended_until: AtomicU64,
}

#[derive(Debug)]
struct Words {
    region: Arc<Region>,
    at: usize,
    processes: Arc<ProcessSlots>,
}

impl FetchMarks {
    /// The size of the marks in a segment, bytes.
    pub(super) const BYTES: usize = protocol::BYTES;

    pub(super) fn new(region: &Arc<Region>, at: usize, processes: &Arc<ProcessSlots>, me: ProcessSlot) -> FetchMarks {
        let words = Words { region: Arc::clone(region), at, processes: Arc::clone(processes) };
        // One user's processes trust each other: there, a long read may wait for many reads of a slow file.
        let (wait_max, waits_max) = if is_of_group(region) { (WAIT_MAX_IN_GROUP, WAIT_MAX_IN_GROUP) } else { (WAIT_MAX, Duration::MAX) };
        FetchMarks { words, me: me.0, wait_max, waits_max, begun: Instant::now(), suspended_until: AtomicU64::new(0) }
    }

    /// Takes part, after what an earlier process left in our process slot was freed. Returns the turns of the marks.
    pub(super) fn begin(&self) -> [u32; MARKS] {
        let turns = protocol::clear_process(&self.words, self.me);
        protocol::set_user(&self.words, self.me, true);
        turns
    }

    /// Takes part no more.
    pub(super) fn leave(&self) {
        protocol::set_user(&self.words, self.me, false);
    }

    /// Returns whether other processes take part: without them no mark is needed. Whoever begins only now may read what is being read.
    pub(super) fn has_others(&self) -> bool {
        protocol::has_others(&self.words, self.me)
    }

    /// Frees the marks of a dead process.
    pub(super) fn reap(&self, dead: ProcessSlot) {
        protocol::clear_process(&self.words, dead.0);
        protocol::set_user(&self.words, dead.0, false);
    }

    /// Sets which of our marks are in use.
    pub(super) fn set_active(&self, active: u32) {
        protocol::set_active(&self.words, self.me, active);
    }

    /// Removes marks in our name that another process made.
    pub(super) fn restore(&self, active: u32) {
        protocol::restore_active(&self.words, self.me, active);
        protocol::set_user(&self.words, self.me, true);
    }

    /// Claims pages with one of our marks, which is in use. The claim is cut to what no other process reads. The time that others take to
    /// decide about theirs is added to `waited`.
    ///
    /// # Errors
    /// Another process reads the first page.
    pub(super) fn claim(&self, (number, turn): (u8, u32), claim: &mut Claim, waited: &mut Duration) -> Result<(), SeenMark> {
        let begun = Instant::now();
        let claimed = protocol::claim(&self.words, self.own(number, turn), claim);
        self.count_wait(begun, waited);
        claimed
    }

    /// Marks pages as being read, whatever other processes read.
    pub(super) fn read_anyway(&self, number: u8, turn: u32, claim: &Claim) {
        protocol::read_anyway(&self.words, self.own(number, turn), claim);
    }

    /// Ends a read, and wakes those who wait for it.
    pub(super) fn end(&self, number: u8, turn: u32) {
        protocol::end(&self.words, self.own(number, turn));
    }

    /// Waits for the end of another process's read, and adds the time to `waited`. Returns false if the caller should read by itself.
    pub(super) fn wait(&self, other: SeenMark, waited: &mut Duration) -> bool {
        let begun = Instant::now();
        let at_most = self.wait_max.min(self.waits_max.saturating_sub(*waited));
        let mut watch = self.words.processes.watch(ProcessSlot(other.mark.process));
        let has_ended = protocol::wait(&self.words, other, || {
            let is_over = begun.elapsed() >= at_most;
            if is_over {
                self.suspend_waits();
            }
            is_over || watch.is_silent()
        });
        self.count_wait(begun, waited);
        has_ended
    }

    /// Returns whether a read that has waited so long for other processes may wait for them at present.
    pub(super) fn may_wait(&self, waited: Duration) -> bool {
        let until = self.suspended_until.load(Ordering::Relaxed);
        waited < self.waits_max && (until == 0 || self.begun.elapsed().as_millis() as u64 >= until)
    }

    /// Adds the time since `begun` to what a read has waited. Who has waited long enough waits for nobody for a while.
    fn count_wait(&self, begun: Instant, waited: &mut Duration) {
        *waited = waited.saturating_add(begun.elapsed());
        if *waited >= self.waits_max {
            self.suspend_waits();
        }
    }

    fn suspend_waits(&self) {
        let until = self.begun.elapsed() + SUSPENDED;
        self.suspended_until.store(until.as_millis() as u64, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn wait_at_most(&mut self, one: Duration, all_of_a_read: Duration) {
        (self.wait_max, self.waits_max) = (one, all_of_a_read);
    }

    /// Returns where the marks are.
    #[cfg(test)]
    pub(super) fn place(&self) -> (Arc<Region>, usize) {
        (Arc::clone(&self.words.region), self.words.at)
    }

    fn own(&self, number: u8, turn: u32) -> OwnMark {
        OwnMark { mark: Mark { process: self.me, number }, turn }
    }
}

/// Returns whether users other than its owner can write a segment.
fn is_of_group(region: &Region) -> bool {
    let Some(fd) = region.fd() else { return false };
    rustix::fs::fstat(fd).map_or(true, |stat| stat.st_mode & 0o022 != 0)
}

impl Memory for Words {
    fn load(&self, at: usize, order: Ordering) -> u32 {
        self.region.u32(self.at + 4 * at).load(order)
    }

    fn store(&self, at: usize, value: u32, order: Ordering) {
        self.region.u32(self.at + 4 * at).store(value, order);
    }

    fn swap(&self, at: usize, value: u32) -> u32 {
        self.region.u32(self.at + 4 * at).swap(value, Ordering::AcqRel)
    }

    fn exchange(&self, at: usize, old: u32, new: u32) -> bool {
        self.region.u32(self.at + 4 * at).compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

impl Kernel for Words {
    const SPINS: u32 = 200;

    fn sleep(&self, at: usize, expected: u32, is_brief: bool) {
        let at_most = if is_brief { SLEEP_BRIEFLY } else { SLEEP };
        futex::wait(self.region.u32(self.at + 4 * at), expected, Some(at_most));
    }

    fn wake(&self, at: usize) {
        futex::wake(self.region.u32(self.at + 4 * at), u32::MAX);
    }

    fn is_alive(&self, process: u8) -> bool {
        self.processes.is_alive(ProcessSlot(process))
    }
}
