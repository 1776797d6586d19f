//! Walking over the files of the paths that a command was given.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, bail};
use cachedfs::{Admit, File};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::files::{AttachedCaches, FoundPath};

/// What is done with each file, and its path as the user knows it.
type EachFile<'a> = &'a mut dyn FnMut(&File, &Path) -> anyhow::Result<()>;

/// A directory whose names wait.
struct OpenDirectory {
    found: FoundPath,
    fd: OwnedFd,
}

/// A name that waits. Only its directory is open.
type WaitingName = (Rc<OpenDirectory>, CString);

/// Opens every regular file at or below the paths through its cache, and gives it to `each`. What is mounted below is left out, for it is
/// not cached. An error is printed, and the others follow; returns false then.
pub fn for_each(paths: &[PathBuf], caches: &mut AttachedCaches<'_>, admit: Option<Admit>, each: EachFile<'_>) -> bool {
    let mut is_well = true;
    for path in paths {
        let mut waiting = Vec::new();
        let mut next = Some(caches.find(path));
        while let Some(found) = next {
            let done = found.and_then(|found| match found.kind() {
                FileType::Directory => list(found, &mut waiting),
                _ => caches.open(&found, admit).and_then(|file| each(&file, &found.path)),
            });
            if let Err(error) = done {
                complain!("{error:#}");
                is_well = false;
            }
            next = loop {
                let Some((directory, name)) = waiting.pop() else { break None };
                if let Some(child) = child_of(&directory, &name).transpose() {
                    break Some(child);
                }
            };
        }
    }
    is_well
}

/// Finds a name of a directory. None: it is removed meanwhile, is mounted below, or has no data.
fn child_of(directory: &OpenDirectory, name: &CStr) -> anyhow::Result<Option<FoundPath>> {
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    match directory.found.child(directory.fd.as_fd(), name) {
        Ok(child) if child.stat.st_dev != child.device => Ok(None),
        Ok(child) => Ok(Some(child).filter(|child| matches!(child.kind(), FileType::Directory | FileType::RegularFile))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno).with_context(|| format!("{}", directory.found.path.join(name).display())),
    }
}

/// Adds the names of a directory, the first one last.
fn list(found: FoundPath, waiting: &mut Vec<WaitingName>) -> anyhow::Result<()> {
    let path = found.path.clone();
    let named = || format!("{}", path.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(&found.fd, c".", flags, Mode::empty()).with_context(named)?;
    let mut names = Vec::new();
    let mut failed = None;
    for entry in Dir::read_from(&fd).with_context(named)? {
        match entry {
            Ok(entry) if !matches!(entry.file_name().to_bytes(), b"." | b"..") => names.push(entry.file_name().to_owned()),
            Ok(_) => {}
            Err(errno) => failed = Some(errno),
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    let directory = Rc::new(OpenDirectory { found, fd });
    waiting.extend(names.into_iter().map(|name| (Rc::clone(&directory), name)));
    match failed {
        Some(errno) => bail!("{}: not all of it could be read: {errno}", path.display()),
        None => Ok(()),
    }
}
