//! Calls on files by descriptor, for front ends that know files by inode number and not by path.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use ssdcache::Mode;

use crate::descriptor::is_removed;
use crate::file::{File, IoPath};
use crate::instance::Instance;
use crate::key::key_of;

impl Instance {
    /// Runs a change of a file's mode, owner or extended attributes, so that the cache does not treat it as a change by another program.
    /// `file` may be an `O_PATH` descriptor.
    ///
    /// # Errors
    /// Those of the change. EMFILE, ENFILE: the process has no descriptor left, and nothing is changed.
    pub fn change_attributes<T>(self: &Arc<Self>, file: BorrowedFd<'_>, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        match self.known_file(file)? {
            Some(cached) => cached.open.ours(change),
            None => change(),
        }
    }

    /// Runs a change of a file's times after writing all its dirty pages back, since a later write-back would change them again.
    ///
    /// # Errors
    /// Those of the change and of the write-back. EMFILE, ENFILE: the process has no descriptor left, and nothing is changed.
    pub fn change_times<T>(self: &Arc<Self>, file: BorrowedFd<'_>, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let Some(cached) = self.known_file(file)? else { return change() };
        let written = cached.open.written_ns();
        cached.open.clean()?;
        let changed = cached.open.ours_timed(change)?;
        cached.open.times_were_set(written);
        Ok(changed)
    }

    /// Returns the attributes of a regular file of which the cache may have newer data, with the cache's size and times; none if those of
    /// the file system are valid. `file` may be an `O_PATH` descriptor.
    ///
    /// # Errors
    /// ETIMEDOUT, or the error of the leader, which alone knows what the SSD has after a restart. As fstat(2).
    pub fn stat_if_newer(self: &Arc<Self>, file: BorrowedFd<'_>) -> Result<Option<Stat>, Errno> {
        // In all other modes the backing file has every write.
        if self.mode() != Mode::WriteBack {
            return Ok(None);
        }
        let (Ok(part), Ok(key)) = (self.part(), key_of(file)) else { return Ok(None) };
        if !part.engine.has_newer_pages(key)? {
            return Ok(None);
        }
        let stat = self.stat(file, Path::new(""), AtFlags::EMPTY_PATH);
        stat.map(Some).map_err(|error| Errno::from_raw_os_error(error.errno()))
    }

    /// Compares a file that the cache has a record of with its backing file: pages that another program made stale are dropped. A conflict
    /// is marked, and reported by the next sync. Returns false if that failed. `file` may be an `O_PATH` descriptor.
    ///
    /// # Errors
    /// EMFILE, ENFILE: the process has no descriptor left.
    pub fn compare(self: &Arc<Self>, file: BorrowedFd<'_>) -> Result<bool, Errno> {
        let (Ok(part), Ok(key)) = (self.part(), key_of(file)) else { return Ok(false) };
        Ok(part.engine.knows(key) == Ok(false) || self.known_file(file)?.is_some())
    }
}

impl File {
    /// Returns whether the file has no name any more.
    pub fn is_removed(&self) -> bool {
        is_removed(self.fd())
    }

    /// Gives a file that was just written the exact time. The engine's clock only ticks every few milliseconds: a program, here or at
    /// another mount of the directory, may have seen a time of the same tick, and has to see that the file changed since.
    pub fn note_exact_write_time(&self) {
        let Some(IoPath::Cached(cached)) = self.settled_path() else { return };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        // Whatever was seen.
        cached.open.note_exact_time(u64::MAX, (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64));
    }
}
