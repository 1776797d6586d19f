//! A configured queue: the driver's queue and the layers above it.

use std::io;
use std::sync::{Arc, OnceLock};

use block::clock::Monotonic;
use block::completion::{Adaptive, Mode, Reaper, ReaperOptions, System, WakeupLatency};
use block::handle::{CompletionMode, Served};
use block::{Device, OpenError, Params, Queue, Scheduler, SharedQueue, Tracked, scheduler};

/// Opens a queue of a device with its scheduler and completion mode, tracked so that each request completes exactly once.
///
/// # Errors
/// Errors of the driver.
pub fn open_queue(device: &dyn Device, params: &Params) -> Result<Tracked<Box<dyn Queue>>, OpenError> {
    let queue = device.queue(&params.queue_options())?;
    let queue = match params.scheduler {
        Scheduler::None => queue,
        which => scheduler::open(queue, &scheduler::Options { depth: params.queue_depth, ..scheduler::Options::of(which) }),
    };
    let queue = if is_adaptive(params) { adaptive(queue, params) } else { queue };
    Ok(Tracked::new(queue, params.timeouts()))
}

/// Opens a queue for several handles. With completion mode `thread` the process's completion thread serves it while the second value
/// lives.
///
/// # Errors
/// Errors of the driver, or no thread.
pub fn open_shared_queue(device: &dyn Device, params: &Params) -> Result<(Arc<SharedQueue>, Option<Served>), OpenError> {
    let failed = |error| OpenError::system("a shared queue", error);
    let queue = SharedQueue::over(open_queue(device, params)?).map_err(failed)?;
    if params.completion != CompletionMode::Thread {
        return Ok((queue, None));
    }
    let served = reaper().and_then(|reaper| Served::by(&reaper, &queue)).map_err(failed)?;
    Ok((queue, Some(served)))
}

/// Polling is done by the waiting thread; with interrupts drivers wait by themselves.
fn is_adaptive(params: &Params) -> bool {
    match params.completion {
        CompletionMode::Adaptive | CompletionMode::Thread => true,
        CompletionMode::Polling | CompletionMode::Interrupt => false,
        CompletionMode::OfQueue => Mode::default_for(block::completion::mode::cores()) == Mode::Adaptive,
    }
}

fn adaptive(queue: Box<dyn Queue>, params: &Params) -> Box<dyn Queue> {
    let mut adaptive = Adaptive::with(queue, Mode::Adaptive, WakeupLatency::of_machine(), Monotonic::default(), System::default());
    adaptive.set_sleeps(params.poll_min, params.poll_max);
    Box::new(adaptive)
}

/// Returns the completion thread of the process, started at first use.
fn reaper() -> io::Result<Arc<Reaper>> {
    static REAPER: OnceLock<Arc<Reaper>> = OnceLock::new();
    if let Some(reaper) = REAPER.get() {
        return Ok(Arc::clone(reaper));
    }
    // Adaptive on every machine, because it was requested explicitly.
    let options = ReaperOptions { mode: Mode::Adaptive, ..ReaperOptions::default() };
    let ours = Arc::new(Reaper::start(options, Monotonic::default())?);
    Ok(Arc::clone(REAPER.get_or_init(|| ours)))
}

#[cfg(test)]
mod test {
    use super::*;
    use block::{Arena, Lba, SharedHandle};

    #[test]
    fn every_way_to_wait_and_every_scheduler_reads_what_was_written() {
        let device: Arc<dyn Device> = Arc::new(block::driver::MemoryDevice::new(512, 1 << 20).expect("memory"));
        let arena = Arena::private(64 << 10).expect("memory");
        for scheduler in Scheduler::ALL {
            use CompletionMode::{Adaptive, Interrupt, OfQueue, Polling, Thread};
            for completion in [OfQueue, Polling, Interrupt, Adaptive, Thread] {
                let params = Params { scheduler, completion, queue_depth: 8, ..Params::default() };
                let (queue, _served) = open_shared_queue(&*device, &params).expect("a queue");
                queue.register(&arena).expect("registered");
                let handle = SharedHandle::new(&queue, params).expect("a handle");
                let buf = arena.allocate(512).expect("room");
                buf.write(0, &[scheduler as u8 + 1; 512]);
                let written = handle.write(Lba(7), buf);
                assert_eq!(written.status, Ok(()), "{scheduler:?} {completion:?}");
                let read = handle.read(Lba(7), written.into_buf().expect("back"));
                assert_eq!(read.status, Ok(()), "{scheduler:?} {completion:?}");
                assert_eq!(read.into_buf().expect("back").to_vec(), [scheduler as u8 + 1; 512]);
            }
        }
    }
}
