//! A small faulty device: late, lost, failing, repeated and invented completions, ignored cancels, failing resets. It accesses the
//! memory of requests that it still holds at any time. Its time is virtual, and a seed determines its behaviour.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::clock::{Clock, Time};
use block::{Arena, Completion, Error, Geometry, Op, Queue, Request, Span, Submit, Tag};
use shm::{PageSize, Region};

/// The block size in bytes.
pub const BLOCK: usize = 512;
/// The timeout of a request.
pub const TIMEOUT: Duration = Duration::from_micros(200);
/// How long a cancel may take.
pub const GRACE: Duration = Duration::from_micros(20);
/// How long memory may be held before a reset.
pub const RESET_AFTER: Duration = Duration::from_micros(300);

/// A clock with virtual time, in nanoseconds.
#[derive(Clone, Default)]
pub struct Ticking(Arc<AtomicU64>);

impl Ticking {
    /// Advances the time by a duration.
    pub fn pass(&self, duration: Duration) {
        self.0.fetch_add(u64::try_from(duration.as_nanos()).expect("short"), Ordering::Relaxed);
    }
}

impl Clock for Ticking {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

/// The probabilities of faults, in parts per thousand.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Requests of 1000 that fail with a media error.
    pub fails: u32,
    /// Requests of 1000 that take too long.
    pub slow: u32,
    /// Requests of 1000 that never complete.
    pub lost: u32,
    /// Cancels of 1000 that have an effect.
    pub hears: u32,
    /// Resets of 1000 that fail; the device is then gone.
    pub goes: u32,
}

struct Doing {
    request: Request,
    data: Vec<Span>,
    ends: Time,
    status: Result<(), Error>,
}

/// A queue of a faulty device. Queues with the same blocks belong to one device.
pub struct Unruly {
    geometry: Geometry,
    blocks: Arc<Region>,
    depth: u32,
    clock: Ticking,
    random: fastrand::Rng,
    manners: Manners,
    arenas: Vec<Arena>,
    doing: Vec<Doing>,
    /// Tags of earlier requests.
    old: Vec<Tag>,
    gone: bool,
}

impl Unruly {
    /// Makes a queue of a device with these blocks.
    pub fn new(blocks: &Arc<Region>, geometry: Geometry, depth: u32, clock: &Ticking, manners: Manners, seed: u64) -> Unruly {
        Unruly {
            geometry,
            blocks: Arc::clone(blocks),
            depth,
            clock: clock.clone(),
            random: fastrand::Rng::with_seed(seed),
            manners,
            arenas: Vec::new(),
            doing: Vec::new(),
            old: Vec::new(),
            gone: false,
        }
    }

    /// Allocates the blocks of a device.
    pub fn blocks(count: u64) -> Arc<Region> {
        Arc::new(Region::private(usize::try_from(count).expect("few") * BLOCK, PageSize::Small).expect("memory"))
    }

    fn of_1000(&mut self, part: u32) -> bool {
        self.random.u32(..1000) < part
    }

    fn memory(&self, span: &Span) -> &Arena {
        self.arenas.iter().find(|arena| arena.id() == span.arena).expect("registered")
    }

    fn transfer(&self, doing: &Doing) {
        let mut at = usize::try_from(doing.request.lba.0).expect("small") * BLOCK;
        if doing.request.op == Op::WriteZeroes {
            self.blocks.fill(at..at + doing.request.blocks as usize * BLOCK, 0);
        }
        for span in &doing.data {
            let (memory, memory_at) = (self.memory(span).region(), usize::try_from(span.at).expect("small"));
            match doing.request.op {
                Op::Read => self.blocks.copy(at, memory, memory_at, span.bytes as usize),
                _ => memory.copy(memory_at, &self.blocks, at, span.bytes as usize),
            }
            at += span.bytes as usize;
        }
    }

    /// Writes random bytes to the memory of unfinished reads, as a device may do.
    fn scribble(&mut self) {
        let reads = self.doing.iter().filter(|doing| doing.request.op == Op::Read);
        for span in reads.flat_map(|doing| &doing.data) {
            let at = usize::try_from(span.at).expect("small");
            self.memory(span).region().fill(at..at + span.bytes as usize, 0xEE);
        }
    }
}

impl Queue for Unruly {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.arenas.push(arena.clone());
        Ok(())
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.doing.len() >= self.depth as usize || self.of_1000(50) {
            return Submit::Full;
        }
        self.geometry.check(request, data).expect("checked above");
        assert!(self.doing.iter().all(|doing| doing.request.tag != request.tag), "a tag twice in flight");
        let micros = match self.random.u32(..1000) {
            kind if kind < self.manners.lost => u64::MAX / 2_000,
            kind if kind < self.manners.lost + self.manners.slow => self.random.u64(150..800),
            _ => self.random.u64(..40),
        };
        let status = if self.of_1000(self.manners.fails) { Err(Error::Media) } else { Ok(()) };
        let ends = self.clock.now().after(Duration::from_micros(micros));
        self.doing.push(Doing { request: *request, data: data.to_vec(), ends, status });
        Submit::Queued
    }

    fn ring(&mut self) {}

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.scribble();
        let now = self.clock.now();
        let mut count = 0;
        while count < completions.len() {
            let due: Vec<usize> = (0..self.doing.len()).filter(|at| self.doing[*at].ends <= now).collect();
            if due.is_empty() || self.gone {
                break;
            }
            // In any order.
            let doing = self.doing.swap_remove(due[self.random.usize(..due.len())]);
            if doing.status.is_ok() {
                self.transfer(&doing);
            }
            self.old.push(doing.request.tag);
            completions[count] = Completion { tag: doing.request.tag, status: doing.status };
            count += 1;
        }
        if count < completions.len() && !self.old.is_empty() && self.of_1000(30) {
            let at = self.random.usize(..self.old.len());
            let tag = if self.random.bool() { self.old[at] } else { Tag(self.random.u64(..)) };
            completions[count] = Completion { tag, status: Ok(()) };
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.doing.len()).expect("few")
    }

    fn wait(&mut self, at_most: Duration) {
        let now = self.clock.now();
        let next = self.doing.iter().map(|doing| doing.ends.since(now)).min().unwrap_or(at_most);
        self.clock.pass(next.min(at_most).max(Duration::from_nanos(100)));
    }

    fn cancel(&mut self, tag: Tag) {
        let (hears, now) = (self.of_1000(self.manners.hears), self.clock.now());
        if let Some(doing) = self.doing.iter_mut().find(|doing| doing.request.tag == tag && hears) {
            doing.ends = now;
            doing.status = Err(Error::Cancelled);
        }
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.gone |= self.of_1000(self.manners.goes);
        if self.gone {
            return Err(Error::Gone);
        }
        // Requests in flight may have been executed, or not.
        for doing in std::mem::take(&mut self.doing) {
            self.old.push(doing.request.tag);
            if self.random.bool() && doing.request.op.writes() {
                self.transfer(&doing);
            }
        }
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}
