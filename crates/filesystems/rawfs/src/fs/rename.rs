//! Names that change.
//!
//! ```text
//!  a file        its value goes to the new key
//!  a directory   its value, and the two ranges of keys below it (entries, and the contents of its directories), which the store moves
//!                as they are; or it becomes a zone, when keys would be too long
//!  a zone        its value: its contents are found by its number
//! ```
//!
//! All of it is one batch.

use std::sync::Arc;

use parking_lot::RwLockWriteGuard;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::core::{FsCore, HeldInode};
use super::creds::{Creds, WRITE};
use super::error::{Error, Result};
use super::key::{BELOW, ENC_MAX, ENTRY, KEY_MAX, KeyPrefix};
use super::name::{Name, Trail};
use super::record::{FileKind, NameValue, Record};
use super::remove::{AppliedRemoval, RemovedName, too_long};
use super::table::InodeState;
use super::time::Timestamp;
use super::trial_context::TrialEffect;
use super::walk::{LastComponent, PathTail};
use crate::{Batch, Lsn, ScanStep, TreeId};

/// Entries of a directory that are looked at before it becomes a zone.
const SEEN_MAX: usize = 256;

/// One end of a rename.
struct RenameEnd {
    dir: Arc<Name>,
    name: Vec<u8>,
    slash: bool,
}

/// A file at one end.
struct RenameTarget<'a> {
    value: NameValue,
    held: HeldInode<'a>,
}

impl FsCore {
    /// Renames, from a path to another. `flags`: NOREPLACE or EXCHANGE.
    pub fn rename(
        &self,
        old_base: &Arc<Name>,
        old: &[u8],
        new_base: &Arc<Name>,
        new: &[u8],
        flags: RenameFlags,
        creds: &Creds,
    ) -> Result<()> {
        let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
        if !both.contains(flags) || flags == both {
            return Err(Errno::INVAL.into());
        }
        {
            let names = self.locks.shared();
            let (from, to) = self.ends(old_base, old, new_base, new, flags, creds)?;
            let _dirs = self.locks.change(&names, &[&from.dir, &to.dir]);
            if !self.moves_keys(&from, &to)? {
                return self.rename_ends(&from, &to, flags, creds);
            }
        }
        let _alone = self.locks.alone();
        let (from, to) = self.ends(old_base, old, new_base, new, flags, creds)?;
        self.rename_ends(&from, &to, flags, creds)
    }

    fn ends(
        &self,
        old_base: &Arc<Name>,
        old: &[u8],
        new_base: &Arc<Name>,
        new: &[u8],
        flags: RenameFlags,
        creds: &Creds,
    ) -> Result<(RenameEnd, RenameEnd)> {
        let (from, to) = (self.tail(old_base, old, creds)?, self.tail(new_base, new, creds)?);
        let end = |tail: PathTail, errno: Errno| match tail.last {
            LastComponent::Name(name) => Ok(RenameEnd { dir: tail.dir, name, slash: tail.slash }),
            _ => Err(errno),
        };
        let exists = if flags == RenameFlags::NOREPLACE { Errno::EXIST } else { Errno::BUSY };
        Ok((end(from, Errno::BUSY)?, end(to, exists)?))
    }

    /// Whether a directory is at one of the ends.
    fn moves_keys(&self, from: &RenameEnd, to: &RenameEnd) -> Result<bool> {
        for end in [from, to] {
            if end.name.len() <= super::NAME_MAX && self.entry(&end.dir, &end.name)?.is_some_and(|value| FsCore::is_dir(&value)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn there(&self, end: &RenameEnd) -> Result<Option<RenameTarget<'_>>> {
        too_long(&end.name)?;
        if end.dir.is_gone() {
            return Err(Errno::NOENT.into());
        }
        let Some(value) = self.entry(&end.dir, &end.name)? else { return Ok(None) };
        let held = self.hold(&end.dir, &end.name)?.ok_or(Error::Malformed { ino: value.ino(), what: "a name that went by itself" })?;
        Ok(Some(RenameTarget { value, held }))
    }

    fn rename_ends(&self, from: &RenameEnd, to: &RenameEnd, flags: RenameFlags, creds: &Creds) -> Result<()> {
        let source = self.there(from)?.ok_or(Errno::NOENT)?;
        let target = self.there(to)?;
        let exchange = flags == RenameFlags::EXCHANGE;
        match &target {
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EXIST.into()),
            None if exchange => return Err(Errno::NOENT.into()),
            Some(target) if exchange && to.slash && !FsCore::is_dir(&target.value) => return Err(Errno::NOTDIR.into()),
            _ => {}
        }
        if !FsCore::is_dir(&source.value) && (from.slash || !exchange && to.slash) {
            return Err(Errno::NOTDIR.into());
        }
        self.not_into_itself(from, to, &source, target.as_ref(), exchange)?;
        if target.as_ref().is_some_and(|target| target.value.ino() == source.value.ino()) {
            return Ok(());
        }
        let parents = self.allowed(from, to, &source, target.as_ref(), exchange, creds)?;
        match target {
            Some(target) if exchange => self.exchange(from, to, &source, &target, &parents),
            target => self.replace(from, to, &source, target.as_ref(), &parents),
        }
    }

    fn not_into_itself(
        &self,
        from: &RenameEnd,
        to: &RenameEnd,
        source: &RenameTarget<'_>,
        target: Option<&RenameTarget<'_>>,
        exchange: bool,
    ) -> Result<()> {
        let within = |dir: &Arc<Name>, end: &RenameEnd| end.dir.find(&end.name).is_some_and(|name| dir.is_within(&name));
        if FsCore::is_dir(&source.value) && within(&to.dir, from) {
            return Err(Errno::INVAL.into());
        }
        if target.is_some_and(|target| FsCore::is_dir(&target.value)) && within(&from.dir, to) {
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY }.into());
        }
        Ok(())
    }

    /// Permissions, and what goes over what. Returns the records of both directories.
    fn allowed(
        &self,
        from: &RenameEnd,
        to: &RenameEnd,
        source: &RenameTarget<'_>,
        target: Option<&RenameTarget<'_>>,
        exchange: bool,
        creds: &Creds,
    ) -> Result<[Record; 2]> {
        let parents = [self.dir_record(&from.dir)?, self.dir_record(&to.dir)?];
        let record = |there: &RenameTarget<'_>| self.newest(&there.value);
        if creds.checks_access() {
            self.may_remove(creds, &parents[0], &record(source)?)?;
        }
        let source_is_dir = FsCore::is_dir(&source.value);
        if let Some(target) = target {
            if creds.checks_access() {
                self.may_remove(creds, &parents[1], &record(target)?)?;
            }
            let target_is_dir = FsCore::is_dir(&target.value);
            if !exchange && source_is_dir != target_is_dir {
                return Err(if source_is_dir { Errno::NOTDIR } else { Errno::ISDIR }.into());
            }
        } else {
            self.may_add(creds, &parents[1])?;
        }
        if !Arc::ptr_eq(&from.dir, &to.dir) && creds.checks_access() {
            for there in [Some(source), target.filter(|_| exchange)].into_iter().flatten().filter(|there| FsCore::is_dir(&there.value)) {
                self.may(creds, &record(there)?, WRITE)?;
            }
        }
        if let Some(NameValue::Here(record)) = target.map(|target| &target.value)
            && record.kind == FileKind::Dir
            && !exchange
            && !self.is_empty(&enc_of(to, record))?
        {
            return Err(Errno::NOTEMPTY.into());
        }
        Ok(parents)
    }

    fn replace(
        &self,
        from: &RenameEnd,
        to: &RenameEnd,
        source: &RenameTarget<'_>,
        target: Option<&RenameTarget<'_>>,
        parents: &[Record; 2],
    ) -> Result<()> {
        let (mut state, mut gone_state) = lock_both(source, target);
        if target.is_some() && source.value.kind() == FileKind::File {
            // Who replaces a file by a new one wants the old content or the new, also without a sync.
            self.write_back(&source.held.inode, &mut state)?;
        }
        let (mut batch, now) = (Batch::new(), self.now());
        let mut gone = RemovedName::All;
        let mut removed = None;
        if let (Some(target), Some(state)) = (target, &gone_state) {
            if FsCore::is_dir(&target.value) {
                let mut record = self.stored(target.value.clone())?;
                self.put_end_of_more(&mut batch, &record);
                self.keep_xattrs(&mut record);
                removed = Some(Record { nlink: 0, ctime: now, ..record });
            } else {
                gone = self.put_unlinked(&mut batch, &target.held, state, &target.value, now)?;
            }
        }
        batch.delete(TreeId::Names, &from.dir.entry(&from.name));
        let zone = self.put_moved(&mut batch, from, to, &source.value, now, &mut |batch, enc, to| move_below(batch, &enc, &to))?;
        let is_dir = FsCore::is_dir(&source.value);
        let replaced = removed.is_some();
        self.touch_both(&mut batch, from, to, parents, now, (-i64::from(is_dir), i64::from(is_dir) - i64::from(replaced)));
        let lsn = self.apply(batch)?;
        if let (Some(target), Some(state)) = (target, &mut gone_state) {
            if let Some(record) = removed {
                state.record = record;
                self.note(|| TrialEffect::RemovedDir { name: trail(to), record: state.record.clone() });
                if let Some(name) = to.dir.find(&to.name) {
                    name.remove_dir(state.record.clone());
                }
            } else {
                self.unlinked(&target.held, state, (&to.dir, &to.name), AppliedRemoval { gone, now, lsn });
            }
        }
        self.note(|| TrialEffect::Renamed { from: trail(from), to: trail(to), zones: [zone, None], exchanged: false });
        if let Some(name) = from.dir.find(&from.name) {
            name.rename(&to.dir, &to.name);
            zone.into_iter().for_each(|ino| name.set_zone(ino));
        }
        self.moved(&mut state, now, lsn);
        Ok(())
    }

    fn exchange(
        &self,
        from: &RenameEnd,
        to: &RenameEnd,
        source: &RenameTarget<'_>,
        target: &RenameTarget<'_>,
        parents: &[Record; 2],
    ) -> Result<()> {
        let (mut a, mut b) = lock_both(source, Some(target));
        let (mut batch, now) = (Batch::new(), self.now());
        // What is below the first waits elsewhere until the second has gone.
        let aside = KeyPrefix::zone(u64::MAX);
        let mut waiting = None;
        let zone_a = self.put_moved(&mut batch, from, to, &source.value, now, &mut |batch, enc, to| {
            move_below(batch, &enc, &aside);
            waiting = Some(to);
        })?;
        let zone_b = self.put_moved(&mut batch, to, from, &target.value, now, &mut |batch, enc, to| move_below(batch, &enc, &to))?;
        if let Some(to) = waiting {
            move_below(&mut batch, &aside, &to);
        }
        let come = i64::from(FsCore::is_dir(&target.value)) - i64::from(FsCore::is_dir(&source.value));
        self.touch_both(&mut batch, from, to, parents, now, (come, -come));
        let lsn = self.apply(batch)?;
        self.note(|| TrialEffect::Renamed { from: trail(from), to: trail(to), zones: [zone_a, zone_b], exchanged: true });
        let names = (from.dir.find(&from.name), to.dir.find(&to.name));
        if let Some(name) = &names.0 {
            name.rename(&to.dir, &to.name);
            zone_a.into_iter().for_each(|ino| name.set_zone(ino));
        }
        if let Some(name) = &names.1 {
            name.rename_over(&from.dir, &from.name, names.0.is_some());
            zone_b.into_iter().for_each(|ino| name.set_zone(ino));
        }
        self.moved(&mut a, now, lsn);
        if let Some(b) = &mut b {
            self.moved(b, now, lsn);
        }
        Ok(())
    }

    /// Puts a value under its new name, with all below it. Returns the number of a directory that has become a zone.
    fn put_moved(
        &self,
        batch: &mut Batch,
        from: &RenameEnd,
        to: &RenameEnd,
        value: &NameValue,
        now: Timestamp,
        below: &mut dyn FnMut(&mut Batch, KeyPrefix, KeyPrefix),
    ) -> Result<Option<u64>> {
        let key = to.dir.entry(&to.name);
        let mut record = match value {
            NameValue::Link { ino, kind } => {
                batch.put(TreeId::Names, &key, &super::record::link(*ino, *kind));
                let (tree, at) = (TreeId::Files, super::key::file(*ino, super::key::FileItem::Record, 0));
                batch.patch(tree, &at, super::record::TIMES_AT + 12, &super::record::change_times(now, now)[12..]);
                return Ok(None);
            }
            // As the store has it: write-back may have come after it was read.
            NameValue::Here(_) => match self.entry(&from.dir, &from.name)? {
                Some(NameValue::Here(record)) => record,
                _ => return Err(Error::Malformed { ino: value.ino(), what: "a name that went by itself" }),
            },
        };
        record.ctime = now;
        let mut zone = None;
        if record.kind == FileKind::Dir && !record.zone {
            let (enc, mut new) = (from.dir.enc().below(&from.name), to.dir.enc().below(&to.name));
            if !self.fits(&enc, &new)? {
                (record.zone, zone, new) = (true, Some(record.ino), KeyPrefix::zone(record.ino));
            }
            below(batch, enc, new);
        }
        batch.put(TreeId::Names, &key, &record.bytes());
        Ok(zone)
    }

    /// Whether all keys below a directory stay short enough under another beginning, as far as a short look tells.
    fn fits(&self, old: &KeyPrefix, new: &KeyPrefix) -> Result<bool> {
        if new.bytes().len() > ENC_MAX {
            return Ok(false);
        }
        if new.bytes().len() <= old.bytes().len() {
            return Ok(true);
        }
        let (more, mut seen, mut fits) = (new.bytes().len() - old.bytes().len(), 0, true);
        self.store.scan(TreeId::Names, &old.prefix(ENTRY), &old.prefix(2), &mut |key, value| {
            seen += 1;
            let dir = matches!(NameValue::parse(value), Ok(NameValue::Here(record)) if record.kind == FileKind::Dir && !record.zone);
            let most = if dir { ENC_MAX } else { KEY_MAX };
            fits = seen <= SEEN_MAX && key.len() + more <= most;
            if fits { ScanStep::Go } else { ScanStep::Stop }
        })?;
        Ok(fits)
    }

    fn moved(&self, state: &mut InodeState, now: Timestamp, lsn: Lsn) {
        (state.record.ctime, state.lsn) = (now, lsn);
        self.note(|| TrialEffect::Changed { record: state.record.clone(), in_files: false, attributes: false });
    }

    fn touch_both(&self, batch: &mut Batch, from: &RenameEnd, to: &RenameEnd, parents: &[Record; 2], now: Timestamp, links: (i64, i64)) {
        if Arc::ptr_eq(&from.dir, &to.dir) {
            self.touch(batch, &from.dir, &parents[0], now, links.0 + links.1);
        } else {
            self.touch(batch, &from.dir, &parents[0], now, links.0);
            self.touch(batch, &to.dir, &parents[1], now, links.1);
        }
    }
}

fn enc_of(end: &RenameEnd, dir: &Record) -> KeyPrefix {
    if dir.zone { KeyPrefix::zone(dir.ino) } else { end.dir.enc().below(&end.name) }
}

fn move_below(batch: &mut Batch, from: &KeyPrefix, to: &KeyPrefix) {
    for kind in [ENTRY, BELOW] {
        batch.move_range(TreeId::Names, &from.prefix(kind), &to.prefix(kind));
    }
}

fn trail(end: &RenameEnd) -> Trail {
    let mut trail = end.dir.trail();
    trail.push((end.name.as_slice().into(), None));
    trail
}

/// Locks both files, the one with the lower number first.
fn lock_both<'h>(
    source: &'h RenameTarget<'_>,
    target: Option<&'h RenameTarget<'_>>,
) -> (RwLockWriteGuard<'h, InodeState>, Option<RwLockWriteGuard<'h, InodeState>>) {
    let Some(target) = target else { return (source.held.state.write(), None) };
    if target.held.ino < source.held.ino {
        let second = target.held.state.write();
        return (source.held.state.write(), Some(second));
    }
    let first = source.held.state.write();
    (first, Some(target.held.state.write()))
}
