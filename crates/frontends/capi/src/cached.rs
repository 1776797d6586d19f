//! The block cache of a device: one for all its cached handles, kept coherent with direct I/O.

use std::ops::Range;
use std::sync::Arc;

use block::{Op, Params, QueueOptions};
use datapath::{DeviceCache, DeviceCacheOptions, DeviceFile, DeviceHandle};

use crate::api_error::{ApiError, ApiResult};
use crate::memory::Memory;

/// A device's cache, shared by all its cached handles.
pub struct Cache {
    pages: DeviceCache,
}

/// The state of a cached handle in the cache: its read-ahead, and the failures that it has reported.
pub struct CachedHandle(DeviceHandle);

impl Cache {
    /// Opens the cache of a device, over two queues of its driver. `eager`: allocates all memory at once.
    pub fn open(device: &dyn block::Device, params: &Params, eager: bool) -> ApiResult<Cache> {
        let frames = (params.cache_bytes / pagecache::PAGE_BYTES as u64).max(u64::from(datapath::FRAMES_MIN));
        let frames = u32::try_from(frames).map_err(|_| ApiError::new(libc::EINVAL, "the cache has 16 TiB at most"))?;
        let read_ahead = params.readahead_bytes.min(u64::from(frames / 4) * pagecache::PAGE_BYTES as u64);
        let options = DeviceCacheOptions {
            read_ahead: u32::try_from(read_ahead).unwrap_or(u32::MAX),
            populate: eager,
            ..DeviceCacheOptions::new(frames)
        };
        let params = Params { queue_depth: QueueOptions::default().depth, ..params.clone() };
        let (reads, writes) = (stack::open_queue(device, &params)?, stack::open_queue(device, &params)?);
        let file = DeviceFile::new(reads, writes, &params)?;
        Ok(Cache { pages: DeviceCache::open(Arc::new(file), &options)? })
    }

    /// Creates the state of a cached handle.
    pub fn handle(&self) -> ApiResult<CachedHandle> {
        Ok(CachedHandle(self.pages.handle().map_err(failed)?))
    }

    /// Fills the memory with bytes from the cache; misses are read from the device.
    pub fn read(&self, handle: &CachedHandle, offset: u64, memory: &Memory) -> ApiResult<()> {
        memory.with_mut(|bytes| self.pages.read(&handle.0, offset, bytes)).map_err(failed)
    }

    /// Writes into the cache. `through`: returns when the device has the bytes; `durable`: when they survive a power cut too.
    pub fn write(&self, handle: &CachedHandle, offset: u64, memory: &Memory, through: bool, durable: bool) -> ApiResult<()> {
        memory.with(|bytes| self.pages.write(&handle.0, offset, bytes)).map_err(failed)?;
        if !through && !durable {
            return Ok(());
        }
        self.pages.write_back(offset..offset + memory.len() as u64).map_err(failed)
    }

    /// Writes back dirty pages, and makes them durable on the device.
    pub fn flush(&self, handle: &CachedHandle) -> ApiResult<()> {
        self.pages.flush(&handle.0).map_err(|errno| ApiError::of("flush", to_error(errno)))
    }

    /// Prepares direct I/O on a range: writes its dirty pages, and drops them if it is about to change.
    pub fn yield_direct(&self, op: Op, bytes: Range<u64>) -> ApiResult<()> {
        match op {
            Op::Read => self.pages.write_back(bytes),
            Op::Write | Op::Discard | Op::WriteZeroes => self.pages.invalidate(bytes),
            Op::Flush => Ok(()),
        }
        .map_err(failed)
    }

    /// Drops pages that another thread read during direct I/O on a range. A page that cannot be written stays, and the next flush fails.
    pub fn forget(&self, op: Op, bytes: Range<u64>) {
        if op.writes() {
            let _ = self.pages.invalidate(bytes);
        }
    }
}

fn to_error(errno: rustix::io::Errno) -> block::Error {
    block::Error::from_errno(errno.raw_os_error())
}

fn failed(errno: rustix::io::Errno) -> ApiError {
    ApiError::from(to_error(errno))
}
