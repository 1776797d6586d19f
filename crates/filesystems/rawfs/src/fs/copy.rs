//! A range of one file into another.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::Result;
use super::file::File;

/// Bytes in one go.
const GO: u64 = 1 << 20;

impl File {
    /// Copies up to `len` bytes from a place of this file to one of another, or of this one, and returns how many: fewer at the end of
    /// this file, or when there is no more room. Holes become zeros.
    ///
    /// # Errors
    /// As copy_file_range(2): EBADF (not open so, or `to` for appending), EINVAL (ranges of one file that overlap); those of a read and
    /// of a write.
    pub fn copy_range(&self, from: u64, to: &File, at: u64, len: u64) -> Result<u64> {
        self.may(false)?;
        if to.may(true)?.contains(OFlags::APPEND) {
            return Err(Errno::BADF.into());
        }
        let (Some(from_end), Some(to_end)) = (from.checked_add(len), at.checked_add(len)) else { return Err(Errno::OVERFLOW.into()) };
        if self.node().ino() == to.node().ino() && from < to_end && at < from_end {
            return Err(Errno::INVAL.into());
        }
        let (mut done, mut room) = (0, vec![0; len.min(GO) as usize]);
        while done < len {
            let go = (len - done).min(GO) as usize;
            let step = self.read_at(&mut room[..go], from + done).and_then(|read| to.write_at(&room[..read], at + done));
            match step {
                Ok(0) => break,
                Ok(written) => done += written as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
