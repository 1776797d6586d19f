//! Who takes part in a segment, and who of them lives.
//!
//! Each process that attaches takes one of 64 *seats*: a word in the segment, and a record lock on the byte of that number of the
//! *lock file* beside it. The kernel frees the lock when the process ends, however it ends, and not before its memory is gone; it
//! does not free it because the process is stopped, slow or debugged. So a seat whose word says *taken* and whose byte is
//! free is a dead process's. It stays taken until the leader has put right what it left and [`Seats::clear`]s it.
//!
//! ```text
//!  segment                              lock file
//!  bell, term, doubts | 64 x (turn, pid)        byte 0 .. 63: the seats, byte 64: the leader
//!  65 pulses
//! ```
//!
//! *Pulses* change ten times a second while a process runs: see `seats/pulse.rs`.
//!
//! *Doubts* are positions of locks whose owner, who lives, shall say whether it holds them (see `lock.rs`).
//!
//! The *turn* is odd while the seat is taken and counted up with each change, always under the byte's lock or by the leader.
//!
//! # What to know of record locks
//! They are dropped when *any* descriptor of the lock file is closed in the process, and one's own are never reported. So a process
//! opens a lock file once ([`Seats::open_lock_file`]), keeps it in one [`Seats`], and lets nobody else open it.
//! [`Seats::renew`] finds out if that happened all the same. After exec the seat is lost (the descriptor is closed); a fork sits
//! in no seat, though the `Seats` it inherits can be used to take one.

mod lead;
mod local;
mod pulse;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::file::Sharing;
use crate::lock::claims::Claims;
use crate::lock::protocol::{self, Owner};
use crate::region::{AttachError, Region};
use crate::{bytes, file};
use local::Local;
pub use pulse::Watch;

/// The number of a seat, below 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SeatNo(pub u8);

/// Why there was no seat.
#[derive(Debug)]
pub enum NoSeat {
    /// All are taken; so many of them by dead processes after which the leader has not cleaned up yet.
    Full {
        /// Seats of dead processes.
        dead: u32,
    },
    /// The kernel refused to lock.
    System(io::Error),
}

impl fmt::Display for NoSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSeat::Full { dead } => write!(f, "all {} seats are taken, {dead} of them by dead processes", Seats::COUNT),
            NoSeat::System(error) => write!(f, "locking a seat: {error}"),
        }
    }
}

impl std::error::Error for NoSeat {}

/// The seats of one segment, as one process sees them.
pub struct Seats {
    region: Arc<Region>,
    at: usize,
    local: Local,
    /// None: pretended.
    locks: Option<OwnedFd>,
    claims: Claims,
}

/// Words for doubts.
const DOUBTS: usize = 14;
const DOUBTS_AT: usize = 8;

impl fmt::Debug for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seats(taken: {:#x})", self.taken())
    }
}

impl Seats {
    /// How many there are.
    pub const COUNT: usize = 64;
    /// What they take of a region. All zero is a table in which nobody sits.
    pub const BYTES: usize = pulse::AT + pulse::BYTES;

    /// The seats whose table lies at byte `at`, a multiple of eight, and whose locks are in that file. One for each process and
    /// segment: see above.
    ///
    /// # Errors
    /// No memory.
    pub fn open(region: Arc<Region>, at: usize, locks: OwnedFd) -> io::Result<Seats> {
        Ok(Seats { local: Local::new()?, region, at, locks: Some(locks), claims: Claims::new() }.checked())
    }

    /// Seats for tests, all in this process and without a lock file: they live until [`Seats::kill`].
    pub fn pretend(region: Arc<Region>, at: usize) -> Seats {
        let local = Local::new().expect("memory for a test");
        Seats { local, region, at, locks: None, claims: Claims::new() }.checked()
    }

    /// Opens a lock file, and creates it if it is not there, with these rights. Once in a process.
    ///
    /// # Errors
    /// As for [`Region::open_file`]; the directory is not there or not writable.
    pub fn open_lock_file(path: &Path, sharing: Sharing) -> Result<OwnedFd, AttachError> {
        file::open_or_create_empty(path, sharing)
    }

    fn checked(self) -> Seats {
        assert!(self.at.is_multiple_of(8) && self.at + Seats::BYTES <= self.region.len(), "no place for seats: {}", self.at);
        self
    }

    /// Takes a free seat: attach.
    ///
    /// # Errors
    /// See [`NoSeat`].
    pub fn sit(&self) -> Result<SeatNo, NoSeat> {
        for seat in Seats::all() {
            if !is_taken(self.word(seat).load(Acquire)) && self.sit_in(seat, false)? {
                return Ok(seat);
            }
        }
        Err(NoSeat::Full { dead: self.dead().len() as u32 })
    }

    /// Where every seat is taken: takes the seat of a dead process over. Only the leader may, and it cleans up after this seat
    /// before it does anything in its name. Locks of the one before are not ours: the turn is another.
    ///
    /// # Errors
    /// See [`NoSeat`]: nobody is dead.
    pub fn inherit(&self) -> Result<SeatNo, NoSeat> {
        assert!(self.is_leading(), "only the leader inherits");
        for seat in self.dead() {
            if self.sit_in(seat, true)? {
                return Ok(seat);
            }
        }
        Err(NoSeat::Full { dead: 0 })
    }

    /// True: it is ours. The seat's turn only changes under its byte's lock, so it is looked at again when we have that.
    fn sit_in(&self, seat: SeatNo, taken: bool) -> Result<bool, NoSeat> {
        let bit = 1 << seat.0;
        if self.local.claimed().fetch_or(bit, AcqRel) & bit != 0 {
            return Ok(false);
        }
        let locked = self.locks.as_ref().map_or(Ok(true), |fd| bytes::try_lock(fd, seat.0.into()));
        let turn = self.word(seat).load(Acquire);
        if matches!(locked, Ok(true)) && is_taken(turn) == taken {
            let turn = turn.wrapping_add(if taken { 2 } else { 1 });
            self.local.killed().fetch_and(!bit, Relaxed);
            self.pid_word(seat).store(std::process::id(), Relaxed);
            self.word(seat).store(turn, Release);
            self.local.mine(seat).store(turn, Release);
            return Ok(true);
        }
        if matches!(locked, Ok(true)) {
            self.unlock(seat);
        }
        self.local.claimed().fetch_and(!bit, Release);
        locked.map(|_| false).map_err(NoSeat::System)
    }

    /// Gives our seat up: detach. Nothing may be left in its name.
    ///
    /// # Panics
    /// It is not ours.
    pub fn rise(&self, me: SeatNo) {
        let turn = self.local.mine(me).swap(0, AcqRel);
        assert!(is_taken(turn), "this process does not sit in {me:?}");
        // If it was cleared below us (see `renew`), it is no longer ours to free.
        let _ = self.word(me).compare_exchange(turn, turn.wrapping_add(1), AcqRel, Relaxed);
        self.unlock(me);
        self.local.claimed().fetch_and(!(1 << me.0), Release);
    }

    /// Whether our seat is still ours; false when its lock was dropped by somebody who closed the lock file in this process, and the
    /// leader cleared it. Then nothing may be done in its name any more. For now and then (a call of the kernel).
    pub fn renew(&self, me: SeatNo) -> bool {
        let turn = self.local.mine(me).load(Acquire);
        if !is_taken(turn) {
            return false;
        }
        let locked = self.locks.as_ref().is_none_or(|fd| bytes::try_lock(fd, me.0.into()).unwrap_or(false));
        let still = self.word(me).load(Acquire) == turn;
        if locked && !still {
            self.unlock(me);
        }
        locked && still
    }

    /// Whether a living process sits there. Yes when the kernel does not tell, and while a core is written.
    pub fn is_alive(&self, seat: SeatNo) -> bool {
        self.is_living(seat, self.word(seat).load(Acquire))
    }

    /// The pid of whoever sits there, dead or alive; as it sees itself, where it is of another pid namespace.
    pub fn pid(&self, seat: SeatNo) -> Option<u32> {
        if !is_taken(self.word(seat).load(Acquire)) {
            return None;
        }
        let told = self.pid_word(seat).load(Relaxed);
        let asked = self.locks.as_ref().and_then(|fd| bytes::holder(fd, seat.0.into()).ok().flatten());
        Some(asked.filter(|&pid| pid != 0).unwrap_or(told))
    }

    /// The seats of dead processes.
    pub fn dead(&self) -> Vec<SeatNo> {
        Seats::all().filter(|&seat| self.is_dead(seat).is_some()).collect()
    }

    /// Makes a dead process's seat free. For the leader, when nothing is left in its name. One that lives keeps its seat.
    pub fn clear(&self, dead: SeatNo) {
        if let Some(turn) = self.is_dead(dead)
            && self.word(dead).compare_exchange(turn, turn.wrapping_add(1), AcqRel, Relaxed).is_ok()
            && self.locks.is_none()
        {
            self.local.mine(dead).store(0, Release);
            self.local.claimed().fetch_and(!(1 << dead.0), Release);
        }
    }

    /// One bit for each seat that is taken, by the living or the dead.
    pub fn taken(&self) -> u64 {
        Seats::all().filter(|&seat| is_taken(self.word(seat).load(Acquire))).fold(0, |bits, seat| bits | 1 << seat.0)
    }

    /// Of pretended seats: whoever sits there is dead from now on.
    ///
    /// # Panics
    /// They are not pretended.
    pub fn kill(&self, seat: SeatNo) {
        assert!(self.locks.is_none(), "only those who pretend to live are killed here");
        self.local.killed().fetch_or(1 << seat.0, Release);
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    fn doubts(&self) -> impl Iterator<Item = &AtomicU32> {
        (0..DOUBTS).map(|n| self.region.u32(self.at + DOUBTS_AT + 4 * n))
    }

    /// Asks whoever is said to hold the lock at this position whether that is so.
    pub(crate) fn doubt(&self, at: usize) {
        let Ok(word) = u32::try_from(at / 4) else { return };
        if self.doubts().any(|doubt| doubt.load(Relaxed) == word) {
            return;
        }
        let free = self.doubts().find(|doubt| doubt.compare_exchange(0, word, AcqRel, Relaxed).is_ok());
        if free.is_none()
            && let Some(doubt) = self.doubts().nth(word as usize % DOUBTS)
        {
            doubt.store(word, Release);
        }
        self.nudge();
    }

    pub(crate) fn end_doubt(&self, at: usize) {
        let Ok(word) = u32::try_from(at / 4) else { return };
        self.doubts().for_each(|doubt| _ = doubt.compare_exchange(word, 0, AcqRel, Relaxed));
    }

    /// Shows that this process lives, and gives up locks that we are said to hold and that no thread of ours took. For each process that
    /// takes part, some ten times a second, whatever its other threads wait for: [`Seats::lead_unless`] does it while it waits.
    pub fn answer_doubts(&self) {
        self.beat();
        for at in self.doubts().map(|doubt| doubt.load(Acquire) as usize * 4).filter(|at| *at != 0) {
            if at + 4 > self.region.len() {
                continue;
            }
            let word = self.region.u32(at);
            let seen = word.load(Acquire);
            let Some(owner) = Owner::of(seen) else { continue };
            let turn = self.local.mine(owner.seat()).load(Acquire);
            let is_ours = is_taken(turn) && Owner::new(owner.seat(), turn >> 1) == owner;
            if is_ours && self.claims.is_lie(at, owner.seat(), None, word, seen) && protocol::disown(word, seen) {
                crate::futex::wake(word, u32::MAX);
            }
        }
    }

    /// Which of those who sat there one after the other we are.
    #[inline]
    pub(crate) fn my_turn(&self, me: SeatNo) -> u32 {
        let turn = self.local.mine(me).load(Acquire);
        assert!(is_taken(turn), "this process does not sit in {me:?}");
        turn >> 1
    }

    /// Whether the one of that turn (as a lock keeps it, its lower 23 bits) still sits there and lives.
    pub(crate) fn is_sitting(&self, seat: SeatNo, turn: u32) -> bool {
        let now = self.word(seat).load(Acquire);
        (now >> 1).wrapping_sub(turn) << 9 == 0 && self.is_living(seat, now)
    }

    /// The turn of a dead process that was there before and after we asked: then it did not just rise.
    fn is_dead(&self, seat: SeatNo) -> Option<u32> {
        let turn = self.word(seat).load(Acquire);
        (is_taken(turn) && !self.is_living(seat, turn) && self.word(seat).load(Acquire) == turn).then_some(turn)
    }

    fn is_living(&self, seat: SeatNo, turn: u32) -> bool {
        if !is_taken(turn) || self.local.killed().load(Acquire) & (1 << seat.0) != 0 {
            return false;
        }
        // The kernel does not report our own locks.
        if self.local.mine(seat).load(Acquire) == turn {
            return true;
        }
        self.locks.as_ref().is_some_and(|fd| bytes::holder(fd, seat.0.into()).map_or(true, |pid| pid.is_some()))
    }

    fn unlock(&self, seat: SeatNo) {
        if let Some(fd) = &self.locks {
            bytes::unlock(fd, seat.0.into());
        }
    }

    fn all() -> impl Iterator<Item = SeatNo> {
        (0..Seats::COUNT as u8).map(SeatNo)
    }

    fn word(&self, seat: SeatNo) -> &AtomicU32 {
        self.region.u32(self.at + 64 + 8 * index(seat))
    }

    fn pid_word(&self, seat: SeatNo) -> &AtomicU32 {
        self.region.u32(self.at + 68 + 8 * index(seat))
    }
}

fn is_taken(turn: u32) -> bool {
    turn & 1 == 1
}

fn index(seat: SeatNo) -> usize {
    assert!((seat.0 as usize) < Seats::COUNT, "{seat:?} of {}", Seats::COUNT);
    seat.0.into()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Pages;

    #[test]
    fn whoever_pretends_is_killed_and_cleared_as_processes_are() {
        let region = Arc::new(Region::private(4096, Pages::Small).expect("memory"));
        let seats = Seats::pretend(region, 8);
        let all: Vec<SeatNo> = (0..Seats::COUNT).map(|_| seats.sit().expect("a seat")).collect();
        assert!(matches!(seats.sit(), Err(NoSeat::Full { dead: 0 })));
        seats.kill(all[5]);
        assert!(!seats.is_alive(all[5]) && !seats.is_sitting(all[5], seats.my_turn(all[5])));
        assert_eq!(seats.dead(), [all[5]]);
        assert!(matches!(seats.sit(), Err(NoSeat::Full { dead: 1 })));
        let turn = seats.my_turn(all[6]);
        seats.rise(all[6]);
        assert_eq!(seats.sit().expect("the free one"), all[6]);
        assert!(seats.is_sitting(all[6], turn + 1) && !seats.is_sitting(all[6], turn), "another turn");
        seats.clear(all[5]);
        assert_eq!(seats.taken().count_ones(), 63);
        assert_eq!(seats.sit().expect("the cleared one"), all[5]);
        assert!(seats.is_alive(all[5]));
    }

    /// Whatever the words are: a table that somebody spoiled is full of the dead, and clearing makes it usable.
    #[test]
    fn a_spoiled_table_does_no_harm() {
        let region = Arc::new(Region::private(4096, Pages::Small).expect("memory"));
        region.fill(0..4096, 0xff);
        let seats = Seats::pretend(region.clone(), 0);
        assert_eq!(seats.dead().len(), Seats::COUNT);
        assert!(seats.try_lead());
        let me = seats.inherit().expect("a dead one's");
        let lock = crate::OwnedLock::new(&region, 2048, &seats, me);
        assert!(lock.lock().was_abandoned());
        seats.dead().into_iter().for_each(|dead| seats.clear(dead));
        assert_eq!(seats.taken().count_ones(), 1);
    }
}
