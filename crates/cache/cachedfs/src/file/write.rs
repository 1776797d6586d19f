//! Writes, and changes of the size.

use std::io::IoSlice;
use std::ops::Range;

use datapath::engine::Open;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use ssdcache::Mode;

use super::{File, IoPath};
use crate::cached::Cached;
use crate::error::Error;
use crate::{limits, plain};

/// The result of a write to the cache.
enum WriteOutcome {
    /// This number of bytes was written at this position.
    At(u64, usize),
    /// Nothing was written: this number of bytes has to be written to the backing file, since the file is too long for the cache.
    TooFar(usize),
}

impl File {
    /// Writes at a position, without moving the file's own; with `O_APPEND` at the end of the file, as Linux does.
    ///
    /// # Errors
    /// As pwrite(2); [`Kind::ReadOnly`](crate::Kind::ReadOnly).
    #[inline]
    pub fn write_at(&self, at: u64, from: &[u8]) -> Result<usize, Error> {
        self.write_by(at, from, Open::write)
    }

    /// Writes as `write_at` does, after [`File::write_at_once`] declined.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_long(&self, at: u64, from: &[u8]) -> Result<usize, Error> {
        self.write_by(at, from, Open::write_long)
    }

    /// Writes what lies within the file, which keeps its length: what the kernel writes back from a mapping of it.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_within(&self, at: u64, from: &[u8]) -> Result<usize, Error> {
        self.write_by(at, from, Open::write_within)
    }

    #[inline(always)]
    fn write_by(&self, at: u64, from: &[u8], write: impl Fn(&Open, u64, &[u8]) -> Result<usize, Errno>) -> Result<usize, Error> {
        let mut from = from;
        loop {
            let written = match self.io_path("writing")? {
                IoPath::Cached(cached) => match self.write_through(cached, Some(at), from, &write)? {
                    WriteOutcome::At(_, len) => return Ok(len),
                    WriteOutcome::TooFar(len) => {
                        from = &from[..len];
                        continue;
                    }
                },
                IoPath::Bypass(_) if self.appends() => return self.append_some(from).map(|(_, len)| len),
                IoPath::Bypass(cached) => match cached.bypass(|| plain::write_at(self.fd(), at, from)) {
                    Some(written) => written,
                    None => continue,
                },
                IoPath::Uncached => self.may_change().and_then(|()| plain::write_at(self.fd(), at, from)),
            };
            return written.map_err(|errno| self.to_error("writing", errno));
        }
    }

    /// Writes at a position, or at the end of the file.
    #[inline(always)]
    fn write_through(
        &self,
        cached: &Cached,
        at: Option<u64>,
        from: &[u8],
        write: impl Fn(&Open, u64, &[u8]) -> Result<usize, Errno>,
    ) -> Result<WriteOutcome, Error> {
        self.may_write()?;
        if let Some(at) = at {
            self.is_range("writing", at, from.len())?;
        }
        let at = at.filter(|_| !self.appends());
        let mut from = from;
        if !from.is_empty() {
            let begin = at.unwrap_or_else(|| cached.open.size());
            from = &from[..self.bounded(cached, begin, from.len())?];
            if begin.saturating_add(from.len() as u64) > limits::FILE_BYTES_MAX {
                self.leave_cache(cached, "writing")?;
                return Ok(WriteOutcome::TooFar(from.len()));
            }
        }
        let written = match at {
            Some(at) => write(&cached.open, at, from).map(|_| at),
            None => cached.open.append(from),
        };
        let at = written.map_err(|errno| self.to_error("writing", errno))?;
        if self.flags.intersects(OFlags::SYNC | OFlags::DSYNC) && !from.is_empty() {
            cached.open.sync().map_err(|errno| self.to_error("writing", errno))?;
        }
        Ok(WriteOutcome::At(at, from.len()))
    }

    /// Writes several buffers at a position.
    ///
    /// # Errors
    /// As pwritev(2).
    pub fn write_vectored_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<usize, Error> {
        let whole: usize = from.iter().map(|buffer| buffer.len()).sum();
        loop {
            let written = match self.io_path("writing")? {
                // In one piece: an append must not be split, and a failed call must not have written a part.
                IoPath::Cached(_) => match from {
                    [one] => return self.write_at(at, one),
                    several => return self.write_at(at, &gathered(several, whole)),
                },
                IoPath::Bypass(_) if self.appends() => return self.append_some(&gathered(from, whole)).map(|(_, len)| len),
                IoPath::Bypass(cached) => match cached.bypass(|| plain::write_vectored_at(self.fd(), at, from)) {
                    Some(written) => written,
                    None => continue,
                },
                IoPath::Uncached => self.may_change().and_then(|()| plain::write_vectored_at(self.fd(), at, from)),
            };
            return written.map_err(|errno| self.to_error("writing", errno));
        }
    }

    /// Writes at the end of the file, whole, with no other writer of the instance between. Returns where it was written.
    ///
    /// # Errors
    /// As `write_at`.
    pub fn append(&self, from: &[u8]) -> Result<u64, Error> {
        self.append_some(from).map(|(at, _)| at)
    }

    /// Appends, and returns the position and the number of bytes, which is less if a limit of the file size is reached.
    ///
    /// # Errors
    /// As [`File::append`].
    pub fn append_some(&self, from: &[u8]) -> Result<(u64, usize), Error> {
        self.may_write()?;
        let mut from = from;
        loop {
            if let Some(cached) = self.cached_path("writing")? {
                match self.write_through(cached, None, from, Open::write)? {
                    WriteOutcome::At(at, len) => return Ok((at, len)),
                    WriteOutcome::TooFar(len) => from = &from[..len],
                }
            } else if let Some(written) = self.bypass("writing", || plain::append(self.fd(), from))? {
                return Ok(written);
            }
        }
    }

    /// Truncates or extends the file.
    ///
    /// # Errors
    /// As ftruncate(2).
    pub fn set_len(&self, bytes: u64) -> Result<(), Error> {
        loop {
            if let Some(cached) = self.cached_path("truncating")? {
                if !self.is_writable() {
                    return Err(self.to_error("truncating", Errno::INVAL));
                }
                self.may_become(cached, "truncating", bytes)?;
                if bytes <= limits::FILE_BYTES_MAX {
                    return cached.open.set_len(bytes).map_err(|errno| self.to_error("truncating", errno));
                }
                self.leave_cache(cached, "truncating")?;
            } else if let Some(truncated) = self.bypass("truncating", || rustix::fs::ftruncate(self.fd(), bytes))? {
                return Ok(truncated);
            }
        }
    }

    /// Checks that the file may have this size, before something is changed that belongs to the change of the size.
    ///
    /// # Errors
    /// EFBIG, as ftruncate(2).
    pub fn may_have_len(&self, bytes: u64) -> Result<(), Error> {
        self.cached_path("truncating")?.map_or(Ok(()), |cached| self.may_become(cached, "truncating", bytes))
    }

    /// Checks that the file may have this size, as the kernel's `inode_newsize_ok` does.
    fn may_become(&self, cached: &Cached, doing: &'static str, bytes: u64) -> Result<(), Error> {
        if bytes <= cached.open.size() {
            return Ok(());
        }
        if bytes > limits::own() {
            // The kernel refuses it with a signal.
            let refused = plain::write_at(self.fd(), bytes, &[0]).err();
            return Err(self.to_error(doing, refused.unwrap_or(Errno::FBIG)));
        }
        let is_possible = limits::is_sure(bytes) || bytes <= cached.local.largest();
        if is_possible { Ok(()) } else { Err(self.to_error(doing, Errno::FBIG)) }
    }

    /// Truncates for `O_TRUNC`, as open(2) does with a regular file. This needs write permission, whatever the file was opened for.
    pub(crate) fn cut(&self, is_regular: impl FnOnce() -> bool) -> Result<(), Error> {
        let to_error = |errno| self.to_error("truncating", errno);
        if self.is_writable() {
            return if self.is_cached() || is_regular() { self.set_len(0) } else { Ok(()) };
        }
        if !self.is_cached() && !is_regular() {
            return Ok(());
        }
        let writable = crate::descriptor::reopen(self.fd(), OFlags::WRONLY).map_err(to_error)?;
        loop {
            if let Some(cached) = self.cached_path("truncating")? {
                return cached.open.set_len(0).map_err(to_error);
            }
            if let Some(truncated) = self.bypass("truncating", || rustix::fs::ftruncate(&writable, 0))? {
                return Ok(truncated);
            }
        }
    }

    /// Deallocates the space of a range, which then reads as zeros.
    ///
    /// # Errors
    /// As fallocate(2) with `FALLOC_FL_PUNCH_HOLE`.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<(), Error> {
        let bytes = range.end.saturating_sub(range.start);
        loop {
            if let Some(cached) = self.cached_path("punching a hole")? {
                self.may_write()?;
                if bytes == 0 {
                    return Err(self.to_error("punching a hole", Errno::INVAL));
                }
                if !limits::is_sure(range.end) && range.end > cached.local.largest() {
                    return Err(self.to_error("punching a hole", Errno::FBIG));
                }
                return cached.open.punch(range.start, bytes).map_err(|errno| self.to_error("punching a hole", errno));
            }
            if let Some(punched) = self.bypass("punching a hole", || plain::punch_hole(self.fd(), &range))? {
                return Ok(punched);
            }
        }
    }

    /// Reserves space for a range; unless `keep_size`, the file is extended to its end.
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn allocate(&self, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        let how = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let bytes = range.end.saturating_sub(range.start);
        let to_error = |errno| self.to_error("allocating", errno);
        let cached = loop {
            if let Some(cached) = self.cached_path("allocating")? {
                break cached;
            }
            if let Some(allocated) = self.bypass("allocating", || rustix::fs::fallocate(self.fd(), how, range.start, bytes))? {
                return Ok(allocated);
            }
        };
        self.may_write()?;
        if cached.open.mode() == Mode::ReadOnly {
            return Err(to_error(Errno::ROFS));
        }
        if bytes == 0 {
            return Err(to_error(Errno::INVAL));
        }
        if !limits::is_sure(range.end) && range.end > cached.local.largest() {
            return Err(to_error(Errno::FBIG));
        }
        if !keep_size {
            self.may_become(cached, "allocating", range.end)?;
        }
        if range.end > limits::FILE_BYTES_MAX {
            self.leave_cache(cached, "allocating")?;
            return self.allocate(range, keep_size);
        }
        cached.open.ours_timed(|| rustix::fs::fallocate(self.fd(), FallocateFlags::KEEP_SIZE, range.start, bytes)).map_err(to_error)?;
        if !keep_size && range.end > cached.open.size() {
            cached.open.set_len(range.end).map_err(to_error)?;
        }
        Ok(())
    }
}

/// In one piece.
pub(super) fn gathered(from: &[IoSlice<'_>], bytes: usize) -> Vec<u8> {
    let mut whole = Vec::with_capacity(bytes);
    from.iter().for_each(|buffer| whole.extend_from_slice(buffer));
    whole
}
