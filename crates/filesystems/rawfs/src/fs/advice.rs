//! What a program says of how it will read.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::Result;
use super::file::File;
use super::read_ahead::ReadPattern;
use super::record::FileKind;
use crate::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes read in one go.
const GO: usize = 1 << 20;

/// How a program expects to read, as in posix_fadvise(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Nothing: reading ahead is decided by what is read.
    Normal,
    /// In order: as much as may be is read ahead.
    Sequential,
    /// Here and there: nothing is read ahead.
    Random,
    /// The range will be read soon: it is brought into the cache, up to half of it.
    WillNeed,
    /// The range will not be read soon: what was written of it is brought to the device, and the cache has none of it any more.
    DontNeed,
}

impl File {
    /// Takes advice on this handle's reads, or on a range of the file (`len` 0: to its end).
    ///
    /// # Errors
    /// EBADF; those of a read or of writing back.
    pub fn advise(&self, advice: Advice, at: u64, len: u64) -> Result<()> {
        if self.flags().contains(OFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        if self.node().kind() != FileKind::File {
            return Ok(());
        }
        let end = if len == 0 { u64::MAX } else { at.saturating_add(len) };
        match advice {
            Advice::Normal => self.read_ahead.set_pattern(ReadPattern::Any),
            Advice::Random => self.read_ahead.set_pattern(ReadPattern::Random),
            Advice::Sequential => self.read_ahead.set_pattern(ReadPattern::Sequential),
            Advice::WillNeed => return self.bring(at, end),
            Advice::DontNeed => return self.forget(at, end),
        }
        Ok(())
    }

    fn bring(&self, at: u64, end: u64) -> Result<()> {
        let core = self.core();
        let end = end.min(at.saturating_add(core.settings.cache_bytes as u64 / 2));
        let (mut at, mut room) = (at, vec![0; GO]);
        while at < end {
            let go = usize::try_from(end - at).unwrap_or(GO).min(GO);
            let done = core.read(&self.inode().state.read(), at, &mut room[..go], 0)?;
            if done == 0 {
                break;
            }
            at += done as u64;
        }
        Ok(())
    }

    fn forget(&self, at: u64, end: u64) -> Result<()> {
        let core = self.core();
        let _names = core.locks.shared();
        let mut state = self.inode().state.write();
        core.write_back(self.inode(), &mut state)?;
        let blocks = at.div_ceil(BLOCK)..end.min(state.record.size.next_multiple_of(BLOCK)) / BLOCK;
        for run in core.runs(&state.record, &blocks)? {
            if let Some(part) = run.part(&blocks).filter(|part| part.sums.is_some()) {
                core.cache.forget(self.inode().ino, part.at..part.end());
            }
        }
        Ok(())
    }
}
