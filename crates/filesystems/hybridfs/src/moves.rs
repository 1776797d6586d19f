//! The mover: takes files from one side to the other in the background.
//!
//! A move's life (each arrow is a function here):
//!
//! ```text
//!   asked --take--> running --copy--> copied --place--> duplicate --commit--> done
//!     ^               |                  |                  |
//!     |               +------------------+------------------+--> dropped (changed, used, removed)
//!     +---closed--- waiting (open without us)                    its copy is removed
//!     +---in time-- later (dropped, and nobody would ask again)
//! ```
//!
//! From `asked` to the end the file stays known (`KeptFor::Move`), also when the kernel forgets it. What is pinned is not queued but
//! walked through when nothing else is to be done: see `pinning`.
//!
//! What must stay true at every point, because a crash may come there: while the SSD holds the name, the
//! SSD's file is the valid one. So a copy on the HDD is harmless until the SSD's name goes, and a copy on
//! the SSD becomes the file the moment it gets the name; before that name is used it is durable. The
//! journal only tells recovery which duplicates on the HDD are ours to delete.

mod backoff;
mod demotion_history;
pub(crate) mod job;
mod next;
mod promotion_feedback;
pub(crate) mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::abilities::NamingMethod;
use crate::clock::now_s;
use crate::copy_job::CopyJob;
use crate::errno::Result;
use crate::nodes::NodeKind;
use crate::pair::TieredFs;
use crate::report::{LastMove, TierName};
use job::{Duplicate, MoveOutcome, MoveReason};
use queue::MoveProgress;

impl TieredFs {
    /// Moves one file and waits for it. Calls `progress` with the bytes copied and the total.
    pub fn move_file(&self, ino: u64, to: TierName, reason: MoveReason, progress: &mut dyn FnMut(u64, u64) -> bool) -> MoveOutcome {
        let done = Arc::new(AtomicU64::new(0));
        {
            let mut state = self.mover.state.lock();
            if state.running.contains_key(&ino) {
                return MoveOutcome::Busy;
            }
            let path = self.nodes.path(ino).unwrap_or_default();
            state.running.insert(ino, MoveProgress { path, to, total: 0, done: done.clone() });
        }
        let outcome = match self.try_move(ino, to, reason, &done, progress) {
            Ok(outcome) => outcome,
            Err(Errno::STALE | Errno::NOENT | Errno::CANCELED) => MoveOutcome::Dropped,
            Err(error) => MoveOutcome::Failed(error),
        };
        if outcome == MoveOutcome::Done {
            self.note_move(ino, to, reason);
        }
        self.mover.state.lock().running.remove(&ino);
        self.record_outcome(ino, to, reason, outcome);
        self.mover.ended.notify_all();
        outcome
    }

    fn record_outcome(&self, ino: u64, to: TierName, reason: MoveReason, outcome: MoveOutcome) {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        match outcome {
            MoveOutcome::Done if to == TierName::Ssd => drop(count(&self.counters.promotions)),
            MoveOutcome::Done => drop(count(&self.counters.demotions)),
            MoveOutcome::Busy | MoveOutcome::Dropped => drop(count(&self.counters.dropped)),
            MoveOutcome::Failed(error) => {
                count(&self.counters.failed);
                if to == TierName::Hdd && matches!(error, Errno::NOSPC | Errno::DQUOT) && reason != MoveReason::Asked {
                    self.note_hdd_full();
                }
            }
            MoveOutcome::Already | MoveOutcome::Stays(_) => {}
        }
        if outcome != MoveOutcome::Busy {
            let path = self.nodes.path(ino).unwrap_or_default();
            let path = String::from_utf8_lossy(&path).into_owned();
            let say = self.mover.state.lock().backoff.note(ino, to, &path, outcome, Instant::now());
            match outcome {
                MoveOutcome::Failed(error) if say => {
                    tracing::warn!(path, %to, %error, "a move failed; the file stays where it is. Others for this cause are not logged");
                }
                MoveOutcome::Stays(why) if say => {
                    tracing::info!(path, %to, why, "a file stays where it is. Others for this cause are not logged")
                }
                _ => {}
            }
        }
        if outcome == MoveOutcome::Done {
            self.follow_up(ino, to, reason);
            self.tell_changed(ino);
        }
    }

    /// Whether promotions are worth it is measured by what becomes of the files.
    fn follow_up(&self, ino: u64, to: TierName, reason: MoveReason) {
        if to == TierName::Hdd {
            self.mover.promotion_feedback.lock().left(ino, self.space.high(), now_s());
        } else if matches!(reason, MoveReason::SecondTouch | MoveReason::OnOpen) {
            let bytes = self.placement.size(ino).unwrap_or(0);
            self.mover.promotion_feedback.lock().promoted(ino, bytes, reason == MoveReason::OnOpen);
        }
    }

    /// Whether a file on the HDD that the policy would bring up is worth it.
    pub(crate) fn may_come_up(&self, ino: u64) -> bool {
        let held_back = self.mover.opens_wanted() > 0;
        let bytes = if held_back { self.getattr(ino).map_or(0, |attr| attr.stat.blocks * 512) } else { 0 };
        self.mover.promotion_feedback.lock().may_come_up(ino, bytes, self.space.high(), now_s())
    }

    fn note_move(&self, ino: u64, to: TierName, reason: MoveReason) {
        let last = (now_s(), reason as u8 | if to == TierName::Hdd { 0x80 } else { 0 });
        self.nodes.change(ino, |node| node.last_move = last);
        match to {
            TierName::Hdd => self.mover.demotion_history.lock().note(ino, last),
            TierName::Ssd => self.mover.demotion_history.lock().forget(ino),
        }
    }

    fn try_move(
        &self,
        ino: u64,
        to: TierName,
        reason: MoveReason,
        done: &Arc<AtomicU64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<MoveOutcome> {
        self.writable()?;
        // Asked after it was noted as running: closing waits for what runs.
        if self.mover.stopping() {
            return Ok(MoveOutcome::Dropped);
        }
        let place = self.nodes.place(ino).ok_or(Errno::STALE)?;
        if place.kind != NodeKind::Regular {
            return Ok(MoveOutcome::Stays("only regular files move"));
        }
        if place.nameless {
            return Ok(MoveOutcome::Dropped);
        }
        if place.tier() == to {
            return Ok(MoveOutcome::Already);
        }
        if self.is_retiring(to) {
            return Ok(MoveOutcome::Stays("the other side is being retired"));
        }
        // A move takes the name from one side and gives it to the other: half of it would leave two files.
        if self.tier(TierName::Ssd).is_read_only() {
            return Ok(MoveOutcome::Stays("the SSD's file system is read-only"));
        }
        if self.tier(TierName::Hdd).is_read_only() {
            return Ok(MoveOutcome::Stays("the HDD's file system is read-only"));
        }
        if to == TierName::Ssd && self.tier(to).abilities.naming_method() == NamingMethod::Placeholder {
            return Ok(MoveOutcome::Stays("the SSD's file system can neither rename without replacing nor make hard links"));
        }
        if matches!(reason, MoveReason::SecondTouch | MoveReason::OnOpen) && self.tier(TierName::Ssd).is_troubled() {
            return Ok(MoveOutcome::Stays("the SSD is degraded: nothing new goes there"));
        }
        let open = self.opens.lock().get(&ino).cloned();
        if open.as_ref().is_some_and(|open| open.held_in_place()) {
            return Ok(MoveOutcome::Busy);
        }
        let mut job = CopyJob::begin(self, ino, place, to)?;
        if let Some(stays) = job.stays(self, reason) {
            return Ok(stays);
        }
        if let Some(state) = self.mover.state.lock().running.get_mut(&ino) {
            state.total = job.before.size;
        }
        let outcome = job.run(self, open.as_ref(), reason, done, progress);
        job.clean_up(self);
        if let Ok(MoveOutcome::Done) = outcome {
            self.counters.moved_bytes.fetch_add(job.before.size, Ordering::Relaxed);
        }
        outcome
    }

    /// Takes back a copy that already has its name on the HDD: the file's name is about to change or go.
    /// The caller holds the file's gate, shared; the mover then finds its copy gone and drops the move.
    pub(crate) fn cancel_duplicate(&self, ino: u64) {
        let duplicate = self.mover.duplicates.lock().remove(&ino);
        if let Some(duplicate) = duplicate {
            self.remove_duplicate(&duplicate);
        }
    }

    /// The same for everything below a directory.
    pub(crate) fn cancel_duplicates_below(&self, dir: u64) {
        let mut duplicates = self.mover.duplicates.lock();
        let below: Vec<u64> = duplicates.keys().copied().filter(|ino| self.nodes.is_below(*ino, dir)).collect();
        for ino in below {
            if let Some(duplicate) = duplicates.remove(&ino) {
                self.remove_duplicate(&duplicate);
            }
        }
    }

    /// Durable when it returns: what is done to the SSD's name next may be durable at once, and must not be followed by
    /// the HDD's copy coming back.
    pub(crate) fn remove_duplicate(&self, duplicate: &Duplicate) {
        let hdd = self.tier(TierName::Hdd);
        let removed = duplicate.dir.must(TierName::Hdd).and_then(|dir| {
            let unlink = || hdd.unlink_if(dir, &duplicate.name, duplicate.on_hdd);
            self.keeping_times(duplicate.dir.ino, hdd, dir, || hdd.as_owner(dir, unlink))?;
            hdd.sync_dir(dir)
        });
        if let Err(error) = removed {
            self.note_failure(TierName::Hdd, error);
            self.mover.left_behind.lock().insert(duplicate.on_hdd.ino);
        }
    }

    /// Waits for a move to end, not for long; `false` when the file system closes.
    pub fn wait_for_move(&self) -> bool {
        self.mover.wait_for_any(Duration::from_millis(100));
        !self.mover.stopping()
    }

    /// Whether these two are the ends of a move that runs now.
    pub(crate) fn moving(&self, ssd_ino: u64, hdd_ino: u64) -> bool {
        let duplicates = self.mover.duplicates.lock();
        if duplicates.values().any(|duplicate| duplicate.on_hdd.ino == hdd_ino) {
            return true;
        }
        drop(duplicates);
        let running: Vec<u64> = self.mover.state.lock().running.keys().copied().collect();
        running.into_iter().any(|ino| {
            self.nodes.with(ino, |node| node.backing.inos().contains(&ssd_ino) || node.backing.inos().contains(&hdd_ino)).unwrap_or(false)
        })
    }

    /// What is remembered of a file's last move.
    pub(crate) fn last_move(&self, ino: u64) -> Option<LastMove> {
        let known = self.nodes.with(ino, |node| node.last_move).filter(|(_, code)| *code != 0);
        let (at, code) = known.or_else(|| self.mover.demotion_history.lock().last_move(ino))?;
        let to = if code & 0x80 != 0 { TierName::Hdd } else { TierName::Ssd };
        Some(LastMove { at_s: u64::from(at), to, reason: MoveReason::text(code & 0x7f).into() })
    }
}

#[cfg(test)]
mod test;
