//! Puts right what a crash left. Every step may itself be cut off and done again.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::intent::Step;
use crate::listing::read_names;
use crate::pair::Hybrid;
use crate::persist::OpenMove;
use crate::report::TierName;
use crate::tier::{NAME_ONLY, Result, Tier};

impl Hybrid {
    /// Finishes the rename that was under way, removes duplicates of open moves, and the temporaries.
    /// What cannot be done stays written down for the next mount.
    pub(crate) fn recover(&self, open: &[OpenMove], steps: std::result::Result<Vec<Step>, &'static str>) {
        let mut unfinished = false;
        match steps {
            Ok(steps) => {
                for step in &steps {
                    crate::crash::point("recovery step");
                    tracing::info!(?step, "finishing a rename");
                    if let Err(error) = self.redo(step) {
                        self.warn(format!("a rename that a crash cut off could not be finished: {step:?}: {error}"));
                        if passes(error) {
                            unfinished = true;
                            break;
                        }
                    }
                }
            }
            Err(detail) => {
                let kept = self.intents.put_aside(&self.tier(TierName::Ssd).hidden);
                let kept = kept.map_or_else(|error| format!("could not be kept: {error}"), |name| format!("kept as {name}"));
                self.warn(format!(".hotshelf/intent is damaged ({detail}); {kept}; run `hotshelf check` after unmounting"));
            }
        }
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
            crate::crash::point("recovery of temporaries");
            if let Err(error) = empty_tmp(tier) {
                tracing::warn!(tier = %tier.name, %error, "temporaries could not be removed");
            }
        }
    }

    /// While the SSD has the name, the HDD's file of an open move is a copy of ours, or the original it replaced.
    fn remove_copy(&self, open: &OpenMove) -> Result<()> {
        let record = &open.record;
        let (ssd, hdd) = (self.tier(TierName::Ssd), self.tier(TierName::Hdd));
        let ours = match record.to {
            TierName::Hdd => record.target_ino,
            TierName::Ssd => record.source_ino,
        };
        let expected_ssd = match record.to {
            TierName::Hdd => record.source_ino,
            TierName::Ssd => record.target_ino,
        };
        let Some((ssd_dir, name)) = parent(ssd, &record.path)? else { return Ok(()) };
        let on_ssd = ssd.look(ssd_dir.as_fd(), name)?;
        if on_ssd.is_none_or(|stat| stat.ino != expected_ssd) {
            return Ok(());
        }
        let Some((hdd_dir, name)) = parent(hdd, &record.path)? else { return Ok(()) };
        // What was fsynced on the SSD under this name must be found there before the HDD's goes.
        ssd.sync_dir(ssd_dir.as_fd())?;
        if hdd.as_owner(hdd_dir.as_fd(), || hdd.unlink_if(hdd_dir.as_fd(), name, ours))? {
            tracing::info!(path = %String::from_utf8_lossy(&record.path), "removed the HDD's copy of a move that was cut off");
            hdd.sync_dir(hdd_dir.as_fd())?;
        }
        Ok(())
    }

    fn redo(&self, step: &Step) -> Result<()> {
        match step {
            Step::Rename { tier, from, to, ino } => self.redo_rename(*tier, from, to, *ino, RenameFlags::empty()),
            Step::Exchange { tier, a, b, ino } => self.redo_rename(*tier, a, b, *ino, RenameFlags::EXCHANGE),
            Step::Remove { tier, path, ino, directory } => {
                let tier = self.tier(*tier);
                let Some((dir, name)) = parent(tier, path)? else { return Ok(()) };
                if tier.look(dir.as_fd(), name)?.is_none_or(|stat| stat.ino != *ino) {
                    return Ok(());
                }
                let flags = if *directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(&dir, name, flags)
            }
        }
    }

    fn redo_rename(&self, tier: TierName, from: &[u8], to: &[u8], ino: u64, flags: RenameFlags) -> Result<()> {
        let tier = self.tier(tier);
        let Some((from_dir, from_name)) = parent(tier, from)? else { return Ok(()) };
        if tier.look(from_dir.as_fd(), from_name)?.is_none_or(|stat| stat.ino != ino) {
            return Ok(());
        }
        let Some((to_dir, to_name)) = parent(tier, to)? else { return Err(Errno::NOENT) };
        tier.rename(from_dir.as_fd(), from_name, to_dir.as_fd(), to_name, flags)
    }
}

/// The directory a relative path ends in, and its last name; `None` when a directory on the way is missing.
pub(crate) fn parent<'a>(tier: &Tier, path: &'a [u8]) -> Result<Option<(OwnedFd, &'a OsStr)>> {
    let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let name = OsStr::from_bytes(parts.pop().unwrap_or_default());
    crate::tier::valid_name(name)?;
    let mut dir = tier.root.try_clone().map_err(|_| Errno::MFILE)?;
    for part in parts {
        let part = OsStr::from_bytes(part);
        crate::tier::valid_name(part)?;
        dir = match rustix::fs::openat(&dir, part, NAME_ONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error),
        };
    }
    Ok(Some((dir, name)))
}

/// Whether the next mount may succeed where this one failed; anything else means that the step fits no more.
fn passes(error: Errno) -> bool {
    matches!(error, Errno::ROFS | Errno::IO | Errno::NOSPC | Errno::DQUOT | Errno::NODEV | Errno::NXIO | Errno::UCLEAN)
}

/// Whatever is in `tmp` was never a file of the user's.
fn empty_tmp(tier: &Tier) -> Result<()> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    read_names(tier.tmp.as_fd(), &mut |name, _| names.push(name.into()))?;
    for name in names {
        let name = OsStr::from_bytes(&name);
        match tier.unlink(tier.tmp.as_fd(), name) {
            Err(Errno::ISDIR) => rustix::fs::unlinkat(&tier.tmp, name, AtFlags::REMOVEDIR)?,
            other => other?,
        }
    }
    Ok(())
}
