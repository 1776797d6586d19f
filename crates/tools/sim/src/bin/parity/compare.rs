//! Comparing attributes, numbers and trees.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;

use crate::accepted;
use sim::posix::call::{Call, shown};
use sim::posix::tree::{FileTree, Stat, content, digest, join, list_all, stat, word};

/// Permitted difference of times set by the kernel, in seconds: the calls are made one after the other.
const NEAR_S: i64 = 20;
/// Initial buffer size for extended attributes.
const VALUE_MAX: usize = 65_536;

type Both = (Result<Stat, Errno>, Result<Stat, Errno>);

/// The state of the comparison.
#[derive(Debug, Default)]
pub struct Compare {
    /// The kernel's write-back cache is on.
    gathered: bool,
    /// Whether a cache writes files back later: until then the change time is that of the last write, and the file system's clock may be
    /// a few milliseconds behind it.
    is_written_back: bool,
    /// The mount's inode number of each plain file, by inode number and birth time.
    numbers: HashMap<(u64, (i64, u32)), u64>,
}

/// The files of a call, before the call.
pub struct Before {
    paths: Vec<Both>,
    slots: Vec<Both>,
    /// When the check began.
    looked: (i64, u32),
}

impl Before {
    fn look(call: &Call, plain: &FileTree, mount: &FileTree) -> Before {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let looked = (now.tv_sec, now.tv_nsec as u32);
        Before { paths: Self::paths(call, plain, mount), slots: Self::slots(call, plain, mount), looked }
    }

    fn paths(call: &Call, plain: &FileTree, mount: &FileTree) -> Vec<Both> {
        let look = |path: &&str| {
            let path = if path.is_empty() { "." } else { path };
            (stat(plain.root(), path), stat(mount.root(), path))
        };
        call.paths().iter().map(look).collect()
    }

    fn slots(call: &Call, plain: &FileTree, mount: &FileTree) -> Vec<Both> {
        let look = |slot: &usize| (plain.slot(*slot).and_then(|file| stat(file, "")), mount.slot(*slot).and_then(|file| stat(file, "")));
        call.slots().iter().map(look).collect()
    }
}

impl Compare {
    /// Creates a comparison. `gathered`: the kernel's write-back cache is on for the mount; `is_written_back`: a cache writes files back.
    pub fn new(gathered: bool, is_written_back: bool) -> Compare {
        Compare { gathered, is_written_back, ..Compare::default() }
    }

    /// Records the state of the files before a call.
    pub fn look(&self, call: &Call, plain: &FileTree, mount: &FileTree) -> Result<Before> {
        Ok(Before::look(call, plain, mount))
    }

    /// Compares both sides after a call.
    pub fn changed(&mut self, call: &Call, before: &Before, _ok: bool, plain: &FileTree, mount: &FileTree) -> Result<()> {
        let after = Before::look(call, plain, mount);
        for (n, (was, is)) in before.paths.iter().zip(&after.paths).enumerate() {
            let path = call.paths()[n].to_owned();
            self.both(is).and_then(|()| self.times(was, is, before.looked)).with_context(|| format!("{path:?} afterwards"))?;
        }
        let replaced = matches!(call, Call::Open { .. } | Call::OpenAt { .. } | Call::Dup { .. });
        for (n, (was, is)) in before.slots.iter().zip(&after.slots).enumerate() {
            let slot = call.slots()[n];
            if accepted::out_of_reach(slot, plain) && is.1 == Err(Errno::ACCESS) {
                continue;
            }
            self.both(is)
                .and_then(|()| if replaced { Ok(()) } else { self.times(was, is, before.looked) })
                .and_then(|()| if is.0.is_ok_and(|stat| stat.is_file()) { position(slot, plain, mount) } else { Ok(()) })
                .with_context(|| format!("open file {slot} afterwards"))?;
        }
        Ok(())
    }

    fn both(&mut self, (plain, mount): &Both) -> Result<()> {
        match (plain, mount) {
            (Ok(plain), Ok(mount)) => self.same(plain, mount),
            (Err(plain), Err(mount)) if plain == mount => Ok(()),
            (Ok(_), Err(error)) => bail!("there in the plain directory; mount: {}", word(*error)),
            (Err(error), Ok(_)) => bail!("there in the mount; plain directory: {}", word(*error)),
            (Err(plain), Err(mount)) => bail!("plain directory: {}; mount: {}", word(*plain), word(*mount)),
        }
    }

    fn same(&mut self, plain: &Stat, mount: &Stat) -> Result<()> {
        let (a, b) = (shown(plain), shown(mount));
        if a != b {
            bail!("plain {a}; mount {b}");
        }
        if !accepted::times_by_kernel(plain, self.gathered) {
            same_time("mtime", plain.mtime, mount.mtime)?;
        }
        // A set access time may be followed by a read from the kernel's cache.
        if !is_recent(plain.atime) && !accepted::times_by_kernel(plain, self.gathered) {
            same_time("atime", plain.atime, mount.atime)?;
        }
        if !is_recent(mount.ctime) {
            bail!("ctime {:?}", mount.ctime);
        }
        if accepted::number_unread(plain) {
            return Ok(());
        }
        let known = *self.numbers.entry((plain.ino, plain.birth)).or_insert(mount.ino);
        if known != mount.ino {
            bail!("its number was {known:x} and is {:x}", mount.ino);
        }
        Ok(())
    }

    /// Verifies that times change when those of the plain directory do.
    fn times(&self, was: &Both, is: &Both, looked: (i64, u32)) -> Result<()> {
        let ((Ok(plain_was), Ok(mount_was)), (Ok(plain_is), Ok(mount_is))) = (was, is) else { return Ok(()) };
        if plain_was.ino != plain_is.ino || mount_was.ino != mount_is.ino {
            return Ok(());
        }
        if accepted::times_by_kernel(plain_is, self.gathered) {
            return Ok(());
        }
        let (plain, mount) = (plain_was.mtime != plain_is.mtime, mount_was.mtime != mount_is.mtime);
        let older = mount_is.is_dir() && accepted::older_answer(looked, mount_is.mtime);
        if plain != mount && !(mount && older) {
            let (from, to) = (mount_was.mtime, mount_is.mtime);
            bail!("mtime changed: plain {plain}, mount {mount}: from {from:?} to {to:?}, first looked at {looked:?}");
        }
        // A move sets the change time of its copy.
        let is_behind = self.is_written_back && mount_is.is_file();
        if plain_was.ctime != plain_is.ctime && mount_was.ctime == mount_is.ctime && !is_behind {
            bail!("ctime changed in the plain directory, not in the mount");
        }
        Ok(())
    }

    /// Compares the whole trees of both sides.
    pub fn trees(&mut self, plain: &FileTree, mount: &FileTree) -> Result<()> {
        self.directory(plain, mount, "")
    }

    fn directory(&mut self, plain: &FileTree, mount: &FileTree, path: &str) -> Result<()> {
        let (a, b) = match (list_all(plain, path), list_all(mount, path)) {
            (Err(a), Err(b)) if a == b => return Ok(()),
            (Ok(_), Err(Errno::ACCESS)) if stat(plain.root(), path).is_ok_and(|dir| accepted::unlisted(&dir)) => return Ok(()),
            (a, b) => (a.with_context(|| format!("listing {path:?}, plain"))?, b.with_context(|| format!("listing {path:?}, mount"))?),
        };
        let names = |all: &[sim::posix::tree::DirListing]| all.iter().map(|one| (one.name.clone(), one.kind.clone())).collect::<Vec<_>>();
        if names(&a) != names(&b) {
            bail!("{path:?}: plain {:?}; mount {:?}", names(&a), names(&b));
        }
        for (one, other) in a.iter().zip(&b) {
            let path = join(path, &one.name);
            let both = (stat(plain.root(), &path), stat(mount.root(), &path));
            self.both(&both).with_context(|| path.clone())?;
            let (Ok(is), Ok(shown)) = both else { continue };
            if shown.ino != other.ino && !accepted::number_unread(&is) {
                bail!("{path}: listed as {:x}, and is {:x}", other.ino, shown.ino);
            }
            let (a, b) = (xattrs(plain, &path), xattrs(mount, &path));
            if a != b {
                bail!("{path}: extended attributes: plain {a:?}; mount {b:?}");
            }
            if is.is_dir() {
                self.directory(plain, mount, &path)?;
            } else {
                let (a, b) = (content(plain, &path, &is), content(mount, &path, &is));
                if a != b {
                    bail!("{path}: content: plain {a:?}; mount {b:?}");
                }
            }
        }
        Ok(())
    }
}

/// Verifies that both file positions are equal.
fn position(slot: usize, plain: &FileTree, mount: &FileTree) -> Result<()> {
    let tell = |tree: &FileTree| tree.slot(slot).and_then(rustix::fs::tell);
    let (plain, mount) = (tell(plain), tell(mount));
    if plain != mount {
        bail!("position: plain {plain:?}, mount {mount:?}");
    }
    Ok(())
}

fn is_recent(time: (i64, u32)) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    (now - time.0).abs() < 1 << 24
}

fn same_time(what: &str, plain: (i64, u32), mount: (i64, u32)) -> Result<()> {
    let near = is_recent(plain) && (plain.0 - mount.0).abs() <= NEAR_S;
    if !near && plain != mount {
        bail!("{what}: plain {plain:?}, mount {mount:?}");
    }
    Ok(())
}

fn xattrs(tree: &FileTree, path: &str) -> Result<Vec<(String, String)>, Errno> {
    let full = tree.full(path);
    let mut names = vec![0u8; VALUE_MAX];
    let n = rustix::fs::llistxattr(&full, &mut names[..])?;
    let mut all = Vec::new();
    for name in names[..n].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut value = vec![0u8; VALUE_MAX];
        let n = rustix::fs::lgetxattr(&full, &*name, &mut value[..])?;
        all.push((name, digest(&value[..n])));
    }
    all.sort();
    Ok(all)
}

/// Calls `each` for every entry below a path.
pub fn walk(tree: &FileTree, path: &str, each: &mut dyn FnMut(&str, &Stat)) {
    for entry in list_all(tree, path).unwrap_or_default() {
        let path = join(path, &entry.name);
        let Ok(stat) = stat(tree.root(), &path) else { continue };
        each(&path, &stat);
        if stat.is_dir() {
            walk(tree, &path, each);
        }
    }
}
