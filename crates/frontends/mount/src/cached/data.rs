//! What the cache of file data takes part in.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use cachedfs::Instance;
use directoryfs::{DataKeeper, FileCache, KeptData, NoCache, RemovedFile, Stat};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use crate::wire::check_wanted;

/// Makes changes of names and attributes through an instance of the cache.
#[derive(Clone)]
pub struct InstanceCache {
    /// The cache of file data.
    pub instance: Arc<Instance>,
    /// The device number of the directory's file system. One that is mounted below may be a user's, who could forge the numbers by which
    /// the cache knows files: the cache takes no part in calls on it.
    pub device: u64,
    /// Whether files keep their keys when the file system is mounted again.
    pub is_lasting: bool,
}

impl InstanceCache {
    fn is_cached(&self, file: BorrowedFd<'_>) -> bool {
        rustix::fs::fstat(file).is_ok_and(|stat| stat.st_dev == self.device)
    }

    /// Returns a removed file with what keeps its data. Only in write-back may the cache have data that the file does not have.
    fn removed(&self, removed: Option<cachedfs::RemovedFile>) -> Option<RemovedFile> {
        let removed = removed?;
        let stat = Stat::of(removed.as_fd()).ok()?;
        let has_newer = self.instance.mode() == cachedfs::Mode::WriteBack && removed.has_newer_data();
        Some(RemovedFile { stat, data: has_newer.then(|| KeptData::new(RemovedData(removed))) })
    }
}

/// Data of a file that a call has removed.
struct RemovedData(cachedfs::RemovedFile);

impl DataKeeper for RemovedData {
    fn write_back(&self) -> Result<(), Errno> {
        self.0.write_back()
    }
}

/// Data of a removed file that was open, and may be opened again.
pub struct ClosedData(pub Arc<cachedfs::File>);

impl DataKeeper for ClosedData {
    fn write_back(&self) -> Result<(), Errno> {
        self.0.clean().map_err(|error| errno(&error))
    }
}

/// Returns the error of the system call that an error of the cache stands for. A slow side that does not reply to the leader of the cache
/// (EHOSTDOWN) is for programs the same as one that does not reply to the mount.
pub fn errno(error: &cachedfs::Error) -> Errno {
    match Errno::from_raw_os_error(error.errno()) {
        Errno::HOSTDOWN => Errno::TIMEDOUT,
        errno => errno,
    }
}

impl FileCache for InstanceCache {
    fn unlink(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<RemovedFile>, Errno> {
        if !self.is_cached(dir) {
            check_wanted()?;
            return NoCache.unlink(dir, name);
        }
        let removed = self.instance.unlink_and_keep((dir, Path::new(name)), AtFlags::empty(), &check_wanted);
        Ok(self.removed(removed.map_err(|error| errno(&error))?))
    }

    fn rmdir(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        check_wanted()?;
        NoCache.rmdir(dir, name)
    }

    fn rename(
        &self,
        from: (BorrowedFd<'_>, &OsStr),
        to: (BorrowedFd<'_>, &OsStr),
        flags: RenameFlags,
    ) -> Result<Option<RemovedFile>, Errno> {
        if !self.is_cached(from.0) || !self.is_cached(to.0) {
            check_wanted()?;
            return NoCache.rename(from, to, flags);
        }
        let (from, to) = ((from.0, Path::new(from.1)), (to.0, Path::new(to.1)));
        let replaced = self.instance.rename_and_keep(from, to, flags, &check_wanted);
        Ok(self.removed(replaced.map_err(|error| errno(&error))?))
    }

    fn change(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        if self.is_cached(file) { self.instance.change_attributes(file, change) } else { change() }
    }

    fn change_times(&self, file: BorrowedFd<'_>, change: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        if self.is_cached(file) { self.instance.change_times(file, change) } else { change() }
    }

    fn correct(&self, file: BorrowedFd<'_>, stat: &mut Stat) -> Result<bool, Errno> {
        if stat.dev != self.device {
            return Ok(false);
        }
        let Some(newer) = self.instance.stat_if_newer(file)? else {
            // What the cache had may have been written to the file after the caller looked at it.
            if self.instance.mode() == cachedfs::Mode::WriteBack
                && let Ok(now) = Stat::of(file)
            {
                *stat = now;
            }
            return Ok(false);
        };
        stat.size = newer.st_size.cast_unsigned();
        stat.mtime = (newer.st_mtime, newer.st_mtime_nsec as u32);
        stat.ctime = (newer.st_ctime, newer.st_ctime_nsec as u32);
        Ok(true)
    }

    fn data_key(&self, file: BorrowedFd<'_>) -> Option<u64> {
        // The server of a FUSE file system does not know which user asks: the kernel decides by the attributes.
        if self.is_lasting || !self.is_cached(file) {
            return None;
        }
        cachedfs::data_key(file).ok()
    }
}
