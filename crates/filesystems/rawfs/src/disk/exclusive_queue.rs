//! One request after the other, each with exclusive use of a queue while it is under way: made and waited for in one system call,
//! where a queue that threads share needs several, and a wake-up by an event. For synchronous callers: a sync, a block.

use block::{Arena, Buf, Clock, Completion, Device, Error, Lba, Queue, Request, Span, Submit, Tag, Tracked};
use parking_lot::Mutex;

use super::DiskSettings;
use crate::units::Block;

/// Queues, and so requests at the same time; more go by the queue classes.
const QUEUES: usize = 3;
/// Bytes of a request, at most.
const BYTES_MAX: usize = 256 << 10;

/// The queues that nobody uses now.
#[derive(Default)]
pub(super) struct ExclusiveQueues {
    idle: Mutex<Vec<ExclusiveQueue>>,
}

struct ExclusiveQueue {
    queue: Tracked<Box<dyn Queue>>,
    buf: Buf,
    block_bytes: u32,
}

impl ExclusiveQueues {
    /// Of a device whose queues are the kernel's: there a thread can wait in the kernel alone. Without queues of another.
    pub(super) fn of(device: &dyn Device, settings: &DiskSettings) -> ExclusiveQueues {
        if device.read_now(0, &mut []).is_none() {
            return ExclusiveQueues::default();
        }
        ExclusiveQueues { idle: Mutex::new((0..QUEUES).map_while(|_| ExclusiveQueue::new(device, settings)).collect()) }
    }

    fn with(&self, bytes: usize, run: impl FnOnce(&mut ExclusiveQueue) -> Result<(), Error>) -> Option<Result<(), Error>> {
        if bytes > BYTES_MAX {
            return None;
        }
        let mut lone = self.idle.lock().pop().filter(|lone| bytes <= lone.buf.len())?;
        let done = run(&mut lone);
        // What has failed may have its memory still: it is left alone.
        if done.is_ok() {
            self.idle.lock().push(lone);
        }
        Some(done)
    }

    /// None: to be done by a queue class.
    pub(super) fn read(&self, at: Block, to: &mut [u8]) -> Option<Result<(), Error>> {
        self.with(to.len(), |lone| {
            let (lba, blocks) = lone.place(at, to.len());
            lone.run(&Request::read(Tag(0), lba, blocks), to.len())?;
            lone.buf.read(0, to);
            Ok(())
        })
    }

    /// Blocks in a row. `through`: they are durable then. None: to be done by a queue class.
    pub(super) fn write(&self, writes: &[(Block, &[u8])], through: bool) -> Option<Result<(), Error>> {
        let (first, _) = writes.first()?;
        let mut bytes = 0;
        for (at, part) in writes {
            if at.byte() != first.byte() + bytes as u64 {
                return None;
            }
            bytes += part.len();
        }
        self.with(bytes, |lone| {
            let mut filled = 0;
            for (_, part) in writes {
                lone.buf.write(filled, part);
                filled += part.len();
            }
            let (lba, blocks) = lone.place(*first, bytes);
            lone.run(&Request { fua: through, ..Request::write(Tag(0), lba, blocks) }, bytes)
        })
    }

    /// None: to be done by a queue class.
    pub(super) fn flush(&self) -> Option<Result<(), Error>> {
        self.with(0, |lone| lone.run(&Request::flush(Tag(0)), 0))
    }
}

impl ExclusiveQueue {
    fn new(device: &dyn Device, settings: &DiskSettings) -> Option<ExclusiveQueue> {
        let options = block::QueueOptions { depth: 2, ..block::QueueOptions::default() };
        let mut queue = Tracked::new(device.queue(&options).ok()?, settings.params.timeouts());
        let (most, block_bytes) = (queue.geometry().transfer_bytes_max as usize, queue.geometry().block_bytes);
        let arena = Arena::private(BYTES_MAX).ok()?;
        queue.register(&arena).ok()?;
        Some(ExclusiveQueue { queue, buf: arena.allocate(BYTES_MAX.min(most))?, block_bytes })
    }

    fn place(&self, at: Block, bytes: usize) -> (Lba, u32) {
        (Lba(at.byte() / u64::from(self.block_bytes)), bytes as u32 / self.block_bytes)
    }

    fn run(&mut self, request: &Request, bytes: usize) -> Result<(), Error> {
        let span = [self.buf.span().part(0, bytes as u32)];
        let data: &[Span] = if bytes > 0 { &span } else { &[] };
        if self.queue.submit(request, data) == Submit::Full {
            return Err(Error::NoResources);
        }
        let mut ended = [Completion::EMPTY];
        loop {
            let left = self.queue.due().since(self.queue.clock().now());
            self.queue.wait(left);
            if self.queue.poll(&mut ended) > 0 {
                return ended[0].status;
            }
        }
    }
}
