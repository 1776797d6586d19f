//! What everything is made of.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Arena, Span};
use crate::clock::Time;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::{Completion, Request};
use crate::units::Tag;

/// What became of a request that was handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Submit {
    /// Taken: one completion will come.
    Queued,
    /// No place: poll, then try again. Nothing was taken.
    Full,
}

/// What arming found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Armed {
    /// The next completion signals the event.
    Waiting,
    /// There are completions already: poll, do not wait.
    Ready,
}

/// A pair of a submission and a completion queue, with one owner. No call but [`Queue::wait`] and [`Queue::reset`] blocks,
/// and none but [`Queue::register`] allocates.
///
/// What the one below promises: of each request that was `Queued` it reports at most one completion, none after `reset`
/// returned `Ok`; and it checks what it is asked for against its geometry, so that a wrong request is an error in its
/// completion. What the one above promises: tags in flight differ, memory named in a request stays its own until the
/// completion, and arenas are registered before they are named.
pub trait Queue: Send {
    /// What the device looks like.
    fn geometry(&self) -> &Geometry;

    /// Most requests in flight.
    fn depth(&self) -> u32;

    /// Makes an arena known to the device: pins it, translates its addresses. It is kept alive by the queue.
    ///
    /// # Errors
    /// No resources, or not permitted (the limit of locked memory, for instance).
    fn register(&mut self, arena: &Arena) -> Result<(), Error>;

    /// Takes a request; the device need not hear of it before `ring`. `data` is the memory in the order of the blocks, empty
    /// for requests without data; it is copied.
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit;

    /// Tells the device of all that was submitted: one doorbell, one system call.
    fn ring(&mut self);

    /// Reports what has ended, as much as fits; returns how many. May ring.
    fn poll(&mut self, completions: &mut [Completion]) -> usize;

    /// Requests taken and not yet reported.
    fn in_flight(&self) -> u32;

    /// Rings, then waits until `poll` has something to report, or for `at_most`. Returns early at will. A queue that needs
    /// nothing to wait for returns at once.
    fn wait(&mut self, at_most: Duration);

    /// [`Queue::wait`], then [`Queue::poll`]: one call instead of two.
    fn wait_and_poll(&mut self, at_most: Duration, completions: &mut [Completion]) -> usize {
        self.wait(at_most);
        self.poll(completions)
    }

    /// A descriptor that becomes readable when a completion arrives after `arm`. None: the queue can only be polled.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks for the event at the next completion, clears what the last one left, then looks again, so that no completion
    /// falls between looking and waiting.
    fn arm(&mut self) -> Armed {
        Armed::Ready
    }

    /// A doorbell for who shares the queue under a lock, and would hold it all through a system call. None: only `ring` rings.
    fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
        None
    }

    /// When the next completion is predicted; none: not known. For who polls several queues.
    fn expected(&self) -> Option<Time> {
        None
    }

    /// Asks the device to give a request up. It is reported all the same: as cancelled, or as it ended.
    fn cancel(&mut self, tag: Tag);

    /// Returns whether the device still uses the memory of a request that was reported: the request was given up, not completed. Without
    /// a default, as [`Queue::take_released`]: a queue around another one that forgot to forward it would corrupt memory.
    fn owns_buffer(&self, tag: Tag) -> bool;

    /// Returns a request of those whose memory the device has released since then. Each is named once.
    fn take_released(&mut self) -> Option<Tag>;

    /// Gives everything in flight up, without reporting it. Returns when the device touches no memory of theirs any more.
    ///
    /// # Errors
    /// The device cannot be made to: memory of what was in flight must not be used again.
    fn reset(&mut self) -> Result<(), Error>;
}

/// Rings while others use the queue; see [`Queue::doorbell`].
pub trait Doorbell: Send + Sync {
    /// Tells the device of all that was submitted before. Any thread may, several at once, also after the queue's end. False:
    /// not of all, and the queue's own `ring` has to.
    #[must_use]
    fn ring(&self) -> bool;
}

impl<Q: Queue + ?Sized> Queue for Box<Q> {
    fn geometry(&self) -> &Geometry {
        (**self).geometry()
    }
    fn depth(&self) -> u32 {
        (**self).depth()
    }
    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        (**self).register(arena)
    }
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        (**self).submit(request, data)
    }
    fn ring(&mut self) {
        (**self).ring();
    }
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        (**self).poll(completions)
    }
    fn in_flight(&self) -> u32 {
        (**self).in_flight()
    }
    fn wait(&mut self, at_most: Duration) {
        (**self).wait(at_most);
    }
    fn wait_and_poll(&mut self, at_most: Duration, completions: &mut [Completion]) -> usize {
        (**self).wait_and_poll(at_most, completions)
    }
    fn event(&self) -> Option<BorrowedFd<'_>> {
        (**self).event()
    }
    fn arm(&mut self) -> Armed {
        (**self).arm()
    }
    fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
        (**self).doorbell()
    }
    fn expected(&self) -> Option<Time> {
        (**self).expected()
    }
    fn cancel(&mut self, tag: Tag) {
        (**self).cancel(tag);
    }
    fn owns_buffer(&self, tag: Tag) -> bool {
        (**self).owns_buffer(tag)
    }
    fn take_released(&mut self) -> Option<Tag> {
        (**self).take_released()
    }
    fn reset(&mut self) -> Result<(), Error> {
        (**self).reset()
    }
}
