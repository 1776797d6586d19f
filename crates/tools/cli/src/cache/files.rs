//! The files that commands about cached files are given, and the caches that serve them.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use cachedfs::{Admit, Config, File, Instance, Options};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::args::{CacheOf, Which};
use super::locate;
use crate::cached_mount;

/// The caches of the files of one command, each attached once.
pub struct AttachedCaches<'a> {
    of: &'a CacheOf,
    attached: Vec<Arc<Instance>>,
}

impl<'a> AttachedCaches<'a> {
    /// Returns no cache yet. `of`: the cache of files that are not below a cached mount.
    pub fn new(of: &'a CacheOf) -> AttachedCaches<'a> {
        AttachedCaches { of, attached: Vec::new() }
    }

    /// Opens a file for reading through the cache that serves it.
    pub fn open(&mut self, path: &Path, admit: Option<Admit>) -> anyhow::Result<File> {
        let named = || format!("{}", path.display());
        let (fd, config) = match cached_mount::containing(path) {
            Some(found) => {
                let Some(located) = cached_mount::cache_of(&found) else {
                    bail!("{}: another user mounted {}: only they can do this", path.display(), found.mountpoint.display());
                };
                (open_below(&found.directory, &found.mountpoint, path).with_context(named)?, located.config)
            }
            None => {
                let which = Which { cache: self.of.cache.clone(), config: self.of.config.clone() };
                let located = locate::which(&which).with_context(|| match &self.of.cache {
                    Some(_) => named(),
                    None => format!("{} is not below a cached mount: --cache names the cache", path.display()),
                })?;
                (rustix::fs::open(path, FLAGS, Mode::empty()).map_err(explained).with_context(named)?, located.config)
            }
        };
        if FileType::from_raw_mode(rustix::fs::fstat(&fd).with_context(named)?.st_mode) != FileType::RegularFile {
            bail!("{} is not a regular file: only the data of files is cached", path.display());
        }
        let instance = self.instance(&config)?;
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

/// A pipe does not block, and a terminal does not become ours.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::NOFOLLOW);

/// Opens a file of a mount in the slow directory. The part of the path below the mount has no links: whoever may change names there could
/// lead root to another file otherwise.
fn open_below(directory: &Path, mountpoint: &Path, path: &Path) -> anyhow::Result<OwnedFd> {
    let absolute = std::path::absolute(path)?;
    let real = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => std::fs::canonicalize(parent)?.join(name),
        _ => absolute,
    };
    let relative = real.strip_prefix(mountpoint).context("it is moved at this moment")?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let top = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::openat2(top.as_fd(), relative, FLAGS, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS).map_err(explained)
}

/// Returns the error of opening in the words of what was done.
fn explained(errno: Errno) -> anyhow::Error {
    match errno {
        Errno::LOOP => anyhow::anyhow!("it is a symbolic link: name the file that it leads to"),
        errno => errno.into(),
    }
}

/// Calls `each` with every regular file at or below the paths, on the file systems of the paths. An error is printed, and the others
/// follow; returns false then.
pub fn for_each(paths: &[PathBuf], each: &mut dyn FnMut(&Path) -> anyhow::Result<bool>) -> bool {
    let mut is_well = true;
    for path in paths {
        let mut waiting = vec![path.clone()];
        let device = path.symlink_metadata().ok().map(|meta| meta.dev());
        while let Some(path) = waiting.pop() {
            match step(&path, device, &mut waiting, each) {
                Ok(done) => is_well &= done,
                Err(error) => {
                    complain!("{error:#}");
                    is_well = false;
                }
            }
        }
    }
    is_well
}

fn step(
    path: &Path,
    device: Option<u64>,
    waiting: &mut Vec<PathBuf>,
    each: &mut dyn FnMut(&Path) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let named = || format!("{}", path.display());
    let meta = path.symlink_metadata().with_context(named)?;
    if meta.is_dir() && Some(meta.dev()) == device {
        let mut below: Vec<PathBuf> = Vec::new();
        for entry in path.read_dir().with_context(named)? {
            below.push(entry.with_context(named)?.path());
        }
        // The last one is taken first.
        below.sort_unstable_by(|a, b| b.cmp(a));
        waiting.append(&mut below);
        return Ok(true);
    }
    if meta.is_file() { each(path) } else { Ok(true) }
}
