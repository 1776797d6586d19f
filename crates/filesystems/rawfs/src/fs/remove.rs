//! Names that go: unlink and rmdir.
//!
//! A file that loses its last name while somebody uses it becomes an orphan: its record moves to Files, with a mark by which the
//! next open of the image finds it, should the power go before the last close does.

use std::sync::Arc;

use rustix::io::Errno;

use super::NAME_MAX;
use super::core::{FsCore, HeldInode};
use super::creds::Creds;
use super::error::Result;
use super::key::{self, ENTRY, FileItem, KeyPrefix};
use super::name::Name;
use super::record::{FileKind, NLINK_AT, NameValue, Record, RecordBody, TIMES_AT, change_times};
use super::table::{InodeState, RecordLocation};
use super::time::Timestamp;
use super::trial_context::TrialEffect;
use super::walk::{LastComponent, PathTail};
use crate::{Batch, Lsn, ScanStep, TreeId};

/// A removal of a name whose batch was applied.
pub struct AppliedRemoval {
    /// What the file lost with the name.
    pub gone: RemovedName,
    /// The time of the change.
    pub now: Timestamp,
    /// The number of the batch.
    pub lsn: Lsn,
}

impl FsCore {
    /// Removes a name of anything but a directory.
    pub fn unlink(&self, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<()> {
        let names = self.locks.shared();
        let PathTail { dir, last, slash } = self.tail(base, path, creds)?;
        let LastComponent::Name(name) = last else { return Err(Errno::ISDIR.into()) };
        too_long(&name)?;
        let _dir = self.locks.change(&names, &[&dir]);
        let parent = self.dir_record(&dir)?;
        let epoch = self.table.epoch();
        let value = self.entry(&dir, &name)?.ok_or(Errno::NOENT)?;
        if slash {
            return Err(if value.kind() == FileKind::Dir { Errno::ISDIR } else { Errno::NOTDIR }.into());
        }
        if creds.checks_access() {
            self.may_remove(creds, &parent, &self.newest(&value)?)?;
        }
        if value.kind() == FileKind::Dir {
            return Err(Errno::ISDIR.into());
        }
        let held = self.hold_value(&dir, &name, &value, epoch)?;
        let mut state = held.state.write();
        let (mut batch, now) = (Batch::new(), self.now());
        self.touch(&mut batch, &dir, &parent, now, 0);
        batch.delete(TreeId::Names, &dir.entry(&name));
        let gone = self.put_unlinked(&mut batch, &held, &state, &value, now)?;
        let lsn = self.apply(batch)?;
        self.unlinked(&held, &mut state, (&dir, &name), AppliedRemoval { gone, now, lsn });
        drop(state);
        Ok(())
    }

    /// What the loss of a name means for the file, but for the name itself. Its lock is held.
    pub fn put_unlinked(
        &self,
        batch: &mut Batch,
        held: &HeldInode<'_>,
        state: &InodeState,
        value: &NameValue,
        now: Timestamp,
    ) -> Result<RemovedName> {
        if state.record.nlink > 1 {
            let NameValue::Link { ino, .. } = value else {
                return Err(super::Error::Malformed { ino: held.ino, what: "several names, and its record with one" });
            };
            let record = key::file(*ino, FileItem::Record, 0);
            batch.patch(TreeId::Files, &record, NLINK_AT, &(state.record.nlink - 1).to_le_bytes());
            batch.patch(TreeId::Files, &record, TIMES_AT + 12, &change_times(now, now)[12..]);
            return Ok(RemovedName::Name);
        }
        let mut record = state.record.clone();
        (record.nlink, record.ctime) = (0, now);
        let ours = self.table.holds(&held.inode) == 1 + u64::from(state.listed) && !self.is_used_beside(held.ino);
        if ours && (record.body != RecordBody::Items || record.kind != FileKind::File) {
            if let RecordBody::Runs(_) = record.body {
                self.cut(batch, &mut record, 0)?;
            }
            self.put_end_of_more(batch, &state.record);
            if matches!(value, NameValue::Link { .. }) {
                batch.delete(TreeId::Files, &key::file(held.ino, FileItem::Record, 0));
            }
            return Ok(RemovedName::All);
        }
        self.put_orphan(batch, &record);
        Ok(RemovedName::LastName)
    }

    /// The batch of [`FsCore::put_unlinked`] was applied.
    pub fn unlinked(&self, held: &HeldInode<'_>, state: &mut InodeState, (dir, name): (&Name, &[u8]), removal: AppliedRemoval) {
        let AppliedRemoval { gone, now, lsn } = removal;
        if let Some(name) = dir.find(name) {
            name.remove();
        }
        (state.record.nlink, state.record.ctime, state.lsn) = (state.record.nlink.saturating_sub(1), now, lsn);
        self.note(|| TrialEffect::Removed { dir: dir.trail(), name: name.to_vec() });
        self.note(|| TrialEffect::Changed { record: state.record.clone(), in_files: gone == RemovedName::LastName, attributes: false });
        match gone {
            RemovedName::Name => {}
            RemovedName::LastName => state.at = Some(RecordLocation::Files),
            RemovedName::All => {
                self.forget_pages(state, ..);
                (state.at, state.changed) = (None, false);
                self.unlist(&held.inode, state);
            }
        }
    }

    /// Removes an empty directory by its path.
    pub fn rmdir(&self, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<()> {
        let names = self.locks.shared();
        let PathTail { dir, last, .. } = self.tail(base, path, creds)?;
        let name = match last {
            LastComponent::Dot => return Err(Errno::INVAL.into()),
            LastComponent::DotDot => return Err(Errno::NOTEMPTY.into()),
            LastComponent::Root => return Err(Errno::BUSY.into()),
            LastComponent::Name(name) => name,
        };
        too_long(&name)?;
        let victim = {
            // Another directory may take the name before the lock is ours; its own number tells.
            let value = self.dir_entry(&dir, &name, creds)?;
            dir.child(&name, value.zone.then_some(value.ino))
        };
        let _dirs = self.locks.change(&names, &[&dir, &victim]);
        let parent = self.dir_record(&dir)?;
        let mut record = self.dir_entry(&dir, &name, creds)?;
        if victim.is_gone() {
            return Err(Errno::NOENT.into());
        }
        if !self.is_empty(&victim.enc())? {
            return Err(Errno::NOTEMPTY.into());
        }
        let (mut batch, now) = (Batch::new(), self.now());
        batch.delete(TreeId::Names, &dir.entry(&name));
        self.put_end_of_more(&mut batch, &record);
        self.keep_xattrs(&mut record);
        self.touch(&mut batch, &dir, &parent, now, -1);
        self.apply(batch)?;
        self.dir_removed(&victim, record, now);
        Ok(())
    }

    fn dir_entry(&self, dir: &Name, name: &[u8], creds: &Creds) -> Result<Record> {
        let parent = self.dir_record(dir)?;
        let value = self.entry(dir, name)?.ok_or(Errno::NOENT)?;
        if creds.checks_access() {
            self.may_remove(creds, &parent, &self.stored(value.clone())?)?;
        }
        match value {
            NameValue::Here(record) if record.kind == FileKind::Dir => Ok(record),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Those who still hold a removed directory see it without names.
    pub fn dir_removed(&self, name: &Name, mut record: Record, now: Timestamp) {
        (record.nlink, record.ctime) = (0, now);
        self.note(|| TrialEffect::RemovedDir { name: name.trail(), record: record.clone() });
        name.remove_dir(record.clone());
        if let Some(held) = self.in_use(record.ino) {
            held.state.write().record = record;
        }
    }

    /// Whether nothing is below a directory.
    pub fn is_empty(&self, enc: &KeyPrefix) -> Result<bool> {
        let mut empty = true;
        self.store.scan(TreeId::Names, &enc.prefix(ENTRY), &enc.prefix(2), &mut |_, _| {
            empty = false;
            ScanStep::Stop
        })?;
        Ok(empty)
    }
}

/// What went with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemovedName {
    /// There are others.
    Name,
    /// It was the last, and somebody uses the file.
    LastName,
    /// The file too.
    All,
}

/// Refuses a name that is longer than [`NAME_MAX`].
pub fn too_long(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX { Err(Errno::NAMETOOLONG.into()) } else { Ok(()) }
}
