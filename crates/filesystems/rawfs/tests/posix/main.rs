//! The same random calls on the library and on a directory of this machine, compared call by call: result, errno and effect.
//!
//! The same few seeds each time, and those that failed once; `FULL=1` does 1,000,000 calls from seeds that no run has had,
//! `SEED=n STEPS=n` those of a seed that was printed. What is not asked, and why: see `asked` and `in_anothers_sticky_dir`.

mod compare;
mod ours;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rawfs::fs::FsSettings;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use sim::posix::as_user;
use sim::posix::call::{Call, CallTarget};
use sim::posix::generate::{Generator, USERS};
use sim::posix::tree::{CallResult, FileTree, SLOTS, list_all, stat};

use compare::{Compare, stat_files};
use ours::Ours;

const STORY: usize = 400;
const ACL: &str = "system.posix_acl_access";
/// Calls of one seed under FULL=1; then all is new.
const STEPS: usize = 20_000;
/// What is run each time: seed, calls, and whether access control lists are among them: they were not when the
/// smaller seeds failed once. 124 and the last four failed in the library, the others in this test.
const ALWAYS: [(u64, usize, bool); 10] = [
    (1, 1500, false),
    (1, 4000, true),
    (93, 900, false),
    (106, 7_400, false),
    (115, 8_000, false),
    (124, 11_600, false),
    (4_060_591_568, 1_320, true),
    (3_878_596_516, 6_460, true),
    (3_270_326_742, 17_920, true),
    (1_362_439_018, 17_426, true),
];

/// What is not asked: calls of the kernel's own (locks, copies from file to file, advice), sizes of
/// extended attributes near ext4's limit (which depends on the inode's), modes of links, pipes and devices as such, and what
/// leads out of the directory.
fn asked(call: &Call, host: &FileTree, lists: bool) -> bool {
    let special_at = |at: BorrowedFd<'_>, path: &str| {
        let path = if path.is_empty() { "." } else { path };
        rustix::fs::statat(at, path, AtFlags::empty()).is_ok_and(|stat| {
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
        Call::SetXattr { name, .. } | Call::GetXattr { name, .. } | Call::RemoveXattr { name, .. }
            if !lists && name.starts_with("system.") =>
        {
            false
        }
        Call::SetXattr { value, .. } => value.len() < 300 || value.len() > 65_000,
        Call::OpenAt { at, path, .. } => !host.slot(*at).is_ok_and(|at| special_at(at, path)),
        Call::Open { path, .. } | Call::Truncate { path, .. } => !special(path),
        // Of the directory itself, as this call is made.
        Call::Stat { which: CallTarget::Link(path) } => !path.is_empty(),
        Call::ChMod { which, .. } => !matches!(which, CallTarget::Link(_)),
        _ => true,
    }
}

/// An open with O_CREAT of what somebody else has put into a sticky directory for all: the kernel refuses it by its own rules before
/// it looks at what it is (`may_create_in_sticky`; for regular files and pipes by sysctls fs.protected_*, for the others always).
fn in_anothers_sticky_dir(call: &Call, host: &FileTree, user: Option<usize>) -> bool {
    let (at, mut path, flags) = match call {
        Call::Open { path, flags, .. } => (Ok(host.root()), path.clone(), flags),
        Call::OpenAt { at, path, flags, .. } => (host.slot(*at), path.clone(), flags),
        _ => return false,
    };
    let (Ok(at), true) = (at, flags.contains(OFlags::CREATE)) else { return false };
    let user = user.map_or(rustix::process::geteuid().as_raw(), |user| USERS[user].uid);
    // Where its links lead, too.
    for _ in 0..40 {
        let (above, name) = path.rsplit_once('/').map_or((".", &*path), |(above, name)| (if above.is_empty() { "/" } else { above }, name));
        let dir = rustix::fs::statat(at, above, AtFlags::empty());
        let (Ok(dir), Ok(file)) = (dir, stat(at, if path.is_empty() { "." } else { &path })) else { return false };
        if dir.st_mode & 0o1000 != 0 && dir.st_mode & 0o022 != 0 && file.uid != user && file.uid != dir.st_uid {
            return true;
        }
        let (true, Ok(target)) = (file.is_link() && !name.is_empty(), rustix::fs::readlinkat(at, &*path, Vec::new())) else { return false };
        path = sim::posix::tree::join(above, &target.to_string_lossy());
    }
    false
}

struct Pair {
    generator: Generator,
    host: FileTree,
    ours: Ours,
    compare: Compare,
    story: VecDeque<String>,
    root: bool,
    /// Access control lists are requested.
    lists: bool,
    /// Who opened what.
    openers: [Option<usize>; SLOTS],
}

impl Pair {
    /// The opener owns an open file here: what a write does to set-id bits depends on the opener, in the kernel on the writer.
    fn writer(&self, call: &Call) -> Option<Option<usize>> {
        match call {
            Call::Write { slot, .. } | Call::WriteV { slot, .. } | Call::PWrite { slot, .. } | Call::PWrite2 { slot, .. } => {
                Some(self.openers[*slot])
            }
            Call::FTruncate { slot, .. } | Call::Fallocate { slot, .. } => Some(self.openers[*slot]),
            // CallTarget files an ordinary user may link is a setting of the kernel's.
            Call::Link { .. } | Call::LinkSlot { .. } => Some(None),
            _ => None,
        }
    }

    /// Where holes are is the file system's choice: ext4 makes zeros of short pieces that were set aside. What is read is compared.
    fn is_about_holes(&self, call: &Call, host: &CallResult, ours: &CallResult) -> bool {
        let Call::Seek { slot, to: SeekFrom::Data(_) | SeekFrom::Hole(_) } = call else { return false };
        let found = |said: &CallResult| matches!(said, Ok(_) | Err(Errno::NXIO));
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

    /// A call, and now and then a look at everything, also after both were closed.
    fn turn(&mut self, step: usize) -> Result<(), String> {
        if step.is_multiple_of(8) {
            self.look_around();
        }
        self.step()?;
        if step % 500 != 499 {
            return Ok(());
        }
        if step % 1000 == 999 {
            self.host.close();
            self.host.open().map_err(|error| error.to_string())?;
            self.ours.reopen();
        }
        self.compare.tree("", &self.host, &self.ours)
    }

    fn step(&mut self) -> Result<(), String> {
        let call = self.generator.call();
        if !asked(&call, &self.host, self.lists) {
            return Ok(());
        }
        // A removed directory loses its extended attributes at once, ext4's when it is let go of.
        let removed = |slot: &usize| self.ours.stat_slot(*slot).is_ok_and(|stat| stat.is_dir() && stat.nlink == 0);
        let about_xattrs =
            matches!(call, Call::SetXattr { .. } | Call::GetXattr { .. } | Call::ListXattr { .. } | Call::RemoveXattr { .. });
        // And it is no place in ext4's any more where a listing of it stopped.
        let goes_on = matches!(call, Call::ReadDir { rewind: false, .. });
        if (about_xattrs || goes_on) && call.slots().iter().any(removed) {
            return Ok(());
        }
        let user = (self.root && self.generator.rng.u8(0..3) == 0).then(|| self.generator.rng.usize(..USERS.len()));
        let user = self.writer(&call).unwrap_or(user);
        if in_anothers_sticky_dir(&call, &self.host, user) {
            return Ok(());
        }
        // With the attributes went the list that said who may do what in a removed directory.
        let has_list = |slot: &usize| self.host.slot(*slot).is_ok_and(|dir| rustix::fs::fgetxattr(dir, ACL, &mut [0_u8; 4096][..]).is_ok());
        let at = if let Call::OpenAt { at, .. } = &call { Some(*at) } else { None };
        if user.is_some() && call.slots().iter().chain(&at).any(|slot| removed(slot) && has_list(slot)) {
            return Ok(());
        }
        let before = stat_files(&call, &self.host, &self.ours);
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

fn walk(host: &FileTree, ours: &Ours, path: &str, known: &mut Vec<(String, bool)>) {
    // Looking is a read on both sides. An ordinary user may not look at everything.
    let _ = compare::names(path, ours);
    for entry in list_all(host, path).unwrap_or_default() {
        let path = sim::posix::tree::join(path, &entry.name);
        let Ok(stat) = stat(host.root(), &path) else { continue };
        known.push((path.clone(), stat.is_dir()));
        if stat.is_dir() {
            walk(host, ours, &path, known);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn calls_do_what_they_do_on_this_machine() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    let steps = number("STEPS").map(|steps| usize::try_from(steps).expect("a number"));
    match number("SEED") {
        Some(seed) => compared(seed, steps.unwrap_or(STEPS), true),
        None if full => {
            let mut left = steps.unwrap_or(1_000_000);
            while left > 0 {
                let steps = left.min(STEPS);
                compared(fastrand::u64(..1 << 32), steps, true);
                left -= steps;
            }
        }
        None => ALWAYS.iter().for_each(|(seed, steps, lists)| compared(*seed, *steps, *lists)),
    }
}

/// Does so many calls of a seed on both.
fn compared(seed: u64, steps: usize, lists: bool) {
    println!("SEED={seed} STEPS={steps}");
    let root = rustix::process::geteuid().is_root();
    // Another seed may have left one that takes everything from us.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let dir = tempfile::tempdir().expect("a directory");
    let below = dir.path().join("top/below");
    std::fs::create_dir_all(&below).expect("made");
    for open in [&below, &dir.path().join("top")] {
        std::fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("set");
    }
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    // Little memory, so that everything is written back and read again.
    let settings = FsSettings { cache_bytes: 1 << 20, dirty_bytes: 2 << 20, write_back: Duration::ZERO, ..FsSettings::default() };
    let mut pair = Pair {
        generator: Generator { rng: fastrand::Rng::with_seed(seed), known: Vec::new(), dotdot: true, root },
        host: FileTree::new(below).expect("a directory"),
        ours: Ours::new(256 << 20, settings),
        compare: Compare::default(),
        story: VecDeque::new(),
        root,
        lists,
        openers: [None; SLOTS],
    };
    for step in 0..steps {
        if let Err(what) = pair.turn(step) {
            let story: Vec<String> = pair.story.into();
            panic!("{}\nSEED={seed} STEPS={}: {what}", story.join("\n"), step + 1);
        }
    }
}
