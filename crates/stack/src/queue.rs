//! A queue as its parameters want it: the driver's, and what stands between it and the handles.

use block::completion::{Adaptive, Mode};
use block::handle::{CompletionMode, Scheduler};
use block::{Device, OpenError, Params, Queue, Tracked, scheduler};

/// Opens a queue of a device, with its scheduler and its way of waiting, and above them what gives each request exactly one
/// completion.
///
/// Without a wish, and for interrupts, the driver's own wait is taken; polling is what a handle does.
///
/// # Errors
/// What the driver says.
pub fn open_queue(device: &dyn Device, params: &Params) -> Result<Tracked<Box<dyn Queue>>, OpenError> {
    let queue = device.queue(&params.queue_options())?;
    let which = match params.scheduler {
        Scheduler::None => scheduler::Scheduler::None,
        Scheduler::Elevator => scheduler::Scheduler::Elevator,
        Scheduler::Deadline => scheduler::Scheduler::Deadline,
        Scheduler::Classes => scheduler::Scheduler::Classes,
    };
    let queue = match which {
        scheduler::Scheduler::None => queue,
        which => scheduler::open(queue, &scheduler::Options { depth: params.queue_depth, ..scheduler::Options::of(which) }),
    };
    let queue = if params.completion == CompletionMode::Adaptive { adaptive(queue) } else { queue };
    Ok(Tracked::new(queue, params.patience()))
}

fn adaptive(queue: Box<dyn Queue>) -> Box<dyn Queue> {
    let mut queue = Adaptive::new(queue);
    queue.set_mode(Mode::Adaptive);
    Box::new(queue)
}
