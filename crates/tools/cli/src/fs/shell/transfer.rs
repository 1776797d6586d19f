//! import, export: files and trees of the machine, to and from the image.
//!
//! A file appears under its name when it is whole, on either side: what is interrupted leaves nothing of the file it was at.

use std::fs::{self, File as HostFile};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use stack::rawfs::fs::{File, FileKind, SetAttr, SetTime, Timestamp};

use super::names::write_all;
use super::session::Session;
use super::shown;
use super::verbs::{ExportArgs, ImportArgs};
use super::walk::{below, last};
use crate::fs::staging::{self, NewFile, Staging};

/// Bytes moved at once.
const PIECE: usize = 1 << 20;

fn progress(session: &Session) -> ProgressBar {
    if !session.shows_progress {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {bytes} ({bytes_per_sec}) {wide_msg}");
    let bar = ProgressBar::new_spinner();
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}

/// Copies a file or directory of the machine into the image.
pub fn import(session: &mut Session, args: &ImportArgs) -> anyhow::Result<()> {
    let named = || format!("{}", args.file.display());
    let name = args.file.file_name().map(ToOwned::to_owned);
    let name = name.or_else(|| fs::canonicalize(&args.file).ok()?.file_name().map(ToOwned::to_owned));
    let mut path = match (&args.path, &name) {
        (Some(path), _) => session.path(path)?,
        (None, Some(name)) => below(&session.dir, name.as_bytes()),
        (None, None) => bail!("{}: has no name: say where to", named()),
    };
    if let (Some(_), Some(name), true) = (&args.path, &name, session.is_dir(&path)) {
        path = below(&path, name.as_bytes());
    }
    let meta = fs::metadata(&args.file).with_context(named)?;
    if session.gathered.is_some() {
        if !meta.is_file() {
            bail!("{}: only files can be imported in a transaction", named());
        }
        let data = fs::read(&args.file).with_context(named)?;
        return session.with_gathered(&path, |transaction, file| {
            transaction.set_len(file, 0)?;
            transaction.write_at(file, &data, 0)
        });
    }
    let bar = progress(session);
    let outcome = bring(session, &fs::canonicalize(&args.file).with_context(named)?, &path, &bar);
    bar.finish_and_clear();
    let (files, bytes) = outcome?;
    writeln!(session.out, "{files} files, {} into {}", crate::fs::human(bytes), shown(&path))?;
    Ok(())
}

/// Without a call in a call: trees may be deep.
fn bring(session: &Session, from: &Path, to: &[u8], bar: &ProgressBar) -> anyhow::Result<(u64, u64)> {
    let (mut files, mut bytes, mut dirs) = (0, 0, Vec::new());
    let mut waiting = vec![(from.to_owned(), to.to_vec())];
    while let Some((from, to)) = waiting.pop() {
        session.go_on()?;
        let named = || format!("{}", from.display());
        let meta = fs::symlink_metadata(&from).with_context(named)?;
        bar.set_message(named());
        if meta.is_dir() {
            bring_dir(session, &to)?;
            let mut entries = fs::read_dir(&from).with_context(named)?.collect::<Result<Vec<_>, _>>().with_context(named)?;
            entries.sort_by_key(fs::DirEntry::file_name);
            waiting.extend(entries.into_iter().rev().map(|entry| (entry.path(), below(&to, entry.file_name().as_bytes()))));
            dirs.push((to, meta));
            continue;
        }
        files += 1;
        if meta.is_symlink() {
            bring_link(session, &from, &to)?;
        } else if meta.is_file() {
            bytes += bring_file(session, &from, &to, &meta, bar)?;
        } else {
            bail!("{}: neither a file nor a directory nor a symbolic link", named());
        }
    }
    // What came into a directory has changed its times.
    for (dir, meta) in dirs.iter().rev() {
        let fs = session.fs()?;
        fs.set_attr(&session.node(dir, false)?, &attributes(session, meta), &session.creds).with_context(|| shown(dir))?;
    }
    Ok((files, bytes))
}

/// As the machine's file has them; owners only if we are the superuser.
fn attributes(session: &Session, meta: &fs::Metadata) -> SetAttr {
    let stamp = |sec: i64, nsec: i64| SetTime::At(Timestamp { sec, nsec: u32::try_from(nsec).unwrap_or(0) });
    let owner = (session.creds.uid == 0).then(|| (Some(meta.uid()), Some(meta.gid())));
    let mode = Some((meta.permissions().mode() & 0o7777) as u16);
    SetAttr { mode, owner, atime: stamp(meta.atime(), meta.atime_nsec()), mtime: stamp(meta.mtime(), meta.mtime_nsec()) }
}

fn bring_dir(session: &Session, to: &[u8]) -> anyhow::Result<()> {
    let fs = session.fs()?;
    match fs.mkdir(fs.root(), to, 0o777, &session.creds) {
        Err(error) if error.errno() == Errno::EXIST && session.is_dir(to) => Ok(()),
        made => made.map(drop).with_context(|| shown(to)),
    }
}

fn bring_link(session: &Session, from: &Path, to: &[u8]) -> anyhow::Result<()> {
    let target = fs::read_link(from).with_context(|| format!("{}", from.display()))?;
    let fs = session.fs()?;
    fs.symlink(target.as_os_str().as_bytes(), fs.root(), to, &session.creds).map(drop).with_context(|| shown(to))
}

fn bring_file(session: &Session, from: &Path, to: &[u8], meta: &fs::Metadata, bar: &ProgressBar) -> anyhow::Result<u64> {
    let (fs, named) = (session.fs()?, || format!("{}", from.display()));
    let mut source = HostFile::open(from).with_context(named)?;
    let dir = super::session::join(to, b"..");
    // Without a name until it is whole.
    let target = fs.open_at(fs.root(), &dir, OFlags::TMPFILE | OFlags::WRONLY, 0o666, &session.creds).with_context(|| shown(&dir))?;
    let bytes = copy_in(session, &mut source, &target, bar).with_context(|| format!("{} to {}", named(), shown(to)))?;
    fs.set_attr(target.node(), &attributes(session, meta), &session.creds).with_context(|| shown(to))?;
    match fs.link(target.node(), fs.root(), to, &session.creds) {
        Err(error) if error.errno() == Errno::EXIST && !session.is_dir(to) => {
            let name = [b".import-".as_slice(), std::process::id().to_string().as_bytes()].concat();
            let temporary = below(&dir, &name);
            fs.link(target.node(), fs.root(), &temporary, &session.creds).with_context(|| shown(&temporary))?;
            fs.rename(fs.root(), &temporary, fs.root(), to, RenameFlags::empty(), &session.creds).with_context(|| shown(to))?;
        }
        linked => linked.with_context(|| shown(to))?,
    }
    Ok(bytes)
}

/// Zeroes become holes.
fn copy_in(session: &Session, source: &mut HostFile, target: &File, bar: &ProgressBar) -> anyhow::Result<u64> {
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    loop {
        session.go_on()?;
        let mut got = 0;
        while got < PIECE {
            match source.read(&mut piece[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => session.go_on()?,
                Err(error) => return Err(error.into()),
            }
        }
        if piece[..got].iter().any(|byte| *byte != 0) {
            write_all(target, &piece[..got], at)?;
        }
        at += got as u64;
        bar.inc(got as u64);
        if got < PIECE {
            target.set_len(at)?;
            return Ok(at);
        }
    }
}

/// Copies a file or directory of the image to the machine.
pub fn export(session: &mut Session, args: &ExportArgs) -> anyhow::Result<()> {
    let path = session.path(&args.path)?;
    let name = std::ffi::OsString::from_vec(last(&path).to_vec());
    let file = match &args.file {
        None if name.is_empty() => bail!("/: has no name: say where to"),
        None => PathBuf::from(&name),
        Some(file) if file.is_dir() && !name.is_empty() => file.join(&name),
        Some(file) => file.clone(),
    };
    let bar = progress(session);
    let (mut files, mut bytes, mut dirs) = (0_u64, 0, Vec::new());
    let outcome = session.walk(&path, &mut |from, kind, _| {
        let rest = from[path.len()..].strip_prefix(b"/").unwrap_or(&from[path.len()..]);
        let to = if rest.is_empty() { file.clone() } else { file.join(std::ffi::OsStr::from_bytes(rest)) };
        bar.set_message(shown(from));
        match kind {
            FileKind::Dir => {
                send_dir(&to)?;
                dirs.push((from.to_vec(), to));
            }
            FileKind::Symlink => send_link(session, from, &to, args.force)?,
            FileKind::File => bytes += send_file(session, from, &to, args.force, &bar)?,
            _ => bail!("{}: neither a file nor a directory nor a symbolic link", shown(from)),
        }
        files += u64::from(kind != FileKind::Dir);
        Ok(())
    });
    bar.finish_and_clear();
    outcome?;
    for (from, to) in dirs.iter().rev() {
        let stat = session.node(from, false)?.stat()?;
        // Never through a link that came in its place.
        let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
        let dir = HostFile::options().read(true).custom_flags(flags).open(to).with_context(|| format!("{}", to.display()))?;
        dress(&dir, &stat).with_context(|| format!("{}", to.display()))?;
    }
    writeln!(session.out, "{files} files, {} into {}", crate::fs::human(bytes), file.display())?;
    Ok(())
}

fn send_dir(to: &Path) -> anyhow::Result<()> {
    match fs::create_dir(to) {
        // Never through a symbolic link: it may be one the image brought.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && fs::symlink_metadata(to).is_ok_and(|meta| meta.is_dir()) => {
            Ok(())
        }
        made => made.with_context(|| format!("{}", to.display())),
    }
}

/// The directory that a file goes into, and the file's name in it.
fn place(to: &Path) -> anyhow::Result<(OwnedFd, &[u8])> {
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = to.file_name().with_context(|| format!("{}: has no name", to.display()))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::open(dir, flags, Mode::empty()).with_context(|| format!("{}", dir.display()))?, name.as_bytes()))
}

/// In place of what is there only if that is wanted.
fn must_be_free(dir: BorrowedFd<'_>, name: &[u8], to: &Path, force: bool) -> anyhow::Result<()> {
    match staging::is_in_the_way(dir, name, force).with_context(|| format!("{}", to.display()))? {
        Some(_) => bail!("{}: is there already and is kept (-f replaces a file)", to.display()),
        None => Ok(()),
    }
}

fn send_link(session: &Session, from: &[u8], to: &Path, force: bool) -> anyhow::Result<()> {
    let fs = session.fs()?;
    let target = fs.readlink(fs.root(), from, &session.creds).with_context(|| shown(from))?;
    let (dir, name) = place(to)?;
    must_be_free(dir.as_fd(), name, to, force)?;
    let named = || format!("{}", to.display());
    let staging = Staging::new(dir.as_fd()).with_context(named)?;
    rustix::fs::symlinkat(&target[..], staging.own(), Staging::object()).with_context(named)?;
    staging.publish(name, force).with_context(named)
}

/// Time and permissions, without set-id bits: the owner is another one.
fn dress(file: &HostFile, stat: &stack::rawfs::fs::Stat) -> anyhow::Result<()> {
    file.set_permissions(fs::Permissions::from_mode(stat.mode & 0o777))?;
    let time = |stamp: Timestamp| rustix::fs::Timespec { tv_sec: stamp.sec, tv_nsec: stamp.nsec.into() };
    let times = rustix::fs::Timestamps { last_access: time(stat.atime), last_modification: time(stat.mtime) };
    Ok(rustix::fs::futimens(file, &times)?)
}

fn send_file(session: &Session, from: &[u8], to: &Path, force: bool, bar: &ProgressBar) -> anyhow::Result<u64> {
    let fs = session.fs()?;
    let source = fs.open_at(fs.root(), from, OFlags::RDONLY, 0, &session.creds).with_context(|| shown(from))?;
    let (dir, name) = place(to)?;
    must_be_free(dir.as_fd(), name, to, force)?;
    let named = || format!("{}", to.display());
    let new = NewFile::new(dir.as_fd()).with_context(named)?;
    let bytes = copy_out(session, &source, new.file(), bar).with_context(|| format!("{} to {}", shown(from), named()))?;
    dress(new.file(), &source.node().stat()?)?;
    // Not in place of what came meanwhile.
    new.publish(name, force).with_context(named)?;
    Ok(bytes)
}

fn copy_out(session: &Session, source: &File, target: &HostFile, bar: &ProgressBar) -> anyhow::Result<u64> {
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    loop {
        session.go_on()?;
        let got = source.read_at(&mut piece, at)?;
        if got == 0 {
            target.set_len(at)?;
            return Ok(at);
        }
        if piece[..got].iter().any(|byte| *byte != 0) {
            target.write_all_at(&piece[..got], at)?;
        }
        at += got as u64;
        bar.inc(got as u64);
    }
}
