//! Files that a mount hides.

use std::path::Path;

/// Returns whether a directory has entries, which a mount there hides.
pub fn hides_files(mountpoint: &Path) -> bool {
    std::fs::read_dir(mountpoint).is_ok_and(|mut names| names.next().is_some())
}

/// Warns that a mount hides entries. Called once it is mounted: a refused mount hides nothing.
pub fn warn_of_hidden(hides: bool, mountpoint: &Path) {
    if hides {
        complain!("warning: {} was not empty: what is in it cannot be seen until it is unmounted", mountpoint.display());
    }
}
