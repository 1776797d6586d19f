//! A queue around another queue, which passes on every call that it does not change.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Arena, Span};
use crate::clock::Time;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Doorbell, Queue, Submit};
use crate::request::{Completion, Request};
use crate::units::Tag;

/// A queue around another queue. It is a [`Queue`] too: each method is passed on unless the wrapper overrides it, so a wrapper cannot
/// forget one.
///
/// Name the trait by its path (`impl block::QueueWrapper for ...`), and call the wrapper's own methods as `Queue::poll(self, ..)`: with
/// both traits in scope, `self.poll(..)` is ambiguous.
pub trait QueueWrapper: Send {
    /// The type of the inner queue.
    type Inner: Queue + ?Sized;

    /// Whether the wrapper changes `ring`, `wait` or `poll`. If it does, `wait_and_poll` calls its own two methods, and it has no doorbell:
    /// that of the inner queue would ring past it.
    const CHANGES_POLLING: bool;

    /// Returns the queue that calls are passed on to.
    fn inner(&self) -> &Self::Inner;

    /// Returns the queue that calls are passed on to, for changes.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Does what [`Queue::geometry`] does; passes it on by default.
    #[inline]
    fn geometry(&self) -> &Geometry {
        self.inner().geometry()
    }

    /// Does what [`Queue::depth`] does; passes it on by default.
    #[inline]
    fn depth(&self) -> u32 {
        self.inner().depth()
    }

    /// Does what [`Queue::register`] does; passes it on by default.
    #[inline]
    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.inner_mut().register(arena)
    }

    /// Does what [`Queue::submit`] does; passes it on by default.
    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        self.inner_mut().submit(request, data)
    }

    /// Does what [`Queue::ring`] does; passes it on by default.
    #[inline]
    fn ring(&mut self) {
        self.inner_mut().ring();
    }

    /// Does what [`Queue::poll`] does; passes it on by default.
    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.inner_mut().poll(completions)
    }

    /// Does what [`Queue::in_flight`] does; passes it on by default.
    #[inline]
    fn in_flight(&self) -> u32 {
        self.inner().in_flight()
    }

    /// Does what [`Queue::wait`] does; passes it on by default.
    #[inline]
    fn wait(&mut self, at_most: Duration) {
        self.inner_mut().wait(at_most);
    }

    /// Does what [`Queue::wait_and_poll`] does; passes it on by default.
    #[inline]
    fn wait_and_poll(&mut self, at_most: Duration, completions: &mut [Completion]) -> usize {
        if Self::CHANGES_POLLING {
            QueueWrapper::wait(self, at_most);
            return QueueWrapper::poll(self, completions);
        }
        self.inner_mut().wait_and_poll(at_most, completions)
    }

    /// Does what [`Queue::event`] does; passes it on by default.
    #[inline]
    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.inner().event()
    }

    /// Does what [`Queue::arm`] does; passes it on by default.
    #[inline]
    fn arm(&mut self) -> Armed {
        self.inner_mut().arm()
    }

    /// Does what [`Queue::doorbell`] does; passes it on by default.
    #[inline]
    fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
        if Self::CHANGES_POLLING {
            return None;
        }
        self.inner_mut().doorbell()
    }

    /// Does what [`Queue::expected`] does; passes it on by default.
    #[inline]
    fn expected(&self) -> Option<Time> {
        self.inner().expected()
    }

    /// Does what [`Queue::cancel`] does; passes it on by default.
    #[inline]
    fn cancel(&mut self, tag: Tag) {
        self.inner_mut().cancel(tag);
    }

    /// Does what [`Queue::owns_buffer`] does; passes it on by default.
    #[inline]
    fn owns_buffer(&self, tag: Tag) -> bool {
        self.inner().owns_buffer(tag)
    }

    /// Does what [`Queue::take_released`] does; passes it on by default.
    #[inline]
    fn take_released(&mut self) -> Option<Tag> {
        self.inner_mut().take_released()
    }

    /// Does what [`Queue::reset`] does; passes it on by default.
    #[inline]
    fn reset(&mut self) -> Result<(), Error> {
        self.inner_mut().reset()
    }
}

impl<W: QueueWrapper> Queue for W {
    #[inline]
    fn geometry(&self) -> &Geometry {
        QueueWrapper::geometry(self)
    }

    #[inline]
    fn depth(&self) -> u32 {
        QueueWrapper::depth(self)
    }

    #[inline]
    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        QueueWrapper::register(self, arena)
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        QueueWrapper::submit(self, request, data)
    }

    #[inline]
    fn ring(&mut self) {
        QueueWrapper::ring(self);
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        QueueWrapper::poll(self, completions)
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        QueueWrapper::in_flight(self)
    }

    #[inline]
    fn wait(&mut self, at_most: Duration) {
        QueueWrapper::wait(self, at_most);
    }

    #[inline]
    fn wait_and_poll(&mut self, at_most: Duration, completions: &mut [Completion]) -> usize {
        QueueWrapper::wait_and_poll(self, at_most, completions)
    }

    #[inline]
    fn event(&self) -> Option<BorrowedFd<'_>> {
        QueueWrapper::event(self)
    }

    #[inline]
    fn arm(&mut self) -> Armed {
        QueueWrapper::arm(self)
    }

    #[inline]
    fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
        QueueWrapper::doorbell(self)
    }

    #[inline]
    fn expected(&self) -> Option<Time> {
        QueueWrapper::expected(self)
    }

    #[inline]
    fn cancel(&mut self, tag: Tag) {
        QueueWrapper::cancel(self, tag);
    }

    #[inline]
    fn owns_buffer(&self, tag: Tag) -> bool {
        QueueWrapper::owns_buffer(self, tag)
    }

    #[inline]
    fn take_released(&mut self) -> Option<Tag> {
        QueueWrapper::take_released(self)
    }

    #[inline]
    fn reset(&mut self) -> Result<(), Error> {
        QueueWrapper::reset(self)
    }
}

impl<Q: Queue + ?Sized> QueueWrapper for Box<Q> {
    type Inner = Q;
    const CHANGES_POLLING: bool = false;

    #[inline]
    fn inner(&self) -> &Q {
        self
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut Q {
        self
    }
}

#[cfg(test)]
mod test {
    use std::cell::RefCell;
    use std::os::fd::AsFd;

    use super::*;

    /// A queue that notes each call, and whose results differ from the defaults.
    struct NotedQueue {
        geometry: Geometry,
        calls: RefCell<Vec<&'static str>>,
        event: std::fs::File,
    }

    impl NotedQueue {
        fn note(&self, call: &'static str) {
            self.calls.borrow_mut().push(call);
        }
    }

    struct NotedDoorbell;

    impl Doorbell for NotedDoorbell {
        fn ring(&self) -> bool {
            true
        }
    }

    impl Queue for NotedQueue {
        fn geometry(&self) -> &Geometry {
            self.note("geometry");
            &self.geometry
        }
        fn depth(&self) -> u32 {
            self.note("depth");
            7
        }
        fn register(&mut self, _: &Arena) -> Result<(), Error> {
            self.note("register");
            Err(Error::NoResources)
        }
        fn submit(&mut self, _: &Request, _: &[Span]) -> Submit {
            self.note("submit");
            Submit::Full
        }
        fn ring(&mut self) {
            self.note("ring");
        }
        fn poll(&mut self, _: &mut [Completion]) -> usize {
            self.note("poll");
            3
        }
        fn in_flight(&self) -> u32 {
            self.note("in_flight");
            5
        }
        fn wait(&mut self, _: Duration) {
            self.note("wait");
        }
        fn wait_and_poll(&mut self, _: Duration, _: &mut [Completion]) -> usize {
            self.note("wait_and_poll");
            4
        }
        fn event(&self) -> Option<BorrowedFd<'_>> {
            self.note("event");
            Some(self.event.as_fd())
        }
        fn arm(&mut self) -> Armed {
            self.note("arm");
            Armed::Waiting
        }
        fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
            self.note("doorbell");
            Some(Arc::new(NotedDoorbell))
        }
        fn expected(&self) -> Option<Time> {
            self.note("expected");
            Some(Time(9))
        }
        fn cancel(&mut self, _: Tag) {
            self.note("cancel");
        }
        fn owns_buffer(&self, _: Tag) -> bool {
            self.note("owns_buffer");
            true
        }
        fn take_released(&mut self) -> Option<Tag> {
            self.note("take_released");
            Some(Tag(8))
        }
        fn reset(&mut self) -> Result<(), Error> {
            self.note("reset");
            Err(Error::Gone)
        }
    }

    /// A wrapper without overrides, which changes polling or not.
    struct PlainWrapper<const CHANGES: bool>(NotedQueue);

    impl<const CHANGES: bool> QueueWrapper for PlainWrapper<CHANGES> {
        type Inner = NotedQueue;
        const CHANGES_POLLING: bool = CHANGES;

        fn inner(&self) -> &NotedQueue {
            &self.0
        }

        fn inner_mut(&mut self) -> &mut NotedQueue {
            &mut self.0
        }
    }

    fn noted() -> NotedQueue {
        let event = std::fs::File::open("/dev/null").expect("opened");
        NotedQueue { geometry: Geometry::plain(512, 1), calls: RefCell::default(), event }
    }

    /// Calls each method of the trait once, as code that knows only `Queue` does.
    fn call_each(queue: &mut dyn Queue) {
        let mut completions = [Completion::EMPTY; 8];
        let arena = Arena::private(4096).expect("memory");
        assert_eq!((queue.geometry().blocks, queue.depth(), queue.in_flight()), (1, 7, 5));
        assert_eq!((queue.register(&arena), queue.reset()), (Err(Error::NoResources), Err(Error::Gone)));
        assert_eq!(queue.submit(&Request::flush(Tag(1)), &[]), Submit::Full);
        queue.ring();
        assert_eq!(queue.poll(&mut completions), 3);
        queue.wait(Duration::ZERO);
        assert!(queue.event().is_some());
        assert_eq!((queue.arm(), queue.expected()), (Armed::Waiting, Some(Time(9))));
        queue.cancel(Tag(1));
        assert_eq!((queue.owns_buffer(Tag(1)), queue.take_released()), (true, Some(Tag(8))));
    }

    const EACH: [&str; 15] = [
        "geometry",
        "depth",
        "in_flight",
        "register",
        "reset",
        "submit",
        "ring",
        "poll",
        "wait",
        "event",
        "arm",
        "expected",
        "cancel",
        "owns_buffer",
        "take_released",
    ];

    #[test]
    fn a_wrapper_without_overrides_passes_each_method_on() {
        let mut wrapper = PlainWrapper::<false>(noted());
        call_each(&mut wrapper);
        let queue: &mut dyn Queue = &mut wrapper;
        assert_eq!(queue.wait_and_poll(Duration::ZERO, &mut [Completion::EMPTY]), 4);
        assert!(queue.doorbell().is_some());
        assert_eq!(wrapper.0.calls.into_inner(), [&EACH[..], &["wait_and_poll", "doorbell"]].concat());
        let mut boxed = Box::new(noted());
        call_each(&mut boxed);
        assert_eq!(boxed.calls.into_inner(), EACH);
    }

    #[test]
    fn who_changes_polling_is_not_passed_by() {
        let mut wrapper = PlainWrapper::<true>(noted());
        call_each(&mut wrapper);
        let queue: &mut dyn Queue = &mut wrapper;
        assert_eq!(queue.wait_and_poll(Duration::ZERO, &mut [Completion::EMPTY]), 3);
        assert!(queue.doorbell().is_none());
        assert_eq!(wrapper.0.calls.into_inner(), [&EACH[..], &["wait", "poll"]].concat());
    }
}
