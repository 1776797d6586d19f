//! What is in a directory.
//!
//! A place in a directory is the last name that was told, so it stays right while entries come and go: what was there all the
//! time is told once.

use std::sync::Arc;

use rustix::io::Errno;

use super::core::{Core, ROOT};
use super::error::{Error, Result};
use super::key::{BELOW, ENTRY, unescape};
use super::name::Name;
use super::record::{Kind, Value};
use crate::{Next, Tree};

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it is called.
    pub name: Vec<u8>,
    /// The number of its file.
    pub ino: u64,
    /// What that is.
    pub kind: Kind,
}

impl Core {
    /// Entries behind a name, in the order of names; at most so many.
    pub fn list_dir(&self, dir: &Name, after: Option<&[u8]>, most: usize) -> Result<Vec<Entry>> {
        if dir.is_gone() {
            return Ok(Vec::new());
        }
        let enc = dir.enc();
        let begin = enc.prefix(ENTRY).len();
        let from = after.map_or_else(
            || enc.prefix(ENTRY),
            |name| {
                let mut key = enc.entry(name);
                key.push(0);
                key
            },
        );
        let (mut entries, mut wrong) = (Vec::new(), None);
        self.store.scan(Tree::Names, &from, &enc.prefix(BELOW), &mut |key, value| {
            match (unescape(&key[begin.min(key.len())..]), Value::parse(value)) {
                (Some(name), Ok(value)) => entries.push(Entry { name, ino: value.ino(), kind: value.kind() }),
                (_, Err(malformed)) => wrong = Some(malformed.0),
                (None, _) => wrong = Some("a name that is none"),
            }
            if wrong.is_some() || entries.len() >= most { Next::Stop } else { Next::Go }
        })?;
        match wrong {
            // What could be read is told first.
            Some(what) if entries.is_empty() => Err(Error::Malformed { ino: 0, what }),
            _ => Ok(entries),
        }
    }

    /// The numbers of a directory, and of the one it is in.
    pub fn dots(&self, dir: &Arc<Name>) -> Result<[u64; 2]> {
        let number = |name: &Name| if name.is_root() { Ok(ROOT) } else { self.dir_record(name).map(|record| record.ino) };
        let above = number(&dir.parent());
        Ok([number(dir)?, above?])
    }

    /// A directory in use.
    pub fn dir_of(&self, inode: &super::table::Inode) -> Result<Arc<Name>> {
        match &*inode.state.read() {
            super::table::State { record, at: Some(super::table::At::Name(name)), .. } if record.kind == Kind::Dir => Ok(Arc::clone(name)),
            _ => Err(Errno::NOTDIR.into()),
        }
    }
}
