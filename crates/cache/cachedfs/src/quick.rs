//! Calls that take the shortest way: past the cache, or a hit of one page. None of them waits for another user of the cache, or says what
//! went wrong in it: what they do not do, the long way does ([`File::read_at`], [`File::write_at`], [`File::lend`]), from its begin.

pub use pagecache::shared::Not;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::cached::Cached;
use crate::file::{File, Lent, Way};
use crate::plain;

/// A place of a file, whose page is on its way to the processor.
#[derive(Clone, Copy)]
pub struct Thought<'a> {
    cached: &'a Cached,
    page: datapath::shelf::Thought<'a>,
    bytes: *const u8,
}

impl File {
    /// As [`File::read_at`], of one page, which is looked for where it is thought to be, or `BY_INDEX`.
    ///
    /// # Errors
    /// [`Not`]: nothing was read. Else as pread(2); [`File::told`] makes an error of it.
    #[inline(always)]
    pub fn read_at_once<const BY_INDEX: bool>(&self, at: u64, to: &mut [u8]) -> Result<Result<usize, Errno>, Not> {
        let cached = match self.settled_way().ok_or(Not::Done)? {
            Way::Through(cached) => cached,
            Way::Past(_) | Way::Uncached => return Ok(plain::read_at(self.fd(), at, to)),
        };
        let page = cached.open.think::<BY_INDEX>(at)?;
        page.prefetch();
        if !self.is_readable() {
            return Err(Not::Done);
        }
        page.read(to).map(Ok).ok_or(Not::Done)
    }

    /// As [`File::write_at`], to one page, likewise.
    ///
    /// # Errors
    /// [`Not`]: it is not written, or is to be written once more. Else as pwrite(2); [`File::told`] makes an error of it.
    #[inline(always)]
    pub fn write_at_once<const BY_INDEX: bool>(&self, at: u64, from: &[u8]) -> Result<Result<usize, Errno>, Not> {
        let cached = match self.settled_way().ok_or(Not::Done)? {
            Way::Through(cached) => cached,
            Way::Past(_) if self.appends() => return Err(Not::Done),
            Way::Past(cached) => return cached.past_at_once(|| plain::write_at(self.fd(), at, from)).ok_or(Not::Done),
            Way::Uncached => return Ok(self.may_change().and_then(|()| plain::write_at(self.fd(), at, from))),
        };
        let page = cached.open.think::<BY_INDEX>(at)?;
        if !self.is_writable()
            || self.appends()
            || self.flags().intersects(OFlags::SYNC | OFlags::DSYNC)
            || crate::limits::is_limited()
            || !page.write(from)
        {
            return Err(Not::Done);
        }
        Ok(Ok(from.len()))
    }

    /// The first step of [`File::lend`].
    ///
    /// # Errors
    /// [`Not`]: there may be nothing to lend.
    #[inline(always)]
    pub fn think<const BY_INDEX: bool>(&self, at: u64) -> Result<Thought<'_>, Not> {
        let Some(Way::Through(cached)) = self.settled_way() else { return Err(Not::Done) };
        let page = cached.open.think::<BY_INDEX>(at)?;
        let bytes = page.prefetch();
        if self.is_readable() { Ok(Thought { cached, page, bytes }) } else { Err(Not::Done) }
    }
}

impl Thought<'_> {
    /// Where the bytes are, if it is the page.
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.bytes
    }

    /// The second. `keep` gets what is lent before it is; what it kept means nothing if this is None.
    #[inline(always)]
    pub fn lend<R>(self, len: usize, keep: impl FnOnce(Lent) -> R) -> Option<R> {
        if len == 0 {
            return None;
        }
        self.page.pin(len, |pin, len| keep(Lent::new(pin, self.bytes, len, self.cached.generation)))
    }
}
