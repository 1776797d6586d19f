//! Files by their numbers, as handles of NFS and open_by_handle_at(2) name them: after the kernel has forgotten the file, and after a
//! remount.
//!
//! Numbers are never given twice, so a number is a file or none. A file with one name has its record with the name, so its number leads
//! nowhere: then all names are read, once, and where the files near it are is remembered. What is remembered may be out of date,
//! so it is compared before it is used.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::calls::Fs;
use super::core::{Core, Held, ROOT};
use super::error::{Error, Result};
use super::file::Node;
use super::key::{self, Item, Parts};
use super::name::Name;
use super::record::{Kind, Record, Value};
use super::table::At;
use crate::{Next, Tree};

/// Files remembered on each side of one that was looked for, in the order of names.
const NEAR: usize = 1 << 14;
/// Files remembered in all.
const MOST: usize = 1 << 16;
/// Times that a name is looked for which is gone by the time it is used.
const TRIES: usize = 4;

/// Keys of Names by the numbers they lead to.
#[derive(Default)]
pub struct Hints(Mutex<HashMap<u64, Box<[u8]>, foldhash::fast::RandomState>>);

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

impl Core {
    fn by_number(&self, ino: u64) -> Result<Held<'_>> {
        if ino == ROOT {
            return self.hold_dir(&self.root);
        }
        if ino == 0 || ino >= self.numbers_end() {
            return Err(stale());
        }
        for _ in 0..TRIES {
            if let Some(held) = self.in_use(ino)
                && held.state.read().at.is_some()
            {
                return if self.is_removed_dir(&held) { Err(stale()) } else { Ok(held) };
            }
            let known = self.hints.0.lock().get(&ino).cloned();
            if let Some(key) = known
                && let Some(held) = self.hold_at(ino, &key)?
            {
                return Ok(held);
            }
            if let Some(held) = self.hold_linked(ino)? {
                return Ok(held);
            }
            let Some(key) = self.search(ino)? else { return Err(stale()) };
            if let Some(held) = self.hold_at(ino, &key)? {
                return Ok(held);
            }
        }
        Err(Errno::BUSY.into())
    }

    fn is_removed_dir(&self, held: &Held<'_>) -> bool {
        matches!(&held.state.read().at, Some(At::Name(name)) if name.is_gone())
    }

    /// Holds what a key leads to, if that is the file.
    fn hold_at(&self, ino: u64, key: &[u8]) -> Result<Option<Held<'_>>> {
        let Some(parts) = Parts::of(key) else { return Ok(None) };
        // The directory whose entries are found by its number.
        let zone = match parts.zone {
            Some(zone) if zone == ino => return Ok(None),
            Some(zone) => Some(self.by_number(zone)?),
            None => None,
        };
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
        if let Value::Here(record) = &value
            && record.kind == Kind::Dir
        {
            let zone = record.zone.then_some(record.ino);
            return self.hold_dir(&dir.child(&parts.name, zone)).map(Some);
        }
        self.hold_value(&dir, &parts.name, &value, epoch).map(Some)
    }

    /// Holds a file whose record is in Files: it has several names.
    fn hold_linked(&self, ino: u64) -> Result<Option<Held<'_>>> {
        let _alone = self.locks.alone();
        let epoch = self.table.epoch();
        let Some(bytes) = self.get(Tree::Files, &key::file(ino, Item::Record, 0))? else { return Ok(None) };
        let record = Record::parse(&bytes).map_err(Error::malformed(ino))?;
        if record.nlink == 0 {
            return Err(stale());
        }
        self.hold_value(&self.root, b"", &Value::Link { ino, kind: record.kind }, epoch).map(Some)
    }

    /// Reads names until one leads to the file, and remembers those near it.
    fn search(&self, ino: u64) -> Result<Option<Vec<u8>>> {
        let (mut near, mut found, mut behind) = (VecDeque::new(), None, 0);
        // All keys of Names begin with less.
        self.store.scan(Tree::Names, &[], &[0xff], &mut |key, value| {
            let Ok(Value::Here(record)) = Value::parse(value) else { return Next::Go };
            if record.ino == ino {
                found = Some(key.to_vec());
            }
            near.push_back((record.ino, Box::<[u8]>::from(key)));
            if found.is_some() {
                behind += 1;
            } else if near.len() > NEAR {
                near.pop_front();
            }
            if behind > NEAR { Next::Stop } else { Next::Go }
        })?;
        if found.is_some() {
            let mut hints = self.hints.0.lock();
            if hints.len() + near.len() > MOST {
                hints.clear();
            }
            hints.extend(near);
        }
        Ok(found)
    }
}
