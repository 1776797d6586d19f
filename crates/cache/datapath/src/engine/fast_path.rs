//! Hits of one page that is where it is thought to be, in two steps: see [`pagecache::FrameHint`]. They neither wait nor fail nor
//! ask anybody. What is not done by them the long way does, from its begin.

use std::sync::atomic::Ordering;

use pagecache::{FastPathMiss, Marks, Pin};
use ssdcache::PAGE_BYTES;

use super::open::Open;

/// A place of a file, whose page's record is on its way to the processor.
#[derive(Clone, Copy)]
pub struct PageHint<'a> {
    open: &'a Open,
    at: u64,
    page: pagecache::FrameHint<'a>,
}

impl Open {
    /// Where its page is thought to be: see [`pagecache::SharedPages::think`].
    ///
    /// # Errors
    /// [`FastPathMiss`]: the page is not in memory, or that is not certain.
    #[inline(always)]
    pub fn predict_frame<const BY_INDEX: bool>(&self, at: u64) -> Result<PageHint<'_>, FastPathMiss> {
        let page = self.engine.pages.predict_frame::<BY_INDEX>(self.of, at / PAGE_BYTES as u64)?;
        Ok(PageHint { open: self, at, page })
    }

    /// Likewise, in one way or the other.
    #[inline(always)]
    pub(super) fn predict_page(&self, at: u64) -> Option<PageHint<'_>> {
        match self.predict_frame::<false>(at) {
            Err(FastPathMiss::Guessed) => self.predict_frame::<true>(at).ok(),
            thought => thought.ok(),
        }
    }
}

impl PageHint<'_> {
    /// Its bytes will be looked at, too: the first of them is on its way. Where they are, if it is the page.
    #[inline(always)]
    pub fn prefetch(self) -> *const u8 {
        self.page.prefetch(self.offset())
    }

    /// Where in its page it is.
    #[inline(always)]
    fn offset(self) -> usize {
        (self.at % PAGE_BYTES as u64) as usize
    }

    /// How many of so many bytes are before the end of the file. None: it is behind the end.
    #[inline(always)]
    fn within_file(self, len: usize) -> Option<usize> {
        let size = self.open.size();
        if self.at >= size || !self.open.is_ours() {
            return None;
        }
        Some(len.min(usize::try_from(size - self.at).unwrap_or(usize::MAX)))
    }

    /// As [`Open::read`].
    #[inline(always)]
    pub fn read(self, to: &mut [u8]) -> Option<usize> {
        let len = self.within_file(to.len()).filter(|len| *len <= PAGE_BYTES - self.offset())?;
        let lane = self.open.engine.pages.lane();
        // The long way asks for the time.
        let is_read = !lane.is_read_timed() && self.page.read(self.offset(), &mut to[..len], lane);
        is_read.then_some(len)
    }

    /// As [`Open::pin`]. `note` gets the page and how many bytes there are before the page is pinned; what it noted means nothing if it
    /// is not.
    #[inline(always)]
    pub fn pin<R>(self, len: usize, note: impl FnOnce(Pin, usize) -> R) -> Option<R> {
        let len = self.within_file(len)?.min(PAGE_BYTES - self.offset());
        self.page.pin(|pin| note(pin, len))
    }

    /// As [`Open::write`], of what has a mark already: nothing is to be asked. False: it is not written, or is to be written once more.
    #[inline(always)]
    pub fn write(self, from: &[u8]) -> bool {
        let Open { engine, .. } = self.open;
        // First, for what comes after the copy waits until it has left the processor.
        let now_ns = engine.world.realtime_ns();
        let lane = engine.pages.lane();
        if from.is_empty() || from.len() > PAGE_BYTES - self.offset() || !self.open.is_write_back() || lane.is_write_timed() {
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
        self.page.write_marked(self.offset(), from, Marks::DIRTY, lane) && !self.open.was_truncated(before)
    }
}
