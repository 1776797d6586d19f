//! Attributes: what a file has, and what of it can be set.

use std::sync::Arc;

use rustix::io::Errno;

use super::core::{FsCore, HeldInode};
use super::creds::{Creds, WRITE, mode_given};
use super::error::{Error, Result};
use super::name::Name;
use super::record::{FileKind, NameValue, Record, RecordBody};
use super::table::{Inode, InodeState, RecordLocation};
use super::time::{SetTime, Timestamp};
use super::trial_context::TrialEffect;
use super::walk::WalkResult;
use crate::{BLOCK_BYTES, Batch};

/// The attributes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its number. Never given to another file, so a generation is not needed: it is always 0.
    pub ino: u64,
    /// The type of the file.
    pub kind: FileKind,
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// The number of names it has.
    pub nlink: u32,
    /// The user that owns the file.
    pub uid: u32,
    /// The group that owns the file.
    pub gid: u32,
    /// The length of the file in bytes.
    pub size: u64,
    /// Space it takes, in units of 512 bytes.
    pub blocks: u64,
    /// The device number of a device node.
    pub device: u64,
    /// The time of the last read.
    pub atime: Timestamp,
    /// The time of the last change of content.
    pub mtime: Timestamp,
    /// The time of the last change of anything.
    pub ctime: Timestamp,
    /// The time when it was created.
    pub btime: Timestamp,
}

/// What is to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetAttr {
    /// The permission bits to set.
    pub mode: Option<u16>,
    /// `Some`: the owner is set; `None` in it leaves what it is (but clears set-id bits, as chown does).
    pub owner: Option<(Option<u32>, Option<u32>)>,
    /// The time of the last read to set.
    pub atime: SetTime,
    /// The time of the last change of content to set.
    pub mtime: SetTime,
}

impl Default for SetAttr {
    fn default() -> Self {
        SetAttr { mode: None, owner: None, atime: SetTime::Omit, mtime: SetTime::Omit }
    }
}

/// Space of the file system, as statvfs tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The number of blocks for data.
    pub blocks: u64,
    /// Free, but for what is written and not yet placed.
    pub free: u64,
    /// About how many files there can be.
    pub files: u64,
    /// About how many more files fit.
    pub files_free: u64,
    /// The longest file name in bytes.
    pub name_max: u32,
}

impl Stat {
    /// Of a record, and pages that have no place yet.
    pub(super) fn of(record: &Record, unplaced: usize) -> Stat {
        let device = matches!(record.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let (size, device) = match record.kind {
            FileKind::Dir => (BLOCK_BYTES as u64, 0),
            _ if device => (0, record.size),
            _ => (record.size, 0),
        };
        let blocks = match (&record.body, record.kind) {
            // A file with content and no blocks would look like one hole.
            (RecordBody::Inline(_), FileKind::File) => record.size.div_ceil(512),
            (_, FileKind::Dir) => 8,
            _ => record.blocks.max(unplaced as u64) * 8,
        };
        let Record { ino, kind, nlink, uid, gid, atime, mtime, ctime, btime, .. } = *record;
        let mode = kind.bits() | u32::from(record.mode);
        Stat { ino, kind, mode, nlink, uid, gid, size, blocks, device, atime, mtime, ctime, btime }
    }
}

impl FsCore {
    /// Of what a path led to.
    pub fn stat_found(&self, found: &WalkResult) -> Result<Stat> {
        match found {
            WalkResult::Dir(name) => self.stat_dir(name),
            WalkResult::Entry { value: None, .. } => Err(Errno::NOENT.into()),
            WalkResult::Entry { value: Some(value), slash, .. } if *slash && value.kind() != FileKind::Dir => Err(Errno::NOTDIR.into()),
            WalkResult::Entry { value: Some(value), .. } => self.stat_value(value),
        }
    }

    /// Of what a name leads to.
    pub fn stat_value(&self, value: &NameValue) -> Result<Stat> {
        if value.kind() != FileKind::Dir
            && let Some(held) = self.in_use(value.ino())
        {
            let state = held.state.read();
            if state.at.is_some() {
                return Ok(Stat::of(&state.record, state.pages.len()));
            }
        }
        self.stored(value.clone()).map(|record| Stat::of(&record, 0))
    }

    fn stat_dir(&self, name: &Name) -> Result<Stat> {
        self.dir_or_gone(name).map(|record| Stat::of(&record, 0))
    }

    /// Of a file in use.
    pub fn stat(&self, inode: &Inode) -> Result<Stat> {
        let _names = self.locks.shared();
        self.record(inode).map(|(record, unplaced)| Stat::of(&record, unplaced))
    }

    /// The present record of a file in use.
    pub fn record(&self, inode: &Inode) -> Result<(Record, usize)> {
        let state = inode.state.read();
        if let (FileKind::Dir, Some(RecordLocation::Name(name))) = (state.record.kind, &state.at)
            && !name.is_gone()
        {
            return self.dir_record(name).map(|record| (record, 0));
        }
        Ok((state.record.clone(), state.pages.len()))
    }

    /// Changes the record of a file in use, at once or with what is to be written back anyway.
    pub fn change(&self, inode: &Arc<Inode>, change: &mut dyn FnMut(&mut Record, &mut Batch) -> Result<bool>) -> Result<()> {
        self.may_change()?;
        let names = self.locks.shared();
        let dir = match &*inode.state.read() {
            InodeState { record, at: Some(RecordLocation::Name(name)), .. } if record.kind == FileKind::Dir => Some(Arc::clone(name)),
            _ => None,
        };
        if let Some(dir) = dir.filter(|dir| !dir.is_gone()) {
            let _dir = self.locks.change(&names, &[&dir]);
            let (mut record, mut batch) = (self.dir_record(&dir)?, Batch::new());
            if change(&mut record, &mut batch)? {
                let (tree, key) = self.dir_key(&dir);
                batch.put(tree, &key, &record.bytes());
                inode.state.write().lsn = self.apply(batch)?;
                self.note(|| TrialEffect::Changed { record, in_files: false, attributes: true });
            }
            return Ok(());
        }
        let mut state = inode.state.write();
        let (mut record, mut batch) = (state.record.clone(), Batch::new());
        if !change(&mut record, &mut batch)? {
            return Ok(());
        }
        let Some(at) = state.at.clone().filter(|_| record.kind != FileKind::Dir) else {
            // A removed directory.
            if let Some(RecordLocation::Name(name)) = &state.at {
                name.set_last(record.clone());
            }
            state.record = record;
            return Ok(());
        };
        if !state.is_clean() && batch.is_empty() {
            state.record = record;
            state.changed = true;
            return Ok(());
        }
        if !state.is_clean() {
            self.write_back(inode, &mut state)?;
            (record, batch) = (state.record.clone(), Batch::new());
            change(&mut record, &mut batch)?;
        }
        let (tree, key) = self.key(inode.ino, &at);
        batch.put(tree, &key, &record.bytes());
        state.lsn = self.apply(batch)?;
        self.note(|| TrialEffect::Changed { record: record.clone(), in_files: false, attributes: true });
        state.record = record;
        Ok(())
    }

    /// Sets attributes of a file in use.
    pub fn set_attr(&self, inode: &Arc<Inode>, set: &SetAttr, creds: &Creds) -> Result<()> {
        let now = self.now();
        self.change(inode, &mut |record, batch| {
            self.may_set(record, set, creds)?;
            let any = put_attr(record, set, creds, now);
            if set.mode.is_some() {
                self.follow_mode(record, batch)?;
            }
            Ok(any)
        })
    }

    /// Holds what a path leads to.
    pub fn hold_path(&self, base: &Arc<Name>, path: &[u8], follow: bool, creds: &Creds) -> Result<HeldInode<'_>> {
        let mut again = false;
        loop {
            let names = self.locks.shared();
            if !again && let Some(held) = self.hold_at_once(&names, base, path, follow, creds)? {
                return Ok(held);
            }
            // Of a damaged image one key for the whole path may give what the directory's own names do not: that is not asked twice.
            let found = if again { self.find_slowly(base, path, follow, creds, &mut 0) } else { self.find(base, path, follow, creds) };
            let (dir, name, slash, found) = match found? {
                WalkResult::Dir(name) => return self.hold_dir(&name),
                WalkResult::Entry { value: None, .. } => return Err(Errno::NOENT.into()),
                WalkResult::Entry { dir, name, slash, value: Some(value) } => (dir, name, slash, value.kind()),
            };
            if slash && found != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            let _dir = self.locks.look(&names, &dir);
            let held = self.hold(&dir, &name)?.ok_or(Error::Refused(Errno::NOENT))?;
            // Something else may have taken the name since it was found.
            let kind = held.state.read().record.kind;
            if kind == found {
                return Ok(held);
            }
            again = true;
        }
    }
}

impl FsCore {
    fn may_set(&self, record: &Record, set: &SetAttr, creds: &Creds) -> Result<()> {
        if set.mode.is_some() && !creds.is_owner(record) {
            return Err(Errno::PERM.into());
        }
        if let Some((uid, gid)) = set.owner
            && !creds.is_capable()
        {
            let own = creds.uid == record.uid;
            let uid_stays = uid.is_none_or(|uid| uid == record.uid);
            let gid_allowed = gid.is_none_or(|gid| gid == record.gid || creds.in_group(gid));
            if uid.is_some() && !(own && uid_stays) || gid.is_some() && !(own && gid_allowed) {
                return Err(Errno::PERM.into());
            }
            // Losing a set-id bit is a change of mode.
            if record.kind != FileKind::Dir && !own && mode_given(record, creds) != record.mode {
                return Err(Errno::PERM.into());
            }
        }
        match (set.atime, set.mtime) {
            (SetTime::Omit, SetTime::Omit) => Ok(()),
            _ if creds.is_owner(record) => Ok(()),
            (SetTime::Now, SetTime::Now) => self.may(creds, record, WRITE),
            _ => Err(Errno::PERM.into()),
        }
    }
}

/// Whether anything was set.
fn put_attr(record: &mut Record, set: &SetAttr, creds: &Creds, now: Timestamp) -> bool {
    if let Some(mode) = set.mode {
        record.mode = mode & 0o7777;
        if !creds.in_group(record.gid) && !creds.is_capable() {
            record.mode &= !0o2000;
        }
    }
    if let Some((uid, gid)) = set.owner {
        if record.kind != FileKind::Dir {
            record.mode = mode_given(record, creds);
        }
        (record.uid, record.gid) = (uid.unwrap_or(record.uid), gid.unwrap_or(record.gid));
    }
    for (time, to) in [(set.atime, &mut record.atime), (set.mtime, &mut record.mtime)] {
        match time {
            SetTime::Omit => {}
            SetTime::Now => *to = now,
            SetTime::At(stamp) => *to = stamp.clamped(),
        }
    }
    let any = *set != SetAttr::default();
    if any {
        record.ctime = now;
    }
    any
}
