//! A block cache of one thread.

use std::ops::Range;
use std::task::Poll;
use std::time::Duration;

use block::{Error, OpenError, Queue};
use pagecache::{PageCache, PageIndex};

use crate::core::{Core, Handle};
use crate::flush::Flushing;
use crate::range::{Fate, Sweep};
use crate::read::{Pinned, Reading};
use crate::settings::{Settings, Stats};
use crate::write::Writing;

/// How long a wait for the device lasts at most before the queues are looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A device with a cache in front of it, for one thread: any bytes at any place. See [`crate::SharedCache`] for several.
///
/// What was written and not flushed is lost when it is dropped: see [`BlockCache::close`].
pub struct BlockCache<Q> {
    pub(crate) core: Core<Q>,
}

impl<Q: Queue> BlockCache<Q> {
    /// A cache over one device, reached by one or two queues: the first for what somebody waits for, the last for read-ahead and
    /// write-back. With one queue both share it, and a quarter of it is left to those who wait.
    ///
    /// # Errors
    /// No memory; or a device that cannot be cached in pages of 4 KiB, with the reason.
    pub fn open(queues: Vec<Q>, settings: Settings) -> Result<BlockCache<Q>, OpenError> {
        Ok(BlockCache { core: Core::open(queues, settings)? })
    }

    /// A new user's place.
    pub fn handle(&self) -> Handle {
        self.core.handle()
    }

    /// Fills `to` from a byte of the device on.
    ///
    /// # Errors
    /// A range the device does not have; what the device said of a page that had to be read. `to` has no meaning then.
    #[inline]
    pub fn read(&mut self, handle: &mut Handle, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.core.check(offset, to.len())?;
        let mut reading = Reading::begin(handle, offset, to.len());
        self.drive(|core| core.read(handle, &mut reading, to))
    }

    /// Writes at a byte of the device. Not safe before a flush, but for [`crate::WriteMode::Durable`].
    ///
    /// # Errors
    /// A range the device does not have; a device that cannot be read (of pages written in part) or written (written through, or
    /// with too many pages that could not be written before). Part of the bytes may have been taken.
    #[inline]
    pub fn write(&mut self, _: &mut Handle, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.core.check(offset, from.len())?;
        let mut writing = Writing::begin(offset);
        self.drive(|core| core.write(&mut writing, from))
    }

    /// All that was written before is safe when this returns `Ok`. See [`crate::flush`] for what an error means.
    ///
    /// # Errors
    /// The first that this flush met, or one since the handle's last flush.
    pub fn flush(&mut self, handle: &mut Handle) -> Result<(), Error> {
        let mut flushing = Flushing::default();
        self.drive(|core| core.flush(handle, &mut flushing))
    }

    /// Gives whole blocks back; what they read as is undefined until they are written.
    ///
    /// # Errors
    /// A range the device does not have, or that is not of whole blocks; what the device said.
    pub fn discard(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        self.core.check_range(&bytes)?;
        let mut sweep = Sweep::new(Fate::Dropped, bytes);
        self.drive(|core| core.discard(&mut sweep))
    }

    /// The device has what the cache has of these bytes: before a direct read of them.
    ///
    /// # Errors
    /// A range the device does not have; what the device said. What could not be written stays dirty.
    pub fn write_back(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        self.sweep(Fate::Written, bytes)
    }

    /// The cache has nothing of these bytes, and has lost nothing: before and after a direct write to them.
    ///
    /// # Errors
    /// As for `write_back`.
    pub fn invalidate(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        self.sweep(Fate::Gone, bytes)
    }

    fn sweep(&mut self, fate: Fate, bytes: Range<u64>) -> Result<(), Error> {
        self.core.check_range(&bytes)?;
        let mut sweep = Sweep::new(fate, bytes);
        self.drive(|core| core.sweep(&mut sweep))
    }

    /// Keeps a page where it is, to be looked at without a copy.
    ///
    /// # Errors
    /// A page the device does not have; what the device said; too many pins.
    pub fn pin(&mut self, handle: &mut Handle, page: PageIndex) -> Result<Pinned, Error> {
        self.core.check(page.offset(), 1)?;
        let mut ticket = None;
        self.drive(|core| core.pin(handle, page, &mut ticket))
    }

    /// Ends it.
    #[inline]
    pub fn unpin(&mut self, pinned: Pinned) {
        self.core.pages.unpin(pinned.frame);
    }

    /// To be called now and then, a few times a second: takes in what has ended and writes back what is old or too much.
    pub fn tick(&mut self) {
        self.core.look_at_clock(true);
    }

    /// What it did so far.
    pub fn stats(&self) -> Stats {
        self.core.stats
    }

    /// Its books.
    pub fn pages(&self) -> &PageCache {
        &self.core.pages
    }

    /// Uses at most so many frames from now on; see [`PageCache::set_limit`].
    pub fn set_limit(&mut self, frames: u32) {
        self.core.set_limit(frames);
    }

    /// Flushes, and gives the queues back when all went well.
    ///
    /// # Errors
    /// The cache itself, with what the flush said: what could not be written is still in it.
    pub fn close(mut self) -> Result<Vec<Q>, Box<(BlockCache<Q>, Error)>> {
        let mut handle = self.handle();
        match self.flush(&mut handle) {
            Ok(()) => {
                while self.core.in_flight() > 0 {
                    self.wait();
                    self.core.reap();
                }
                Ok(self.core.into_queues())
            }
            Err(error) => Err(Box::new((self, error))),
        }
    }

    /// Takes step after step, and waits for the device in between.
    #[inline]
    fn drive<T>(&mut self, mut step: impl FnMut(&mut Core<Q>) -> Poll<Result<T, Error>>) -> Result<T, Error> {
        loop {
            if let Poll::Ready(outcome) = step(&mut self.core) {
                return outcome;
            }
            self.wait();
        }
    }

    #[cold]
    fn wait(&mut self) {
        assert!(self.core.in_flight() > 0, "nothing to wait for");
        if let Some(queue) = self.core.queues().find(|queue| queue.in_flight() > 0) {
            queue.wait(LOOK_AGAIN);
        }
    }
}
