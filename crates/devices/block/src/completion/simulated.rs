//! A machine whose time passes only when the clock is read, and a device on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::calibrate::WakeupLatency;
use super::sleeper::Sleeper;
use crate::buffer::{Arena, Span};
use crate::clock::{Clock, Time};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Queue, Submit};
use crate::request::{Completion, Request};
use crate::units::Tag;

/// The time that each clock read takes, so that polling loops end.
const POLL_NS: u64 = 50;

pub(super) const FLOOR: WakeupLatency =
    WakeupLatency { timer: Duration::from_micros(10), timer_late: Duration::from_micros(14), event: Duration::from_micros(3) };

/// A simulated clock; all clones share the same time.
#[derive(Clone, Default)]
pub(super) struct Machine(Arc<AtomicU64>);

impl Machine {
    pub(super) fn pass(&self, duration: Duration) {
        self.0.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Machine {
    fn now(&self) -> Time {
        Time(self.0.fetch_add(POLL_NS, Ordering::Relaxed) + POLL_NS)
    }
}

/// A sleeper whose sleeps end 10 to 20 microseconds late; it counts them.
pub(super) struct Naps {
    /// The clock that the sleeps advance.
    pub machine: Machine,
    /// The source of the random lateness.
    pub random: fastrand::Rng,
    /// The number of sleeps so far.
    pub slept: Arc<AtomicU64>,
}

impl Naps {
    pub(super) fn new(machine: &Machine) -> Naps {
        Naps { machine: machine.clone(), random: fastrand::Rng::with_seed(1), slept: Arc::default() }
    }
}

impl Sleeper for Naps {
    fn sleep(&mut self, duration: Duration) {
        self.slept.fetch_add(1, Ordering::Relaxed);
        self.machine.pass(duration + Duration::from_nanos(self.random.u64(10_000..20_000)));
    }

    fn relax(&mut self) {}

    fn cpu(&self) -> Duration {
        Duration::ZERO
    }
}

/// A device that completes each request after its latency: one for small requests, another for those of more than one block.
pub(super) struct Device {
    geometry: Geometry,
    depth: u32,
    machine: Machine,
    /// The latency of requests of one block.
    pub small: Duration,
    /// The latency of requests of more than one block.
    pub large: Duration,
    /// The random variation, as a fraction of the latency.
    pub jitter: f64,
    random: fastrand::Rng,
    submitted: VecDeque<(Tag, u32)>,
    running: Vec<(Time, Tag)>,
}

impl Device {
    pub(super) fn new(machine: &Machine, depth: u32, us: u64) -> Device {
        Device {
            geometry: Geometry::plain(4096, 1 << 20),
            depth,
            machine: machine.clone(),
            small: Duration::from_micros(us),
            large: Duration::from_micros(us),
            jitter: 0.0,
            random: fastrand::Rng::with_seed(2),
            submitted: VecDeque::new(),
            running: Vec::new(),
        }
    }
}

impl Queue for Device {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, _: &Arena) -> Result<(), Error> {
        Ok(())
    }

    fn submit(&mut self, request: &Request, _: &[Span]) -> Submit {
        if self.in_flight() == self.depth {
            return Submit::Full;
        }
        self.submitted.push_back((request.tag, request.blocks));
        Submit::Queued
    }

    fn ring(&mut self) {
        let now = self.machine.now();
        for (tag, blocks) in self.submitted.drain(..) {
            let latency = if blocks > 1 { self.large } else { self.small };
            let jitter = 1.0 + self.jitter * (self.random.f64() * 2.0 - 1.0);
            self.running.push((now.after(latency.mul_f64(jitter)), tag));
        }
        self.running.sort_unstable();
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.ring();
        let now = self.machine.now();
        let count = self.running.iter().take(completions.len()).take_while(|(due, _)| *due <= now).count();
        for ((_, tag), place) in self.running.drain(..count).zip(completions) {
            *place = Completion { tag, status: Ok(()) };
        }
        count
    }

    fn in_flight(&self) -> u32 {
        (self.submitted.len() + self.running.len()) as u32
    }

    /// Simulates an interrupt that arrives 10 microseconds late.
    fn wait(&mut self, at_most: Duration) {
        self.ring();
        if let Some((due, _)) = self.running.first() {
            let remaining = due.since(self.machine.now());
            self.machine.pass((remaining + Duration::from_micros(10)).min(at_most));
        }
    }

    fn cancel(&mut self, tag: Tag) {
        // Completes at once, but is reported like any other.
        let now = self.machine.now();
        self.running.iter_mut().filter(|(_, other)| *other == tag).for_each(|(due, _)| *due = now);
        self.running.sort_unstable();
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.submitted.clear();
        self.running.clear();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}
