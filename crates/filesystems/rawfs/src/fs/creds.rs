//! Credentials of callers, and what they permit.

use rustix::io::Errno;

use super::error::Result;
use super::record::{FileKind, Record};

/// The identity with which a call is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Creds {
    /// The user number of the caller.
    pub uid: u32,
    /// The group number of the caller.
    pub gid: u32,
    /// The supplementary groups of the caller.
    pub groups: Vec<u32>,
    /// Permissions that new files do not get.
    pub umask: u16,
    /// Whether permissions are checked here, and set-id bits taken from files that are written. Not if somebody above does, as the
    /// kernel for a mount with `default_permissions`.
    pub check: bool,
}

/// The permission bit for reading.
pub const READ: u16 = 4;
/// The permission bit for writing.
pub const WRITE: u16 = 2;
/// To execute, or to search.
pub const EXEC: u16 = 1;

const SET_GROUP: u16 = 0o2000;
const STICKY: u16 = 0o1000;

impl Creds {
    /// Returns the credentials of the superuser.
    pub fn root() -> Creds {
        Creds { uid: 0, gid: 0, groups: Vec::new(), umask: 0, check: true }
    }

    /// Whether a walk has to look at every directory.
    pub(super) fn checks_access(&self) -> bool {
        self.check && self.uid != 0
    }

    /// May do what the superuser may.
    pub(super) fn is_capable(&self) -> bool {
        self.uid == 0 || !self.check
    }

    pub(super) fn is_owner(&self, record: &Record) -> bool {
        self.is_capable() || self.uid == record.uid
    }

    pub(super) fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// EACCES unless all of `wanted` is granted by the mode; see [`super::acl`] for lists.
    pub(super) fn may(&self, record: &Record, wanted: u16) -> Result<()> {
        if !self.check {
            return Ok(());
        }
        let granted = if self.uid == 0 {
            let executable = record.kind == FileKind::Dir || record.mode & 0o111 != 0;
            READ | WRITE | if executable { EXEC } else { 0 }
        } else if self.uid == record.uid {
            record.mode >> 6
        } else if self.in_group(record.gid) {
            record.mode >> 3
        } else {
            record.mode
        };
        if wanted & !granted == 0 { Ok(()) } else { Err(Errno::ACCESS.into()) }
    }

    /// Whether an entry may be taken away out of a directory that may be changed.
    pub(super) fn may_remove_by_sticky(&self, dir: &Record, entry: &Record) -> Result<()> {
        let sticky = dir.mode & STICKY != 0;
        if sticky && !self.is_capable() && self.uid != entry.uid && self.uid != dir.uid {
            return Err(Errno::PERM.into());
        }
        Ok(())
    }

    /// Mode and owner of what is made in a directory: it passes its group on if its mode says so. `masked`:
    /// the umask counts, as nothing is inherited.
    pub(super) fn of_new(&self, dir: &Record, kind: FileKind, mode: u16, masked: bool) -> (u16, (u32, u32)) {
        let (asked, umask) = (mode, if masked { self.umask & 0o777 } else { 0 });
        let mut mode = if kind == FileKind::Symlink { 0o777 } else { mode & 0o7777 & !umask };
        if dir.mode & SET_GROUP == 0 {
            return (mode, (self.uid, self.gid));
        }
        if kind == FileKind::Dir {
            mode |= SET_GROUP;
        } else if asked & 0o2010 == 0o2010 && !self.in_group(dir.gid) && !self.is_capable() {
            mode &= !SET_GROUP;
        }
        (mode, (self.uid, dir.gid))
    }
}

/// The mode after a write by another user than the superuser; a front end that checks permissions does this, too.
pub fn mode_written(record: &Record, creds: &Creds) -> u16 {
    if creds.is_capable() { record.mode } else { mode_given(record, creds) }
}

/// The mode after the owner changed.
pub fn mode_given(record: &Record, creds: &Creds) -> u16 {
    let drops_group = record.mode & 0o010 != 0 || !(creds.in_group(record.gid) || creds.is_capable());
    record.mode & !(0o4000 | if drops_group { SET_GROUP } else { 0 })
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::fs::Timestamp;

    /// The group's execute bit counts as requested, before the umask (`vfs_prepare_mode` in Linux).
    #[test]
    fn a_strange_group_s_set_group_bit_is_not_given() {
        let dir = Record::new(FileKind::Dir, 2, 0o2777, (0, 7), Timestamp::default());
        let of = |gid, umask, mode| Creds { uid: 5, gid, groups: vec![], umask, check: true }.of_new(&dir, FileKind::File, mode, true);
        assert_eq!(of(6, 0o077, 0o2755), (0o700, (5, 7)));
        assert_eq!(of(6, 0o077, 0o2745), (0o2700, (5, 7)));
        assert_eq!(of(7, 0o077, 0o2755), (0o2700, (5, 7)));
    }
}
