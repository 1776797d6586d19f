//! The files that commands about cached files are given, and the caches that serve them.
//!
//! A tree may belong to users who change names while root's command is at work. So everything is opened relative to a descriptor without
//! following links, looked at before it is opened for reading, and compared with what the mount shows.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use cachedfs::{Admit, Config, File, Instance, Options};
use mount::cached::CachedMount;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::args::{CacheOf, Which};
use super::locate;
use crate::cached_mount;

/// The caches of the files of one command, each attached once. It must outlive the files: a cache with an open file is not left.
pub struct AttachedCaches<'a> {
    of: &'a CacheOf,
    attached: Vec<Arc<Instance>>,
}

/// A file or directory that a command was given, found but not opened for reading.
pub struct FoundPath {
    /// Names the object alone (`O_PATH`).
    pub fd: OwnedFd,
    /// The attributes of the object.
    pub stat: Stat,
    /// The path as the user gave it.
    pub path: PathBuf,
    /// The cache that serves the files.
    pub config: Arc<Config>,
    /// The file system that is cached: what is mounted below it is not.
    pub device: u64,
    /// Whether the path is below a cached mount, which shows the same inode numbers.
    is_mounted: bool,
}

impl FoundPath {
    /// Returns the type of the object.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Finds a name in this directory.
    ///
    /// # Errors
    /// ENOENT: the name is gone. Otherwise as openat(2).
    pub fn child(&self, directory: BorrowedFd<'_>, name: &Path) -> Result<FoundPath, Errno> {
        let fd = rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let FoundPath { path, config, device, is_mounted, .. } = self;
        Ok(FoundPath { fd, stat, path: path.join(name), config: Arc::clone(config), device: *device, is_mounted: *is_mounted })
    }
}

impl<'a> AttachedCaches<'a> {
    /// Returns no cache yet. `of`: the cache of files that are not below a cached mount.
    pub fn new(of: &'a CacheOf) -> AttachedCaches<'a> {
        AttachedCaches { of, attached: Vec::new() }
    }

    /// Finds what a path that the user gave leads to.
    pub fn find(&self, path: &Path) -> anyhow::Result<FoundPath> {
        let named = || format!("{}", path.display());
        let Some(mounted) = cached_mount::containing(path) else {
            let config = self.cache_of(path)?;
            let fd = open_at(CWD, path, OFlags::PATH, ResolveFlags::empty()).with_context(named)?;
            let stat = rustix::fs::fstat(&fd).with_context(named)?;
            return Ok(FoundPath { fd, device: stat.st_dev, stat, path: path.to_owned(), config: Arc::new(config), is_mounted: false });
        };
        let Some(located) = cached_mount::cache_of(&mounted) else {
            bail!("{}: another user mounted {}: only they can do this", path.display(), mounted.mountpoint.display());
        };
        let (fd, device) = find_below(&mounted, path).with_context(named)?;
        let stat = rustix::fs::fstat(&fd).with_context(named)?;
        Ok(FoundPath { fd, device, stat, path: path.to_owned(), config: Arc::new(located.config), is_mounted: true })
    }

    fn cache_of(&self, path: &Path) -> anyhow::Result<Config> {
        let which = Which { cache: self.of.cache.clone(), config: self.of.config.clone() };
        let located = locate::which(&which).with_context(|| format!("{}", path.display()))?;
        // Else a cache would be made that ends with this command.
        if located.file.is_none() && !Instance::is_running(&located.config) && self.of.cache.is_none() {
            bail!("{} is not below a cached mount: --cache names the cache", path.display());
        }
        Ok(located.config)
    }

    /// Opens a regular file for reading through the cache that serves it.
    pub fn open(&mut self, found: &FoundPath, admit: Option<Admit>) -> anyhow::Result<File> {
        let path = found.path.display();
        match found.kind() {
            FileType::RegularFile => {}
            FileType::Symlink => bail!("{path} is a symbolic link: name the file that it leads to"),
            _ => bail!("{path} is not a regular file: only the data of files is cached"),
        }
        if found.stat.st_dev != found.device {
            bail!("{path} is on another file system, which is mounted below the cached one: it is not cached");
        }
        let shown = if found.is_mounted { Some(found.path.symlink_metadata().with_context(|| format!("{path}"))?) } else { None };
        if shown.is_some_and(|shown| shown.ino() != found.stat.st_ino) {
            bail!("{path} is another file in the slow directory than in the mount: the directory was replaced, or the file at this moment");
        }
        let fd = reopen(found.fd.as_fd()).with_context(|| format!("{path}"))?;
        let instance = self.instance(&found.config)?;
        Ok(instance.open_descriptor(fd, OFlags::RDONLY, &Options { admit, ..Options::default() })?)
    }

    fn instance(&mut self, config: &Config) -> anyhow::Result<Arc<Instance>> {
        let is_same = |instance: &&Arc<Instance>| (&instance.config().name, &instance.config().ssd) == (&config.name, &config.ssd);
        if let Some(instance) = self.attached.iter().find(is_same) {
            return Ok(Arc::clone(instance));
        }
        let instance = Instance::open(config)?;
        self.attached.push(Arc::clone(&instance));
        Ok(instance)
    }
}

impl Drop for AttachedCaches<'_> {
    fn drop(&mut self) {
        for instance in &self.attached {
            // What cannot be written is not this command's matter: it stays, and `status` names it.
            let _ = instance.detach();
        }
    }
}

/// Finds a file of a mount in the slow directory. Returns it with the number of the file system that is cached.
fn find_below(mounted: &CachedMount, path: &Path) -> anyhow::Result<(OwnedFd, u64)> {
    let absolute = std::path::absolute(path)?;
    let real = match (absolute.parent(), absolute.file_name()) {
        // The mount point itself may be a link's end; a file in it is not followed.
        _ if std::fs::canonicalize(&absolute).is_ok_and(|real| real == mounted.mountpoint) => mounted.mountpoint.clone(),
        (Some(parent), Some(name)) => std::fs::canonicalize(parent)?.join(name),
        _ => absolute,
    };
    let relative = real.strip_prefix(&mounted.mountpoint).context("it is moved at this moment")?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let top = open_at(CWD, &mounted.directory, OFlags::PATH | OFlags::DIRECTORY, ResolveFlags::empty())?;
    let device = rustix::fs::fstat(&top)?.st_dev;
    let found = open_at(top.as_fd(), relative, OFlags::PATH, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)?;
    Ok((found, device))
}

fn open_at(at: BorrowedFd<'_>, path: &Path, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(at, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Opens a regular file that was found for reading. It is no access by a user, where that can be said.
fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(&*path, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner may ask for that.
        Err(Errno::PERM) => rustix::fs::open(&*path, flags, Mode::empty()),
        opened => opened,
    }
}
