//! The files that a group's cache may show.
//!
//! Each member can read and write the segment of a group (`[cache] group`), and the SSD as well. A file is cached only if every member can
//! reach it anyway:
//!
//! - the file grants its group and everybody else read access (for a file that is written: write access, too), or belongs to the cache's
//!   group and grants that;
//! - each directory on its path, as the process that opens it sees it, grants search in the same way;
//! - where there are access control lists, each of their entries grants as much.
//!
//! (Everybody else *and* the file's group: a member may be in the file's group, and then only that group's rights count.) Rights of the
//! owner do not matter, because an owner can change them. Calls on all other files bypass the cache and leave no record there, not even a
//! name.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use crate::descriptor::path_of;

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

/// acl(5), in the kernel's format of extended attributes (linux/posix_acl_xattr.h).
const ACCESS_LIST: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const ENTRIES_MAX: usize = 512;

/// One entry of an access control list.
#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    rights: u32,
    id: u32,
}

/// Returns whether each member of the group can reach the open file at its present path, for reading and for writing.
pub fn can_reach(fd: BorrowedFd<'_>, group: u32, is_written: bool) -> bool {
    let reach = || -> Result<bool, Errno> {
        let stat = fstat(fd)?;
        let wanted = if is_written { READ | WRITE } else { READ };
        let Some(path) = path_of(fd).filter(|_| stat.st_nlink > 0) else { return Ok(false) };
        Ok(grants(fd, &stat, group, wanted)? && can_search(&path, &stat, group)?)
    };
    reach().unwrap_or(false)
}

/// Returns whether the group may write the open file, since the leader writes for all.
pub fn can_write(fd: BorrowedFd<'_>, group: u32) -> bool {
    fstat(fd).and_then(|stat| grants(fd, &stat, group, READ | WRITE)).unwrap_or(false)
}

/// Opens the directories of a path, from the root on.
pub fn directories(path: &Path) -> Result<Vec<OwnedFd>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut all = vec![openat(CWD, "/", flags, Mode::empty())?];
    for part in path.parent().into_iter().flat_map(Path::components) {
        if let (Component::Normal(name), Some(last)) = (part, all.last()) {
            all.push(openat(last, name, flags, Mode::empty())?);
        }
    }
    Ok(all)
}

/// Returns whether the path leads to this file, through directories that every member can search.
fn can_search(path: &Path, file: &Stat, group: u32) -> Result<bool, Errno> {
    let directories = directories(path)?;
    for dir in &directories {
        if !grants(dir.as_fd(), &fstat(dir)?, group, SEARCH)? {
            return Ok(false);
        }
    }
    let (Some(last), Some(name)) = (directories.last(), path.file_name()) else { return Ok(false) };
    let named = statat(last, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((named.st_dev, named.st_ino) == (file.st_dev, file.st_ino))
}

/// Returns whether all members have these rights to an open file.
fn grants(fd: BorrowedFd<'_>, stat: &Stat, group: u32, wanted: u32) -> Result<bool, Errno> {
    let has = |rights: u32| rights & wanted == wanted;
    let (of_group, of_others) = (stat.st_mode >> 3 & 7, stat.st_mode & 7);
    let Some(entries) = access_list(fd)? else {
        return Ok(has(of_group) && (stat.st_gid == group || has(of_others)));
    };
    let mask = entries.iter().find(|entry| entry.tag == MASK).map_or(7, |entry| entry.rights);
    let named = entries.iter().filter(|entry| matches!(entry.tag, USER | GROUP | OWNING_GROUP));
    let is_meant = |entry: &Entry| entry.tag == GROUP && entry.id == group;
    let all = named.clone().all(|entry| has(entry.rights & mask));
    let others = entries.iter().any(|entry| entry.tag == OTHER && has(entry.rights));
    Ok(all && (stat.st_gid == group || named.clone().any(is_meant) || others))
}

/// Returns the access control list, or none if only the mode counts.
fn access_list(fd: BorrowedFd<'_>) -> Result<Option<Vec<Entry>>, Errno> {
    let mut bytes = [0; 4 + 8 * ENTRIES_MAX];
    let got = match rustix::fs::getxattr(format!("/proc/self/fd/{}", fd.as_raw_fd()), OsStr::new(ACCESS_LIST), &mut bytes[..]) {
        Ok(got) => got,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let list = &bytes[..got.min(bytes.len())];
    let (version, entries) = list.split_first_chunk().ok_or(Errno::INVAL)?;
    if u32::from_le_bytes(*version) != VERSION || !entries.len().is_multiple_of(8) {
        return Err(Errno::INVAL);
    }
    let entry = |bytes: &[u8; 8]| Entry {
        tag: u16::from_le_bytes([bytes[0], bytes[1]]),
        rights: u16::from_le_bytes([bytes[2], bytes[3]]).into(),
        id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    Ok(Some(entries.as_chunks().0.iter().map(entry).collect()))
}

#[cfg(test)]
mod test {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
    }

    #[test]
    fn only_what_every_member_can_reach_is_shared() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).expect("made");
        let path = inner.join("file");
        let file = File::create(&path).expect("made");
        let gid = rustix::process::getegid().as_raw();
        let other = gid + 12_345;
        let can = |group: u32, is_written: bool| can_reach(file.as_fd(), group, is_written);
        set(dir.path(), 0o755);
        for (file_mode, dir_mode, group, read, write) in [
            (0o644, 0o755, other, true, false),
            (0o666, 0o755, other, true, true),
            (0o640, 0o755, other, false, false),
            (0o660, 0o750, gid, true, true),
            (0o660, 0o750, other, false, false),
            (0o640, 0o755, gid, true, false),
            (0o604, 0o755, other, false, false),
            (0o644, 0o700, gid, false, false),
            (0o644, 0o711, other, true, false),
            (0o644, 0o744, other, false, false),
            (0o600, 0o755, gid, false, false),
            (0o000, 0o755, gid, false, false),
        ] {
            set(&path, file_mode);
            set(&inner, dir_mode);
            assert_eq!((can(group, false), can(group, true)), (read, write), "{file_mode:o} in {dir_mode:o}");
        }
        set(&path, 0o644);
        set(&inner, 0o755);
        assert!(can(other, false));
        set(dir.path(), 0o700);
        assert!(!can(other, false), "any directory on the way");
        set(dir.path(), 0o755);
        fs::remove_file(&path).expect("removed");
        assert!(!can(other, false), "nobody reaches what has no name");
    }

    /// Where the file system has access control lists.
    #[test]
    fn entries_of_access_control_lists_count() {
        let dir = tempfile::tempdir().expect("a directory");
        set(dir.path(), 0o755);
        let path = dir.path().join("file");
        let file = File::create(&path).expect("made");
        let group = rustix::process::getegid().as_raw() + 12_345;
        let acl = |entries: &[(u16, u16, u32)]| {
            let mut bytes = VERSION.to_le_bytes().to_vec();
            for (tag, rights, id) in entries {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(rights.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            rustix::fs::setxattr(&path, ACCESS_LIST, &bytes, rustix::fs::XattrFlags::empty())
        };
        const NONE: u32 = u32::MAX;
        let of_user = |rights: u16| [(1, 6, NONE), (USER, rights, 4242), (OWNING_GROUP, 4, NONE), (MASK, 6, NONE), (OTHER, 4, NONE)];
        if acl(&of_user(4)) == Err(Errno::OPNOTSUPP) {
            return println!("this file system has no access control lists: nothing is tested");
        }
        assert!(can_reach(file.as_fd(), group, false));
        acl(&of_user(0)).expect("set");
        assert!(!can_reach(file.as_fd(), group, false), "one user is kept out, who may be a member");
        acl(&[(1, 6, NONE), (OWNING_GROUP, 6, NONE), (GROUP, 6, group), (MASK, 6, NONE), (OTHER, 0, NONE)]).expect("set");
        assert!(can_reach(file.as_fd(), group, true), "the group is named");
        acl(&[(1, 6, NONE), (OWNING_GROUP, 6, NONE), (GROUP, 6, group), (MASK, 4, NONE), (OTHER, 0, NONE)]).expect("set");
        assert!(can_reach(file.as_fd(), group, false) && !can_reach(file.as_fd(), group, true), "the mask limits it");
    }
}
