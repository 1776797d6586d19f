//! Calls on files by descriptor, for front ends that know files by inode number and not by path.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use ssdcache::Mode;

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
    pub fn stat_if_newer(self: &Arc<Self>, file: BorrowedFd<'_>) -> Option<Stat> {
        // In all other modes the backing file has every write.
        if self.mode() != Mode::WriteBack || !self.part().ok()?.engine.has_newer_pages(key_of(file).ok()?) {
            return None;
        }
        self.stat(file, Path::new(""), AtFlags::EMPTY_PATH).ok()
    }

    /// Compares a file that the cache has a record of with its backing file: pages that another program made stale are dropped. A conflict
    /// is marked, and reported by the next sync. Returns false if that failed. `file` may be an `O_PATH` descriptor.
    ///
    /// # Errors
    /// EMFILE, ENFILE: the process has no descriptor left.
    pub fn compare(self: &Arc<Self>, file: BorrowedFd<'_>) -> Result<bool, Errno> {
        let (Ok(part), Ok(key)) = (self.part(), key_of(file)) else { return Ok(false) };
        Ok(!part.engine.knows(key) || self.known_file(file)?.is_some())
    }
}

impl File {
    /// Makes the modification time of a file that was just written later than `seen`, in seconds and nanoseconds, the last time that a
    /// program was shown. The engine's clock ticks every few milliseconds: the write may have come within the same tick.
    pub fn move_write_time(&self, seen: (i64, u32)) {
        let Some(IoPath::Cached(cached)) = self.settled_path() else { return };
        let Some(seen_ns) = u64::try_from(seen.0).ok().and_then(|seconds| seconds.checked_mul(1_000_000_000)?.checked_add(seen.1.into()))
        else {
            return;
        };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        cached.open.note_exact_time(seen_ns, (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64));
    }
}
