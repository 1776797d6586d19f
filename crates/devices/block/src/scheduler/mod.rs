//! Who goes next: schedulers, each a queue around a queue.
//!
//! | name | for | what it does |
//! |---|---|---|
//! | `none` | devices that are faster than thinking | nothing: the queue itself |
//! | `elevator` | disks | merges neighbours, goes across the platter in one direction ([`mod@elevator`]) |
//! | `deadline` | disks and SATA SSDs with readers that wait | merges, and starts each request by its time ([`mod@deadline`]) |
//! | `classes` | devices shared by foreground and background | weights, rate limits, latency guard ([`mod@classes`]) |
//!
//! A drive that reorders what it has (native command queueing) sorts random reads better than we can, who do not know where
//! its heads are: there the elevator bounds the wait, and `none` has the throughput (`bench/scheduler.sh`).
//!
//! All but `none` are a [`Stage`] with another [`Order`]: see there what holds for all of them, also about the order of requests to the
//! same blocks, flushes, merged requests that fail, cancel and reset. They dispatch in `ring`, `poll`, `wait` and `arm`.
//!
//! Where it stands: above the driver and below [`crate::Tracked`], whose deadlines then include the time that requests wait
//! here, and who reports what a reset gives up. It also stands above a `Tracked`, but memory of timed-out requests is then
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

/// Which one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scheduler {
    /// Nothing between.
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
    /// All there are.
    pub const ALL: [Scheduler; 4] = [Scheduler::None, Scheduler::Elevator, Scheduler::Deadline, Scheduler::Classes];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::None => "none",
            Scheduler::Elevator => "elevator",
            Scheduler::Deadline => "deadline",
            Scheduler::Classes => "classes",
        }
    }

    /// By name; none if there is none of this name.
    pub fn parse(name: &str) -> Option<Scheduler> {
        Scheduler::ALL.into_iter().find(|scheduler| scheduler.name() == name)
    }

    /// Requests that are with the device at once, where nothing else is said. A disk's own queue shall be short: what is in
    /// it can no longer be sorted, merged or overtaken. A shared device needs enough to be busy.
    pub fn dispatch_depth(self) -> u32 {
        match self {
            Scheduler::None => u32::MAX,
            Scheduler::Elevator | Scheduler::Deadline => 4,
            Scheduler::Classes => 32,
        }
    }
}

/// What a scheduler shall be like. Numbers out of range are brought into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Which.
    pub scheduler: Scheduler,
    /// Most requests taken and not reported, waiting ones included: 1 to 4096. `none` has the depth of the queue.
    pub depth: u32,
    /// Most requests with the device; none: [`Scheduler::dispatch_depth`]. Never more than the queue's depth.
    pub dispatch_depth: Option<u32>,
    /// For the elevator.
    pub elevator: ElevatorOptions,
    /// For deadlines.
    pub deadline: DeadlineOptions,
    /// For classes.
    pub classes: ClassesOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options::of(Scheduler::None)
    }
}

impl Options {
    /// The defaults of a scheduler.
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

/// A scheduler around a queue.
pub fn open(queue: impl Queue + 'static, options: &Options) -> Box<dyn Queue> {
    open_with_clock(queue, options, Monotonic::default())
}

/// A scheduler around a queue, by another clock.
pub fn open_with_clock(queue: impl Queue + 'static, options: &Options, clock: impl Clock + 'static) -> Box<dyn Queue> {
    match options.scheduler {
        Scheduler::None => Box::new(queue),
        Scheduler::Elevator => Box::new(elevator(queue, options, clock)),
        Scheduler::Deadline => Box::new(deadline(queue, options, clock)),
        Scheduler::Classes => Box::new(classes(queue, options, clock)),
    }
}

/// An elevator, by its own type.
pub fn elevator<Q: Queue, C: Clock>(queue: Q, options: &Options, clock: C) -> Stage<Q, Elevator, C> {
    let depths = options.depths();
    Stage::new(queue, Elevator::new(depths.held, options.elevator), depths, clock)
}

/// Deadlines, by their own type.
pub fn deadline<Q: Queue, C: Clock>(queue: Q, options: &Options, clock: C) -> Stage<Q, Deadline, C> {
    let depths = options.depths();
    Stage::new(queue, Deadline::new(depths.held, options.deadline), depths, clock)
}

/// Classes, by their own type.
pub fn classes<Q: Queue, C: Clock>(queue: Q, options: &Options, clock: C) -> Stage<Q, Classes, C> {
    let depths = options.depths();
    let order = Classes::new(depths.held, queue.geometry().block_bytes, &options.classes);
    Stage::new(queue, order, depths, clock)
}
