//! Pages of the cache that a caller reads in place, without a copy.

use std::sync::Arc;

use pagecache::Pin;
use rustix::io::Errno;

use super::File;
use crate::cached::Cached;
use crate::error::Error;

/// Keeps bytes of a page in place until it is dropped. Other processes may write to the page meanwhile, so it offers a pointer and no
/// slice.
pub struct Pinned(PinnedBytes);

enum PinnedBytes {
    Frame { file: Arc<Cached>, page: Option<PinnedPage> },
    Copy(Box<[u8]>),
}

/// Keeps bytes of a page in place until the caller passes it to [`File::unpin_page`] of the same file.
#[derive(Debug)]
#[must_use = "the page stays until it is given back"]
pub struct PinnedPage {
    pin: Pin,
    address: usize,
    len: u32,
    /// The generation of the process that pinned it.
    generation: u32,
}

impl PinnedPage {
    #[inline]
    pub(crate) fn new(pin: Pin, bytes: *const u8, len: usize, generation: u32) -> PinnedPage {
        PinnedPage { pin, address: bytes as usize, len: len as u32, generation }
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Returns the number of bytes, which is at least one.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there is one byte at least")]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({} bytes)", self.len())
    }
}

impl Pinned {
    /// Returns the address of the first byte.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        match &self.0 {
            PinnedBytes::Frame { page, .. } => page.as_ref().map_or(std::ptr::null(), PinnedPage::as_ptr),
            PinnedBytes::Copy(bytes) => bytes.as_ptr(),
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            PinnedBytes::Frame { page, .. } => page.as_ref().map_or(0, PinnedPage::len),
            PinnedBytes::Copy(bytes) => bytes.len(),
        }
    }

    /// Returns whether there are no bytes, as at the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the bytes are a copy, as in pass-through mode and of files that are not cached.
    pub fn is_copy(&self) -> bool {
        matches!(self.0, PinnedBytes::Copy(_))
    }
}

impl Cached {
    /// Pins a page. ENXIO: the position is past the end of the file.
    #[inline]
    fn pin_page(&self, at: u64, len: usize) -> Result<PinnedPage, Errno> {
        let (pin, bytes, len) = self.open.pin(at, len)?;
        Ok(PinnedPage::new(pin, bytes, len, self.generation))
    }

    /// Unpins a page, unless the parent of a fork pinned it.
    #[inline]
    fn unpin_page(&self, page: PinnedPage) {
        if page.generation == self.generation {
            self.open.unpin(page.pin);
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let PinnedBytes::Frame { file, page } = &mut self.0
            && let Some(page) = page.take()
            && file.generation == crate::forks::now()
        {
            file.unpin_page(page);
        }
    }
}

impl File {
    /// Pins up to `len` bytes: from `at` to the end of its page or of the file. Returns no bytes at the end of the file, and a copy in
    /// pass-through mode.
    ///
    /// # Errors
    /// As `read_at`; ENOMEM if no page is free for it.
    pub fn pin(&self, at: u64, len: usize) -> Result<Pinned, Error> {
        let within = len.min(ssdcache::PAGE_BYTES - (at % ssdcache::PAGE_BYTES as u64) as usize);
        if let Some(cached) = self.cached_path("pinning")? {
            self.may_read()?;
            self.is_range("pinning", at, within)?;
            return match cached.pin_page(at, len) {
                Ok(page) => Ok(Pinned(PinnedBytes::Frame { file: Arc::clone(cached), page: Some(page) })),
                Err(Errno::NXIO) => Ok(Pinned(PinnedBytes::Copy(Box::default()))),
                Err(errno) => Err(self.to_error("pinning", errno)),
            };
        }
        let mut bytes = vec![0; within];
        let got = self.read_at(at, &mut bytes)?;
        bytes.truncate(got);
        Ok(Pinned(PinnedBytes::Copy(bytes.into())))
    }

    /// Pins bytes as [`File::pin`] does. Returns none where that would return a copy or no bytes.
    ///
    /// # Errors
    /// As `pin`.
    #[inline(always)]
    pub fn pin_page(&self, at: u64, len: usize) -> Result<Option<PinnedPage>, Error> {
        let Some(cached) = self.cached_path("pinning")? else { return Ok(None) };
        self.may_read()?;
        match cached.pin_page(at, len) {
            Ok(page) if len > 0 => Ok(Some(page)),
            Ok(none) => {
                cached.unpin_page(none);
                Ok(None)
            }
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(self.to_error("pinning", errno)),
        }
    }

    /// Unpins a page of this file. The address is invalid from then on.
    #[inline(always)]
    pub fn unpin_page(&self, page: PinnedPage) {
        if let Some(cached) = self.cached.as_ref().and_then(|(_, here)| here.get()) {
            cached.unpin_page(page);
        }
    }
}
