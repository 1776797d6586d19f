//! rm, mkdir, rmdir, mv, ln, cp.

use anyhow::{Context, bail};
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use stack::rawfs::fs::{Error, FileKind, SetAttr, SetTime};

use super::session::Session;
use super::shown;
use super::verbs::{CpArgs, FromTo, LnArgs, MkdirArgs, RmArgs, Verb};
use super::walk::{below, last};

/// Bytes copied at once.
const PIECE: usize = 1 << 20;

/// Runs a command that creates, renames or removes names.
pub fn run(session: &mut Session, verb: &Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Rm(args) => rm(session, args),
        Verb::Mkdir(args) => mkdir(session, args),
        Verb::Rmdir(args) => args.paths.iter().try_for_each(|path| {
            let (path, fs) = (session.path(path)?, session.fs()?);
            fs.rmdir(fs.root(), &path, &session.creds).with_context(|| shown(&path))
        }),
        Verb::Mv(args) => mv(session, args),
        Verb::Ln(args) => ln(session, args),
        Verb::Cp(args) => cp(session, args),
        _ => unreachable!("not a name's"),
    }
}

fn rm(session: &Session, args: &RmArgs) -> anyhow::Result<()> {
    for path in &args.paths {
        let path = session.path(path)?;
        match session.fs()?.stat(session.fs()?.root(), &path, false, &session.creds) {
            Err(error) if args.force && error.errno() == Errno::NOENT => continue,
            Err(error) => return Err(error).with_context(|| shown(&path)),
            Ok(stat) if stat.kind == FileKind::Dir && !args.recursive => bail!("{}: is a directory: give -r", shown(&path)),
            Ok(_) => session.remove(&path)?,
        }
    }
    Ok(())
}

fn mkdir(session: &Session, args: &MkdirArgs) -> anyhow::Result<()> {
    let fs = session.fs()?;
    for path in &args.paths {
        let path = session.path(path)?;
        let mut ends: Vec<usize> = if args.parents { (1..path.len()).filter(|at| path[*at] == b'/').collect() } else { Vec::new() };
        ends.push(path.len());
        for part in ends.into_iter().map(|end| &path[..end]) {
            match fs.mkdir(fs.root(), part, 0o777, &session.creds) {
                Err(error) if args.parents && error.errno() == Errno::EXIST && session.is_dir(part) => {}
                made => made.map(drop).with_context(|| shown(part))?,
            }
        }
    }
    Ok(())
}

/// Where each is to go: into a directory, or to a name.
fn targets(session: &Session, args: &FromTo) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let to = session.path(&args.to)?;
    let into = session.is_dir(&to);
    if args.from.len() > 1 && !into {
        bail!("{}: is no directory for several", shown(&to));
    }
    let pair = |from| {
        let from = session.path(from)?;
        let to = if into { below(&to, last(&from)) } else { to.clone() };
        Ok((from, to))
    };
    args.from.iter().map(pair).collect()
}

fn mv(session: &Session, args: &FromTo) -> anyhow::Result<()> {
    let fs = session.fs()?;
    for (from, to) in targets(session, args)? {
        let moved = fs.rename(fs.root(), &from, fs.root(), &to, RenameFlags::empty(), &session.creds);
        moved.with_context(|| format!("{} to {}", shown(&from), shown(&to)))?;
    }
    Ok(())
}

fn ln(session: &Session, args: &LnArgs) -> anyhow::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let (fs, mut name) = (session.fs()?, session.path(&args.name)?);
    if session.is_dir(&name) {
        name = below(&name, last(args.target.as_bytes()));
    }
    if args.symbolic {
        let made = fs.symlink(args.target.as_bytes(), fs.root(), &name, &session.creds);
        return made.map(drop).with_context(|| shown(&name));
    }
    let node = session.node(&session.path(&args.target)?, false)?;
    fs.link(&node, fs.root(), &name, &session.creds).with_context(|| shown(&name))
}

fn cp(session: &Session, args: &CpArgs) -> anyhow::Result<()> {
    for (from, to) in targets(session, &args.paths)? {
        let kind = session.node(&from, !args.recursive)?.kind();
        match kind {
            FileKind::Dir if !args.recursive => bail!("{}: is a directory: give -r", shown(&from)),
            FileKind::Dir if to == from || to.starts_with(&below(&from, b"")) => bail!("{}: cannot be copied into itself", shown(&from)),
            FileKind::Dir => session.walk(&from, &mut |path, kind, _| {
                let mut target = to.clone();
                target.extend_from_slice(&path[from.len()..]);
                session.copy_one(path, &target, kind)
            })?,
            kind => session.copy_one(&from, &to, kind)?,
        }
    }
    Ok(())
}

impl Session {
    /// Removes what is at a path and all below.
    pub fn remove(&self, path: &[u8]) -> anyhow::Result<()> {
        let (fs, mut dirs) = (self.fs()?, Vec::new());
        self.walk(path, &mut |path, kind, _| {
            if kind == FileKind::Dir {
                dirs.push(path.to_vec());
                return Ok(());
            }
            fs.unlink(fs.root(), path, &self.creds).with_context(|| shown(path))
        })?;
        // Those below come later in the walk.
        dirs.iter().rev().try_for_each(|dir| fs.rmdir(fs.root(), dir, &self.creds).with_context(|| shown(dir)))
    }

    fn copy_one(&self, from: &[u8], to: &[u8], kind: FileKind) -> anyhow::Result<()> {
        let fs = self.fs()?;
        match kind {
            FileKind::Dir => match fs.mkdir(fs.root(), to, 0o777, &self.creds) {
                Err(error) if error.errno() == Errno::EXIST && self.is_dir(to) => return Ok(()),
                made => drop(made.with_context(|| shown(to))?),
            },
            FileKind::Symlink => {
                let target = fs.readlink(fs.root(), from, &self.creds).with_context(|| shown(from))?;
                return fs.symlink(&target, fs.root(), to, &self.creds).map(drop).with_context(|| shown(to));
            }
            FileKind::File => self.copy_content(from, to)?,
            _ => bail!("{}: neither a file nor a directory nor a symbolic link", shown(from)),
        }
        let stat = self.node(from, true)?.stat()?;
        let set = SetAttr { mode: Some((stat.mode & 0o7777) as u16), mtime: SetTime::At(stat.mtime), ..SetAttr::default() };
        fs.set_attr(&self.node(to, true)?, &set, &self.creds).with_context(|| shown(to))
    }

    fn copy_content(&self, from: &[u8], to: &[u8]) -> anyhow::Result<()> {
        let fs = self.fs()?;
        let source = fs.open_at(fs.root(), from, OFlags::RDONLY, 0, &self.creds).with_context(|| shown(from))?;
        if self.node(to, true).is_ok_and(|node| node.ino() == source.node().ino()) {
            bail!("{} and {} are the same file", shown(from), shown(to));
        }
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
        let target = fs.open_at(fs.root(), to, flags, 0o666, &self.creds).with_context(|| shown(to))?;
        let (mut piece, mut at) = (vec![0; PIECE], 0);
        loop {
            self.go_on()?;
            let got = source.read_at(&mut piece, at).with_context(|| shown(from))?;
            if got == 0 {
                return Ok(());
            }
            write_all(&target, &piece[..got], at).with_context(|| shown(to))?;
            at += got as u64;
        }
    }
}

/// All of it, or ENOSPC.
pub fn write_all(file: &stack::rawfs::fs::File, from: &[u8], at: u64) -> Result<(), Error> {
    let done = file.write_at(from, at)?;
    if done < from.len() { Err(Errno::NOSPC.into()) } else { Ok(()) }
}
