//! The processes that share a segment, and which of them are alive.
//!
//! Each process that attaches takes one of 64 *process slots*: a word in the segment, and a record lock on the byte of that number of the
//! *lock file* beside it. The kernel frees the lock when the process ends, however it ends, and not before its memory is gone; it
//! does not free it because the process is stopped, slow or debugged. So a process slot whose word says *taken* and whose byte is
//! free is a dead process's. It stays taken until the leader has put right what it left and [`ProcessSlots::clear`]s it.
//!
//! ```text
//!  segment                              lock file
//!  notifier, term, queries | 64 x (generation, pid)    byte 0 .. 63: the process slots, byte 64: the leader
//!  65 heartbeats
//! ```
//!
//! *Heartbeats* change ten times a second while a process runs: see `process_slots/heartbeat.rs`.
//!
//! *Queries* are positions of locks whose owner, who lives, shall say whether it holds them (see `lock.rs`).
//!
//! The *generation* is odd while the process slot is taken and counted up with each change, always under the byte's lock or by the leader.
//!
//! # What to know of record locks
//! They are dropped when *any* descriptor of the lock file is closed in the process, and one's own are never reported. So a process
//! opens a lock file once ([`ProcessSlots::open_lock_file`]), keeps it in one [`ProcessSlots`], and lets nobody else open it.
//! [`ProcessSlots::renew`] finds out if that happened all the same. After exec the process slot is lost (the descriptor is closed); a fork
//! sits in no process slot, though the `ProcessSlots` it inherits can be used to take one.

mod heartbeat;
mod lead;
mod local;
pub(crate) mod slot;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::file::FileAccess;
use crate::lock::claims::LockClaims;
use crate::lock::protocol::{self, Owner};
use crate::region::{AttachError, Region};
use crate::{bytes, file};
pub use heartbeat::LivenessWatch;
use local::ProcessLocal;
pub use slot::ProcessSlot;

/// Why there was no process slot.
#[derive(Debug)]
pub enum ProcessSlotError {
    /// All are taken; so many of them by dead processes after which the leader has not cleaned up yet.
    Full {
        /// Process slots of dead processes.
        dead: u32,
    },
    /// The kernel refused to lock.
    System(io::Error),
}

impl fmt::Display for ProcessSlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessSlotError::Full { dead } => {
                write!(f, "all {} process slots are taken, {dead} of them by dead processes", ProcessSlots::COUNT)
            }
            ProcessSlotError::System(error) => write!(f, "locking a process slot: {error}"),
        }
    }
}

impl std::error::Error for ProcessSlotError {}

/// The process slots of one segment, as one process sees them.
pub struct ProcessSlots {
    region: Arc<Region>,
    at: usize,
    local: ProcessLocal,
    /// None: pretended.
    locks: Option<OwnedFd>,
    claims: LockClaims,
}

/// Words for queries.
const QUERIES: usize = 14;
const QUERIES_AT: usize = 8;

impl fmt::Debug for ProcessSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessSlots(taken: {:#x})", self.taken())
    }
}

impl ProcessSlots {
    /// The number of process slots in a segment.
    pub const COUNT: usize = 64;
    /// What they take of a region. All zero is a table in which nobody sits.
    pub const BYTES: usize = heartbeat::AT + heartbeat::BYTES;

    /// The process slots whose table lies at byte `at`, a multiple of eight, and whose locks are in that file. One for each process and
    /// segment: see above.
    ///
    /// # Errors
    /// No memory.
    pub fn open(region: Arc<Region>, at: usize, locks: OwnedFd) -> io::Result<ProcessSlots> {
        Ok(ProcessSlots { local: ProcessLocal::new()?, region, at, locks: Some(locks), claims: LockClaims::new() }.checked())
    }

    /// Makes process slots that are all in this process, without a lock file: for a private region, and for tests, in which
    /// [`ProcessSlots::kill`] ends the life of one.
    ///
    /// # Panics
    /// There is no memory.
    pub fn in_process(region: Arc<Region>, at: usize) -> ProcessSlots {
        let local = ProcessLocal::new().expect("memory for process slots");
        ProcessSlots { local, region, at, locks: None, claims: LockClaims::new() }.checked()
    }

    /// Opens a lock file, and creates it if it is not there, with these rights. Once in a process.
    ///
    /// # Errors
    /// As for [`Region::open_file`]; the directory is not there or not writable.
    pub fn open_lock_file(path: &Path, sharing: FileAccess) -> Result<OwnedFd, AttachError> {
        file::open_or_create_empty(path, sharing)
    }

    fn checked(self) -> ProcessSlots {
        assert!(self.at.is_multiple_of(8) && self.at + ProcessSlots::BYTES <= self.region.len(), "no place for process slots: {}", self.at);
        self
    }

    /// Takes a free process slot: attach.
    ///
    /// # Errors
    /// See [`ProcessSlotError`].
    pub fn attach(&self) -> Result<ProcessSlot, ProcessSlotError> {
        for process in ProcessSlots::all() {
            if !is_taken(self.word(process).load(Acquire)) && self.attach_to(process, false)? {
                return Ok(process);
            }
        }
        Err(ProcessSlotError::Full { dead: self.dead().len() as u32 })
    }

    /// Where every process slot is taken: takes the process slot of a dead process over. Only the leader may, and it cleans up after this
    /// process slot before it does anything in its name. Locks of the one before are not ours: the generation is another.
    ///
    /// # Errors
    /// See [`ProcessSlotError`]: nobody is dead.
    pub fn take_over(&self) -> Result<ProcessSlot, ProcessSlotError> {
        assert!(self.is_leading(), "only the leader inherits");
        for process in self.dead() {
            if self.attach_to(process, true)? {
                return Ok(process);
            }
        }
        Err(ProcessSlotError::Full { dead: 0 })
    }

    /// True: it is ours. The process slot's generation only changes under its byte's lock, so it is looked at again when we have that.
    fn attach_to(&self, process: ProcessSlot, taken: bool) -> Result<bool, ProcessSlotError> {
        let bit = 1 << process.0;
        if self.local.claimed().fetch_or(bit, AcqRel) & bit != 0 {
            return Ok(false);
        }
        let locked = self.locks.as_ref().map_or(Ok(true), |fd| bytes::try_lock(fd, process.0.into()));
        let generation = self.word(process).load(Acquire);
        if matches!(locked, Ok(true)) && is_taken(generation) == taken {
            let generation = generation.wrapping_add(if taken { 2 } else { 1 });
            self.local.killed().fetch_and(!bit, Relaxed);
            self.pid_word(process).store(std::process::id(), Relaxed);
            self.word(process).store(generation, Release);
            self.local.mine(process).store(generation, Release);
            return Ok(true);
        }
        if matches!(locked, Ok(true)) {
            self.unlock(process);
        }
        self.local.claimed().fetch_and(!bit, Release);
        locked.map(|_| false).map_err(ProcessSlotError::System)
    }

    /// Gives our process slot up: detach. Nothing may be left in its name.
    ///
    /// # Panics
    /// It is not ours.
    pub fn detach(&self, me: ProcessSlot) {
        let generation = self.local.mine(me).swap(0, AcqRel);
        assert!(is_taken(generation), "this process does not sit in {me:?}");
        // If it was cleared below us (see `renew`), it is no longer ours to free.
        let _ = self.word(me).compare_exchange(generation, generation.wrapping_add(1), AcqRel, Relaxed);
        self.unlock(me);
        self.local.claimed().fetch_and(!(1 << me.0), Release);
    }

    /// Whether our process slot is still ours; false when its lock was dropped by somebody who closed the lock file in this process, and
    /// the leader cleared it. Then nothing may be done in its name any more. For now and then (a call of the kernel).
    pub fn renew(&self, me: ProcessSlot) -> bool {
        let generation = self.local.mine(me).load(Acquire);
        if !is_taken(generation) {
            return false;
        }
        let locked = self.locks.as_ref().is_none_or(|fd| bytes::try_lock(fd, me.0.into()).unwrap_or(false));
        let still = self.word(me).load(Acquire) == generation;
        if locked && !still {
            self.unlock(me);
        }
        locked && still
    }

    /// Whether a living process sits there. Yes when the kernel does not tell, and while a core is written.
    pub fn is_alive(&self, process: ProcessSlot) -> bool {
        self.is_living(process, self.word(process).load(Acquire))
    }

    /// The pid of whoever sits there, dead or alive; as it sees itself, where it is of another pid namespace.
    pub fn pid(&self, process: ProcessSlot) -> Option<u32> {
        if !is_taken(self.word(process).load(Acquire)) {
            return None;
        }
        let recorded = self.pid_word(process).load(Relaxed);
        let asked = self.locks.as_ref().and_then(|fd| bytes::holder(fd, process.0.into()).ok().flatten());
        Some(asked.filter(|&pid| pid != 0).unwrap_or(recorded))
    }

    /// Returns the generation of a process slot that is taken, which no other owner of the slot has. None: it is free, or does not exist.
    pub fn generation(&self, process: ProcessSlot) -> Option<u32> {
        if usize::from(process.0) >= ProcessSlots::COUNT {
            return None;
        }
        Some(self.word(process).load(Acquire)).filter(|word| is_taken(*word))
    }

    /// The process slots of dead processes.
    pub fn dead(&self) -> Vec<ProcessSlot> {
        ProcessSlots::all().filter(|&process| self.is_dead(process).is_some()).collect()
    }

    /// Makes a dead process's process slot free. For the leader, when nothing is left in its name. One that lives keeps its process slot.
    pub fn clear(&self, dead: ProcessSlot) {
        if let Some(generation) = self.is_dead(dead)
            && self.word(dead).compare_exchange(generation, generation.wrapping_add(1), AcqRel, Relaxed).is_ok()
            && self.locks.is_none()
        {
            self.local.mine(dead).store(0, Release);
            self.local.claimed().fetch_and(!(1 << dead.0), Release);
        }
    }

    /// One bit for each process slot that is taken, by the living or the dead.
    pub fn taken(&self) -> u64 {
        ProcessSlots::all().filter(|&process| is_taken(self.word(process).load(Acquire))).fold(0, |bits, process| bits | 1 << process.0)
    }

    /// Of pretended process slots: whoever sits there is dead from now on.
    ///
    /// # Panics
    /// They are not pretended.
    pub fn kill(&self, process: ProcessSlot) {
        assert!(self.locks.is_none(), "only those who pretend to live are killed here");
        self.local.killed().fetch_or(1 << process.0, Release);
    }

    /// Of pretended process slots: whether that one is treated as another process's, which lives and of which nothing is known.
    ///
    /// # Panics
    /// They are not pretended.
    pub fn estrange(&self, process: ProcessSlot, is_strange: bool) {
        assert!(self.locks.is_none(), "only those who pretend to live are strangers here");
        let bit = 1 << process.0;
        match is_strange {
            true => self.local.strange().fetch_or(bit, AcqRel),
            false => self.local.strange().fetch_and(!bit, AcqRel),
        };
    }

    fn is_strange(&self, process: ProcessSlot) -> bool {
        self.local.strange().load(Acquire) & 1 << process.0 != 0
    }

    pub(crate) fn claims(&self) -> &LockClaims {
        &self.claims
    }

    fn queries(&self) -> impl Iterator<Item = &AtomicU32> {
        (0..QUERIES).map(|n| self.region.u32(self.at + QUERIES_AT + 4 * n))
    }

    /// Asks whoever is said to hold the lock at this position whether that is so.
    pub(crate) fn query_owner(&self, at: usize) {
        let Ok(word) = u32::try_from(at / 4) else { return };
        if self.queries().any(|query| query.load(Relaxed) == word) {
            return;
        }
        let free = self.queries().find(|query| query.compare_exchange(0, word, AcqRel, Relaxed).is_ok());
        if free.is_none()
            && let Some(query) = self.queries().nth(word as usize % QUERIES)
        {
            query.store(word, Release);
        }
        self.nudge();
    }

    pub(crate) fn end_owner_query(&self, at: usize) {
        let Ok(word) = u32::try_from(at / 4) else { return };
        self.queries().for_each(|query| _ = query.compare_exchange(word, 0, AcqRel, Relaxed));
    }

    /// Shows that this process is alive, and disowns locks that name it although none of its threads took them. For each process that
    /// takes part, some ten times a second, whatever its other threads wait for: [`ProcessSlots::lead_unless`] does it while it waits.
    pub fn answer_owner_queries(&self) {
        self.send_heartbeat();
        for at in self.queries().map(|query| query.load(Acquire) as usize * 4).filter(|at| *at != 0) {
            if at + 4 > self.region.len() {
                continue;
            }
            let word = self.region.u32(at);
            let seen = word.load(Acquire);
            let Some(owner) = Owner::of(seen) else { continue };
            if self.is_ours(owner) && self.claims.is_false_claim(at, owner.process(), None, word, seen) && protocol::disown(word, seen) {
                crate::futex::wake(word, u32::MAX);
            }
        }
    }

    /// Whether a lock's word with this owner names this process.
    pub(crate) fn is_ours(&self, owner: Owner) -> bool {
        let generation = self.local.mine(owner.process()).load(Acquire);
        is_taken(generation) && Owner::new(owner.process(), generation >> 1) == owner && !self.is_strange(owner.process())
    }

    /// The process that sits there, where it is certain: as the kernel says, and none of another pid namespace.
    fn certain_pid(&self, process: ProcessSlot) -> Option<u32> {
        if is_taken(self.local.mine(process).load(Acquire)) {
            return (!self.is_strange(process)).then(std::process::id);
        }
        self.locks.as_ref().and_then(|fd| bytes::holder(fd, process.0.into()).ok().flatten()).filter(|pid| *pid != 0)
    }

    /// Which of those who sat there one after the other we are.
    #[inline]
    pub(crate) fn my_generation(&self, me: ProcessSlot) -> u32 {
        let generation = self.local.mine(me).load(Acquire);
        assert!(is_taken(generation), "this process does not sit in {me:?}");
        generation >> 1
    }

    /// Whether the one of that generation (as a lock keeps it, its lower 23 bits) still sits there and lives.
    pub(crate) fn is_attached(&self, process: ProcessSlot, generation: u32) -> bool {
        let now = self.word(process).load(Acquire);
        (now >> 1).wrapping_sub(generation) << 9 == 0 && self.is_living(process, now)
    }

    /// The generation of a dead process that was there before and after we asked: then it did not just rise.
    fn is_dead(&self, process: ProcessSlot) -> Option<u32> {
        let generation = self.word(process).load(Acquire);
        (is_taken(generation) && !self.is_living(process, generation) && self.word(process).load(Acquire) == generation)
            .then_some(generation)
    }

    fn is_living(&self, process: ProcessSlot, generation: u32) -> bool {
        if !is_taken(generation) || self.local.killed().load(Acquire) & (1 << process.0) != 0 {
            return false;
        }
        // The kernel does not report our own locks.
        if self.local.mine(process).load(Acquire) == generation {
            return true;
        }
        self.locks.as_ref().is_some_and(|fd| bytes::holder(fd, process.0.into()).map_or(true, |pid| pid.is_some()))
    }

    fn unlock(&self, process: ProcessSlot) {
        if let Some(fd) = &self.locks {
            bytes::unlock(fd, process.0.into());
        }
    }

    fn all() -> impl Iterator<Item = ProcessSlot> {
        (0..ProcessSlots::COUNT as u8).map(ProcessSlot)
    }

    fn word(&self, process: ProcessSlot) -> &AtomicU32 {
        self.region.u32(self.at + 64 + 8 * index(process))
    }

    fn pid_word(&self, process: ProcessSlot) -> &AtomicU32 {
        self.region.u32(self.at + 68 + 8 * index(process))
    }
}

fn is_taken(generation: u32) -> bool {
    generation & 1 == 1
}

fn index(process: ProcessSlot) -> usize {
    assert!((process.0 as usize) < ProcessSlots::COUNT, "{process:?} of {}", ProcessSlots::COUNT);
    process.0.into()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::PageSize;

    #[test]
    fn whoever_pretends_is_killed_and_cleared_as_processes_are() {
        let region = Arc::new(Region::private(4096, PageSize::Small).expect("memory"));
        let processes = ProcessSlots::in_process(region, 8);
        let all: Vec<ProcessSlot> = (0..ProcessSlots::COUNT).map(|_| processes.attach().expect("a process slot")).collect();
        assert!(matches!(processes.attach(), Err(ProcessSlotError::Full { dead: 0 })));
        processes.kill(all[5]);
        assert!(!processes.is_alive(all[5]) && !processes.is_attached(all[5], processes.my_generation(all[5])));
        assert_eq!(processes.dead(), [all[5]]);
        assert!(matches!(processes.attach(), Err(ProcessSlotError::Full { dead: 1 })));
        let generation = processes.my_generation(all[6]);
        let seen = processes.generation(all[6]);
        processes.detach(all[6]);
        assert!(seen.is_some() && processes.generation(all[6]).is_none() && processes.generation(ProcessSlot(64)).is_none());
        assert_eq!(processes.attach().expect("the free one"), all[6]);
        assert!(processes.is_attached(all[6], generation + 1) && !processes.is_attached(all[6], generation), "another generation");
        assert!(processes.generation(all[6]).is_some_and(|now| Some(now) != seen));
        processes.clear(all[5]);
        assert_eq!(processes.taken().count_ones(), 63);
        assert_eq!(processes.attach().expect("the cleared one"), all[5]);
        assert!(processes.is_alive(all[5]));
    }

    /// Whatever the words are: a table that somebody spoiled is full of the dead, and clearing makes it usable.
    #[test]
    fn a_spoiled_table_does_no_harm() {
        let region = Arc::new(Region::private(4096, PageSize::Small).expect("memory"));
        region.fill(0..4096, 0xff);
        let processes = ProcessSlots::in_process(region.clone(), 0);
        assert_eq!(processes.dead().len(), ProcessSlots::COUNT);
        assert!(processes.try_lead());
        let me = processes.take_over().expect("a dead one's");
        let lock = crate::OwnedLock::new(&region, 2048, &processes, me);
        assert!(lock.lock().was_abandoned());
        processes.dead().into_iter().for_each(|dead| processes.clear(dead));
        assert_eq!(processes.taken().count_ones(), 1);
    }
}
