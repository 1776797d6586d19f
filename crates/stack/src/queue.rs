//! A queue as its parameters want it: the driver's, and what stands between it and the handles.

use block::handle::Scheduler;
use block::{Device, OpenError, Params, Queue, Tracked, scheduler};

/// Opens a queue of a device, with its scheduler, and above that what gives each request exactly one completion.
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
    Ok(Tracked::new(queue, params.patience()))
}
