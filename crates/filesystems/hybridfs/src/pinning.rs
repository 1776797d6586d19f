//! Brings up what is pinned.
//!
//! A pin says where files belong, so it is no queue of moves that could be too short: pinned trees are walked, a few names at a
//! time, and whenever the mover has nothing else to do it is given the next file that is still on the HDD. Only what lies
//! on the way to that file is kept known.
//!
//! ```text
//!   pinned, mounted --> to look at --walk--> a file's move --> done
//!                            ^                    |
//!                            +---- after a pause, when there is room --- left out (no room, an error), told in `status`
//! ```

pub(crate) mod progress;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::errno::Result;
use crate::moves::job::{MoveJob, MoveOutcome, MoveReason};
use crate::names::FoundName;
use crate::nodes::{KeptFor, NodeKind};
use crate::pair::TieredFs;
use crate::report::TierName;
use progress::{NoRoom, PinProgress, PinWalk, PinWalkLevel};

/// Names that are looked at before the mover looks again whether something more urgent is to be done.
const CHECKS_MAX: usize = 64;
/// Bytes that must become free on the SSD before files that did not fit are tried before their time.
const ROOM_STEP: u64 = 64 << 10;

/// What a look at the pins has found.
#[derive(Debug)]
pub(crate) enum PinStep {
    Move(MoveJob),
    /// Nothing yet.
    More,
    Nothing,
}

impl TieredFs {
    /// Promotes the files under a path in the background.
    pub(crate) fn look_at_pin(&self, path: &[u8]) {
        self.mover.with_pins(|pins| {
            pins.todo.insert(path.to_vec());
            pins.pause = Duration::ZERO;
            pins.no_room = None;
        });
    }

    /// The same for all pins.
    pub(crate) fn look_at_all_pins(&self) {
        let all = self.placement.pins();
        self.mover.with_pins(|pins| {
            pins.left_before = std::mem::take(&mut pins.left);
            pins.again_at = None;
            pins.no_room = None;
            pins.todo.extend(all);
        });
    }

    /// After a pin is gone: what it left is nobody's business any more.
    pub(crate) fn pin_is_gone(&self, path: &[u8]) {
        let left = self.mover.with_pins(|pins| {
            pins.todo.remove(path);
            !pins.left.files.is_empty()
        });
        if left {
            self.look_at_all_pins();
        }
    }

    /// A sentence for `status` while pinned files stay on the HDD.
    pub(crate) fn pins_left(&self) -> Option<String> {
        self.mover.with_pins(|pins| {
            let old = pins.waits() && !pins.left_before.files.is_empty();
            if old { pins.left_before.sentence() } else { pins.left.sentence() }
        })
    }

    /// Pinned files that found no room are tried again as soon as there is more; called by the watcher.
    pub(crate) fn look_at_ssd_room(&self) {
        let free = self.space.of(TierName::Ssd).free;
        let more = self.mover.with_pins(|pins| pins.no_room.is_some_and(|no_room| free > no_room.free + ROOM_STEP && !pins.waits()));
        if more {
            self.look_at_all_pins();
        }
    }

    /// The next pinned file that is on the HDD.
    pub(crate) fn next_pinned(&self) -> PinStep {
        if self.mover.with_pins(|pins| pins.again_at.is_some_and(|at| at <= Instant::now()) && !pins.waits()) {
            self.look_at_all_pins();
        }
        let mut walk = self.mover.walk.lock();
        let step = if self.nothing_goes_up() {
            self.put_walk_off(&mut walk)
        } else if walk.levels.is_empty() {
            self.begin_walk(&mut walk)
        } else {
            self.walk_on(&mut walk)
        };
        if walk.levels.is_empty() {
            walk.parents.drain(..).rev().for_each(|ino| self.forget(ino, 1));
        }
        let listed: usize = walk.levels.iter().map(|level| level.names.len()).sum();
        let walking = !walk.levels.is_empty();
        self.mover.note_walk(listed as u64, walking);
        step
    }

    fn nothing_goes_up(&self) -> bool {
        self.is_retiring(TierName::Ssd)
            || self.config.read_only
            || self.tiers().iter().any(|tier| tier.is_read_only())
            || self.tier(TierName::Ssd).is_troubled()
    }

    /// A remount of a side's file system may end it; the pauses grow meanwhile.
    fn put_walk_off(&self, walk: &mut PinWalk) -> PinStep {
        walk.levels.drain(..).rev().for_each(|level| self.forget(level.dir, 1));
        self.mover.with_pins(|pins| {
            if pins.waits() {
                pins.todo.clear();
                pins.look_again();
            }
        });
        PinStep::Nothing
    }

    fn begin_walk(&self, walk: &mut PinWalk) -> PinStep {
        let Some(path) = self.mover.with_pins(|pins| pins.todo.pop_first()) else { return PinStep::Nothing };
        let mut last = None;
        let walked = self.walk_along(&path, &mut |found, parent, name| {
            self.nodes.get_or_insert(found.ino, parent, name, found.backing, found.kind);
            walk.parents.push(found.ino);
            last = Some(*found);
        });
        match (walked, last) {
            (Ok(_), Some(found)) => self.arrive(walk, &found),
            // A pin may be there before its file.
            (Ok(_), None) | (Err(Errno::NOENT | Errno::NOTDIR), _) => PinStep::More,
            (Err(error), _) => {
                self.pin_left(path, error.to_string(), true);
                PinStep::More
            }
        }
    }

    fn walk_on(&self, walk: &mut PinWalk) -> PinStep {
        for _ in 0..CHECKS_MAX {
            let Some(level) = walk.levels.last_mut() else { break };
            let dir = level.dir;
            // Unpinned since, or taken elsewhere.
            let name = if self.is_pinned(dir) { level.names.pop() } else { None };
            let Some(name) = name else {
                walk.levels.pop();
                self.forget(dir, 1);
                continue;
            };
            let name = OsStr::from_bytes(&name);
            let found = match self.dir(dir).and_then(|dir| self.find(&dir, name)) {
                Ok(found) => found,
                // Gone since it was listed.
                Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => continue,
                Err(error) => {
                    let path = [self.nodes.path(dir).unwrap_or_default().as_slice(), name.as_bytes()].join(&b'/');
                    self.pin_left(path, error.to_string(), true);
                    continue;
                }
            };
            self.nodes.get_or_insert(found.ino, dir, name, found.backing, found.kind);
            let step = self.arrive(walk, &found);
            self.forget(found.ino, 1);
            if matches!(step, PinStep::Move(_)) {
                return step;
            }
        }
        PinStep::More
    }

    /// What is found moves, or is walked through. The caller keeps it known.
    fn arrive(&self, walk: &mut PinWalk, found: &FoundName) -> PinStep {
        match found.kind {
            NodeKind::Regular if found.tier == TierName::Hdd => self.offer(found).map_or(PinStep::More, PinStep::Move),
            NodeKind::Directory => {
                match self.names_to_look_at(found.ino) {
                    Ok(names) => {
                        self.nodes.with(found.ino, |node| node.add_reference());
                        walk.levels.push(PinWalkLevel { dir: found.ino, names });
                    }
                    Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {}
                    Err(error) => self.pin_left(self.nodes.path(found.ino).unwrap_or_default(), error.to_string(), true),
                }
                PinStep::More
            }
            _ => PinStep::More,
        }
    }

    /// Directories, and what may be a file on the HDD; the first of a directory comes last.
    fn names_to_look_at(&self, dir: u64) -> Result<Vec<Box<[u8]>>> {
        let listing = self.open_listing(dir)?;
        let entries = self.entries(&listing, true)?;
        drop(listing);
        let entries = Arc::try_unwrap(entries).unwrap_or_else(|shared| shared.to_vec());
        let wanted = entries.into_iter().filter(|entry| match entry.kind {
            FileType::Directory | FileType::Unknown => true,
            FileType::RegularFile => entry.tier == TierName::Hdd,
            _ => false,
        });
        Ok(wanted.map(|entry| entry.name).rev().collect())
    }

    fn offer(&self, found: &FoundName) -> Option<MoveJob> {
        let need = found.stat.blocks * 512;
        if self.mover.with_pins(|pins| pins.no_room.is_some_and(|no_room| need >= no_room.need)) {
            self.pin_left(self.nodes.path(found.ino)?, no_room_for_it(), true);
            return None;
        }
        let job = MoveJob { need, pinned: true, ..MoveJob::new(found.ino, TierName::Ssd, MoveReason::Asked) };
        if self.mover.take(job, || self.nodes.keep(found.ino, KeptFor::Move, true)) {
            return Some(job);
        }
        // It may not go far enough, what goes on with it.
        self.mover.with_pins(PinProgress::look_again);
        None
    }

    /// Records how the move of a pinned file ended.
    pub(crate) fn pin_ended(&self, job: &MoveJob, outcome: MoveOutcome) {
        let Some(path) = self.nodes.path(job.ino) else { return };
        match outcome {
            MoveOutcome::Done | MoveOutcome::Already => self.mover.with_pins(|pins| drop(pins.left.files.remove(&path))),
            MoveOutcome::Stays(why) => self.pin_left(path, why.into(), self.nothing_goes_up()),
            MoveOutcome::Failed(Errno::NOSPC | Errno::DQUOT) => {
                let free = self.space.of(TierName::Ssd).free;
                self.mover.with_pins(|pins| {
                    let need = pins.no_room.map_or(job.need, |no_room| no_room.need.min(job.need));
                    pins.no_room = Some(NoRoom { need, free });
                });
                self.pin_left(path, no_room_for_it(), true);
            }
            MoveOutcome::Failed(error) => self.pin_left(path, error.to_string(), true),
            MoveOutcome::Busy => self.pin_left(path, "it is in use".into(), true),
            MoveOutcome::Dropped => self.pin_left(path, "it changes all the time".into(), true),
        }
    }

    fn pin_left(&self, path: Vec<u8>, why: String, for_now: bool) {
        self.mover.with_pins(|pins| {
            pins.left.add(path, why, for_now);
            if for_now {
                pins.look_again();
            }
        });
    }
}

fn no_room_for_it() -> String {
    "the SSD has no room for it".into()
}

#[cfg(test)]
mod test {
    use std::ops::Deref;

    use super::*;
    use crate::config::Size;
    use crate::known_files::KnownFiles;
    use crate::number::ROOT;
    use crate::testing::{TestPair, as_nobody};

    /// A pair with files on the HDD.
    struct Pair(TestPair);

    impl Deref for Pair {
        type Target = TestPair;

        fn deref(&self) -> &TestPair {
            &self.0
        }
    }

    impl Pair {
        fn with(names: &[String]) -> Pair {
            let paths: Vec<String> = names.iter().map(|name| format!("hdd/{name}")).collect();
            Pair(TestPair::with(&paths))
        }

        /// Does what there is to do, and answers how many moves that were. `each` comes before each.
        fn work(&self, mut each: impl FnMut()) -> usize {
            let mut moves = 0;
            while let Some(job) = self.fs.next_now() {
                each();
                self.fs.do_job(job);
                moves += 1;
            }
            moves
        }

        fn on_ssd(&self, names: &[String]) -> usize {
            let read = |name: &String| std::fs::read_to_string(self.at("ssd").join(name));
            names.iter().filter(|name| read(name).is_ok_and(|content| content == format!("hdd/{name}"))).count()
        }

        fn warning(&self) -> String {
            self.fs.status().warnings.join("; ")
        }
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("a/{}/{n}", n % 3)).collect()
    }

    #[test]
    fn a_pinned_tree_comes_up_also_when_the_kernel_forgets_all_of_it_meanwhile() {
        let names = names(12);
        let pair = Pair::with(&names);
        assert_eq!(pair.fs.pin(b"a", true), Ok("a is pinned to the SSD".into()));
        assert!(pair.fs.status().queue > 0);
        let moves = pair.work(|| names.iter().for_each(|name| pair.look_and_forget(name)));
        assert_eq!((moves, pair.on_ssd(&names), pair.fs.status().queue), (12, 12, 0));
    }

    #[test]
    fn a_pinned_tree_of_any_size_fills_no_queue_and_keeps_little_known() {
        let names = names(300);
        let pair = Pair::with(&names);
        pair.fs.pin(b"a", true).expect("pinned");
        let job = pair.fs.next_now().expect("the first");
        assert!(pair.fs.nodes.len() < 8, "{}", pair.fs.nodes.len());
        assert!(pair.fs.mover.queue_len() >= 99, "the rest of a directory is counted");
        pair.fs.do_job(job);
        assert_eq!((pair.work(|| {}), pair.on_ssd(&names)), (299, 300));
        // The policy's 300 and their directories.
        assert_eq!(pair.fs.nodes.len(), 300 + 5);
    }

    #[test]
    fn what_has_no_room_is_reported_and_comes_up_when_there_is_room() {
        let names = names(6);
        let mut pair = Pair::with(&names);
        pair.0.fs.config.reserve = Size::Percent(100);
        pair.fs.pin(b"a", true).expect("pinned");
        assert_eq!(pair.work(|| {}), 1, "those as large as the one that did not fit are not tried");
        let warning = pair.warning();
        assert!(warning.contains("6 pinned files are still on the HDD; the first is a/0/0: the SSD has no room for it"), "{warning}");
        assert_eq!(pair.fs.status().queue, 0);
        pair.0.fs.config.reserve = Size::Bytes(0);
        pair.fs.mover.with_pins(|pins| {
            assert!(pins.again_at.take().is_some(), "they are tried again by and by");
            pins.no_room.as_mut().expect("noted").free = 0;
        });
        pair.fs.space.refresh(pair.fs.tiers(), &pair.fs.config).expect("figures");
        pair.fs.look_at_ssd_room();
        assert_eq!((pair.work(|| {}), pair.on_ssd(&names), pair.warning()), (6, 6, String::new()));
    }

    #[test]
    fn what_stays_for_good_is_reported_until_it_is_not_pinned_any_more() {
        let names = names(3);
        let pair = Pair::with(&names);
        std::fs::hard_link(pair.at("hdd/a/0/0"), pair.at("hdd/a/0/linked")).expect("linked");
        pair.fs.pin(b"a", true).expect("pinned");
        pair.work(|| {});
        assert_eq!(pair.on_ssd(&names), 2);
        assert!(pair.warning().contains("2 pinned files are still on the HDD; the first is a/0/0: it has several hard links"));
        assert!(pair.fs.mover.with_pins(|pins| pins.again_at().is_none()), "they are not checked again");
        pair.fs.pin(b"a", false).expect("unpinned");
        assert_eq!((pair.work(|| {}), pair.warning()), (0, String::new()));
    }

    #[test]
    fn what_cannot_be_looked_at_is_reported() {
        use std::os::unix::fs::PermissionsExt;
        as_nobody(|| {
            let names: Vec<String> = (0..9).map(|n| format!("a/{n}")).collect();
            let pair = Pair::with(&names);
            pair.fs.pin(b"a", true).expect("pinned");
            pair.fs.do_job(pair.fs.next_now().expect("the first"));
            // Their names are known, what they are is not.
            let mode = |mode| {
                for side in ["ssd/a", "hdd/a"] {
                    std::fs::set_permissions(pair.at(side), std::fs::Permissions::from_mode(mode)).expect("set");
                }
            };
            mode(0o600);
            assert_eq!(pair.work(|| {}), 0);
            let warning = pair.warning();
            assert!(warning.contains("8 pinned files are still on the HDD; the first is a/"), "{warning}");
            assert!(warning.contains(": Permission denied"), "{warning}");
            mode(0o700);
        });
    }

    #[test]
    fn what_is_unpinned_or_renamed_meanwhile_stays() {
        let names = names(9);
        let pair = Pair::with(&names);
        pair.fs.pin(b"a", true).expect("pinned");
        pair.fs.do_job(pair.fs.next_now().expect("the first"));
        pair.fs
            .rename(crate::testing::me(), ROOT, OsStr::new("a"), ROOT, OsStr::new("b"), rustix::fs::RenameFlags::empty())
            .expect("renamed");
        assert_eq!(pair.work(|| {}), 0);
        pair.fs.pin(b"b", true).expect("pinned");
        pair.fs.pin(b"b", false).expect("unpinned");
        assert_eq!(pair.work(|| {}), 0);
    }

    #[test]
    fn pins_are_looked_at_again_after_the_next_mount() {
        let names = names(4);
        let pair = Pair::with(&names);
        pair.fs.pin(b"a/1", true).expect("pinned");
        let pair = Pair(pair.0.again());
        pair.fs.scan();
        assert_eq!((pair.work(|| {}), pair.on_ssd(&names)), (1, 1));
    }

    #[test]
    fn a_directory_that_goes_away_does_not_end_a_migration() {
        let names = names(6);
        let pair = Pair::with(&names);
        let (ino, mut known) = (pair.look_up("a"), KnownFiles::new(&pair.fs));
        let files = pair.fs.files_below(ino, TierName::Hdd, &mut |found, parent, name| {
            known.upsert(found, parent, name);
            if name == "1" {
                std::fs::rename(pair.at("hdd/a/1"), pair.at("hdd/gone")).expect("renamed");
            }
        });
        assert_eq!(files.expect("the others").len(), 4);
    }
}
