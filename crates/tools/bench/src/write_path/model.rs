//! A file system on the model of the paper's drive.
//!
//! Time is virtual: it advances by the CPU time of our threads, and to the device's next event when a thread would sleep. So the cost of
//! software is included, the device works in parallel, and other work on the machine is not seen. Threads that run in parallel are counted
//! one after the other, to their disadvantage. The work of the model itself, and its memory copies, are not counted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use block::driver::MemoryDevice;
use block::{Armed, Clock, Completion, Device, Geometry, OpenError, Params, Queue, QueueOptions, Request, Span, Submit, Time};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use sim::device::clock::VirtualClock;
use sim::device::model::presets::SsdPreset;
use sim::device::model::{SsdModel, TimedQueue};
use stack::rawfs::fs::{Fs, FsSettings, Timestamp};
use stack::rawfs::{Disk, DiskSettings, FormatOptions, Settings, Store};

/// Advances virtual time by CPU time.
struct TimeMeter {
    clock: VirtualClock,
    /// CPU time counted so far; `None`: CPU time is not counted.
    counted: Option<Mutex<Duration>>,
}

fn processor() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

impl TimeMeter {
    /// Counts the CPU time spent since the last call.
    fn count(&self) {
        if let Some(counted) = &self.counted {
            let mut counted = counted.lock();
            let now = processor();
            self.clock.advance(now.saturating_sub(*counted));
            *counted = now;
        }
    }

    /// Runs the model without counting its CPU time.
    fn without<T>(&self, model: impl FnOnce() -> T) -> T {
        self.count();
        let done = model();
        if let Some(counted) = &self.counted {
            *counted.lock() = processor();
        }
        done
    }
}

/// The drive with a smaller capacity: blocks in memory, all queues on one virtual clock.
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

/// A queue of the drive. A poll that finds nothing advances the clock to the next completion, because rawfs polls only to wait or when a
/// queue is full.
struct MeteredQueue<Q> {
    below: Q,
    /// The last poll found something: the next one checks for more.
    found: bool,
    /// Never signalled: no thread sleeps.
    event: OwnedFd,
    meter: Arc<TimeMeter>,
}

impl<Q: Queue> block::QueueWrapper for MeteredQueue<Q> {
    type Inner = Q;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Q {
        &self.below
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.below
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        self.meter.without(|| self.below.submit(request, data))
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

    fn wait(&mut self, at_most: Duration) {
        self.meter.without(|| self.below.wait(at_most));
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn arm(&mut self) -> Armed {
        Queue::wait(self, Duration::from_secs(1));
        Armed::Ready
    }
}

/// Which time counts as elapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeScope {
    /// The device and the software above it.
    All,
    /// The device alone, as if software took no time: reproducible figures.
    Device,
}

/// An empty file system on a modelled drive.
pub struct ModelledFs {
    /// The file system on the drive.
    pub fs: Fs,
    meter: Arc<TimeMeter>,
}

impl ModelledFs {
    /// Creates a file system of this size.
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
        // No write-back by age: real time does not count here.
        let settings = FsSettings { write_back: Duration::ZERO, ..FsSettings::default() };
        Ok(ModelledFs { fs: Fs::open(store, settings)?.0, meter })
    }

    /// Returns the virtual time since creation.
    pub fn now(&self) -> Duration {
        self.meter.count();
        self.meter.clock.now().since(Time(0))
    }
}
