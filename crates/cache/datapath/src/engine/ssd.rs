//! I/O on pages of the SSD through queues: one for each reading thread, and the leader's.

use std::cell::RefCell;
use std::sync::Arc;

use block::{Arena, Buf, Device, DeviceCapabilities, Error, Handle, OpenError, Params, Queue, QueueOptions};
use parking_lot::{Condvar, Mutex};
use ssdcache::{DevicePage, PAGE_BYTES, Page};

/// The number of pages that a queue reads at once.
pub(super) const QUEUE_PAGES: usize = 64;
/// Pages that the leader writes in one piece: a batch and its summary.
pub(super) const BATCH_PAGES: usize = 128;

/// A queue of the SSD, with its buffers.
pub(crate) struct SsdQueue {
    handle: Handle<Box<dyn Queue>>,
    buffers: Vec<Option<Buf>>,
    arena: Arena,
    /// The queue has ended: it delivers no more completions.
    is_over: bool,
}

/// Returns the byte address of a page of the device.
pub(super) fn bytes_at(at: DevicePage) -> u64 {
    at.0 * PAGE_BYTES as u64
}

impl SsdQueue {
    pub(super) fn open(device: &dyn Device) -> Result<SsdQueue, OpenError> {
        let failed = |error: Error| OpenError::Unusable(format!("a queue of the SSD: {error}"));
        let options = QueueOptions { depth: QUEUE_PAGES as u32, ..QueueOptions::default() };
        let mut handle = Handle::new(device.queue(&options)?, Params::default()).map_err(failed)?;
        let arena = device.arena(QUEUE_PAGES * PAGE_BYTES).map_err(|error| OpenError::system("memory for the SSD's pages", error))?;
        handle.register(&arena).map_err(failed)?;
        let buffers = (0..QUEUE_PAGES).map(|_| arena.allocate(PAGE_BYTES)).collect();
        Ok(SsdQueue { handle, buffers, arena, is_over: false })
    }

    /// Reads pages, at most [`QUEUE_PAGES`]. `each` gets the number of each page, with its bytes or the error.
    pub(super) fn read(&mut self, pages: &[DevicePage], page: &mut Page, mut each: impl FnMut(usize, Result<&Page, Error>)) {
        let mut tickets = [None; QUEUE_PAGES];
        for (n, at) in pages.iter().enumerate() {
            let Some(buf) = self.buffers[n].take().or_else(|| self.arena.allocate(PAGE_BYTES)) else {
                each(n, Err(Error::NoResources));
                continue;
            };
            match self.handle.submit_read(bytes_at(*at), buf) {
                Ok(ticket) => tickets[n] = Some(ticket),
                Err(_) => each(n, Err(Error::NoResources)),
            }
        }
        self.handle.ring();
        for (n, ticket) in tickets.iter().enumerate().take(pages.len()) {
            let Some(ticket) = ticket else { continue };
            let done = loop {
                if let Some(done) = self.handle.wait_for(*ticket, std::time::Duration::from_secs(60)) {
                    break done;
                }
            };
            let status = done.status;
            self.is_over |= status == Err(Error::Gone);
            let buf = done.into_buf();
            match (status, &buf) {
                (Ok(()), Some(buf)) => {
                    buf.read(0, page);
                    each(n, Ok(page));
                }
                (status, _) => each(n, Err(status.err().unwrap_or(Error::Media))),
            }
            self.buffers[n] = buf;
        }
    }
}

/// A page that is aligned for every device.
#[repr(C, align(4096))]
struct Aligned(Page);

thread_local! {
    /// One page for each thread, so that a read needs neither a lock nor an allocation.
    static OWN: RefCell<Box<Aligned>> = RefCell::new(Box::new(Aligned([0; PAGE_BYTES])));
}

/// The queues of an SSD for readers: they are opened when needed, and kept.
pub(crate) struct SsdQueues {
    device: Arc<dyn Device>,
    capabilities: DeviceCapabilities,
    idle: Mutex<Idle>,
    /// Signals that a queue is idle, or that one may be opened.
    free: Condvar,
}

#[derive(Default)]
struct Idle {
    ssd_queues: Vec<SsdQueue>,
    /// The number of queues, idle or not.
    made: usize,
}

impl SsdQueues {
    pub(super) fn new(device: Arc<dyn Device>) -> SsdQueues {
        SsdQueues { capabilities: device.capabilities(), device, idle: Mutex::default(), free: Condvar::new() }
    }

    /// Returns whether queues end with the process that owns the SSD, and the next owner provides new ones.
    pub(super) fn comes_back(&self) -> bool {
        self.capabilities.comes_back
    }

    /// Returns whether a read failed only because the SSD is away, which says nothing about the page.
    pub(super) fn is_away(&self, error: Error) -> bool {
        let may_come_back =
            matches!(error, Error::Gone | Error::Timeout | Error::Reset | Error::Cancelled | Error::NotPermitted | Error::NoResources);
        may_come_back && self.capabilities.comes_back
    }

    pub(super) fn with<T>(&self, call: impl FnOnce(&mut SsdQueue) -> T) -> Result<T, OpenError> {
        let mut ssd_queue = match self.idle() {
            Some(ssd_queue) => ssd_queue,
            None => SsdQueue::open(&*self.device).inspect_err(|_| self.end(None))?,
        };
        let result = call(&mut ssd_queue);
        self.end(Some(ssd_queue).filter(|ssd_queue| !ssd_queue.is_over));
        Ok(result)
    }

    /// Takes an idle queue. None: the caller may open one.
    fn idle(&self) -> Option<SsdQueue> {
        let mut idle = self.idle.lock();
        loop {
            if let Some(ssd_queue) = idle.ssd_queues.pop() {
                return Some(ssd_queue);
            }
            if idle.made < self.capabilities.queues_max.max(1) {
                idle.made += 1;
                return None;
            }
            self.free.wait(&mut idle);
        }
    }

    /// Returns a queue to the idle ones, or removes one if it is None.
    fn end(&self, ssd_queue: Option<SsdQueue>) {
        let mut idle = self.idle.lock();
        idle.made -= usize::from(ssd_queue.is_none());
        idle.ssd_queues.extend(ssd_queue);
        drop(idle);
        if self.capabilities.queues_max < usize::MAX {
            self.free.notify_one();
        }
    }

    /// Reads one page with the calling thread, into a per-thread buffer. None: that is not supported, or failed; a read through a queue
    /// finds the error.
    pub(super) fn read_now<T>(&self, at: DevicePage, look: impl FnOnce(&Page) -> T) -> Option<T> {
        // A signal handler may interrupt a read and read itself.
        OWN.try_with(|own| {
            let mut page = own.try_borrow_mut().ok()?;
            self.device.read_now(bytes_at(at), &mut page.0)?.ok()?;
            Some(look(&page.0))
        })
        .ok()?
    }

    /// Reads one page into the caller's memory, at a multiple of 4096. Returns false if that is not supported or failed; the memory may be
    /// changed then.
    pub(super) fn read_into(&self, at: DevicePage, to: &mut Page) -> bool {
        matches!(self.device.read_now(bytes_at(at), to), Some(Ok(())))
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }
}

/// The SSD for the leader: one call after the other.
pub(super) struct Disk {
    handle: Handle<Box<dyn Queue>>,
    arena: Arena,
}

impl Disk {
    pub(super) fn open(device: &dyn Device) -> Result<Disk, OpenError> {
        let failed = |error: Error| OpenError::Unusable(format!("a queue of the SSD: {error}"));
        // Depth is the number of threads: one call runs at a time, unless one hangs.
        let options = QueueOptions { depth: 4, ..QueueOptions::default() };
        let mut handle = Handle::new(device.queue(&options)?, Params::default()).map_err(failed)?;
        let arena = device.arena(2 * BATCH_PAGES * PAGE_BYTES).map_err(|error| OpenError::system("memory for the SSD", error))?;
        handle.register(&arena).map_err(failed)?;
        Ok(Disk { handle, arena })
    }

    pub(super) fn pages(&mut self) -> u64 {
        self.handle.geometry().bytes() / PAGE_BYTES as u64
    }

    fn buffer(&self, bytes: usize) -> Result<Buf, Error> {
        self.arena.allocate(bytes).ok_or(Error::NoResources)
    }

    /// Reads whole pages, at most a batch.
    pub(super) fn read(&mut self, at: DevicePage, to: &mut [u8]) -> Result<(), Error> {
        let buf = self.buffer(to.len())?;
        let done = self.handle.read(bytes_at(at), buf);
        done.status?;
        done.into_buf().ok_or(Error::Media)?.read(0, to);
        Ok(())
    }

    pub(super) fn write(&mut self, at: DevicePage, pages: &[&Page]) -> Result<(), Error> {
        let buf = self.buffer(pages.len() * PAGE_BYTES)?;
        for (n, page) in pages.iter().enumerate() {
            buf.write(n * PAGE_BYTES, &page[..]);
        }
        self.handle.write(bytes_at(at), buf).status
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.handle.flush()
    }
}
