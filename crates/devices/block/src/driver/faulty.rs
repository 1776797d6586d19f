//! A device with configured bad blocks, for testing how programs handle errors.
//!
//! The simulator has richer faults; this device is part of the product, and is opened by name (`fault:eio@LBA-LBA:DEVICE`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::ring::CompletionRing;
use crate::buffer::Span;
use crate::clock::Time;
use crate::device::{Device, OpenError, QueueOptions};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Op, Request};
use crate::units::Lba;

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

impl crate::wrapper::QueueWrapper for FaultyQueue {
    type Inner = dyn Queue;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Self::Inner {
        &*self.queue
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        &mut *self.queue
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if Queue::in_flight(self) >= Queue::depth(self) {
            return Submit::Full;
        }
        if !self.is_bad(request) {
            return self.inner_mut().submit(request, data);
        }
        // An invalid request gets the error that the wrapped device would report.
        let status = self.inner().geometry().check(request, data).and(Err(Error::Media));
        self.failed.push(Completion { tag: request.tag, status });
        Submit::Queued
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let failed = self.failed.take(completions);
        failed + self.inner_mut().poll(&mut completions[failed..])
    }

    fn in_flight(&self) -> u32 {
        self.inner().in_flight() + u32::try_from(self.failed.len()).expect("no more than the depth")
    }

    fn wait(&mut self, at_most: Duration) {
        let at_most = if self.failed.len() > 0 { Duration::ZERO } else { at_most };
        self.inner_mut().wait(at_most);
    }

    fn arm(&mut self) -> Armed {
        match self.inner_mut().arm() {
            Armed::Waiting if self.failed.len() == 0 => Armed::Waiting,
            _ => Armed::Ready,
        }
    }

    fn expected(&self) -> Option<Time> {
        if self.failed.len() > 0 { Some(Time::default()) } else { self.inner().expected() }
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.failed.clear();
        self.inner_mut().reset()
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::buffer::Arena;
    use crate::driver::MemoryDevice;
    use crate::units::Tag;

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
