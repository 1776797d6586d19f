//! `hotshelf fs export`.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use stack::rawfs::fs::{Creds, Error, FileKind, Fs, FsSettings, Node, Stat, Timestamp};
use stack::rawfs::{Settings, Store};

use super::args::ExportArgs;
use super::staging::{self, NewFile, Staging};
use super::{Progress, Stopped, open};

const PIECE: usize = 1 << 20;

/// Copies trees out of an image; `false` when some file could not be read or written, and is left out.
pub fn export(args: &ExportArgs) -> anyhow::Result<bool> {
    let named = || format!("{}", args.image.display());
    let Some((dir, sources)) = args.paths.split_last() else { bail!("no paths") };
    let (store, _) = Store::open(open(&args.image, false)?, &Settings::default()).with_context(named)?;
    let atime = stack::rawfs::fs::Atime::Never;
    let (fs, _) = Fs::open(store, FsSettings { atime, ..FsSettings::default() }).with_context(named)?;
    let outcome = export_all(&fs, args, sources, dir);
    let closed = fs.close().with_context(named);
    let left_out = outcome?;
    closed?;
    if left_out > 0 {
        complain!("{left_out} files or attributes were left out: see above");
    }
    Ok(left_out == 0)
}

fn export_all(fs: &Fs, args: &ExportArgs, sources: &[PathBuf], dir: &Path) -> anyhow::Result<u64> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let to = rustix::fs::open(dir, flags, Mode::empty()).with_context(|| format!("{}", dir.display()))?;
    let usage = fs.store().usage();
    let progress = Progress::start((usage.blocks - usage.blocks_free) * stack::rawfs::BLOCK_BYTES as u64)?;
    let is_root = rustix::process::geteuid().is_root();
    let mut export = Export { fs, creds: Creds::root(), force: args.force, is_root, top: to, links: HashMap::new(), progress, left_out: 0 };
    let outcome = sources.iter().try_for_each(|source| export.source(source.as_os_str().as_bytes()));
    export.progress.finish();
    outcome.with_context(|| format!("{} files were exported before, and are whole", export.progress.files()))?;
    tell!("{} files, {}", export.progress.files(), super::human(export.progress.bytes()));
    Ok(export.left_out)
}

struct Export<'f> {
    fs: &'f Fs,
    creds: Creds,
    force: bool,
    is_root: bool,
    top: OwnedFd,
    /// Files with several names, by number.
    links: HashMap<u64, First>,
    progress: Progress,
    left_out: u64,
}

type Outcome = anyhow::Result<()>;

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Every write is to one name in a directory that is held open: no way leads out, whatever links lie about.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

impl Export<'_> {
    fn left_out(&mut self, what: &str) {
        self.left_out += 1;
        self.progress.say(&format!("{what}: left out"));
    }

    fn source(&mut self, source: &[u8]) -> Outcome {
        let names: Vec<&[u8]> = source.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
        if names.contains(&&b".."[..]) {
            bail!("{}: a path in the image has no ..", shown(source));
        }
        let path = names.iter().fold(Vec::new(), |path, name| [&path[..], b"/", name].concat());
        let in_it = names.is_empty() || source.ends_with(b"/.");
        let path = if path.is_empty() { b"/".to_vec() } else { path };
        let node = self.fs.lookup(self.fs.root(), &path, false, &self.creds).with_context(|| shown(&path))?;
        let top = rustix::io::dup(&self.top)?;
        match names.last() {
            Some(name) if !in_it => self.one(&node, &path, top.as_fd(), name, Path::new("")),
            _ if node.kind() != FileKind::Dir => bail!("{}: is no directory", shown(source)),
            // As cp -a and rsync do: the directory itself is meant too.
            _ => {
                self.entries(&path, top.as_fd(), Path::new(""))?;
                self.attributes(&node, &node.stat()?, top.as_fd())
            }
        }
    }

    fn entries(&mut self, path: &[u8], to: BorrowedFd<'_>, below: &Path) -> Outcome {
        let dir = self.fs.open_at(self.fs.root(), path, OFlags::RDONLY | OFlags::DIRECTORY, 0, &self.creds).with_context(|| shown(path))?;
        loop {
            let mut some = Vec::new();
            let listed = dir.read_dir(&mut |entry, _| {
                some.push(entry.name.clone());
                some.len() < 1000
            });
            if let Err(error) = listed {
                self.left_out(&format!("{}: {error}", shown(path)));
            }
            // The last one had no room, and comes again.
            if some.len() == 1000 {
                some.pop();
            } else if some.is_empty() {
                return Ok(());
            }
            for name in some.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
                let path = if path == b"/" { [b"/", &name[..]].concat() } else { [path, b"/", name].concat() };
                match self.fs.lookup(self.fs.root(), &path, false, &self.creds) {
                    Ok(node) => self.one(&node, &path, to, name, below)?,
                    Err(error) => self.left_out(&format!("{}: {error}", shown(&path))),
                }
            }
            if some.len() < 999 {
                return Ok(());
            }
        }
    }

    /// Exports one file, or a directory with its content. An error that concerns only this one is reported, and the export continues.
    fn one(&mut self, node: &Node, path: &[u8], to: BorrowedFd<'_>, name: &[u8], below: &Path) -> Outcome {
        if !is_name(name) {
            self.left_out(&format!("{}: is no name", shown(path)));
            return Ok(());
        }
        self.progress.go_on()?;
        let outcome = self.made(node, path, to, name, below);
        match outcome {
            // As import counts: directories are none.
            Ok(()) if node.kind() == FileKind::Dir => {}
            Ok(()) => self.progress.file(&path.escape_ascii()),
            Err(error) if is_full(&error) || error.downcast_ref::<Stopped>().is_some() => return Err(error),
            Err(error) => self.left_out(&format!("{}: {error:#}", shown(path))),
        }
        Ok(())
    }

    fn made(&mut self, node: &Node, path: &[u8], to: BorrowedFd<'_>, name: &[u8], below: &Path) -> Outcome {
        let stat = node.stat()?;
        let here = below.join(std::ffi::OsStr::from_bytes(name));
        if stat.kind == FileKind::Dir {
            return self.dir(node, &stat, path, to, name, &here);
        }
        if let Some(what) = staging::is_in_the_way(to, name, self.force)? {
            bail!("{what}");
        }
        if stat.nlink > 1
            && let Some(first) = self.links.get(&stat.ino)
        {
            return taken(staging::link(to, first.open(&self.top)?.as_fd(), name, self.force));
        }
        let made = match stat.kind {
            FileKind::File => self.regular(node, &stat, to, name)?,
            _ => self.special(node, &stat, to, name)?,
        };
        if stat.nlink > 1 {
            self.links.insert(stat.ino, First { path: here, made });
        }
        Ok(())
    }

    fn dir(&mut self, node: &Node, stat: &Stat, path: &[u8], to: BorrowedFd<'_>, name: &[u8], here: &Path) -> Outcome {
        match rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700)) {
            // Never through a link.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(to, name, flags, Mode::empty()).context("something that is no directory is in the way")?;
        self.entries(path, dir.as_fd(), here)?;
        self.attributes(node, stat, dir.as_fd())
    }

    fn regular(&mut self, node: &Node, stat: &Stat, to: BorrowedFd<'_>, name: &[u8]) -> anyhow::Result<(u64, u64)> {
        let new = NewFile::new(to)?;
        self.content(node, stat, new.file())?;
        self.attributes(node, stat, new.file().as_fd())?;
        let made = identity(new.file().as_fd())?;
        taken(new.publish(name, self.force))?;
        Ok(made)
    }

    fn content(&mut self, node: &Node, stat: &Stat, out: &std::fs::File) -> Outcome {
        let file = self.fs.open_node(node, OFlags::RDONLY, &self.creds)?;
        let (mut bytes, mut at) = (vec![0; PIECE], 0);
        loop {
            // Holes stay holes.
            let data = match file.seek(SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(error) if error.errno() == Errno::NXIO => break,
                Err(error) => return Err(error.into()),
            };
            let end = file.seek(SeekFrom::Hole(data))?.min(stat.size);
            at = data;
            while at < end {
                self.progress.go_on()?;
                let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
                let got = file.read_at(&mut bytes[..want], at)?;
                if got == 0 {
                    break;
                }
                out.write_all_at(&bytes[..got], at)?;
                at += got as u64;
                self.progress.add(got as u64);
            }
            if at < end || at >= stat.size {
                break;
            }
        }
        Ok(out.set_len(stat.size)?)
    }

    fn attributes(&mut self, node: &Node, stat: &Stat, of: BorrowedFd<'_>) -> Outcome {
        let names = self.fs.list_xattrs(node, &self.creds)?;
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = self.fs.get_xattr(node, name, &self.creds)?;
            if let Err(error) = rustix::fs::fsetxattr(of, name, &value, XattrFlags::empty()) {
                self.left_out(&format!("file {}: attribute {}: {error}", stat.ino, name.escape_ascii()));
            }
        }
        if self.is_root {
            rustix::fs::fchown(of, Some(rustix::fs::Uid::from_raw(stat.uid)), Some(rustix::fs::Gid::from_raw(stat.gid)))?;
        }
        // A user other than root owns the new file, so set-ID bits would grant the wrong rights.
        let mask = if self.is_root { 0o7777 } else { 0o1777 };
        rustix::fs::fchmod(of, Mode::from_raw_mode(stat.mode & mask))?;
        Ok(rustix::fs::futimens(of, &times(stat))?)
    }

    /// What cannot be written to: created in a private directory, where nobody exchanges it before it has its attributes.
    fn special(&mut self, node: &Node, stat: &Stat, to: BorrowedFd<'_>, name: &[u8]) -> anyhow::Result<(u64, u64)> {
        let staging = Staging::new(to)?;
        let (own, object, mode) = (staging.own(), Staging::object(), Mode::RUSR | Mode::WUSR);
        match stat.kind {
            FileKind::Symlink => rustix::fs::symlinkat(&self.fs.target(node)?[..], own, object)?,
            FileKind::Socket => rustix::fs::mknodat(own, object, FileType::Socket, mode, 0)?,
            FileKind::CharDevice => rustix::fs::mknodat(own, object, FileType::CharacterDevice, mode, stat.device)?,
            FileKind::BlockDevice => rustix::fs::mknodat(own, object, FileType::BlockDevice, mode, stat.device)?,
            FileKind::Fifo | FileKind::File | FileKind::Dir => rustix::fs::mknodat(own, object, FileType::Fifo, mode, 0)?,
        }
        if self.is_root {
            let (uid, gid) = (rustix::fs::Uid::from_raw(stat.uid), rustix::fs::Gid::from_raw(stat.gid));
            rustix::fs::chownat(own, object, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if stat.kind != FileKind::Symlink {
            // It is no link: nobody else could make one here.
            rustix::fs::chmodat(own, object, Mode::from_raw_mode(stat.mode & 0o1777), AtFlags::empty())?;
        }
        rustix::fs::utimensat(own, object, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?;
        let there = rustix::fs::statat(own, object, AtFlags::SYMLINK_NOFOLLOW)?;
        taken(staging.publish(name, self.force))?;
        Ok((there.st_dev, there.st_ino))
    }
}

/// The first name of a file that has several, and which file that was.
struct First {
    /// From the top.
    path: PathBuf,
    /// Device and number.
    made: (u64, u64),
}

impl First {
    /// The file itself: what has that name now may be another one.
    fn open(&self, top: &OwnedFd) -> anyhow::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = rustix::fs::ResolveFlags::BENEATH | rustix::fs::ResolveFlags::NO_SYMLINKS;
        let opened = rustix::fs::openat2(top, &self.path, flags, Mode::empty(), how);
        let opened = opened.with_context(|| format!("{}, its first name", self.path.display()))?;
        if identity(opened.as_fd())? != self.made {
            bail!("{}, its first name, is another file now", self.path.display());
        }
        Ok(opened)
    }
}

fn identity(of: BorrowedFd<'_>) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(of)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The name came meanwhile.
fn taken(published: rustix::io::Result<()>) -> Outcome {
    match published {
        Err(Errno::EXIST) => bail!("is there already and is kept (--force replaces it)"),
        Err(Errno::ISDIR | Errno::NOTEMPTY) => bail!("a directory is in the way"),
        published => Ok(published?),
    }
}

fn times(stat: &Stat) -> Timestamps {
    let spec = |stamp: Timestamp| Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() };
    Timestamps { last_access: spec(stat.atime), last_modification: spec(stat.mtime) }
}

/// The next files would fare no better.
fn is_full(error: &anyhow::Error) -> bool {
    let here = error.downcast_ref::<Errno>().copied() == Some(Errno::NOSPC)
        || error.downcast_ref::<std::io::Error>().is_some_and(|error| error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()));
    here && error.downcast_ref::<Error>().is_none()
}
