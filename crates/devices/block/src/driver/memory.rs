//! A device in memory: a disk for tests, and the fastest device.
//!
//! Its blocks are a region, and a request is a copy. The copy is done at submission, or, on a shared queue, when the doorbell is rung:
//! outside the queue's lock, as a drive works. Different threads may use queues of one device. Concurrent requests to the same blocks have
//! no order, as on a real device.

mod copies;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use shm::{PageSize, Region};

use self::copies::{Copies, Copy};
use super::ring::CompletionRing;
use crate::buffer::{Arena, Span};
use crate::device::{Device, OpenError, QueueOptions};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Doorbell, Queue, Submit};
use crate::request::{Completion, Op, Request, Status};
use crate::units::Tag;

/// A device whose blocks are in memory, initially zero.
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    geometry: Geometry,
    blocks: Arc<Region>,
}

impl MemoryDevice {
    /// Creates a device of `bytes` bytes, a multiple of `block_bytes`.
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated.
    pub fn new(block_bytes: u32, bytes: u64) -> io::Result<MemoryDevice> {
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let blocks = Arc::new(Region::private(len, PageSize::Small)?);
        Ok(MemoryDevice { geometry: Geometry::plain(block_bytes, bytes / u64::from(block_bytes)), blocks })
    }

    /// Returns the same device with other limits; its size must not change.
    #[must_use]
    pub fn with_geometry(self, change: impl FnOnce(&mut Geometry)) -> MemoryDevice {
        let mut geometry = self.geometry.clone();
        change(&mut geometry);
        assert_eq!(geometry.bytes(), self.geometry.bytes(), "the size of the memory is fixed");
        MemoryDevice { geometry, blocks: self.blocks }
    }

    /// Opens a queue, and returns it by its concrete type.
    pub fn open_queue(&self, depth: u32) -> MemoryQueue {
        MemoryQueue { device: self.clone(), depth, arenas: Vec::new(), ended: CompletionRing::new(depth), copies: None, in_flight: 0 }
    }

    /// Returns the memory of the device, for tests that inspect or damage it.
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

/// A queue of a [`MemoryDevice`], which completes requests by copying.
#[derive(Debug)]
pub struct MemoryQueue {
    device: MemoryDevice,
    depth: u32,
    arenas: Vec<Arena>,
    ended: CompletionRing,
    /// The deferred copies of a shared queue.
    copies: Option<Arc<Copies>>,
    in_flight: u32,
}

impl MemoryQueue {
    /// Defers a copy to the thread that rings. Returns `false` if the request is invalid or not a single copy, and must run now.
    fn leave(&self, request: &Request, data: &[Span]) -> bool {
        let (Some(copies), [span], Op::Read | Op::Write) = (&self.copies, data, request.op) else { return false };
        let Some(arena) = self.arenas.iter().position(|arena| arena.id() == span.arena) else { return false };
        if arena >= copies::ARENAS_MAX || self.device.geometry.check(request, data).is_err() {
            return false;
        }
        let at = usize::try_from(request.lba.0 * u64::from(self.device.geometry.block_bytes)).expect("in range");
        let memory_at = usize::try_from(span.at).expect("in memory");
        copies.leave(Copy { tag: request.tag, op: request.op, at, arena, memory_at, bytes: span.bytes as usize });
        true
    }

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
            if let Some(copies) = &self.copies {
                copies.register(arena);
            }
        }
        Ok(())
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.depth {
            return Submit::Full;
        }
        self.in_flight += 1;
        if !self.leave(request, data) {
            let status = self.run(request, data);
            self.ended.push(Completion { tag: request.tag, status });
        }
        Submit::Queued
    }

    fn ring(&mut self) {
        if let Some(copies) = &self.copies {
            copies.run();
        }
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = self.ended.take(completions);
        if let Some(copies) = &self.copies {
            count += copies.take_ended(&mut completions[count..]);
        }
        self.in_flight -= count as u32;
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, _: Duration) {
        self.ring();
    }

    fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
        let copies = self.copies.get_or_insert_with(|| {
            let copies = Copies::new(Arc::clone(&self.device.blocks), self.depth);
            self.arenas.iter().for_each(|arena| copies.register(arena));
            Arc::new(copies)
        });
        Some(Arc::clone(copies) as Arc<dyn Doorbell>)
    }

    fn cancel(&mut self, _: Tag) {}

    fn reset(&mut self) -> Result<(), Error> {
        self.ended.clear();
        if let Some(copies) = &self.copies {
            copies.forget();
        }
        self.in_flight = 0;
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

/// Waits for other threads that may still be copying.
impl Drop for MemoryQueue {
    fn drop(&mut self) {
        if let Some(copies) = &self.copies {
            copies.forget();
        }
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

    #[test]
    fn many_ring_and_each_copy_is_made_once() {
        const BLOCKS: u64 = 64;
        let device = MemoryDevice::new(512, BLOCKS * 512).expect("memory");
        (0..BLOCKS as usize).for_each(|block| device.region().fill(block * 512..(block + 1) * 512, block as u8));
        let arena = Arena::private(BLOCKS as usize * 4096).expect("memory");
        let mut queue = device.open_queue(BLOCKS as u32);
        let doorbell = queue.doorbell().expect("one");
        queue.register(&arena).expect("registered");
        for _ in 0..if cfg!(miri) { 2 } else { 100 } {
            let bufs: Vec<_> = (0..BLOCKS).map(|_| arena.allocate(512).expect("room")).collect();
            for (lba, buf) in (0..BLOCKS).zip(&bufs) {
                assert_eq!(queue.submit(&Request::read(Tag(lba), Lba(lba), 1), &[buf.span()]), Submit::Queued);
            }
            let mut ended = [Completion::EMPTY; 100];
            assert_eq!(queue.poll(&mut ended), 0, "nobody rang");
            std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(|| assert!(doorbell.ring())))));
            assert_eq!((queue.poll(&mut ended), queue.in_flight()), (BLOCKS as usize, 0));
            ended.sort_by_key(|completion| completion.tag.0);
            assert!(ended[100 - BLOCKS as usize..].iter().map(|completion| completion.tag.0).eq(0..BLOCKS), "{ended:?}");
            assert!((0..).zip(&bufs).all(|(lba, buf)| buf.to_vec() == [lba; 512]));
        }
    }

    #[test]
    fn what_was_left_is_forgotten_by_a_reset() {
        let device = MemoryDevice::new(512, 4096).expect("memory");
        let arena = Arena::private(4096).expect("memory");
        let buf = arena.allocate(512).expect("room");
        let mut queue = device.open_queue(4);
        let doorbell = queue.doorbell().expect("one");
        queue.register(&arena).expect("registered");
        buf.write(0, &[7; 512]);
        assert_eq!(queue.submit(&Request::write(Tag(1), Lba(0), 1), &[buf.span()]), Submit::Queued);
        queue.reset().expect("always");
        assert!(doorbell.ring());
        assert_eq!((queue.poll(&mut [Completion::EMPTY; 4]), queue.in_flight()), (0, 0));
        assert_eq!(queue.submit(&Request::read(Tag(2), Lba(0), 1), &[buf.span()]), Submit::Queued);
        queue.ring();
        assert_eq!((queue.poll(&mut [Completion::EMPTY; 4]), buf.to_vec()), (1, vec![0; 512]));
    }
}
