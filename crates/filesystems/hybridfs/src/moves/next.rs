//! Which file moves next, and what comes after a move.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::job::{MoveJob, MoveOutcome, MoveReason, TRIES_MAX};
use super::queue::{DemotionStall, QUEUE_MAX, RetryTime, yield_to_foreground};
use crate::clock::now_s;
use crate::nodes::KeptFor;
use crate::pair::TieredFs;
use crate::pinning::PinStep;
use crate::placement::VictimVerdict;
use crate::report::TierName;

/// Bytes that must become free on a full HDD before demotions try again.
const ROOM_STEP: u64 = 64 << 10;
/// How long a file is left alone that was in use, or changed.
const SHORT_REST: Duration = Duration::from_secs(1);

impl TieredFs {
    /// Asks for a move in the background. The file stays known until that is done with.
    pub(crate) fn ask_move(&self, ino: u64, to: TierName, reason: MoveReason) {
        if self.is_retiring(to) {
            return;
        }
        let mut state = self.mover.state.lock();
        // The next touch asks again; the next who outgrows the SSD may be nobody.
        let resting = to == TierName::Ssd && state.backoff.rests(ino, Instant::now());
        if resting || state.is_asked(ino) || state.running.get(&ino).is_some_and(|running| running.to == to) {
            return;
        }
        if state.queue.len() >= QUEUE_MAX {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        } else if self.nodes.keep(ino, KeptFor::Move, true) {
            state.enqueue(MoveJob::new(ino, to, reason));
            self.mover.wake.notify_one();
        }
    }

    /// Runs one worker: it does requested moves and keeps the SSD below its marks, until the file system closes.
    pub(crate) fn move_worker(&self) {
        yield_to_foreground();
        while let Some(job) = self.next_job() {
            self.do_job(job);
        }
    }

    pub(crate) fn do_job(&self, job: MoveJob) {
        if let Some(until) = self.mover.side_rests(job.to) {
            return self.put_off(job, until);
        }
        // Unpinned since the request: it stays on its side.
        let wanted = !job.pinned || self.is_pinned(job.ino);
        let outcome = if wanted { self.move_file(job.ino, job.to, job.reason, &mut |_, _| true) } else { MoveOutcome::Already };
        tracing::debug!(ino = job.ino, to = %job.to, ?outcome, reason = ?job.reason, "move");
        self.after(job, outcome);
    }

    /// Moves to that side pause. Requested moves are retried later; the policy chooses a victim anew.
    fn put_off(&self, job: MoveJob, until: Instant) {
        let mut state = self.mover.state.lock();
        if job.reason == MoveReason::HighMark {
            state.leaving.remove(&job.ino);
            return;
        }
        state.taken.remove(&job.ino);
        if state.later.len() < QUEUE_MAX {
            state.later.insert(job.ino, (until, job));
        } else if !state.is_asked(job.ino) {
            self.nodes.keep(job.ino, KeptFor::Move, false);
        }
    }

    fn next_job(&self) -> Option<MoveJob> {
        loop {
            if let Some(job) = self.next_now() {
                return Some(job);
            }
            let mut state = self.mover.state.lock();
            if self.mover.stopping() {
                return None;
            }
            if state.queue.is_empty() && !state.pins.waits() {
                match state.next_due() {
                    Some(due) => drop(self.mover.wake.wait_until(&mut state, due)),
                    None => self.mover.wake.wait(&mut state),
                }
            }
        }
    }

    /// Returns what to do now: first demotions, then requested moves, then pinned files.
    pub(crate) fn next_now(&self) -> Option<MoveJob> {
        while !self.mover.stopping() {
            if let Some(job) = self.next_demotion().or_else(|| self.mover.next_asked()) {
                return Some(job);
            }
            match self.next_pinned() {
                PinStep::Move(job) => return Some(job),
                PinStep::More => {}
                PinStep::Nothing => return None,
            }
        }
        None
    }

    fn next_demotion(&self) -> Option<MoveJob> {
        let _one = self.mover.choosing.lock();
        let ino = self.must_demote().then(|| self.next_victim()).flatten()?;
        self.mover.state.lock().leaving.insert(ino, self.placement.size(ino).unwrap_or(0));
        Some(MoveJob::new(ino, TierName::Hdd, MoveReason::HighMark))
    }

    /// Demotion begins above the high mark and ends below the low one.
    fn must_demote(&self) -> bool {
        let demoting = &self.mover.demoting;
        if self.is_retiring(TierName::Hdd)
            || self.config.read_only
            || self.tiers().iter().any(|tier| tier.read_only.load(Ordering::Relaxed))
        {
            return false;
        }
        if self.mover.side_rests(TierName::Hdd).is_some() {
            return false;
        }
        if self.space.above_high() || self.space.tight() {
            if !demoting.swap(true, Ordering::Relaxed) {
                self.look_at_pins_again();
            }
        } else if !self.space.above_low() {
            demoting.store(false, Ordering::Relaxed);
        }
        let leaving: u64 = self.mover.state.lock().leaving.values().sum();
        demoting.load(Ordering::Relaxed) && (self.space.above_low_without(leaving) || self.space.tight_without(leaving))
    }

    /// Only from time to time: with a million pinned files it is slow.
    fn look_at_pins_again(&self) {
        const EVERY_S: u32 = 60;
        let now = now_s();
        if now.saturating_sub(self.mover.unparked_s.load(Ordering::Relaxed)) >= EVERY_S {
            self.mover.unparked_s.store(now, Ordering::Relaxed);
            self.placement.unpark();
        }
    }

    pub(crate) fn next_victim(&self) -> Option<u64> {
        let busy: HashSet<u64> = {
            let mut state = self.mover.state.lock();
            let resting: Vec<u64> = state.backoff.resting(Instant::now()).collect();
            state.running.keys().chain(state.leaving.keys()).copied().chain(resting).collect()
        };
        let victim = self.placement.victim(&mut |ino| {
            if self.is_pinned(ino) {
                VictimVerdict::Pinned
            } else if busy.contains(&ino) || self.is_in_place(ino) {
                VictimVerdict::NotNow
            } else {
                VictimVerdict::Leaves
            }
        });
        if victim.is_none() {
            self.mover.demoting.store(false, Ordering::Relaxed);
        }
        victim
    }

    /// Whether a file's data is used without us.
    pub(crate) fn is_in_place(&self, ino: u64) -> bool {
        self.opens.lock().get(&ino).is_some_and(|open| open.held_in_place())
    }

    pub(crate) fn after(&self, job: MoveJob, outcome: MoveOutcome) {
        if job.reason == MoveReason::HighMark {
            return self.victim_ended(job.ino, outcome);
        }
        let again = self.comes_back(&job, outcome);
        if again.is_none() && job.pinned {
            self.pin_ended(&job, outcome);
        }
        let mut state = self.mover.state.lock();
        state.taken.remove(&job.ino);
        match again {
            Some(RetryTime::Closed) => drop(state.waiting.insert(job.ino, job)),
            Some(RetryTime::In(pause)) => {
                let retry = MoveJob { tries: job.tries + 1, ..job };
                state.later.insert(job.ino, (Instant::now() + pause, retry));
            }
            None if state.is_asked(job.ino) => {}
            None => drop(self.nodes.keep(job.ino, KeptFor::Move, false)),
        }
        drop(state);
        // It may have been closed between the look and the note.
        if matches!(again, Some(RetryTime::Closed)) && !self.is_in_place(job.ino) {
            self.mover.closed(job.ino);
        }
        let came_by_itself = job.to == TierName::Ssd && matches!(job.reason, MoveReason::SecondTouch | MoveReason::OnOpen);
        if outcome == MoveOutcome::Done
            && came_by_itself
            && let Ok(attr) = self.getattr(job.ino)
        {
            // Who made it larger may have closed it before it was here.
            self.resized(job.ino, TierName::Ssd, &attr.stat);
        }
    }

    /// A file in use waits until it is closed; one that would not be requested again is retried after a pause.
    fn comes_back(&self, job: &MoveJob, outcome: MoveOutcome) -> Option<RetryTime> {
        let full = {
            let state = self.mover.state.lock();
            state.waiting.len().max(state.later.len()) >= QUEUE_MAX
        };
        if full || self.mover.stopping() {
            return None;
        }
        match outcome {
            MoveOutcome::Busy if self.is_in_place(job.ino) => Some(RetryTime::Closed),
            // Another move of it runs, or did: maybe to the other side.
            MoveOutcome::Busy => Some(RetryTime::In(SHORT_REST)),
            MoveOutcome::Dropped if job.comes_back() && self.still_moves(job) => {
                Some(RetryTime::In(SHORT_REST * (1 << job.tries.min(TRIES_MAX))))
            }
            _ => None,
        }
    }

    fn still_moves(&self, job: &MoveJob) -> bool {
        self.nodes.with(job.ino, |node| !node.nameless && node.tier() != job.to).unwrap_or(false)
    }

    fn victim_ended(&self, ino: u64, outcome: MoveOutcome) {
        if matches!(outcome, MoveOutcome::Stays(_)) {
            // More of these than a policy offers at once would block the demotion of all other files.
            self.placement.stays(ino);
        } else if outcome == MoveOutcome::Dropped && !self.nodes.with(ino, |node| !node.nameless).unwrap_or(false) {
            // It would come up again and again.
            self.placement.left(ino);
        }
        if outcome == MoveOutcome::Done {
            let _ = self.space.refresh(self.tiers(), &self.config);
        }
        // Only now that its room is counted as free.
        self.mover.state.lock().leaving.remove(&ino);
    }

    /// Demotions that found the HDD full go on as soon as it has more room; called by the watcher.
    pub(crate) fn look_at_hdd_room(&self) {
        let free = self.space.of(TierName::Hdd).free;
        let mut stuck = self.mover.stuck.lock();
        let Some(then) = stuck.hdd_full_at else { return };
        let more_room = free > then + ROOM_STEP;
        if !more_room && (self.space.above_high() || self.space.tight()) {
            return;
        }
        *stuck = DemotionStall::default();
        drop(stuck);
        if more_room {
            self.mover.state.lock().backoff.side_is_better(TierName::Hdd);
            self.mover.wake();
        }
    }

    /// Returns a sentence for `status` while demotions find no room on the HDD.
    pub(crate) fn hdd_is_full(&self) -> Option<String> {
        self.mover.stuck.lock().hdd_full_at?;
        let hdd = self.tier(TierName::Hdd).path.display();
        Some(format!("{hdd} is full: files that should be demoted stay on the SSD until there is free space"))
    }

    /// Records that a file found no room on the HDD.
    pub(super) fn note_hdd_full(&self) {
        let _ = self.space.refresh(self.tiers(), &self.config);
        self.mover.stuck.lock().hdd_full_at = Some(self.space.of(TierName::Hdd).free);
    }
}
