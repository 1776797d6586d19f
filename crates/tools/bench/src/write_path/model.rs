//! A file system on the model of the paper's drive.
//!
//! Its time is virtual: it goes on by what our threads spend on a processor, and jumps to the device's next event when somebody would
//! sleep. So what software costs is in the figures, the device works meanwhile, and other work on the machine is not seen. Two
//! threads that work at the same time are counted one after the other, to the disadvantage of who uses them. The work of the model
//! itself, and the copies of the memory that it keeps blocks in, are not counted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use block::driver::MemoryDevice;
use block::{
    Arena, Armed, Clock, Completion, Device, Error, Geometry, OpenError, Params, Queue, QueueOptions, Request, Span, Submit, Tag, Time,
};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use sim::device::clock::VirtualClock;
use sim::device::model::presets::SsdPreset;
use sim::device::model::{SsdModel, TimedQueue};
use stack::rawfs::fs::{Fs, FsSettings, Timestamp};
use stack::rawfs::{Disk, DiskSettings, FormatOptions, Settings, Store};

/// What goes on while nobody waits.
struct TimeMeter {
    clock: VirtualClock,
    /// Processor time up to which was counted; none: it is not counted.
    counted: Option<Mutex<Duration>>,
}

fn processor() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

impl TimeMeter {
    /// Counts what was spent.
    fn count(&self) {
        if let Some(counted) = &self.counted {
            let mut counted = counted.lock();
            let now = processor();
            self.clock.advance(now.saturating_sub(*counted));
            *counted = now;
        }
    }

    /// Does what is no work of ours.
    fn without<T>(&self, model: impl FnOnce() -> T) -> T {
        self.count();
        let done = model();
        if let Some(counted) = &self.counted {
            *counted.lock() = processor();
        }
        done
    }
}

/// The drive, with less room than it has: blocks in memory, all queues on one virtual clock.
struct ModelDrive {
    memory: MemoryDevice,
    drive: Arc<Mutex<SsdModel>>,
    meter: Arc<TimeMeter>,
}

impl Device for ModelDrive {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let below = TimedQueue::simulated(self.memory.open_queue(options.depth), Arc::clone(&self.drive), &self.meter.clock);
        let event = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| OpenError::system("an event", error))?;
        Ok(Box::new(MeteredQueue { below, found: false, event, meter: Arc::clone(&self.meter) }))
    }
}

/// A queue of it: who looks for what has ended, and finds nothing, waits, and moves the clock to when there is something. Nobody looks
/// without waiting: rawfs polls to wait, or when a queue is full.
struct MeteredQueue<Q> {
    below: Q,
    /// The last look found something: the next one asks whether that was all.
    found: bool,
    /// Never signalled: nobody sleeps.
    event: OwnedFd,
    meter: Arc<TimeMeter>,
}

impl<Q: Queue> Queue for MeteredQueue<Q> {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn depth(&self) -> u32 {
        self.below.depth()
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.below.register(arena)
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        self.meter.without(|| self.below.submit(request, data))
    }

    fn ring(&mut self) {
        self.below.ring();
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.meter.without(|| {
            let mut count = self.below.poll(completions);
            if count == 0 && !self.found && self.below.in_flight() > 0 {
                self.below.wait(Duration::from_secs(1));
                count = self.below.poll(completions);
            }
            self.found = count > 0;
            count
        })
    }

    fn in_flight(&self) -> u32 {
        self.below.in_flight()
    }

    fn wait(&mut self, at_most: Duration) {
        self.meter.without(|| self.below.wait(at_most));
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn arm(&mut self) -> Armed {
        self.wait(Duration::from_secs(1));
        Armed::Ready
    }

    fn cancel(&mut self, tag: Tag) {
        self.below.cancel(tag);
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.below.reset()
    }
}

/// What counts as time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeScope {
    /// The device and the software above it.
    All,
    /// The device alone, as if software took no time: the same figures everywhere.
    Device,
}

/// An empty file system on such a drive of its own.
pub struct ModelledFs {
    /// It.
    pub fs: Fs,
    meter: Arc<TimeMeter>,
}

impl ModelledFs {
    /// Of so many bytes.
    ///
    /// # Errors
    /// No memory.
    pub fn new(preset: &SsdPreset, bytes: u64, counts: TimeScope) -> anyhow::Result<ModelledFs> {
        let memory = MemoryDevice::new(512, bytes)?.with_geometry(|geometry| geometry.volatile_cache = preset.volatile_cache);
        let counted = (counts == TimeScope::All).then(|| Mutex::new(processor()));
        let meter = Arc::new(TimeMeter { clock: VirtualClock::default(), counted });
        let drive = Arc::new(Mutex::new(SsdModel::new(preset.params, memory.geometry())));
        let device = ModelDrive { memory, drive, meter: Arc::clone(&meter) };
        let params = Params { completion: block::handle::CompletionMode::OfQueue, ..Params::default() };
        let disk = Disk::open(&device, &DiskSettings { params, ..DiskSettings::default() })?;
        Store::format(&disk, &FormatOptions::default())?;
        let (store, _) = Store::open(disk, &Settings::default())?;
        Fs::format(&store, Timestamp::now())?;
        // Nothing is written by time: real time does not count here.
        let settings = FsSettings { write_back: Duration::ZERO, ..FsSettings::default() };
        Ok(ModelledFs { fs: Fs::open(store, settings)?.0, meter })
    }

    /// Since it was made.
    pub fn now(&self) -> Duration {
        self.meter.count();
        self.meter.clock.now().since(Time(0))
    }
}
