//! The queue: the interface that every driver and every layer around a driver implements.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Arena, Span};
use crate::clock::Time;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::{Completion, Request};
use crate::units::Tag;

/// The outcome of a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Submit {
    /// The queue accepted the request and will report one completion.
    Queued,
    /// The queue is full: poll, then try again. The request was not accepted.
    Full,
}

/// Whether to wait after [`Queue::arm`], or to poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Armed {
    /// The next completion will signal the event.
    Waiting,
    /// Completions are available: poll instead of waiting.
    Ready,
}

/// A pair of a submission and a completion queue, with one owner. Only [`Queue::wait`] and [`Queue::reset`] block, and only
/// [`Queue::register`] allocates.
///
/// A queue around another queue implements [`QueueWrapper`](crate::wrapper::QueueWrapper) instead, which passes every call on.
///
/// The implementation reports at most one completion for each request that was `Queued`, and none after `reset` returned `Ok`. It
/// checks each request against its geometry, so that an invalid request completes with an error. The submitter uses distinct tags
/// for
/// requests in flight, leaves a request's memory alone until it completes, and registers arenas before use.
pub trait Queue: Send {
    /// Returns the geometry of the device.
    fn geometry(&self) -> &Geometry;

    /// Returns the most requests in flight.
    fn depth(&self) -> u32;

    /// Registers an arena with the device: pins it and translates its addresses. The queue keeps it alive.
    ///
    /// # Errors
    /// There are no resources, or it is not permitted (for instance because of the limit of locked memory).
    fn register(&mut self, arena: &Arena) -> Result<(), Error>;

    /// Accepts a request; the device may learn of it only at the next `ring`. `data` is the memory in the order of the blocks, empty
    /// for requests without data. The queue copies `data`, which only names the memory.
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit;

    /// Notifies the device of all submitted requests, with one doorbell or one system call.
    fn ring(&mut self);

    /// Stores completions, as many as fit, and returns their number. May ring.
    fn poll(&mut self, completions: &mut [Completion]) -> usize;

    /// Returns the number of requests that were accepted and not yet reported.
    fn in_flight(&self) -> u32;

    /// Rings, then waits until `poll` has something to report, or for `at_most`. May return early. A queue that never has to wait
    /// returns at once.
    fn wait(&mut self, at_most: Duration);

    /// Does [`Queue::wait`], then [`Queue::poll`], in one call.
    fn wait_and_poll(&mut self, at_most: Duration, completions: &mut [Completion]) -> usize {
        self.wait(at_most);
        self.poll(completions)
    }

    /// Returns a descriptor that becomes readable when a completion arrives after `arm`. `None`: the queue can only be polled.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Enables the event for the next completion, clears the previous one, then checks for completions. So no completion is missed
    /// between the check and the wait.
    fn arm(&mut self) -> Armed {
        Armed::Ready
    }

    /// Returns a doorbell for threads that share the queue under a lock and would hold it through a system call. `None`: only
    /// `ring` rings.
    fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
        None
    }

    /// Returns when the next completion is predicted; `None` if unknown. Useful to threads that poll several queues.
    fn expected(&self) -> Option<Time> {
        None
    }

    /// Requests that the device cancel a request. The request is still reported, as cancelled or with its own status.
    fn cancel(&mut self, tag: Tag);

    /// Returns whether the device still uses the memory of a request that was reported: the request was given up, not completed. Without
    /// a default, as [`Queue::take_released`]: a driver that overlooks it would corrupt memory.
    fn owns_buffer(&self, tag: Tag) -> bool;

    /// Returns a request of those whose memory the device has released since then. Each is named once.
    fn take_released(&mut self) -> Option<Tag>;

    /// Aborts everything in flight, without reporting it. Returns once the device no longer accesses memory of these requests.
    ///
    /// # Errors
    /// The device does not release the requests: their memory must not be reused.
    fn reset(&mut self) -> Result<(), Error>;
}

/// A doorbell that rings while others use the queue; see [`Queue::doorbell`].
pub trait Doorbell: Send + Sync {
    /// Notifies the device of all requests submitted before. Any thread may call it, several at once, even after the queue was
    /// dropped. Returns false if some requests were not sent: the queue's own `ring` has to do it.
    #[must_use]
    fn ring(&self) -> bool;
}
