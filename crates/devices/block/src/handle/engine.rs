//! The engine of one queue. It accepts requests of any length, splits and submits them, joins the parts, and keeps each request
//! until its owner collects it. One thread at a time uses it: the owner of a dedicated handle, or the holder of a shared queue's
//! lock.
//!
//! A request waits in the engine until the caller rings, and is submitted to the queue then. So a batch reads the clock once, and
//! deadlines count from the ring. Requests that do not fit into the queue are submitted as slots become free.
//!
//! The number of requests is bounded at open. Every owner has a fixed number, which includes uncollected ones, plus one for a
//! synchronous call.

mod fill;
mod reap;

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::cut::Limits;
use super::io::{Done, Failure, Full, Io, Ticket};
use super::job::{self, Chain, JOBS_MAX, Job, JobState, NONE, PARTS_MAX};
use super::params::Defaults;
use crate::buffer::{Arena, Span};
use crate::clock::{Clock, Monotonic, Time};
use crate::error::Error;
use crate::queue::{Queue, Submit};
use crate::request::{Completion, Request, Status};
use crate::tracked::Tracked;

/// The most completions that one poll of the queue returns.
const BATCH: usize = 32;
/// How long the engine of a dropped queue waits for requests in flight before it resets the queue.
const SETTLE: Duration = Duration::from_secs(1);

/// The number of a handle in its queue.
pub(super) type Owner = u16;
/// The owner of held memory whose handle no longer exists.
const NOBODY: Owner = Owner::MAX;

struct JobOwner {
    ended: Chain,
    /// Requests whose memory the device released after they were reported.
    released: Chain,
    /// Requests that have not been collected.
    used: u32,
    /// Those of `used` that have not completed.
    busy: u32,
    /// Those of `used` that a caller waits for individually.
    claims: u32,
    limit: u32,
    /// The index of this queue among the owner's queues.
    number: u8,
    alive: bool,
    /// Whether a request completed, or a slot became free, since the owner was last notified.
    news: bool,
}

/// The requests of one queue, and the queue itself.
pub(super) struct Engine<Q: Queue, C: Clock = Monotonic> {
    queue: Tracked<Q, C>,
    limits: Limits,
    jobs: Vec<Job>,
    free: Vec<u32>,
    waiting: Chain,
    owners: Vec<JobOwner>,
    /// Whether requests were submitted since the last ring.
    unrung: bool,
    /// The number of requests that have not completed.
    busy: u32,
    held: u32,
    batch: Box<[Completion]>,
    spans: Vec<Span>,
}

impl<Q: Queue, C: Clock> Engine<Q, C> {
    pub(super) fn new(queue: Tracked<Q, C>) -> Engine<Q, C> {
        let geometry = queue.geometry();
        let (limits, spans) = (Limits::new(geometry), Vec::with_capacity(usize::from(geometry.segments_max)));
        Engine {
            limits,
            jobs: Vec::new(),
            free: Vec::new(),
            waiting: Chain::EMPTY,
            owners: Vec::new(),
            unrung: false,
            busy: 0,
            held: 0,
            batch: vec![Completion::EMPTY; BATCH].into(),
            spans,
            queue,
        }
    }

    /// Adds an owner with at most `limit` asynchronous requests. `number` is the index of this queue among the owner's queues.
    pub(super) fn attach(&mut self, limit: u32, number: u8) -> Result<Owner, Error> {
        let free = self.owners.iter().position(|job_owner| !job_owner.alive && job_owner.used == 0);
        let taken: u32 = self.owners.iter().map(|job_owner| if job_owner.alive { job_owner.limit + 1 } else { job_owner.used }).sum();
        // Requests with held memory occupy jobs even after they were collected: up to one queue depth of them.
        let wanted = (taken + limit + 1 + self.queue.depth()) as usize;
        if wanted > JOBS_MAX {
            return Err(Error::NoResources);
        }
        while self.jobs.len() < wanted {
            self.free.push(self.jobs.len() as u32);
            self.jobs.push(Job::empty());
        }
        self.free.reserve(self.jobs.len());
        let job_owner =
            JobOwner { ended: Chain::EMPTY, released: Chain::EMPTY, used: 0, busy: 0, claims: 0, limit, number, alive: true, news: false };
        let owner = free.unwrap_or(self.owners.len());
        if owner == self.owners.len() {
            self.owners.push(job_owner);
        } else {
            self.owners[owner] = job_owner;
        }
        Owner::try_from(owner).map_err(|_| Error::NoResources)
    }

    /// Removes an owner. Its requests in flight continue; nobody collects them.
    pub(super) fn detach(&mut self, owner: Owner) {
        self.owners[usize::from(owner)].alive = false;
        while let Some(index) = self.owners[usize::from(owner)].ended.pop(&self.jobs) {
            drop(self.give(index));
        }
        while self.take_released(owner).is_some() {}
        for job in self.jobs.iter_mut().filter(|job| job.owner == owner && job.state == JobState::Held) {
            job.owner = NOBODY;
        }
    }

    /// Accepts a request. `claimed`: a caller will wait for this request individually.
    #[inline(always)]
    pub(super) fn submit(&mut self, owner: Owner, io: Io, defaults: &Defaults, claimed: bool) -> Result<Ticket, Full> {
        let job_owner = &mut self.owners[usize::from(owner)];
        if job_owner.used >= job_owner.limit + u32::from(claimed) {
            return Err(Full(io));
        }
        let Some(index) = self.free.pop() else { return Err(Full(io)) };
        job_owner.used += 1;
        job_owner.busy += 1;
        job_owner.claims += u32::from(claimed);
        self.busy += 1;
        let piece = io.data.single();
        let bytes = piece.map_or_else(|| io.data.bytes(), |piece| u64::from(piece.bytes));
        let place = self.limits.place(&io, bytes);
        let job = &mut self.jobs[index as usize];
        job.fill(owner, io, defaults, claimed);
        job.piece = piece;
        let ticket = job::ticket(job_owner.number, index, job.generation);
        match place {
            Ok((lba, blocks)) => {
                job.request.lba = lba;
                job.request.blocks = blocks as u32;
                job.blocks = blocks;
                job.cut = !self.limits.is_one_part(job.request.op, blocks, piece.is_some());
                let cut = job.cut;
                self.waiting.push(&mut self.jobs, index);
                if cut {
                    self.check_whole(index);
                }
            }
            Err(error) => {
                job.status = Err(error);
                self.finish(index);
            }
        }
        Ok(ticket)
    }

    /// Checks a request that is split as a whole: if it extends beyond the device, no part of it may be executed.
    #[cold]
    fn check_whole(&mut self, index: u32) {
        let job = &mut self.jobs[index as usize];
        if job.request.lba.0.checked_add(job.blocks).is_none_or(|end| end > self.queue.geometry().blocks) {
            job.cut = false;
            self.end_early(index, Error::OutOfRange);
        }
    }

    /// Submits the waiting requests to the queue.
    #[inline]
    pub(super) fn pump(&mut self) {
        // The deadline of the previous job: most jobs have the same timeout.
        let mut deadline = (None, Time::NEVER);
        while self.waiting.first != NONE {
            let index = self.waiting.first;
            let job = &mut self.jobs[index as usize];
            if job.due == Time::NEVER
                && let Some(timeout) = job.timeout
            {
                if deadline.0 != job.timeout {
                    deadline = (job.timeout, self.queue.clock().due(timeout));
                }
                job.due = deadline.1;
            }
            let sent = if job.cut { self.send_parts(index) } else { self.send(index) };
            if !sent {
                return self.expire_waiting();
            }
        }
    }

    /// Submits a job that has one part.
    #[inline]
    fn send(&mut self, index: u32) -> bool {
        let job = &mut self.jobs[index as usize];
        job.request.tag = job::tag(index, 0, job.generation);
        if self.queue.submit_by(&job.request, job.piece.as_slice(), job.due) == Submit::Full {
            return false;
        }
        job.parts_made = 1;
        job.parts_out = 1;
        job.state = JobState::InFlight;
        self.waiting.pop(&self.jobs);
        self.unrung = true;
        true
    }

    fn send_parts(&mut self, index: u32) -> bool {
        loop {
            let job = &mut self.jobs[index as usize];
            let next = match self.limits.next(job.request.op, job.blocks, &job.data, job.cursor, &mut self.spans) {
                Ok(next) if job.parts_made < PARTS_MAX => next,
                Ok(_) => return self.end_early(index, Error::NoResources),
                Err(error) => return self.end_early(index, error),
            };
            let (tag, lba) = (job::tag(index, job.parts_made, job.generation), job.lba_after(job.cursor.blocks));
            let request = Request { tag, lba, blocks: next.0, ..job.request };
            if self.queue.submit_by(&request, &self.spans, job.due) == Submit::Full {
                return false;
            }
            self.unrung = true;
            job.parts_made += 1;
            job.parts_out += 1;
            job.cursor = next.1;
            if job.cursor.blocks == job.blocks {
                job.state = JobState::InFlight;
                self.waiting.pop(&self.jobs);
                return true;
            }
        }
    }

    /// Stops the submission of a waiting job. It completes with this error once the submitted parts have completed.
    fn end_early(&mut self, index: u32, error: Error) -> bool {
        self.waiting.remove(&mut self.jobs, index);
        let job = &mut self.jobs[index as usize];
        let sent = job.cursor.blocks;
        if job.cut {
            job.fail(Failure { lba: job.lba_after(sent), blocks: u32::try_from(job.blocks - sent).unwrap_or(u32::MAX), error });
        }
        job.status = job.status.and(Err(error));
        job.state = JobState::InFlight;
        if job.parts_out == 0 {
            self.finish(index);
        }
        true
    }

    /// Gives waiting jobs their deadlines while the queue is full, and ends those whose deadline has passed.
    #[cold]
    fn expire_waiting(&mut self) {
        let now = self.queue.clock().now();
        let mut index = self.waiting.first;
        while index != NONE {
            let job = &mut self.jobs[index as usize];
            let next = job.next;
            if job.due == Time::NEVER {
                job.due = job.timeout.map_or(Time::NEVER, |timeout| now.after(timeout));
            }
            if job.due <= now {
                self.end_early(index, Error::Timeout);
            }
            index = next;
        }
    }

    /// Notifies the device of all submitted requests. Returns whether this completed a request: one that timed out while it waited
    /// for a slot, or one that cannot be split.
    #[inline]
    pub(super) fn ring(&mut self) -> bool {
        let busy = self.busy;
        self.pump();
        if self.unrung {
            self.unrung = false;
            self.queue.ring();
        }
        self.busy < busy
    }

    /// Does the same as [`Engine::ring`] except for the doorbell. Returns true if the caller has to ring it.
    pub(super) fn pump_to_ring(&mut self) -> bool {
        self.pump();
        std::mem::take(&mut self.unrung)
    }

    /// Returns the index of a request that is in flight, or has completed and was not collected.
    pub(super) fn find(&self, owner: Owner, ticket: Ticket) -> Option<u32> {
        let (number, index) = job::place(ticket);
        let job = self.jobs.get(index as usize)?;
        let here = matches!(job.state, JobState::Waiting | JobState::InFlight | JobState::Ended);
        (here && job.owner == owner && job::ticket(number as u8, index, job.generation) == ticket).then_some(index)
    }

    /// Reserves a request for a caller that waits for it individually, so that [`Engine::take`] does not return it. Returns false if
    /// another caller has already reserved it.
    pub(super) fn claim(&mut self, index: u32) -> bool {
        let job = &mut self.jobs[index as usize];
        if job.claimed {
            return false;
        }
        job.claimed = true;
        let owner = usize::from(job.owner);
        self.owners[owner].claims += 1;
        if job.state == JobState::Ended {
            self.owners[owner].ended.remove(&mut self.jobs, index);
        }
        true
    }

    /// Ends the reservation of a request.
    pub(super) fn unclaim(&mut self, index: u32) {
        let job = &mut self.jobs[index as usize];
        job.claimed = false;
        let owner = usize::from(job.owner);
        self.owners[owner].claims -= 1;
        if job.state == JobState::Ended {
            self.owners[owner].ended.push(&mut self.jobs, index);
        }
    }

    /// Cancels a request. It still completes, as cancelled or with its own status.
    pub(super) fn cancel(&mut self, index: u32) {
        let (state, parts, generation) = {
            let job = &self.jobs[index as usize];
            (job.state, job.parts_made, job.generation)
        };
        if state == JobState::Waiting {
            self.end_early(index, Error::Cancelled);
        }
        if matches!(state, JobState::Waiting | JobState::InFlight) {
            for part in 0..parts {
                self.queue.cancel(job::tag(index, part, generation));
            }
        }
    }

    /// Aborts all requests of all owners; each is reported to its own owner.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        let reset = self.queue.reset();
        let error = if reset.is_ok() { Error::Reset } else { Error::Gone };
        while self.waiting.first != NONE {
            self.end_early(self.waiting.first, error);
        }
        self.collect();
        reset
    }

    /// Waits up to `at_most` until the queue has something to report.
    pub(super) fn pause(&mut self, at_most: Duration) {
        if self.ring() {
            return;
        }
        let limit = self.until_due(at_most);
        self.queue.wait(limit);
    }

    /// Returns `at_most`, or the time until the next deadline if that is shorter.
    pub(super) fn until_due(&self, at_most: Duration) -> Duration {
        let mut due = self.queue.due();
        let mut index = self.waiting.first;
        while index != NONE {
            let job = &self.jobs[index as usize];
            due = due.min(job.due);
            index = job.next;
        }
        if due == Time::NEVER { at_most } else { at_most.min(due.since(self.queue.clock().now())) }
    }

    /// Returns when the queue should be polled: now if nothing is predicted, never if nothing is in flight.
    pub(super) fn expected(&self) -> Time {
        if self.busy == 0 && self.held == 0 {
            return Time::NEVER;
        }
        self.queue.expected().unwrap_or_default().min(self.queue.due())
    }

    /// Completes everything in flight: waits up to `SETTLE`, then resets the queue.
    fn settle(&mut self) {
        let end = self.queue.clock().now().after(SETTLE);
        let mut idle = 0;
        while self.busy > 0 && idle < 1_000 {
            let before = self.queue.clock().now();
            if before >= end {
                break;
            }
            if self.reap() {
                idle = 0;
                continue;
            }
            self.pause(end.since(before));
            // Counts rounds in which the clock does not advance: the queue's wait may return at once.
            idle = if self.queue.clock().now() == before { idle + 1 } else { 0 };
        }
        if self.busy > 0 || self.held > 0 {
            // Memory that a reset cannot recover stays with the device: see `drop`.
            let _ = self.reset();
        }
    }

    pub(super) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event()
    }

    /// Returns whether a request of this owner completed, or a slot became free, since the last call.
    pub(super) fn take_news(&mut self, owner: Owner) -> bool {
        std::mem::take(&mut self.owners[usize::from(owner)].news)
    }

    /// Returns the number of this owner's requests that have not completed.
    #[inline]
    pub(super) fn busy(&self, owner: Owner) -> u32 {
        self.owners[usize::from(owner)].busy
    }

    /// Returns whether waiting can free a slot for this owner: a request in flight completes, or a waiting caller collects its own.
    pub(super) fn may_come_free(&self, owner: Owner) -> bool {
        let job_owner = &self.owners[usize::from(owner)];
        job_owner.busy > 0 || job_owner.claims > 0
    }

    pub(super) fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)
    }

    #[inline]
    pub(super) fn queue(&mut self) -> &mut Tracked<Q, C> {
        &mut self.queue
    }

    #[inline]
    pub(super) fn now(&self) -> Time {
        self.queue.clock().now()
    }
}

impl<Q: Queue, C: Clock> Drop for Engine<Q, C> {
    /// Leaks memory that the device may still access, so that it is never reused.
    fn drop(&mut self) {
        self.settle();
        for job in &mut self.jobs {
            if job.parts_held > 0 || job.parts_out > 0 {
                let _with_the_device = ManuallyDrop::new(std::mem::take(&mut job.data));
            }
        }
    }
}

/// Returns the result of a request that was invalid or came too late: it was never accepted.
pub(super) fn refused(io: Io, error: Error) -> Done {
    let status: Status = Err(error);
    Done { ticket: Ticket(u64::MAX), user: io.user, op: io.op, held: false, status, data: io.data, failures: None }
}
