//! ls, lsr, tree, du, stat, readlink.

use std::ffi::OsString;

use anyhow::Context;
use stack::rawfs::fs::{FileKind, Stat, Timestamp};

use super::session::Session;
use super::shown;
use super::verbs::Verb;
use super::walk::{below, last};
use crate::fs::human;

/// Runs a command that shows names and attributes.
pub fn run(session: &mut Session, verb: &Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Ls(args) => each(session, &args.paths, |session, path| ls(session, path, args.long, args.paths.len() > 1)),
        Verb::Lsr(args) => each(session, &args.paths, |session, path| lsr(session, path, args.long)),
        Verb::Tree(args) => each(session, &args.paths, tree),
        Verb::Du(args) => each(session, &args.paths, du),
        Verb::Stat(args) => each(session, &args.paths, stat),
        Verb::Readlink(args) => each(session, &args.paths, readlink),
        _ => unreachable!("not a look"),
    }
}

/// The paths, or the working directory.
fn each(session: &mut Session, paths: &[OsString], what: impl Fn(&mut Session, &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if paths.is_empty() {
        let dir = session.dir.clone();
        return what(session, &dir);
    }
    paths.iter().try_for_each(|path| {
        let path = session.path(path)?;
        what(session, &path)
    })
}

fn sign(kind: FileKind) -> char {
    match kind {
        FileKind::File => '-',
        FileKind::Dir => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    }
}

/// `drwxr-xr-x`.
fn mode(stat: &Stat) -> String {
    let mut text = String::from(sign(stat.kind));
    for (shift, special, signs) in [(6, 0o4000, ['s', 'S']), (3, 0o2000, ['s', 'S']), (0, 0o1000, ['t', 'T'])] {
        let bits = stat.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (stat.mode & special != 0, bits & 1 != 0) {
            (true, runs) => signs[usize::from(!runs)],
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// In UTC, by the proleptic calendar.
fn date(stamp: Timestamp) -> String {
    let (days, second) = (stamp.sec.div_euclid(86_400), stamp.sec.rem_euclid(86_400));
    // From the days since March 1st of year 0 (Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

fn line(session: &Session, path: &[u8], name: &str, long: bool) -> anyhow::Result<String> {
    if !long {
        return Ok(name.to_owned());
    }
    let stat = session.node(path, false)?.stat().with_context(|| shown(path))?;
    let target = if stat.kind == FileKind::Symlink { format!(" -> {}", shown(&target(session, path)?)) } else { String::new() };
    let (mode, size, time) = (mode(&stat), stat.size, date(stat.mtime));
    Ok(format!("{mode} {:>3} {:>5} {:>5} {size:>12} {time} {name}{target}", stat.nlink, stat.uid, stat.gid))
}

fn ls(session: &mut Session, path: &[u8], long: bool, several: bool) -> anyhow::Result<()> {
    if !session.is_dir(path) {
        session.node(path, false)?;
        let line = line(session, path, &shown(path), long)?;
        writeln!(session.out, "{line}")?;
        return Ok(());
    }
    if several {
        writeln!(session.out, "{}:", shown(path))?;
    }
    for entry in session.entries(path)? {
        session.go_on()?;
        let slash = if entry.kind == FileKind::Dir && !long { "/" } else { "" };
        let line = line(session, &below(path, &entry.name), &format!("{}{slash}", shown(&entry.name)), long)?;
        writeln!(session.out, "{line}")?;
    }
    Ok(())
}

/// Paths as they are found, so that a large tree is not kept in memory.
fn visit(
    session: &mut Session,
    path: &[u8],
    mut describe: impl FnMut(&Session, &[u8], FileKind, usize) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let mut out = std::mem::replace(&mut session.out, Box::new(std::io::sink()));
    let outcome = session.walk(path, &mut |path, kind, depth| {
        let text = describe(session, path, kind, depth)?;
        out.write_all(text.as_bytes())?;
        Ok(())
    });
    session.out = out;
    outcome
}

fn lsr(session: &mut Session, path: &[u8], long: bool) -> anyhow::Result<()> {
    visit(session, path, |session, path, kind, _| {
        let slash = if kind == FileKind::Dir && path != b"/" { "/" } else { "" };
        Ok(line(session, path, &format!("{}{slash}", shown(path)), long)? + "\n")
    })
}

fn tree(session: &mut Session, path: &[u8]) -> anyhow::Result<()> {
    visit(session, path, |session, path, kind, depth| {
        let name = if depth == 0 { shown(path) } else { shown(last(path)) };
        let target = if kind == FileKind::Symlink { format!(" -> {}", shown(&target(session, path)?)) } else { String::new() };
        Ok(format!("{}{name}{target}\n", "    ".repeat(depth)))
    })
}

/// Bytes that a path and all below take, each file once.
fn du(session: &mut Session, path: &[u8]) -> anyhow::Result<()> {
    let (mut bytes, mut files, mut seen) = (0, 0_u64, std::collections::HashSet::new());
    session.walk(path, &mut |path, _, _| {
        let stat = session.node(path, false)?.stat().with_context(|| shown(path))?;
        files += 1;
        if stat.nlink < 2 || stat.kind == FileKind::Dir || seen.insert(stat.ino) {
            bytes += stat.blocks * 512;
        }
        Ok(())
    })?;
    writeln!(session.out, "{:>12} {files:>8} names  {}", human(bytes), shown(path))?;
    Ok(())
}

fn stat(session: &mut Session, path: &[u8]) -> anyhow::Result<()> {
    let stat = session.node(path, false)?.stat().with_context(|| shown(path))?;
    let what = match stat.kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    };
    let target = if stat.kind == FileKind::Symlink { format!(" -> {}", shown(&target(session, path)?)) } else { String::new() };
    let out = &mut session.out;
    writeln!(out, "{}: {what}{target}", shown(path))?;
    writeln!(out, "  number {}, {} names, {} bytes, takes {}", stat.ino, stat.nlink, stat.size, human(stat.blocks * 512))?;
    writeln!(out, "  mode {:04o} {}, user {}, group {}", stat.mode & 0o7777, mode(&stat), stat.uid, stat.gid)?;
    for (name, stamp) in [("read", stat.atime), ("written", stat.mtime), ("changed", stat.ctime), ("made", stat.btime)] {
        writeln!(out, "  {name:8} {}.{:09}", date(stamp), stamp.nsec)?;
    }
    Ok(())
}

fn target(session: &Session, path: &[u8]) -> anyhow::Result<Vec<u8>> {
    let fs = session.fs()?;
    fs.readlink(fs.root(), path, &session.creds).with_context(|| shown(path))
}

fn readlink(session: &mut Session, path: &[u8]) -> anyhow::Result<()> {
    let target = target(session, path)?;
    writeln!(session.out, "{}", shown(&target))?;
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |sec| date(Timestamp { sec, nsec: 0 });
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_827_696), "2000-02-29 12:34:56");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!(at(4_102_444_800), "2100-01-01 00:00:00");
    }
}
