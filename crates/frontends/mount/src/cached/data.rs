//! What the cache of file data takes part in.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use cachedfs::Instance;
use directoryfs::{FileCache, Stat};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

/// Makes changes of names and attributes through an instance of the cache.
#[derive(Clone)]
pub struct InstanceCache(pub Arc<Instance>);

/// Returns the error of the system call that an error of the cache stands for.
pub fn errno(error: &cachedfs::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

impl FileCache for InstanceCache {
    fn unlink(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        self.0.unlink(dir, Path::new(name), AtFlags::empty()).map_err(|error| errno(&error))
    }

    fn rename(&self, from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr), flags: RenameFlags) -> Result<(), Errno> {
        self.0.rename(from.0, Path::new(from.1), to.0, Path::new(to.1), flags).map_err(|error| errno(&error))
    }

    fn change(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        self.0.change_attributes(file, change)
    }

    fn change_times(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        self.0.change_times(file, change)
    }

    fn correct(&self, file: BorrowedFd<'_>, stat: &mut Stat) {
        let Some(newer) = self.0.stat_if_newer(file) else { return };
        stat.size = newer.st_size.cast_unsigned();
        stat.mtime = (newer.st_mtime, newer.st_mtime_nsec as u32);
        stat.ctime = (newer.st_ctime, newer.st_ctime_nsec as u32);
    }
}
