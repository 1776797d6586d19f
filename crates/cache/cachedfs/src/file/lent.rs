//! Bytes of a page that are looked at where they are.

use std::sync::Arc;

use pagecache::shared::Pin;
use rustix::io::Errno;

use super::File;
use crate::cached::Cached;
use crate::error::Error;

/// Bytes of a page that stay where they are until this is dropped. Others' writes are seen in them while one looks, so there is no
/// slice of them: who reads through the pointer reads memory that other processes change.
pub struct Pinned(Held);

enum Held {
    Frame { file: Arc<Cached>, lent: Option<Lent> },
    Copy(Box<[u8]>),
}

/// As [`Pinned`], for who keeps it beside the file it is of, and gives it back there ([`File::give_back`]).
#[derive(Debug)]
#[must_use = "the page stays until it is given back"]
pub struct Lent {
    pin: Pin,
    address: usize,
    len: u32,
    /// Of the process that it was lent to.
    generation: u32,
}

impl Lent {
    #[inline]
    pub(crate) fn new(pin: Pin, bytes: *const u8, len: usize, generation: u32) -> Lent {
        Lent { pin, address: bytes as usize, len: len as u32, generation }
    }

    /// Where the bytes are.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.address as *const u8
    }

    /// How many they are; one at least.
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
    /// Where they are.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        match &self.0 {
            Held::Frame { lent, .. } => lent.as_ref().map_or(std::ptr::null(), Lent::as_ptr),
            Held::Copy(bytes) => bytes.as_ptr(),
        }
    }

    /// How many they are.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Held::Frame { lent, .. } => lent.as_ref().map_or(0, Lent::len),
            Held::Copy(bytes) => bytes.len(),
        }
    }

    /// Whether there are none: the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is a copy: where there is no page to look at (pass-through, what is not cached).
    pub fn is_copy(&self) -> bool {
        matches!(self.0, Held::Copy(_))
    }
}

impl Cached {
    /// ENXIO: it is behind the end of the file.
    #[inline]
    fn lend(&self, at: u64, len: usize) -> Result<Lent, Errno> {
        let (pin, bytes, len) = self.open.pin(at, len)?;
        Ok(Lent::new(pin, bytes, len, self.generation))
    }

    /// For the process that took the file in. What the parent of a fork was lent is the parent's to give back.
    #[inline]
    fn give_back(&self, lent: Lent) {
        if lent.generation == self.generation {
            self.open.unpin(lent.pin);
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Held::Frame { file, lent } = &mut self.0
            && let Some(lent) = lent.take()
            && file.generation == crate::forks::now()
        {
            file.give_back(lent);
        }
    }
}

impl File {
    /// Up to `len` bytes without a copy: those from `at` to the end of its page or of the file. Empty at the end of the file.
    /// Where there is no page (pass-through) it is a copy.
    ///
    /// # Errors
    /// As `read_at`; ENOMEM if no page is free for it.
    pub fn pin(&self, at: u64, len: usize) -> Result<Pinned, Error> {
        let within = len.min(ssdcache::PAGE_BYTES - (at % ssdcache::PAGE_BYTES as u64) as usize);
        if let Some(cached) = self.through("pinning")? {
            self.may_read()?;
            self.is_range("pinning", at, within)?;
            return match cached.lend(at, len) {
                Ok(lent) => Ok(Pinned(Held::Frame { file: Arc::clone(cached), lent: Some(lent) })),
                Err(Errno::NXIO) => Ok(Pinned(Held::Copy(Box::default()))),
                Err(errno) => Err(self.told("pinning", errno)),
            };
        }
        let mut bytes = vec![0; within];
        let got = self.read_at(at, &mut bytes)?;
        bytes.truncate(got);
        Ok(Pinned(Held::Copy(bytes.into())))
    }

    /// As `pin`, where the cache has a page to lend; none: there is only a copy to be had, or nothing.
    ///
    /// # Errors
    /// As `pin`.
    #[inline(always)]
    pub fn lend(&self, at: u64, len: usize) -> Result<Option<Lent>, Error> {
        let Some(cached) = self.through("pinning")? else { return Ok(None) };
        self.may_read()?;
        match cached.lend(at, len) {
            Ok(lent) if len > 0 => Ok(Some(lent)),
            Ok(none) => {
                cached.give_back(none);
                Ok(None)
            }
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(self.told("pinning", errno)),
        }
    }

    /// Gives back what `lend` lent of this file. The address is not to be used any more.
    #[inline(always)]
    pub fn give_back(&self, lent: Lent) {
        if let Some(cached) = self.cached.as_ref().and_then(|(_, here)| here.get()) {
            cached.give_back(lent);
        }
    }
}
