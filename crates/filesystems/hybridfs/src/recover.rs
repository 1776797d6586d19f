//! Puts right what a crash left. Every step may itself be cut off and done again.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::errno::Result;
use crate::intent::{IntentStep, RecordedStep};
use crate::pair::TieredFs;
use crate::path::NAME_ONLY;
use crate::persist::{MoveRecord, OpenMove};
use crate::read_dir::read_names;
use crate::report::TierName;
use crate::stat::{InodeId, Stat};
use crate::tier::Tier;

/// What paths of temporaries begin with.
const TEMPORARIES: &[u8] = b".hotshelf/tmp/";

impl TieredFs {
    /// Finishes the rename that was under way, removes duplicates of open moves, and the temporaries.
    /// What cannot be done stays written down for the next mount.
    pub(crate) fn recover(&self, open: &[OpenMove], steps: std::result::Result<Vec<RecordedStep>, &'static str>) {
        let unfinished = match steps {
            Ok(steps) => !self.redo_all(&steps),
            Err(detail) => {
                let kept = self.intents.put_aside(&self.tier(TierName::Ssd).hidden);
                let kept = kept.map_or_else(|error| format!("could not be kept: {error}"), |name| format!("kept as {name}"));
                self.warn(format!(".hotshelf/intent is damaged ({detail}); {kept}; run `hotshelf check` after unmounting"));
                false
            }
        };
        for tier in self.tiers() {
            let _ = rustix::fs::syncfs(&tier.root);
        }
        crate::crash::point("recovery of renames done");
        if unfinished {
            self.intents.keep();
        } else {
            let _ = self.noted(TierName::Ssd, self.intents.clear());
        }
        let mut left = false;
        for open in open {
            crate::crash::point("recovery of a move");
            if let Err(error) = self.remove_copy(open) {
                let path = String::from_utf8_lossy(&open.record.path).into_owned();
                self.warn(format!("{path}: a copy left by a crash could not be removed from the HDD: {error}"));
                left = true;
            }
        }
        crate::crash::point("recovery of moves done");
        if !left && let Err(error) = self.journal.clear() {
            self.warn(format!(".hotshelf/journal cannot be written: {error}; files will not move"));
        }
        for tier in self.tiers() {
            if unfinished {
                // Steps may take from there.
                break;
            }
            crate::crash::point("recovery of temporaries");
            if let Err(error) = empty_tmp(tier) {
                tracing::warn!(tier = %tier.name, %error, "temporaries could not be removed");
            }
        }
    }

    /// Finishes the rename that a crash cut off. Returns false if the next mount must try again.
    fn redo_all(&self, steps: &[RecordedStep]) -> bool {
        let mut refused = Vec::new();
        for recorded in steps {
            let step = &recorded.step;
            crate::crash::point("recovery step");
            // What a name loses must be elsewhere before.
            if let IntentStep::Remove { path, .. } = step
                && (refused.contains(path) || !self.is_replaced(step, steps))
            {
                self.warn(format!("a rename that a crash cut off could not be finished: {step:?}: what takes its place is missing"));
                continue;
            }
            tracing::info!(?step, "finishing a rename");
            if let Err(error) = self.redo(recorded) {
                self.warn(format!("a rename that a crash cut off could not be finished: {step:?}: {error}"));
                if passes(error) {
                    return false;
                }
                if let IntentStep::Rename { to, .. } = step {
                    refused.push(to.clone());
                }
            }
        }
        true
    }

    /// While the SSD has the name, the HDD's file of an open move is the move's copy, or the original that it replaced.
    fn remove_copy(&self, open: &OpenMove) -> Result<()> {
        let record = &open.record;
        let (ssd, hdd) = (self.tier(TierName::Ssd), self.tier(TierName::Hdd));
        let (on_ssd_then, ours) = match record.to {
            TierName::Hdd => (record.source, record.target),
            TierName::Ssd => (record.target, record.source),
        };
        let Some((ssd_dir, name)) = parent(ssd, &record.path)? else { return Ok(()) };
        let on_ssd = match ssd.look(ssd_dir.as_fd(), name)? {
            Some(stat) if on_ssd_then.is(&stat) || !ssd.keeps_inodes() => stat,
            _ => return Ok(()),
        };
        let Some((hdd_dir, name)) = parent(hdd, &record.path)? else { return Ok(()) };
        let hdd_dir = hdd_dir.as_fd();
        let Some(on_hdd) = hdd.look(hdd_dir, name)? else { return Ok(()) };
        let is_ours = if ssd.keeps_inodes() && hdd.keeps_inodes() {
            ours.is(&on_hdd)
        } else {
            self.is_a_copy(record, (ssd_dir.as_fd(), &on_ssd), (hdd_dir, &on_hdd), name)?
        };
        if !is_ours && !hdd.is_placeholder(hdd_dir, name, record.ino)? {
            return Ok(());
        }
        // What was fsynced on the SSD under this name must be found there before the HDD's goes.
        ssd.sync_name(ssd_dir.as_fd(), name)?;
        if hdd.as_owner(hdd_dir, || hdd.unlink_if(hdd_dir, name, on_hdd.id()))? {
            tracing::info!(path = %String::from_utf8_lossy(&record.path), "removed the HDD's copy of a move that was cut off");
            hdd.sync_dir(hdd_dir)?;
        }
        Ok(())
    }

    /// Whether the HDD's file is the one of a move, where inode numbers do not tell: it has the size and time that the move wrote
    /// down, or the content of the SSD's file. What differs is somebody's and stays.
    fn is_a_copy(
        &self,
        record: &MoveRecord,
        (ssd_dir, on_ssd): (BorrowedFd<'_>, &Stat),
        (hdd_dir, on_hdd): (BorrowedFd<'_>, &Stat),
        name: &OsStr,
    ) -> Result<bool> {
        let (ssd, hdd) = (self.tier(TierName::Ssd), self.tier(TierName::Hdd));
        if !on_ssd.is_file() || !on_hdd.is_file() {
            return Ok(false);
        }
        let step = hdd.abilities.time_step_ns.max(1);
        let nanoseconds = |(seconds, part): (i64, u32)| i128::from(seconds) * 1_000_000_000 + i128::from(part);
        let apart = (nanoseconds(on_hdd.mtime) - nanoseconds(record.mtime)).unsigned_abs();
        if ssd.keeps_inodes() && on_hdd.size == record.size && apart < u128::from(step) {
            return Ok(true);
        }
        if on_hdd.size != on_ssd.size {
            return Ok(false);
        }
        // Neither a pipe that has the name by now nor a lease of its owner makes the mount wait.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let files = [ssd.open_at(ssd_dir, name, flags)?, hdd.open_at(hdd_dir, name, flags)?];
        crate::copy::same_content(files[0].as_fd(), files[1].as_fd(), on_ssd.size)
    }

    /// Whether what a list of steps puts where this name goes is there. Where inode numbers do not tell, anything counts.
    fn is_replaced(&self, removal: &IntentStep, steps: &[RecordedStep]) -> bool {
        let IntentStep::Remove { path, .. } = removal else { return true };
        steps.iter().all(|RecordedStep { step, birth, parents }| match step {
            IntentStep::Rename { tier, to, ino, .. } if to == path => {
                let tier = self.tier(*tier);
                let there = recorded_parent(tier, to, parents[1])
                    .ok()
                    .flatten()
                    .and_then(|(dir, name)| tier.look(dir.as_fd(), name).ok().flatten());
                there.is_some_and(|stat| InodeId { ino: *ino, birth: *birth }.is(&stat) || !tier.keeps_inodes())
            }
            _ => true,
        })
    }

    fn redo(&self, recorded: &RecordedStep) -> Result<()> {
        let parents = recorded.parents;
        let named = |ino| InodeId { ino, birth: recorded.birth };
        match &recorded.step {
            IntentStep::Rename { tier, from, to, ino } => self.redo_rename(*tier, (from, to), parents, named(*ino), RenameFlags::empty()),
            IntentStep::Exchange { tier, a, b, ino } => self.redo_rename(*tier, (a, b), parents, named(*ino), RenameFlags::EXCHANGE),
            IntentStep::Remove { tier, path, ino, directory } => {
                let tier = self.tier(*tier);
                let Some((dir, name)) = recorded_parent(tier, path, parents[0])? else { return Ok(()) };
                if tier.look(dir.as_fd(), name)?.is_none_or(|stat| !named(*ino).is(&stat)) {
                    // Where numbers do not tell it may be anybody's: it stays, and is listed as a conflict.
                    return Ok(());
                }
                let flags = if *directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(&dir, name, flags)
            }
        }
    }

    fn redo_rename(&self, tier: TierName, (from, to): (&[u8], &[u8]), parents: [u64; 2], id: InodeId, flags: RenameFlags) -> Result<()> {
        let tier = self.tier(tier);
        let Some((from_dir, from_name)) = recorded_parent(tier, from, parents[0])? else { return Ok(()) };
        // Without stable inode numbers, a name that is still there was not renamed; an exchange cannot be detected.
        let is_it = |stat: &Stat| id.is(stat) || (!tier.keeps_inodes() && flags.is_empty());
        let Some(stat) = tier.look(from_dir.as_fd(), from_name)?.filter(is_it) else { return Ok(()) };
        let Some((to_dir, to_name)) = recorded_parent(tier, to, parents[1])? else { return Err(Errno::NOENT) };
        if from.starts_with(TEMPORARIES) {
            return self.redo_place(tier, (from_dir.as_fd(), from_name, &stat), (to_dir.as_fd(), to_name), id);
        }
        tier.rename(from_dir.as_fd(), from_name, to_dir.as_fd(), to_name, flags)
    }

    /// Gives a copy in the temporary directory its name, unless another program has made a file of that name since the crash.
    fn redo_place(
        &self,
        tier: &Tier,
        from: (BorrowedFd<'_>, &OsStr, &Stat),
        (to_dir, to): (BorrowedFd<'_>, &OsStr),
        id: InodeId,
    ) -> Result<()> {
        let (from_dir, name, stat) = from;
        if has_the_copy(tier, from, (to_dir, to))? {
            return tier.unlink(from_dir, name);
        }
        if tier.is_placeholder(to_dir, to, id.ino)? {
            return tier.rename(from_dir, name, to_dir, to, RenameFlags::empty());
        }
        tier.as_owner(to_dir, || tier.place((name, stat.id()), to_dir, to, id.ino)).map(drop)
    }
}

/// Returns whether the second name has what the first has: the same inode or, where numbers do not tell, the same content.
fn has_the_copy(
    tier: &Tier,
    (from_dir, from, stat): (BorrowedFd<'_>, &OsStr, &Stat),
    (to_dir, to): (BorrowedFd<'_>, &OsStr),
) -> Result<bool> {
    let Some(there) = tier.look(to_dir, to)? else { return Ok(false) };
    if there.is_same_file(stat) {
        return Ok(true);
    }
    if tier.keeps_inodes() || there.kind() != stat.kind() || there.size != stat.size {
        return Ok(false);
    }
    if stat.is_file() {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let files = [tier.open_at(from_dir, from, flags)?, tier.open_at(to_dir, to, flags)?];
        return crate::copy::same_content(files[0].as_fd(), files[1].as_fd(), stat.size);
    }
    let is_link = stat.kind() == FileType::Symlink;
    Ok(is_link && rustix::fs::readlinkat(from_dir, from, Vec::new())? == rustix::fs::readlinkat(to_dir, to, Vec::new())?)
}

/// Returns what [`parent`] does; ESTALE: the path leads to another directory than the step was started in. The owner of a directory above
/// has exchanged it meanwhile, and what is done there with the daemon's rights may be done to somebody else.
fn recorded_parent<'a>(tier: &Tier, path: &'a [u8], inode: u64) -> Result<Option<(OwnedFd, &'a OsStr)>> {
    let found = parent(tier, path)?;
    match &found {
        Some((dir, _)) if inode != 0 && tier.keeps_inodes() && tier.stat_fd(dir.as_fd())?.ino != inode => Err(Errno::STALE),
        _ => Ok(found),
    }
}

/// The directory a relative path ends in, and its last name; `None` when a directory on the way is missing.
pub(crate) fn parent<'a>(tier: &Tier, path: &'a [u8]) -> Result<Option<(OwnedFd, &'a OsStr)>> {
    let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let name = OsStr::from_bytes(parts.pop().unwrap_or_default());
    crate::path::valid_name(name)?;
    let mut dir = tier.root.try_clone().map_err(|_| Errno::MFILE)?;
    for part in parts {
        let part = OsStr::from_bytes(part);
        crate::path::valid_name(part)?;
        dir = match rustix::fs::openat(&dir, part, NAME_ONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error),
        };
    }
    Ok(Some((dir, name)))
}

/// Whether the next mount may succeed where this one failed; anything else means that the step fits no more.
pub(crate) fn passes(error: Errno) -> bool {
    matches!(error, Errno::ROFS | Errno::IO | Errno::NOSPC | Errno::DQUOT | Errno::NODEV | Errno::NXIO | Errno::UCLEAN)
}

/// Whatever is in `tmp` was never a file of the user's.
pub(crate) fn empty_tmp(tier: &Tier) -> Result<()> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    read_names(tier.tmp.as_fd(), &mut |name, _| names.push(name.into()))?;
    for name in names {
        let name = OsStr::from_bytes(&name);
        match tier.unlink(tier.tmp.as_fd(), name) {
            Err(Errno::ISDIR | Errno::PERM) => remove_dir(tier, name)?,
            other => other?,
        }
    }
    Ok(())
}

/// A directory that was not finished, or what a probe left in its own.
pub(crate) fn remove_dir(tier: &Tier, name: &OsStr) -> Result<()> {
    match rustix::fs::unlinkat(&tier.tmp, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        other => return other,
    }
    let dir = tier.open_at(tier.tmp.as_fd(), name, OFlags::DIRECTORY | OFlags::RDONLY)?;
    let mut names: Vec<Box<[u8]>> = Vec::new();
    read_names(dir.as_fd(), &mut |name, _| names.push(name.into()))?;
    for name in names {
        tier.unlink(dir.as_fd(), OsStr::from_bytes(&name))?;
    }
    rustix::fs::unlinkat(&tier.tmp, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod test {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use crate::intent::{IntentStep, RecordedStep};
    use crate::report::TierName;
    use crate::testing::TestPair;

    #[test]
    fn nothing_is_removed_for_what_is_not_there() {
        for placed in [false, true] {
            let fs = TestPair::with(&["ssd/file"]);
            let ino = std::fs::metadata(fs.at("ssd/file")).expect("there").ino();
            let mut copy = u64::MAX;
            if placed {
                let aside = fs.at("hdd/.hotshelf/tmp/copy");
                std::fs::write(&aside, "ssd/file").expect("written");
                copy = std::fs::metadata(aside).expect("there").ino();
            }
            let path = b"file".to_vec();
            let steps = [
                IntentStep::Rename { tier: TierName::Hdd, from: b".hotshelf/tmp/copy".to_vec(), to: path.clone(), ino: copy },
                IntentStep::Remove { tier: TierName::Ssd, path, ino, directory: false },
            ];
            let steps = steps.map(|step| RecordedStep { step, birth: 0, parents: [0; 2] });
            drop(fs.intents.begin(&steps).expect("written"));
            let fs = fs.again();
            let sides = ["ssd/file", "hdd/file"].map(|name| std::fs::read_to_string(fs.at(name)).is_ok_and(|text| text == "ssd/file"));
            assert_eq!(sides, [!placed, placed], "it is on one side");
        }
    }

    #[test]
    fn no_file_is_replaced_or_removed_that_another_program_made_since_the_crash() {
        for theirs in ["the name", "the number"] {
            let fs = TestPair::with(&["ssd/file"]);
            std::fs::write(fs.at("hdd/.hotshelf/tmp/copy"), "copy").expect("written");
            let id = |path: &str| {
                let path = std::path::Path::new(path);
                let tier = fs.tier(if path.starts_with("ssd") { TierName::Ssd } else { TierName::Hdd });
                let dir = std::fs::File::open(fs.at("").join(path.parent().expect("in a directory"))).expect("opened");
                tier.stat(dir.as_fd(), path.file_name().expect("a name")).expect("there").id()
            };
            let (copy, source) = (id("hdd/.hotshelf/tmp/copy"), id("ssd/file"));
            let path = b"file".to_vec();
            let rename = IntentStep::Rename { tier: TierName::Hdd, from: b".hotshelf/tmp/copy".to_vec(), to: path.clone(), ino: copy.ino };
            let remove = IntentStep::Remove { tier: TierName::Ssd, path, ino: source.ino, directory: false };
            let birth = if theirs == "the number" { source.birth - 1 } else { source.birth };
            let steps =
                [RecordedStep { step: rename, birth: copy.birth, parents: [0; 2] }, RecordedStep { step: remove, birth, parents: [0; 2] }];
            if theirs == "the name" {
                std::fs::write(fs.at("hdd/file"), "theirs").expect("written");
            }
            drop(fs.intents.begin(&steps).expect("written"));
            let fs = fs.again();
            assert_eq!(std::fs::read_to_string(fs.at("ssd/file")).expect("it stays"), "ssd/file");
            let on_hdd = std::fs::read_to_string(fs.at("hdd/file")).expect("there");
            assert_eq!(on_hdd, if theirs == "the name" { "theirs" } else { "copy" });
        }
    }

    /// Between a crash and the next mount the owner of a directory gives another one its name.
    #[test]
    fn a_step_is_not_finished_in_another_directory_than_it_was_begun_in() {
        for exchanged in [false, true] {
            let fs = TestPair::with(&["ssd/a/new", "ssd/b/file", "ssd/other/file", "ssd/b/gone", "ssd/other/gone"]);
            let ino = |path: &str| std::fs::metadata(fs.at(path)).expect("there").ino();
            let parents = [ino("ssd/a"), ino("ssd/b")];
            let rename = IntentStep::Rename { tier: TierName::Ssd, from: b"a/new".to_vec(), to: b"b/file".to_vec(), ino: ino("ssd/a/new") };
            let gone = ino(if exchanged { "ssd/other/gone" } else { "ssd/b/gone" });
            let remove = IntentStep::Remove { tier: TierName::Ssd, path: b"b/gone".to_vec(), ino: gone, directory: false };
            let steps =
                [RecordedStep { step: rename, birth: 0, parents }, RecordedStep { step: remove, birth: 0, parents: [parents[1], 0] }];
            drop(fs.intents.begin(&steps).expect("written"));
            if exchanged {
                std::fs::rename(fs.at("ssd/b"), fs.at("ssd/c")).expect("renamed");
                std::fs::rename(fs.at("ssd/other"), fs.at("ssd/b")).expect("renamed");
            }
            let fs = fs.again();
            let content = std::fs::read_to_string(fs.at("ssd/b/file")).expect("read");
            assert_eq!(content == "ssd/a/new", !exchanged, "{content}");
            assert_eq!(fs.at("ssd/b/gone").exists(), exchanged);
            assert_eq!(fs.at("ssd/a/new").exists(), exchanged);
        }
    }

    #[test]
    fn what_a_probe_left_in_its_directory_is_removed_with_the_other_temporaries() {
        let fs = TestPair::empty();
        for side in ["ssd", "hdd"] {
            let tmp = fs.at(side).join(".hotshelf/tmp");
            std::fs::create_dir(tmp.join("probe-1-0")).expect("made");
            std::fs::write(tmp.join("probe-1-0/file"), "x").expect("written");
            std::fs::write(tmp.join("copy"), "x").expect("written");
        }
        let fs = fs.again();
        for side in ["ssd", "hdd"] {
            let tmp = fs.at(side).join(".hotshelf/tmp");
            assert_eq!(std::fs::read_dir(tmp).expect("listed").count(), 0);
        }
    }
}
