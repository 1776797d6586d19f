//! What the status reports: failures, warnings and conflicts.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{CONFLICTS_MAX, TieredFs};
use crate::errno::Result;
use crate::report::TierName;

impl TieredFs {
    /// Records what a failed call says about a side.
    pub(crate) fn note_failure(&self, tier: TierName, error: Errno) {
        let what = match error {
            // A file system that is mounted below the side may be read-only, and users can make names that lead to no device.
            Errno::ROFS | Errno::NODEV | Errno::NXIO if self.tier(tier).takes_files(!self.config.read_only) => return,
            // A remount may end it; the file system's own emergency stop does not show as read-only and is permanent.
            Errno::ROFS if self.tier(tier).is_read_only() => return,
            Errno::ROFS => "is read-only",
            Errno::IO => "reports I/O errors",
            Errno::UCLEAN | Errno::BADMSG => "has a damaged file system",
            Errno::NODEV | Errno::NXIO => "is gone",
            _ => return,
        };
        let path = self.tier(tier).path.display().to_string();
        self.tier(tier).degrade(format!("{path} {what} ({error}); files there cannot be changed or may not be read"));
    }

    /// As [`TieredFs::note_failure`], of a call on an open file or directory: what happens on a file system that is mounted below a side
    /// says nothing of the side.
    pub(crate) fn note_failure_at(&self, tier: TierName, file: BorrowedFd<'_>, error: Errno) {
        if !self.tier(tier).stat_fd(file).is_ok_and(|stat| stat.foreign) {
            self.note_failure(tier, error);
        }
    }

    /// The outcome of a call on an open file or directory, after [`TieredFs::note_failure_at`].
    pub(crate) fn noted_at<T>(&self, tier: TierName, file: BorrowedFd<'_>, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.note_failure_at(tier, file, *error))
    }

    /// The outcome of a look at a name, after [`TieredFs::note_failure_at`]; the name may be where another file system is mounted.
    pub(crate) fn noted_by_name<T>(&self, tier: TierName, dir: BorrowedFd<'_>, name: &OsStr, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| {
            if *error == Errno::IO && self.tier(tier).is_mounted_on(dir, name) {
                return;
            }
            self.note_failure_at(tier, dir, *error);
        })
    }

    /// The outcome of a call on a side, after [`TieredFs::note_failure`].
    pub(crate) fn noted<T>(&self, tier: TierName, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.note_failure(tier, *error))
    }

    /// A sentence for `status`.
    pub(crate) fn warn(&self, sentence: String) {
        let mut notes = self.notes.lock();
        if notes.warnings.contains(&sentence) {
            return;
        }
        tracing::warn!("{sentence}");
        if notes.warnings.len() < 100 {
            notes.warnings.push(sentence);
        }
    }

    /// A path that both sides hold though we did not put it there.
    pub(crate) fn note_conflict(&self, path: &[u8]) {
        let path = String::from_utf8_lossy(path).into_owned();
        let mut notes = self.notes.lock();
        if notes.conflicts.contains(&path) {
            return;
        }
        if notes.conflicts.len() >= CONFLICTS_MAX {
            // Users can make as many as they like, and each look at one comes here: the log would grow without end.
            if notes.conflicts_more == 0 {
                tracing::warn!("both sides hold more than {CONFLICTS_MAX} paths: the others are not logged");
            }
            notes.conflicts_more += 1;
            return;
        }
        tracing::warn!(path, "both sides hold this path: the SSD's is shown, the HDD's is kept");
        notes.conflicts.push(path);
    }

    /// Remembers, durably, that files with marks may be on a side; before the first.
    pub(crate) fn note_marks(&self, tier: TierName) -> Result<()> {
        if self.tier(tier).marks.load(Ordering::Acquire) {
            return Ok(());
        }
        self.tier(tier).persist_marks()
    }

    /// Marks a file; a file system without extended attributes is no reason to fail.
    pub(crate) fn mark_or_warn(&self, tier: TierName, file: std::os::fd::BorrowedFd<'_>, ino: u64) -> Result<()> {
        match self.tier(tier).set_mark(file, ino) {
            Err(error) if crate::number::unsupported(error) => {
                let path = self.tier(tier).path.display().to_string();
                self.warn(format!("{path} has no extended attributes for us: inode numbers change when files move there"));
                Ok(())
            }
            other => other,
        }
    }
}
