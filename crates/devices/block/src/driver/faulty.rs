//! A device with configured bad blocks, for testing how programs handle errors.
//!
//! The simulator has richer faults; this device is part of the product, and is opened by name (`fault:eio@LBA-LBA:DEVICE`).

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::ring::CompletionRing;
use crate::buffer::{Arena, Span};
use crate::clock::Time;
use crate::device::{Device, OpenError, QueueOptions};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request};
use crate::units::{Lba, Tag};

/// A device whose reads and writes of a bad block fail with a media error and do not reach the device behind it.
pub struct FaultyDevice {
    device: Arc<dyn Device>,
    bad: RangeInclusive<Lba>,
}

impl FaultyDevice {
    /// Creates a device with the bad blocks `bad` over a working device.
    pub fn new(device: Arc<dyn Device>, bad: RangeInclusive<Lba>) -> FaultyDevice {
        FaultyDevice { device, bad }
    }
}

impl Device for FaultyDevice {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let queue = self.device.queue(options)?;
        let failed = CompletionRing::new(queue.depth());
        Ok(Box::new(FaultyQueue { queue, bad: self.bad.clone(), failed }))
    }
}

struct FaultyQueue {
    queue: Box<dyn Queue>,
    bad: RangeInclusive<Lba>,
    failed: CompletionRing,
}

impl FaultyQueue {
    fn is_bad(&self, request: &Request) -> bool {
        let (first, last) = (request.lba.0, request.lba.0.saturating_add(u64::from(request.blocks)));
        matches!(request.op, Op::Read | Op::Write | Op::WriteZeroes) && first <= self.bad.end().0 && last > self.bad.start().0
    }
}

impl Queue for FaultyQueue {
    fn geometry(&self) -> &Geometry {
        self.queue.geometry()
    }

    fn depth(&self) -> u32 {
        self.queue.depth()
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight() >= self.depth() {
            return Submit::Full;
        }
        if !self.is_bad(request) {
            return self.queue.submit(request, data);
        }
        // An invalid request gets the error that the wrapped device would report.
        let status = self.queue.geometry().check(request, data).and(Err(Error::Media));
        self.failed.push(Completion { tag: request.tag, status });
        Submit::Queued
    }

    fn ring(&mut self) {
        self.queue.ring();
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let failed = self.failed.take(completions);
        failed + self.queue.poll(&mut completions[failed..])
    }

    fn in_flight(&self) -> u32 {
        self.queue.in_flight() + u32::try_from(self.failed.len()).expect("no more than the depth")
    }

    fn wait(&mut self, at_most: Duration) {
        let at_most = if self.failed.len() > 0 { Duration::ZERO } else { at_most };
        self.queue.wait(at_most);
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event()
    }

    fn arm(&mut self) -> Armed {
        match self.queue.arm() {
            Armed::Waiting if self.failed.len() == 0 => Armed::Waiting,
            _ => Armed::Ready,
        }
    }

    fn expected(&self) -> Option<Time> {
        if self.failed.len() > 0 { Some(Time::default()) } else { self.queue.expected() }
    }

    fn cancel(&mut self, tag: Tag) {
        self.queue.cancel(tag);
    }

    fn owns_buffer(&self, tag: Tag) -> bool {
        self.queue.owns_buffer(tag)
    }

    fn take_released(&mut self) -> Option<Tag> {
        self.queue.take_released()
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.failed.clear();
        self.queue.reset()
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::driver::MemoryDevice;

    #[test]
    fn only_what_touches_a_bad_block_fails() {
        let sound = Arc::new(MemoryDevice::new(512, 64 << 10).expect("memory"));
        let device = FaultyDevice::new(sound, Lba(10)..=Lba(11));
        let mut queue = device.queue(&QueueOptions { depth: 8, ..QueueOptions::default() }).expect("a queue");
        let arena = Arena::private(4096).expect("memory");
        queue.register(&arena).expect("registered");
        let status = |queue: &mut Box<dyn Queue>, request: Request, bytes: u32| {
            let data = [arena.span(0, bytes)];
            let data = if request.op.has_data() { &data[..] } else { &[] };
            assert_eq!(queue.submit(&request, data), Submit::Queued);
            let mut ended = [Completion::EMPTY; 2];
            assert_eq!(queue.poll(&mut ended), 1);
            ended[0].status
        };
        assert_eq!(status(&mut queue, Request::read(Tag(1), Lba(8), 2), 1024), Ok(()));
        assert_eq!(status(&mut queue, Request::read(Tag(1), Lba(9), 2), 1024), Err(Error::Media));
        assert_eq!(status(&mut queue, Request::write(Tag(1), Lba(11), 2), 1024), Err(Error::Media));
        assert_eq!(status(&mut queue, Request::write(Tag(1), Lba(12), 2), 1024), Ok(()));
        assert_eq!(status(&mut queue, Request::read(Tag(1), Lba(10), 2), 512), Err(Error::Misaligned));
        assert_eq!(status(&mut queue, Request::flush(Tag(1)), 0), Ok(()));
        assert_eq!(queue.in_flight(), 0);
    }
}
