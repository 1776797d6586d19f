//! Fast path for hits of one page at its predicted place, in two steps: see [`pagecache::FrameHint`]. It neither blocks nor fails nor
//! sends requests. The long path redoes from the start what the fast path cannot do.

use std::sync::atomic::Ordering;

use pagecache::{FastPathMiss, Marks, Pin};
use ssdcache::PAGE_BYTES;

use super::open::Open;

/// A position in a file, whose frame metadata is being prefetched into the CPU cache.
#[derive(Clone, Copy)]
pub struct PageHint<'a> {
    open: &'a Open,
    at: u64,
    page: pagecache::FrameHint<'a>,
}

impl Open {
    /// Predicts the frame of the page at byte `at`: see [`pagecache::SharedPages::predict_frame`].
    ///
    /// # Errors
    /// [`FastPathMiss`]: the page is not in memory, or that is uncertain.
    #[inline(always)]
    pub fn predict_frame<const BY_INDEX: bool>(&self, at: u64) -> Result<PageHint<'_>, FastPathMiss> {
        let page = self.engine.pages.predict_frame::<BY_INDEX>(self.of, at / PAGE_BYTES as u64)?;
        Ok(PageHint { open: self, at, page })
    }

    /// Predicts the frame of the page, by the index if there is no guess.
    #[inline(always)]
    pub(super) fn predict_page(&self, at: u64) -> Option<PageHint<'_>> {
        match self.predict_frame::<false>(at) {
            Err(FastPathMiss::Guessed) => self.predict_frame::<true>(at).ok(),
            thought => thought.ok(),
        }
    }
}

impl PageHint<'_> {
    /// Prefetches the first byte that will be read. Returns the address of the data, if the prediction is right.
    #[inline(always)]
    pub fn prefetch(self) -> *const u8 {
        self.page.prefetch(self.offset())
    }

    /// Returns the offset in the page.
    #[inline(always)]
    fn offset(self) -> usize {
        (self.at % PAGE_BYTES as u64) as usize
    }

    /// Returns how many of `len` bytes are before the end of the file. None: the position is past the end.
    #[inline(always)]
    fn within_file(self, len: usize) -> Option<usize> {
        let size = self.open.size();
        if self.at >= size || !self.open.is_ours() {
            return None;
        }
        Some(len.min(usize::try_from(size - self.at).unwrap_or(usize::MAX)))
    }

    /// Reads bytes of the predicted page, as [`Open::read`] does. None: use the long path.
    #[inline(always)]
    pub fn read(self, to: &mut [u8]) -> Option<usize> {
        let len = self.within_file(to.len()).filter(|len| *len <= PAGE_BYTES - self.offset())?;
        let counters = self.open.engine.pages.thread_counters();
        // Timed reads take the long path.
        let is_read = !counters.is_read_timed() && self.page.read(self.offset(), &mut to[..len], counters);
        is_read.then_some(len)
    }

    /// Pins the predicted page, as [`Open::pin`] does. `note` gets the page and the number of bytes before the page is pinned; its result
    /// is invalid if pinning fails.
    #[inline(always)]
    pub fn pin<R>(self, len: usize, note: impl FnOnce(Pin, usize) -> R) -> Option<R> {
        let len = self.within_file(len)?.min(PAGE_BYTES - self.offset());
        self.page.pin(|pin| note(pin, len))
    }

    /// Writes to a page that is already marked dirty, as [`Open::write`] does. Returns false if the data is not written, or must be
    /// written again.
    #[inline(always)]
    pub fn write(self, from: &[u8]) -> bool {
        let Open { engine, .. } = self.open;
        // Do this first: code after the copy waits until the copy has left the store buffer.
        let now_ns = engine.world.realtime_ns();
        let counters = engine.pages.thread_counters();
        if from.is_empty() || from.len() > PAGE_BYTES - self.offset() || !self.open.is_write_back() || counters.is_write_timed() {
            return false;
        }
        let record = self.open.record();
        let before = record.truncations().load(Ordering::Acquire);
        if !before.is_multiple_of(2)
            || !self.open.is_ours()
            || record.size().load(Ordering::Acquire) < self.at.saturating_add(from.len() as u64)
        {
            return false;
        }
        self.open.note_time(record, now_ns);
        self.page.write_marked(self.offset(), from, Marks::DIRTY, counters) && !self.open.was_truncated(before)
    }
}
