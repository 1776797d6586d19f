//! Prepared reads: the lookup keys of the first page are computed in advance, once, and prefetched before the read starts.

use ssdcache::PAGE_BYTES;

use super::open::Open;

/// A read that starts soon.
#[derive(Clone, Copy)]
pub struct PreparedRead<'a> {
    pub(super) open: &'a Open,
    /// The byte of the file where it starts.
    pub(super) at: u64,
    pub(super) in_frames: pagecache::LookupKey,
    /// The lookup key on the SSD. None: the page cannot be there.
    pub(super) on_ssd: Option<ssdcache::LookupKey>,
}

impl Open {
    /// Prepares a read at this byte, and prefetches the lookup of its first page. None: the position is past the end of the file.
    #[inline(always)]
    pub fn expect(&self, at: u64) -> Option<PreparedRead<'_>> {
        if at >= self.size() {
            return None;
        }
        let page = at / PAGE_BYTES as u64;
        let expected = PreparedRead { open: self, at, in_frames: self.engine.pages.sought(self.name(page)), on_ssd: self.key_on_ssd(page) };
        self.engine.pages.prefetch(&expected.in_frames);
        if let (Some(view), Some(sought)) = (&self.engine.view, &expected.on_ssd) {
            view.prefetch(sought);
        }
        Some(expected)
    }
}

impl PreparedRead<'_> {
    /// Prefetches what the lookup found, because this is one of the next reads.
    #[inline]
    pub fn is_next(&self) {
        if let (Some(view), Some(sought)) = (&self.open.engine.view, &self.on_ssd) {
            view.prefetch_found(sought);
        }
    }
}

impl std::fmt::Debug for PreparedRead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expected(byte {})", self.at)
    }
}
