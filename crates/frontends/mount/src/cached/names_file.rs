//! The file with the remembered names of a cached directory, while the directory is not mounted (`--names persistent`).

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use directoryfs::{DirectoryFs, FileCache};
use rustix::fs::{Mode, OFlags};

use super::data::InstanceCache;
use super::options::{CachedOptions, NamesMode};
use crate::source;

/// How long names and attributes are believed by default.
const TTL: Duration = Duration::from_secs(1);
/// The same where the user wants them remembered, of a directory on a network: the longest time of NFS (acregmax and acdirmax in nfs(5)).
const TTL_REMEMBERED: Duration = Duration::from_secs(60);

/// More than two million names take.
const BYTES_MAX: u64 = 2 << 30;

/// Remembers names if that is wanted. Returns how long names and attributes are believed.
pub fn remember_names(options: &CachedOptions, fs: &mut DirectoryFs<InstanceCache>, is_remote: bool) -> Duration {
    let is_remembering = options.names != NamesMode::Kernel;
    let ttl = options.ttl.unwrap_or(if is_remote && is_remembering { TTL_REMEMBERED } else { TTL });
    if is_remembering {
        fs.remember_names(ttl);
    }
    ttl
}

/// Returns the file that keeps the names between two mounts, if one does.
pub fn names_file(options: &CachedOptions) -> Option<NamesFile> {
    if options.names != NamesMode::Persistent {
        return None;
    }
    let file = NamesFile::of(&options.directory);
    if file.is_none() {
        tracing::warn!("no directory for the names of this mount: set XDG_STATE_HOME or HOME; the next mount reads them again");
    }
    file
}

/// The place of the names of one directory.
#[derive(Debug)]
pub struct NamesFile {
    path: PathBuf,
    /// What the directory is, so that another one that is later found at the same path does not get its names.
    directory: String,
}

impl NamesFile {
    /// Returns the place for the names of a directory; none if the user has no directory for that.
    pub fn of(directory: &Path) -> Option<NamesFile> {
        let real = fs::canonicalize(directory).ok()?;
        let opened = rustix::fs::open(&real, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let file_system = source::file_system_of(opened)?;
        let path = cachedfs::state_directory()?.join(format!("names-{:016x}", cachedfs::path_hash(&real)));
        Some(NamesFile { path, directory: format!("{} on {file_system}", real.display()) })
    }

    /// Gives a directory the names that an earlier mount has saved, and removes the file: after a crash there is none, as this mount may
    /// have changed the directory.
    pub fn load<C: FileCache>(&self, fs: &DirectoryFs<C>) {
        let bytes = match self.take() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return tracing::warn!(%error, path = %self.path.display(), "the names of the last mount are not used"),
        };
        if !fs.load_names(&bytes, &self.directory) {
            tracing::info!(path = %self.path.display(), "names of another directory or version, or damaged: not used");
        }
    }

    fn take(&self) -> io::Result<Vec<u8>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        let found = file.metadata()?;
        fs::remove_file(&self.path)?;
        let is_ours = found.is_file() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
        if !is_ours {
            return Err(io::Error::other("the file is another user's, or others may write it"));
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Saves the names of a directory that is not mounted any more.
    pub fn save<C: FileCache>(&self, fs: &DirectoryFs<C>) {
        let Some(bytes) = fs.save_names(&self.directory) else { return };
        if let Err(error) = self.write(&bytes) {
            tracing::warn!(%error, path = %self.path.display(), "the names are not kept: the next mount reads them again");
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let dir = self.path.parent().ok_or(io::ErrorKind::NotFound)?;
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let aside = self.path.with_extension("new");
        let written = write_whole(&aside, bytes).and_then(|()| fs::rename(&aside, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
        }
        written
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}
