//! Files of the machine that get their name when they are whole.
//!
//! The directory may be another user's. So nothing is ever done by a name that this user could exchange: content and attributes are set
//! by descriptor, or in a directory of our own, and the name comes last. What is interrupted leaves nothing under the final name.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result};

/// What is made in a directory of our own is called so there.
const NAME: &str = "made";

/// A regular file without its name.
pub struct NewFile<'d> {
    file: File,
    dir: BorrowedFd<'d>,
    /// Where there are no files without a name.
    staging: Option<Staging<'d>>,
}

impl<'d> NewFile<'d> {
    /// Makes an empty file that only we may open.
    pub fn new(dir: BorrowedFd<'d>) -> Result<NewFile<'d>> {
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::openat(dir, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
            Ok(file) => Ok(NewFile { file: file.into(), dir, staging: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let staging = Staging::new(dir)?;
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&staging.own, NAME, flags, mode)?;
                Ok(NewFile { file: file.into(), dir, staging: Some(staging) })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the file, to write content and attributes.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name; with `replace` in the place of what has the name, which is no directory.
    ///
    /// # Errors
    /// EEXIST: the name is taken.
    pub fn publish(self, name: &[u8], replace: bool) -> Result<()> {
        match &self.staging {
            Some(staging) => staging.publish(name, replace),
            None => link(self.dir, self.file.as_fd(), name, replace),
        }
    }
}

/// Gives an open file another name; with `replace` in the place of what has the name.
///
/// # Errors
/// EEXIST: the name is taken.
pub fn link(dir: BorrowedFd<'_>, file: BorrowedFd<'_>, name: &[u8], replace: bool) -> Result<()> {
    match link_to(dir, file, name) {
        Err(Errno::EXIST) if replace => {
            let staging = Staging::new(dir)?;
            link_to(staging.own.as_fd(), file, NAME.as_bytes())?;
            staging.publish(name, true)
        }
        linked => linked,
    }
}

fn link_to(dir: BorrowedFd<'_>, file: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    rustix::fs::linkat(rustix::fs::CWD, by_number(file), dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// The path of an open file, for calls that take no descriptor.
pub fn by_number(file: BorrowedFd<'_>) -> CString {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero byte")
}

/// A directory of our own in another one: nobody else can change what is in it.
pub struct Staging<'d> {
    dir: BorrowedFd<'d>,
    name: String,
    own: OwnedFd,
}

impl<'d> Staging<'d> {
    /// Creates an empty staging directory beside the target.
    pub fn new(dir: BorrowedFd<'d>) -> Result<Staging<'d>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let name = format!(".hotshelf-export-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            match rustix::fs::mkdirat(dir, &name, Mode::RWXU) {
                Err(Errno::EXIST) => continue,
                made => made?,
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let own = rustix::fs::openat(dir, &name, flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&own)?;
            // Whoever may write into `dir` could have exchanged it.
            if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
                return Err(Errno::PERM);
            }
            return Ok(Staging { dir, name, own });
        }
    }

    /// The directory, to make an object called [`Staging::object`] in it.
    pub fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// The name to make it under.
    pub fn object() -> &'static str {
        NAME
    }

    /// Moves the object out, to its name.
    ///
    /// # Errors
    /// EEXIST: the name is taken.
    pub fn publish(&self, name: &[u8], replace: bool) -> Result<()> {
        if replace {
            return rustix::fs::renameat(&self.own, NAME, self.dir, name);
        }
        match rustix::fs::renameat_with(&self.own, NAME, self.dir, name, RenameFlags::NOREPLACE) {
            // NFS, sshfs and vfat have no such rename.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            renamed => return renamed,
        }
        match rustix::fs::linkat(&self.own, NAME, self.dir, name, AtFlags::empty()) {
            // Nor links: what comes between these two calls is lost.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                match rustix::fs::statat(self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => rustix::fs::renameat(&self.own, NAME, self.dir, name),
                    Err(error) => Err(error),
                    Ok(_) => Err(Errno::EXIST),
                }
            }
            linked => linked,
        }
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.own, NAME, AtFlags::empty());
        // Only an empty directory goes; if it was moved away it stays where it is.
        let _ = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Whether a directory has something of that name that a new file may not replace; the words say what.
pub fn is_in_the_way(dir: BorrowedFd<'_>, name: &[u8], replace: bool) -> Result<Option<&'static str>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
        Ok(_) if !replace => Ok(Some("is there already and is kept (--force replaces it)")),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(Some("a directory is in the way")),
        Ok(_) => Ok(None),
    }
}

#[cfg(test)]
mod test {
    use std::io::Write;

    use super::*;

    fn open(path: &std::path::Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a directory")
    }

    #[test]
    fn a_file_has_no_name_until_it_is_published_and_replaces_only_when_that_is_wanted() {
        let scratch = tempfile::tempdir().expect("a directory");
        let dir = open(scratch.path());
        for staged in [false, true] {
            let make = |text: &str| {
                let mut new = NewFile::new(dir.as_fd()).expect("made");
                if staged {
                    let staging = Staging::new(dir.as_fd()).expect("staged");
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                    new.file = rustix::fs::openat(&staging.own, NAME, flags, Mode::RUSR).expect("made").into();
                    new.staging = Some(staging);
                }
                (&new.file).write_all(text.as_bytes()).expect("written");
                new
            };
            let name = format!("file-{staged}");
            let path = scratch.path().join(&name);
            drop(make("given up"));
            assert!(!path.exists());
            make("first").publish(name.as_bytes(), false).expect("published");
            assert_eq!(make("second").publish(name.as_bytes(), false), Err(Errno::EXIST));
            assert_eq!(std::fs::read_to_string(&path).expect("read"), "first");
            make("third").publish(name.as_bytes(), true).expect("replaced");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), "third");
            let elsewhere = scratch.path().join(format!("link-{staged}"));
            std::os::unix::fs::symlink(&path, &elsewhere).expect("a link");
            make("fourth").publish(elsewhere.file_name().expect("a name").as_encoded_bytes(), true).expect("replaced");
            assert!(!elsewhere.is_symlink() && std::fs::read_to_string(&path).expect("read") == "third", "the link was followed");
        }
        let left: Vec<_> = std::fs::read_dir(scratch.path()).expect("read").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left.len(), 4, "{left:?}");
    }
}
