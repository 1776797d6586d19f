//! The files in `.hotshelf`: identity, journal, history, pins. Drawn in docs/formats.md.
//!
//! Each has a magic with its version, little-endian fields of fixed width and CRC-32C; each is taken for
//! hostile when it is read. Everything is reached by a handle on the hidden directory, never by path.

#[cfg(test)]
pub(crate) mod file_damage;
mod history;
mod identity;
mod journal;
mod key;
mod pins;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

pub use history::{HistoryRecord, LoadedHistory, load_history, probe_history, save_history};
pub use identity::{Identity, PairId, read_identity, write_identity};
pub use journal::{Journal, MoveRecord, OpenMove, OpenedJournal, probe_journal};
pub use key::{read_key, write_key};
pub use pins::{load_pins, probe_pins, save_pins};

/// Why one of our files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// A system call failed.
    #[error(".hotshelf/{file}: {source}")]
    Io {
        /// Which file.
        file: &'static str,
        /// What the kernel said.
        source: Errno,
    },
    /// Written by a later hotshelf.
    #[error(".hotshelf/{file} has version {found}, this hotshelf knows up to {ours}: use the newer hotshelf that wrote it")]
    FutureVersion {
        /// Which file.
        file: &'static str,
        /// Its version.
        found: u32,
        /// Ours.
        ours: u32,
    },
    /// Somebody else may have written it.
    #[error(".hotshelf/{file} is not a regular file of the owner of .hotshelf that nobody else may write: see what it is, and remove it")]
    UntrustedHiddenDirError {
        /// Which file.
        file: &'static str,
    },
    /// Not what it should be, and nothing can stand in for it.
    #[error(".hotshelf/{file} is damaged ({detail}): mount with --adopt to make a new one")]
    Damaged {
        /// Which file.
        file: &'static str,
        /// What is wrong.
        detail: &'static str,
    },
}

/// A damaged file that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAsideFile {
    /// Its name now, in `.hotshelf`.
    pub kept_as: String,
    /// What is wrong with it.
    pub detail: String,
}

pub(crate) const VERSION: u32 = 1;

fn io_error(file: &'static str) -> impl Fn(Errno) -> PersistError {
    move |source| PersistError::Io { file, source }
}

/// Reads a whole file of at most `max` bytes; `None`: there is none.
pub(crate) fn read_all(dir: BorrowedFd<'_>, file: &'static str, max: usize) -> Result<Option<Vec<u8>>, PersistError> {
    // A named pipe in its place must not make us wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(dir, file, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(source) => return Err(PersistError::Io { file, source }),
    };
    let stat = must_be_ours(dir, &fd, file)?;
    let mut bytes = vec![0u8; usize::try_from(stat.st_size).unwrap_or(0).min(max)];
    let mut have = 0;
    while have < bytes.len() {
        match rustix::io::pread(&fd, &mut bytes[have..], have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(Errno::INTR) => {}
            Err(source) => return Err(PersistError::Io { file, source }),
        }
    }
    bytes.truncate(have);
    Ok(Some(bytes))
}

/// Refuses an open file of the hidden directory that others may have put or written there.
pub fn must_be_ours(dir: BorrowedFd<'_>, file: &OwnedFd, name: &'static str) -> Result<rustix::fs::Stat, PersistError> {
    let stat = rustix::fs::fstat(file).map_err(io_error(name))?;
    let owner = rustix::fs::fstat(dir).map_err(io_error(name))?.st_uid;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || stat.st_uid != owner || crate::stat::others_may_write(stat.st_mode) {
        return Err(PersistError::UntrustedHiddenDirError { file: name });
    }
    Ok(stat)
}

/// Opens a file of the hidden directory for writing in place, makes it if there is none, and refuses one that is not ours.
pub(crate) fn open_in_place(dir: BorrowedFd<'_>, file: &'static str) -> Result<OwnedFd, PersistError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, file, flags, Mode::RUSR | Mode::WUSR).map_err(io_error(file))?;
    must_be_ours(dir, &fd, file)?;
    Ok(fd)
}

/// Writes a whole file so that after a crash there is the old one or the new one.
fn replace(dir: BorrowedFd<'_>, file: &'static str, bytes: &[u8]) -> Result<(), PersistError> {
    /// Two writers of one file would write into each other's new file.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let tmp = format!("{file}.new");
    let write = || -> Result<(), Errno> {
        match rustix::fs::unlinkat(dir, &*tmp, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, &*tmp, flags, Mode::RUSR | Mode::WUSR)?;
        fd.write_at(bytes, 0)?;
        rustix::fs::fsync(&fd)?;
        rustix::fs::renameat(dir, &*tmp, dir, file)?;
        let readable = rustix::fs::openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fsync(readable)
    };
    write().map_err(|source| {
        let _ = rustix::fs::unlinkat(dir, &*tmp, AtFlags::empty());
        PersistError::Io { file, source }
    })
}

/// What is written in place: a file, and in tests one that fails.
pub(crate) trait InPlaceFile {
    /// Writes all bytes; on failure some of them may be there.
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), Errno>;
    /// Cuts or grows.
    fn set_len(&self, len: u64) -> Result<(), Errno>;
    /// Makes data and length durable.
    fn sync(&self) -> Result<(), Errno>;
}

impl InPlaceFile for OwnedFd {
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(self, &bytes[done..], at + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(self, len)
    }

    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fdatasync(self)
    }
}

/// Puts a damaged file aside under a free name.
pub(crate) fn put_aside(dir: BorrowedFd<'_>, file: &'static str, detail: &str) -> Result<SetAsideFile, PersistError> {
    for n in 1..10_000 {
        let kept_as = format!("{file}.damaged-{n}");
        match rustix::fs::renameat_with(dir, file, dir, &*kept_as, rustix::fs::RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(SetAsideFile { kept_as, detail: detail.to_owned() }),
            Err(Errno::EXIST) => {}
            // It cannot be written over either.
            Err(Errno::ROFS) => return Ok(SetAsideFile { kept_as: file.to_owned(), detail: detail.to_owned() }),
            Err(source) => return Err(PersistError::Io { file, source }),
        }
    }
    Err(PersistError::Io { file, source: Errno::EXIST })
}

/// Little-endian fields, taken one after the other from hostile bytes.
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl<'a> FieldReader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

fn again(dir: &OwnedFd) -> io::Result<OwnedFd> {
    dir.try_clone()
}

#[cfg(test)]
mod test {
    use super::file_damage::HiddenTestDir;
    use super::*;

    #[test]
    fn a_file_that_cannot_be_replaced_stays_and_leftovers_are_no_hindrance() {
        let dir = HiddenTestDir::new();
        replace(dir.fd(), "pins", b"one").expect("written");
        std::fs::write(dir.path("pins.new"), b"left by a crash").expect("written");
        replace(dir.fd(), "pins", b"two").expect("written");
        assert_eq!(dir.get("pins"), b"two");
        std::fs::create_dir(dir.path("pins.new")).expect("in the way");
        replace(dir.fd(), "pins", b"three").expect_err("refused");
        assert_eq!(dir.get("pins"), b"two");
    }

    #[test]
    fn writers_of_one_file_do_not_mix() {
        let dir = HiddenTestDir::new();
        std::thread::scope(|scope| {
            for byte in 0..4u8 {
                let dir = &dir;
                scope.spawn(move || (0..20).for_each(|_| replace(dir.fd(), "id", &[byte; 5000]).expect("written")));
            }
        });
        let bytes = dir.get("id");
        assert_eq!(bytes, [bytes[0]; 5000]);
        assert!(!dir.path("id.new").exists());
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = HiddenTestDir::new();
        rustix::fs::mknodat(dir.fd(), "id", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        assert!(matches!(read_all(dir.fd(), "id", 10), Err(PersistError::UntrustedHiddenDirError { file: "id" })));
        std::os::unix::fs::symlink("/etc/passwd", dir.path("pins")).expect("a link");
        assert!(matches!(read_all(dir.fd(), "pins", 10), Err(PersistError::Io { source: Errno::LOOP, .. })));
    }

    #[test]
    fn what_others_could_have_written_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = HiddenTestDir::new();
        dir.put("id", b"bytes");
        for mode in [0o660, 0o602] {
            std::fs::set_permissions(dir.path("id"), std::fs::Permissions::from_mode(mode)).expect("set");
            assert!(matches!(read_all(dir.fd(), "id", 10), Err(PersistError::UntrustedHiddenDirError { .. })), "{mode:o}");
            assert!(matches!(open_in_place(dir.fd(), "id"), Err(PersistError::UntrustedHiddenDirError { .. })), "{mode:o}");
        }
        std::fs::set_permissions(dir.path("id"), std::fs::Permissions::from_mode(0o644)).expect("set");
        assert!(read_all(dir.fd(), "id", 10).expect("read").is_some());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path("id"), Some(65534), None).expect("given away");
            assert!(matches!(read_all(dir.fd(), "id", 10), Err(PersistError::UntrustedHiddenDirError { .. })));
        }
        std::fs::create_dir(dir.path("journal")).expect("made");
        open_in_place(dir.fd(), "journal").expect_err("a directory");
        std::os::unix::fs::symlink("/etc/passwd", dir.path("intent")).expect("a link");
        assert!(matches!(open_in_place(dir.fd(), "intent"), Err(PersistError::Io { source: Errno::LOOP, .. })));
    }

    #[test]
    fn a_huge_file_is_read_up_to_its_limit() {
        let dir = HiddenTestDir::new();
        std::fs::File::create(dir.path("history")).expect("made").set_len(1 << 40).expect("sparse");
        assert_eq!(read_all(dir.fd(), "history", 1000).expect("read").map(|bytes| bytes.len()), Some(1000));
    }
}
