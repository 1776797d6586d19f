//! Removing and renaming files by their names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapath::engine::Open;
use rustix::fs::{AtFlags, RenameFlags, fstat};
use rustix::io::Errno;

use crate::cached::Cached;
use crate::descriptor::{is_removed, is_shortage, path_of};
use crate::error::Error;
use crate::instance::{Instance, directory, is_regular, named};

/// A path, and the directory that it begins in.
type Name<'a> = (BorrowedFd<'a>, &'a Path);
/// Refuses a change that nobody wants any more.
type MayAct<'a> = &'a dyn Fn() -> Result<(), Errno>;

/// A file that lost its last name by a call.
pub struct RemovedFile {
    file: OwnedFd,
    known: Option<Arc<Cached>>,
}

impl RemovedFile {
    /// Records the present name of a file; returns the file if it has none.
    fn of(named: NamedFile) -> Option<RemovedFile> {
        let NamedFile { file, known } = named;
        known.iter().for_each(|known| known.look_for_name());
        is_removed(file.as_fd()).then_some(RemovedFile { file, known })
    }

    /// Returns whether the cache has data that the file does not have. It stays while this exists, as while a process has the file open.
    pub fn has_newer_data(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.open.is_dirty().unwrap_or(true))
    }

    /// Writes the data that the cache has to the file.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write_back(&self) -> Result<(), Errno> {
        self.known.as_ref().map_or(Ok(()), |known| known.open.clean())
    }
}

impl AsFd for RemovedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A regular file that has a name, and its registration for one call if the cache has a record of it.
struct NamedFile {
    file: OwnedFd,
    known: Option<Arc<Cached>>,
}

impl Instance {
    /// Removes a name as unlinkat(2) does. The cached pages are dropped at the last close of the file.
    ///
    /// # Errors
    /// As unlinkat(2).
    pub fn unlink(self: &Arc<Self>, at: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> Result<(), Error> {
        self.unlink_and_keep((at, path), flags, &|| Ok(())).map(drop)
    }

    /// Removes a name as [`Instance::unlink`] does. Returns the file if it is a regular file without another name. `may_act` is asked
    /// immediately before the removal: finding the file may take long.
    ///
    /// # Errors
    /// As unlinkat(2), or that of `may_act`.
    pub fn unlink_and_keep(self: &Arc<Self>, name: Name<'_>, flags: AtFlags, may_act: MayAct<'_>) -> Result<Option<RemovedFile>, Error> {
        let (at, path) = name;
        let failed = |errno| Error::system(errno, "unlinking", &path.into());
        let named = if flags.contains(AtFlags::REMOVEDIR) { None } else { self.regular_file(at, path).map_err(failed)? };
        let call = || {
            may_act()?;
            rustix::fs::unlinkat(at, path, flags)
        };
        let done = match named.as_ref().and_then(|named| named.known.as_ref()) {
            Some(known) => known.open.ours(call),
            None => call(),
        };
        done.map_err(failed)?;
        // At once: if all processes that have it open are killed now, nobody else can know that it was removed.
        Ok(named.and_then(RemovedFile::of))
    }

    /// Renames a file or a directory as renameat2(2) does.
    ///
    /// # Errors
    /// As renameat2(2).
    pub fn rename(
        self: &Arc<Self>,
        at: BorrowedFd<'_>,
        from: &Path,
        to_at: BorrowedFd<'_>,
        to: &Path,
        flags: RenameFlags,
    ) -> Result<(), Error> {
        self.rename_and_keep((at, from), (to_at, to), flags, &|| Ok(())).map(drop)
    }

    /// Renames as [`Instance::rename`] does. Returns the file that had the new name if it is
    /// a regular file without another name. `may_act` is asked immediately before the change: finding the files may take long.
    ///
    /// # Errors
    /// As renameat2(2), or that of `may_act`.
    pub fn rename_and_keep(
        self: &Arc<Self>,
        (at, from): Name<'_>,
        (to_at, to): Name<'_>,
        flags: RenameFlags,
        may_act: MayAct<'_>,
    ) -> Result<Option<RemovedFile>, Error> {
        // The replaced file has no name afterwards. This process may be the last to close it, and then drops its pages.
        let failed = |errno| Error::system(errno, "renaming", &from.into());
        let known = |at, path| Ok::<_, Error>(self.regular_file(at, path).map_err(failed)?.and_then(|named| named.known));
        let (moved, named) = (known(at, from)?, self.regular_file(to_at, to).map_err(failed)?);
        let replaced = named.as_ref().and_then(|named| named.known.clone());
        let opens: Vec<&Open> = moved.iter().chain(&replaced).map(|known| &known.open).collect();
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        let directories = [
            if moved.is_none() { directory(at, from).map_err(failed)? } else { None },
            if replaced.is_none() && is_exchange { directory(to_at, to).map_err(failed)? } else { None },
        ];
        let call = || {
            may_act()?;
            rustix::fs::renameat_with(at, from, to_at, to, flags)
        };
        Open::ours_of(&opens, call).map_err(failed)?;
        moved.iter().for_each(|known| known.look_for_name());
        let removed = named.and_then(RemovedFile::of);
        if directories.iter().all(Option::is_none) {
            // Files that another process opened in the cache while they were renamed: it may have recorded the old names.
            let met = [moved.is_none().then_some((to_at, to)), (replaced.is_none() && is_exchange).then_some((at, from))];
            met.into_iter().flatten().filter_map(|(at, path)| known(at, path).ok()?).for_each(|known| known.look_for_name());
        } else if let Ok(part) = self.part() {
            // Where not all members of the group may look, no name is recorded.
            let shared: Vec<_> = directories.into_iter().flatten().filter(|(fd, _)| part.may_share(fd.as_fd())).collect();
            if !shared.is_empty() {
                let present = |(fd, before): (OwnedFd, PathBuf)| Some((before, path_of(fd.as_fd())?));
                part.engine.directories_moved(|| shared.into_iter().filter_map(present).collect());
            }
        }
        Ok(removed)
    }

    /// Opens a regular file by its name, without access, and registers it for one call if the cache has a record of it.
    ///
    /// # Errors
    /// The process has no descriptor left. The leader of the cache makes no progress, and the cache may have newer data of the file.
    fn regular_file(self: &Arc<Self>, at: BorrowedFd<'_>, path: &Path) -> Result<Option<NamedFile>, Errno> {
        match named(at, path, true) {
            Ok(file) if fstat(&file).is_ok_and(|stat| is_regular(&stat)) => {
                let known = self.known_file(file.as_fd())?;
                Ok(Some(NamedFile { file, known }))
            }
            Err(errno) if is_shortage(errno) => Err(errno),
            _ => Ok(None),
        }
    }
}
