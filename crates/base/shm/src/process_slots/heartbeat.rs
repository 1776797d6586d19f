//! Which processes make progress: a living one may be stopped (SIGSTOP, a debugger, a frozen container), or not be one of hotshelf's.
//!
//! Each process writes another value into its process slot's *heartbeat* some ten times a second, from a thread that waits for nothing
//! else; the one that leads into the leader's, too. Whoever waits for it watches that word. What a process does takes as long as its disk
//! does and is waited for, as long as there is a heartbeat; without one for 0.4 s it is not, unless the kernel says that the process gets
//! no CPU.
//!
//! ```text
//! heartbeat: count modulo 2^16 (bits 31..16) | what belongs to that count and process slot (bits 15..0)
//! ```
//!
//! The lower half tells a heartbeat from whatever else is written there. A process that means to can show a heartbeat for any other, as it
//! can hold a lock and show its own: then the longer limits of the waiters end that.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use super::{ProcessSlot, ProcessSlots, index, is_taken};
use crate::starvation::StarvationWatch;

/// Where the heartbeats are in the table.
pub(super) const AT: usize = 64 + 8 * ProcessSlots::COUNT;
/// What they take: one for each process slot, and the leader's; a multiple of eight.
pub(super) const BYTES: usize = (4 * (ProcessSlots::COUNT + 1)).next_multiple_of(8);
/// The number of the leader's.
const LEADER: usize = ProcessSlots::COUNT;

/// Without a heartbeat for so long a process does not go on.
const SILENCE: Duration = Duration::from_millis(400);
/// And after so many looks: on a machine that stood still it has not had its time.
const CHECKS_MIN: u32 = 20;

/// From so long a wait on it is looked at whether the process gets CPU, which takes calls of the kernel.
const STARVATION_AFTER: Duration = Duration::from_millis(30);

/// Set above the heartbeat of a process that was found silent.
const FOUND: u64 = 1 << 32;

/// A heartbeat with this count.
fn heartbeat(count: u32, of: usize) -> u32 {
    let count = count & 0xffff;
    let seal = (count << 8 ^ of as u32 ^ 0x5a17_c0de).wrapping_mul(0x9e37_79b1) >> 16;
    count << 16 | seal
}

/// Somebody's heartbeat, watched from when this was made.
#[derive(Debug)]
pub struct LivenessWatch<'a> {
    processes: &'a ProcessSlots,
    of: usize,
    seen: u32,
    since: Instant,
    checks: u32,
    begun: Instant,
    /// Made when the wait is no short one.
    starvation: Option<StarvationWatch>,
}

impl LivenessWatch<'_> {
    /// How long a process that gets no CPU is waited for where its heartbeat does not count: nothing that takes long is done there.
    pub const STARVED_MAX: Duration = Duration::from_secs(10);

    /// Checks the heartbeat. Returns true after 0.4 s and many checks without one, in which the process did not wait for a CPU (a process
    /// of another user counts as not waiting), or if another thread of this process has found that. The caller calls it repeatedly.
    pub fn is_silent(&mut self) -> bool {
        let silent = self.processes.local.silent(self.of);
        let now = self.processes.heartbeat(self.of).load(Relaxed);
        if now != self.seen && now == heartbeat(now >> 16, self.of) {
            (self.seen, self.since, self.checks) = (now, Instant::now(), 0);
            silent.store(0, Relaxed);
        }
        if self.starvation().is_some_and(StarvationWatch::is_starved) {
            (self.since, self.checks) = (Instant::now(), 0);
        }
        self.checks = self.checks.saturating_add(1);
        let is_over = self.checks >= CHECKS_MIN && self.since.elapsed() >= SILENCE;
        if (is_over || silent.load(Relaxed) == FOUND | u64::from(self.seen)) && !self.processes.is_own(self.of) {
            silent.store(FOUND | u64::from(self.seen), Relaxed);
            return true;
        }
        false
    }

    /// Returns whether a thread of the process is ready to run and gets no CPU, as the kernel says of a process that runs as our own user
    /// or root; for at most [`LivenessWatch::STARVED_MAX`] since this was made. False for a process of another user, who could keep it so
    /// on purpose. To be called again and again.
    pub fn is_starved(&mut self) -> bool {
        self.begun.elapsed() < LivenessWatch::STARVED_MAX && self.starvation().is_some_and(StarvationWatch::is_starved)
    }

    fn starvation(&mut self) -> Option<&mut StarvationWatch> {
        if self.starvation.is_none() && self.begun.elapsed() >= STARVATION_AFTER {
            let pid = match self.of {
                LEADER => self.processes.leader().filter(|pid| *pid != 0),
                process => self.processes.certain_pid(ProcessSlot(process as u8)),
            };
            self.starvation = Some(StarvationWatch::new(pid));
        }
        self.starvation.as_mut()
    }
}

impl ProcessSlots {
    /// Shows that this process goes on.
    pub(super) fn send_heartbeat(&self) {
        let count = self.local.beats().fetch_add(1, Relaxed).wrapping_add(1);
        let mut claimed = self.local.claimed().load(Relaxed);
        while claimed != 0 {
            let process = ProcessSlot(claimed.trailing_zeros() as u8);
            claimed &= claimed - 1;
            if is_taken(self.local.mine(process).load(Relaxed)) {
                self.heartbeat(index(process)).store(heartbeat(count, index(process)), Release);
            }
        }
        if self.is_leading() {
            self.heartbeat(LEADER).store(heartbeat(count, LEADER), Release);
        }
    }

    /// Watches whether the process that sits there goes on.
    pub fn watch(&self, process: ProcessSlot) -> LivenessWatch<'_> {
        self.watch_of(index(process))
    }

    /// Likewise the one that leads. What was known of the one before says nothing of it.
    pub fn watch_leader(&self) -> LivenessWatch<'_> {
        let pid = self.leader().unwrap_or(0);
        if self.local.watched_leader().swap(pid, Relaxed) != pid {
            self.local.silent(LEADER).store(0, Relaxed);
        }
        self.watch_of(LEADER)
    }

    fn watch_of(&self, of: usize) -> LivenessWatch<'_> {
        let (known, now) = (self.local.silent(of).load(Relaxed), self.heartbeat(of).load(Relaxed));
        // What is no heartbeat is no sign of life.
        let seen = if known != 0 && now != heartbeat(now >> 16, of) { known as u32 } else { now };
        let begun = Instant::now();
        LivenessWatch { processes: self, of, seen, since: begun, checks: 0, begun, starvation: None }
    }

    /// Whether that is our own heartbeat, or one of many that pretend, which none of them shows.
    fn is_own(&self, of: usize) -> bool {
        let is_mine = || match of {
            LEADER => self.is_leading(),
            process => is_taken(self.local.mine(ProcessSlot(process as u8)).load(Relaxed)),
        };
        self.locks.is_none() || is_mine()
    }

    fn heartbeat(&self, of: usize) -> &AtomicU32 {
        self.region.u32(self.at + AT + 4 * of)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::{FileAccess, PageSize, Region};
    use std::sync::Arc;

    /// Looks until it is silent, or for so long.
    fn is_silent_within(watch: &mut LivenessWatch<'_>, at_most: Duration) -> bool {
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
        let locks = ProcessSlots::open_lock_file(&dir.path().join("lock"), FileAccess { permissions: 0o600, group: None }).expect("a file");
        let region = Arc::new(Region::private(4096, PageSize::Small).expect("memory"));
        let processes = ProcessSlots::open(region, 8, locks).expect("process slots");
        let me = processes.attach().expect("a process slot");
        assert!(!is_silent_within(&mut processes.watch(me), SILENCE * 2), "we go on ourselves");
        // Whatever else is written there.
        let other = index(me) + 1;
        let mut watch = processes.watch_of(other);
        let begun = Instant::now();
        let silent = std::iter::from_fn(|| {
            processes.heartbeat(other).store(fastrand::u32(..), Relaxed);
            std::thread::sleep(Duration::from_millis(2));
            (begun.elapsed() < SILENCE * 4).then(|| watch.is_silent())
        });
        assert!(silent.into_iter().any(|silent| silent));
        // One that goes on, and is written over between.
        let mut watch = processes.watch_of(other);
        for count in 0..12 {
            processes.heartbeat(other).store(heartbeat(count, other), Relaxed);
            assert!(!is_silent_within(&mut watch, SILENCE / 5));
            processes.heartbeat(other).store(fastrand::u32(..), Relaxed);
        }
        assert!(is_silent_within(&mut watch, SILENCE * 3), "it was stopped");
        // Known from now on, until it goes on.
        assert!(processes.watch_of(other).is_silent());
        processes.heartbeat(other).store(heartbeat(77, other), Relaxed);
        assert!(!is_silent_within(&mut processes.watch_of(other), SILENCE / 5));
    }
}
