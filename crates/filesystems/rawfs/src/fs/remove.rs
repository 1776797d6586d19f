//! Names that go: unlink and rmdir.
//!
//! A file that loses its last name while somebody uses it becomes an orphan: its record moves to Files, with a mark by which the
//! next open of the image finds it, should the power go before the last close does.

use std::sync::Arc;

use rustix::io::Errno;

use super::NAME_MAX;
use super::core::{Core, Held};
use super::creds::Creds;
use super::error::Result;
use super::key::{self, ENTRY, Enc, Item};
use super::name::Name;
use super::record::{Body, Kind, NLINK_AT, Record, TIMES_AT, Value, change_times};
use super::table::{At, State};
use super::time::Stamp;
use super::trial::Effect;
use super::walk::{Last, Tail};
use crate::{Batch, Lsn, Next, Tree};

impl Core {
    /// Removes a name of anything but a directory.
    pub fn unlink(&self, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<()> {
        let names = self.locks.shared();
        let Tail { dir, last, slash } = self.tail(base, path, creds)?;
        let Last::Name(name) = last else { return Err(Errno::ISDIR.into()) };
        too_long(&name)?;
        let _dir = self.locks.change(&names, &[&dir]);
        let parent = self.dir_record(&dir)?;
        let epoch = self.table.epoch();
        let value = self.entry(&dir, &name)?.ok_or(Errno::NOENT)?;
        if slash {
            return Err(if value.kind() == Kind::Dir { Errno::ISDIR } else { Errno::NOTDIR }.into());
        }
        if creds.looks() {
            self.may_remove(creds, &parent, &self.newest(&value)?)?;
        }
        if value.kind() == Kind::Dir {
            return Err(Errno::ISDIR.into());
        }
        let held = self.hold_value(&dir, &name, &value, epoch)?;
        let mut state = held.state.write();
        let (mut batch, now) = (Batch::new(), self.now());
        self.touch(&mut batch, &dir, &parent, now, 0);
        batch.delete(Tree::Names, &dir.entry(&name));
        let gone = self.put_unlinked(&mut batch, &held, &state, &value, now)?;
        let lsn = self.apply(batch)?;
        self.unlinked(&held, &mut state, &dir, &name, gone, now, lsn);
        drop(state);
        Ok(())
    }

    /// What the loss of a name means for the file, but for the name itself. Its lock is held.
    pub fn put_unlinked(&self, batch: &mut Batch, held: &Held<'_>, state: &State, value: &Value, now: Stamp) -> Result<Gone> {
        if state.record.nlink > 1 {
            let Value::Link { ino, .. } = value else {
                return Err(super::Error::Malformed { ino: held.ino, what: "several names, and its record with one" });
            };
            let record = key::file(*ino, Item::Record, 0);
            batch.patch(Tree::Files, &record, NLINK_AT, &(state.record.nlink - 1).to_le_bytes());
            batch.patch(Tree::Files, &record, TIMES_AT + 12, &change_times(now, now)[12..]);
            return Ok(Gone::Name);
        }
        let mut record = state.record.clone();
        (record.nlink, record.ctime) = (0, now);
        let ours = self.table.holds(&held.inode) == 1 + u64::from(state.listed) && !self.is_used_beside(held.ino);
        if ours && (record.body != Body::Items || record.kind != Kind::File) {
            if let Body::Runs(_) = record.body {
                self.cut(batch, &mut record, 0)?;
            }
            self.put_end_of_more(batch, &state.record);
            if matches!(value, Value::Link { .. }) {
                batch.delete(Tree::Files, &key::file(held.ino, Item::Record, 0));
            }
            return Ok(Gone::All);
        }
        self.put_orphan(batch, &record);
        Ok(Gone::LastName)
    }

    /// The batch of [`Core::put_unlinked`] was applied.
    #[expect(clippy::too_many_arguments, reason = "what unlink and rename know of the name")]
    pub fn unlinked(&self, held: &Held<'_>, state: &mut State, dir: &Name, name: &[u8], gone: Gone, now: Stamp, lsn: Lsn) {
        if let Some(name) = dir.find(name) {
            name.remove();
        }
        (state.record.nlink, state.record.ctime, state.lsn) = (state.record.nlink.saturating_sub(1), now, lsn);
        self.note(|| Effect::Removed { dir: dir.trail(), name: name.to_vec() });
        self.note(|| Effect::Changed { record: state.record.clone(), in_files: gone == Gone::LastName, attributes: false });
        match gone {
            Gone::Name => {}
            Gone::LastName => state.at = Some(At::Files),
            Gone::All => {
                self.forget_pages(state, ..);
                (state.at, state.changed) = (None, false);
                self.unlist(&held.inode, state);
            }
        }
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, base: &Arc<Name>, path: &[u8], creds: &Creds) -> Result<()> {
        let names = self.locks.shared();
        let Tail { dir, last, .. } = self.tail(base, path, creds)?;
        let name = match last {
            Last::Dot => return Err(Errno::INVAL.into()),
            Last::DotDot => return Err(Errno::NOTEMPTY.into()),
            Last::Root => return Err(Errno::BUSY.into()),
            Last::Name(name) => name,
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
        batch.delete(Tree::Names, &dir.entry(&name));
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
        if creds.looks() {
            self.may_remove(creds, &parent, &self.stored(value.clone())?)?;
        }
        match value {
            Value::Here(record) if record.kind == Kind::Dir => Ok(record),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Those who still hold a removed directory see it without names.
    pub fn dir_removed(&self, name: &Name, mut record: Record, now: Stamp) {
        (record.nlink, record.ctime) = (0, now);
        self.note(|| Effect::RemovedDir { name: name.trail(), record: record.clone() });
        name.remove_dir(record.clone());
        if let Some(held) = self.in_use(record.ino) {
            held.state.write().record = record;
        }
    }

    /// Whether nothing is below a directory.
    pub fn is_empty(&self, enc: &Enc) -> Result<bool> {
        let mut empty = true;
        self.store.scan(Tree::Names, &enc.prefix(ENTRY), &enc.prefix(2), &mut |_, _| {
            empty = false;
            Next::Stop
        })?;
        Ok(empty)
    }
}

/// What went with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// There are others.
    Name,
    /// It was the last, and somebody uses the file.
    LastName,
    /// The file too.
    All,
}

pub fn too_long(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX { Err(Errno::NAMETOOLONG.into()) } else { Ok(()) }
}
