//! Opening a file by its name, through the cache or without it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, OFlags, fstat, openat};
use rustix::io::Errno;

use crate::descriptor::path_of;
use crate::error::{Error, Kind};
use crate::file::File;
use crate::instance::{Instance, is_regular};
use crate::options::Options;

impl Instance {
    /// Opens a file as openat(2) does.
    ///
    /// # Errors
    /// As openat(2); [`Kind::Conflict`]: another program changed the file while the cache held newer pages of it.
    pub fn open_file(
        self: &Arc<Self>,
        at: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
        mode: rustix::fs::Mode,
        options: &Options,
    ) -> Result<File, Error> {
        let given: Arc<Path> = path.into();
        let failed = |errno| Error::system(errno, "opening", &given);
        if flags.intersects(OFlags::PATH | OFlags::DIRECTORY) || flags.contains(OFlags::TMPFILE) {
            let fd = openat(at, path, flags, mode).map_err(failed)?;
            return Ok(File::plain(Arc::clone(self), fd, given, flags));
        }
        // Truncated through the cache; otherwise the cache would not notice.
        let is_cut = flags.contains(OFlags::TRUNC);
        let fd = openat(at, path, flags - OFlags::TRUNC, mode).map_err(|errno| {
            // The kernel refuses to truncate a directory before it checks the other flags (O_DIRECT).
            let is_directory = || {
                let stat = rustix::fs::statat(at, path, AtFlags::empty());
                stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
            };
            failed(if is_cut && errno == Errno::INVAL && is_directory() { Errno::ISDIR } else { errno })
        })?;
        if is_cut && fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
            return Err(failed(Errno::ISDIR));
        }
        let file = self.file_of(fd, given, flags, options)?;
        if is_cut {
            file.cut(|| fstat(file.fd()).is_ok_and(|stat| is_regular(&stat)))?;
        }
        Ok(file)
    }

    /// Opens the file of a descriptor, which may have rights that opening the file again would not give: that of a file that was just
    /// created, for one. `flags`: what it was opened with.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open_descriptor(self: &Arc<Self>, fd: OwnedFd, flags: OFlags, options: &Options) -> Result<File, Error> {
        let path = path_of(fd.as_fd()).unwrap_or_default();
        self.file_of(fd, path.into(), flags, options)
    }

    fn file_of(self: &Arc<Self>, fd: OwnedFd, path: Arc<Path>, flags: OFlags, options: &Options) -> Result<File, Error> {
        let failed = |errno| Error::system(errno, "opening", &path);
        let Some(opening) = self.opening(&fd, flags, options).map_err(failed)? else {
            return Ok(File::plain(Arc::clone(self), fd, path, flags));
        };
        let again = rustix::io::fcntl_dupfd_cloexec(&fd, 0).map_err(failed)?;
        match File::cached(Arc::clone(self), again, Arc::clone(&path), flags, opening) {
            Err(error) if error.kind() == Kind::Full => Ok(File::plain(Arc::clone(self), fd, path, flags)),
            opened => opened,
        }
    }

    /// Truncates or extends a file as truncate(2) does.
    ///
    /// # Errors
    /// As truncate(2).
    pub fn truncate(self: &Arc<Self>, at: BorrowedFd<'_>, path: &Path, bytes: u64) -> Result<(), Error> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        self.open_file(at, path, flags, rustix::fs::Mode::empty(), &Options::default())?.set_len(bytes)
    }
}
