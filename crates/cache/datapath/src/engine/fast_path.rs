//! Fast path for hits of one page: see [`pagecache::FoundFrame`]. It neither blocks nor fails nor sends requests. The long path redoes
//! from the start what the fast path cannot do.

use std::sync::atomic::Ordering;

use pagecache::{Marks, Pin};
use ssdcache::PAGE_BYTES;

use super::open::Open;

/// A position in a file whose page was found in a frame.
#[derive(Clone, Copy)]
pub struct FoundPage<'a> {
    open: &'a Open,
    at: u64,
    frame: pagecache::FoundFrame<'a>,
}

impl Open {
    /// Finds the page at byte `at`, and prefetches that byte. None: the page is not in memory, or that is uncertain.
    #[inline(always)]
    pub fn find_page(&self, at: u64) -> Option<FoundPage<'_>> {
        let frame = self.engine.pages.find_frame(self.name(at / PAGE_BYTES as u64), Some((at % PAGE_BYTES as u64) as usize))?;
        Some(FoundPage { open: self, at, frame })
    }

    /// Finds the page at byte `at` as [`Open::find_page`] does, without the prefetch: a page that is written whole is not read.
    #[inline(always)]
    pub fn find_page_to_write(&self, at: u64) -> Option<FoundPage<'_>> {
        let frame = self.engine.pages.find_frame(self.name(at / PAGE_BYTES as u64), None)?;
        Some(FoundPage { open: self, at, frame })
    }
}

impl FoundPage<'_> {
    /// Returns the address of the byte. It belongs to the page only while the page is pinned.
    #[inline(always)]
    pub fn address(self) -> *const u8 {
        self.frame.address(self.offset())
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

    /// Reads bytes of the page, as [`Open::read`] does. None: use the long path.
    #[inline(always)]
    pub fn read(self, to: &mut [u8]) -> Option<usize> {
        let len = self.within_file(to.len()).filter(|len| *len <= PAGE_BYTES - self.offset())?;
        let counters = self.open.engine.pages.thread_counters();
        // Timed reads take the long path.
        let is_read = !counters.is_read_timed() && self.frame.read(self.offset(), &mut to[..len], counters);
        is_read.then_some(len)
    }

    /// Pins the page, as [`Open::pin`] does. `note` gets the page and the number of bytes before the page is pinned; its result
    /// is invalid if pinning fails.
    #[inline(always)]
    pub fn pin<R>(self, len: usize, note: impl FnOnce(Pin, usize) -> R) -> Option<R> {
        let len = self.within_file(len)?.min(PAGE_BYTES - self.offset());
        self.frame.pin(|pin| note(pin, len))
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
        let is_written = self.frame.write_marked(self.offset(), from, Marks::DIRTY, counters) && !self.open.was_truncated(before);
        if is_written {
            self.open.notify_of_change();
        }
        is_written
    }
}
