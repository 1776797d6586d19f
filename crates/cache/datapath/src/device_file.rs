//! A block device as the backing file of an engine: bytes in, requests of whole blocks out.

use std::io;
use std::time::{Duration, Instant};

use block::clock::Monotonic;
use block::handle::Done;
use block::{Arena, Buf, Clock, Error, Geometry, OpenError, Params, Queue, SharedHandle, SharedQueue, Tracked};
use parking_lot::{Condvar, Mutex};
use ssdcache::PAGE_BYTES;

use crate::engine::{BackingFile, Stamp};

/// Bytes of one request, at most; the handle divides it further if the device needs that.
const TRANSFER: usize = 128 << 10;
/// Requests that have memory at a time; more threads wait for a buffer.
const TRANSFERS: usize = 16;
/// How long a thread waits for a buffer before it checks whether the device has returned one.
const BUFFER_POLL: Duration = Duration::from_millis(10);
/// How long a thread waits for a buffer in all: requests that timed out may hold all of them.
const BUFFER_WAIT: Duration = Duration::from_secs(60);

/// A device, used through two queues: reads have one, writes and flushes the other.
pub struct DeviceFile<Q: Queue, C: Clock = Monotonic> {
    reads: SharedHandle<Q, C>,
    writes: SharedHandle<Q, C>,
    arena: Arena,
    returned: (Mutex<()>, Condvar),
    bytes: u64,
    has_volatile_cache: bool,
}

impl<Q: Queue, C: Clock> DeviceFile<Q, C> {
    /// Takes two queues of a device.
    ///
    /// # Errors
    /// The device cannot transfer pages of 4 KiB; no memory.
    pub fn new(reads: Tracked<Q, C>, writes: Tracked<Q, C>, params: &Params) -> Result<DeviceFile<Q, C>, OpenError> {
        if let Some(obstacle) = obstacle(reads.geometry()) {
            return Err(OpenError::Unusable(obstacle));
        }
        let geometry = reads.geometry().clone();
        let arena = Arena::private(TRANSFER * TRANSFERS).map_err(|error| OpenError::system("memory for transfers", error))?;
        let open = |queue: Tracked<Q, C>| {
            let queue = SharedQueue::over(queue).map_err(|error| OpenError::system("a queue of the device", error))?;
            let handle = SharedHandle::new(&queue, Params { synchronous: true, ..params.clone() });
            let handle = handle.map_err(|error| OpenError::Unusable(format!("a queue of the device: {error}")))?;
            handle.register(&arena).map_err(|error| OpenError::Unusable(format!("memory for transfers: {error}")))?;
            Ok::<_, OpenError>(handle)
        };
        Ok(DeviceFile {
            reads: open(reads)?,
            writes: open(writes)?,
            arena,
            returned: (Mutex::new(()), Condvar::new()),
            bytes: geometry.bytes(),
            has_volatile_cache: geometry.volatile_cache,
        })
    }

    /// Takes memory for a request; a thread waits if others use all of it.
    fn buffer(&self, bytes: usize) -> Result<Buf, Error> {
        let begun = Instant::now();
        let (lock, returned) = &self.returned;
        let mut waiting = lock.lock();
        loop {
            if let Some(buf) = self.arena.allocate(bytes) {
                return Ok(buf);
            }
            if returned.wait_for(&mut waiting, BUFFER_POLL).timed_out() {
                // Memory of a request that timed out comes back this way.
                while self.reads.take_released().is_some() || self.writes.take_released().is_some() {}
                if begun.elapsed() > BUFFER_WAIT {
                    return Err(Error::NoResources);
                }
            }
        }
    }

    fn return_buffer(&self, buf: Option<Buf>) {
        drop(buf);
        // A waiting thread holds the lock between its attempt and its wait.
        drop(self.returned.0.lock());
        self.returned.1.notify_all();
    }

    fn end(&self, done: Done, each: impl FnOnce(&Buf)) -> Result<(), Error> {
        let status = done.status;
        let buf = done.into_buf();
        if let (Ok(()), Some(buf)) = (status, &buf) {
            each(buf);
        }
        self.return_buffer(buf);
        status
    }

    fn read_some(&self, at: u64, to: &mut [u8]) -> Result<(), Error> {
        let buf = self.buffer(to.len())?;
        self.end(self.reads.read(at, buf), |buf| buf.read(0, to))
    }

    fn write_some(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        let buf = self.buffer(from.len())?;
        buf.write(0, from);
        self.end(self.writes.write(at, buf), |_| ())
    }
}

/// Explains why a device cannot be cached in pages of 4 KiB; `None` if it can.
fn obstacle(geometry: &Geometry) -> Option<String> {
    let page = PAGE_BYTES as u32;
    let block = geometry.block_bytes;
    if block > page {
        return Some(format!("the device's blocks have {block} bytes; the block cache has pages of {page}: use it uncached"));
    }
    (geometry.transfer_bytes_max < page || geometry.memory_align > page || geometry.segments_max == 0)
        .then(|| format!("the device cannot transfer {page} bytes at once: use it uncached"))
}

fn to_io(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// The engine reads from and writes to multiples of a page, up to the end of the device: always whole blocks.
impl<Q: Queue, C: Clock> BackingFile for DeviceFile<Q, C> {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.bytes.saturating_sub(at)).unwrap_or(usize::MAX).min(to.len());
        for (number, part) in to[..len].chunks_mut(TRANSFER).enumerate() {
            self.read_some(at + (number * TRANSFER) as u64, part).map_err(to_io)?;
        }
        Ok(len)
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        for (number, part) in from.chunks(TRANSFER).enumerate() {
            self.write_some(at + (number * TRANSFER) as u64, part).map_err(to_io)?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.has_volatile_cache { self.writes.flush().map_err(to_io) } else { Ok(()) }
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(to_io(Error::Unsupported))
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Err(to_io(Error::Unsupported))
    }

    fn set_mtime(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp { size: self.bytes, ..Stamp::default() })
    }
}
