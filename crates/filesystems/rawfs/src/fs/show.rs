//! One file, as it is stored: also in a store that no file system can be opened in any more.

use super::error::Result;
use super::extent::Run;
use super::key::{self, Enc, Item};
use super::place::all_runs;
use super::record::{Kind, Record, Value};
use crate::{Next, Store, Tree};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The key of its name; empty for the top directory.
    pub key: Vec<u8>,
    /// Whether its record is in Files, since it has or had several names.
    pub linked: bool,
    /// Its record; none: it cannot be read.
    pub record: Option<Record>,
    /// Where its blocks are.
    pub runs: Vec<Run>,
    /// Bytes of extended attributes.
    pub xattr_bytes: u64,
}

/// Looks for a path; symbolic links are not followed. `None`: nothing leads there.
///
/// # Errors
/// The store's.
pub fn show(store: &Store, path: &[u8]) -> Result<Option<Shown>> {
    let (mut enc, mut key) = (Enc::root(), Vec::new());
    let mut value = Vec::new();
    let mut shown = Shown { key: Vec::new(), linked: true, record: in_files(store, super::core::ROOT)?, runs: Vec::new(), xattr_bytes: 0 };
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if !key.is_empty() && shown.record.as_ref().is_none_or(|record| record.kind != Kind::Dir) {
            return Ok(None);
        }
        key = enc.entry(name);
        if name.len() > super::NAME_MAX || key.len() > crate::store::KEY_BYTES_MAX || !store.get(Tree::Names, &key, &mut value)? {
            return Ok(None);
        }
        let (linked, record) = match Value::parse(&value) {
            Ok(Value::Here(record)) => (false, Some(record)),
            Ok(Value::Link { ino, .. }) => (true, in_files(store, ino)?),
            Err(_) => (false, None),
        };
        enc = match &record {
            Some(record) if record.zone => Enc::zone(record.ino),
            _ => enc.below(name),
        };
        shown = Shown { key: key.clone(), linked, record, ..shown };
    }
    if let Some(record) = &shown.record {
        shown.runs = all_runs(store, record)?;
        let (from, to) = (key::file(record.ino, Item::Xattrs, 0), key::file(record.ino, Item::Xattrs, u64::MAX));
        store.scan(Tree::Files, &from, &to, &mut |_, value| {
            shown.xattr_bytes += value.len() as u64;
            Next::Go
        })?;
    }
    Ok(Some(shown))
}

fn in_files(store: &Store, ino: u64) -> Result<Option<Record>> {
    let mut value = Vec::new();
    let there = store.get(Tree::Files, &key::file(ino, Item::Record, 0), &mut value)?;
    Ok(if there { Record::parse(&value).ok() } else { None })
}
