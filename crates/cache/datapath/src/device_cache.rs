//! A block device with a cache in the memory of this process: the engine over a private region, with the device as its only file.
//!
//! One thread per cache leads: it writes dirty pages back when they are old or many, and on request. Reads that miss go to the
//! device in the thread of the caller.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use block::{Error, OpenError};
use pagecache::Shape;
use rustix::io::Errno;
use shm::{PageSize, ProcessSlots, Region};
use ssdcache::{FileKey, Mode, PAGE_BYTES};

use crate::engine::{BackingFile, CacheEngine, Environment, Layout, Limits, Open, OpenFileError, OpenOptions, Parts, Sizes};

/// The device's number among the files of its engine.
const DEVICE: FileKey = FileKey(1);
/// Records of files in the region; one is used.
const FILES: u32 = 16;
/// The smallest number of frames that an engine works with.
pub const FRAMES_MIN: u32 = 16;

/// The sizes of a device's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCacheOptions {
    /// Pages of memory, at least [`FRAMES_MIN`].
    pub frames: u32,
    /// Bytes read ahead of a sequential reader, at most; 0 disables read-ahead.
    pub read_ahead: u32,
    /// Milliseconds after which a dirty page is written back.
    pub dirty_age_ms: u32,
    /// Percentage of the frames that may be dirty before writers wait for write-back.
    pub dirty_percent: u32,
    /// Whether all memory is taken when the cache is opened, instead of at the first use of each page.
    pub populate: bool,
}

impl DeviceCacheOptions {
    /// Returns the defaults for this many frames: read-ahead of 256 KiB, write-back after 30 s or when half of the frames are dirty.
    pub fn new(frames: u32) -> DeviceCacheOptions {
        DeviceCacheOptions { frames, read_ahead: 256 << 10, dirty_age_ms: 30_000, dirty_percent: 50, populate: false }
    }
}

/// A device behind a cache. Every thread may use it; each user has a [`DeviceHandle`].
pub struct DeviceCache {
    engine: Arc<CacheEngine>,
    environment: Arc<DeviceEnvironment>,
    bytes: u64,
    /// Keeps the device's record while no handle is open.
    open: Option<Open>,
    leader: Option<JoinHandle<()>>,
}

/// One user of a device's cache: it detects sequential reads, and hears once of each failed write-back.
pub struct DeviceHandle(Open);

struct DeviceEnvironment {
    device: Arc<dyn BackingFile>,
    begun: Instant,
}

impl Environment for DeviceEnvironment {
    fn open(&self, _: FileKey, _: &Path, _: &[u32], _: bool) -> std::io::Result<Arc<dyn BackingFile>> {
        Ok(Arc::clone(&self.device))
    }

    fn now_ms(&self) -> u32 {
        self.begun.elapsed().as_millis() as u32
    }

    /// A device has no modification time.
    fn realtime_ns(&self) -> u64 {
        1
    }

    /// The caller learns of failures from its flushes.
    fn report(&self, _: &str) {}
}

impl DeviceCache {
    /// Opens a cache in front of a device, and starts its thread.
    ///
    /// # Errors
    /// No memory, or no thread.
    pub fn open(device: Arc<dyn BackingFile>, options: &DeviceCacheOptions) -> Result<DeviceCache, OpenError> {
        let failed = |what: &str, error: std::io::Error| OpenError::system(format!("{what} for the cache of a device"), error);
        let bytes = device.stamp().map_err(|error| failed("the size", error))?.size;
        let sizes = Sizes { frames: Shape::new(options.frames.max(FRAMES_MIN)), ssd: None, files: FILES };
        let layout = Layout::of(sizes);
        let limits = Limits {
            read_ahead: options.read_ahead,
            dirty_age_ms: options.dirty_age_ms,
            dirty_percent: options.dirty_percent.clamp(1, 100),
            ..Limits::new(0)
        };
        let region = Region::private(layout.bytes, PageSize::HugeIfFree).map_err(|error| failed("memory", error))?;
        if options.populate {
            region.fill(0..layout.bytes, 0);
        }
        let region = Arc::new(region);
        let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), DEVICE.0);
        CacheEngine::format(&region, sizes, &limits, Mode::WriteBack, seed, "");
        let processes = Arc::new(ProcessSlots::in_process(Arc::clone(&region), layout.processes_at()));
        let environment = Arc::new(DeviceEnvironment { device, begun: Instant::now() });
        let world = Arc::clone(&environment) as Arc<dyn Environment>;
        let parts = Parts { region, processes, device: None, plain: None, world, limits };
        let engine = CacheEngine::attach(parts).map_err(|error| OpenError::Unusable(format!("the cache of a device: {error}")))?;
        let leads = Arc::clone(&engine);
        let leader = std::thread::Builder::new().name("hotshelf-nvmed".into()).spawn(move || leads.work());
        let leader = leader.map_err(|error| failed("a thread", error))?;
        let mut cache = DeviceCache { engine, environment, bytes, open: None, leader: Some(leader) };
        cache.open = Some(cache.handle().map_err(|error| OpenError::Unusable(format!("the cache of a device: {error}")))?.0);
        Ok(cache)
    }

    /// Returns a handle for another user.
    ///
    /// # Errors
    /// Those of the leader; ETIMEDOUT if it does not answer.
    pub fn handle(&self) -> Result<DeviceHandle, Errno> {
        let device = Arc::clone(&self.environment.device);
        let opened = self.engine.open(DEVICE, Path::new("device"), OpenOptions::default(), device);
        opened.map(DeviceHandle).map_err(|error| match error {
            OpenFileError::Failed(errno) => errno,
            // A device has one record, a short name, no SSD and no other writers.
            _ => Errno::IO,
        })
    }

    /// Reads bytes of the device.
    ///
    /// # Errors
    /// As the device says; EINVAL beyond its end.
    pub fn read(&self, handle: &DeviceHandle, offset: u64, to: &mut [u8]) -> Result<(), Errno> {
        self.check(offset, to.len())?;
        let read = handle.0.read(offset, to)?;
        if read == to.len() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Writes bytes into the cache; a later flush or write-back brings them to the device.
    ///
    /// # Errors
    /// As the device says, when part of a page has to be read first or room has to be made; EINVAL beyond its end.
    pub fn write(&self, handle: &DeviceHandle, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.check(offset, from.len())?;
        handle.0.write(offset, from).map(drop)
    }

    /// Makes everything that was written before survive a loss of power.
    ///
    /// # Errors
    /// As the device says. A page that cannot be written stays dirty, and each flush tries it again.
    pub fn flush(&self, handle: &DeviceHandle) -> Result<(), Errno> {
        handle.0.sync()
    }

    /// Writes the dirty pages of a range to the device, durably.
    ///
    /// # Errors
    /// As the device says.
    pub fn write_back(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let Some(open) = &self.open else { return Ok(()) };
        let pages = self.pages_of(&bytes);
        if pages.is_empty() || self.engine.pages.marked_count() == 0 {
            return Ok(());
        }
        open.write_back_range(pages)
    }

    /// Drops the pages of a range from the cache; dirty ones are written first.
    ///
    /// # Errors
    /// As the device says: a page that cannot be written stays.
    pub fn invalidate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let Some(open) = &self.open else { return Ok(()) };
        let pages = self.pages_of(&bytes);
        // A concurrent writer may make pages dirty again; its bytes are the newer ones then.
        let mut tries = crate::engine::Retries::new();
        while tries.again() {
            self.write_back(bytes.clone())?;
            if open.drop_clean_range(pages.clone())? {
                return Ok(());
            }
        }
        Err(Errno::BUSY)
    }

    fn pages_of(&self, bytes: &Range<u64>) -> Range<u64> {
        let page = PAGE_BYTES as u64;
        bytes.start / page..bytes.end.min(self.bytes).div_ceil(page)
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), Errno> {
        let is_inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes);
        if is_inside { Ok(()) } else { Err(Errno::from_raw_os_error(Error::OutOfRange.errno())) }
    }
}

impl Drop for DeviceCache {
    fn drop(&mut self) {
        self.open = None;
        self.engine.detach();
        if let Some(leader) = self.leader.take() {
            // A panic of the leader was reported to those who waited for it.
            let _ = leader.join();
        }
        self.engine.free_process_slot();
    }
}
