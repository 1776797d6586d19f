//! Which process goes on: a living one may be stopped (SIGSTOP, a debugger, a frozen container), or be no process of ours at all.
//!
//! Each process writes another value into its seat's *pulse* some ten times a second, from a thread that waits for nothing else; the one
//! that leads into the leader's, too. Whoever waits for it watches that word. What a process does takes as long as its disk does and is
//! waited for, as long as there is a pulse; without one for 0.4 s it is not.
//!
//! ```text
//! pulse: count modulo 2^16 (bits 31..16) | what belongs to that count and seat (bits 15..0)
//! ```
//!
//! The lower half tells a pulse from whatever else is written there. A process that means to can show a pulse for any other, as it can
//! hold a lock and show its own: then the longer limits of those who wait end that.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use super::{SeatNo, Seats, index, is_taken};

/// Where the pulses are in the table.
pub(super) const AT: usize = 64 + 8 * Seats::COUNT;
/// What they take: one for each seat, and the leader's; a multiple of eight.
pub(super) const BYTES: usize = (4 * (Seats::COUNT + 1)).next_multiple_of(8);
/// The number of the leader's.
const LEADER: usize = Seats::COUNT;

/// Without a pulse for so long a process does not go on.
const SILENCE: Duration = Duration::from_millis(400);
/// And after so many looks: on a machine that stood still it has not had its time.
const LOOKS: u32 = 20;

/// Above the pulse of somebody who was found silent.
const FOUND: u64 = 1 << 32;

/// A pulse with this count.
fn pulse(count: u32, of: usize) -> u32 {
    let count = count & 0xffff;
    let seal = (count << 8 ^ of as u32 ^ 0x5a17_c0de).wrapping_mul(0x9e37_79b1) >> 16;
    count << 16 | seal
}

/// Somebody's pulse, watched from when this was made.
#[derive(Debug)]
pub struct Watch<'a> {
    seats: &'a Seats,
    of: usize,
    seen: u32,
    since: Instant,
    looks: u32,
}

impl Watch<'_> {
    /// Looks at the pulse. True: there was none for 0.4 s, and many looks; or since it was silent for somebody else of this process.
    /// To be asked again and again.
    pub fn is_silent(&mut self) -> bool {
        let silent = self.seats.local.silent(self.of);
        let now = self.seats.pulse(self.of).load(Relaxed);
        if now != self.seen && now == pulse(now >> 16, self.of) {
            (self.seen, self.since, self.looks) = (now, Instant::now(), 0);
            silent.store(0, Relaxed);
        }
        self.looks = self.looks.saturating_add(1);
        let is_over = self.looks >= LOOKS && self.since.elapsed() >= SILENCE;
        if (is_over || silent.load(Relaxed) == FOUND | u64::from(self.seen)) && !self.seats.is_own(self.of) {
            silent.store(FOUND | u64::from(self.seen), Relaxed);
            return true;
        }
        false
    }
}

impl Seats {
    /// Shows that this process goes on.
    pub(super) fn beat(&self) {
        let count = self.local.beats().fetch_add(1, Relaxed).wrapping_add(1);
        let mut claimed = self.local.claimed().load(Relaxed);
        while claimed != 0 {
            let seat = SeatNo(claimed.trailing_zeros() as u8);
            claimed &= claimed - 1;
            if is_taken(self.local.mine(seat).load(Relaxed)) {
                self.pulse(index(seat)).store(pulse(count, index(seat)), Release);
            }
        }
        if self.is_leading() {
            self.pulse(LEADER).store(pulse(count, LEADER), Release);
        }
    }

    /// Watches whether the process that sits there goes on.
    pub fn watch(&self, seat: SeatNo) -> Watch<'_> {
        self.watch_of(index(seat))
    }

    /// Likewise the one that leads. What was known of the one before says nothing of it.
    pub fn watch_leader(&self) -> Watch<'_> {
        let pid = self.leader().unwrap_or(0);
        if self.local.watched_leader().swap(pid, Relaxed) != pid {
            self.local.silent(LEADER).store(0, Relaxed);
        }
        self.watch_of(LEADER)
    }

    fn watch_of(&self, of: usize) -> Watch<'_> {
        let (known, now) = (self.local.silent(of).load(Relaxed), self.pulse(of).load(Relaxed));
        // What is no pulse is no sign of life.
        let seen = if known != 0 && now != pulse(now >> 16, of) { known as u32 } else { now };
        Watch { seats: self, of, seen, since: Instant::now(), looks: 0 }
    }

    /// Whether that is our own pulse, or one of many that pretend, which none of them shows.
    fn is_own(&self, of: usize) -> bool {
        let is_mine = || match of {
            LEADER => self.is_leading(),
            seat => is_taken(self.local.mine(SeatNo(seat as u8)).load(Relaxed)),
        };
        self.locks.is_none() || is_mine()
    }

    fn pulse(&self, of: usize) -> &AtomicU32 {
        self.region.u32(self.at + AT + 4 * of)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::{Pages, Region, Sharing};
    use std::sync::Arc;

    /// Looks until it is silent, or for so long.
    fn is_silent_within(watch: &mut Watch<'_>, at_most: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < at_most {
            if watch.is_silent() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    #[cfg_attr(miri, ignore = "locks of files")]
    fn only_a_true_pulse_is_a_sign_of_life() {
        let dir = tempfile::tempdir().expect("a directory");
        let locks = Seats::open_lock_file(&dir.path().join("lock"), Sharing { permissions: 0o600, group: None }).expect("a file");
        let region = Arc::new(Region::private(4096, Pages::Small).expect("memory"));
        let seats = Seats::open(region, 8, locks).expect("seats");
        let me = seats.sit().expect("a seat");
        assert!(!is_silent_within(&mut seats.watch(me), SILENCE * 2), "we go on ourselves");
        // Whatever else is written there.
        let other = index(me) + 1;
        let mut watch = seats.watch_of(other);
        let begun = Instant::now();
        let silent = std::iter::from_fn(|| {
            seats.pulse(other).store(fastrand::u32(..), Relaxed);
            std::thread::sleep(Duration::from_millis(2));
            (begun.elapsed() < SILENCE * 4).then(|| watch.is_silent())
        });
        assert!(silent.into_iter().any(|silent| silent));
        // One that goes on, and is written over between.
        let mut watch = seats.watch_of(other);
        for count in 0..12 {
            seats.pulse(other).store(pulse(count, other), Relaxed);
            assert!(!is_silent_within(&mut watch, SILENCE / 5));
            seats.pulse(other).store(fastrand::u32(..), Relaxed);
        }
        assert!(is_silent_within(&mut watch, SILENCE * 3), "it was stopped");
        // Known from now on, until it goes on.
        assert!(seats.watch_of(other).is_silent());
        seats.pulse(other).store(pulse(77, other), Relaxed);
        assert!(!is_silent_within(&mut seats.watch_of(other), SILENCE / 5));
    }
}
