//! The versions of the image format: the one place that knows them.
//!
//! A new version is a line of [`VERSIONS`] and, if older images need it, a function that turns the superblock of one version into
//! that of the next. docs/formats.md, "Add a version of a format", has all the steps.

use crate::error::Error;
use crate::units::Block;

/// The version that this program writes. It covers everything on the device.
pub const VERSION: u32 = 2;

/// A version that this program opens.
struct FormatVersion {
    number: u32,
    /// Turns the sealed part of a superblock of this version into that of the next one.
    migrate: fn(&mut [u8]),
}

/// All of them, oldest first, without a gap.
const VERSIONS: &[FormatVersion] = &[
    // Its log holds no file data. A log without file data is valid in version 2 as well.
    FormatVersion { number: 1, migrate: unchanged },
    FormatVersion { number: VERSION, migrate: unchanged },
];

fn unchanged(_: &mut [u8]) {}

/// Brings the bytes of a superblock to the current version, in memory. The image has that version once its superblock is written.
///
/// # Errors
/// Returns [`Error::Later`] for a version of a later program, and [`Error::Damaged`] for one that never was.
pub fn migrate(version: u32, superblock: &mut [u8], at: Block) -> Result<(), Error> {
    if version > VERSION {
        return Err(Error::Later { version, known: VERSION });
    }
    let oldest = VERSIONS.iter().position(|known| known.number == version).ok_or(Error::Damaged { what: "a superblock", at })?;
    VERSIONS[oldest..].iter().filter(|known| known.number < VERSION).for_each(|known| (known.migrate)(superblock));
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn versions_have_no_gap_and_end_with_the_current_one() {
        assert!(VERSIONS.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
        assert_eq!(VERSIONS.last().map(|last| last.number), Some(VERSION));
    }

    #[test]
    fn unknown_versions_are_refused() {
        let migrate = |version| migrate(version, &mut [], Block(0));
        assert_eq!(migrate(0), Err(Error::Damaged { what: "a superblock", at: Block(0) }));
        assert_eq!(migrate(VERSION + 1), Err(Error::Later { version: VERSION + 1, known: VERSION }));
        assert!((1..=VERSION).all(|version| migrate(version).is_ok()));
    }
}
