//! A device in memory: a disk for tests, and the fastest one there is.
//!
//! Its blocks are a region; a request is a copy, done when the bell is rung. Queues of one device may be used by different
//! threads; requests to the same blocks at the same time have no order, as on a real device.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use shm::{Pages, Region};

use super::ring::CompletionRing;
use crate::buffer::{Arena, Span};
use crate::device::{Device, OpenError, QueueOptions};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Queue, Submit};
use crate::request::{Completion, Op, Request, Status};
use crate::units::Tag;

/// Blocks in memory, zero at first.
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    geometry: Geometry,
    blocks: Arc<Region>,
}

impl MemoryDevice {
    /// One of this many bytes, a multiple of `block_bytes`.
    ///
    /// # Errors
    /// No memory.
    pub fn new(block_bytes: u32, bytes: u64) -> io::Result<MemoryDevice> {
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let blocks = Arc::new(Region::private(len, Pages::Small)?);
        Ok(MemoryDevice { geometry: Geometry::plain(block_bytes, bytes / u64::from(block_bytes)), blocks })
    }

    /// The same with other limits; size and blocks stay.
    #[must_use]
    pub fn with_geometry(self, change: impl FnOnce(&mut Geometry)) -> MemoryDevice {
        let mut geometry = self.geometry.clone();
        change(&mut geometry);
        assert_eq!(geometry.bytes(), self.geometry.bytes(), "the size of the memory is fixed");
        MemoryDevice { geometry, blocks: self.blocks }
    }

    /// A queue of it, by its own type.
    pub fn open_queue(&self, depth: u32) -> MemoryQueue {
        MemoryQueue { device: self.clone(), depth, arenas: Vec::new(), ended: CompletionRing::new(depth) }
    }

    /// Its bytes, to look at and to damage in tests.
    pub fn region(&self) -> &Region {
        &self.blocks
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        Ok(Box::new(self.open_queue(options.depth)))
    }
}

/// See [`MemoryDevice`].
#[derive(Debug)]
pub struct MemoryQueue {
    device: MemoryDevice,
    depth: u32,
    arenas: Vec<Arena>,
    ended: CompletionRing,
}

impl MemoryQueue {
    fn run(&self, request: &Request, data: &[Span]) -> Status {
        self.device.geometry.check(request, data)?;
        let block_bytes = u64::from(self.device.geometry.block_bytes);
        let at = usize::try_from(request.lba.0 * block_bytes).expect("in range");
        let blocks = &self.device.blocks;
        match request.op {
            Op::Flush | Op::Discard => {}
            Op::WriteZeroes => {
                let bytes = usize::try_from(u64::from(request.blocks) * block_bytes).expect("in range");
                blocks.fill(at..at + bytes, 0);
            }
            Op::Read | Op::Write => self.copy(request.op, at, data)?,
        }
        Ok(())
    }

    fn copy(&self, op: Op, mut at: usize, data: &[Span]) -> Status {
        for span in data {
            let arena = self.arenas.iter().find(|arena| arena.id() == span.arena).ok_or(Error::NotPermitted)?;
            let (memory, memory_at, bytes) = (arena.region(), usize::try_from(span.at).expect("in memory"), span.bytes as usize);
            match op {
                Op::Read => self.device.blocks.copy(at, memory, memory_at, bytes),
                _ => memory.copy(memory_at, &self.device.blocks, at, bytes),
            }
            at += bytes;
        }
        Ok(())
    }
}

impl Queue for MemoryQueue {
    fn geometry(&self) -> &Geometry {
        &self.device.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        if self.arenas.iter().all(|known| known.id() != arena.id()) {
            self.arenas.push(arena.clone());
        }
        Ok(())
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.ended.len() as u32 >= self.depth {
            return Submit::Full;
        }
        let status = self.run(request, data);
        self.ended.push(Completion { tag: request.tag, status });
        Submit::Queued
    }

    fn ring(&mut self) {}

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.ended.take(completions)
    }

    fn in_flight(&self) -> u32 {
        self.ended.len() as u32
    }

    fn wait(&mut self, _: Duration) {}

    fn cancel(&mut self, _: Tag) {}

    fn reset(&mut self) -> Result<(), Error> {
        self.ended.clear();
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::units::Lba;

    #[test]
    fn what_was_written_in_pieces_is_read_in_one() {
        let device = MemoryDevice::new(512, 64 << 10).expect("memory");
        let arena = Arena::private(64 << 10).expect("memory");
        let [a, b, whole] = [512, 1024, 1536].map(|bytes| arena.allocate(bytes).expect("room"));
        a.write(0, &[1; 512]);
        b.write(0, &[2; 1024]);
        let mut queue = device.open_queue(4);
        queue.register(&arena).expect("registered");
        assert_eq!(queue.submit(&Request::write(Tag(1), Lba(5), 3), &[a.span(), b.span()]), Submit::Queued);
        assert_eq!(queue.submit(&Request::write_zeroes(Tag(2), Lba(6), 1), &[]), Submit::Queued);
        assert_eq!(queue.submit(&Request::read(Tag(3), Lba(5), 3), &[whole.span()]), Submit::Queued);
        assert_eq!(queue.submit(&Request::read(Tag(4), Lba(128), 1), &[a.span()]), Submit::Queued);
        assert_eq!(queue.submit(&Request::flush(Tag(5)), &[]), Submit::Full);
        let mut ended = [Completion::EMPTY; 8];
        assert_eq!(queue.poll(&mut ended), 4);
        assert_eq!(ended[3], Completion { tag: Tag(4), status: Err(Error::OutOfRange) });
        assert!(ended[..3].iter().all(|completion| completion.status.is_ok()));
        let expected = [[1; 512], [0; 512], [2; 512]].concat();
        assert_eq!(whole.to_vec(), expected);
    }
}
