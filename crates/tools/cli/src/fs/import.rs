//! `hotshelf fs import`.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use stack::rawfs::fs::{Creds, Error, FileKind, Fs, FsSettings, Node, SetAttr, SetTime, Timestamp};
use stack::rawfs::{Settings, Store};

use super::args::ImportArgs;
use super::{Progress, open};

const PIECE: usize = 1 << 20;

/// Copies trees into an image; `false` when some file could not be read, and is left out.
pub fn import(args: &ImportArgs) -> anyhow::Result<bool> {
    let named = || format!("{}", args.image.display());
    let Some((dest, sources)) = args.paths.split_last() else { bail!("no paths") };
    let (store, _) = Store::open(open(&args.image, false)?, &Settings::default()).with_context(named)?;
    let (fs, _) = Fs::open(store, FsSettings::default()).with_context(named)?;
    let progress = Progress::start(sources.iter().map(|source| weigh(source)).sum())?;
    let mut import = Import { fs: &fs, creds: Creds::root(), force: args.force, links: HashMap::new(), progress, left_out: 0 };
    let outcome = import.all(sources, dest.as_os_str().as_bytes());
    let Import { progress, left_out, .. } = import;
    progress.finish();
    let (files, bytes) = (progress.files(), progress.bytes());
    // What is in is whole in any case.
    let closed =
        fs.close().with_context(|| format!("{}: not everything could be written, and files may lack content", args.image.display()));
    if let Err(error) = outcome {
        let so_far = format!("{files} files were imported before, and are whole");
        return Err(error.context(so_far));
    }
    closed?;
    tell!("{files} files, {}", super::human(bytes));
    if left_out > 0 {
        complain!("{left_out} files or attributes were left out: see above");
    }
    Ok(left_out == 0)
}

/// Bytes below a path, for the progress bar.
fn weigh(path: &Path) -> u64 {
    let Ok(meta) = path.symlink_metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    let Ok(entries) = path.read_dir() else { return 0 };
    entries.flatten().map(|entry| weigh(&entry.path())).sum()
}

struct Import<'f> {
    fs: &'f Fs,
    creds: Creds,
    force: bool,
    /// Files with several names: device and number, and the first name.
    links: HashMap<(u64, u64), Vec<u8>>,
    progress: Progress,
    left_out: u64,
}

/// A failure of the image ends the import; a failure of one source is reported, and the next one follows.
enum ImportError {
    Image(anyhow::Error),
    Source(anyhow::Error),
}

type Outcome = Result<(), ImportError>;

fn of_image(path: &Path) -> impl Fn(Error) -> ImportError + '_ {
    move |error| {
        let full = error.errno() == Errno::NOSPC;
        let what = anyhow::Error::new(error).context(format!("{}", path.display()));
        ImportError::Image(if full {
            what.context("the image is full: make it larger with `hotshelf fs resize`, or give it more metadata")
        } else {
            what
        })
    }
}

fn of_source(path: &Path) -> impl Fn(std::io::Error) -> ImportError + '_ {
    move |error| ImportError::Source(anyhow::Error::new(error).context(format!("{}", path.display())))
}

impl Import<'_> {
    fn all(&mut self, sources: &[PathBuf], dest: &[u8]) -> anyhow::Result<()> {
        let mut dir = Vec::new();
        for name in dest.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                bail!("{}: a path in the image has no ..", String::from_utf8_lossy(dest));
            }
            dir = [&dir[..], b"/", name].concat();
            match self.fs.mkdir(self.fs.root(), &dir, 0o755, &self.creds) {
                Err(error) if error.errno() != Errno::EXIST => {
                    return Err(anyhow::Error::new(error).context(String::from_utf8_lossy(&dir).into_owned()));
                }
                _ => {}
            }
        }
        for source in sources {
            let outcome = self.source(source, &dir);
            self.report_outcome(outcome)?;
        }
        Ok(())
    }

    fn report_outcome(&mut self, outcome: Outcome) -> anyhow::Result<()> {
        match outcome {
            Ok(()) => Ok(()),
            Err(ImportError::Image(error)) => Err(error),
            Err(ImportError::Source(error)) => {
                self.left_out(&format!("{error:#}"));
                Ok(())
            }
        }
    }

    fn left_out(&mut self, what: &str) {
        self.left_out += 1;
        self.progress.say(&format!("{what}: left out"));
    }

    fn source(&mut self, source: &Path, dir: &[u8]) -> Outcome {
        let meta = source.symlink_metadata().map_err(of_source(source))?;
        let bytes = source.as_os_str().as_bytes();
        if bytes.ends_with(b"/.") || bytes == b"." {
            // As cp -a and rsync do: the directory itself is meant too.
            self.entries(source, dir)?;
            let top = if dir.is_empty() { b"/" } else { dir };
            let node = self.fs.lookup(self.fs.root(), top, false, &self.creds).map_err(of_image(source))?;
            return self.attributes(source, &meta, &node);
        }
        let absolute = std::path::absolute(source).map_err(of_source(source))?;
        let Some(name) = absolute.file_name().filter(|_| !bytes.ends_with(b"..")) else {
            return Err(ImportError::Source(anyhow::anyhow!(
                "{}: has no name: say {}/. for what is in it",
                source.display(),
                source.display()
            )));
        };
        self.one(source, &meta, &[dir, b"/", name.as_bytes()].concat())
    }

    fn entries(&mut self, source: &Path, dir: &[u8]) -> Outcome {
        for entry in source.read_dir().map_err(of_source(source))? {
            let entry = entry.map_err(of_source(source))?;
            let path = entry.path();
            let outcome = match entry.path().symlink_metadata() {
                Ok(meta) => self.one(&path, &meta, &[dir, b"/", entry.file_name().as_bytes()].concat()),
                Err(error) => Err(of_source(&path)(error)),
            };
            self.report_outcome(outcome).map_err(ImportError::Image)?;
        }
        Ok(())
    }

    fn one(&mut self, source: &Path, meta: &Metadata, to: &[u8]) -> Outcome {
        let kind = meta.file_type();
        if !kind.is_dir()
            && let Some(first) = self.links.get(&(meta.dev(), meta.ino()))
        {
            let root = self.fs.root();
            let node = self.fs.lookup(root, first, false, &self.creds).map_err(of_image(source))?;
            self.remove_obstacle(source, to)?;
            self.progress.file(&source.display().to_string().escape_debug());
            return match self.fs.link(&node, root, to, &self.creds) {
                Err(error) if error.errno() == Errno::EXIST && self.force => {
                    let aside = Self::aside(to);
                    let _ = self.fs.unlink(root, &aside, &self.creds);
                    self.fs.link(&node, root, &aside, &self.creds).map_err(of_image(source))?;
                    self.fs.rename(root, &aside, root, to, RenameFlags::empty(), &self.creds).map_err(of_image(source))
                }
                linked => linked.map_err(of_image(source)),
            };
        }
        self.progress.go_on().map_err(|stopped| ImportError::Image(stopped.into()))?;
        if kind.is_dir() {
            let node = self.dir(source, to)?;
            return self.attributes(source, meta, &node);
        }
        self.file(source, meta, to)?;
        if meta.nlink() > 1 {
            self.links.insert((meta.dev(), meta.ino()), to.to_vec());
        }
        self.progress.file(&source.display().to_string().escape_debug());
        Ok(())
    }

    fn dir(&mut self, source: &Path, to: &[u8]) -> Result<Node, ImportError> {
        let node = match self.fs.mkdir(self.fs.root(), to, 0o700, &self.creds) {
            Ok(node) => node,
            Err(error) if error.errno() == Errno::EXIST => {
                let node = self.fs.lookup(self.fs.root(), to, false, &self.creds).map_err(of_image(source))?;
                if node.kind() != FileKind::Dir {
                    return Err(ImportError::Source(anyhow::anyhow!(
                        "{}: the image has a file of that name, and this is a directory",
                        source.display()
                    )));
                }
                node
            }
            Err(error) => return Err(of_image(source)(error)),
        };
        self.entries(source, to)?;
        Ok(node)
    }

    /// Whether something is in the way that is not to be replaced.
    fn remove_obstacle(&self, source: &Path, to: &[u8]) -> Outcome {
        match self.fs.lookup(self.fs.root(), to, false, &self.creds) {
            Err(error) if error.errno() == Errno::NOENT => Ok(()),
            Err(error) => Err(of_image(source)(error)),
            Ok(node) if node.kind() == FileKind::Dir => {
                Err(ImportError::Source(anyhow::anyhow!("{}: the image has a directory of that name", source.display())))
            }
            Ok(_) if !self.force => {
                Err(ImportError::Source(anyhow::anyhow!("{}: is there already and is kept (--force replaces it)", source.display())))
            }
            Ok(_) => Ok(()),
        }
    }

    /// A name beside the one that a file gets when it is whole.
    fn aside(to: &[u8]) -> Vec<u8> {
        let dir = to.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &to[..at]);
        [dir, format!("/.import-{}", std::process::id()).as_bytes()].concat()
    }

    /// A file appears when it has content and attributes; what is interrupted leaves nothing under its name.
    fn file(&mut self, source: &Path, meta: &Metadata, to: &[u8]) -> Outcome {
        let kind = meta.file_type();
        self.remove_obstacle(source, to)?;
        if kind.is_file() {
            return self.regular(source, meta, to);
        }
        let target =
            if kind.is_symlink() { source.read_link().map_err(of_source(source))?.into_os_string().into_vec() } else { Vec::new() };
        let (root, aside) = (self.fs.root(), Self::aside(to));
        // Left by one that was killed.
        let _ = self.fs.unlink(root, &aside, &self.creds);
        let special = |kind, device| self.fs.mknod(root, &aside, kind, 0o600, device, &self.creds);
        let made = match kind {
            kind if kind.is_symlink() => self.fs.symlink(&target, root, &aside, &self.creds),
            kind if kind.is_fifo() => special(FileKind::Fifo, 0),
            kind if kind.is_socket() => special(FileKind::Socket, 0),
            kind if kind.is_char_device() => special(FileKind::CharDevice, meta.rdev()),
            _ => special(FileKind::BlockDevice, meta.rdev()),
        };
        let node = made.map_err(of_image(source))?;
        self.attributes(source, meta, &node)?;
        self.fs.rename(root, &aside, root, to, RenameFlags::empty(), &self.creds).map_err(of_image(source))
    }

    fn regular(&mut self, source: &Path, meta: &Metadata, to: &[u8]) -> Outcome {
        // Neither a link nor a pipe that came in its place.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let from = File::options().read(true).custom_flags(flags).open(source).map_err(of_source(source))?;
        let now = from.metadata().map_err(of_source(source))?;
        if (now.dev(), now.ino()) != (meta.dev(), meta.ino()) {
            return Err(ImportError::Source(anyhow::anyhow!("{}: is another file now", source.display())));
        }
        let root = self.fs.root();
        let dir = to.iter().rposition(|byte| *byte == b'/').map_or(&b"/"[..], |at| &to[..at.max(1)]);
        let file = self.fs.open_at(root, dir, OFlags::TMPFILE | OFlags::WRONLY, 0o600, &self.creds).map_err(of_image(source))?;
        self.content(source, &from, &file)?;
        self.attributes(source, meta, file.node())?;
        match self.fs.link(file.node(), root, to, &self.creds) {
            Err(error) if error.errno() == Errno::EXIST && self.force => {
                let aside = Self::aside(to);
                let _ = self.fs.unlink(root, &aside, &self.creds);
                self.fs.link(file.node(), root, &aside, &self.creds).map_err(of_image(source))?;
                self.fs.rename(root, &aside, root, to, RenameFlags::empty(), &self.creds).map_err(of_image(source))
            }
            linked => linked.map_err(of_image(source)),
        }
    }

    fn content(&mut self, source: &Path, from: &File, file: &stack::rawfs::fs::File) -> Outcome {
        let mut bytes = vec![0; PIECE];
        let mut at = 0;
        loop {
            // Holes stay holes, where the file system below can tell them.
            let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            let end = rustix::fs::seek(from, SeekFrom::Hole(data)).unwrap_or(u64::MAX);
            at = data;
            while at < end {
                self.progress.go_on().map_err(|stopped| ImportError::Image(stopped.into()))?;
                let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
                let got = from.read_at(&mut bytes[..want], at).map_err(of_source(source))?;
                if got == 0 {
                    break;
                }
                let mut written = 0;
                while written < got {
                    written += file.write_at(&bytes[written..got], at + written as u64).map_err(of_image(source))?;
                }
                at += got as u64;
                self.progress.add(got as u64);
            }
            if at < end {
                break;
            }
        }
        let size = from.metadata().map_err(of_source(source))?.len();
        if file.node().stat().map_err(of_image(source))?.size < size {
            file.set_len(size).map_err(of_image(source))?;
        }
        // A failed write is reported here, with the file's name.
        self.progress.due().then(|| self.fs.write_back()).transpose().map_err(of_image(source))?;
        Ok(())
    }

    fn attributes(&mut self, source: &Path, meta: &Metadata, node: &Node) -> Outcome {
        self.xattrs(source, node)?;
        let stamp = |sec: i64, nsec: i64| SetTime::At(Timestamp { sec, nsec: u32::try_from(nsec).unwrap_or(0) });
        let owner = SetAttr { owner: Some((Some(meta.uid()), Some(meta.gid()))), ..SetAttr::default() };
        self.fs.set_attr(node, &owner, &self.creds).map_err(of_image(source))?;
        let set = SetAttr {
            mode: (node.kind() != FileKind::Symlink).then_some((meta.mode() & 0o7777) as u16),
            owner: None,
            atime: stamp(meta.atime(), meta.atime_nsec()),
            mtime: stamp(meta.mtime(), meta.mtime_nsec()),
        };
        self.fs.set_attr(node, &set, &self.creds).map_err(of_image(source))
    }

    fn xattrs(&mut self, source: &Path, node: &Node) -> Outcome {
        let mut names = vec![0; 1 << 16];
        let Ok(len) = rustix::fs::llistxattr(source, &mut names[..]) else { return Ok(()) };
        let mut value = vec![0; 1 << 16];
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let Ok(len) = rustix::fs::lgetxattr(source, name, &mut value[..]) else { continue };
            match self.fs.set_xattr(node, name, &value[..len], XattrFlags::empty(), &self.creds) {
                Ok(()) => {}
                Err(error) if matches!(error.errno(), Errno::OPNOTSUPP | Errno::NOSPC | Errno::PERM) => {
                    self.left_out(&format!("{}: attribute {}: {error}", source.display(), name.escape_ascii()));
                }
                Err(error) => return Err(of_image(source)(error)),
            }
        }
        Ok(())
    }
}
