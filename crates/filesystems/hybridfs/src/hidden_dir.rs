//! The hidden directory of a side: opening it, and whether it may be trusted.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::errno::Result;
use crate::number::NumberKey;
use crate::path::HIDDEN;
use crate::persist::{self, PersistError};
use crate::stat::others_may_write;

/// Why a directory cannot be opened as a tier.
#[derive(Debug)]
pub enum OpenError {
    /// A system call failed.
    Os(Errno),
    /// The hidden directory is not trusted: another user owns it or may write to it.
    UntrustedHiddenDirError(UntrustedHiddenDirError),
    /// It has neither our identity nor our key, and something in it.
    NotHidden {
        /// A name in it.
        holds: String,
    },
    /// A file in it cannot be used.
    Persist(PersistError),
}

impl From<Errno> for OpenError {
    fn from(error: Errno) -> OpenError {
        OpenError::Os(error)
    }
}

/// A hidden directory that somebody else made, or may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntrustedHiddenDirError {
    /// User ID of the hidden directory's owner.
    pub owner: u32,
    /// File type and permission bits.
    pub mode: u32,
}

impl std::fmt::Display for UntrustedHiddenDirError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "belongs to user {} and has mode {:04o}", self.owner, self.mode)
    }
}

/// Opens the hidden directory of a side for reading, if there is one and it is ours. All that is ours is reached from here.
pub fn open_hidden(side: &Path) -> std::result::Result<Option<OwnedFd>, OpenError> {
    let root = open_root(side)?;
    match own_directory(root.as_fd(), root.as_fd(), HIDDEN, false) {
        Ok(hidden) => Ok(Some(hidden)),
        Err(OpenError::Os(Errno::NOENT)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens the hidden directory of a side, made if there is none, if it is ours.
pub fn make_hidden(side: &Path) -> std::result::Result<OwnedFd, OpenError> {
    let root = open_root(side)?;
    let hidden = own_directory(root.as_fd(), root.as_fd(), HIDDEN, true)?;
    own_key(hidden.as_fd(), true)?;
    Ok(hidden)
}

pub(crate) fn open_root(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())
}

/// Opens a hidden directory in `at`. The owner of `root` may have prepared one, or may exchange it at any moment: what counts is the
/// directory that is open.
pub(crate) fn own_directory(root: BorrowedFd<'_>, at: BorrowedFd<'_>, child: &str, make: bool) -> std::result::Result<OwnedFd, OpenError> {
    if make {
        match rustix::fs::mkdirat(at, child, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDONLY;
    let dir = rustix::fs::openat(at, child, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&dir)?;
    let foreign_owner = || stat.st_uid != rustix::process::geteuid().as_raw() && Some(stat.st_uid) != owner_given(root);
    if others_may_write(stat.st_mode) || foreign_owner() {
        return Err(OpenError::UntrustedHiddenDirError(UntrustedHiddenDirError { owner: stat.st_uid, mode: stat.st_mode & 0o7777 }));
    }
    // What the root's default ACL grants to others would come upon every file that is made in here.
    for inherited in ["system.posix_acl_default", "system.posix_acl_access"] {
        if make && rustix::fs::fgetxattr_query(&dir, inherited).is_ok() {
            rustix::fs::fremovexattr(&dir, inherited)?;
        }
    }
    Ok(dir)
}

/// Returns the owner that the file system gives to what we make. That is us, unless it knows no owners (sshfs, vfat) or takes us for
/// somebody else (NFS with root_squash).
fn owner_given(root: BorrowedFd<'_>) -> Option<u32> {
    let name = format!("{HIDDEN}.{:016x}", u64::from_le_bytes(NumberKey::random().ok()?.0[..8].try_into().expect("eight bytes")));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, &*name, flags, Mode::RUSR | Mode::WUSR).ok()?;
    // Of the file that is open: the name may lead elsewhere by now.
    let owner = rustix::fs::fstat(&file).map(|stat| stat.st_uid);
    let _ = rustix::fs::unlinkat(root, &*name, AtFlags::empty());
    owner.ok()
}

/// Returns the name of something in a directory without our identity and key that a mount which was cut off has not left there. Such a
/// directory may be anybody's: whoever owns the top can give another one of the same owner our name, and we write and remove in it.
fn stranger_in(hidden: BorrowedFd<'_>) -> Result<Option<Box<[u8]>>> {
    const BEGUN: [&[u8]; 5] = [b"tmp", b"key.new", b"id.new", b"lock", b"log"];
    let mut names: Vec<Box<[u8]>> = Vec::new();
    crate::read_dir::read_names(hidden, &mut |name, _| names.push(name.into()))?;
    for name in names {
        let stat = rustix::fs::statat(hidden, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW)?;
        let ours = match FileType::from_raw_mode(stat.st_mode) {
            // Nothing that was moved is in there before there is an identity.
            FileType::Directory => &*name == b"tmp" && is_empty_but_for_probes(hidden)?,
            FileType::RegularFile => BEGUN.contains(&&*name) && stat.st_size <= 64,
            _ => false,
        };
        if !ours {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn is_empty_but_for_probes(hidden: BorrowedFd<'_>) -> Result<bool> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDONLY;
    let tmp = rustix::fs::openat(hidden, "tmp", flags, Mode::empty())?;
    let mut all = true;
    crate::read_dir::read_names(tmp.as_fd(), &mut |name, _| all &= name.starts_with(b"probe-") || name.starts_with(b"owners."))?;
    Ok(all)
}

/// The key in the hidden directory, made if there is none. Where none can be written, one that nothing was tagged with.
pub(crate) fn own_key(hidden: BorrowedFd<'_>, writable: bool) -> std::result::Result<NumberKey, OpenError> {
    if let Some(key) = persist::read_key(hidden).map_err(OpenError::Persist)? {
        return Ok(key);
    }
    let key = NumberKey::random().map_err(|error| OpenError::Os(crate::errno::errno(error)))?;
    if !writable {
        return Ok(key);
    }
    if let Some(name) = persist::read_identity(hidden).ok().flatten().is_none().then(|| stranger_in(hidden)).transpose()?.flatten() {
        return Err(OpenError::NotHidden { holds: String::from_utf8_lossy(&name).into_owned() });
    }
    match persist::write_key(hidden, &key) {
        Ok(()) | Err(PersistError::Io { source: Errno::ROFS, .. }) => Ok(key),
        // A full disk is no reason to refuse a mount: files that move until there is room get other numbers at the next mount.
        Err(error @ PersistError::Io { source: Errno::NOSPC | Errno::DQUOT, .. }) => {
            tracing::warn!(%error, "the key of marks cannot be kept");
            Ok(key)
        }
        Err(error) => Err(OpenError::Persist(error)),
    }
}
