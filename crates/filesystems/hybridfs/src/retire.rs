//! Retires a side: everything on it goes to the other one, which is complete alone then.
//!
//! ```text
//!   measure: does it fit? --no--> refused, with the sizes
//!        |yes
//!   the side gets nothing new: no file, no promotion or demotion
//!        |
//!   walk the side's own tree, again and again:
//!     a directory                its other half is made; at the end it gets the attributes that are shown
//!     a file with one name       moves as always (`moves`)
//!     anything else              is copied aside and changes sides with all its names (`names`)
//!        |a walk has found nothing but directories
//!   complete
//! ```
//!
//! The state is on the disk: after a crash the same command goes on where the last one ended. What a walk does not find has moved, so the
//! walk that finds nothing is the proof that the other side is complete.

mod names;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;

use crate::copy::{self, AttributeLoss};
use crate::errno::Result;
use crate::moves::job::{MoveOutcome, MoveReason};
use crate::names::{FoundName, kind_of};
use crate::nodes::NodeKind;
use crate::number::ROOT;
use crate::pair::TieredFs;
use crate::path::HIDDEN;
use crate::read_dir::read_names;
use crate::report::TierName;
use crate::stat::Stat;

/// Walks that may find something before what is left is reported. Each tries again what was open or changed.
const WALKS_MAX: usize = 8;
const BETWEEN_WALKS: Duration = Duration::from_millis(200);
/// Paths that are named in a report.
const NAMED_MAX: usize = 10;
/// Blocks that a file system may need for directories, links and its own metadata: one part in so many.
const METADATA_SHARE: u64 = 100;

/// What a side holds, as far as it takes room.
#[derive(Clone, Copy, Debug, Default)]
struct SideUsage {
    /// Names of everything that is no directory.
    names: u64,
    bytes: u64,
}

/// Something that stays on the side.
#[derive(Debug)]
struct RemainingEntry {
    path: Vec<u8>,
    why: String,
    /// The next walk may bring it over.
    for_now: bool,
}

/// How one thing fared.
#[derive(Debug)]
enum TransferOutcome {
    Done,
    Gone,
    Later(&'static str),
    Stays(String),
}

/// Names of one inode that were found.
#[derive(Debug, Default)]
struct HardLinkNames {
    paths: Vec<Vec<u8>>,
}

/// One walk through the side.
struct RetireWalk<'a, 'p> {
    fs: &'a TieredFs,
    side: TierName,
    /// By backing inode: files that have several names, until all are found.
    linked: HashMap<u64, HardLinkNames>,
    left: Vec<RemainingEntry>,
    left_more: u64,
    found: u64,
    going: &'a mut RetireProgress<'p>,
}

/// What was done, over all walks.
struct RetireProgress<'p> {
    progress: &'p mut dyn FnMut(u64, u64, u64, u64) -> bool,
    all: SideUsage,
    done: SideUsage,
    stopped: bool,
}

impl RetireProgress<'_> {
    /// Reports `more` bytes beyond those that are done; `false`: stop.
    fn on(&mut self, more: u64) -> bool {
        let names = self.all.names.max(self.done.names);
        let bytes = self.all.bytes.max(self.done.bytes + more);
        self.stopped = self.stopped || !(self.progress)(names, self.done.names, bytes, self.done.bytes + more);
        !self.stopped
    }
}

struct RetireWalkLevel {
    dir: u64,
    names: Vec<Box<[u8]>>,
}

impl TieredFs {
    /// Whether nothing goes to this side any more.
    pub(crate) fn is_retiring(&self, side: TierName) -> bool {
        self.retiring.load(Ordering::Acquire) == side as u8 + 1
    }

    /// Brings everything from `side` to the other side; waits. `progress`: names, done, bytes, done; false stops. From then on, until it
    /// is unmounted or this has failed, nothing new goes to `side`.
    ///
    /// With `dry_run` it is only looked whether it would fit.
    pub fn retire(
        &self,
        side: TierName,
        dry_run: bool,
        progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool,
    ) -> std::result::Result<String, String> {
        let to = side.other();
        if self.config.read_only {
            return Err("it is mounted read-only: mount it without `--read-only` to retire a side".into());
        }
        if let Some(tier) = self.tiers().iter().find(|tier| tier.is_read_only()) {
            return Err(format!("{}: nothing can be brought over", tier.read_only_sentence()));
        }
        let Some(_one) = self.retirement.try_lock() else { return Err("a side is being retired already".into()) };
        if self.is_retiring(to) {
            return Err(format!("the {to} is retired: nothing can go there"));
        }
        let held = self.holdings(side).map_err(|error| format!("the {side} cannot be read: {error}"))?;
        let room = self.room_for_all_of(side);
        let need = held.bytes + held.bytes / METADATA_SHARE;
        if need > room {
            let (need, room) = (shown_bytes(need), shown_bytes(room));
            return Err(format!("no room: the {side} holds {need}, and the {to} has room for {room}: make room there, or remove files"));
        }
        if dry_run {
            let bytes = shown_bytes(held.bytes);
            return Ok(format!("{} files and links of {bytes} would go to the {to}, which has room for {}", held.names, shown_bytes(room)));
        }
        tracing::info!(%side, names = held.names, bytes = held.bytes, "a side is being retired");
        self.retiring.store(side as u8 + 1, Ordering::Release);
        let mut going = RetireProgress { progress, all: held, done: SideUsage::default(), stopped: false };
        let outcome = self.bring_all(side, &mut going);
        if outcome.is_err() {
            self.retiring.store(0, Ordering::Release);
            self.mover.wake();
        }
        outcome
    }

    fn bring_all(&self, side: TierName, going: &mut RetireProgress<'_>) -> std::result::Result<String, String> {
        let to = side.other();
        for walk in 1.. {
            let seen = self.walk_side(side, going).map_err(|error| format!("the {side} cannot be walked through: {error}"))?;
            if going.stopped || self.mover.stopping() {
                let SideUsage { names, .. } = going.done;
                return Err(format!("stopped: {names} of {} files and links are on the {to}; the same command goes on", going.all.names));
            }
            if seen.found == 0 && seen.left.is_empty() {
                break;
            }
            if walk >= WALKS_MAX || !seen.left.is_empty() && seen.left.iter().all(|left| !left.for_now) {
                return Err(what_is_left(side, &seen));
            }
            self.mover.pause(BETWEEN_WALKS);
        }
        for tier in self.tiers() {
            rustix::fs::syncfs(&tier.root).map_err(|error| format!("{} could not be flushed: {error}", tier.path.display()))?;
        }
        let names = going.done.names;
        tracing::info!(%side, names, "a side is retired");
        let path = self.tier(side).path.display();
        Ok(format!("all is on the {to} now, {names} files and links were brought over; {path} is not needed after `hotshelf unmount`"))
    }

    /// What there is room for on the side that stays.
    fn room_for_all_of(&self, side: TierName) -> u64 {
        let _ = self.space.refresh(self.tiers(), &self.config);
        match side {
            TierName::Ssd => self.space.of(TierName::Hdd).free,
            TierName::Hdd => self.space.of(TierName::Ssd).free.saturating_sub(self.space.reserve()),
        }
    }

    /// Adds up what a side holds. What is removed meanwhile does not matter.
    fn holdings(&self, side: TierName) -> Result<SideUsage> {
        let tier = self.tier(side);
        let mut held = SideUsage::default();
        let mut linked = std::collections::HashSet::new();
        let mut todo = vec![tier.root.try_clone().map_err(|_| Errno::MFILE)?];
        let mut top = true;
        while let Some(dir) = todo.pop() {
            let mut names: Vec<Box<[u8]>> = Vec::new();
            read_names(dir.as_fd(), &mut |name, _| names.push(name.into()))?;
            for name in names.iter().filter(|name| !top || name[..] != *HIDDEN.as_bytes()) {
                let name = OsStr::from_bytes(name);
                let Some(stat) = tier.look(dir.as_fd(), name)? else { continue };
                if stat.foreign || top && tier.is_hidden(&stat) {
                    continue;
                }
                if stat.is_dir() {
                    match tier.open_dir(dir.as_fd(), name) {
                        Ok(child) => todo.push(child),
                        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                        Err(error) => return Err(error),
                    }
                } else {
                    held.names += 1;
                }
                if stat.is_dir() || stat.nlink == 1 || linked.insert(stat.ino) {
                    held.bytes += stat.blocks * 512;
                }
            }
            top = false;
        }
        Ok(held)
    }

    fn walk_side(&self, side: TierName, going: &mut RetireProgress<'_>) -> Result<ObservedEntry> {
        let mut walk = RetireWalk { fs: self, side, linked: HashMap::new(), left: Vec::new(), left_more: 0, found: 0, going };
        let mut levels = vec![RetireWalkLevel { dir: ROOT, names: self.names_on(ROOT, side)? }];
        while let Some(level) = levels.last_mut() {
            let dir = level.dir;
            let next = if walk.going.stopped || self.mover.stopping() { None } else { level.names.pop() };
            match next {
                Some(name) => {
                    if let Some(below) = walk.arrive(dir, OsStr::from_bytes(&name)) {
                        levels.push(below);
                    }
                }
                None => {
                    levels.pop();
                    walk.leave(dir);
                }
            }
        }
        walk.note_incomplete();
        Ok(ObservedEntry { found: walk.found, left: walk.left, left_more: walk.left_more })
    }

    /// The names that a directory has on one side.
    fn names_on(&self, dir: u64, side: TierName) -> Result<Vec<Box<[u8]>>> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let open = self.dir(dir)?;
        let Some(fd) = open.on(side) else { return Ok(names) };
        read_names(fd, &mut |name, _| {
            if dir != ROOT || name != HIDDEN.as_bytes() {
                names.push(name.into());
            }
        })?;
        // The first comes last.
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// Gives the half that stays what users see of the directory: owner, mode, attributes and times.
    fn keep_attributes_of_dir(&self, ino: u64, to: TierName) -> std::result::Result<(), AttributeLoss> {
        let _gate = self.gate(ino).write();
        let _times = self.times.hold();
        let dir = self.dir(ino)?;
        let (Some(ssd), Some(hdd)) = (dir.on(TierName::Ssd), dir.on(TierName::Hdd)) else { return Ok(()) };
        let [on_ssd, on_hdd] = [self.tier(TierName::Ssd).stat_fd(ssd)?, self.tier(TierName::Hdd).stat_fd(hdd)?];
        // Whoever owns one half, or let somebody into it, must not get at what is in the other by this.
        if !self.have_one_owner(&on_ssd, &on_hdd) {
            return Err(AttributeLoss::Cannot("it belongs to different users on the two sides: give both to one"));
        }
        if !copy::same_lists(ssd, hdd)? {
            return Err(AttributeLoss::Cannot("it has different access control lists on the two sides: make them the same"));
        }
        let mut shown = self.dir_attr(&dir)?.stat;
        if ino == ROOT {
            shown.mode = on_ssd.mode;
        }
        let (target, now) = if to == TierName::Ssd { (ssd, on_ssd) } else { (hdd, on_hdd) };
        let known = |stat: &Stat| (stat.mode, stat.uid, stat.gid, stat.mtime);
        if known(&shown) != known(&now) || to == TierName::Hdd && !copy::same_attributes(ssd, hdd)? {
            copy::attributes_of_named(ssd, target, &shown)?;
            self.dirs.ask_again(ino);
        }
        let kept = self.tier(to).stat_fd(target)?;
        if kept.mode != shown.mode || (rustix::process::geteuid().is_root() && (kept.uid, kept.gid) != (shown.uid, shown.gid)) {
            return Err(AttributeLoss::Cannot("the other side cannot keep its owner or permissions"));
        }
        Ok(())
    }
}

/// What a walk has found.
struct ObservedEntry {
    /// Names of what is no directory.
    found: u64,
    left: Vec<RemainingEntry>,
    left_more: u64,
}

impl RetireWalk<'_, '_> {
    /// Does with one name what is to be done; a directory is walked through next.
    fn arrive(&mut self, parent: u64, name: &OsStr) -> Option<RetireWalkLevel> {
        let mut path = self.fs.nodes.path(parent).unwrap_or_default();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        match self.look(parent, name) {
            Ok(None) => None,
            Ok(Some((found, stat))) if found.kind == NodeKind::Directory => self.enter(parent, name, path, &found, &stat),
            Ok(Some((found, stat))) => {
                self.found += 1;
                self.bring(parent, name, path, &found, &stat);
                None
            }
            Err(why) => {
                self.leaves(path, why, false);
                None
            }
        }
    }

    /// What a name on this side stands for; `None`: it is gone.
    fn look(&self, parent: u64, name: &OsStr) -> std::result::Result<Option<(FoundName, Stat)>, String> {
        let fs = self.fs;
        let looked = || -> Result<Option<(FoundName, Stat)>> {
            let dir = fs.dir(parent)?;
            let Some(fd) = dir.on(self.side) else { return Ok(None) };
            let seen = fs.noted_at(self.side, fd, fs.tier(self.side).look(fd, name))?;
            // Ours may have another name by now.
            let Some(stat) = seen.filter(|stat| parent != ROOT || !fs.tier(self.side).is_hidden(stat)) else { return Ok(None) };
            Ok(Some((fs.find(&dir, name)?, stat)))
        };
        let (found, stat) = match looked() {
            Ok(Some(seen)) => seen,
            Ok(None) | Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if stat.foreign {
            return Err("it is on a file system mounted below the directory".into());
        }
        // A move that has just ended, or one that runs: the next walk sees what became of it.
        if found.backing[self.side as usize] == stat.ino || fs.moving(found.backing[0], stat.ino) {
            return Ok(Some((found, stat)));
        }
        Err(format!("the {} has another file of this name: remove one of them (`hotshelf check` lists such names)", self.side.other()))
    }

    fn enter(&mut self, parent: u64, name: &OsStr, path: Vec<u8>, found: &FoundName, stat: &Stat) -> Option<RetireWalkLevel> {
        let fs = self.fs;
        if kind_of(stat) != NodeKind::Directory {
            self.leaves(path, "something else has its name on the other side".into(), false);
            return None;
        }
        fs.nodes.get_or_insert(found.ino, parent, name, found.backing, found.kind);
        let names = fs.ensure_dir(found.ino, self.side.other()).and_then(|_| fs.names_on(found.ino, self.side));
        match names {
            Ok(names) => return Some(RetireWalkLevel { dir: found.ino, names }),
            Err(Errno::NOENT | Errno::STALE) => self.leaves(path, "it was moved or removed meanwhile".into(), true),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {
                self.leaves(path, "something else has its name on the other side".into(), false);
            }
            Err(error) => self.leaves(path, format!("it cannot be made on the other side: {error}"), false),
        }
        fs.forget(found.ino, 1);
        None
    }

    /// All below a directory is done with.
    fn leave(&mut self, dir: u64) {
        let (fs, to) = (self.fs, self.side.other());
        if !self.going.stopped {
            match fs.keep_attributes_of_dir(dir, to) {
                Ok(()) | Err(AttributeLoss::Failed(Errno::NOENT | Errno::STALE)) => {}
                Err(AttributeLoss::Cannot(why)) => self.leaves(fs.nodes.path(dir).unwrap_or_default(), why.into(), false),
                Err(AttributeLoss::Failed(error)) => self.leaves(fs.nodes.path(dir).unwrap_or_default(), error.to_string(), false),
            }
        }
        if dir != ROOT {
            fs.forget(dir, 1);
        }
    }

    fn bring(&mut self, parent: u64, name: &OsStr, path: Vec<u8>, found: &FoundName, stat: &Stat) {
        let bytes = stat.blocks * 512;
        let (brought, names) = if found.kind == NodeKind::Regular && stat.nlink == 1 {
            (self.move_one(parent, name, found), 1)
        } else {
            let linked = self.linked.entry(stat.ino).or_default();
            linked.paths.push(path.clone());
            if (linked.paths.len() as u64) < u64::from(stat.nlink) {
                return;
            }
            let paths = self.linked.remove(&stat.ino).unwrap_or_default().paths;
            let names = paths.len() as u64;
            let going = &mut *self.going;
            (self.fs.bring_names(self.side, &paths, stat.ino, &mut |done| going.on(done)), names)
        };
        match brought {
            TransferOutcome::Done => {
                self.going.done.names += names;
                self.going.done.bytes += bytes;
                self.going.on(0);
            }
            TransferOutcome::Gone => {}
            TransferOutcome::Later(why) => self.leaves(path, why.into(), true),
            TransferOutcome::Stays(why) => self.leaves(path, why, false),
        }
    }

    fn move_one(&mut self, parent: u64, name: &OsStr, found: &FoundName) -> TransferOutcome {
        let fs = self.fs;
        fs.nodes.get_or_insert(found.ino, parent, name, found.backing, found.kind);
        let going = &mut *self.going;
        let outcome = fs.move_file(found.ino, self.side.other(), MoveReason::Asked, &mut |done, _| going.on(done));
        fs.forget(found.ino, 1);
        match outcome {
            MoveOutcome::Done => TransferOutcome::Done,
            MoveOutcome::Already => TransferOutcome::Gone,
            MoveOutcome::Busy => TransferOutcome::Later("it is open: run the command again when it is closed"),
            MoveOutcome::Dropped => TransferOutcome::Later("it changes all the time, or was removed"),
            MoveOutcome::Stays(why) => TransferOutcome::Stays(why.into()),
            MoveOutcome::Failed(error) => TransferOutcome::Stays(error.to_string()),
        }
    }

    fn leaves(&mut self, path: Vec<u8>, why: String, for_now: bool) {
        if self.left.len() < NAMED_MAX {
            self.left.push(RemainingEntry { path, why, for_now });
        } else {
            self.left_more += 1;
        }
    }

    /// Names of an inode whose other names were not found, or were made meanwhile.
    fn note_incomplete(&mut self) {
        for (_, linked) in std::mem::take(&mut self.linked) {
            if let (Some(path), false) = (linked.paths.into_iter().next(), self.going.stopped) {
                self.leaves(path, "another of its names was not found below the directory".into(), true);
            }
        }
    }
}

fn what_is_left(side: TierName, seen: &ObservedEntry) -> String {
    let many = seen.left.len() as u64 + seen.left_more;
    let named: Vec<String> =
        seen.left.iter().map(|left| format!("{}: {}", String::from_utf8_lossy(&left.path), left.why)).take(NAMED_MAX).collect();
    let more = if seen.left_more > 0 { format!("; and {} more", seen.left_more) } else { String::new() };
    let named = if named.is_empty() { "new files come all the time".to_owned() } else { named.join("; ") };
    format!("not complete: {many} names are still on the {side}: {named}{more}. The same command goes on where this one ended")
}

/// For people.
fn shown_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = "bytes";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod test;
