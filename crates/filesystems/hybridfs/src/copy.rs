//! Copies a file with everything that belongs to it: holes, owner, mode, ACLs, attributes, times.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::errno::Result;
use crate::number;
use crate::path::proc_path;
use crate::stat::Stat;

/// Bytes copied between two looks at the limits: what another reader of the disk may have to wait for.
pub const CHUNK: usize = 256 << 10;
/// Bytes that may be dirty: nobody else's flush shall wait long for ours.
const DIRTY_BYTES: u64 = 16 << 20;

/// Asked before every chunk: waits to keep the pace, or ends the copy by an error.
pub type Pace<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Why a copy ended early, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// Reading.
    Source(Errno),
    /// Writing.
    Target(Errno),
    /// The pace function ended it.
    Ended(Errno),
}

/// The outcome of a copy.
pub type CopyResult<T> = std::result::Result<T, CopyError>;

/// Copies the data of `source` up to `size` bytes; holes stay holes. Shares blocks where both are on one
/// file system that can (btrfs, XFS).
pub fn data(source: BorrowedFd<'_>, target: BorrowedFd<'_>, size: u64, pace: &mut Pace<'_>) -> CopyResult<()> {
    if rustix::fs::ioctl_ficlone(target, source).is_ok() {
        return rustix::fs::ftruncate(target, size).map_err(CopyError::Target);
    }
    ranges(source, target, size, pace)?;
    // Only now: a file system without holes would write all of it first.
    rustix::fs::ftruncate(target, size).map_err(CopyError::Target)
}

fn ranges(source: BorrowedFd<'_>, target: BorrowedFd<'_>, size: u64, pace: &mut Pace<'_>) -> CopyResult<()> {
    let mut buffer = vec![0u8; CHUNK];
    let mut at = 0;
    let mut unsynced = 0u64;
    while at < size {
        let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(error) => return Err(CopyError::Source(error)),
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        at = start;
        while at < end {
            let want = (end - at).min(CHUNK as u64) as usize;
            pace(want as u64).map_err(CopyError::Ended)?;
            let copied = range(source, target, at, &mut buffer[..want])?;
            if copied == 0 {
                return Ok(());
            }
            at += copied;
            unsynced += copied;
            if unsynced >= DIRTY_BYTES {
                rustix::fs::fdatasync(target).map_err(CopyError::Target)?;
                forget_pages(source);
                forget_pages(target);
                unsynced = 0;
            }
        }
    }
    Ok(())
}

/// Copies one range through `buffer`; answers how much there was.
pub fn range(source: BorrowedFd<'_>, target: BorrowedFd<'_>, at: u64, buffer: &mut [u8]) -> CopyResult<u64> {
    let mut have = 0;
    while have < buffer.len() {
        match rustix::io::pread(source, &mut buffer[have..], at + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(CopyError::Source(error)),
        }
    }
    let mut done = 0;
    while done < have {
        match rustix::io::pwrite(target, &buffer[done..have], at + done as u64) {
            Ok(0) => return Err(CopyError::Target(Errno::IO)),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(CopyError::Target(error)),
        }
    }
    Ok(have as u64)
}

/// Whether two files of `size` bytes have the same content.
pub fn same_content(a: BorrowedFd<'_>, b: BorrowedFd<'_>, size: u64) -> Result<bool> {
    let mut buffers = [vec![0u8; CHUNK], vec![0u8; CHUNK]];
    let mut at = 0;
    while at < size {
        let want = (size - at).min(CHUNK as u64) as usize;
        for (file, buffer) in [a, b].into_iter().zip(&mut buffers) {
            read_exact(file, &mut buffer[..want], at)?;
        }
        if buffers[0][..want] != buffers[1][..want] {
            return Ok(false);
        }
        at += want as u64;
    }
    Ok(true)
}

fn read_exact(file: BorrowedFd<'_>, buffer: &mut [u8], at: u64) -> Result<()> {
    let mut have = 0;
    while have < buffer.len() {
        match rustix::io::pread(file, &mut buffer[have..], at + have as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => have += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A mover must not push what people use out of the page cache.
pub fn forget_pages(file: BorrowedFd<'_>) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Why a file's attributes are not all on its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeLoss {
    /// The copy's file system cannot hold this.
    Cannot(&'static str),
    /// A system call failed.
    Failed(Errno),
}

impl From<Errno> for AttributeLoss {
    fn from(error: Errno) -> AttributeLoss {
        AttributeLoss::Failed(error)
    }
}

impl From<AttributeLoss> for Errno {
    fn from(unkept: AttributeLoss) -> Errno {
        match unkept {
            AttributeLoss::Cannot(_) => Errno::OPNOTSUPP,
            AttributeLoss::Failed(error) => error,
        }
    }
}

const NO_OWNER: &str = "the other side cannot keep its owner";
const NO_MODE: &str = "the other side cannot keep its permissions";
const NO_TIMES: &str = "the other side cannot keep its times";
const NO_ACL: &str = "the other side cannot keep its access control list";
const NO_XATTR: &str = "the other side cannot keep one of its extended attributes";

/// Errors of a file system without the requested feature.
fn refused(error: Errno) -> bool {
    number::unsupported(error) || matches!(error, Errno::PERM | Errno::INVAL | Errno::TOOBIG | Errno::RANGE)
}

/// Gives `target` (open with data access) owner, attributes, ACLs, mode and times of `source` (any handle).
pub fn attributes(source: BorrowedFd<'_>, target: BorrowedFd<'_>, stat: &Stat) -> std::result::Result<(), AttributeLoss> {
    let owner = rustix::fs::Uid::from_raw(stat.uid);
    let group = rustix::fs::Gid::from_raw(stat.gid);
    let root = rustix::process::geteuid().is_root();
    match rustix::fs::fchown(target, Some(owner), Some(group)) {
        // An ordinary user's own files cannot be anybody else's; nor can a file system without owners hold them.
        Err(error) if refused(error) && !root => {}
        Err(error) if refused(error) => return Err(AttributeLoss::Cannot(NO_OWNER)),
        other => other?,
    }
    xattrs(source, &|name, value| rustix::fs::fsetxattr(target, name, value, XattrFlags::empty()))?;
    match rustix::fs::fchmod(target, Mode::from_raw_mode(stat.mode & 0o7777)) {
        Err(error) if refused(error) => return Err(AttributeLoss::Cannot(NO_MODE)),
        other => other?,
    }
    match rustix::fs::futimens(target, &times(stat)) {
        Err(error) if refused(error) => Err(AttributeLoss::Cannot(NO_TIMES)),
        other => Ok(other?),
    }
}

/// Gives whatever a handle names (a directory, a pipe, a symbolic link) owner, attributes, ACLs, mode and times; attributes that
/// `source` does not have are removed. `stat` says the rest.
pub fn attributes_of_named(source: BorrowedFd<'_>, target: BorrowedFd<'_>, stat: &Stat) -> std::result::Result<(), AttributeLoss> {
    let root = rustix::process::geteuid().is_root();
    let (owner, group) = (rustix::fs::Uid::from_raw(stat.uid), rustix::fs::Gid::from_raw(stat.gid));
    match rustix::fs::chownat(target, c"", Some(owner), Some(group), AtFlags::EMPTY_PATH) {
        Err(error) if refused(error) && !root => {}
        Err(error) if refused(error) => return Err(AttributeLoss::Cannot(NO_OWNER)),
        other => other?,
    }
    let path = proc_path(target);
    if !same_attributes(source, target)? {
        let wanted = own_attributes(source)?;
        // Labels of a security module are its business.
        let goes = |name: &[u8]| !name.starts_with(b"security.") || name == b"security.capability";
        for (name, _) in own_attributes(target)?.iter().filter(|(name, _)| goes(name) && wanted.iter().all(|(other, _)| other != name)) {
            match rustix::fs::removexattr(&*path, &**name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(Errno::PERM | Errno::ACCESS) if !root => {}
                Err(error) => return Err(error.into()),
            }
        }
        xattrs(source, &|name, value| rustix::fs::setxattr(&*path, name, value, XattrFlags::empty()))?;
    }
    // The mode of a symbolic link means nothing, and cannot be set.
    if stat.kind() != rustix::fs::FileType::Symlink {
        match rustix::fs::chmod(&*path, Mode::from_raw_mode(stat.mode & 0o7777)) {
            Err(error) if refused(error) => return Err(AttributeLoss::Cannot(NO_MODE)),
            other => other?,
        }
    }
    match set_times(target, &times(stat)) {
        Err(error) if refused(error) => Err(AttributeLoss::Cannot(NO_TIMES)),
        other => Ok(other?),
    }
}

/// Whether two handles name what has the same extended attributes, ours left out.
pub fn same_attributes(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<bool> {
    Ok(own_attributes(a)? == own_attributes(b)?)
}

/// Whether two directories have the same access control lists.
pub fn same_lists(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<bool> {
    let lists =
        |file| -> Result<Vec<_>> { Ok(own_attributes(file)?.into_iter().filter(|(name, _)| name.starts_with(b"system.")).collect()) };
    Ok(lists(a)? == lists(b)?)
}

/// The extended attributes that belong to a file, sorted.
fn own_attributes(file: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = proc_path(file);
    let names = match list(&path) {
        Err(error) if number::unsupported(error) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !number::is_ours(name) && belongs_to_file(name)) {
        match value(&path, name) {
            Ok(value) => all.push((name.to_vec(), value)),
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
    }
    all.sort();
    Ok(all)
}

/// The same on a file system that may say yes and not do it: looks whether it has.
pub fn attributes_checked(source: BorrowedFd<'_>, target: BorrowedFd<'_>, stat: &Stat) -> std::result::Result<(), AttributeLoss> {
    attributes(source, target, stat)?;
    let now = rustix::fs::fstat(target)?;
    if rustix::process::geteuid().is_root() && (now.st_uid, now.st_gid) != (stat.uid, stat.gid) {
        return Err(AttributeLoss::Cannot(NO_OWNER));
    }
    if now.st_mode & 0o7777 != stat.mode & 0o7777 {
        return Err(AttributeLoss::Cannot(NO_MODE));
    }
    // The coarsest file system has steps of two seconds.
    if now.st_mtime.abs_diff(stat.mtime.0) > 2 {
        return Err(AttributeLoss::Cannot(NO_TIMES));
    }
    Ok(())
}

/// The times of `stat`, to be set.
pub fn times(stat: &Stat) -> Timestamps {
    let spec = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: i64::from(nsec) as _ };
    Timestamps { last_access: spec(stat.atime), last_modification: spec(stat.mtime) }
}

/// The moment of the call as the time of the last change.
pub fn modified_now() -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    Timestamps { last_access: omit, last_modification: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW } }
}

/// Sets one attribute, by name and value.
type SetAttribute<'a> = dyn Fn(&[u8], &[u8]) -> Result<()> + 'a;

fn xattrs(source: BorrowedFd<'_>, set: &SetAttribute<'_>) -> std::result::Result<(), AttributeLoss> {
    let path = proc_path(source);
    let names = match list(&path) {
        Ok(names) => names,
        Err(error) if number::unsupported(error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !number::is_ours(name) && belongs_to_file(name)) {
        let value = match value(&path, name) {
            Ok(value) => value,
            // Gone since it was listed, or not ours to read (trusted.* as an ordinary user).
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => continue,
            Err(error) => return Err(error.into()),
        };
        match set(name, &value) {
            Ok(()) => {}
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            // A label of a security module that is not the user's business.
            Err(error) if number::unsupported(error) && name.starts_with(b"security.") && name != b"security.capability" => {}
            Err(error) if refused(error) && name.starts_with(b"system.") => return Err(AttributeLoss::Cannot(NO_ACL)),
            Err(error) if refused(error) => return Err(AttributeLoss::Cannot(NO_XATTR)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether an attribute is the file's. Others describe how its file system keeps it (`system.nfs4_acl`, `btrfs.*`, `ceph.*`), which
/// mode and owner say already.
fn belongs_to_file(name: &[u8]) -> bool {
    let spaces: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];
    spaces.iter().any(|space| name.starts_with(space))
}

/// The names of all extended attributes, each ended by a zero byte.
pub fn list(path: &str) -> Result<Vec<u8>> {
    grown(|buffer| rustix::fs::listxattr(path, buffer))
}

/// The value of one extended attribute.
pub fn value(path: &str, name: &[u8]) -> Result<Vec<u8>> {
    grown(|buffer| rustix::fs::getxattr(path, name, buffer))
}

/// The value of one extended attribute of whatever a path names, a symbolic link included.
pub fn value_at(path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    grown(|buffer| rustix::fs::lgetxattr(path, name, buffer))
}

/// The names of the extended attributes of whatever a path names, each ended by a zero byte.
pub fn list_at(path: &[u8]) -> Result<Vec<u8>> {
    grown(|buffer| rustix::fs::llistxattr(path, buffer))
}

/// Calls with bigger buffers until the answer fits (64 KiB is the kernel's limit).
fn grown(mut call: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    for size in [512, 1 << 16] {
        let mut buffer = vec![0u8; size];
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::RANGE)
}

/// Sets the times of whatever a handle names, a symbolic link included.
pub fn set_times(file: BorrowedFd<'_>, times: &Timestamps) -> Result<()> {
    match rustix::fs::utimensat(file, c"", times, AtFlags::EMPTY_PATH) {
        Err(Errno::INVAL | Errno::NOENT) => rustix::fs::utimensat(rustix::fs::CWD, &*proc_path(file), times, AtFlags::empty()),
        other => other,
    }
}

#[cfg(test)]
mod test {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn holes_times_and_attributes_come_along() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut source = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(dir.path().join("a")).expect("a");
        source.write_all(b"head").expect("written");
        source.write_all_at(b"tail", 3 << 20).expect("written");
        let mode = std::fs::Permissions::from_mode(0o640);
        source.set_permissions(mode).expect("mode");
        let target = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(dir.path().join("b")).expect("b");
        let meta = source.metadata().expect("stat");
        data(source.as_fd(), target.as_fd(), meta.len(), &mut |_| Ok(())).expect("copied");
        let stat =
            Stat { mode: meta.mode(), uid: meta.uid(), gid: meta.gid(), atime: (1_000_000, 5), mtime: (2_000_000, 7), ..Stat::default() };
        attributes(source.as_fd(), target.as_fd(), &stat).expect("dressed");
        let copy = target.metadata().expect("stat");
        assert_eq!((copy.len(), copy.mode()), (meta.len(), meta.mode()));
        assert_eq!((copy.mtime(), copy.mtime_nsec(), copy.atime()), (2_000_000, 7, 1_000_000));
        assert!(copy.blocks() <= meta.blocks() + 16, "{} {}", copy.blocks(), meta.blocks());
        let mut tail = [0u8; 4];
        target.read_exact_at(&mut tail, 3 << 20).expect("read");
        assert_eq!(&tail, b"tail");
    }
}
