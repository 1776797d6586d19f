//! Reads.

use std::io::IoSliceMut;
use std::sync::Arc;

use datapath::engine::Open;
use rustix::io::Errno;

use super::File;
use crate::cached::Cached;
use crate::error::Error;
use crate::plain;

impl File {
    /// Reads at a position, without moving the file's own. Returns less than requested at the end of the file.
    ///
    /// # Errors
    /// As pread(2); [`Kind::Lost`](crate::Kind::Lost): the page was on an SSD that failed.
    #[inline]
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> Result<usize, Error> {
        self.read_by(at, to, Open::read)
    }

    /// Reads as `read_at` does, after [`File::read_at_once`] declined.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_long(&self, at: u64, to: &mut [u8]) -> Result<usize, Error> {
        self.read_by(at, to, Open::read_long)
    }

    #[inline(always)]
    fn read_by(&self, at: u64, to: &mut [u8], read: impl FnOnce(&Open, u64, &mut [u8]) -> Result<usize, Errno>) -> Result<usize, Error> {
        let read = match self.cached_path("reading")? {
            Some(cached) => {
                self.may_read()?;
                self.is_range("reading", at, to.len())?;
                read(&cached.open, at, to)
            }
            None => plain::read_at(self.fd(), at, to),
        };
        read.map_err(|errno| self.to_error("reading", errno))
    }

    /// Returns the cached file of this process for [`crate::AsyncReader`], or none if the caller has to use `read_at`.
    #[inline]
    pub(crate) fn to_read(&self) -> Option<&Arc<Cached>> {
        self.may_read().ok()?;
        self.cached_path("reading").ok()?
    }

    /// Reads at a position into several buffers, one after the other.
    ///
    /// # Errors
    /// As preadv(2).
    pub fn read_vectored_at(&self, at: u64, to: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
        let Some(cached) = self.cached_path("reading")? else {
            return plain::read_vectored_at(self.fd(), at, to).map_err(|errno| self.to_error("reading", errno));
        };
        self.may_read()?;
        self.is_range("reading", at, to.iter().map(|buffer| buffer.len()).fold(0, usize::saturating_add))?;
        let mut done = 0;
        for buffer in to {
            match cached.open.read(at + done as u64, buffer) {
                Ok(got) => {
                    done += got;
                    if got < buffer.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(self.to_error("reading", errno)),
            }
        }
        Ok(done)
    }
}
