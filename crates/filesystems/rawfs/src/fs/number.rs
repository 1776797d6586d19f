//! Files by their numbers, as handles of NFS and open_by_handle_at(2) name them: after the kernel has forgotten the file, and after a
//! remount.
//!
//! Numbers are never given twice, so a number is a file or none. A file with one name has its record with the name, so its number leads
//! nowhere: then all names are read, once, and where the files near it are is remembered. What is remembered may be out of date,
//! so it is compared before it is used.

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::io::Errno;

use super::calls::Fs;
use super::core::{FsCore, HeldInode, ROOT};
use super::error::{Error, Result};
use super::key::{self, FileItem, KeyParts};
use super::name::Name;
use super::node::Node;
use super::record::{FileKind, NameValue, Record};
use super::table::RecordLocation;
use crate::{ScanStep, TreeId};

/// Files remembered on each side of one that was looked for, in the order of names.
const NEAR: usize = 1 << 14;
/// Times that a name is looked for which is gone by the time it is used.
const TRIES: usize = 4;

/// Directories that are found by their numbers, within each other, at most.
const DEEPEST: usize = 1 << 12;

/// Where a step of looking for a file has led.
enum NumberLookup<'a> {
    Held(HeldInode<'a>),
    /// What is looked for is within this directory, which is to be held first.
    In(u64),
    /// It was not where it was remembered.
    Moved,
    /// There is none.
    Gone,
}

fn stale() -> Error {
    Errno::STALE.into()
}

impl Fs {
    /// Holds a file by its number.
    ///
    /// # Errors
    /// ESTALE: there is none, or it is removed and not in use; EIO.
    pub fn by_number(&self, ino: u64) -> Result<Node> {
        let core = &self.root().core;
        let held = core.by_number(ino)?;
        Ok(Node { core: Arc::clone(core), inode: held.keep() })
    }

    /// Holds the directory that a held one is in; the top one is in itself.
    ///
    /// # Errors
    /// ENOTDIR; ESTALE if it was removed; EIO.
    pub fn parent(&self, dir: &Node) -> Result<Node> {
        let core = &self.root().core;
        let name = core.dir_of(&dir.inode)?;
        if name.is_gone() {
            return Err(stale());
        }
        let _names = core.locks.shared();
        let held = core.hold_dir(&name.parent())?;
        Ok(Node { core: Arc::clone(core), inode: held.keep() })
    }
}

impl FsCore {
    fn by_number(&self, ino: u64) -> Result<HeldInode<'_>> {
        // Each is found by the one behind it: directories may lie deeper than a stack is, and in a damaged image in each other.
        let (mut wanted, mut zone, mut tries, mut deepest) = (vec![ino], None, 0, 1);
        // Each of them may have moved, or be gone.
        while tries < TRIES * deepest {
            let last = *wanted.last().expect("the file at least");
            match self.step_to(last, zone.take())? {
                NumberLookup::Held(held) => {
                    wanted.pop();
                    if wanted.is_empty() {
                        return Ok(held);
                    }
                    zone = Some(held);
                }
                NumberLookup::In(number) if wanted.contains(&number) || wanted.len() >= DEEPEST => return Err(Errno::LOOP.into()),
                NumberLookup::In(number) => {
                    wanted.push(number);
                    deepest = deepest.max(wanted.len());
                }
                NumberLookup::Moved => tries += 1,
                NumberLookup::Gone => {
                    wanted.pop();
                    // What was in it is elsewhere by now.
                    let Some(inside) = wanted.last() else { return Err(stale()) };
                    self.hints.remove(*inside);
                    tries += 1;
                }
            }
        }
        Err(Errno::BUSY.into())
    }

    /// One step; `zone`: the directory that was missing in the last one.
    fn step_to(&self, ino: u64, zone: Option<HeldInode<'_>>) -> Result<NumberLookup<'_>> {
        if ino == ROOT {
            return self.hold_dir(&self.root).map(NumberLookup::Held);
        }
        if ino == 0 || ino >= self.numbers_end() {
            return Ok(NumberLookup::Gone);
        }
        if let Some(held) = self.in_use(ino)
            && held.state.read().at.is_some()
        {
            return Ok(if self.is_removed_dir(&held) { NumberLookup::Gone } else { NumberLookup::Held(held) });
        }
        let known = self.hints.get(ino);
        let key = match known {
            Some(key) => key,
            None => match self.hold_linked(ino) {
                Ok(Some(held)) => return Ok(NumberLookup::Held(held)),
                Ok(None) => match self.search(ino)? {
                    Some(key) => key.into(),
                    None => return Ok(NumberLookup::Gone),
                },
                Err(error) if error.errno() == Errno::STALE => return Ok(NumberLookup::Gone),
                Err(error) => return Err(error),
            },
        };
        // The directory whose entries are found by its number.
        let within = KeyParts::of(&key).and_then(|parts| parts.zone);
        if let Some(number) = within
            && zone.as_ref().is_none_or(|zone| zone.ino != number)
        {
            return Ok(NumberLookup::In(number));
        }
        if let Some(held) = self.hold_at(ino, &key, zone.filter(|_| within.is_some()))? {
            return Ok(NumberLookup::Held(held));
        }
        self.hints.remove(ino);
        Ok(NumberLookup::Moved)
    }

    fn is_removed_dir(&self, held: &HeldInode<'_>) -> bool {
        matches!(&held.state.read().at, Some(RecordLocation::Name(name)) if name.is_gone())
    }

    /// Holds what a key leads to, from the top or from the held directory on, if that is the file.
    fn hold_at(&self, ino: u64, key: &[u8], zone: Option<HeldInode<'_>>) -> Result<Option<HeldInode<'_>>> {
        let Some(parts) = KeyParts::of(key) else { return Ok(None) };
        let _alone = self.locks.alone();
        let begin = match &zone {
            Some(zone) => self.dir_of(zone)?,
            None => Arc::clone(&self.root),
        };
        let epoch = self.table.epoch();
        let Some(value) = self.entry_at(key)?.filter(|value| value.ino() == ino) else { return Ok(None) };
        let dir = parts.dirs.iter().fold(begin, |dir: Arc<Name>, name| dir.child(name, None));
        if dir.is_gone() || dir.entry(&parts.name) != key {
            return Ok(None);
        }
        if let NameValue::Here(record) = &value
            && record.kind == FileKind::Dir
        {
            let zone = record.zone.then_some(record.ino);
            return self.hold_dir(&dir.child(&parts.name, zone)).map(Some);
        }
        self.hold_value(&dir, &parts.name, &value, epoch).map(Some)
    }

    /// Holds a file whose record is in Files: it has several names.
    fn hold_linked(&self, ino: u64) -> Result<Option<HeldInode<'_>>> {
        let _alone = self.locks.alone();
        let epoch = self.table.epoch();
        let Some(bytes) = self.get(TreeId::Files, &key::file(ino, FileItem::Record, 0))? else { return Ok(None) };
        let record = Record::parse(&bytes).map_err(Error::malformed(ino))?;
        if record.nlink == 0 {
            return Err(stale());
        }
        self.hold_value(&self.root, b"", &NameValue::Link { ino, kind: record.kind }, epoch).map(Some)
    }

    /// Reads names until one leads to the file, and remembers those near it.
    fn search(&self, ino: u64) -> Result<Option<Vec<u8>>> {
        let (mut near, mut found, mut behind) = (VecDeque::new(), None, 0);
        // All keys of Names begin with less.
        self.store.scan(TreeId::Names, &[], &[0xff], &mut |key, value| {
            let Ok(NameValue::Here(record)) = NameValue::parse(value) else { return ScanStep::Go };
            if record.ino == ino {
                found = Some(key.to_vec());
            }
            near.push_back((record.ino, Box::<[u8]>::from(key)));
            if found.is_some() {
                behind += 1;
            } else if near.len() > NEAR {
                near.pop_front();
            }
            if behind > NEAR { ScanStep::Stop } else { ScanStep::Go }
        })?;
        if found.is_some() {
            self.hints.extend(near);
        }
        Ok(found)
    }
}
