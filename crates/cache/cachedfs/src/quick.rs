//! Fast paths: a call that bypasses the cache, or a hit of one page. They never wait and never report an error of the cache. If one of them
//! declines, the caller starts again with the full call ([`File::read_at`], [`File::write_at`], [`File::pin_page`]).

pub use pagecache::FastPathMiss;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::cached::Cached;
use crate::file::{File, IoPath, PinnedPage};
use crate::plain;

/// A page that the cache predicts to hold a position of a file. Its bytes are being prefetched.
#[derive(Clone, Copy)]
pub struct PageHint<'a> {
    cached: &'a Cached,
    page: datapath::engine::PageHint<'a>,
    bytes: *const u8,
}

impl File {
    /// Reads from one page, which it looks up in the predicted frame or, if `BY_INDEX`, in the index.
    ///
    /// # Errors
    /// [`FastPathMiss`]: nothing was read. The inner error is that of pread(2); [`File::to_error`] converts it.
    #[inline(always)]
    pub fn read_at_once<const BY_INDEX: bool>(&self, at: u64, to: &mut [u8]) -> Result<Result<usize, Errno>, FastPathMiss> {
        let cached = match self.settled_path().ok_or(FastPathMiss::Done)? {
            IoPath::Cached(cached) => cached,
            IoPath::Bypass(_) | IoPath::Uncached => return Ok(plain::read_at(self.fd(), at, to)),
        };
        let page = cached.open.predict_frame::<BY_INDEX>(at)?;
        page.prefetch();
        if !self.is_readable() {
            return Err(FastPathMiss::Done);
        }
        page.read(to).map(Ok).ok_or(FastPathMiss::Done)
    }

    /// Writes to one page, which it looks up as [`File::read_at_once`] does.
    ///
    /// # Errors
    /// [`FastPathMiss`]: the caller has to write all of it again. The inner error is that of pwrite(2); [`File::to_error`] converts it.
    #[inline(always)]
    pub fn write_at_once<const BY_INDEX: bool>(&self, at: u64, from: &[u8]) -> Result<Result<usize, Errno>, FastPathMiss> {
        let cached = match self.settled_path().ok_or(FastPathMiss::Done)? {
            IoPath::Cached(cached) => cached,
            IoPath::Bypass(_) if self.appends() => return Err(FastPathMiss::Done),
            IoPath::Bypass(cached) => return cached.bypass_at_once(|| plain::write_at(self.fd(), at, from)).ok_or(FastPathMiss::Done),
            IoPath::Uncached => return Ok(self.may_change().and_then(|()| plain::write_at(self.fd(), at, from))),
        };
        let page = cached.open.predict_frame::<BY_INDEX>(at)?;
        if !self.is_writable()
            || self.appends()
            || self.flags().intersects(OFlags::SYNC | OFlags::DSYNC)
            || crate::limits::is_limited()
            || !page.write(from)
        {
            return Err(FastPathMiss::Done);
        }
        Ok(Ok(from.len()))
    }

    /// Predicts the page of a position: the first step of [`File::pin_page`].
    ///
    /// # Errors
    /// [`FastPathMiss`]: there may be no page to pin.
    #[inline(always)]
    pub fn predict_frame<const BY_INDEX: bool>(&self, at: u64) -> Result<PageHint<'_>, FastPathMiss> {
        let Some(IoPath::Cached(cached)) = self.settled_path() else { return Err(FastPathMiss::Done) };
        let page = cached.open.predict_frame::<BY_INDEX>(at)?;
        let bytes = page.prefetch();
        if self.is_readable() { Ok(PageHint { cached, page, bytes }) } else { Err(FastPathMiss::Done) }
    }
}

impl PageHint<'_> {
    /// Returns the address of the bytes, which is right only if the prediction is.
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.bytes
    }

    /// Pins the page if the prediction is right. `keep` gets the page before that is known: if this returns none, it must forget the page.
    #[inline(always)]
    pub fn pin<R>(self, len: usize, keep: impl FnOnce(PinnedPage) -> R) -> Option<R> {
        if len == 0 {
            return None;
        }
        self.page.pin(len, |pin, len| keep(PinnedPage::new(pin, self.bytes, len, self.cached.generation)))
    }
}
