//! Reads into several pieces of memory, and writes from several.

use std::io::{IoSlice, IoSliceMut};

use rustix::fs::OFlags;

use super::error::Result;
use super::file::File;

impl File {
    /// As [`File::read_at`], or [`File::read`] without a place, one piece after the other.
    ///
    /// # Errors
    /// As [`File::read_at`]; after some bytes only their number is reported.
    pub fn read_vectored(&self, parts: &mut [IoSliceMut<'_>], at: Option<u64>) -> Result<usize> {
        if let Some(at) = at {
            return self.read_parts(parts, at);
        }
        let mut own = self.at.lock();
        let done = self.read_parts(parts, *own)?;
        *own += done as u64;
        Ok(done)
    }

    /// As [`File::read_at`] where all of it is in memory and nobody changes the file; `None`: else, and `to` may have some of it. It may
    /// wait for metadata, of a file in many pieces that was not read for long.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_here(&self, to: &mut [u8], at: u64) -> Result<Option<usize>> {
        let flags = self.may(false)?;
        if flags.contains(OFlags::DIRECT) || i64::try_from(at).is_err() {
            return Ok(None);
        }
        let Some(state) = self.inode().state.try_read() else { return Ok(None) };
        if self.is_due(&state.record) {
            return Ok(None);
        }
        self.core().read_here(&state, at, to)
    }

    fn read_parts(&self, parts: &mut [IoSliceMut<'_>], at: u64) -> Result<usize> {
        self.read_at(&mut [], at)?;
        let mut done = 0;
        for part in parts.iter_mut().filter(|part| !part.is_empty()) {
            match self.read_at(part, at.saturating_add(done as u64)) {
                Ok(read) => {
                    done += read;
                    if read < part.len() {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// As [`File::write_at`], or [`File::write`] without a place, as one write: nobody's comes in between.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_vectored(&self, parts: &[IoSlice<'_>], at: Option<u64>) -> Result<usize> {
        let write = |bytes: &[u8]| at.map_or_else(|| self.write(bytes), |at| self.write_at(bytes, at));
        match parts {
            [] => write(&[]),
            [one] => write(one),
            _ => write(&parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>()),
        }
    }
}
