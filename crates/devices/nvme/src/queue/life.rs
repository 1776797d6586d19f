//! The life cycle of a queue: creation, loss by a reset of the controller, recreation, and end.

use std::time::Duration;

use block::{Error, Queue as _};

use super::NvmeQueue;
use super::commands::{Job, NONE};
use crate::admin::{AdminError, Ticket, Wants};
use crate::entry::{Entry, admin};
use crate::recorder::Reason;
use crate::reset::restart;
use crate::shared::{Health, Inner};

/// The state of the queue pair at the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Both queues exist.
    Live,
    /// Neither queue exists, for certain: the controller was reset, or the queues were deleted.
    Lost,
    /// The command that creates the completion queue is in flight.
    Completion(Ticket),
    /// The command that creates the submission queue is in flight.
    Submission(Ticket),
    /// The command that creates a queue got no completion: only a reset of the controller helps.
    Stuck,
    /// The controller refused to create a queue, or is gone.
    Dead,
}

/// The pause between two checks of a queue that is being created again.
const PAUSE: Duration = Duration::from_millis(1);

impl NvmeQueue {
    fn create_cq(&self) -> Entry {
        Entry::create_cq(self.pair.number(), self.pair.entries(), self.pair.addresses().1, self.vector)
    }

    fn create_sq(&self) -> Entry {
        Entry::create_sq(self.pair.number(), self.pair.entries(), self.pair.addresses().0)
    }

    /// Makes it, and waits for that.
    pub(super) fn create_now(&mut self) -> Result<(), AdminError> {
        let shared = std::sync::Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        self.create_locked(&mut inner)
    }

    fn create_locked(&mut self, inner: &mut Inner) -> Result<(), AdminError> {
        self.epoch = self.shared.epoch();
        self.pair.clear();
        self.recorder.reset();
        let shared = std::sync::Arc::clone(&self.shared);
        let made = shared.ask(inner, self.create_cq(), false).and_then(|_| {
            let made = shared.ask(inner, self.create_sq(), false);
            if matches!(made, Err(AdminError::Status(_))) {
                shared.ask(inner, Entry::delete(admin::DELETE_CQ, self.pair.number()), false)?;
            }
            made
        });
        let Err(trouble) = made else {
            self.life = Life::Live;
            return Ok(());
        };
        self.life = match trouble {
            AdminError::Status(_) => Life::Dead,
            // One of the two may be there. After a reset of the controller it is tried again, by steps.
            _ if restart(&shared, inner, self.epoch).is_ok() => Life::Lost,
            _ => Life::Stuck,
        };
        Err(trouble)
    }

    /// Goes on with a queue that is not alive, in a step that does not wait.
    #[cold]
    pub(super) fn revive(&mut self) {
        if self.shared.is_gone() {
            if self.shared.is_quiet() && self.life != Life::Dead {
                self.die();
            }
            return;
        }
        if self.shared.epoch() != self.epoch {
            self.epoch = self.shared.epoch();
            self.pair.clear();
            self.recorder.reset();
            self.end_cancelled();
            self.life = Life::Lost;
        }
        let shared = std::sync::Arc::clone(&self.shared);
        let Some(mut inner) = shared.inner.try_lock() else { return };
        if shared.changes() != self.changes {
            self.look_at_namespace(&inner);
        }
        if shared.epoch() == self.epoch && !shared.is_gone() {
            self.revive_locked(&mut inner);
        }
    }

    /// Takes over the namespace's current size. If the block length changed or the namespace is gone, pending requests would hit the
    /// wrong blocks: they fail, and the queue has no blocks from then on. Commands already at the controller complete normally.
    fn look_at_namespace(&mut self, inner: &Inner) {
        self.changes = self.shared.changes();
        if let Some(Ok(info)) = inner.namespace(self.namespace)
            && info.block_bytes == self.geometry.block_bytes
        {
            self.geometry.blocks = info.blocks;
            return;
        }
        tracing::error!("{}, queue {}: its namespace is another one, or gone", self.shared.function.name, self.pair.number());
        self.geometry.blocks = 0;
        for index in 0..self.jobs.len() {
            let job = &mut self.jobs[index];
            if job.busy && job.left > 0 {
                job.fail(Error::OutOfRange);
                if job.out == 0 {
                    self.finish(index as u16);
                }
            }
        }
    }

    fn revive_locked(&mut self, inner: &mut Inner) {
        loop {
            let next = match self.life {
                Life::Live | Life::Stuck | Life::Dead => return,
                Life::Lost => self.shared.begin(inner, self.create_cq(), false).map(Life::Completion),
                Life::Completion(ticket) | Life::Submission(ticket) => {
                    inner.admin.poll();
                    match inner.admin.take(ticket, self.shared.clock.now()) {
                        None => return,
                        Some(Err(trouble)) => Err(trouble),
                        Some(Ok(_)) if matches!(self.life, Life::Submission(_)) => return self.revived(),
                        Some(Ok(_)) => self.shared.begin(inner, self.create_sq(), false).map(Life::Submission),
                    }
                }
            };
            match next {
                Ok(life) => self.life = life,
                // Come again.
                Err(AdminError::Full) => return,
                Err(AdminError::Timeout | AdminError::Fatal) => return self.life = Life::Stuck,
                Err(trouble) => {
                    tracing::error!("{}, queue {}: it is not made anew: {trouble}", self.shared.function.name, self.pair.number());
                    return self.die();
                }
            }
        }
    }

    /// What was in flight goes down again, as often as a request may.
    fn revived(&mut self) {
        self.life = Life::Live;
        self.counters.remade += 1;
        let again = self.shared.options.retries;
        // A deallocate that is open was in no ring yet.
        self.close_open();
        for slot in 0..self.slots.len() {
            if !self.slots[slot].busy {
                continue;
            }
            if self.slots[slot].retries < again { self.send_again(slot) } else { self.end(slot, Err(Error::Reset)) }
        }
        self.pump();
        self.ring();
    }

    /// Fails all requests: the device holds no memory of this queue and will never serve it again.
    fn die(&mut self) {
        self.life = Life::Dead;
        self.close_open();
        for slot in 0..self.slots.len() {
            if self.slots[slot].busy {
                self.end(slot, Err(Error::Gone));
            }
        }
        for index in 0..self.jobs.len() {
            if self.jobs[index].busy {
                self.jobs[index].fail(Error::Gone);
                self.finish(index as u16);
            }
        }
    }

    fn close_open(&mut self) {
        if self.ranges.is_some() {
            self.close_ranges();
        }
    }

    fn all_cancelled(&self, first: u16) -> bool {
        let next = |index: &u16| Some(self.jobs[usize::from(*index)].next).filter(|next| *next != NONE);
        std::iter::successors(Some(first), next).all(|index| self.jobs[usize::from(index)].cancelled)
    }

    /// Completes cancelled commands while the device holds none, so that they are not sent again.
    fn end_cancelled(&mut self) {
        self.close_open();
        for slot in 0..self.slots.len() {
            let place = self.slots[slot];
            if place.busy && self.all_cancelled(place.job) {
                self.end(slot, Err(Error::Cancelled));
            }
        }
    }

    /// Requests that the controller aborts the commands of a job. Commands that also serve other jobs continue.
    pub(super) fn abort(&mut self, index: u16) {
        if !self.is_live() {
            if self.life != Life::Live {
                self.end_cancelled();
            }
            return;
        }
        let shared = std::sync::Arc::clone(&self.shared);
        // If another thread holds the controller, a later deadline retries this.
        let Some(mut inner) = shared.inner.try_lock() else { return };
        for slot in 0..self.slots.len() {
            let place = self.slots[slot];
            if !place.busy || place.job != index || self.jobs[usize::from(index)].next != NONE {
                continue;
            }
            if inner.admin.unwaited() >= usize::from(inner.info.aborts) {
                return;
            }
            let abort = Entry::abort(self.pair.number(), place.entry.cid());
            if inner.admin.submit(abort, false, Wants::Nothing, block::Time::NEVER).is_err() {
                return;
            }
            self.counters.aborts += 1;
        }
    }

    /// Waits while the queue is not alive.
    pub(super) fn wait_revived(&mut self, at_most: Duration) {
        self.revive();
        let irq = &self.shared.function.irq;
        if matches!(self.life, Life::Completion(_) | Life::Submission(_)) && irq.vectors() > 0 {
            irq.wait(0, at_most.min(PAUSE));
            irq.clear(0);
        } else if self.life != Life::Live && self.ended.is_empty() {
            irq.pause(at_most.min(PAUSE));
        }
        self.check_device();
    }

    /// Checks the controller after polls without a completion, and resets it if it reports a fatal fault or the queue is stuck.
    pub(super) fn check_device(&mut self) {
        let shared = std::sync::Arc::clone(&self.shared);
        let wanted = || shared.health() == Health::Fatal || self.life == Life::Stuck;
        if !shared.is_gone() && shared.epoch() == self.epoch && wanted() {
            self.remember(Reason::Fatal);
            // Its outcome is seen by `poll`.
            let _ = restart(&shared, &mut shared.inner.lock(), self.epoch);
        }
    }

    /// Both rings away, or the whole controller reset. `Ok`: the device reaches no memory of what was in flight.
    fn quiesce(&mut self, inner: &mut Inner) -> Result<(), Error> {
        if matches!(self.life, Life::Lost | Life::Dead) || self.shared.epoch() != self.epoch {
            return Ok(());
        }
        if self.life == Life::Live && !self.shared.is_gone() {
            let number = self.pair.number();
            let sq = self.shared.ask(inner, Entry::delete(admin::DELETE_SQ, number), false);
            let deleted = sq.and_then(|_| self.shared.ask(inner, Entry::delete(admin::DELETE_CQ, number), false));
            match deleted {
                Ok(_) => return Ok(()),
                Err(trouble) => tracing::warn!("{}, queue {number}: deleting it: {trouble}", self.shared.function.name),
            }
        }
        restart(&self.shared, inner, self.epoch)
    }

    /// See [`block::Queue::reset`].
    pub(super) fn start_over(&mut self) -> Result<(), Error> {
        let shared = std::sync::Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        shared.remember(&mut inner, Reason::QueueReset, self.recorder.record());
        self.quiesce(&mut inner)?;
        self.forget();
        if self.life == Life::Dead || shared.is_gone() {
            self.life = Life::Dead;
            return Ok(());
        }
        self.life = Life::Lost;
        self.counters.remade += 1;
        if let Err(trouble) = self.create_locked(&mut inner) {
            tracing::error!("{}, queue {}: it is not made anew: {trouble}", shared.function.name, self.pair.number());
            if self.life == Life::Stuck {
                return Err(Error::Gone);
            }
        }
        Ok(())
    }

    /// Nothing of what was in flight is reported.
    fn forget(&mut self) {
        self.close_open();
        for slot in 0..self.slots.len() {
            if self.slots[slot].busy {
                self.end(slot, Err(Error::Reset));
            }
        }
        self.waiting.clear();
        self.ended.clear();
        self.free_jobs.clear();
        self.free_jobs.extend((0..self.jobs.len() as u16).rev());
        self.jobs.fill(Job::FREE);
        self.in_flight = 0;
    }

    pub(super) fn close(&mut self) {
        let shared = std::sync::Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        if let Err(error) = self.quiesce(&mut inner) {
            tracing::error!("{}, queue {}: closing it: {error}", shared.function.name, self.pair.number());
        }
        inner.give_queue(self.pair.number());
    }
}
