//! The same random calls on the library and on a directory of this machine, compared call by call: result, errno and effect.
//!
//! `FULL=1` does 1,000,000 of them, `SEED=n` those of a seed that was printed. What is not asked, and why: see `asked`.

mod compare;
mod ours;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rawfs::fs::FsSettings;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use sim::posix::as_user;
use sim::posix::call::{Call, Which};
use sim::posix::generate::{Generator, USERS};
use sim::posix::world::{SLOTS, Said, World, list_all, stat};

use compare::{Compare, look};
use ours::Ours;

const STORY: usize = 400;

/// What is not asked: calls of the kernel's own (locks, copies from file to file, advice), access control lists, sizes of
/// extended attributes near ext4's limit (which depends on the inode's), modes of links, pipes and devices as such, and what
/// leads out of the directory.
fn asked(call: &Call, host: &World) -> bool {
    let special_at = |at: BorrowedFd<'_>, path: &str| {
        let path = if path.is_empty() { "." } else { path };
        rustix::fs::statat(at, path, rustix::fs::AtFlags::empty()).is_ok_and(|stat| {
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            !matches!(kind, rustix::fs::FileType::RegularFile | rustix::fs::FileType::Directory)
        })
    };
    let special = |path: &str| special_at(host.root(), path);
    if call.paths().iter().any(|path| path.starts_with('/')) {
        return false;
    }
    match call {
        Call::CopyRange { .. } | Call::SendFile { .. } | Call::Clone { .. } | Call::FLock { .. } | Call::PosixLock { .. } => false,
        Call::Advise { .. } | Call::GetFlags { .. } => false,
        Call::PWrite2 { flags, .. } => !flags.contains(ReadWriteFlags::APPEND),
        Call::Fallocate { flags, .. } => {
            (*flags - (FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE)).is_empty()
        }
        // They have no form that takes a directory, so a path is longer for the host.
        Call::SetXattr { .. } | Call::GetXattr { .. } | Call::ListXattr { .. } | Call::RemoveXattr { .. }
            if call.paths().iter().any(|path| path.len() > 3000) =>
        {
            false
        }
        Call::SetXattr { name, value, .. } => !name.starts_with("system.") && (value.len() < 300 || value.len() > 65_000),
        Call::GetXattr { name, .. } | Call::RemoveXattr { name, .. } => !name.starts_with("system."),
        Call::OpenAt { at, path, .. } => !host.slot(*at).is_ok_and(|at| special_at(at, path)),
        Call::Open { path, .. } | Call::Truncate { path, .. } => !special(path),
        // Of the directory itself, as this call is made.
        Call::Stat { which: Which::Link(path) } => !path.is_empty(),
        Call::ChMod { which, .. } => !matches!(which, Which::Link(_)),
        _ => true,
    }
}

struct Pair {
    generator: Generator,
    host: World,
    ours: Ours,
    compare: Compare,
    story: VecDeque<String>,
    root: bool,
    /// Who opened what.
    openers: [Option<usize>; SLOTS],
}

impl Pair {
    /// An open file is its opener's here: what a write does to set-id bits depends on him, in the kernel on who writes.
    fn writer(&self, call: &Call) -> Option<Option<usize>> {
        match call {
            Call::Write { slot, .. } | Call::WriteV { slot, .. } | Call::PWrite { slot, .. } | Call::PWrite2 { slot, .. } => {
                Some(self.openers[*slot])
            }
            Call::FTruncate { slot, .. } | Call::Fallocate { slot, .. } => Some(self.openers[*slot]),
            // Which files an ordinary user may link is a setting of the kernel's.
            Call::Link { .. } | Call::LinkSlot { .. } => Some(None),
            _ => None,
        }
    }

    /// Where holes are is the file system's choice: ext4 makes zeros of short pieces that were set aside. What is read is compared.
    fn is_about_holes(&self, call: &Call, host: &Said, ours: &Said) -> bool {
        let Call::Seek { slot, to: SeekFrom::Data(_) | SeekFrom::Hole(_) } = call else { return false };
        let found = |said: &Said| matches!(said, Ok(_) | Err(Errno::NXIO));
        // Both go on from the same place.
        let here = self.host.slot(*slot).and_then(|file| rustix::fs::seek(file, SeekFrom::Start(0)));
        let there = self.ours.slot(*slot).is_ok_and(|file| file.seek(SeekFrom::Start(0)).is_ok());
        found(host) && found(ours) && here.is_ok() && there
    }

    fn opened(&mut self, call: &Call, user: Option<usize>, done: bool) {
        match call {
            Call::Open { slot, .. } | Call::OpenAt { slot, .. } if done => self.openers[*slot] = user,
            Call::Dup { slot, to } if done => self.openers[*to] = self.openers[*slot],
            _ => {}
        }
    }

    fn look_around(&mut self) {
        let mut known = Vec::new();
        walk(&self.host, &self.ours, "", &mut known);
        self.generator.known = known;
    }

    fn step(&mut self) -> Result<(), String> {
        let call = self.generator.call();
        if !asked(&call, &self.host) {
            return Ok(());
        }
        // A removed directory loses its extended attributes at once, ext4's when it is let go of.
        let removed = |slot: &usize| self.ours.stat_slot(*slot).is_ok_and(|stat| stat.is_dir() && stat.nlink == 0);
        let about_xattrs =
            matches!(call, Call::SetXattr { .. } | Call::GetXattr { .. } | Call::ListXattr { .. } | Call::RemoveXattr { .. });
        if about_xattrs && call.slots().iter().any(removed) {
            return Ok(());
        }
        let user = (self.root && self.generator.rng.u8(0..3) == 0).then(|| self.generator.rng.usize(..USERS.len()));
        let user = self.writer(&call).unwrap_or(user);
        let before = look(&call, &self.host, &self.ours);
        let host = as_user(user, || call.run(&mut self.host));
        let ours = self.ours.run(&call, user);
        self.opened(&call, user, host.is_ok());
        if self.story.len() == STORY {
            self.story.pop_front();
        }
        let text: String = format!("{user:?} {call:?}").chars().take(150).collect();
        self.story.push_back(format!("{text} = {host:?}"));
        if host != ours && self.is_about_holes(&call, &host, &ours) {
            return Ok(());
        }
        if host != ours {
            return Err(format!("host {host:?}, ours {ours:?}"));
        }
        self.compare.after(&call, &before, &self.host, &self.ours)
    }
}

fn walk(host: &World, ours: &Ours, path: &str, known: &mut Vec<(String, bool)>) {
    // Looking is a read on both sides.
    compare::names(path, ours).expect("there");
    for entry in list_all(host, path).unwrap_or_default() {
        let path = sim::posix::world::join(path, &entry.name);
        let Ok(stat) = stat(host.root(), &path) else { continue };
        known.push((path.clone(), stat.is_dir()));
        if stat.is_dir() {
            walk(host, ours, &path, known);
        }
    }
}

#[test]
fn calls_do_what_they_do_on_this_machine() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..1 << 32), |seed| seed.parse().expect("a number"));
    let steps = std::env::var("STEPS").map_or(if full { 1_000_000 } else { 1_500 }, |steps| steps.parse().expect("a number"));
    println!("seed {seed}");
    let root = rustix::process::geteuid().is_root();
    let dir = tempfile::tempdir().expect("a directory");
    let below = dir.path().join("top/below");
    std::fs::create_dir_all(&below).expect("made");
    for open in [&below, &dir.path().join("top")] {
        std::fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("set");
    }
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // Little memory, so that everything is written back and read again.
    let settings = FsSettings { cache_bytes: 1 << 20, dirty_bytes: 2 << 20, write_back: Duration::ZERO, ..FsSettings::default() };
    let mut pair = Pair {
        generator: Generator { rng: fastrand::Rng::with_seed(seed), known: Vec::new(), dotdot: true, root },
        host: World::new(below).expect("a directory"),
        ours: Ours::new(256 << 20, settings),
        compare: Compare::default(),
        story: VecDeque::new(),
        root,
        openers: [None; SLOTS],
    };
    for step in 0..steps {
        if step % 8 == 0 {
            pair.look_around();
        }
        let mut outcome = pair.step();
        if step % 500 == 499 && outcome.is_ok() {
            if step % 1000 == 999 {
                pair.host.close();
                pair.host.open().expect("there");
                pair.ours.reopen();
            }
            outcome = pair.compare.tree("", &pair.host, &pair.ours);
        }
        if let Err(what) = outcome {
            let story: Vec<String> = pair.story.into();
            panic!("{}\nseed {seed}, step {step}: {what}", story.join("\n"));
        }
    }
}
