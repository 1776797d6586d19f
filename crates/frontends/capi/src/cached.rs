//! The block cache of a device, and a handle's place in it.
//!
//! All cached handles of a device share one cache. What keeps direct I/O beside it coherent is here, too (datapath: range.rs).

use std::ops::Range;

use block::{Error, Op, Params, QueueOptions};
use datapath::{Settings, SharedCache};
use parking_lot::Mutex;

use crate::api_error::{ApiError, ApiResult};
use crate::device::Device;
use crate::memory::Memory;
use crate::queue::Tracks;

/// The smallest cache that is one, in pages.
const FRAMES_MIN: u64 = 16;

/// See the module.
pub struct Cache {
    shared: SharedCache<Tracks>,
    volatile: bool,
}

/// A handle's: its stream for read-ahead, and which failures it was told of.
pub struct Place(Mutex<datapath::Handle>);

impl Cache {
    pub fn open(device: &Device, params: &Params, eager: bool) -> ApiResult<Cache> {
        let frames = (params.cache_bytes / pagecache::PAGE_BYTES as u64).max(FRAMES_MIN);
        let frames = u32::try_from(frames).map_err(|_| ApiError::new(libc::EINVAL, "the cache has 16 TiB at most"))?;
        let mut settings = Settings::new(frames);
        settings.ahead_max = u32::try_from(params.readahead_bytes / pagecache::PAGE_BYTES as u64).unwrap_or(u32::MAX).min(frames / 4);
        settings.pages.eager = eager;
        let params = Params { queue_depth: QueueOptions::default().depth, ..params.clone() };
        // One for those who wait, one for what nobody waits for.
        let queues = [stack::open_queue(&*device.below, &params)?, stack::open_queue(&*device.below, &params)?];
        let shared = SharedCache::open(queues.into(), settings)?;
        Ok(Cache { shared, volatile: device.geometry().volatile_cache })
    }

    pub fn place(&self) -> Place {
        Place(Mutex::new(self.shared.handle()))
    }

    pub fn read(&self, place: &Place, offset: u64, memory: &Memory) -> Result<(), Error> {
        memory.with_mut(|bytes| match place.0.try_lock() {
            Some(mut handle) => self.shared.read(&mut handle, offset, bytes),
            // Several threads read through one handle: all but one without its stream.
            None => self.shared.read(&mut self.shared.handle(), offset, bytes),
        })
    }

    /// `through`: returns when the device has it; `durable`: and it survives a loss of power.
    pub fn write(&self, place: &Place, offset: u64, memory: &Memory, through: bool, durable: bool) -> Result<(), Error> {
        memory.with(|bytes| self.shared.write(&mut self.shared.handle(), offset, bytes))?;
        if durable && self.volatile {
            return self.flush(place);
        }
        if through || durable { self.shared.write_back(offset..offset + memory.len() as u64) } else { Ok(()) }
    }

    pub fn flush(&self, place: &Place) -> Result<(), Error> {
        self.shared.flush(&mut place.0.lock())
    }

    pub fn discard(&self, bytes: Range<u64>) -> Result<(), Error> {
        self.shared.discard(bytes)
    }

    /// Before direct I/O on a range: what is dirty of it is written, and goes if it is about to change.
    pub fn make_way(&self, op: Op, bytes: Range<u64>) -> Result<(), Error> {
        match op {
            Op::Read => self.shared.write_back(bytes),
            Op::Write | Op::Discard | Op::WriteZeroes => self.shared.invalidate(bytes),
            Op::Flush => Ok(()),
        }
    }

    /// After it: pages that somebody read meanwhile go. One that cannot be written stays, and is told by the next flush.
    pub fn forget(&self, op: Op, bytes: Range<u64>) {
        if op.writes() {
            let _ = self.shared.invalidate(bytes);
        }
    }
}
