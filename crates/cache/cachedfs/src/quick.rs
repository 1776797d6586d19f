//! Fast paths: a call that bypasses the cache, or a hit of one page. They never wait and never report an error of the cache. If one of them
//! declines, the caller starts again with the full call ([`File::read_at`], [`File::write_at`], [`File::pin_page`]).

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::cached::Cached;
use crate::file::{File, IoPath, PinnedPage};
use crate::plain;

/// A page of a file that was found in memory. Its bytes are being prefetched.
#[derive(Clone, Copy)]
pub struct FoundPage<'a> {
    cached: &'a Cached,
    page: datapath::engine::FoundPage<'a>,
}

impl File {
    /// Reads from one page. `None`: nothing was read. An error is that of pread(2); [`File::to_error`] converts it.
    #[inline(always)]
    pub fn read_at_once(&self, at: u64, to: &mut [u8]) -> Option<Result<usize, Errno>> {
        let cached = match self.settled_path()? {
            IoPath::Cached(cached) => cached,
            IoPath::Bypass(_) | IoPath::Uncached => return Some(plain::read_at(self.fd(), at, to)),
        };
        let page = cached.open.find_page(at)?;
        if !self.is_readable() {
            return None;
        }
        page.read(to).map(Ok)
    }

    /// Writes to one page. `None`: the caller has to write all of it again. An error is that of pwrite(2); [`File::to_error`] converts it.
    #[inline(always)]
    pub fn write_at_once(&self, at: u64, from: &[u8]) -> Option<Result<usize, Errno>> {
        let cached = match self.settled_path()? {
            IoPath::Cached(cached) => cached,
            IoPath::Bypass(_) if self.appends() => return None,
            IoPath::Bypass(cached) => return cached.bypass_at_once(|| plain::write_at(self.fd(), at, from)),
            IoPath::Uncached => return Some(self.may_change().and_then(|()| plain::write_at(self.fd(), at, from))),
        };
        let page = cached.open.find_page_to_write(at)?;
        if !self.is_writable()
            || self.appends()
            || self.flags().intersects(OFlags::SYNC | OFlags::DSYNC)
            || crate::limits::is_limited()
            || !page.write(from)
        {
            return None;
        }
        Some(Ok(from.len()))
    }

    /// Finds the page of a position in memory: the first step of [`File::pin_page`].
    #[inline(always)]
    pub fn find_page(&self, at: u64) -> Option<FoundPage<'_>> {
        let Some(IoPath::Cached(cached)) = self.settled_path() else { return None };
        let page = cached.open.find_page(at)?;
        self.is_readable().then_some(FoundPage { cached, page })
    }
}

impl FoundPage<'_> {
    /// Returns the address of the bytes. They belong to the page only while it is pinned.
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.page.address()
    }

    /// Pins the page if it is still in its frame. `keep` gets the page before that is known: if this returns none, it must forget the page.
    #[inline(always)]
    pub fn pin<R>(self, len: usize, keep: impl FnOnce(PinnedPage) -> R) -> Option<R> {
        if len == 0 {
            return None;
        }
        self.page.pin(len, |pin, len| keep(PinnedPage::new(pin, self.as_ptr(), len, self.cached.generation)))
    }
}
