//! What must be the same: attributes after each call, and now and then everything.

use std::collections::{BTreeMap, HashMap, HashSet};

use rawfs::fs::FileKind;
use rustix::fs::OFlags;
use rustix::io::Errno;
use sim::posix::call::{Call, shown};
use sim::posix::tree::{FileTree, READ_MAX, Stat, content, digest, join, list_all, stat};

use crate::ours::{Ours, myself};

/// Seconds that times set by the system may differ.
const NEAR_S: i64 = 20;

type Both = (Result<Stat, Errno>, Result<Stat, Errno>);

/// What was seen so far.
#[derive(Default)]
pub struct Compare {
    /// Our number of each file, by the host's number and birth.
    numbers: HashMap<(u64, (i64, u32)), u64>,
    /// Our numbers whose file the host no longer has.
    gone: HashSet<u64>,
}

/// The attributes of the files that a call uses, on both sides.
pub struct CallStats {
    paths: Vec<Both>,
    slots: Vec<Both>,
}

pub fn stat_files(call: &Call, host: &FileTree, ours: &Ours) -> CallStats {
    let path = |path: &&str| {
        let path = if path.is_empty() { "." } else { path };
        (stat(host.root(), path), ours.stat(path))
    };
    let slot = |slot: &usize| (host.slot(*slot).and_then(|file| stat(file, "")), ours.stat_slot(*slot));
    CallStats { paths: call.paths().iter().map(path).collect(), slots: call.slots().iter().map(slot).collect() }
}

impl Compare {
    /// Compares what a call was about.
    pub fn after(&mut self, call: &Call, was: &CallStats, host: &FileTree, ours: &Ours) -> Result<(), String> {
        let is = stat_files(call, host, ours);
        for ((was, is), path) in was.paths.iter().zip(&is.paths).zip(call.paths()) {
            self.both(is).and_then(|()| changes(was, is)).map_err(|what| format!("{path:?} afterwards: {what}"))?;
        }
        let replaced = matches!(call, Call::Open { .. } | Call::OpenAt { .. } | Call::Dup { .. });
        for ((was, is), slot) in was.slots.iter().zip(&is.slots).zip(call.slots()) {
            let changed = if replaced { Ok(()) } else { changes(was, is) };
            self.both(is)
                .and(changed)
                .and_then(|()| position(slot, is, host, ours))
                .map_err(|what| format!("open file {slot} afterwards: {what}"))?;
        }
        Ok(())
    }

    fn both(&mut self, both: &Both) -> Result<(), String> {
        match both {
            (Err(host), Err(ours)) if host == ours => Ok(()),
            (Ok(host), Ok(ours)) => self.same(host, ours),
            (host, ours) => Err(format!("host {host:?}, ours {ours:?}")),
        }
    }

    fn same(&mut self, host: &Stat, ours: &Stat) -> Result<(), String> {
        let links = |stat: &Stat| if stat.is_dir() { format!(" nlink {}", stat.nlink) } else { String::new() };
        let (a, b) = (shown(host) + &links(host), shown(ours) + &links(ours));
        if a != b {
            return Err(format!("host {a}; ours {b}"));
        }
        same_time("mtime", host.mtime, ours.mtime)?;
        // Being followed is no read of a link here.
        if !host.is_link() {
            same_time("atime", host.atime, ours.atime)?;
        }
        same_time("ctime", host.ctime, ours.ctime)?;
        self.same_number(host, ours)
    }

    /// The host gives a number again, at times within one tick of its clock; ours never does, and counts up.
    fn same_number(&mut self, host: &Stat, ours: &Stat) -> Result<(), String> {
        let known = self.numbers.entry((host.ino, host.birth)).or_insert(ours.ino);
        if *known < ours.ino {
            self.gone.insert(*known);
            *known = ours.ino;
        }
        if *known == ours.ino && !self.gone.contains(known) { Ok(()) } else { Err(format!("its number was {known} and is {}", ours.ino)) }
    }

    /// Compares everything below a path.
    pub fn tree(&mut self, path: &str, host: &FileTree, ours: &Ours) -> Result<(), String> {
        let theirs = list_all(host, path).map_err(|error| format!("{path:?}: {error}"));
        // An ordinary user may have shut itself out of a directory: then both refuse to list it.
        let (theirs, numbers) = match (theirs, names(path, ours)) {
            (Err(_), Err(_)) if !rustix::process::geteuid().is_root() => return Ok(()),
            (theirs, numbers) => (theirs?, numbers?),
        };
        let names: Vec<&String> = numbers.keys().collect();
        let expected: Vec<&String> = theirs.iter().map(|listed| &listed.name).collect();
        if names != expected {
            return Err(format!("{path:?}: host {expected:?}; ours {names:?}"));
        }
        for (name, number) in &numbers {
            let path = join(path, name);
            let both = (stat(host.root(), &path), ours.stat(&path));
            self.both(&both).map_err(|what| format!("{path}: {what}"))?;
            // Both refuse to search the directory, as `self.both` has found.
            let Ok(is) = both.1 else { continue };
            if *number != is.ino {
                return Err(format!("{path}: listed as {number}, and is {}", is.ino));
            }
            let (a, b) = (content(host, &path, &is), our_content(ours, &path, &is));
            if a != b {
                return Err(format!("{path}: host {a:?}; ours {b:?}"));
            }
            if is.is_dir() {
                self.tree(&path, host, ours)?;
            }
        }
        Ok(())
    }
}

/// What is in a directory of the image, with its numbers.
pub fn names(path: &str, ours: &Ours) -> Result<BTreeMap<String, u64>, String> {
    let path = if path.is_empty() { "." } else { path };
    let open = || -> Result<BTreeMap<String, u64>, rawfs::fs::Error> {
        let dir = ours.fs().open_at(ours.base(), path.as_bytes(), OFlags::DIRECTORY | OFlags::NOFOLLOW, 0, &myself())?;
        let mut names = BTreeMap::new();
        dir.read_dir(&mut |entry, _| {
            names.insert(String::from_utf8_lossy(&entry.name).into_owned(), entry.ino);
            true
        })?;
        names.retain(|name, _| name != "." && name != "..");
        Ok(names)
    };
    open().map_err(|error| format!("{path:?}: {error}"))
}

/// Times change when the host's do.
fn changes(was: &Both, is: &Both) -> Result<(), String> {
    let ((Ok(host_was), Ok(ours_was)), (Ok(host_is), Ok(ours_is))) = (was, is) else { return Ok(()) };
    if host_was.ino != host_is.ino || ours_was.ino != ours_is.ino {
        return Ok(());
    }
    for (what, host, ours) in [
        ("mtime", host_was.mtime != host_is.mtime, ours_was.mtime != ours_is.mtime),
        ("ctime", host_was.ctime != host_is.ctime, ours_was.ctime != ours_is.ctime),
    ] {
        if host != ours {
            return Err(format!("{what} changed: host {host}, ours {ours}"));
        }
    }
    Ok(())
}

fn position(slot: usize, is: &Both, host: &FileTree, ours: &Ours) -> Result<(), String> {
    if !is.0.as_ref().is_ok_and(Stat::is_file) {
        return Ok(());
    }
    let theirs = host.slot(slot).and_then(rustix::fs::tell);
    let here = ours.slot(slot).and_then(|file| file.seek(rustix::fs::SeekFrom::Current(0))).map_err(|error| error.errno());
    if theirs == here { Ok(()) } else { Err(format!("position: host {theirs:?}, ours {here:?}")) }
}

fn is_recent(time: (i64, u32)) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    (now - time.0).abs() < 1 << 24
}

fn same_time(what: &str, host: (i64, u32), ours: (i64, u32)) -> Result<(), String> {
    let near = is_recent(host) && (host.0 - ours.0).abs() <= NEAR_S;
    if near || host == ours { Ok(()) } else { Err(format!("{what}: host {host:?}, ours {ours:?}")) }
}

fn our_content(ours: &Ours, path: &str, stat: &Stat) -> Result<String, Errno> {
    let root = myself();
    let read = || {
        if stat.is_link() {
            let target = ours.fs().readlink(ours.base(), path.as_bytes(), &root)?;
            return Ok(String::from_utf8_lossy(&target).into_owned());
        }
        if !stat.is_file() {
            return Ok(String::new());
        }
        let file = ours.fs().open_at(ours.base(), path.as_bytes(), OFlags::RDONLY, 0, &root)?;
        assert_eq!(file.node().kind(), FileKind::File);
        let mut data = vec![0u8; stat.size.min(READ_MAX) as usize];
        let have = file.read_at(&mut data, 0)?;
        Ok(digest(&data[..have]))
    };
    read().map_err(|error: rawfs::fs::Error| error.errno())
}
