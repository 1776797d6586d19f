//! A shared queue served by the completion thread: its waiting threads sleep until the thread notifies them.
//!
//! Under the queue's lock, a thread that changes the queue stores when the queue should be polled next. It then notifies the
//! completion
//! thread ([`crate::completion::Waker::submitted`]). No waiting thread becomes leader: all are followers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Weak;

use super::shared::SharedQueue;
use crate::clock::{Clock, Time};
use crate::completion::{QueueId, Reap, Reaper};
use crate::queue::{Armed, Queue};
use crate::sync::Arc;

/// Keeps the completion thread serving a queue until dropped. The queue's handles continue to work without it.
pub struct Served {
    reaper: std::sync::Arc<Reaper>,
    id: QueueId,
    queue: std::sync::Arc<dyn End>,
}

impl Served {
    /// Makes the completion thread serve this queue. Both use the same clock.
    ///
    /// # Errors
    /// There are no more file descriptors, or the queue is already served.
    pub fn by<Q, C>(reaper: &std::sync::Arc<Reaper>, queue: &Arc<SharedQueue<Q, C>>) -> io::Result<Served>
    where
        Q: Queue + 'static,
        C: Clock + 'static,
    {
        let event = queue.device_event().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let serving = std::sync::Arc::new(Serving { queue: Arc::downgrade(queue), event });
        if !queue.begin_service(reaper.waker()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        match reaper.add(serving.clone()) {
            Ok(id) => Ok(Served { reaper: reaper.clone(), id, queue: serving }),
            Err(error) => {
                queue.end_service();
                Err(error)
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Waiting threads must be able to lead again before the completion thread stops serving them.
        self.queue.end();
        self.reaper.remove(self.id);
    }
}

trait End: Send + Sync {
    fn end(&self);
}

/// What the completion thread holds. It does not own the queue, which is dropped with its last handle.
struct Serving<Q: Queue, C: Clock> {
    queue: Weak<SharedQueue<Q, C>>,
    event: Option<OwnedFd>,
}

impl<Q: Queue, C: Clock> End for Serving<Q, C> {
    fn end(&self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.end_service();
        }
    }
}

impl<Q: Queue, C: Clock> Reap for Serving<Q, C> {
    fn reap(&self) -> usize {
        self.queue.upgrade().map_or(0, |queue| usize::from(queue.reap()))
    }

    fn expected(&self) -> Option<Time> {
        self.queue.upgrade()?.expected()
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    fn arm(&self) -> Armed {
        self.queue.upgrade().map_or(Armed::Waiting, |queue| queue.arm())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::clock::Monotonic;
    use crate::completion::ReaperOptions;
    use crate::driver::MemoryDevice;
    use crate::handle::{Io, Params, SharedHandle};
    use crate::{Arena, Lba};
    use std::time::Duration;

    #[test]
    fn handles_of_a_served_queue_are_notified_and_go_on_without_the_thread() {
        let device = MemoryDevice::new(512, 1 << 20).expect("memory");
        let clock = Monotonic::default();
        let reaper = std::sync::Arc::new(Reaper::start(ReaperOptions::default(), clock).expect("a thread"));
        let tracked = crate::Tracked::with_clock(device.open_queue(16), Params::default().timeouts(), clock);
        let queue = SharedQueue::over(tracked).expect("a queue");
        let arena = Arena::private(1 << 20).expect("memory");
        queue.register(&arena).expect("registered");
        let mut served = Some(Served::by(&reaper, &queue).expect("served"));
        assert!(Served::by(&reaper, &queue).is_err(), "once");
        for round in 0..2 {
            std::thread::scope(|scope| {
                for thread in 0..3_u64 {
                    let (queue, arena) = (&queue, &arena);
                    scope.spawn(move || {
                        let handle = SharedHandle::new(queue, Params::default()).expect("a handle");
                        for at in 0..200 {
                            let buf = arena.allocate(512).expect("room");
                            let ticket = handle.submit(Io::read(Lba(thread * 200 + at), buf)).expect("room");
                            handle.ring();
                            let done = handle.wait_for(ticket, Duration::MAX).expect("done");
                            assert_eq!(done.status, Ok(()), "round {round}");
                        }
                    });
                }
            });
            served.take();
        }
    }
}
