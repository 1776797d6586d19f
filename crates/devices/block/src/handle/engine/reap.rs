//! The completions of a queue: from the device to the owner of each job.

use super::{BATCH, Engine, NOBODY, Owner};
use crate::clock::Clock;
use crate::error::Error;
use crate::handle::io::{Data, Done, Failure, Released};
use crate::handle::job::{self, Job, JobState, NONE};
use crate::queue::Queue;
use crate::request::Completion;
use crate::units::Tag;

impl<Q: Queue, C: Clock> Engine<Q, C> {
    /// Takes completions from the queue. Returns whether a request may have completed.
    #[inline(never)]
    pub(in super::super) fn reap(&mut self) -> bool {
        if self.busy == 0 && self.held == 0 {
            return false;
        }
        let rung = self.ring();
        self.reap_rung() | rung
    }

    /// Does the same as [`Engine::reap`], without ringing again if `rung`: the caller has just rung the doorbell outside the lock.
    /// Threads that submitted requests since then ring for them.
    pub(in super::super) fn reap_after(&mut self, rung: bool) -> bool {
        if rung { self.reap_rung() } else { self.reap() }
    }

    fn reap_rung(&mut self) -> bool {
        let found = self.collect();
        if found && self.waiting.first != NONE {
            self.ring();
        }
        found
    }

    #[inline]
    pub(super) fn collect(&mut self) -> bool {
        let mut found = false;
        loop {
            let count = self.queue.poll(&mut self.batch);
            for at in 0..count {
                self.end(self.batch[at]);
            }
            found |= count > 0;
            if self.held > 0 {
                self.take_back();
            }
            if count < BATCH {
                return found;
            }
        }
    }

    /// Records the completion of a part.
    #[inline]
    pub(super) fn end(&mut self, completion: Completion) {
        let (index, part) = job::parts(completion.tag);
        if let Err(error) = completion.status {
            self.fail(index, part, completion.tag, error);
        }
        let job = &mut self.jobs[index as usize];
        job.parts_out -= 1;
        if job.parts_out == 0 && job.state == JobState::InFlight {
            self.finish(index);
        }
    }

    #[cold]
    pub(super) fn fail(&mut self, index: u32, part: u32, tag: Tag, error: Error) {
        let job = &mut self.jobs[index as usize];
        if self.queue.owns_buffer(tag) {
            job.parts_held += 1;
            self.held += 1;
        }
        job.status = job.status.and(Err(error));
        if job.cut {
            let (from, blocks) = job.part(&self.limits, part, &mut self.spans);
            job.fail(Failure { lba: job.lba_after(from), blocks, error });
        }
    }

    #[inline]
    pub(super) fn finish(&mut self, index: u32) {
        self.busy -= 1;
        let job = &mut self.jobs[index as usize];
        job.state = JobState::Ended;
        let claimed = job.claimed;
        let job_owner = &mut self.owners[usize::from(job.owner)];
        job_owner.busy -= 1;
        job_owner.news = true;
        if !job_owner.alive {
            drop(self.give(index));
        } else if !claimed {
            job_owner.ended.push(&mut self.jobs, index);
        }
    }

    /// Takes back the memory that the device has released.
    #[cold]
    fn take_back(&mut self) {
        while let Some(tag) = self.queue.take_released() {
            let (index, _) = job::parts(tag);
            self.held -= 1;
            let job = &mut self.jobs[index as usize];
            job.parts_held -= 1;
            if job.parts_held > 0 || job.state != JobState::Held {
                continue;
            }
            let owner = usize::from(job.owner);
            if job.owner != NOBODY && matches!(job.data, Data::Span(_) | Data::Spans(_)) {
                self.owners[owner].released.push(&mut self.jobs, index);
            } else {
                self.release(index);
            }
        }
    }

    /// Returns the owner's next completed request.
    #[inline(always)]
    pub(in super::super) fn take(&mut self, owner: Owner) -> Option<Done> {
        let index = self.pop(owner)?;
        Some(self.give(index))
    }

    #[inline(always)]
    pub(super) fn pop(&mut self, owner: Owner) -> Option<u32> {
        self.owners[usize::from(owner)].ended.pop(&self.jobs)
    }

    /// Returns the owner's next completed request; reaps the queue if none is known.
    #[inline(always)]
    pub(in super::super) fn next(&mut self, owner: Owner) -> Option<Done> {
        let mut index = self.pop(owner);
        if index.is_none() && self.reap() {
            index = self.pop(owner);
        }
        Some(self.give(index?))
    }

    /// Does the same as [`Engine::next`], but reaps as [`Engine::reap_after`] does.
    pub(in super::super) fn next_after(&mut self, owner: Owner, rung: bool) -> Option<Done> {
        let known = self.take(owner);
        if known.is_some() || !self.reap_after(rung) {
            return known;
        }
        self.take(owner)
    }

    /// Returns this request if it has completed.
    #[inline]
    pub(in super::super) fn take_claimed(&mut self, index: u32) -> Option<Done> {
        let job = &self.jobs[index as usize];
        debug_assert!(job.claimed);
        (job.state == JobState::Ended).then(|| self.give(index))
    }

    #[inline(always)]
    pub(super) fn give(&mut self, index: u32) -> Done {
        let job = &mut self.jobs[index as usize];
        let job_owner = &mut self.owners[usize::from(job.owner)];
        job_owner.used -= 1;
        job_owner.claims -= u32::from(job.claimed);
        job_owner.news = true;
        let ticket = job::ticket(job_owner.number, index, job.generation);
        let (user, op, status, failures, held) = (job.user, job.request.op, job.status, job.failures.take(), job.parts_held > 0);
        if held {
            job.state = JobState::Held;
            job.owner = if job_owner.alive { job.owner } else { NOBODY };
            return Done { ticket, user, op, held, status, data: Data::None, failures };
        }
        let data = std::mem::take(&mut job.data);
        self.release(index);
        Done { ticket, user, op, held, status, data, failures }
    }

    #[inline]
    fn release(&mut self, index: u32) {
        let job = &mut self.jobs[index as usize];
        if !matches!(job.data, Data::None) {
            job.data = Data::None;
        }
        job.state = JobState::Free;
        job.generation = (job.generation + 1) & ((1 << 40) - 1);
        self.free.push(index);
    }

    /// Returns memory of this owner that the device released after the request was collected.
    pub(in super::super) fn take_released(&mut self, owner: Owner) -> Option<Released> {
        let job_owner = &mut self.owners[usize::from(owner)];
        let index = job_owner.released.pop(&self.jobs)?;
        let job = &mut self.jobs[index as usize];
        let ticket = job::ticket(job_owner.number, index, job.generation);
        let released = Released { ticket, user: job.user, data: std::mem::take(&mut job.data) };
        self.release(index);
        Some(released)
    }
}

impl Job {
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failures.get_or_insert_default().push(failure);
    }
}
