//! Which locks threads of this process try to take or hold: what a lock's word says of us is believed only if it is so here.
//!
//! Every process that may write to the segment can write into a lock's word that we hold it, and then everybody would wait for us. So each
//! thread notes a lock in memory of this process before it tries to take it, and until it has given it back (not while it sleeps). A
//! word that names us while no thread has noted the lock is a lie, and the lock is taken over as that of a dead process.
//!
//! A thread that waits marks its note, so a note without the mark is a holder's: whoever waits for a lock of this process can tell a slow
//! holder from a lie (`LockClaims::is_held`).
//!
//! Whether a thread has noted it is looked at twice, with the word in between; each note counts its place up. So if both looks find the
//! same, nobody noted the lock and took it in between, and who tries now finds the word not free.

use std::cell::Cell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::process_slots::slot::ProcessSlot;

/// Locks that threads of a process hold or try to take at once; of more, nothing is taken for a lie meanwhile.
const PLACES: usize = 512;
/// A place: generation (23 bits), whether its thread waits, whether it is noted, and what (39 bits: the lock's position in words, and the
/// process slot).
const NOTED: u64 = 1 << 39;
const WAITS: u64 = 1 << 40;
const ONE_GENERATION: u64 = 1 << 41;
const WHAT: u64 = NOTED - 1;

thread_local! {
    /// Where this thread looks first for a place.
    static FIRST: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The locks that threads of this process hold or try to take.
pub(crate) struct LockClaims {
    places: Box<[AtomicU64]>,
    /// Threads that found no place.
    without: AtomicU32,
}

/// A note, until it is dropped.
#[derive(Debug)]
pub(crate) struct LockClaim<'a> {
    claims: &'a LockClaims,
    what: u64,
    /// And its value. None: there was no place.
    place: Option<(usize, u64)>,
}

fn what(at: usize, process: ProcessSlot) -> u64 {
    ((at as u64 / 4) << 6 | u64::from(process.0 & 63)) & WHAT
}

fn first() -> usize {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if FIRST.get() == usize::MAX {
        // Apart, so that threads do not write to one cache line.
        FIRST.set(NEXT.fetch_add(1, Relaxed) as usize * 8 % PLACES);
    }
    FIRST.get()
}

impl LockClaims {
    pub(crate) fn new() -> LockClaims {
        LockClaims { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), without: AtomicU32::new(0) }
    }

    /// Before a lock is tried.
    #[inline]
    pub(crate) fn note(&self, at: usize, process: ProcessSlot) -> LockClaim<'_> {
        let what = what(at, process);
        LockClaim { claims: self, what, place: self.enter(what, 0) }
    }

    #[inline]
    fn enter(&self, what: u64, waits: u64) -> Option<(usize, u64)> {
        let first = first();
        for n in 0..PLACES {
            let at = (first + n) % PLACES;
            let seen = self.places[at].load(Relaxed);
            let noted = (seen & !(NOTED | WAITS | WHAT)).wrapping_add(ONE_GENERATION) | NOTED | waits | what;
            if seen & NOTED == 0 && self.places[at].compare_exchange(seen, noted, SeqCst, Relaxed).is_ok() {
                return Some((at, noted));
            }
        }
        self.without.fetch_add(1, SeqCst);
        None
    }

    #[inline]
    fn leave(&self, place: Option<(usize, u64)>) {
        match place {
            // Nobody else changes a place that is noted.
            Some((at, noted)) => self.places[at].store(noted & !(NOTED | WAITS | WHAT), Release),
            None => _ = self.without.fetch_sub(1, AcqRel),
        }
    }

    /// Whether a thread of this process holds that lock, or is about to try it for the first time. True also when some are not noted.
    pub(crate) fn is_held(&self, at: usize, process: ProcessSlot) -> bool {
        let holds = NOTED | what(at, process);
        self.places.iter().any(|place| place.load(SeqCst) & (NOTED | WAITS | WHAT) == holds) || self.without.load(SeqCst) != 0
    }

    /// Whether the word at this position names the process slot, with this value, and no thread of this process holds the lock; `but`: the
    /// asker's own.
    pub(crate) fn is_false_claim(&self, at: usize, process: ProcessSlot, but: Option<&LockClaim<'_>>, word: &AtomicU32, seen: u32) -> bool {
        let (what, own) = (what(at, process), but.and_then(|claim| claim.place).map(|(at, _)| at));
        let look = || -> Option<Vec<u64>> {
            let all: Vec<u64> = self.places.iter().map(|place| place.load(SeqCst)).collect();
            let holds = all.iter().enumerate().any(|(n, place)| place & (NOTED | WHAT) == NOTED | what && Some(n) != own);
            (!holds && self.without.load(SeqCst) == 0).then_some(all)
        };
        let Some(first) = look() else { return false };
        word.load(SeqCst) == seen && look().is_some_and(|second| first == second)
    }
}

impl LockClaim<'_> {
    /// The thread waits: from now on the note is no holder's.
    pub(crate) fn begin_wait(&mut self) {
        self.pause();
        self.resume();
    }

    /// The thread has the lock.
    pub(crate) fn end_wait(&mut self) {
        if let Some((at, noted)) = &mut self.place {
            *noted &= !WAITS;
            self.claims.places[*at].store(*noted, Release);
        }
    }

    /// The thread goes to sleep, and holds nothing.
    pub(crate) fn pause(&mut self) {
        self.claims.leave(self.place);
        self.place = None;
    }

    /// It is awake and tries again.
    pub(crate) fn resume(&mut self) {
        self.place = self.claims.enter(self.what, WAITS);
    }
}

impl Drop for LockClaim<'_> {
    fn drop(&mut self) {
        self.claims.leave(self.place);
    }
}

impl std::fmt::Debug for LockClaims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LockClaims({} noted)", self.places.iter().filter(|place| place.load(Acquire) & NOTED != 0).count())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_word_that_names_us_is_a_lie_unless_a_thread_has_noted_it() {
        let claims = LockClaims::new();
        let word = AtomicU32::new(7);
        let is_false_claim = |but: Option<&LockClaim<'_>>| claims.is_false_claim(4096, ProcessSlot(3), but, &word, 7);
        assert!(is_false_claim(None));
        let mine = claims.note(4096, ProcessSlot(3));
        assert!(!is_false_claim(None) && is_false_claim(Some(&mine)), "only the asker has");
        let others = [claims.note(4100, ProcessSlot(3)), claims.note(4096, ProcessSlot(2))];
        assert!(is_false_claim(Some(&mine)), "another lock, another process slot");
        let mut holder = claims.note(4096, ProcessSlot(3));
        assert!(!is_false_claim(Some(&mine)));
        holder.pause();
        assert!(is_false_claim(Some(&mine)), "it sleeps");
        holder.resume();
        assert!(!is_false_claim(Some(&mine)), "it tries again");
        drop((others, mine));
        assert!(!is_false_claim(None) && !claims.is_false_claim(4096, ProcessSlot(3), None, &word, 8));
        drop(holder);
        assert!(is_false_claim(None));
        let many: Vec<_> = (0..PLACES + 1).map(|n| claims.note(4 * n, ProcessSlot(0))).collect();
        assert!(!is_false_claim(None), "not everything is noted");
        assert!(claims.is_held(4096, ProcessSlot(3)), "for all that is known");
        drop(many);
        assert!(is_false_claim(None) && !claims.is_held(4096, ProcessSlot(3)));
    }

    #[test]
    fn who_waits_does_not_hold() {
        let claims = LockClaims::new();
        let is_held = || claims.is_held(64, ProcessSlot(1));
        let holder = claims.note(64, ProcessSlot(1));
        assert!(is_held() && !claims.is_held(64, ProcessSlot(2)) && !claims.is_held(68, ProcessSlot(1)));
        let mut waiter = claims.note(64, ProcessSlot(1));
        waiter.begin_wait();
        drop(holder);
        assert!(!is_held());
        waiter.pause();
        waiter.resume();
        assert!(!is_held());
        waiter.end_wait();
        assert!(is_held());
        drop(waiter);
        assert!(!is_held());
    }
}
