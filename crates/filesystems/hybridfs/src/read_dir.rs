//! Reading the names in a directory.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::errno::Result;

/// Calls `each` with every name but `.` and `..`. Nobody asked for it: where that is allowed, it does not count as reading the directory.
pub(crate) fn read_names(dir: BorrowedFd<'_>, each: &mut dyn FnMut(&[u8], FileType)) -> Result<()> {
    match open_to_read(dir, OFlags::NOATIME) {
        // Somebody else's directory.
        Err(Errno::PERM) => list_names(dir, each),
        opened => names_of(&opened?, each),
    }
}

/// The same for somebody who asked.
pub(crate) fn list_names(dir: BorrowedFd<'_>, each: &mut dyn FnMut(&[u8], FileType)) -> Result<()> {
    names_of(&open_to_read(dir, OFlags::empty())?, each)
}

fn open_to_read(dir: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::openat(dir, c".", flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn names_of(readable: &OwnedFd, each: &mut dyn FnMut(&[u8], FileType)) -> Result<()> {
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); 64 << 10];
    let mut entries = RawDir::new(readable.as_fd(), &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            each(name, entry.file_type());
        }
    }
    Ok(())
}

/// The names whose backing inode looks like this one, or all.
pub(crate) fn names_like(dir: BorrowedFd<'_>, like: impl Fn(u64) -> bool) -> Result<Vec<Box<[u8]>>> {
    let readable = match open_to_read(dir, OFlags::NOATIME) {
        Err(Errno::PERM) => open_to_read(dir, OFlags::empty())?,
        opened => opened?,
    };
    let mut names = Vec::new();
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); 64 << 10];
    let mut entries = RawDir::new(readable.as_fd(), &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && like(entry.ino()) {
            names.push(name.into());
        }
    }
    Ok(names)
}

/// Whether a directory has no names.
pub(crate) fn is_empty(dir: BorrowedFd<'_>) -> Result<bool> {
    let mut any = false;
    read_names(dir, &mut |_, _| any = true)?;
    Ok(!any)
}
