//! Reaping: completed requests go to the caller, which may have to wait.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use block::Armed;
use cachedfs::Outcome as ReadOutcome;
use parking_lot::MutexGuard;
use rustix::event::{PollFd, PollFlags, poll};

use super::{INSIDE, NOBODY, QueueState, Requests, SEVERAL, SLICE, of_another, this_thread};
use crate::api_error::{ApiError, ApiResult};
use crate::types::*;

impl Requests {
    /// Collects completions of the queue, up to a limit. A page is verified only then.
    pub(super) fn collect(&self, state: &mut QueueState, most: usize) {
        while state.ended.len() < most {
            let Some(ended) = state.reads.take_seen() else { break };
            let token = ended.token;
            match ended.outcome {
                ReadOutcome::Read(bytes) => drop(state.end(token, bytes as i64)),
                ReadOutcome::Lost => drop(state.end(token, i64::from(-libc::EIO))),
                ReadOutcome::Slow if self.has_thread(state) => self.hand_over(state, token),
                ReadOutcome::Slow => {
                    let job = state.job(token);
                    drop(state.end(token, job.map_or(i64::from(-libc::EIO), |(job, open, memory)| job.run(&open, memory))));
                }
            }
        }
    }

    #[inline]
    pub(super) fn reap_with(
        &self,
        state: &mut MutexGuard<'_, QueueState>,
        min: usize,
        max: usize,
        until: Option<Instant>,
        mut out: impl FnMut(uaio),
    ) -> usize {
        let mut has_looked = false;
        loop {
            self.collect(state, max);
            let is_enough = state.ended.len() >= min.min(state.all()) || self.is_ending.load(Ordering::Relaxed);
            if is_enough || until.is_some_and(|until| Instant::now() >= until) {
                // A wait collects completions too; without a wait they are collected here.
                if has_looked || state.ended.len() >= max {
                    break;
                }
                state.reads.poll();
            } else {
                self.wait(state, until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()).min(SLICE)));
            }
            has_looked = true;
        }
        let count = state.ended.len().min(max);
        let QueueState { ended, jobs, free, .. } = &mut **state;
        for token in ended.drain(..count) {
            out(jobs[token as usize].request);
            free.push(token);
        }
        if self.user.load(Ordering::Relaxed) == SEVERAL {
            // Collected completions may be for other threads, and one has to wait for the queue.
            self.tell(state);
        }
        count
    }

    /// Waits until there may be completions, and collects them.
    pub(super) fn wait(&self, state: &mut MutexGuard<'_, QueueState>, at_most: Duration) {
        let is_alone = self.user.load(Ordering::Relaxed) != SEVERAL && state.waiting.is_empty() && state.under_way == 0;
        if state.reads.under_way() == 0 || state.has_reaper {
            self.done.wait_for(state, at_most);
        } else if is_alone {
            return state.reads.wait(at_most);
        } else if state.reads.arm() == Armed::Waiting {
            self.wait_unlocked(state, at_most);
        }
        state.reads.poll();
    }

    fn wait_unlocked(&self, state: &mut MutexGuard<'_, QueueState>, at_most: Duration) {
        // A duplicate of the event: the queue may be gone before the next check.
        let Some(event) = state.reads.event().and_then(|event| event.try_clone_to_owned().ok()) else {
            return state.reads.wait(at_most.min(Duration::from_millis(1)));
        };
        state.has_reaper = true;
        MutexGuard::unlocked(state, || {
            let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            let time = rustix::time::Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
            // Interrupted: the loop checks again.
            let _ = poll(&mut fds, Some(&time));
        });
        state.has_reaper = false;
        let _ = rustix::io::read(&self.wake, &mut [0; 8]); // an empty counter is fine
    }

    /// Returns whether this thread may wait for the queue.
    pub(super) fn is_ours(&self) -> bool {
        let user = self.user.load(Ordering::Relaxed);
        !self.has_one_thread || user == NOBODY || user == this_thread()
    }

    /// Returns whether the calling thread may destroy it; see the module documentation.
    pub fn may_end(&self) -> ApiResult<()> {
        if self.is_ours() {
            return Ok(());
        }
        let state = self.state.try_lock_for(INSIDE).ok_or_else(of_another)?;
        if state.reads.under_way() == 0 || state.life.strong_count() == 0 {
            return Ok(());
        }
        let why = "reads are under way of the one thread that it was promised to (UAIO_ONE_THREAD): it has to reap them, or to end, first";
        Err(ApiError::new(libc::EBUSY, why))
    }
}

/// Submitted requests that the device has not seen yet.
#[must_use]
pub struct SubmittedBatch<'a> {
    pub(super) ours: &'a Requests,
    pub(super) state: MutexGuard<'a, QueueState>,
}

impl SubmittedBatch<'_> {
    /// Reaps as [`Requests::reap`]. The device sees the requests with the wait, or without one if there is none.
    pub fn reap(mut self, min: usize, max: usize, until: Option<Instant>, out: impl FnMut(uaio)) -> usize {
        let count = self.ours.reap_with(&mut self.state, min, max, until, out);
        self.state.reads.ring();
        count
    }
}
