//! The device, in blocks of 4 KiB.
//!
//! Three queue classes, each with separate queues and buffers, so that a long row of data does not delay a commit: control (the
//! log, superblocks), metadata and data. Calls come from many threads. A flush covers what was completed on any queue class before it.

mod class_queue;
mod exclusive_queue;
mod flight;
mod pending_calls;
#[cfg(test)]
mod test;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::handle::Io;
use block::{Device, Geometry, Params, SharedHandle, SharedQueue};

use class_queue::ClassQueue;
use exclusive_queue::ExclusiveQueues;
pub use flight::InFlight;

use crate::error::Error;
use crate::units::{BLOCK_BYTES, Block, Extent};

/// The class of queues that a request goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueClass {
    /// Log and superblocks: what somebody waits for.
    Control = 0,
    /// Nodes and bitmaps.
    Metadata = 1,
    /// Files.
    Data = 2,
}

/// How a disk is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSettings {
    /// Memory for what is in flight, in bytes, for each queue class; at least 1 MiB is taken.
    pub buffer_bytes: usize,
    /// The parameters of the handles on the queues.
    pub params: Params,
}

impl Default for DiskSettings {
    fn default() -> Self {
        DiskSettings { buffer_bytes: 8 << 20, params: Params::default() }
    }
}

/// What went to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoCounts {
    /// The number of read requests.
    pub reads: u64,
    /// The bytes of all read requests.
    pub read_bytes: u64,
    /// The number of write requests.
    pub writes: u64,
    /// The bytes of all write requests.
    pub written_bytes: u64,
    /// Of the writes, those that were durable when they ended.
    pub through: u64,
    /// The number of flush requests.
    pub flushes: u64,
    /// The number of discard requests.
    pub discards: u64,
}

#[derive(Default)]
struct IoCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    through: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
}

/// A device in blocks of 4 KiB, with a set of queues for each class.
pub struct Disk {
    classes: [ClassQueue; 3],
    lones: ExclusiveQueues,
    geometry: Geometry,
    counters: IoCounters,
}

impl Disk {
    /// With queues of the device as it gives them.
    ///
    /// # Errors
    /// No queues, or blocks that do not divide 4 KiB.
    pub fn open(device: &dyn Device, settings: &DiskSettings) -> Result<Disk, Error> {
        let queue = || {
            let queue = device.queue(&settings.params.queue_options()).map_err(|_| Error::NoResources)?;
            SharedQueue::new(queue, &settings.params).map_err(|_| Error::NoResources)
        };
        Ok(Disk::over([queue()?, queue()?, queue()?], settings)?.with_lones(device, settings))
    }

    /// With queues more of the device, if it is one of the kernel's, for requests that are waited for one by one.
    #[must_use]
    pub fn with_lones(self, device: &dyn Device, settings: &DiskSettings) -> Disk {
        Disk { lones: ExclusiveQueues::of(device, settings), ..self }
    }

    /// Over queues that are there, by queue class; they may be the same one.
    ///
    /// # Errors
    /// No memory, or blocks that do not divide 4 KiB.
    pub fn over(queues: [Arc<SharedQueue>; 3], settings: &DiskSettings) -> Result<Disk, Error> {
        let geometry = queues[0].geometry().clone();
        if geometry.block_bytes as usize > BLOCK_BYTES {
            return Err(Error::Sizes("the device's blocks are larger than 4 KiB"));
        }
        let [a, b, c] = queues;
        let class = |queue| ClassQueue::new(queue, settings);
        Ok(Disk {
            classes: [class(a)?, class(b)?, class(c)?],
            lones: ExclusiveQueues::default(),
            geometry,
            counters: IoCounters::default(),
        })
    }

    /// Returns the number of whole blocks.
    pub fn blocks(&self) -> u64 {
        self.geometry.bytes() / BLOCK_BYTES as u64
    }

    /// What the device looks like.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The handle of a queue class, for those who have memory of their own (`SharedQueue::register` it first, by [`Disk::register`]).
    pub fn handle(&self, class: QueueClass) -> &SharedHandle {
        self.classes[class as usize].handle()
    }

    /// Makes memory known to all queues.
    ///
    /// # Errors
    /// As the device says.
    pub fn register(&self, arena: &block::Arena) -> Result<(), Error> {
        self.classes.iter().try_for_each(|class| class.register(arena)).map_err(Error::Device)
    }

    /// Whole blocks into memory.
    ///
    /// # Errors
    /// As the device says.
    pub fn read_blocks(&self, class: QueueClass, at: Block, to: &mut [u8]) -> Result<(), Error> {
        self.read_many(class, &mut [(at, to)])
    }

    /// Several pieces at once; all are in flight together as far as there are buffers.
    ///
    /// # Errors
    /// The first that failed; what the others hold is not said.
    pub fn read_many(&self, class: QueueClass, reads: &mut [(Block, &mut [u8])]) -> Result<(), Error> {
        if let [(at, to)] = reads
            && let Some(done) = self.lones.read(*at, to)
        {
            self.count_read(to.len());
            return done.map_err(Error::Device);
        }
        let mut flight = InFlight::new(self, class);
        for (at, to) in reads {
            flight.read(*at, to);
        }
        flight.finish()
    }

    /// Memory into whole blocks, several pieces at once. What is given one behind the other and lies so on the device goes in one
    /// request. When it returns, all are completed (not durable: [`Disk::flush`]).
    ///
    /// # Errors
    /// The first that failed; any of the others may have been done.
    pub fn write_blocks(&self, class: QueueClass, writes: &[(Block, &[u8])]) -> Result<(), Error> {
        match self.write_alone(writes, false) {
            Some(done) => done,
            None => self.start_writes(class, writes).finish(),
        }
    }

    /// As [`Disk::write_blocks`], and what was written is durable; what was written before it need not be.
    ///
    /// # Errors
    /// The first that failed: then nothing is known of any.
    pub fn write_through(&self, class: QueueClass, writes: &[(Block, &[u8])]) -> Result<(), Error> {
        if let Some(done) = self.write_alone(writes, true) {
            return done;
        }
        let mut flight = self.flight(class);
        flight.through = true;
        flight.write(writes);
        flight.finish()
    }

    fn write_alone(&self, writes: &[(Block, &[u8])], through: bool) -> Option<Result<(), Error>> {
        let done = self.lones.write(writes, through)?;
        self.count_write(writes.iter().map(|(_, part)| part.len()).sum(), through);
        Some(done.map_err(Error::Device))
    }

    /// As [`Disk::write_blocks`], and waits only for buffers: the bytes are copied, the flight is to be finished later.
    pub fn start_writes(&self, class: QueueClass, writes: &[(Block, &[u8])]) -> InFlight<'_, 'static> {
        let mut flight = self.flight(class);
        flight.write(writes);
        flight
    }

    /// With nothing in it yet.
    pub(crate) fn flight(&self, class: QueueClass) -> InFlight<'_, 'static> {
        InFlight::new(self, class)
    }

    /// What was completed before, on any queue class, survives a loss of power when this returns.
    ///
    /// # Errors
    /// As the device says: then nothing is known of what was written since the last flush.
    pub fn flush(&self) -> Result<(), Error> {
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.lones.flush().unwrap_or_else(|| self.handle(QueueClass::Control).flush()).map_err(Error::Device)
    }

    /// Tells the device that nobody needs these blocks. A device that does not know of this is left alone.
    ///
    /// # Errors
    /// As the device says.
    pub fn discard(&self, extent: Extent) -> Result<(), Error> {
        if !self.geometry.discard {
            return Ok(());
        }
        self.counters.discards.fetch_add(1, Ordering::Relaxed);
        let bytes = u64::from(extent.blocks) * BLOCK_BYTES as u64;
        match self.handle(QueueClass::Data).run(Io::discard(extent.start.byte(), bytes)).status {
            Err(block::Error::Unsupported) | Ok(()) => Ok(()),
            Err(error) => Err(Error::Device(error)),
        }
    }

    /// What was done through this disk.
    pub fn counts(&self) -> IoCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = &self.counters;
        IoCounts {
            reads: of(&all.reads),
            read_bytes: of(&all.read_bytes),
            writes: of(&all.writes),
            written_bytes: of(&all.written_bytes),
            through: of(&all.through),
            flushes: of(&all.flushes),
            discards: of(&all.discards),
        }
    }

    fn class(&self, class: QueueClass) -> &ClassQueue {
        &self.classes[class as usize]
    }

    /// Of a queue class that has or had calls under way.
    fn later(&self, class: QueueClass) -> &pending_calls::PendingCalls {
        self.classes[class as usize].later().expect("made by the first call")
    }

    fn count_read(&self, bytes: usize) {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn count_write(&self, bytes: usize, through: bool) {
        self.counters.through.fetch_add(u64::from(through), Ordering::Relaxed);
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
