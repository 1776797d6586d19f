//! Reads that are announced: where the first page is looked for is worked out then, once, and is near when they begin.

use ssdcache::PAGE_BYTES;

use super::open::Open;

/// A read that begins soon.
#[derive(Clone, Copy)]
pub struct PreparedRead<'a> {
    pub(super) open: &'a Open,
    /// At this byte of the file.
    pub(super) at: u64,
    pub(super) in_frames: pagecache::LookupKey,
    /// None: it cannot be there.
    pub(super) on_ssd: Option<ssdcache::LookupKey>,
}

impl Open {
    /// A read at this byte begins soon: where its first page is looked for comes nearer. None: the file ends before.
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
    /// It is one of the next: what was found where it is looked for comes nearer.
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
