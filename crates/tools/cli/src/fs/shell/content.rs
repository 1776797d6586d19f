//! cat, catr, write, append, owrite, truncate, touch.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, bail};
use hybridfs::Size;
use rustix::fs::OFlags;
use stack::rawfs::fs::{FileKind, SetTime};

use super::names::write_all;
use super::session::Session;
use super::shown;
use super::verbs::{Paths, TruncateArgs, Verb, WriteArgs};

/// Bytes shown at once.
const PIECE: usize = 1 << 20;

/// Runs a command that reads or writes the content of files.
pub fn run(session: &mut Session, verb: &Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Cat(args) => args.paths.iter().try_for_each(|path| {
            let path = session.path(path)?;
            cat(session, &path)
        }),
        Verb::Catr(args) => catr(session, args),
        Verb::Write(args) => put(session, args, false),
        Verb::Append(args) => put(session, args, true),
        Verb::Owrite(args) => owrite(session, &args.path, args.offset, &joined(&args.words)),
        Verb::Truncate(args) => truncate(session, args),
        Verb::Touch(args) => args.paths.iter().try_for_each(|path| touch(session, path)),
        _ => unreachable!("not a content's"),
    }
}

fn cat(session: &mut Session, path: &[u8]) -> anyhow::Result<()> {
    let fs = session.fs()?;
    let file = fs.open_at(fs.root(), path, OFlags::RDONLY, 0, &session.creds).with_context(|| shown(path))?;
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    loop {
        session.go_on()?;
        let got = file.read_at(&mut piece, at).with_context(|| shown(path))?;
        if got == 0 {
            return Ok(());
        }
        session.out.write_all(&piece[..got])?;
        at += got as u64;
    }
}

fn catr(session: &mut Session, args: &Paths) -> anyhow::Result<()> {
    let paths = args.paths.iter().map(|path| session.path(path)).collect::<anyhow::Result<Vec<_>>>()?;
    for path in if paths.is_empty() { vec![session.dir.clone()] } else { paths } {
        let mut files = Vec::new();
        session.walk(&path, &mut |path, kind, _| {
            if kind == FileKind::File {
                files.push(path.to_vec());
            }
            Ok(())
        })?;
        for file in files {
            writeln!(session.out, "{}:", shown(&file))?;
            cat(session, &file)?;
            writeln!(session.out)?;
        }
    }
    Ok(())
}

fn joined(words: &[OsString]) -> Vec<u8> {
    words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' ')
}

fn put(session: &mut Session, args: &WriteArgs, behind: bool) -> anyhow::Result<()> {
    let (path, data) = (session.path(&args.path)?, joined(&args.words));
    if session.gathered.is_some() {
        return session.with_gathered(&path, |transaction, file| {
            if behind {
                return transaction.append(file, &data);
            }
            transaction.set_len(file, 0)?;
            transaction.write_at(file, &data, 0)
        });
    }
    let fs = session.fs()?;
    let flags = OFlags::CREATE | OFlags::WRONLY | if behind { OFlags::APPEND } else { OFlags::TRUNC };
    let file = fs.open_at(fs.root(), &path, flags, 0o666, &session.creds).with_context(|| shown(&path))?;
    write_all(&file, &data, 0).with_context(|| shown(&path))
}

fn owrite(session: &mut Session, path: &OsString, offset: u64, data: &[u8]) -> anyhow::Result<()> {
    let path = session.path(path)?;
    if session.gathered.is_some() {
        return session.with_gathered(&path, |transaction, file| transaction.write_at(file, data, offset));
    }
    let fs = session.fs()?;
    let file = fs.open_at(fs.root(), &path, OFlags::WRONLY, 0, &session.creds).with_context(|| shown(&path))?;
    write_all(&file, data, offset).with_context(|| shown(&path))
}

fn truncate(session: &mut Session, args: &TruncateArgs) -> anyhow::Result<()> {
    let Size::Bytes(size) = args.size else { bail!("the size of a file is no percentage: see `help truncate`") };
    for path in &args.paths {
        let path = session.path(path)?;
        if session.gathered.is_some() {
            session.with_gathered(&path, |transaction, file| transaction.set_len(file, size))?;
            continue;
        }
        let fs = session.fs()?;
        let file = fs.open_at(fs.root(), &path, OFlags::CREATE | OFlags::WRONLY, 0o666, &session.creds);
        file.and_then(|file| file.set_len(size)).with_context(|| shown(&path))?;
    }
    Ok(())
}

fn touch(session: &mut Session, path: &OsString) -> anyhow::Result<()> {
    let path = session.path(path)?;
    if session.gathered.is_some() {
        return session.with_gathered(&path, |_, _| Ok(()));
    }
    let fs = session.fs()?;
    if !session.is_dir(&path) {
        fs.open_at(fs.root(), &path, OFlags::CREATE | OFlags::WRONLY, 0o666, &session.creds).with_context(|| shown(&path))?;
    }
    fs.utimens(fs.root(), &path, [SetTime::Now; 2], true, &session.creds).with_context(|| shown(&path))
}
