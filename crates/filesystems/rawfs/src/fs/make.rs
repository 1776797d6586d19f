//! New names: of new files, and more of files there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::NAME_MAX;
use super::acl::Acl;
use super::core::{Core, Held};
use super::creds::Creds;
use super::error::Result;
use super::key::{self, ENC_MAX, Item};
use super::locks::Shared;
use super::name::Name;
use super::record::{self, Body, INLINE_MAX, Kind, NLINK_AT, Record, TARGET_MAX, TIMES_AT, Value};
use super::table::At;
use super::time::Stamp;
use super::trial::Effect;
use super::walk::{Last, Tail};
use crate::{Batch, Lsn, Tree};

/// Names of a file, at most (as ext4).
pub const LINKS_MAX: u32 = 65_000;

/// What is to be made.
pub struct New<'a> {
    pub kind: Kind,
    pub mode: u16,
    /// Of a device.
    pub device: u64,
    /// Of a symbolic link.
    pub target: &'a [u8],
}

impl New<'_> {
    pub fn of(kind: Kind, mode: u16) -> New<'static> {
        New { kind, mode, device: 0, target: b"" }
    }

    /// Whether it is something that there is.
    fn check(&self) -> Result<()> {
        match (self.kind, self.target.len()) {
            (Kind::Symlink, 0) => Err(Errno::NOENT.into()),
            (Kind::Symlink, len) if len > TARGET_MAX => Err(Errno::NAMETOOLONG.into()),
            (Kind::Symlink, _) if self.target.contains(&0) => Err(Errno::INVAL.into()),
            _ => Ok(()),
        }
    }
}

impl Core {
    /// Makes anything but a regular file that is opened at once.
    pub fn make(&self, base: &Arc<Name>, path: &[u8], new: &New<'_>, creds: &Creds) -> Result<Held<'_>> {
        new.check()?;
        let names = self.locks.shared();
        let Tail { dir, last, slash } = self.tail(base, path, creds)?;
        let Last::Name(name) = last else { return Err(Errno::EXIST.into()) };
        let _dir = self.locks.change(&names, &[&dir]);
        let parent = self.may_name(&dir, &name, slash && new.kind != Kind::Dir, creds)?;
        let device = matches!(new.kind, Kind::CharDevice | Kind::BlockDevice);
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
    pub fn add_new(&self, dir: &Arc<Name>, parent: &Record, name: &[u8], new: &New<'_>, creds: &Creds) -> Result<Held<'_>> {
        let now = self.now();
        let mut batch = Batch::new();
        let (mut record, inherited) = self.new_record(parent, new, creds, now)?;
        record.zone = new.kind == Kind::Dir && dir.enc().len_below(name) > ENC_MAX;
        self.put_target(&mut batch, &mut record, new.target);
        // First, as the store need not look for what a first patch is of before it does it.
        self.touch(&mut batch, dir, parent, now, i64::from(new.kind == Kind::Dir));
        if let Some(inherited) = inherited {
            self.inherit(&mut batch, &mut record, inherited)?;
        }
        batch.put(Tree::Names, &dir.entry(name), &record.bytes());
        let lsn = self.apply(batch)?;
        let at = At::Name(dir.child(name, record.zone.then_some(record.ino)));
        Ok(self.hold_new(&record, &at, lsn))
    }

    /// The record, and the access control list that it inherits.
    fn new_record(&self, parent: &Record, new: &New<'_>, creds: &Creds, now: Stamp) -> Result<(Record, Option<Acl>)> {
        let inherited = self.default_acl(parent, new.kind)?;
        let (mode, owner) = creds.of_new(parent, new.kind, new.mode, inherited.is_none());
        let mut record = Record::new(new.kind, self.number()?, mode, owner, now);
        match new.kind {
            Kind::CharDevice | Kind::BlockDevice => record.size = new.device,
            Kind::Symlink => record.size = new.target.len() as u64,
            _ => {}
        }
        Ok((record, inherited))
    }

    fn put_target(&self, batch: &mut Batch, record: &mut Record, target: &[u8]) {
        if record.kind != Kind::Symlink {
            return;
        }
        if target.len() <= INLINE_MAX {
            record.body = Body::Inline(target.to_vec());
        } else {
            record.body = Body::Items;
            self.put_long(batch, record.ino, Item::Target, target);
        }
    }

    /// A file without a name, in the file system of a directory.
    pub fn make_unnamed(&self, dir: &Name, mode: u16, creds: &Creds) -> Result<Held<'_>> {
        if dir.is_gone() {
            // As ext4 has it.
            return Err(Errno::PERM.into());
        }
        let parent = self.dir_record(dir)?;
        self.may_add(creds, &parent)?;
        let (mut record, inherited) = self.new_record(&parent, &New::of(Kind::File, mode), creds, self.now())?;
        record.nlink = 0;
        let mut batch = Batch::new();
        if let Some(inherited) = inherited {
            self.inherit(&mut batch, &mut record, inherited)?;
        }
        self.put_orphan(&mut batch, &record);
        let lsn = self.apply(batch)?;
        let held = self.hold_new(&record, &At::Files, lsn);
        held.state.write().linkable = true;
        Ok(held)
    }

    /// A record without a name, and the mark that it is to be removed after a crash.
    pub fn put_orphan(&self, batch: &mut Batch, record: &Record) {
        batch.put(Tree::Files, &key::file(record.ino, Item::Record, 0), &record.bytes());
        batch.put(Tree::Files, &key::file(0, Item::Orphan, record.ino), &0u64.to_le_bytes());
    }

    /// An entry of a directory came or went: its times, and by how much its links change. Its lock is held.
    pub fn touch(&self, batch: &mut Batch, dir: &Name, record: &Record, now: Stamp, links: i64) {
        self.names_changed.fetch_add(1, Ordering::SeqCst);
        let (tree, key) = self.dir_key(dir);
        batch.patch(tree, &key, TIMES_AT, &record::change_times(now, now));
        if links != 0 {
            let nlink = i64::from(record.nlink) + links;
            batch.patch(tree, &key, NLINK_AT, &u32::try_from(nlink).unwrap_or(u32::MAX).to_le_bytes());
        }
    }

    /// Another name for a file that is held.
    pub fn link(&self, held: &Held<'_>, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<()> {
        loop {
            let names = self.locks.shared();
            let Tail { dir, last, slash } = self.tail(base, path, creds)?;
            let Last::Name(name) = last else { return Err(Errno::EXIST.into()) };
            let at = held.state.read().at.clone();
            let old = match &at {
                Some(At::Name(old)) => old.parent(),
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
    fn add_link(&self, _: &Shared<'_>, held: &Held<'_>, dir: &Name, parent: &Record, name: &[u8], old: &Arc<Name>) -> Result<Option<Lsn>> {
        let mut state = held.state.write();
        let (kind, nlink) = (state.record.kind, state.record.nlink);
        if kind == Kind::Dir {
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
        if let At::Name(name) = &at {
            if !Arc::ptr_eq(&name.parent(), old) {
                return Ok(None);
            }
            batch.put(Tree::Names, &key, &record::link(held.ino, kind));
        }
        let value = self.get(tree, &key)?.unwrap_or_default();
        let mut stored = Record::parse(&value).map_err(super::Error::malformed(held.ino))?;
        (stored.nlink, stored.ctime) = (nlink + 1, now);
        batch.put(Tree::Files, &key::file(held.ino, Item::Record, 0), &stored.bytes());
        batch.put(Tree::Names, &dir.entry(name), &record::link(held.ino, kind));
        if nlink == 0 {
            batch.delete(Tree::Files, &key::file(0, Item::Orphan, held.ino));
        }
        self.touch(&mut batch, dir, parent, now, 0);
        let lsn = self.apply(batch)?;
        (state.record.nlink, state.record.ctime, state.at) = (nlink + 1, now, Some(At::Files));
        (state.linkable, state.lsn) = (false, lsn);
        self.note(|| Effect::Changed { record: state.record.clone(), in_files: true, attributes: false });
        Ok(Some(lsn))
    }

    /// Whether a value is a directory.
    pub fn is_dir(value: &Value) -> bool {
        value.kind() == Kind::Dir
    }
}
