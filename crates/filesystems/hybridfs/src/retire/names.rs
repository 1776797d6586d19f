//! Brings over what does not move like a file with one name: files with several names, symbolic links, pipes, sockets and devices.
//!
//! The copy is made aside, with as many names as the original has. Then all names change sides in one intent (see `intent`): the copies
//! get theirs, the originals lose theirs. A crash at any point leaves nothing but temporaries, or steps that the next mount finishes.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{MutexGuard, RwLockWriteGuard};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::TransferOutcome;
use crate::abilities::NamingMethod;
use crate::backing::Backing;
use crate::clock::now_s;
use crate::copy::{self, AttributeLoss, CopyError};
use crate::dirs::DirPair;
use crate::errno::Result;
use crate::intent::{IntentStep, RecordedStep};
use crate::known_files::KnownFiles;
use crate::nodes::{KeptFor, NodeKind};
use crate::pair::TieredFs;
use crate::path::{HIDDEN, NAME_ONLY};
use crate::recover::passes;
use crate::report::TierName;
use crate::stat::{InodeId, Stat};
use crate::tier::Tier;

/// Two steps each; an intent counts up to 255 steps.
const NAMES_MAX: usize = 127;
/// Numbers that what was brought over keeps as long as we are mounted.
const SUBSTITUTES_MAX: usize = 1 << 15;
const GATE_WAIT: Duration = Duration::from_millis(20);

/// One name that changes sides.
struct TransferName<'a> {
    path: &'a [u8],
    parent_path: &'a [u8],
    name: &'a OsStr,
    parent: u64,
    /// Open on both sides.
    dir: Arc<DirPair>,
    _known: KnownFiles<'a>,
}

/// The copy's names in the temporary directory; those that are left go when this is dropped.
struct TemporaryNames<'a> {
    tier: &'a Tier,
    names: Vec<OsString>,
}

impl Drop for TemporaryNames<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = self.tier.unlink(self.tier.tmp.as_fd(), name);
        }
    }
}

impl TemporaryNames<'_> {
    /// The next mount needs them.
    fn keep(&mut self) {
        self.names.clear();
    }
}

/// A name that its copy has got.
struct PlacedName {
    id: InodeId,
    /// Keeps the number where the file system would give the inode another one.
    _pin: Option<OwnedFd>,
}

/// Why nothing was brought over.
enum TransferError {
    Later(&'static str),
    Stays(String),
}

impl From<Errno> for TransferError {
    fn from(error: Errno) -> TransferError {
        match error {
            Errno::STALE | Errno::NOENT | Errno::NOTDIR | Errno::CANCELED => TransferError::Later("it was changed meanwhile"),
            error => TransferError::Stays(error.to_string()),
        }
    }
}

impl From<AttributeLoss> for TransferError {
    fn from(unkept: AttributeLoss) -> TransferError {
        match unkept {
            AttributeLoss::Cannot(why) => TransferError::Stays(why.into()),
            AttributeLoss::Failed(error) => error.into(),
        }
    }
}

type TransferResult<T> = std::result::Result<T, TransferError>;

/// A file of which a copy is made on the other side.
struct CopySource<'a> {
    side: TierName,
    dir: BorrowedFd<'a>,
    named: OwnedFd,
    name: &'a OsStr,
    before: &'a Stat,
}

impl TieredFs {
    /// Brings over the inode `source_ino` of `side` with all its names. Calls `progress` with the bytes copied; it returns false to stop.
    pub(super) fn bring_names(
        &self,
        side: TierName,
        paths: &[Vec<u8>],
        source_ino: u64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> TransferOutcome {
        match self.try_bring_names(side, paths, source_ino, progress) {
            Ok(()) => TransferOutcome::Done,
            Err(TransferError::Later(why)) => TransferOutcome::Later(why),
            Err(TransferError::Stays(why)) => TransferOutcome::Stays(why),
        }
    }

    fn try_bring_names(
        &self,
        side: TierName,
        paths: &[Vec<u8>],
        source_ino: u64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> TransferResult<()> {
        let to = side.other();
        if paths.len() > NAMES_MAX {
            return Err(TransferError::Stays(format!(
                "it has {} names (hard links), and at most {NAMES_MAX} can change sides at once",
                paths.len()
            )));
        }
        let ends = paths.iter().map(|path| self.end(path, to)).collect::<TransferResult<Vec<_>>>()?;
        let first = ends.first().ok_or(Errno::NOENT)?;
        let found = self.find(&first.dir, first.name)?;
        if found.backing[side as usize] != source_ino {
            return Err(Errno::STALE.into());
        }
        let mut known = KnownFiles::new(self);
        known.upsert(&found, first.parent, first.name);
        let before = found.stat;
        if before.nlink as usize != ends.len() {
            return Err(Errno::STALE.into());
        }
        if to == TierName::Ssd && self.tier(to).abilities.naming_method() == NamingMethod::Placeholder {
            return Err(TransferError::Stays("the SSD's file system can neither rename without replacing nor make hard links".into()));
        }
        if before.fixed {
            return Err(TransferError::Stays("it is immutable or append-only (chattr)".into()));
        }
        self.note_marks(to)?;
        let mut temporaries = self.copy_aside(side, first, found.ino, &before, ends.len(), progress)?;
        let copy_id = self.tier(to).stat(self.tier(to).tmp.as_fd(), &temporaries.names[0])?.id();
        {
            let _alone = self.alone_with(found.ino);
            self.is_as_it_was(side, &ends, found.ino, &before)?;
            self.change_sides(side, &ends, &mut temporaries, (before.id(), copy_id))?;
            let copy = self.tier(to).look(first.dir.must(to)?, first.name)?.ok_or(Errno::STALE)?;
            self.note_new_side(to, found.ino, &before, &copy);
        }
        self.tell_changed(found.ino);
        Ok(())
    }

    fn end<'a>(&'a self, path: &'a [u8], to: TierName) -> TransferResult<TransferName<'a>> {
        let cut = path.iter().rposition(|byte| *byte == b'/');
        let (parent_path, name) = cut.map_or((&b""[..], path), |cut| (&path[..cut], &path[cut + 1..]));
        let (parent, known) = self.known_at(parent_path)?;
        let dir = self.ensure_dir(parent, to)?;
        Ok(TransferName { path, parent_path, name: OsStr::from_bytes(name), parent, dir, _known: known })
    }

    /// Makes the copy, complete and durable, under as many temporary names as it will have.
    fn copy_aside(
        &self,
        side: TierName,
        first: &TransferName<'_>,
        ino: u64,
        before: &Stat,
        names: usize,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> TransferResult<TemporaryNames<'_>> {
        let (from, target) = (self.tier(side), self.tier(side.other()));
        let dir = first.dir.must(side)?;
        let base = self.tmp_name(ino);
        let name = OsString::from(&base);
        let mut temporaries = TemporaryNames { tier: target, names: Vec::with_capacity(names) };
        let named = from.open_at(dir, first.name, NAME_ONLY)?;
        if !from.stat_fd(named.as_fd())?.is_same_file(before) {
            return Err(Errno::STALE.into());
        }
        self.honours_rights(side, before, &named)?;
        temporaries.names.push(name.clone());
        let source = CopySource { side, dir, named, name: first.name, before };
        if before.is_file() {
            self.copy_content(&source, &name, ino, progress)?;
        } else {
            self.copy_special(&source, &name)?;
        }
        for n in 1..names {
            let other = OsString::from(format!("{base}.{n}"));
            match rustix::fs::linkat(&target.tmp, &*name, &target.tmp, &*other, AtFlags::empty()) {
                Err(error) if crate::number::unsupported(error) || matches!(error, Errno::PERM | Errno::MLINK) => {
                    return Err(TransferError::Stays("it has several names, and the other side has no hard links".into()));
                }
                linked => linked?,
            }
            temporaries.names.push(other);
        }
        self.noted(target.name, target.sync_name(target.tmp.as_fd(), &name))?;
        crate::crash::point("retired copy made");
        Ok(temporaries)
    }

    /// Refuses a file that would get rights on the other side which its own side does not honour.
    fn honours_rights(&self, side: TierName, before: &Stat, named: &OwnedFd) -> TransferResult<()> {
        let (from, target) = (self.tier(side), self.tier(side.other()));
        if before.is_file() && self.would_gain_rights(target.name, named.as_fd(), before.mode) {
            return Err(TransferError::Stays(
                "it has set-id bits or capabilities that its file system, mounted nosuid, does not honour".into(),
            ));
        }
        if before.is_device() && !from.gives_devices(named.as_fd())? && target.gives_devices(target.root.as_fd())? {
            return Err(TransferError::Stays("it is a device that its file system, mounted nodev, does not honour".into()));
        }
        Ok(())
    }

    /// Copies a regular file with its attributes to a temporary name, durably.
    fn copy_content(
        &self,
        &CopySource { side, dir, ref named, before, .. }: &CopySource<'_>,
        name: &OsStr,
        ino: u64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> TransferResult<()> {
        let (from, target) = (self.tier(side), self.tier(side.other()));
        let payer = (before.uid, before.gid);
        let source = from.reopen(named.as_fd(), OFlags::RDONLY | OFlags::NOATIME).or_else(|error| match error {
            Errno::PERM => from.reopen(named.as_fd(), OFlags::RDONLY),
            error => Err(error),
        });
        let source = self.noted_at(side, dir, source)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(&target.tmp, name, flags, Mode::RUSR | Mode::WUSR);
        let file = self.noted(target.name, self.in_the_name_of(payer, make)?)?;
        let mut done = 0;
        let mut pace = |bytes| {
            self.mover.spend(bytes);
            done += bytes;
            if progress(done) && !self.mover.stopping() { Ok(()) } else { Err(Errno::CANCELED) }
        };
        let copied = self.in_the_name_of(payer, || copy::data(source.as_fd(), file.as_fd(), before.size, &mut pace))?;
        copied.map_err(|failed| match failed {
            CopyError::Source(error) => self.noted::<()>(side, Err(error)).err().unwrap_or(error),
            CopyError::Target(error) => self.noted::<()>(target.name, Err(error)).err().unwrap_or(error),
            CopyError::Ended(error) => error,
        })?;
        self.mark_or_warn(target.name, file.as_fd(), ino)?;
        if target.abilities.keeps_all() {
            copy::attributes(named.as_fd(), file.as_fd(), before)?;
        } else {
            copy::attributes_checked(named.as_fd(), file.as_fd(), before)?;
        }
        self.noted(target.name, rustix::fs::fsync(&file))?;
        Ok(())
    }

    /// Makes a link, device or pipe like the source under a temporary name.
    fn copy_special(&self, source: &CopySource<'_>, name: &OsStr) -> TransferResult<()> {
        let &CopySource { side, dir, ref named, before, .. } = source;
        let target = self.tier(side.other());
        let tmp = target.tmp.as_fd();
        if before.kind() == rustix::fs::FileType::Symlink {
            let link = rustix::fs::readlinkat(dir, source.name, Vec::new())?;
            rustix::fs::symlinkat(&*link, tmp, name)?;
        } else {
            rustix::fs::mknodat(tmp, name, before.kind(), Mode::RUSR | Mode::WUSR, before.rdev)?;
        }
        let made = target.open_at(tmp, name, NAME_ONLY)?;
        copy::attributes_of_named(named.as_fd(), made.as_fd(), before)?;
        Ok(())
    }

    /// Nobody uses the file, and no directory above it is renamed: see `IntentStep::alone` of a move.
    fn alone_with(&self, ino: u64) -> (MutexGuard<'_, ()>, RwLockWriteGuard<'_, ()>) {
        loop {
            let shape = self.shape.lock();
            if let Some(gate) = self.gate(ino).try_write_for(GATE_WAIT) {
                return (shape, gate);
            }
        }
    }

    /// Whether all names still lead to what was copied. The caller is alone with it.
    fn is_as_it_was(&self, side: TierName, ends: &[TransferName<'_>], ino: u64, before: &Stat) -> TransferResult<()> {
        let (from, target) = (self.tier(side), self.tier(side.other()));
        if self.opens.lock().contains_key(&ino) {
            return Err(TransferError::Later("it is open: run the command again when it is closed"));
        }
        for end in ends {
            if self.nodes.path(end.parent).as_deref() != Some(end.parent_path) {
                return Err(Errno::STALE.into());
            }
            let now = from.look(end.dir.must(side)?, end.name)?.ok_or(Errno::STALE)?;
            if now.changed_since(before) || !now.is_same_file(before) || now.nlink != before.nlink {
                return Err(Errno::STALE.into());
            }
            if target.look(end.dir.must(target.name)?, end.name)?.is_some() {
                return Err(TransferError::Stays("another file has its name on the other side".into()));
            }
        }
        Ok(())
    }

    fn change_sides(
        &self,
        side: TierName,
        ends: &[TransferName<'_>],
        temporaries: &mut TemporaryNames<'_>,
        ids: (InodeId, InodeId),
    ) -> TransferResult<()> {
        let (source, copy) = ids;
        let (from, target) = (self.tier(side), self.tier(side.other()));
        let mut steps = Vec::with_capacity(2 * ends.len());
        let inode = |tier: &Tier, dir: BorrowedFd<'_>| tier.stat_fd(dir).map(|stat| stat.ino);
        let tmp = inode(target, target.tmp.as_fd())?;
        for (end, name) in ends.iter().zip(&temporaries.names) {
            let aside = [HIDDEN.as_bytes(), b"/tmp/", name.as_bytes()].concat();
            let step = IntentStep::Rename { tier: target.name, from: aside, to: end.path.to_vec(), ino: copy.ino };
            steps.push(RecordedStep { step, birth: copy.birth, parents: [tmp, inode(target, end.dir.must(target.name)?)?] });
        }
        for end in ends {
            let step = IntentStep::Remove { tier: side, path: end.path.to_vec(), ino: source.ino, directory: false };
            steps.push(RecordedStep { step, birth: source.birth, parents: [inode(from, end.dir.must(side)?)?, 0] });
        }
        let intent = self.intents.begin(&steps)?;
        crate::crash::point("retirement written down");
        let mut placed = Vec::new();
        let mut removed = 0;
        let done = self
            .place_all(ends, target, (&temporaries.names, copy), &mut placed)
            .and_then(|()| self.remove_all(ends, from, source, &mut removed));
        if removed == ends.len() {
            if let Err(error) = done {
                // The copies are the files now. An original's name may come back after a power cut: the next mount removes it.
                tracing::error!(%error, "names that changed sides may not be durable");
                return Ok(());
            }
        } else if let Err(error) = done {
            match self.undo(side, ends, (&temporaries.names, &placed), removed) {
                Err(undo) if passes(undo) => {
                    tracing::error!(%error, %undo, "names that change sides could not be taken back; the next mount finishes it");
                    temporaries.keep();
                    return Err(error.into());
                }
                // Somebody has one of the names by now, in a directory of theirs: the next mount could do no more.
                Err(undo) => {
                    tracing::debug!(%undo, "not undone");
                    self.warn("names that change sides could not be taken back: `hotshelf check` lists what is on both sides".into());
                }
                Ok(()) => {}
            }
            intent.done()?;
            return Err(if error == Errno::EXIST {
                TransferError::Stays("another file has its name on the other side".into())
            } else {
                error.into()
            });
        }
        crate::crash::point("retired names changed sides");
        if let Err(error) = intent.done() {
            // It is done and durable; only its note stays.
            self.note_failure(TierName::Ssd, error);
            self.warn(format!(".hotshelf/intent cannot be emptied: {error}"));
        }
        Ok(())
    }

    /// Gives the copy all its names; fails with EEXIST, and replaces nothing, where another program has made a file of that name.
    fn place_all(
        &self,
        ends: &[TransferName<'_>],
        target: &Tier,
        (names, copy): (&[OsString], InodeId),
        placed: &mut Vec<PlacedName>,
    ) -> Result<()> {
        for (end, name) in ends.iter().zip(names) {
            let into = end.dir.must(target.name)?;
            let place = || target.place((name, copy), into, end.name, copy.ino);
            let id = self.noted_at(target.name, into, self.keeping_times(end.parent, target, into, || target.as_owner(into, place)))?;
            let pin = if target.keeps_inodes() { None } else { target.open_at(into, end.name, NAME_ONLY).ok() };
            placed.push(PlacedName { id, _pin: pin });
            crate::crash::point("retired name placed");
        }
        for end in ends {
            // What comes next may be durable at once.
            self.noted(target.name, target.sync_name(end.dir.must(target.name)?, end.name))?;
        }
        Ok(())
    }

    fn remove_all(&self, ends: &[TransferName<'_>], from: &Tier, source: InodeId, removed: &mut usize) -> Result<()> {
        for end in ends {
            let dir = end.dir.must(from.name)?;
            let unlink = || from.unlink_if(dir, end.name, source);
            self.noted_at(from.name, dir, self.keeping_times(end.parent, from, dir, || from.as_owner(dir, unlink)))?;
            *removed += 1;
            crate::crash::point("retired name removed");
        }
        for end in ends {
            self.noted(from.name, from.sync_dir(end.dir.must(from.name)?))?;
        }
        Ok(())
    }

    /// Undoes what was done, as far as that goes: originals get their names again, copies are aside again.
    fn undo(&self, side: TierName, ends: &[TransferName<'_>], (names, placed): (&[OsString], &[PlacedName]), removed: usize) -> Result<()> {
        let (from, target) = (self.tier(side), self.tier(side.other()));
        let mut undone = Ok(());
        if let Some(left) = ends.get(removed).filter(|_| removed > 0) {
            for end in &ends[..removed] {
                let again = || -> Result<()> {
                    let (there, dir) = (left.dir.must(side)?, end.dir.must(side)?);
                    let link = || rustix::fs::linkat(there, left.name, dir, end.name, AtFlags::empty());
                    self.keeping_times(end.parent, from, dir, || from.as_owner(dir, link))?;
                    from.sync_dir(dir)
                };
                undone = undone.and(again());
            }
        }
        // While a name is missing there, its copy stays.
        undone?;
        for ((end, name), placed) in ends.iter().zip(names).zip(placed) {
            let back = || -> Result<()> {
                let dir = end.dir.must(target.name)?;
                if target.look(dir, end.name)?.is_none_or(|stat| !placed.id.is(&stat)) {
                    return Err(Errno::NOENT);
                }
                let rename = || target.rename(dir, end.name, target.tmp.as_fd(), name, RenameFlags::empty());
                self.keeping_times(end.parent, target, dir, || target.as_owner(dir, rename))?;
                target.sync_dir(dir)
            };
            undone = undone.and(back());
        }
        undone
    }

    /// What is known of it from now on.
    fn note_new_side(&self, to: TierName, ino: u64, before: &Stat, copy: &Stat) {
        if !before.is_file() && crate::number::natural(to, copy) != ino {
            // What carries no mark keeps its number until it is unmounted: programs may have it open by its name.
            let mut substitutes = self.substitutes.lock();
            if substitutes.len() < SUBSTITUTES_MAX {
                substitutes.insert((to, copy.ino), ino);
                self.any_substitute.store(true, Ordering::Release);
            }
        }
        self.nodes.change(ino, |node| node.backing = Backing::default().and(to, copy));
        let _held = self.held.lock().remove(&ino);
        self.moves_seen.fetch_add(1, Ordering::AcqRel);
        if before.is_file() {
            match to {
                TierName::Hdd => {
                    self.placement.left(ino);
                    self.nodes.keep(ino, KeptFor::Policy, false);
                }
                TierName::Ssd => {
                    let (last_open, opens) = self.placement.heat(ino).unwrap_or((now_s(), 1));
                    self.placement.arrived(ino, before.size, last_open, opens);
                    self.nodes.keep(ino, KeptFor::Policy, true);
                }
            }
        }
        debug_assert!(crate::names::kind_of(copy) != NodeKind::Directory);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::TestPair;

    /// Between the last look at the name and the naming_method of the copy, another program makes a file of that name on the other side.
    #[test]
    fn a_file_that_another_program_makes_meanwhile_is_not_replaced() {
        for (noreplace, links) in [(true, true), (false, true), (false, false)] {
            let mut fs = TestPair::with(&["ssd/dir/target", "hdd/dir/"]);
            fs.fs.limit(TierName::Hdd, |abilities| {
                abilities.rename_noreplace = noreplace;
                abilities.hard_links = links;
            });
            std::os::unix::fs::symlink("target", fs.at("ssd/dir/link")).expect("made");
            let end = fs.end(b"dir/link", TierName::Hdd).unwrap_or_else(|_| panic!("there"));
            let found = fs.find(&end.dir, end.name).expect("there");
            let before = found.stat;
            let aside = fs.copy_aside(TierName::Ssd, &end, found.ino, &before, 1, &mut |_| true);
            let mut temporaries = aside.unwrap_or_else(|_| panic!("copied"));
            let hdd = fs.tier(TierName::Hdd);
            let copy = hdd.stat(hdd.tmp.as_fd(), &temporaries.names[0]).expect("there").id();
            std::fs::write(fs.at("hdd/dir/link"), "theirs").expect("written");
            let refused = fs.change_sides(TierName::Ssd, &[end], &mut temporaries, (before.id(), copy));
            assert!(matches!(refused, Err(TransferError::Stays(why)) if why.contains("has its name")));
            drop(temporaries);
            assert_eq!(std::fs::read(fs.at("hdd/dir/link")).expect("there"), b"theirs");
            assert_eq!(std::fs::read_link(fs.at("ssd/dir/link")).expect("there").to_str(), Some("target"));
            assert_eq!(std::fs::read_dir(fs.at("hdd/.hotshelf/tmp")).expect("listed").count(), 0);
            let fs = fs.again();
            assert_eq!(std::fs::read(fs.at("hdd/dir/link")).expect("there"), b"theirs");
            std::fs::remove_file(fs.at("hdd/dir/link")).expect("removed");
            fs.retire(TierName::Ssd, false, &mut |_, _, _, _| true).expect("retired");
            assert_eq!(std::fs::read_link(fs.at("hdd/dir/link")).expect("there").to_str(), Some("target"));
        }
    }

    #[test]
    fn a_side_is_retired_where_no_rename_refuses_to_replace() {
        for links in [true, false] {
            let mut fs = TestPair::with(&["ssd/dir/file", "ssd/dir/linked"]);
            fs.fs.limit(TierName::Hdd, |abilities| {
                abilities.rename_noreplace = false;
                abilities.hard_links = links;
                abilities.stable_inodes = false;
                abilities.file_system = "fuse.test".into();
            });
            std::os::unix::fs::symlink("file", fs.at("ssd/dir/link")).expect("made");
            if links {
                std::fs::hard_link(fs.at("ssd/dir/linked"), fs.at("ssd/second")).expect("made");
            }
            fs.retire(TierName::Ssd, false, &mut |_, _, _, _| true).expect("retired");
            assert_eq!(std::fs::read(fs.at("hdd/dir/file")).expect("there"), b"ssd/dir/file");
            assert_eq!(std::fs::read_link(fs.at("hdd/dir/link")).expect("there").to_str(), Some("file"));
            assert_eq!(fs.at("hdd/second").exists(), links);
            assert!(!fs.at("ssd/dir/link").is_symlink() && !fs.at("ssd/dir/linked").exists() && !fs.at("ssd/second").exists());
            assert_eq!(std::fs::read_dir(fs.at("hdd/.hotshelf/tmp")).expect("listed").count(), 0);
        }
    }
}
