//! The common parts of the models: a clock that advances when a thread waits, and a queue whose requests complete at their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{Arena, Clock, Completion, Error, Geometry, Queue, Request, Span, Submit, Tag, Time};

/// Clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

/// The timing of a device, in nanoseconds.
pub trait Mechanics: Send {
    /// Starts a queued request, at `now` at the earliest. Returns its index in the queue and its completion time, or `None` if no
    /// request
    /// can start before another one completes.
    fn serve(&mut self, queued: &[(Request, u64)], now: u64) -> Option<(usize, u64)>;
}

/// A device that moves no data and takes the time that its mechanics return.
pub struct Model<M> {
    /// The timing of the modelled device.
    pub mechanics: M,
    geometry: Geometry,
    depth: u32,
    clock: VirtualClock,
    queued: Vec<(Request, u64)>,
    serving: Vec<(u64, Tag)>,
}

impl<M: Mechanics> Model<M> {
    /// Makes a queue of a modelled device.
    pub fn new(mechanics: M, geometry: Geometry, depth: u32, clock: VirtualClock) -> Model<M> {
        Model { mechanics, geometry, depth, clock, queued: Vec::new(), serving: Vec::new() }
    }

    fn serve(&mut self) {
        let now = self.clock.now().0;
        while let Some((at, end)) = self.mechanics.serve(&self.queued, now) {
            let (request, _) = self.queued.remove(at);
            self.serving.push((end, request.tag));
        }
    }
}

impl<M: Mechanics> Queue for Model<M> {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, _: &Arena) -> Result<(), Error> {
        Ok(())
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight() >= self.depth {
            return Submit::Full;
        }
        assert_eq!(self.geometry.check(request, data), Ok(()));
        self.queued.push((*request, self.clock.now().0));
        Submit::Queued
    }

    fn ring(&mut self) {
        self.serve();
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let (now, mut count) = (self.clock.now().0, 0);
        self.serving.sort_unstable();
        while count < completions.len() && self.serving.first().is_some_and(|(end, _)| *end <= now) {
            completions[count] = Completion { tag: self.serving.remove(0).1, status: Ok(()) };
            count += 1;
        }
        self.serve();
        count
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.queued.len() + self.serving.len()).expect("few")
    }

    fn wait(&mut self, at_most: Duration) {
        self.serve();
        let limit = self.clock.now().after(at_most).0;
        let next = self.serving.iter().map(|(end, _)| *end).min().unwrap_or(limit);
        self.clock.0.fetch_max(next.min(limit), Ordering::Relaxed);
    }

    fn cancel(&mut self, _: Tag) {}

    fn reset(&mut self) -> Result<(), Error> {
        self.queued.clear();
        self.serving.clear();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}
