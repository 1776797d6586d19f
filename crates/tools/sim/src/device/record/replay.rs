//! Replaying a recording on a queue.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use block::buffer::UNIT_BYTES;
use block::{Arena, Buf, Clock, Completion, Queue, Request, Span, Status, Submit, Tag, Time};

use super::format::{QueueEvent, Recording, RecordingError};

/// The pace of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayPace {
    /// Each request as soon as those completed that had completed before its recorded submission, so dependencies are kept.
    Fast,
    /// Each request at its recorded time, or later if the queue is full.
    Recorded,
}

/// A request that completed with another status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayDifference {
    /// The request that was submitted.
    pub request: Request,
    /// The recorded status. `None`: never completed.
    pub recorded: Option<Status>,
    /// The replayed status. `None`: not completed.
    pub replayed: Option<Status>,
}

/// The result of a replay.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReplayResult {
    /// Number of requests that were replayed.
    pub requests: u64,
    /// Number of requests with another status.
    pub differ: u64,
    /// The first thousand of these requests.
    pub differences: Vec<ReplayDifference>,
    /// Duration of the whole recording.
    pub recorded: Duration,
    /// Duration of the whole replay.
    pub took: Duration,
}

const DIFFERENCES_MAX: usize = 1000;
/// Memory for requests in flight; larger needs are replayed one request at a time.
const ARENA_BYTES_MAX: usize = 256 << 20;

#[derive(Debug)]
struct InFlightRequest {
    request: Request,
    recorded_tag: Tag,
    memory: Option<Buf>,
    recorded: Option<Status>,
    replayed: Option<Status>,
}

struct QueueReplay<'a> {
    queue: &'a mut dyn Queue,
    clock: &'a dyn Clock,
    arena: Arena,
    /// Requests in flight by the replay's tag.
    flying: HashMap<u64, InFlightRequest>,
    /// Replay tags by recorded tag, while the recording has the request in flight.
    tags: HashMap<u64, u64>,
    waiting: VecDeque<u64>,
    next_tag: u64,
    result: ReplayResult,
}

/// Replays a recording. Written data is meaningless: **the content of the device is lost**. Cancels are repeated. Resets are not, but
/// requests that a reset ended are awaited without comparing their status.
///
/// # Errors
/// The recording is damaged; all events before the damage were replayed.
///
/// # Panics
/// If there is no memory for a single request.
pub fn replay(
    recording: Recording<'_>,
    queue: &mut dyn Queue,
    clock: &dyn Clock,
    pace: ReplayPace,
) -> Result<ReplayResult, (RecordingError, ReplayResult)> {
    let transfer = recording.header().geometry.transfer_bytes_max.min(queue.geometry().transfer_bytes_max) as usize;
    let most = transfer.next_multiple_of(UNIT_BYTES).saturating_mul(queue.depth() as usize);
    let arena = Arena::private(most.min(ARENA_BYTES_MAX).max(transfer)).expect("memory");
    queue.register(&arena).expect("memory that a device reaches");
    let begin = clock.now();
    let mut replay = QueueReplay {
        queue,
        clock,
        arena,
        flying: HashMap::new(),
        tags: HashMap::new(),
        waiting: VecDeque::new(),
        next_tag: 0,
        result: ReplayResult::default(),
    };
    let mut bad = None;
    for event in recording {
        match event {
            Ok(event) => replay.event(&event, begin, pace),
            Err(found) => bad = Some(found),
        }
    }
    replay.finish();
    replay.result.took = clock.now().since(begin);
    match bad {
        Some(bad) => Err((bad, replay.result)),
        None => Ok(replay.result),
    }
}

impl QueueReplay<'_> {
    fn event(&mut self, event: &QueueEvent, begin: Time, pace: ReplayPace) {
        self.result.recorded = Duration::from_nanos(event.time().0);
        if pace == ReplayPace::Recorded {
            self.wait_until(begin.after(self.result.recorded));
        }
        match event {
            QueueEvent::Submit(_, request) => self.submit(request),
            QueueEvent::Ring(_) => self.queue.ring(),
            QueueEvent::Complete(_, tag, status) => self.completed(*tag, *status, pace),
            QueueEvent::Cancel(_, tag) => {
                if let Some(ours) = self.tags.get(&tag.0) {
                    self.queue.cancel(Tag(*ours));
                }
            }
            QueueEvent::Reset(..) => self.was_reset(),
        }
    }

    fn submit(&mut self, request: &Request) {
        let memory = self.memory(request);
        self.next_tag += 1;
        let ours = self.next_tag;
        self.tags.insert(request.tag.0, ours);
        self.result.requests += 1;
        let below = Request { tag: Tag(ours), ..*request };
        let spans: &[Span] = &memory.iter().map(Buf::span).collect::<Vec<_>>();
        while self.queue.submit(&below, spans) == Submit::Full {
            self.step();
        }
        let flying = InFlightRequest { request: *request, recorded_tag: request.tag, memory, recorded: None, replayed: None };
        self.flying.insert(ours, flying);
    }

    /// Allocates memory for a request; too little for an invalid one, so that the device rejects it.
    fn memory(&mut self, request: &Request) -> Option<Buf> {
        let geometry = self.queue.geometry();
        let bytes = u64::from(request.blocks) * u64::from(geometry.block_bytes);
        let bytes = bytes.min(geometry.transfer_bytes_max.into()) as usize;
        if !request.op.has_data() || bytes == 0 {
            return None;
        }
        loop {
            if let Some(memory) = self.arena.allocate(bytes) {
                return Some(memory);
            }
            assert!(self.queue.in_flight() > 0, "memory for one request");
            self.step();
        }
    }

    fn completed(&mut self, tag: Tag, status: Status, pace: ReplayPace) {
        let Some(ours) = self.tags.remove(&tag.0) else { return };
        if let Some(flying) = self.flying.get_mut(&ours) {
            flying.recorded = Some(status);
            self.settle(ours);
        }
        while pace == ReplayPace::Fast && self.flying.contains_key(&ours) && self.queue.in_flight() > 0 {
            self.step();
        }
    }

    fn was_reset(&mut self) {
        self.waiting.extend(self.tags.drain().map(|(_, ours)| ours));
        while let Some(ours) = self.waiting.pop_front() {
            while self.flying.get(&ours).is_some_and(|flying| flying.replayed.is_none()) && self.queue.in_flight() > 0 {
                self.step();
            }
            self.flying.remove(&ours);
        }
    }

    /// Reaps completions, and waits if there are none.
    fn step(&mut self) {
        self.queue.ring();
        if self.poll() == 0 {
            self.queue.wait(Duration::from_secs(1));
        }
    }

    fn poll(&mut self) -> usize {
        let mut ended = [Completion::EMPTY; 64];
        let count = self.queue.poll(&mut ended);
        for completion in &ended[..count] {
            if let Some(flying) = self.flying.get_mut(&completion.tag.0) {
                flying.replayed = Some(completion.status);
                flying.memory = None;
                self.settle(completion.tag.0);
            }
        }
        count
    }

    /// Compares a request that completed in both.
    fn settle(&mut self, ours: u64) {
        let Some(flying) = self.flying.get(&ours) else { return };
        if let (Some(recorded), Some(replayed)) = (flying.recorded, flying.replayed) {
            let request = Request { tag: flying.recorded_tag, ..flying.request };
            self.flying.remove(&ours);
            if recorded != replayed {
                self.differs(ReplayDifference { request, recorded: Some(recorded), replayed: Some(replayed) });
            }
        }
    }

    fn differs(&mut self, difference: ReplayDifference) {
        self.result.differ += 1;
        if self.result.differences.len() < DIFFERENCES_MAX {
            self.result.differences.push(difference);
        }
    }

    fn wait_until(&mut self, time: Time) {
        loop {
            let now = self.clock.now();
            if now >= time {
                return;
            }
            if self.poll() == 0 {
                self.queue.wait(time.since(now));
            }
        }
    }

    fn finish(&mut self) {
        while self.queue.in_flight() > 0 {
            self.step();
        }
        let mut left: Vec<(u64, InFlightRequest)> = self.flying.drain().collect();
        left.sort_by_key(|(ours, _)| *ours);
        for (_, flying) in left {
            // The recording was truncated before this completion: nothing to compare.
            if flying.recorded.is_some() {
                self.differs(ReplayDifference { request: flying.request, recorded: flying.recorded, replayed: flying.replayed });
            }
        }
    }
}

/// Returns whether any request of a recording may change the device, so that a tool can ask before it replays.
pub fn changes(recording: Recording<'_>) -> bool {
    recording.flatten().any(|event| matches!(event, QueueEvent::Submit(_, request) if request.op.writes()))
}
