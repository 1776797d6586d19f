//! A queue pair of one namespace, as the block layer wants it.
//!
//! One owner, no lock and no allocation between `submit` and the completion. A request becomes one command where it can; longer ones, and
//! those whose memory lies across pages, become several or are copied (`issue.rs`, `memory.rs`). The driver does not
//! trust completions: it counts and drops an entry whose identifier is not in use.
//!
//! [`block::Tracked`] wraps the queue and enforces deadlines: it calls [`Queue::cancel`], then [`Queue::reset`]. `life.rs` implements
//! both.

mod commands;
mod issue;
mod life;
mod memory;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use block::{Arena, Armed, Completion, Error, Geometry, OpenError, Queue, QueueOptions, Request, Span, Submit, Tag};

pub use commands::Counters;
use commands::{CommandSlot, Job};
use life::Life;
use memory::Memory;

use crate::admin::AdminError;
use crate::cid::Cids;
use crate::events;
use crate::identify::{NamespaceInfo, NvmLimits};
use crate::pair::Pair;
use crate::recorder::{Reason, Record, Recorder};
use crate::registers::completion_doorbell;
use crate::shared::{Health, Shared};

/// The maximum number of memory pieces of a request.
pub(crate) const SEGMENTS_MAX: usize = 128;
/// The maximum size of a command in bytes, if the controller allows it: then its PRP list fits one page.
pub(crate) const COMMAND_BYTES_MAX: u32 = 512 << 10;
/// Pages for copies: enough for one command of which nothing can be named.
const BOUNCE_PAGES: u16 = 160;
/// Lists of pages: commands above two pages that can be in flight at once.
const LISTS_MAX: u32 = 128;
/// Places of a ring at least, so that a request may be several commands.
const ENTRIES_MIN: u32 = 64;
const ENTRIES_MAX: u32 = 4096;
/// Checks of the ring before a polling owner reads the controller's health, which may cost a message to another process.
const SPINS: u32 = 4096;
/// Checks of the ring between two CPU pauses: a pause costs as much as several checks, and far more in a virtual machine.
const PAUSE_AFTER: u32 = 16;
/// Empty polls before a health check, so that an owner that only polls also notices a removed device.
const CHECK_AFTER: u32 = 1 << 16;
/// Wakeups without a completion before a health check: events of a removed device may stay readable.
const CHECK_AFTER_ARMS: u32 = 8;

/// The namespace that a queue serves, as it was when the namespace was opened.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceSnapshot {
    /// The description of the namespace.
    pub info: NamespaceInfo,
    /// The geometry of the namespace as a device.
    pub geometry: Geometry,
    /// The maximum size of a command in bytes.
    pub command_bytes_max: u32,
    /// The controller's changes of namespaces that the description includes.
    pub changes: u32,
}

/// A queue pair of one namespace, with one owner.
pub struct NvmeQueue {
    shared: Arc<Shared>,
    geometry: Geometry,
    namespace: u32,
    block_shift: u32,
    command_bytes_max: u32,
    zeroes_blocks_max: u32,
    zeroes_deallocate: bool,
    limits: NvmLimits,
    depth: u32,
    vector: Option<u16>,
    /// Since the queue was made; wraps.
    empty_polls: u32,
    /// Since something came.
    vain_arms: u32,
    pair: Pair,
    life: Life,
    /// The controller's resets that we know of.
    epoch: u32,
    /// Its changes of namespaces that we know of.
    changes: u32,
    cids: Cids,
    slots: Box<[CommandSlot]>,
    free_slots: Vec<u16>,
    jobs: Box<[Job]>,
    free_jobs: Vec<u16>,
    /// Pieces of memory of the jobs that go the long way.
    spans: Box<[Span]>,
    waiting: VecDeque<u16>,
    ranges: Option<issue::Ranges>,
    memory: Memory,
    ended: VecDeque<Completion>,
    in_flight: u32,
    recorder: Recorder,
    counters: Counters,
}

impl NvmeQueue {
    pub(crate) fn open(shared: &Arc<Shared>, namespace: &NamespaceSnapshot, options: &QueueOptions) -> Result<NvmeQueue, OpenError> {
        if !(1..=4096).contains(&options.depth) || !options.depth.is_power_of_two() {
            return Err(OpenError::Unusable(format!("a queue of depth {}: it has to be a power of two, at most 4096", options.depth)));
        }
        let number = shared
            .inner
            .lock()
            .take_queue()
            .ok_or_else(|| OpenError::Unusable(format!("{} has no more queues: close one, or use a broker", shared.function.name)))?;
        let made = NvmeQueue::make(shared, namespace, options, number);
        let mut queue = made.map_err(|trouble| {
            shared.inner.lock().give_queue(number);
            OpenError::Unusable(format!("{}, queue {number}: {trouble}", shared.function.name))
        })?;
        // From here on dropping it gives the number back.
        queue.create_now().map_err(|trouble| OpenError::Unusable(format!("{}, queue {number}: {trouble}", shared.function.name)))?;
        Ok(queue)
    }

    fn make(shared: &Arc<Shared>, namespace: &NamespaceSnapshot, options: &QueueOptions, number: u16) -> Result<NvmeQueue, AdminError> {
        let (depth, function) = (options.depth, &shared.function);
        let entries = (depth + 1).next_power_of_two().max(ENTRIES_MIN).min(shared.capabilities.entries_max()).min(ENTRIES_MAX);
        let slots = entries as usize - 1;
        if completion_doorbell(number, shared.capabilities.stride()) + 4 > function.mmio.bytes() {
            return Err(AdminError::Unusable("its doorbell is beyond the registers that can be reached".to_owned()));
        }
        let inner = shared.inner.lock();
        let shadow = inner.shadow.as_ref().filter(|_| inner.shadow_on);
        let pair = Pair::new(&function.mmio, &function.dma, (number, entries), shared.capabilities.stride(), shadow)?;
        let zeroes = inner.limits.zeroes_bytes_max.unwrap_or(u64::MAX) / u64::from(namespace.info.block_bytes);
        let lists = u16::try_from(depth.min(LISTS_MAX)).expect("few");
        let has_vector = !options.device_polled && number < function.irq.vectors();
        Ok(NvmeQueue {
            shared: Arc::clone(shared),
            geometry: namespace.geometry.clone(),
            namespace: namespace.info.id,
            block_shift: namespace.info.block_bytes.trailing_zeros(),
            command_bytes_max: namespace.command_bytes_max,
            zeroes_blocks_max: u32::try_from(zeroes).unwrap_or(u32::MAX).max(1),
            zeroes_deallocate: namespace.info.zeroes_deallocate,
            limits: inner.limits,
            depth,
            vector: has_vector.then_some(number),
            empty_polls: 0,
            vain_arms: 0,
            pair,
            life: Life::Lost,
            epoch: shared.epoch(),
            changes: namespace.changes,
            cids: Cids::new(slots),
            slots: vec![CommandSlot::FREE; slots].into(),
            free_slots: (0..slots as u16).rev().collect(),
            jobs: vec![Job::FREE; depth as usize].into(),
            free_jobs: (0..depth as u16).rev().collect(),
            spans: vec![Span { arena: block::buffer::ArenaId(0), bytes: 0, at: 0 }; depth as usize * SEGMENTS_MAX].into(),
            waiting: VecDeque::with_capacity(depth as usize),
            ranges: None,
            memory: Memory::new(&function.dma, lists, BOUNCE_PAGES)?,
            ended: VecDeque::with_capacity(depth as usize),
            in_flight: 0,
            recorder: shared.flight.recorder(number, entries),
            counters: Counters::default(),
        })
    }

    /// Returns what the queue has done so far.
    pub fn counters(&self) -> Counters {
        Counters { bounced: self.memory.bounced, ..self.counters }
    }

    /// Returns the contents of its flight recorder.
    pub fn record(&self) -> Record {
        self.recorder.record()
    }

    /// Returns the queue's number at the controller.
    pub fn number(&self) -> u16 {
        self.pair.number()
    }

    /// Returns whether the queue is usable: no reset of the controller and no change of the namespace happened since it was checked.
    #[inline]
    fn is_live(&self) -> bool {
        let is_known = self.shared.epoch() == self.epoch && self.shared.changes() == self.changes;
        self.life == Life::Live && is_known && !self.shared.is_gone()
    }

    /// Whether `poll` has something to do.
    fn is_ready(&self) -> bool {
        if !self.ended.is_empty() || (self.life == Life::Live && self.pair.has_answer()) {
            return true;
        }
        match self.shared.is_gone() {
            true => self.shared.is_quiet() && self.life != Life::Dead,
            false => self.shared.epoch() != self.epoch || self.shared.changes() != self.changes,
        }
    }

    fn refuse(&mut self, tag: Tag, error: Error) {
        self.ended.push_back(Completion { tag, status: Err(error) });
    }

    #[inline]
    fn accept(&mut self, request: &Request, data: &[Span]) {
        let Some(&index) = self.free_jobs.last() else { return self.refuse(request.tag, Error::NoResources) };
        if let ([span], true, true) = (data, self.waiting.is_empty(), self.is_live())
            && request.op.has_data()
            && self.issue_single(index, request, *span)
        {
            self.free_jobs.pop();
            return;
        }
        self.accept_long(index, request, data);
    }

    fn accept_long(&mut self, index: u16, request: &Request, data: &[Span]) {
        if self.life == Life::Dead {
            return self.refuse(request.tag, Error::Gone);
        }
        let data = if request.op.has_data() { data } else { &[] };
        if data.iter().any(|span| !self.memory.arenas.has(*span)) {
            return self.refuse(request.tag, Error::NotPermitted);
        }
        self.free_jobs.pop();
        self.keep(index, request, data);
        if self.is_live() {
            self.pump();
        }
    }

    /// Reaps at most `most` completion entries.
    #[inline]
    fn reap(&mut self, most: usize) {
        let mut left = most.min(self.pair.entries() as usize);
        while left > 0 {
            let Some((place, answer)) = self.pair.pop() else { break };
            left -= 1;
            self.recorder.answer(place, &answer);
            let slot = self.cids.slot(answer.cid());
            let known = self.slots.get(slot).is_some_and(|place| place.busy && place.entry.cid() == answer.cid());
            if !known || answer.queue() != self.pair.number() {
                self.stray();
            } else if answer.status().is_ok() {
                self.end(slot, Ok(()));
            } else {
                self.failed(slot, answer.status());
            }
        }
        let given = if self.vector.is_some() { self.pair.give_back() } else { self.pair.give_back_many() };
        self.note_head(given);
    }

    #[cold]
    fn tell_head(&mut self) {
        let given = self.pair.give_back();
        self.note_head(given);
    }

    #[inline]
    fn note_head(&mut self, given: Option<(u16, bool)>) {
        if let Some((head, written)) = given {
            self.recorder.head(head, written);
            self.counters.doorbells += u64::from(written);
        }
    }

    /// Counts a stray completion entry, and records the first one.
    #[cold]
    fn stray(&mut self) {
        self.counters.strays += 1;
        if self.counters.strays == 1 {
            tracing::warn!("{}, queue {}: an answer to a command that is not there", self.shared.function.name, self.number());
            self.remember(Reason::Stray);
        }
    }

    /// Keeps the contents of the flight recorder, unless another thread holds the controller.
    fn remember(&mut self, reason: Reason) {
        if let Some(mut inner) = self.shared.inner.try_lock() {
            self.shared.remember(&mut inner, reason, self.recorder.record());
        }
    }

    #[inline]
    fn drain(&mut self, to: &mut [Completion]) -> usize {
        let count = self.ended.len().min(to.len());
        for place in &mut to[..count] {
            if let Some(completion) = self.ended.pop_front() {
                *place = completion;
            }
        }
        self.in_flight -= count as u32;
        count
    }
}

impl Queue for NvmeQueue {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.memory.arenas.add(&self.shared, arena)
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.depth {
            return Submit::Full;
        }
        self.in_flight += 1;
        match self.geometry.check(request, data) {
            Ok(()) => self.accept(request, data),
            Err(error) => self.refuse(request.tag, error),
        }
        Submit::Queued
    }

    fn ring(&mut self) {
        if self.ranges.is_some() {
            self.close_ranges();
        }
        if self.pair.is_tail_written() || self.life != Life::Live {
            return;
        }
        let (tail, written) = self.pair.ring();
        self.recorder.tail(tail, written);
        self.counters.rings += 1;
        self.counters.doorbells += u64::from(written);
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        if !self.is_live() {
            self.revive();
        }
        // A deallocate may end many: what does not fit waits for the next call.
        if self.life == Life::Live && self.ended.len() < completions.len() {
            self.reap(completions.len() - self.ended.len());
        }
        if !self.waiting.is_empty() && self.is_live() {
            self.pump();
            self.ring();
        }
        let count = self.drain(completions);
        if count > 0 {
            self.vain_arms = 0;
        } else if self.in_flight > 0 {
            self.empty_polls = self.empty_polls.wrapping_add(1);
            if self.empty_polls.is_multiple_of(CHECK_AFTER) {
                self.check_device();
            }
        }
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        self.ring();
        if self.is_ready() {
            return;
        }
        events::serve(&self.shared);
        if self.life != Life::Live {
            return self.wait_revived(at_most);
        }
        let irq = &self.shared.function.irq;
        match self.vector {
            Some(vector) => {
                irq.wait(vector, at_most);
                irq.clear(vector);
            }
            // The owner of a polled device does not want to sleep.
            None if self.shared.clock.passes() => {
                for look in 1..=SPINS {
                    if self.is_ready() {
                        return;
                    }
                    if look.is_multiple_of(PAUSE_AFTER) {
                        std::hint::spin_loop();
                    }
                }
            }
            None => irq.pause(at_most),
        }
        if !self.is_ready() {
            self.check_device();
        }
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.shared.function.irq.event(self.vector?)
    }

    fn arm(&mut self) -> Armed {
        let Some(vector) = self.vector else { return Armed::Ready };
        if self.is_ready() || self.life != Life::Live {
            return Armed::Ready;
        }
        self.shared.function.irq.clear(vector);
        self.vain_arms = self.vain_arms.wrapping_add(1);
        if self.vain_arms.is_multiple_of(CHECK_AFTER_ARMS) {
            self.check_device();
        }
        if self.is_ready() { Armed::Ready } else { Armed::Waiting }
    }

    fn cancel(&mut self, tag: Tag) {
        let Some(index) = self.jobs.iter().position(|job| job.busy && job.tag == tag) else { return };
        let job = &mut self.jobs[index];
        job.cancelled = true;
        if job.left > 0 {
            // The rest of it is not done.
            job.fail(Error::Cancelled);
        }
        if job.out == 0 {
            return self.finish(index as u16);
        }
        if self.shared.health() == Health::Gone {
            return;
        }
        self.remember(Reason::Overdue);
        self.abort(index as u16);
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.start_over()
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

impl Drop for NvmeQueue {
    fn drop(&mut self) {
        self.close();
    }
}
