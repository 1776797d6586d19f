//! The calls that use the file's position, and move it.

use std::io::{IoSlice, IoSliceMut};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::File;
use super::write::gathered;
use crate::error::Error;
use crate::{limits, plain};

/// The origin of a new position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// The start of the file.
    Start,
    /// The present position.
    Current,
    /// The end of the file.
    End,
    /// The next data at or after it.
    Data,
    /// The next hole at or after it.
    Hole,
}

impl File {
    /// Returns whether the kernel keeps the position: for files without a position, and for uncached files.
    #[inline]
    fn has_kernel_position(&self) -> bool {
        self.cached.is_none()
    }

    /// Reads at the file's position and moves it. A file without a position (pipe, socket) is read with read(2).
    ///
    /// # Errors
    /// As read(2).
    #[inline]
    pub fn read(&self, to: &mut [u8]) -> Result<usize, Error> {
        if self.has_kernel_position() {
            return rustix::io::read(self.fd(), to).map_err(|errno| self.to_error("reading", errno));
        }
        let mut position = self.position.lock();
        let got = self.read_at(*position, to)?;
        *position += got as u64;
        Ok(got)
    }

    /// Reads at the file's position into several buffers, and moves it.
    ///
    /// # Errors
    /// As readv(2).
    pub fn read_vectored(&self, to: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
        if self.has_kernel_position() {
            return rustix::io::readv(self.fd(), to).map_err(|errno| self.to_error("reading", errno));
        }
        let mut position = self.position.lock();
        let got = self.read_vectored_at(*position, to)?;
        *position += got as u64;
        Ok(got)
    }

    /// Writes at the file's position (with `O_APPEND` at its end) and moves it.
    ///
    /// # Errors
    /// As write(2).
    #[inline]
    pub fn write(&self, from: &[u8]) -> Result<usize, Error> {
        if self.has_kernel_position() {
            return self.may_change().and_then(|()| rustix::io::write(self.fd(), from)).map_err(|errno| self.to_error("writing", errno));
        }
        let mut position = self.position.lock();
        if self.appends() && !from.is_empty() {
            let (at, len) = self.append_some(from)?;
            *position = at + len as u64;
            return Ok(len);
        }
        let done = self.write_at(*position, from)?;
        *position += done as u64;
        Ok(done)
    }

    /// Writes several buffers at the file's position, and moves it.
    ///
    /// # Errors
    /// As writev(2).
    pub fn write_vectored(&self, from: &[IoSlice<'_>]) -> Result<usize, Error> {
        if self.has_kernel_position() {
            return self.may_change().and_then(|()| rustix::io::writev(self.fd(), from)).map_err(|errno| self.to_error("writing", errno));
        }
        match from {
            [one] => self.write(one),
            several => self.write(&gathered(several, several.iter().map(|buffer| buffer.len()).sum())),
        }
    }

    /// Moves the file's position and returns the new one.
    ///
    /// # Errors
    /// As lseek(2): the position is before the start, or the file has none.
    pub fn seek(&self, to: i64, whence: Whence) -> Result<u64, Error> {
        let to_error = |errno| self.to_error("seeking", errno);
        if self.has_kernel_position() {
            // A file without a position fails first: EBADF (O_PATH), ESPIPE.
            let refused = |errno| plain::seek(self.fd(), SeekFrom::Current(0)).err().unwrap_or(errno);
            let from_begin = |errno| u64::try_from(to).map_err(|_| to_error(refused(errno)));
            let to = match whence {
                Whence::Start => SeekFrom::Start(from_begin(Errno::INVAL)?),
                Whence::Current => SeekFrom::Current(to),
                Whence::End => SeekFrom::End(to),
                Whence::Data => SeekFrom::Data(from_begin(Errno::NXIO)?),
                Whence::Hole => SeekFrom::Hole(from_begin(Errno::NXIO)?),
            };
            return plain::seek(self.fd(), to).map_err(to_error);
        }
        let mut position = self.position.lock();
        let base = match whence {
            Whence::Start => 0,
            Whence::Current => *position,
            Whence::End => self.len()?,
            Whence::Data | Whence::Hole => {
                let at = u64::try_from(to).map_err(|_| to_error(Errno::NXIO))?;
                let to = if whence == Whence::Data { SeekFrom::Data(at) } else { SeekFrom::Hole(at) };
                *position = self.data_or_hole(at, to)?;
                return Ok(*position);
            }
        };
        let at = base.checked_add_signed(to).filter(|at| *at <= limits::END).ok_or_else(|| to_error(Errno::INVAL))?;
        if !limits::is_sure(at) && at > self.largest() {
            return Err(to_error(Errno::INVAL));
        }
        *position = at;
        Ok(at)
    }

    /// Returns the maximum size of the file.
    fn largest(&self) -> u64 {
        self.cached_here().map_or(limits::END, |cached| cached.local.largest())
    }

    /// The backing file has the answer once all dirty pages are written.
    fn data_or_hole(&self, at: u64, to: SeekFrom) -> Result<u64, Error> {
        let to_error = |errno| self.to_error("seeking", errno);
        if let Some(cached) = self.cached_path("seeking")? {
            if at >= cached.open.size() {
                return Err(to_error(Errno::NXIO));
            }
            cached.open.clean().map_err(to_error)?;
        }
        plain::seek(self.fd(), to).map_err(to_error)
    }
}
