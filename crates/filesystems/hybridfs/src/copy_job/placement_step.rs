//! The last step of a move: the copy gets its name, and the other side loses it.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{MutexGuard, RwLockWriteGuard};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{CopyJob, GATE_WAIT};
use crate::abilities::NamingMethod;
use crate::backing::Backing;
use crate::clock::now_s;
use crate::dirs::DirPair;
use crate::errno::Result;
use crate::moves::job::Duplicate;
use crate::nodes::KeptFor;
use crate::open::{ChangedRanges, OpenInode};
use crate::pair::TieredFs;
use crate::path::NAME_ONLY;
use crate::report::TierName;
use crate::stat::{InodeId, Stat};

/// How the last steps ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementEnd {
    Done,
    /// It is on the SSD, and the HDD's original could not be removed.
    OnBothSides,
    Dropped,
}

/// The last steps of a move, from a complete copy on.
pub(super) struct PlacementStep<'a> {
    pub(super) copying: &'a CopyJob,
    pub(super) fs: &'a TieredFs,
    pub(super) open: Option<&'a Arc<OpenInode>>,
    pub(super) target_dir: Arc<DirPair>,
    pub(super) placed: OnceCell<NamedCopy>,
    /// What the journal has for it: where recovery looks for the copy.
    pub(super) path: &'a [u8],
    /// In the journal.
    pub(super) entry: u64,
}

/// The copy by the name it was given.
pub(super) struct NamedCopy {
    pub(super) id: InodeId,
    /// Opened by that name where the handle that made the copy may stand for another inode: what is written now goes here.
    pub(super) file: Option<Arc<OwnedFd>>,
    /// Keeps the number that it has by that name.
    pub(super) _pin: Option<OwnedFd>,
}

impl PlacementStep<'_> {
    /// Gives the copy its name. After an error it does not have it.
    fn place(&self, to: BorrowedFd<'_>) -> Result<InodeId> {
        let (fs, copying) = (self.fs, self.copying);
        let target = fs.tier(copying.to);
        let name = &copying.place.name;
        let tmp = copying.tmp()?;
        copying.close_tmp(fs)?;
        let id = fs.keeping_times(copying.place.parent, target, to, || target.place((&tmp.name, tmp.id), to, name, copying.ino))?;
        match self.open_placed(to, id) {
            Ok(placed) => {
                let _ = self.placed.set(placed);
                Ok(id)
            }
            Err(error) => {
                let undone = fs.keeping_times(copying.place.parent, target, to, || target.unlink(to, name));
                if undone.is_err() && copying.to == TierName::Hdd {
                    fs.mover.left_behind.lock().insert(tmp.id.ino);
                }
                Err(error)
            }
        }
    }

    fn open_placed(&self, to: BorrowedFd<'_>, id: InodeId) -> Result<NamedCopy> {
        let target = self.fs.tier(self.copying.to);
        let mut placed = NamedCopy { id, file: None, _pin: None };
        if target.keeps_inodes() && target.abilities.naming_method() == NamingMethod::Rename {
            return Ok(placed);
        }
        let name = &self.copying.place.name;
        placed._pin = Some(target.open_at(to, name, NAME_ONLY)?);
        if self.open.is_some() {
            placed.file = match target.open_at(to, name, OFlags::RDWR | OFlags::NONBLOCK) {
                // An ordinary user's file that may not be written by opening it again.
                Err(Errno::ACCESS) => None,
                other => Some(Arc::new(other?)),
            };
        }
        Ok(placed)
    }

    /// The copy, to be written to.
    fn file(&self) -> Result<Arc<OwnedFd>> {
        match self.placed.get().and_then(|placed| placed.file.clone()) {
            Some(file) => Ok(file),
            None => self.copying.tmp_file(self.fs),
        }
    }

    fn target_id(&self) -> Result<InodeId> {
        self.placed.get().map(|placed| placed.id).ok_or(Errno::STALE)
    }

    pub(super) fn demote(&self) -> Result<PlacementEnd> {
        let (fs, copying) = (self.fs, self.copying);
        let (ssd, hdd) = (fs.tier(TierName::Ssd), fs.tier(TierName::Hdd));
        let target = self.target_dir.must(TierName::Hdd)?;
        {
            let _alone = self.alone();
            if !self.is_at_its_path() || !self.unchanged()? {
                return Ok(PlacementEnd::Dropped);
            }
            let on_hdd = fs.noted(TierName::Hdd, self.place(target))?;
            let duplicate = Duplicate { dir: self.target_dir.clone(), name: copying.place.name.clone(), on_hdd };
            fs.mover.duplicates.lock().insert(copying.ino, duplicate);
        }
        crate::crash::point("demotion placed");
        let synced = fs.noted(TierName::Hdd, hdd.sync_dir(target));
        let _gate = fs.gate(copying.ino).write();
        let mine = fs.mover.duplicates.lock().remove(&copying.ino);
        let Some(duplicate) = mine else { return Ok(PlacementEnd::Dropped) };
        let committed = synced.and_then(|()| {
            self.with_writers_stopped(|| {
                let source = copying.source_dir.must(TierName::Ssd)?;
                let name = &copying.place.name;
                let gone = fs.keeping_times(copying.place.parent, ssd, source, || ssd.unlink_if(source, name, copying.before.id()));
                if !fs.noted(TierName::Ssd, gone)? {
                    // Something else has the name: it has no copy.
                    return Err(Errno::STALE);
                }
                crate::crash::point("demotion unlinked");
                if let Err(error) = ssd.sync_dir(source) {
                    // The name is gone, so the HDD's copy is the file now; but the name may come back after a
                    // power cut, and recovery must not then take the HDD's for a needless copy.
                    fs.note_failure(TierName::Ssd, error);
                    if let Err(error) = fs.journal.end(self.entry, true) {
                        // No reason to give up the copy: it is the only file now.
                        fs.warn(format!(".hotshelf/journal cannot be written: {error}"));
                    }
                }
                Ok(())
            })
        });
        match committed {
            Ok(true) => {
                fs.placement.left(copying.ino);
                self.changed_sides(self.target_id()?);
                // On the HDD only the kernel's interest keeps a node.
                fs.nodes.keep(copying.ino, KeptFor::Policy, false);
                Ok(PlacementEnd::Done)
            }
            Ok(false) => {
                fs.remove_duplicate(&duplicate);
                Ok(PlacementEnd::Dropped)
            }
            Err(error) => {
                fs.remove_duplicate(&duplicate);
                Err(error)
            }
        }
    }

    pub(super) fn promote(&self) -> Result<PlacementEnd> {
        let (fs, copying) = (self.fs, self.copying);
        let (ssd, hdd) = (fs.tier(TierName::Ssd), fs.tier(TierName::Hdd));
        let target = self.target_dir.must(TierName::Ssd)?;
        let mut safe = Ok(());
        {
            let _alone = self.alone();
            if !self.is_at_its_path() {
                return Ok(PlacementEnd::Dropped);
            }
            let committed = self.with_writers_stopped(|| {
                fs.noted(TierName::Ssd, self.place(target))?;
                crate::crash::point("promotion placed");
                // From here on the SSD's file counts; it must not be lost again once it may be written to.
                safe = fs.noted(TierName::Ssd, ssd.sync_dir(target));
                Ok(())
            })?;
            if !committed {
                return Ok(PlacementEnd::Dropped);
            }
            // A call that removes the name from now on removes the original first.
            let (dir, name) = (copying.source_dir.clone(), copying.place.name.clone());
            fs.mover.duplicates.lock().insert(copying.ino, Duplicate { dir, name, on_hdd: copying.before.id() });
            self.changed_sides(self.target_id()?);
            // While nobody can remove it: the policy would remember a file that is gone.
            let (last_open, opens) = fs.placement.heat(copying.ino).unwrap_or((now_s(), 1));
            fs.placement.arrived(copying.ino, copying.before.size, last_open, opens);
            fs.nodes.keep(copying.ino, KeptFor::Policy, true);
        }
        crate::crash::point("promotion synced");
        // A name that may not be safe is no reason to give up the copy on the HDD.
        let removed = safe.and_then(|()| {
            let source = copying.source_dir.must(TierName::Hdd)?;
            let name = &copying.place.name;
            let gone = fs.keeping_times(copying.place.parent, hdd, source, || {
                hdd.as_owner(source, || hdd.unlink_if(source, name, copying.before.id()))
            });
            fs.noted(TierName::Hdd, gone)?;
            crate::crash::point("promotion unlinked");
            fs.noted(TierName::Hdd, hdd.sync_dir(source))
        });
        {
            // Whoever found it in the list and removes it too has done so when the gate opens.
            let _gate = fs.gate(copying.ino).write();
            fs.mover.duplicates.lock().remove(&copying.ino);
        }
        if let Err(error) = removed {
            let path = fs.nodes.path(copying.ino).unwrap_or_default();
            let shown = String::from_utf8_lossy(&path).into_owned();
            fs.warn(format!("{shown} is on the SSD now, but its original on the HDD stays: {error}; the next mount removes it"));
            fs.note_conflict(&path);
            return Ok(PlacementEnd::OnBothSides);
        }
        Ok(PlacementEnd::Done)
    }

    /// Nobody uses the file, and no directory above it is renamed, between a look at its path and the note of its copy, which such
    /// a rename would remove. Other threads hold gates when they lock the shape: so this one releases it repeatedly.
    fn alone(&self) -> (MutexGuard<'_, ()>, RwLockWriteGuard<'_, ()>) {
        loop {
            let shape = self.fs.shape.lock();
            if let Some(gate) = self.fs.gate(self.copying.ino).try_write_for(GATE_WAIT) {
                return (shape, gate);
            }
        }
    }

    fn is_at_its_path(&self) -> bool {
        self.fs.nodes.path(self.copying.ino).as_deref() == Some(self.path)
    }

    /// Whether the file is still the one that was copied, under the name it had. The caller holds its gate, so that nobody
    /// can open it meanwhile.
    fn unchanged(&self) -> Result<bool> {
        let copying = self.copying;
        let place = self.fs.nodes.place(copying.ino);
        let same_name = place.is_some_and(|place| place.fits(&copying.place));
        let now = self.fs.tier(copying.to.other()).stat_fd(copying.source.as_fd())?;
        Ok(same_name && now.nlink == 1 && self.all_is_known(&now))
    }

    /// Whether what was written since the copy began is in the copy, or on the list of the open file that the move knows.
    fn all_is_known(&self, now: &Stat) -> bool {
        let untouched = !now.changed_since(&self.copying.before);
        let current = self.fs.opens.lock().get(&self.copying.ino).cloned();
        match (self.open, current) {
            (None, None) => untouched,
            (Some(known), Some(current)) => Arc::ptr_eq(known, &current),
            // Closed since: what else was done to it is on nobody's list.
            (Some(_), None) => untouched,
            // Opened since, maybe for the second time: its writes are on nobody's list.
            (_, Some(_)) => false,
        }
    }

    /// Does `commit` while nobody can write the file; an open file goes on with the copy. `false`: it
    /// changed in a way that was not copied.
    fn with_writers_stopped(&self, commit: impl FnOnce() -> Result<()>) -> Result<bool> {
        if !self.unchanged()? {
            return Ok(false);
        }
        let Some(open) = self.open else { return commit().map(|()| true) };
        let mut io = open.io.write();
        if open.held_in_place() {
            return Ok(false);
        }
        let changed = open.track.lock().replace(ChangedRanges::default()).unwrap_or_default();
        let file = self.file()?;
        // Little, and the writers wait.
        self.copying.copy_changed(self.fs, &file, &changed, &mut |_| Ok(()))?;
        self.copying.dress(self.fs, &file)?;
        self.fs.noted(self.copying.to, rustix::fs::fsync(&*file))?;
        drop(file);
        commit()?;
        // By its name, if it has got that only now.
        let file = self.file()?;
        io.tier = self.copying.to;
        io.backing = self.target_id()?.ino;
        io.rd = None;
        io.wr = None;
        io.rw = Some(file);
        Ok(true)
    }

    fn changed_sides(&self, copy: InodeId) {
        self.fs.nodes.change(self.copying.ino, |node| node.backing = Backing::only(self.copying.to, copy));
        // Kept when the file lost another name, it is a handle on the copy that is gone.
        let _held = self.fs.held.lock().remove(&self.copying.ino);
        self.fs.moves_seen.fetch_add(1, Ordering::AcqRel);
    }
}
