//! What a cache of file data has to take part in.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, RenameFlags};

use crate::{KeptData, Result, Stat};

/// A file that lost its last name by a call.
#[derive(Debug)]
pub struct RemovedFile {
    /// The attributes of the file.
    pub stat: Stat,
    /// Keeps data that the file system does not have, until it is dropped.
    pub data: Option<KeptData>,
}

/// A cache of the data of regular files. It compares a file's size and times with what it remembers, so each call that changes them goes
/// through it. It may refuse a removal or a rename that nobody waits for any more.
pub trait FileCache: Send + Sync {
    /// Removes a name that is not a directory. Returns the file if it has no other name.
    ///
    /// # Errors
    /// As unlinkat(2).
    fn unlink(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<RemovedFile>>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As unlinkat(2).
    fn rmdir(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()>;

    /// Renames `from` to `to`, each a directory and a name. Returns the file that had the new name if it has no other one.
    ///
    /// # Errors
    /// As renameat2(2).
    fn rename(&self, from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr), flags: RenameFlags) -> Result<Option<RemovedFile>>;

    /// Runs a change of a file's mode, owner, links or extended attributes. `file` may be an `O_PATH` descriptor.
    ///
    /// # Errors
    /// Those of `change`.
    fn change(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Runs a change of a regular file's times, which must be the last change of them.
    ///
    /// # Errors
    /// Those of `change`, or of writing data back before it.
    fn change_times(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Sets the size and the modification time of a regular file that the cache has newer data of. Returns whether it has.
    ///
    /// # Errors
    /// Those of the cache if it cannot say whether it has newer data.
    fn correct(&self, file: BorrowedFd<'_>, stat: &mut Stat) -> Result<bool>;

    /// Returns the number by which the cache knows the data of a regular file, as long as the file exists, where attributes alone decide
    /// who may read it. None: see [`crate::DirectoryFs::remember_readable`].
    fn data_key(&self, _file: BorrowedFd<'_>) -> Option<u64> {
        None
    }
}

/// No cache: each call goes to the file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCache;

impl FileCache for NoCache {
    fn unlink(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<RemovedFile>> {
        rustix::fs::unlinkat(dir, name, AtFlags::empty()).map(|()| None)
    }

    fn rmdir(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
    }

    fn rename(&self, from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr), flags: RenameFlags) -> Result<Option<RemovedFile>> {
        let renamed = if flags.is_empty() {
            rustix::fs::renameat(from.0, from.1, to.0, to.1)
        } else {
            rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags)
        };
        renamed.map(|()| None)
    }

    fn change(&self, _file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        change()
    }

    fn change_times(&self, _file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        change()
    }

    fn correct(&self, _file: BorrowedFd<'_>, _stat: &mut Stat) -> Result<bool> {
        Ok(false)
    }
}
