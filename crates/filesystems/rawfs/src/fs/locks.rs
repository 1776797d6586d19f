//! Locks of the name space.
//!
//! ```text
//!  whole     shared by every call on names and by write-back; alone: rename of a directory, which moves keys of others
//!  a dir's   shared: lookups that hold a name; alone: changes of entries, or of the directory's own record
//!  a file's  in the table of files
//! ```
//!
//! Always taken in this order, directories by the number of their lock, files by theirs.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::name::Name;

const STRIPES: usize = 256;

/// The locks that protect the name space.
pub struct Locks {
    whole: RwLock<()>,
    dirs: Vec<RwLock<()>>,
}

/// The whole name space does not change, but for single entries.
pub struct SharedNames<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Nobody else is in the name space.
pub struct ExclusiveNames<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

/// Entries of some directories are ours to change.
pub struct LockedDirs<'a>(#[expect(dead_code, reason = "held")] DirGuards<'a>);

#[expect(dead_code, reason = "held")]
enum DirGuards<'a> {
    One(RwLockWriteGuard<'a, ()>),
    Many(Vec<RwLockWriteGuard<'a, ()>>),
}

impl Default for Locks {
    fn default() -> Self {
        Locks { whole: RwLock::default(), dirs: (0..STRIPES).map(|_| RwLock::default()).collect() }
    }
}

fn stripe(dir: &Name) -> usize {
    dir.stripe() as usize % STRIPES
}

impl Locks {
    /// For every call on names.
    pub fn shared(&self) -> SharedNames<'_> {
        SharedNames(self.whole.read())
    }

    /// For what moves keys of others.
    pub fn alone(&self) -> ExclusiveNames<'_> {
        ExclusiveNames(self.whole.write())
    }

    /// To look up a name and hold it.
    pub fn look(&self, _: &SharedNames<'_>, dir: &Name) -> RwLockReadGuard<'_, ()> {
        self.dirs[stripe(dir)].read()
    }

    /// To change entries of directories.
    pub fn change(&self, _: &SharedNames<'_>, dirs: &[&Name]) -> LockedDirs<'_> {
        if let [dir] = dirs {
            return LockedDirs(DirGuards::One(self.dirs[stripe(dir)].write()));
        }
        let mut stripes: Vec<usize> = dirs.iter().map(|dir| stripe(dir)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        LockedDirs(DirGuards::Many(stripes.into_iter().map(|stripe| self.dirs[stripe].write()).collect()))
    }
}
