//! The books and the lanes of one device, and what becomes of requests that have ended.

use std::ops::Range;
use std::task::Poll;

use block::{Completion, Error, Geometry, Lba, Op, OpenError, Queue, Request, Span, Tag, Time};
use pagecache::{FileKey, FileNo, FrameId, Gave, PAGE_BYTES, PageCache, PageIndex, Room, State};

use crate::ahead::Stream;
use crate::lane::{Lane, Ticket, Tickets};
use crate::settings::{Settings, Stats, WriteMode};

/// Most pages of a read or write that are in flight for one waiter.
pub(crate) const WINDOW: usize = 64;
/// Most pages of one request.
const RUN_MAX: usize = 256;
/// Writes between two looks at the clock.
const WRITES_PER_LOOK: u32 = 64;
/// Epochs to the age limit.
const EPOCHS_TO_LIMIT: u8 = 4;

/// One user's place in a cache. Those who come later share its pages, not its stream, and are told of failures by themselves.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) stream: Stream,
    /// Failures of the device he knows of.
    pub(crate) failures: u32,
    /// Losses before he came: of those after, every flush of his tells.
    pub(crate) losses: u32,
}

/// See the module.
pub(crate) struct Core<Q> {
    pub(crate) pages: PageCache,
    /// The device, as the page cache names it.
    pub(crate) file: FileNo,
    pub(crate) shape: Geometry,
    lanes: Vec<Lane<Q>>,
    pub(crate) tickets: Tickets,
    pub(crate) settings: Settings,
    pub(crate) stats: Stats,
    /// Most pages of one request.
    run_max: usize,
    /// Most pages one waiter keeps.
    pub(crate) window: usize,
    window_max: usize,
    /// Pages about to be read; then frames about to be written.
    pub(crate) fills: Vec<FrameId>,
    run: Vec<FrameId>,
    spans: Vec<Span>,
    /// Pages to be written back: of the flush that runs, and of everybody else.
    pub(crate) flush_list: Vec<FrameId>,
    pub(crate) flush_runs: bool,
    pub(crate) victims: Vec<FrameId>,
    /// Requests that the device did not answer, and may still do.
    kept: usize,
    /// Those of them that discard: nothing is written meanwhile, or it might be discarded later.
    kept_discards: usize,
    ended_so_far: u64,
    writes_to_look: u32,
    ended: [Completion; 32],
}

impl<Q: Queue> Core<Q> {
    pub(crate) fn open(queues: Vec<Q>, settings: Settings) -> Result<Core<Q>, OpenError> {
        if queues.len() > 2 {
            return Err(OpenError::Unusable("a cache has one queue, or one for those who wait and one for what nobody waits for".into()));
        }
        let shape = queues.first().ok_or_else(|| OpenError::Unusable("a cache needs a queue".into()))?.geometry().clone();
        if let Some(obstacle) = Settings::obstacle(&shape) {
            return Err(OpenError::Unusable(obstacle));
        }
        let out_of_memory = |error| OpenError::system(format!("memory for {} cached pages", settings.pages.frames), error);
        let mut pages = PageCache::new(&settings.pages).map_err(out_of_memory)?;
        let file = pages.open_file(FileKey(0)).ok_or_else(|| OpenError::Unusable("a cache of no files".into()))?;
        let run_max = (shape.transfer_bytes_max as usize / PAGE_BYTES).min(shape.segments_max.into()).min(RUN_MAX);
        let frames = settings.pages.frames as usize;
        let window = (frames / 2).clamp(1, WINDOW);
        let mut lanes = Vec::new();
        for mut queue in queues {
            let refused = |error| OpenError::Unusable(format!("the device does not take the cache's memory: {error}"));
            queue.register(pages.arena()).map_err(refused)?;
            lanes.push(Lane::new(queue, run_max));
        }
        let mut settings = settings;
        settings.dirty_max = settings.dirty_max.clamp(1, settings.pages.frames);
        Ok(Core {
            pages,
            file,
            shape,
            lanes,
            tickets: Tickets::new(settings.waiters.max(1), window + 2),
            stats: Stats::default(),
            run_max,
            window,
            window_max: window,
            fills: Vec::with_capacity(window + settings.ahead_max as usize),
            run: Vec::with_capacity(run_max),
            spans: Vec::with_capacity(run_max),
            flush_list: Vec::with_capacity(frames),
            flush_runs: false,
            victims: Vec::with_capacity(frames.min(RUN_MAX)),
            kept: 0,
            kept_discards: 0,
            ended_so_far: 0,
            writes_to_look: 0,
            ended: [Completion::EMPTY; 32],
            settings,
        })
    }

    pub(crate) fn handle(&self) -> Handle {
        let failures = self.pages.failures(self.file);
        Handle { stream: Stream::default(), failures: failures.times, losses: failures.losses }
    }

    /// The range of bytes, if the device has it.
    #[inline]
    pub(crate) fn check(&self, offset: u64, bytes: usize) -> Result<(), Error> {
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= self.shape.bytes() => Ok(()),
            _ => Err(Error::OutOfRange),
        }
    }

    /// The device's bytes in a page: fewer in its last one.
    #[inline]
    pub(crate) fn page_bytes(&self, page: PageIndex) -> usize {
        (self.shape.bytes() - page.offset()).min(PAGE_BYTES as u64) as usize
    }

    /// The page after the device's last.
    pub(crate) fn end(&self) -> u64 {
        self.shape.bytes().div_ceil(PAGE_BYTES as u64)
    }

    // ---- down

    /// Lane for those who wait; the last one is for what nobody waits for.
    fn lane(&self, urgent: bool) -> usize {
        if urgent { 0 } else { self.lanes.len() - 1 }
    }

    /// Whether work that nobody waits for leaves room for who will.
    fn has_room_aside(&self) -> bool {
        let lane = &self.lanes[self.lane(false)];
        self.lanes.len() > 1 || lane.room() > lane.slots.len() / 4
    }

    /// Reads the pages in `fills`, in requests of adjacent ones. Those for which no request could be sent are Missing again.
    /// Returns how many are under way.
    pub(crate) fn read_in(&mut self, fills: Range<usize>, ticket: Option<Ticket>) -> usize {
        let mut from = fills.start;
        while from < fills.end {
            let run = from..self.run_end(from, fills.end);
            if (ticket.is_none() && !self.has_room_aside()) || !self.send_fill(run.clone(), ticket) {
                break;
            }
            from = run.end;
        }
        for at in from..fills.end {
            self.pages.fill_failed(self.fills[at], Gave::Back);
        }
        from - fills.start
    }

    /// The end of the adjacent pages of `fills` from one on.
    fn run_end(&self, from: usize, end: usize) -> usize {
        let page = |at: usize| self.pages.page(self.fills[at]).1.0;
        let mut to = from + 1;
        while to < end && to - from < self.run_max && page(to) == page(to - 1) + 1 {
            to += 1;
        }
        to
    }

    fn send_fill(&mut self, run: Range<usize>, ticket: Option<Ticket>) -> bool {
        self.run.clear();
        self.run.extend_from_slice(&self.fills[run]);
        let sent = self.send(Op::Read, ticket);
        if sent {
            self.stats.reads += 1;
            match ticket {
                Some(ticket) => self.keep_run(ticket),
                None => self.stats.ahead += self.run.len() as u64,
            }
        }
        sent
    }

    /// The pages are still there when the waiter comes for them.
    fn keep_run(&mut self, ticket: Ticket) {
        self.stats.misses += self.run.len() as u64;
        for frame in &self.run {
            let pinned = self.pages.pin(*frame);
            assert!(pinned, "the first pin of a new page");
            self.tickets.keep(ticket, *frame);
        }
    }

    /// Writes a dirty page back, together with the dirty pages around it. False: no room in the queue.
    pub(crate) fn write_out(&mut self, frame: FrameId, ticket: Option<Ticket>) -> bool {
        let (_, page) = self.pages.page(frame);
        let mut first = page.0;
        let mut frames = 1;
        // One that failed goes alone: the others around it shall not fail with it.
        if !self.pages.has_failed(frame) {
            let is_dirty = |page: u64| self.pages.cleanable_at(self.file, PageIndex(page)).is_some();
            while frames < self.run_max && first > 0 && is_dirty(first - 1) {
                first -= 1;
                frames += 1;
            }
            while frames < self.run_max && is_dirty(first + frames as u64) {
                frames += 1;
            }
        }
        self.run.clear();
        if frames == 1 {
            self.run.push(frame);
        } else {
            let found = (first..first + frames as u64).filter_map(|page| self.pages.cleanable_at(self.file, PageIndex(page)));
            self.run.extend(found);
        }
        self.send_writes(ticket)
    }

    /// Writes the adjacent dirty pages in `run`.
    fn send_writes(&mut self, ticket: Option<Ticket>) -> bool {
        if self.kept_discards > 0 || !self.send(Op::Write, ticket) {
            return false;
        }
        for at in 0..self.run.len() {
            self.pages.writing(self.run[at]);
        }
        self.stats.writes += 1;
        self.stats.pages_written += self.run.len() as u64;
        true
    }

    /// Submits one request for the adjacent pages in `run`; the bell is rung by `ring`.
    fn send(&mut self, op: Op, ticket: Option<Ticket>) -> bool {
        let (_, first) = self.pages.page(self.run[0]);
        let mut bytes = 0;
        self.spans.clear();
        for (page, frame) in (first.0..).zip(&self.run) {
            let span = self.pages.span(*frame).part(0, self.page_bytes(PageIndex(page)) as u32);
            bytes += u64::from(span.bytes);
            match self.spans.last_mut() {
                Some(last) if last.at + u64::from(last.bytes) == span.at => last.bytes += span.bytes,
                _ => self.spans.push(span),
            }
        }
        let block = u64::from(self.shape.block_bytes);
        let (lba, blocks) = (Lba(first.offset() / block), (bytes / block) as u32);
        let fua = op == Op::Write && self.settings.mode == WriteMode::Durable && self.shape.volatile_cache;
        let request = Request { op, fua, ..Request::read(Tag(0), lba, blocks) };
        let lane = self.lane(ticket.is_some());
        let sent = self.lanes[lane].submit(&request, &self.run, &self.spans, ticket);
        if let (true, Some(ticket)) = (sent, ticket) {
            self.tickets.submitted(ticket);
        }
        sent
    }

    /// Submits a request without pages.
    pub(crate) fn send_plain(&mut self, request: &Request, ticket: Ticket) -> bool {
        let sent = self.lanes[0].submit(request, &[], &[], Some(ticket));
        if sent {
            self.tickets.submitted(ticket);
            self.lanes[0].ring();
        }
        sent
    }

    /// One doorbell for each queue that was given something.
    pub(crate) fn ring(&mut self) {
        self.lanes.iter_mut().for_each(Lane::ring);
    }

    // ---- up

    /// Takes in what has ended; returns how many requests.
    pub(crate) fn reap(&mut self) -> usize {
        let mut count = 0;
        for lane in 0..self.lanes.len() {
            loop {
                let ended = self.lanes[lane].poll(&mut self.ended);
                for at in 0..ended {
                    self.take_in(lane, self.ended[at]);
                }
                count += ended;
                if ended < self.ended.len() {
                    break;
                }
            }
            count += self.take_released(lane);
        }
        self.ended_so_far += count as u64;
        count
    }

    fn take_in(&mut self, lane: usize, ended: Completion) {
        let number = self.lanes[lane].slot(ended.tag);
        let kept = ended.status.is_err() && self.lanes[lane].queue.holds(ended.tag);
        let gave = if kept { Gave::Not } else { Gave::Back };
        let slot = &self.lanes[lane].slots[number as usize];
        let (op, ticket) = (slot.op, slot.ticket);
        let safe = slot.fua || !self.shape.volatile_cache;
        for frame in &slot.frames {
            match (op, ended.status) {
                (Op::Read, Ok(())) => {
                    let (_, page) = self.pages.page(*frame);
                    let bytes = (self.shape.bytes() - page.offset()).min(PAGE_BYTES as u64) as usize;
                    if bytes < PAGE_BYTES {
                        self.pages.clear(*frame, bytes..PAGE_BYTES);
                    }
                    self.pages.filled(*frame);
                }
                (Op::Read, Err(_)) => self.pages.fill_failed(*frame, gave),
                (_, Ok(())) => self.pages.written(*frame, safe),
                (_, Err(error)) => self.pages.write_failed(*frame, gave, error),
            }
        }
        if op == Op::Flush {
            self.pages.flush_ended(self.file, ended.status);
        }
        if let Some(ticket) = ticket {
            self.tickets.ended(ticket, ended.status);
        }
        match kept {
            true => {
                self.kept += 1;
                self.kept_discards += usize::from(op == Op::Discard);
            }
            false => self.lanes[lane].free(number),
        }
    }

    /// Memory that the device had kept and lets go.
    fn take_released(&mut self, lane: usize) -> usize {
        let mut count = 0;
        while self.kept > 0
            && let Some(tag) = self.lanes[lane].queue.take_released()
        {
            let number = self.lanes[lane].slot(tag);
            for frame in &self.lanes[lane].slots[number as usize].frames {
                self.pages.released(*frame);
            }
            self.kept_discards -= usize::from(self.lanes[lane].slots[number as usize].op == Op::Discard);
            self.lanes[lane].free(number);
            self.kept -= 1;
            count += 1;
        }
        count
    }

    /// Requests that were taken in, ever.
    pub(crate) fn ended_so_far(&self) -> u64 {
        self.ended_so_far
    }

    /// Requests in flight: something will happen.
    pub(crate) fn in_flight(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.queue.in_flight()).sum()
    }

    /// Uses at most so many frames from now on, and the same part of them dirty.
    pub(crate) fn set_limit(&mut self, frames: u32) {
        let before = u64::from(self.pages.limit());
        self.pages.set_limit(frames);
        let scale = |pages: u32| (u64::from(pages) * u64::from(self.pages.limit()) / before) as u32;
        (self.settings.dirty_max, self.settings.dirty_background) =
            (scale(self.settings.dirty_max).max(1), scale(self.settings.dirty_background));
        self.window = (self.pages.limit() as usize / 2).clamp(1, self.window_max);
    }

    /// Its queues.
    pub(crate) fn queues(&mut self) -> impl Iterator<Item = &mut Q> {
        self.lanes.iter_mut().map(|lane| &mut lane.queue)
    }

    /// Gives the queues back.
    pub(crate) fn into_queues(self) -> Vec<Q> {
        self.lanes.into_iter().map(|lane| lane.queue).collect()
    }

    // ---- waiting

    /// Wait, if something will happen: a request ends, or another waiter comes for his pages. Otherwise there is no hope.
    /// `tickets`: those of the one who asks.
    pub(crate) fn pending<T>(&self, tickets: usize) -> Poll<Result<T, Error>> {
        if self.in_flight() > 0 || self.tickets.used() > tickets {
            return Poll::Pending;
        }
        let failures = self.pages.failures(self.file);
        let full = if self.pages.failed(self.file) > 0 { failures.last } else { None };
        Poll::Ready(Err(full.unwrap_or(if self.kept > 0 { Error::Timeout } else { Error::NoResources })))
    }

    /// Gives a ticket back, and the pages it kept. Whoever needs one of those for longer has pinned it himself.
    #[inline]
    pub(crate) fn settle(&mut self, ticket: &mut Option<Ticket>) {
        if let Some(ticket) = ticket.take() {
            self.let_go(ticket);
        }
    }

    #[cold]
    fn let_go(&mut self, ticket: Ticket) {
        while let Some(frame) = self.tickets.next_kept(ticket) {
            self.pages.unpin(frame);
        }
        self.tickets.give_back(ticket);
    }

    // ---- in passing

    /// Evicts ahead of need, while the device is busy anyway.
    pub(crate) fn keep_ahead(&mut self) {
        if self.pages.is_low()
            && let Room::Dirty(frame) = self.pages.evict_ahead()
        {
            self.write_aside(frame);
            self.ring();
        }
    }

    /// Writes a page back that nobody waits for; not when that would keep others from the queue.
    pub(crate) fn write_aside(&mut self, frame: FrameId) -> bool {
        self.has_room_aside() && self.write_out(frame, None)
    }

    /// Writes back what is old, and what is more than the background limit.
    pub(crate) fn write_back(&mut self) {
        self.reap();
        if self.flush_runs || !self.has_room_aside() {
            return;
        }
        let many = self.pages.unwritten() > self.settings.dirty_background;
        let old = self.pages.oldest(self.file).is_some_and(|frame| self.pages.age(frame) >= EPOCHS_TO_LIMIT);
        if many || old {
            self.write_oldest(old);
        }
        self.ring();
    }

    /// Writes back the dirty pages that wait longest, in the order of their pages. `failed`: also those whose last write failed.
    pub(crate) fn write_oldest(&mut self, failed: bool) {
        self.victims.clear();
        self.pages.collect_dirty(self.file, &(0..u64::MAX), failed, &mut self.victims);
        for at in 0..self.victims.len() {
            let frame = self.victims[at];
            // It may have gone with one before it.
            if self.pages.state(frame) == State::Dirty && !self.write_aside(frame) {
                break;
            }
        }
    }

    /// Now and then: what time is it? For the ages of dirty pages.
    #[inline]
    pub(crate) fn look_at_clock(&mut self, now: bool) {
        self.writes_to_look = self.writes_to_look.saturating_sub(1);
        if now || self.writes_to_look == 0 {
            self.writes_to_look = WRITES_PER_LOOK;
            let Time(ns) = self.settings.clock.now();
            let epoch_ns = (self.settings.dirty_age / u32::from(EPOCHS_TO_LIMIT)).as_nanos().max(1);
            self.pages.set_epoch((u128::from(ns) / epoch_ns % u128::from(pagecache::cache::EPOCHS)) as u8);
            self.write_back();
        }
    }
}
