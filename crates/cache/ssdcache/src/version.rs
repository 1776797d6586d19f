//! The versions of the SSD cache's format: the one place that knows them.
//!
//! A new version is a line of [`VERSIONS`] and, if older caches need it, a function that turns the superblock of one version into
//! that of the next. docs/formats.md, "Add a version of a format", has all the steps.

use crate::open_error::CacheOpenError;
use crate::units::Page;

/// The version that this program writes, in superblocks and summaries. It opens older ones, and refuses later ones.
pub const VERSION: u32 = 1;

/// A version that this program opens.
struct FormatVersion {
    number: u32,
    /// Turns a superblock of this version into one of the next, in memory.
    migrate: fn(&mut Page),
}

/// All of them, oldest first, without a gap.
const VERSIONS: &[FormatVersion] = &[FormatVersion { number: VERSION, migrate: unchanged }];

fn unchanged(_: &mut Page) {}

/// Brings a superblock whose checksum is right to the current version, in memory.
///
/// # Errors
/// Returns [`CacheOpenError::Later`] for a version of a later program, and [`CacheOpenError::None`] for one that never was.
pub(crate) fn migrate(version: u32, superblock: &mut Page) -> Result<(), CacheOpenError> {
    if version > VERSION {
        return Err(CacheOpenError::Later(version));
    }
    let oldest = VERSIONS.iter().position(|known| known.number == version).ok_or(CacheOpenError::None)?;
    VERSIONS[oldest..].iter().filter(|known| known.number < VERSION).for_each(|known| (known.migrate)(superblock));
    Ok(())
}

/// Reports whether summaries of this version can be read. A segment keeps the version in which it was written.
pub(crate) fn is_summary_known(version: u8) -> bool {
    VERSIONS.iter().any(|known| known.number == u32::from(version))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::units::PAGE_BYTES;

    #[test]
    fn versions_have_no_gap_and_unknown_ones_are_refused() {
        assert!(VERSIONS.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
        assert_eq!(VERSIONS.last().map(|last| last.number), Some(VERSION));
        let page = &mut [0; PAGE_BYTES];
        assert_eq!(migrate(0, page), Err(CacheOpenError::None));
        assert_eq!(migrate(VERSION + 1, page), Err(CacheOpenError::Later(VERSION + 1)));
        assert!(migrate(VERSION, page).is_ok() && is_summary_known(1) && !is_summary_known(0));
    }
}
