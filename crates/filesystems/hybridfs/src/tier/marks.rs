//! Marks: extended attributes that keep the inode number of a file that has moved.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::Tier;
use crate::errno::Result;
use crate::number;
use crate::path::{child_path, proc_path};
use crate::persist::{self, Identity, PersistError};
use crate::stat::Stat;

impl Tier {
    /// The number a mark on `name` in `dir` gives, if there is a good one.
    pub fn mark_of(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Option<u64> {
        self.ask_mark(dir, name, stat).ok().flatten()
    }

    fn ask_mark(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Result<Option<u64>> {
        // We mark nothing on a nested mount: what is there came with a copy of our file system, say a snapshot.
        if !self.marks.load(Ordering::Relaxed) || !(stat.is_file() || stat.is_dir()) || stat.foreign {
            return Ok(None);
        }
        let path = child_path(dir, name);
        self.read_mark(stat, |value| rustix::fs::lgetxattr(&path, self.mark_name, value))
    }

    fn read_mark(&self, stat: &Stat, get: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Option<u64>> {
        let mut value = [0u8; 64];
        match get(&mut value) {
            Ok(len) => {
                let mark = number::read_mark(&self.key, &value[..len], stat);
                self.seen_marks.note(stat, mark);
                Ok(mark)
            }
            // A user may own a file without being allowed to read it; its number must not change by that.
            Err(Errno::ACCESS) => Ok(self.seen_marks.of(stat)),
            Err(error) => Err(error),
        }
    }

    /// Returns the number that a file on this tier should get, and whether a mark says so; `None`: the name is gone since it was
    /// looked at.
    pub fn number_of(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Option<(u64, bool)> {
        match self.ask_mark(dir, name, stat) {
            Ok(Some(number)) => Some((number, true)),
            // Moved away meanwhile: what it was called may have been in a mark.
            Err(Errno::NOENT) => None,
            Ok(None) | Err(_) => Some((number::natural(self.name, stat), false)),
        }
    }

    /// Returns a number for a backing inode whose own number another file has.
    pub fn substitute_number(&self, backing_ino: u64, attempt: u64) -> u64 {
        number::substitute(&self.key, self.name, backing_ino, attempt)
    }

    /// Whether an open file may have this number: it is its own, or a mark says so, or nothing can be known because there are no marks.
    ///
    /// The file system gives the inode number of a removed file to a new one. Its birth, which both are made of, is another.
    pub fn may_be_numbered(&self, file: BorrowedFd<'_>, stat: &Stat, number: u64) -> bool {
        if !stat.is_file() || number::natural(self.name, stat) == number {
            return true;
        }
        let path = proc_path(file);
        match self.read_mark(stat, |value| rustix::fs::getxattr(&*path, self.mark_name, value)) {
            Ok(mark) => mark == Some(number),
            Err(error) => number::unsupported(error),
        }
    }

    /// Marks an open file with the number it keeps.
    pub fn set_mark(&self, file: BorrowedFd<'_>, presented: u64) -> Result<()> {
        let stat = self.stat_fd(file)?;
        let value = number::mark(&self.key, &stat, presented);
        rustix::fs::fsetxattr(file, self.mark_name, &value, rustix::fs::XattrFlags::empty())?;
        self.seen_marks.note(&stat, Some(presented));
        Ok(())
    }

    /// Records in a side's identity that files with marks may be there.
    pub(crate) fn persist_marks(&self) -> Result<()> {
        let hidden: BorrowedFd<'_> = self.hidden.as_fd();
        // One that cannot be read is left alone: a made-up one would part the pair.
        let write = || match persist::read_identity(hidden)? {
            Some(identity) => persist::write_identity(hidden, &Identity { marks: true, ..identity }),
            None => Err(PersistError::Io { file: "id", source: Errno::NOENT }),
        };
        write().map_err(|error| match error {
            PersistError::Io { source, .. } if source != Errno::NOENT => source,
            other => {
                tracing::error!(error = %other, "the identity file cannot be changed");
                Errno::IO
            }
        })?;
        self.marks.store(true, Ordering::Release);
        Ok(())
    }
}

/// Where marks are kept: beyond the reach of users, if we and the file system can do that.
pub(super) fn mark_name(tmp: BorrowedFd<'_>, writable: bool) -> &'static str {
    const PROBE: &str = "trusted.hotshelf.probe";
    let root = rustix::process::geteuid().is_root();
    if !writable {
        let supported = rustix::fs::fgetxattr_query(tmp, PROBE) == Err(Errno::NODATA);
        return if root && supported { number::TRUSTED_MARK } else { number::USER_MARK };
    }
    match rustix::fs::fsetxattr(tmp, PROBE, b"", rustix::fs::XattrFlags::empty()) {
        Ok(()) => {
            let _ = rustix::fs::fremovexattr(tmp, PROBE);
            number::TRUSTED_MARK
        }
        // No file here gets a mark now; those that have one have got it where we can.
        Err(Errno::ROFS | Errno::NOSPC | Errno::DQUOT) if root => number::TRUSTED_MARK,
        Err(_) => number::USER_MARK,
    }
}

/// The marks that an ordinary user has read, for when reading is no longer allowed.
#[derive(Debug)]
pub(super) struct SeenMarks {
    /// `None` for root, who may read all. By backing inode, with its birth.
    marks: Option<Mutex<SeenMap>>,
}

type SeenMap = hashbrown::HashMap<u64, ((i64, u32), u64)>;

impl SeenMarks {
    pub(super) fn new() -> SeenMarks {
        SeenMarks { marks: (!rustix::process::geteuid().is_root()).then(Mutex::default) }
    }

    fn note(&self, stat: &Stat, mark: Option<u64>) {
        const MOST: usize = 1 << 16;
        if let (Some(marks), Some(mark)) = (&self.marks, mark) {
            let mut marks = marks.lock();
            if marks.len() >= MOST {
                marks.clear();
            }
            marks.insert(stat.ino, (stat.birth, mark));
        }
    }

    fn of(&self, stat: &Stat) -> Option<u64> {
        let marks = self.marks.as_ref()?.lock();
        marks.get(&stat.ino).filter(|(birth, _)| *birth == stat.birth).map(|(_, mark)| *mark)
    }
}
