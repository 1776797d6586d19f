//! Files with dirty pages that cannot be written until somebody decides: another program changed the file meanwhile (a conflict), or
//! moved or removed it while nobody had it open. docs/cache-states.md has the states.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapath::engine::{BackingFile, FileStatus, Open};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use ssdcache::PAGE_BYTES;

use crate::below::Local;
use crate::descriptor::reopen;
use crate::error::{Error, Kind};
use crate::instance::Instance;
use crate::key::key_of;

/// Names that are tried for a copy that is not whole yet.
const ASIDES: u32 = 100;

/// The result of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exported {
    /// The length of the copy in bytes.
    pub bytes: u64,
    /// Of these, bytes that neither the cache nor a file has: they are a hole in the copy.
    pub missing_bytes: u64,
}

/// A file, as the cache has it.
struct Found {
    open: Open,
    is_missing: bool,
}

impl Instance {
    /// Copies a file as the cache has it, dirty pages included, to a new file, which is durable when this returns. Of a file that
    /// nobody can find only what is cached is there to be copied. The file and what is cached of it stay as they are.
    ///
    /// # Errors
    /// ENOENT: the cache has nothing of such a file. EEXIST: `to` is there. The kernel's.
    pub fn export(&self, path: &Path, to: &Path) -> Result<Exported, Error> {
        let found = self.stranded(path)?;
        let failed = |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::system(errno, "exporting", &to.into())
        };
        if to.symlink_metadata().is_ok() {
            return Err(failed(Errno::EXIST.into()));
        }
        let name = to.file_name().ok_or_else(|| failed(Errno::INVAL.into()))?;
        let (file, aside) = make_aside(to, name).map_err(failed)?;
        let copied = copy(&found, &file).and_then(|exported| {
            if !found.open.is_stranded() {
                // Part of the copy may be from after somebody's decision.
                return Err(Errno::NOENT.into());
            }
            renameat_with(CWD, &aside, CWD, to, RenameFlags::NOREPLACE).or_else(|errno| match errno {
                // Where the file system knows no such flag, a link does not replace anything either.
                Errno::INVAL => rustix::fs::link(&aside, to).and_then(|()| rustix::fs::unlink(&aside)),
                errno => Err(errno),
            })?;
            if let Some(dir) = to.parent() {
                let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
                fs::File::open(dir)?.sync_all()?;
            }
            Ok(exported)
        });
        copied.map_err(|error| {
            let _ = fs::remove_file(&aside);
            failed(error)
        })
    }

    /// Discards the dirty pages of a stranded file and keeps the backing file.
    ///
    /// # Errors
    /// ENOENT: there is no such file among those that [`crate::Status`] lists as stranded.
    pub fn discard(&self, path: &Path) -> Result<(), Error> {
        let found = self.stranded(path)?;
        let done = if found.is_missing { found.open.discard_missing() } else { found.open.discard_conflict() };
        done.map_err(|errno| Error::system(errno, "discarding", &path.into()))
    }

    /// Resolves a conflict in favor of the cache: writes the dirty pages over the changed file, and sets its length to that in the cache.
    /// The file is durable when this returns.
    ///
    /// # Errors
    /// As `discard`; ENOENT also for a file that cannot be found; the error of a write.
    pub fn force(&self, path: &Path) -> Result<(), Error> {
        let found = self.stranded(path)?;
        let done = if found.is_missing { Err(Errno::NOENT) } else { found.open.force() };
        done.map_err(|errno| Error::system(errno, "writing over it", &path.into()))
    }

    /// A stranded file: by what its path names now, or by where it was when it was last open.
    fn stranded(&self, path: &Path) -> Result<Found, Error> {
        let failed = |errno| Error::system(errno, "looking for it in the cache", &path.into());
        let engine = &self.part()?.engine;
        let files = || engine.status().map(|status| status.files()).map_err(|_| failed(Errno::PROTO));
        let opened = |seen: &FileStatus, below: Option<Arc<dyn BackingFile>>| engine.open_stranded(seen, below);
        let named = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty());
        if let Ok(named) = named {
            let key = key_of(named.as_fd()).map_err(failed)?;
            // It may have been closed since before a restart: opening it finds out.
            if !files()?.iter().any(|seen| seen.key == key) {
                self.learn_of(path);
            }
            if let Some(seen) = files()?.iter().find(|seen| seen.key == key && seen.is_conflict) {
                let below = reopen(named.as_fd(), OFlags::RDWR).or_else(|_| reopen(named.as_fd(), OFlags::RDONLY)).map_err(failed)?;
                let open = opened(seen, Some(Arc::new(Local::new(below, false)))).ok_or_else(|| failed(Errno::NOENT))?;
                return Ok(Found { open, is_missing: false });
            }
        }
        let whole = std::path::absolute(path).map_err(|_| failed(Errno::NOENT))?;
        let real = whole.parent().and_then(|dir| dir.canonicalize().ok()).zip(whole.file_name()).map(|(dir, name)| dir.join(name));
        let is_it = |seen: &&FileStatus| seen.is_missing && (seen.path == whole || real.as_ref() == Some(&seen.path));
        if let Some(open) = files()?.iter().find(is_it).and_then(|seen| opened(seen, None)) {
            return Ok(Found { open, is_missing: true });
        }
        let known: Vec<PathBuf> = files()?.into_iter().filter(|seen| seen.is_conflict || seen.is_missing).map(|seen| seen.path).collect();
        let sentence = match &known[..] {
            [] => "no file is in conflict with the cache, or missing: there is nothing to decide".to_owned(),
            known => {
                let shown: Vec<String> = known.iter().take(8).map(|path| path.display().to_string()).collect();
                format!("it is not in conflict with the cache, nor missing; these are: {}", shown.join(", "))
            }
        };
        Err(failed(Errno::NOENT).because(Kind::Invalid, &sentence))
    }
}

/// A new file beside `to`, under a name that no export before left there.
fn make_aside(to: &Path, name: &OsStr) -> std::io::Result<(fs::File, PathBuf)> {
    for number in 0..ASIDES {
        let mut aside = name.to_owned();
        aside.push(format!(".hotshelf-{}-{number}", std::process::id()));
        let aside = to.with_file_name(aside);
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (file, aside)),
        }
    }
    Err(Errno::EXIST.into())
}

/// Copies it; what cannot be read of a missing file stays a hole.
fn copy(found: &Found, to: &fs::File) -> std::io::Result<Exported> {
    let size = found.open.size();
    to.set_len(size)?;
    let mut exported = Exported { bytes: size, missing_bytes: 0 };
    let (mut at, mut buffer) = (0, vec![0; PAGE_BYTES]);
    while at < size {
        match found.open.read(at, &mut buffer) {
            Ok(0) => break,
            Ok(got) => {
                // It is a hole already, and may be a long one.
                if buffer[..got].iter().any(|byte| *byte != 0) {
                    to.write_all_at(&buffer[..got], at)?;
                }
                at += got as u64;
            }
            Err(_) if found.is_missing => {
                let left = (size - at).min(PAGE_BYTES as u64);
                exported.missing_bytes += left;
                at += left;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut to = to;
    to.flush()?;
    to.sync_all()?;
    Ok(exported)
}
