//! Answers to `status`, `why`, `pin` and `migrate`.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::errno::Result;
use crate::moves::job::{MoveOutcome, MoveReason};
use crate::names::FoundName;
use crate::nodes::NodeKind;
use crate::number::ROOT;
use crate::pair::TieredFs;
use crate::persist;
use crate::report::{Status, TierName, TierStatus, Why};
use crate::stat::Stat;
use rustix::io::Errno;

/// How often `migrate` comes back to files that are in use, a pause between: a second in all, however many they are.
const ROUNDS: u32 = 20;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(50);

/// What came of the files of a migration.
#[derive(Default)]
struct MigrationTally {
    moved: u64,
    not_moved: Vec<(Vec<u8>, MoveOutcome)>,
    is_stopped: bool,
}

impl TieredFs {
    /// The state of the file system; what only the front door knows is left empty.
    pub fn status(&self) -> Status {
        let _ = self.space.refresh(self.tiers(), &self.config);
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (hits, misses) = (load(&self.counters.hits), load(&self.counters.misses));
        let notes = self.notes.lock();
        let mut warnings = notes.warnings.clone();
        if notes.conflicts_more > 0 {
            warnings.push(format!("{} more paths are on both sides: `hotshelf check` lists them all", notes.conflicts_more));
        }
        warnings.extend(self.hdd_is_full());
        warnings.extend(self.pins_left());
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            ssd: self.tier_status(TierName::Ssd, Some(self.placement.len() as u64)),
            hdd: self.tier_status(TierName::Hdd, None),
            policy: self.placement.policy_name(),
            promotion: self.tunables.promotion().to_string(),
            promotion_opens_wanted: self.mover.opens_wanted(),
            high_bytes: self.space.high(),
            low_bytes: self.space.low(),
            retired: [TierName::Ssd, TierName::Hdd].into_iter().find(|side| self.is_retiring(*side)),
            move_rate_bytes: self.mover.rate(),
            min_file_bytes: self.tunables.min_file_bytes(),
            touch_window_s: self.tunables.touch_window_s(),
            read_only: self.config.read_only,
            reserve_bytes: self.space.reserve(),
            max_file_bytes: self.space.max_file(),
            hits,
            misses,
            hit_ratio: if hits + misses == 0 { 0.0 } else { hits as f64 / (hits + misses) as f64 },
            promotions: load(&self.counters.promotions),
            demotions: load(&self.counters.demotions),
            moved_bytes: load(&self.counters.moved_bytes),
            moves_dropped: load(&self.counters.dropped),
            moves_failed: load(&self.counters.failed),
            move_troubles: self.mover.troubles(),
            queue: self.mover.queue_len(),
            running: self.mover.running(),
            open_files: self.opens.lock().len() as u64,
            pinned: self.placement.pins().iter().map(|pin| String::from_utf8_lossy(pin).into_owned()).collect(),
            conflicts: notes.conflicts.clone(),
            scan_done: self.counters.scan_done.load(Ordering::Acquire),
            warnings,
            ..Status::default()
        }
    }

    fn tier_status(&self, tier: TierName, files: Option<u64>) -> TierStatus {
        let space = self.space.of(tier);
        TierStatus {
            directory: self.tier(tier).path.display().to_string(),
            capacity_bytes: space.capacity,
            used_bytes: space.used,
            free_bytes: space.free,
            files,
            degraded: self.tier(tier).trouble(),
            abilities: self.tier(tier).abilities.clone(),
            limits: self.tier(tier).abilities.limits(),
        }
    }

    /// Everything known of one path.
    pub fn why(&self, path: &[u8]) -> Result<Why> {
        let (ino, _known) = self.known_at(path)?;
        let clean = self.nodes.path(ino).unwrap_or_default();
        let (tier, stat, kind) = self.where_is(ino)?;
        let heat = self.placement.heat(ino);
        let pinned = self.pinned(ino);
        let last_move = self.last_move(ino);
        let rank = tier.filter(|tier| *tier == TierName::Ssd).and_then(|_| self.placement.rank(ino));
        let reason = match (&last_move, tier, kind) {
            (_, _, NodeKind::Directory) => "a directory is on every side that holds files of it".into(),
            (_, _, NodeKind::Special) => "only regular files move".into(),
            (Some(last), ..) => format!("moved to the {}: {}", last.to, last.reason),
            (None, Some(TierName::Hdd), _) if self.placement.belongs_on_hdd(&clean) => "a rule keeps it on the HDD".into(),
            (None, Some(TierName::Ssd), _) => "created on the SSD, or already there at mount".into(),
            (None, ..) => "found there: it was not opened often enough to move".into(),
        };
        let next = self.next_move(ino, tier, kind, &stat, &clean);
        let side = tier.unwrap_or(TierName::Ssd);
        Ok(Why {
            path: String::from_utf8_lossy(&clean).into_owned(),
            kind: kind_name(&stat).into(),
            tier,
            real_path: self.real_path(side, &clean).display().to_string(),
            size_bytes: stat.size,
            opens: heat.map_or(0, |(_, opens)| u64::from(opens)),
            last_open_s: heat.map(|(last, _)| u64::from(last)),
            rank,
            pinned,
            last_move,
            reason,
            next,
        })
    }

    fn where_is(&self, ino: u64) -> Result<(Option<TierName>, Stat, NodeKind)> {
        if ino == ROOT {
            return Ok((None, self.getattr(ROOT)?.stat, NodeKind::Directory));
        }
        let (_, found): (_, FoundName) = self.refind(ino)?;
        let both = found.backing[0] != 0 && found.backing[1] != 0;
        Ok(((!both).then_some(found.tier), found.stat, found.kind))
    }

    fn next_move(&self, ino: u64, tier: Option<TierName>, kind: NodeKind, stat: &Stat, path: &[u8]) -> String {
        if kind != NodeKind::Regular {
            return "nothing: only regular files move".into();
        }
        if stat.nlink > 1 {
            return "nothing: files with several hard links stay together where they are".into();
        }
        if stat.fixed {
            return "nothing: it is immutable or append-only (chattr)".into();
        }
        if stat.foreign {
            return "nothing: it is on a file system mounted below the directory".into();
        }
        if let Some(why) = self.mover.why_it_rests(ino) {
            return format!("`hotshelf migrate`: the last move did not succeed: {why}");
        }
        let by_hand = |tier: TierName, why: &str| format!("`hotshelf migrate --to {tier}`: {why}");
        let small = stat.size < self.tunables.min_file_bytes();
        let too_small = "it is smaller than files that move by themselves";
        let in_place = self.opens.lock().get(&ino).is_some_and(|open| open.held_in_place());
        match tier {
            Some(TierName::Ssd) if self.is_pinned(ino) => "nothing: it is pinned (`hotshelf unpin`)".into(),
            Some(TierName::Ssd) if small => by_hand(TierName::Hdd, too_small),
            Some(TierName::Ssd) if in_place => "it is open; after that, its turn when the SSD passes its high mark".into(),
            Some(TierName::Ssd) => "its turn in the policy's order when the SSD passes its high mark".into(),
            _ if self.placement.belongs_on_hdd(path) => by_hand(TierName::Ssd, "a rule keeps it on the HDD"),
            _ if stat.size > self.space.max_file() => by_hand(TierName::Ssd, "it is larger than files that come up by themselves"),
            _ if small => by_hand(TierName::Ssd, too_small),
            _ => match self.tunables.promotion() {
                crate::Promotion::SecondTouch => format!("a second open within {} s", self.tunables.touch_window_s()),
                crate::Promotion::OnOpen => "the next open".into(),
                crate::Promotion::Never => by_hand(TierName::Ssd, "files do not come up by themselves"),
            },
        }
    }

    /// Pins or unpins a path. A pinned file on the HDD is brought up.
    pub fn pin(&self, path: &[u8], on: bool) -> std::result::Result<String, String> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let (ino, _known) = self.known_at(path).map_err(|error| format!("{shown}: {error}"))?;
        let clean = self.nodes.path(ino).unwrap_or_else(|| path.to_vec());
        if clean.is_empty() {
            return Err("the whole mount cannot be pinned".into());
        }
        let save = |pins: &_| persist::save_pins(self.tier(TierName::Ssd).hidden.as_fd(), pins);
        let changed = self.placement.change_pin(&clean, on, save);
        let changed = changed.map_err(|error| format!("{shown}: the pin could not be saved: {error}"))?;
        if on {
            self.look_at_pin(&clean);
        } else {
            self.pin_is_gone(&clean);
        }
        Ok(match (on, changed) {
            (true, true) => format!("{shown} is pinned to the SSD"),
            (true, false) => format!("{shown} was already pinned"),
            (false, true) => format!("{shown} is not pinned any more"),
            (false, false) => format!("{shown} was not pinned"),
        })
    }

    /// Moves a file, or all files of a directory tree, and waits. Calls `progress` with files, files done, bytes and bytes done; if that
    /// returns false, the move stops, even in the middle of a file, which then stays on its side.
    pub fn migrate(
        &self,
        path: &[u8],
        to: TierName,
        progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool,
    ) -> std::result::Result<String, String> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let (ino, mut known) = self.known_at(path).map_err(|error| format!("{shown}: {error}"))?;
        let (_, _, kind) = self.where_is(ino).map_err(|error| format!("{shown}: {error}"))?;
        if kind == NodeKind::Special {
            return Err(format!("{shown}: only regular files move"));
        }
        let (mut others, mut dirs) = (0u64, Vec::new());
        let files = self.files_below(ino, to.other(), &mut |found, parent, name| {
            known.upsert(found, parent, name);
            match found.kind {
                NodeKind::Directory if found.backing[to as usize] == 0 => dirs.push(found.ino),
                NodeKind::Special if found.tier != to => others += 1,
                _ => {}
            }
        });
        let files = files.map_err(|error| format!("{shown}: {error}"))?;
        if files.is_empty() {
            return Ok(match kind {
                NodeKind::Regular => format!("{shown} is on the {to} already"),
                _ => format!("all regular files of it are on the {to} already{}", self.what_stays(to, others, &dirs)),
            });
        }
        let all = files.len();
        let tally = self.move_all(files, to, progress);
        let (moved, stay) = (tally.moved, &tally.not_moved);
        if tally.is_stopped && moved < all as u64 {
            let path = shown.as_str();
            tracing::info!(path, %to, files_done = moved, all, "a migration was stopped by its client");
            return Err(format!("{shown}: stopped: {moved} of {all} files were moved to the {to}, the others stay where they are"));
        }
        let Some((path, outcome)) = stay.first() else {
            let are = if moved == 1 { "file is" } else { "files are" };
            return Ok(format!("{moved} {are} on the {to} now{}", self.what_stays(to, others, &dirs)));
        };
        let why = match outcome {
            MoveOutcome::Stays(why) => (*why).to_owned(),
            MoveOutcome::Failed(error) => error.to_string(),
            MoveOutcome::Busy => "it is open; try again when it is closed".into(),
            _ => "it changes all the time".into(),
        };
        Err(format!("{} of {all} files not moved; first: {}: {why}", stay.len(), String::from_utf8_lossy(path)))
    }

    /// Moves files one after the other, those in use several times, until `progress` returns false.
    fn move_all(&self, files: Vec<(u64, u64)>, to: TierName, progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool) -> MigrationTally {
        let bytes: u64 = files.iter().map(|(_, size)| size).sum();
        let (all, mut bytes_done, mut todo) = (files.len() as u64, 0u64, files);
        let mut tally = MigrationTally::default();
        for round in 1..=ROUNDS {
            let mut again = Vec::new();
            for (file, size) in todo {
                tally.is_stopped = tally.is_stopped || !progress(all, tally.moved, bytes, bytes_done);
                if tally.is_stopped {
                    break;
                }
                let outcome = self.move_file(file, to, MoveReason::Asked, &mut |done, _| {
                    tally.is_stopped = tally.is_stopped || !progress(all, tally.moved, bytes, bytes_done + done);
                    !tally.is_stopped
                });
                match outcome {
                    MoveOutcome::Done | MoveOutcome::Already => tally.moved += 1,
                    MoveOutcome::Dropped | MoveOutcome::Busy if round < ROUNDS && !self.mover.stopping() => {
                        again.push((file, size));
                        continue;
                    }
                    other => tally.not_moved.push((self.nodes.path(file).unwrap_or_default(), other)),
                }
                bytes_done += size;
            }
            todo = again;
            if tally.is_stopped && tally.moved < all {
                return tally;
            }
            if todo.is_empty() {
                break;
            }
            self.mover.pause(BETWEEN_ROUNDS);
        }
        progress(all, tally.moved, bytes, bytes_done);
        tally
    }

    /// What a migration leaves where it is: the rest of a sentence.
    fn what_stays(&self, to: TierName, others: u64, dirs: &[u64]) -> String {
        let only_there = |ino: &&u64| self.nodes.with(**ino, |node| node.backing[to as usize] == 0).unwrap_or(false);
        let dirs = dirs.iter().filter(only_there).count();
        if others == 0 && dirs == 0 {
            return String::new();
        }
        let from = to.other();
        format!(
            "; {others} links, pipes or devices and {dirs} directories are only on the {from}: `hotshelf retire` brings over everything"
        )
    }

    /// Returns the regular files of a tree (or the file itself) that are on a side, with sizes.
    pub(crate) fn files_below(&self, ino: u64, tier: TierName, visit: &mut dyn FnMut(&FoundName, u64, &OsStr)) -> Result<Vec<(u64, u64)>> {
        let (_, stat, kind) = self.where_is(ino)?;
        if kind == NodeKind::Regular {
            let there = self.nodes.with(ino, |node| node.tier()) == Some(tier);
            return Ok(if there { vec![(ino, stat.size)] } else { Vec::new() });
        }
        let mut files = Vec::new();
        let mut todo = vec![ino];
        while let Some(at) = todo.pop() {
            let entries = match self.open_listing(at).and_then(|listing| Ok((self.entries(&listing, true)?, listing.dir))) {
                // Removed since it was found.
                Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) if at != ino => continue,
                other => other?,
            };
            let (entries, dir) = entries;
            for entry in entries.iter() {
                let name = OsStr::from_bytes(&entry.name);
                let Ok(found) = self.find(&dir, name) else { continue };
                visit(&found, at, name);
                match found.kind {
                    NodeKind::Directory => todo.push(found.ino),
                    NodeKind::Regular if found.tier == tier => files.push((found.ino, found.stat.size)),
                    _ => {}
                }
            }
        }
        Ok(files)
    }
}

fn kind_name(stat: &Stat) -> &'static str {
    use rustix::fs::FileType as Type;
    match stat.kind() {
        Type::RegularFile => "file",
        Type::Directory => "directory",
        Type::Symlink => "symlink",
        Type::Fifo => "fifo",
        Type::Socket => "socket",
        Type::CharacterDevice => "character device",
        Type::BlockDevice => "block device",
        Type::Unknown => "unknown",
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::TestPair;

    /// The kernel gives its references back when memory is scarce, whatever we are doing.
    #[test]
    fn files_move_also_when_the_kernel_forgets_them_meanwhile() {
        let names = ["a/1", "a/b/2", "a/b/3"];
        let fs = TestPair::with(&names.map(|name| format!("hdd/{name}")));
        let mut forgotten = false;
        let answer = fs.migrate(b"a", TierName::Ssd, &mut |_, _, _, _| {
            names.iter().filter(|_| !forgotten).for_each(|name| fs.look_and_forget(name));
            forgotten = true;
            true
        });
        assert_eq!(answer, Ok("3 files are on the ssd now".into()));
        for name in names {
            assert_eq!(std::fs::read_to_string(fs.at("ssd").join(name)).expect("there"), format!("hdd/{name}"));
        }
    }

    #[test]
    fn a_migration_stops_between_files_and_in_the_middle_of_one() {
        let fs = TestPair::with(&["ssd/d/1", "ssd/d/2"]);
        std::fs::write(fs.at("ssd/d/big"), vec![7; 4 << 20]).expect("written");
        let sides = || ["1", "2", "big"].map(|name| (fs.at("ssd/d").join(name).exists(), fs.at("hdd/d").join(name).exists()));
        let mut asked = 0;
        let answer = fs.migrate(b"d", TierName::Hdd, &mut |_, done, _, _| {
            asked += 1;
            done == 0
        });
        assert_eq!(answer, Err("d: stopped: 1 of 3 files were moved to the hdd, the others stay where they are".into()));
        assert_eq!(sides().iter().filter(|(ssd, hdd)| !ssd && *hdd).count(), 1);
        let middle = fs.migrate(b"d/big", TierName::Hdd, &mut |_, _, _, bytes| bytes < 2 << 20);
        let moved = fs.at("hdd/d/big").exists();
        assert!(moved || middle.is_err_and(|error| error.contains("stopped: 0 of 1")), "it went on");
        assert!(sides().iter().all(|(ssd, hdd)| ssd != hdd), "a file is on one side");
        assert_eq!(std::fs::read_dir(fs.at("hdd/.hotshelf/tmp")).expect("there").count(), 0, "no temporary is left");
    }

    #[test]
    fn why_a_file_left_is_reported_after_the_kernel_forgot_it() {
        let fs = TestPair::with(&["ssd/file"]);
        let last = || fs.why(b"file").expect("there").last_move.map(|last| (last.to, last.reason));
        for tier in [TierName::Hdd, TierName::Ssd, TierName::Hdd] {
            fs.migrate(b"file", tier, &mut |_, _, _, _| true).expect("moved");
            fs.look_and_forget("file");
            assert_eq!(last(), Some((tier, "asked for".into())));
        }
        let ino = fs.look_up("file");
        fs.unlink(crate::testing::me(), ROOT, OsStr::new("file")).expect("removed");
        fs.forget(ino, 1);
        assert_eq!(fs.last_move(ino), None);
    }

    #[test]
    fn a_file_that_lost_one_of_its_names_is_found_by_the_other() {
        let fs = TestPair::with(&["ssd/file"]);
        let ino = fs.look_up("file");
        fs.link(ino, ROOT, OsStr::new("linked")).expect("linked");
        fs.unlink(crate::testing::me(), ROOT, OsStr::new("linked")).expect("removed");
        assert_eq!(fs.why(b"file").expect("still there").tier, Some(TierName::Ssd));
        assert_eq!(fs.migrate(b"file", TierName::Hdd, &mut |_, _, _, _| true), Ok("1 file is on the hdd now".into()));
    }
}
