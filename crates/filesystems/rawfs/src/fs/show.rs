//! One file in its stored form: also in a store that no file system can be opened in any more.

use super::error::Result;
use super::extent::Run;
use super::key::{self, FileItem, KeyPrefix};
use super::record::{FileKind, NameValue, Record};
use super::relocate::all_runs;
use crate::{ScanStep, Store, TreeId};

/// A file in its stored form, also in a damaged store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredFile {
    /// The key of its name; empty for the top directory.
    pub key: Vec<u8>,
    /// Whether its record is in Files, since it has or had several names.
    pub linked: bool,
    /// Its record; none: it cannot be read.
    pub record: Option<Record>,
    /// The runs of blocks it has on the device.
    pub runs: Vec<Run>,
    /// The bytes of its extended attributes.
    pub xattr_bytes: u64,
}

/// Looks for a path; symbolic links are not followed. `None`: nothing leads there.
///
/// # Errors
/// The store's.
pub fn show(store: &Store, path: &[u8]) -> Result<Option<StoredFile>> {
    let (mut enc, mut key) = (KeyPrefix::root(), Vec::new());
    let mut value = Vec::new();
    let mut shown =
        StoredFile { key: Vec::new(), linked: true, record: in_files(store, super::core::ROOT)?, runs: Vec::new(), xattr_bytes: 0 };
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if !key.is_empty() && shown.record.as_ref().is_none_or(|record| record.kind != FileKind::Dir) {
            return Ok(None);
        }
        key = enc.entry(name);
        if name.len() > super::NAME_MAX || key.len() > crate::store::KEY_BYTES_MAX || !store.get(TreeId::Names, &key, &mut value)? {
            return Ok(None);
        }
        let (linked, record) = match NameValue::parse(&value) {
            Ok(NameValue::Here(record)) => (false, Some(record)),
            Ok(NameValue::Link { ino, .. }) => (true, in_files(store, ino)?),
            Err(_) => (false, None),
        };
        enc = match &record {
            Some(record) if record.zone => KeyPrefix::zone(record.ino),
            _ => enc.below(name),
        };
        shown = StoredFile { key: key.clone(), linked, record, ..shown };
    }
    if let Some(record) = &shown.record {
        shown.runs = all_runs(store, record)?;
        let (from, to) = (key::file(record.ino, FileItem::Xattrs, 0), key::file(record.ino, FileItem::Xattrs, u64::MAX));
        store.scan(TreeId::Files, &from, &to, &mut |_, value| {
            shown.xattr_bytes += value.len() as u64;
            ScanStep::Go
        })?;
    }
    Ok(Some(shown))
}

fn in_files(store: &Store, ino: u64) -> Result<Option<Record>> {
    let mut value = Vec::new();
    let there = store.get(TreeId::Files, &key::file(ino, FileItem::Record, 0), &mut value)?;
    Ok(if there { Record::parse(&value).ok() } else { None })
}
