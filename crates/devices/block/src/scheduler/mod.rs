//! Schedulers, which decide the order of requests. Each is a queue around a queue.
//!
//! | name | for | what it does |
//! |---|---|---|
//! | `none` | devices that are faster than a scheduler | nothing: requests go directly to the queue |
//! | `elevator` | disks | merges adjacent requests, moves across the platter in one direction ([`mod@elevator`]) |
//! | `deadline` | disks and SATA SSDs with synchronous readers | merges, and starts each request by its deadline ([`mod@deadline`]) |
//! | `classes` | devices shared by foreground and background | weights, rate limits, latency guard ([`mod@classes`]) |
//!
//! A drive that reorders its requests (native command queueing) sorts random reads better than a scheduler, which does not know where
//! the heads are. On such drives the elevator bounds the wait, and `none` has the higher throughput (`bench/scheduler.sh`).
//!
//! All but `none` are a [`Stage`] with a specific [`Order`]. [`Stage`] documents what they have in common: the order of requests to the
//! same blocks, flushes, merged requests that fail, cancel and reset. They dispatch in `ring`, `poll`, `wait` and `arm`.
//!
//! A scheduler wraps the driver and is wrapped by [`crate::Tracked`], whose deadlines then include the time that requests wait
//! here, and which reports the requests that a reset aborts. It can also wrap a `Tracked`, but memory of timed-out requests is then
//! not named ([`crate::Tracked::take_released`] knows the tags of the stage only).

pub mod classes;
pub mod deadline;
pub mod elevator;
pub mod limits;
mod lists;
mod order;
mod overlap;
mod slots;
mod stage;
#[cfg(test)]
mod test;

pub use classes::{Classes, ClassesOptions, Share};
pub use deadline::{Deadline, DeadlineOptions};
pub use elevator::{Elevator, ElevatorOptions};
pub use limits::Rate;
pub use order::{Order, Pick};
pub use stage::{Depths, Stage};

use crate::clock::{Clock, Monotonic};
use crate::queue::Queue;

/// The kind of a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scheduler {
    /// No scheduler.
    #[default]
    None,
    /// See [`mod@elevator`].
    Elevator,
    /// See [`mod@deadline`].
    Deadline,
    /// See [`mod@classes`].
    Classes,
}

impl Scheduler {
    /// All kinds of schedulers there are.
    pub const ALL: [Scheduler; 4] = [Scheduler::None, Scheduler::Elevator, Scheduler::Deadline, Scheduler::Classes];

    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::None => "none",
            Scheduler::Elevator => "elevator",
            Scheduler::Deadline => "deadline",
            Scheduler::Classes => "classes",
        }
    }

    /// Returns the scheduler of this name, if there is one.
    pub fn parse(name: &str) -> Option<Scheduler> {
        Scheduler::ALL.into_iter().find(|scheduler| scheduler.name() == name)
    }

    /// Returns the default number of requests that are with the device at once. It is small for disks: a request in the disk's queue
    /// can
    /// no longer be sorted, merged or overtaken. A shared device needs enough requests to be busy.
    pub fn dispatch_depth(self) -> u32 {
        match self {
            Scheduler::None => u32::MAX,
            Scheduler::Elevator | Scheduler::Deadline => 4,
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
    /// The options of the elevator order.
    pub elevator: ElevatorOptions,
    /// The options of the deadline order.
    pub deadline: DeadlineOptions,
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
        Options {
            scheduler,
            depth: 256,
            dispatch_depth: None,
            elevator: ElevatorOptions::default(),
            deadline: DeadlineOptions::default(),
            classes: ClassesOptions::default(),
        }
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
        Scheduler::Elevator => Box::new(elevator(queue, options, clock)),
        Scheduler::Deadline => Box::new(deadline(queue, options, clock)),
        Scheduler::Classes => Box::new(classes(queue, options, clock)),
    }
}

/// Wraps a queue in an elevator, as a concrete type.
pub fn elevator<Q: Queue, C: Clock>(queue: Q, options: &Options, clock: C) -> Stage<Q, Elevator, C> {
    let depths = options.depths();
    Stage::new(queue, Elevator::new(depths.held, options.elevator), depths, clock)
}

/// Wraps a queue in a deadline scheduler, as a concrete type.
pub fn deadline<Q: Queue, C: Clock>(queue: Q, options: &Options, clock: C) -> Stage<Q, Deadline, C> {
    let depths = options.depths();
    Stage::new(queue, Deadline::new(depths.held, options.deadline), depths, clock)
}

/// Wraps a queue in a scheduler by classes, as a concrete type.
pub fn classes<Q: Queue, C: Clock>(queue: Q, options: &Options, clock: C) -> Stage<Q, Classes, C> {
    let depths = options.depths();
    let order = Classes::new(depths.held, queue.geometry().block_bytes, &options.classes);
    Stage::new(queue, order, depths, clock)
}
