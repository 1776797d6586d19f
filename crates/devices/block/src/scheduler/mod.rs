//! Schedulers, which decide the order of requests. Each is a queue around a queue.
//!
//! | name | for | what it does |
//! |---|---|---|
//! | `none` | devices that are faster than a scheduler | nothing: requests go directly to the queue |
//! | `classes` | devices shared by foreground and background | weights, rate limits, latency guard ([`mod@classes`]) |
//!
//! `classes` is a [`Stage`] with the order [`Classes`]. [`Stage`] documents the order of requests to the same blocks, flushes, cancel and
//! reset. It dispatches in `ring`, `poll`, `wait` and `arm`.
//!
//! No scheduler sorts or merges requests: drives reorder their own queue (native command queueing), and know where their heads are.
//!
//! A scheduler wraps the driver and is wrapped by [`crate::Tracked`], whose deadlines then include the time that requests wait
//! here, and which reports the requests that a reset aborts. It can also wrap a `Tracked`, but memory of timed-out requests is then
//! not named ([`crate::Tracked::take_released`] knows the tags of the stage only).

pub mod classes;
pub mod limits;
mod lists;
mod overlap;
mod slots;
mod stage;
#[cfg(test)]
mod test;

pub use classes::{Classes, ClassesOptions, Pick, Share};
pub use limits::Rate;
pub use stage::{Depths, Stage};

use crate::clock::{Clock, Monotonic};
use crate::queue::Queue;

/// The kind of a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scheduler {
    /// No scheduler.
    #[default]
    None,
    /// See [`mod@classes`].
    Classes,
}

impl Scheduler {
    /// All kinds of schedulers there are.
    pub const ALL: [Scheduler; 2] = [Scheduler::None, Scheduler::Classes];

    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::None => "none",
            Scheduler::Classes => "classes",
        }
    }

    /// Returns the scheduler of this name, if there is one.
    pub fn parse(name: &str) -> Option<Scheduler> {
        Scheduler::ALL.into_iter().find(|scheduler| scheduler.name() == name)
    }

    /// Returns the default number of requests that are with the device at once. It is limited because a request in the device's queue can
    /// no longer be overtaken; a shared device needs enough requests to be busy.
    pub fn dispatch_depth(self) -> u32 {
        match self {
            Scheduler::None => u32::MAX,
            Scheduler::Classes => 32,
        }
    }
}

/// The options of a scheduler. Numbers out of range are clamped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The kind of the scheduler.
    pub scheduler: Scheduler,
    /// The most requests that were accepted and not reported, including waiting ones: 1 to 4096. `none` has the depth of the queue.
    pub depth: u32,
    /// The most requests with the device; `None`: [`Scheduler::dispatch_depth`]. Never more than the queue's depth.
    pub dispatch_depth: Option<u32>,
    /// The options of the order by classes.
    pub classes: ClassesOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options::of(Scheduler::None)
    }
}

impl Options {
    /// Returns the default options of a scheduler.
    pub fn of(scheduler: Scheduler) -> Options {
        Options { scheduler, depth: 256, dispatch_depth: None, classes: ClassesOptions::default() }
    }

    fn depths(&self) -> Depths {
        let dispatched = self.dispatch_depth.unwrap_or_else(|| self.scheduler.dispatch_depth());
        Depths { held: self.depth.clamp(1, 4096), dispatched }
    }
}

/// Wraps a queue in a scheduler.
pub fn open(queue: impl Queue + 'static, options: &Options) -> Box<dyn Queue> {
    open_with_clock(queue, options, Monotonic::default())
}

/// Wraps a queue in a scheduler, with another clock.
pub fn open_with_clock(queue: impl Queue + 'static, options: &Options, clock: impl Clock + 'static) -> Box<dyn Queue> {
    match options.scheduler {
        Scheduler::None => Box::new(queue),
        Scheduler::Classes => Box::new(classes(queue, options, clock)),
    }
}

/// Wraps a queue in a scheduler by classes, as a concrete type.
pub fn classes<Q: Queue, C: Clock>(queue: Q, options: &Options, clock: C) -> Stage<Q, C> {
    let depths = options.depths();
    let order = Classes::new(depths.held, queue.geometry().block_bytes, &options.classes);
    Stage::new(queue, order, depths, clock)
}
