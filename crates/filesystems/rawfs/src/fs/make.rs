//! New names: of new files, and more of files there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::NAME_MAX;
use super::acl::Acl;
use super::core::{FsCore, HeldInode};
use super::creds::Creds;
use super::error::Result;
use super::key::{self, ENC_MAX, FileItem};
use super::locks::SharedNames;
use super::name::Name;
use super::record::{self, FileKind, INLINE_MAX, NLINK_AT, NameValue, Record, RecordBody, TARGET_MAX, TIMES_AT};
use super::table::RecordLocation;
use super::time::Timestamp;
use super::trial_context::TrialEffect;
use super::walk::{LastComponent, PathTail};
use crate::{Batch, Lsn, TreeId};

/// Names of a file, at most (as ext4).
pub const LINKS_MAX: u32 = 65_000;

/// What is to be made.
pub struct NewFile<'a> {
    /// The type of the new file.
    pub kind: FileKind,
    /// The permission bits of the new file.
    pub mode: u16,
    /// The number of a device node.
    pub device: u64,
    /// The target of a symbolic link.
    pub target: &'a [u8],
}

impl NewFile<'_> {
    /// Describes a new file of this type and mode.
    pub fn of(kind: FileKind, mode: u16) -> NewFile<'static> {
        NewFile { kind, mode, device: 0, target: b"" }
    }

    /// Whether it is something that there is.
    fn check(&self) -> Result<()> {
        match (self.kind, self.target.len()) {
            (FileKind::Symlink, 0) => Err(Errno::NOENT.into()),
            (FileKind::Symlink, len) if len > TARGET_MAX => Err(Errno::NAMETOOLONG.into()),
            (FileKind::Symlink, _) if self.target.contains(&0) => Err(Errno::INVAL.into()),
            _ => Ok(()),
        }
    }
}

impl FsCore {
    /// Makes anything but a regular file that is opened at once.
    pub fn make(&self, base: &Arc<Name>, path: &[u8], new: &NewFile<'_>, creds: &Creds) -> Result<HeldInode<'_>> {
        new.check()?;
        let names = self.locks.shared();
        let PathTail { dir, last, slash } = self.tail(base, path, creds)?;
        let LastComponent::Name(name) = last else { return Err(Errno::EXIST.into()) };
        let _dir = self.locks.change(&names, &[&dir]);
        let parent = self.may_name(&dir, &name, slash && new.kind != FileKind::Dir, creds)?;
        let device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if device && !creds.is_capable() {
            return Err(Errno::PERM.into());
        }
        self.add_new(&dir, &parent, &name, new, creds)
    }

    /// Whether a name may be added; the directory's lock is held. Returns the directory's record.
    pub fn may_name(&self, dir: &Name, name: &[u8], slash: bool, creds: &Creds) -> Result<Record> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let parent = self.dir_record(dir)?;
        if self.entry(dir, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if slash {
            return Err(Errno::NOENT.into());
        }
        self.may_add(creds, &parent)?;
        Ok(parent)
    }

    /// Makes a file whose name is free, in a directory whose lock is held.
    pub fn add_new(&self, dir: &Arc<Name>, parent: &Record, name: &[u8], new: &NewFile<'_>, creds: &Creds) -> Result<HeldInode<'_>> {
        let now = self.now();
        let mut batch = Batch::new();
        let (mut record, inherited) = self.new_record(parent, new, creds, now)?;
        record.zone = new.kind == FileKind::Dir && dir.enc().len_below(name) > ENC_MAX;
        self.put_target(&mut batch, &mut record, new.target);
        // First, as the store need not look for what a first patch is of before it does it.
        self.touch(&mut batch, dir, parent, now, i64::from(new.kind == FileKind::Dir));
        if let Some(inherited) = inherited {
            self.inherit(&mut batch, &mut record, inherited)?;
        }
        batch.put(TreeId::Names, &dir.entry(name), &record.bytes());
        let lsn = self.apply(batch)?;
        let at = RecordLocation::Name(dir.child(name, record.zone.then_some(record.ino)));
        Ok(self.hold_new(&record, &at, lsn))
    }

    /// The record, and the access control list that it inherits.
    fn new_record(&self, parent: &Record, new: &NewFile<'_>, creds: &Creds, now: Timestamp) -> Result<(Record, Option<Acl>)> {
        let inherited = self.default_acl(parent, new.kind)?;
        let (mode, owner) = creds.of_new(parent, new.kind, new.mode, inherited.is_none());
        let mut record = Record::new(new.kind, self.number()?, mode, owner, now);
        match new.kind {
            FileKind::CharDevice | FileKind::BlockDevice => record.size = new.device,
            FileKind::Symlink => record.size = new.target.len() as u64,
            _ => {}
        }
        Ok((record, inherited))
    }

    fn put_target(&self, batch: &mut Batch, record: &mut Record, target: &[u8]) {
        if record.kind != FileKind::Symlink {
            return;
        }
        if target.len() <= INLINE_MAX {
            record.body = RecordBody::Inline(target.to_vec());
        } else {
            record.body = RecordBody::Items;
            self.put_long(batch, record.ino, FileItem::Target, target);
        }
    }

    /// A file without a name, in the file system of a directory.
    pub fn make_unnamed(&self, dir: &Name, mode: u16, creds: &Creds) -> Result<HeldInode<'_>> {
        if dir.is_gone() {
            // As ext4 has it.
            return Err(Errno::PERM.into());
        }
        let parent = self.dir_record(dir)?;
        self.may_add(creds, &parent)?;
        let (mut record, inherited) = self.new_record(&parent, &NewFile::of(FileKind::File, mode), creds, self.now())?;
        record.nlink = 0;
        let mut batch = Batch::new();
        if let Some(inherited) = inherited {
            self.inherit(&mut batch, &mut record, inherited)?;
        }
        self.put_orphan(&mut batch, &record);
        let lsn = self.apply(batch)?;
        let held = self.hold_new(&record, &RecordLocation::Files, lsn);
        held.state.write().linkable = true;
        Ok(held)
    }

    /// A record without a name, and the mark that it is to be removed after a crash.
    pub fn put_orphan(&self, batch: &mut Batch, record: &Record) {
        batch.put(TreeId::Files, &key::file(record.ino, FileItem::Record, 0), &record.bytes());
        batch.put(TreeId::Files, &key::file(0, FileItem::Orphan, record.ino), &0u64.to_le_bytes());
    }

    /// An entry of a directory came or went: its times, and by how much its links change. Its lock is held.
    pub fn touch(&self, batch: &mut Batch, dir: &Name, record: &Record, now: Timestamp, links: i64) {
        self.names_changed.fetch_add(1, Ordering::SeqCst);
        let (tree, key) = self.dir_key(dir);
        batch.patch(tree, &key, TIMES_AT, &record::change_times(now, now));
        if links != 0 {
            let nlink = i64::from(record.nlink) + links;
            batch.patch(tree, &key, NLINK_AT, &u32::try_from(nlink).unwrap_or(u32::MAX).to_le_bytes());
        }
    }

    /// Another name for a file that is held.
    pub fn link(&self, held: &HeldInode<'_>, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<()> {
        loop {
            let names = self.locks.shared();
            let PathTail { dir, last, slash } = self.tail(base, path, creds)?;
            let LastComponent::Name(name) = last else { return Err(Errno::EXIST.into()) };
            let at = held.state.read().at.clone();
            let old = match &at {
                Some(RecordLocation::Name(old)) => old.parent(),
                _ => Arc::clone(&dir),
            };
            let _dirs = self.locks.change(&names, &[&dir, &old]);
            let parent = self.may_name(&dir, &name, slash, creds)?;
            if let Some(lsn) = self.add_link(&names, held, &dir, &parent, &name, &old)? {
                held.state.write().lsn = lsn;
                return Ok(());
            }
        }
    }

    /// `None`: the file has moved meanwhile.
    fn add_link(
        &self,
        _: &SharedNames<'_>,
        held: &HeldInode<'_>,
        dir: &Name,
        parent: &Record,
        name: &[u8],
        old: &Arc<Name>,
    ) -> Result<Option<Lsn>> {
        let mut state = held.state.write();
        let (kind, nlink) = (state.record.kind, state.record.nlink);
        if kind == FileKind::Dir {
            return Err(Errno::PERM.into());
        }
        if nlink == 0 && !state.linkable {
            return Err(Errno::NOENT.into());
        }
        if nlink >= LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        let (mut batch, now) = (Batch::new(), self.now());
        // As the store has it: what is newer comes with write-back.
        let at = state.at.clone().expect("loaded");
        let (tree, key) = self.key(held.ino, &at);
        if let RecordLocation::Name(name) = &at {
            if !Arc::ptr_eq(&name.parent(), old) {
                return Ok(None);
            }
            batch.put(TreeId::Names, &key, &record::link(held.ino, kind));
        }
        let value = self.get(tree, &key)?.unwrap_or_default();
        let mut stored = Record::parse(&value).map_err(super::Error::malformed(held.ino))?;
        (stored.nlink, stored.ctime) = (nlink + 1, now);
        batch.put(TreeId::Files, &key::file(held.ino, FileItem::Record, 0), &stored.bytes());
        batch.put(TreeId::Names, &dir.entry(name), &record::link(held.ino, kind));
        if nlink == 0 {
            batch.delete(TreeId::Files, &key::file(0, FileItem::Orphan, held.ino));
        }
        self.touch(&mut batch, dir, parent, now, 0);
        let lsn = self.apply(batch)?;
        (state.record.nlink, state.record.ctime, state.at) = (nlink + 1, now, Some(RecordLocation::Files));
        (state.linkable, state.lsn) = (false, lsn);
        self.note(|| TrialEffect::Changed { record: state.record.clone(), in_files: true, attributes: false });
        Ok(Some(lsn))
    }

    /// Whether a value is a directory.
    pub fn is_dir(value: &NameValue) -> bool {
        value.kind() == FileKind::Dir
    }
}
