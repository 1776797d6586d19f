//! What is in the store, in words: for `dump`, and for people that search for a fault.

use std::collections::{HashMap, HashSet};

use super::error::Result;
use super::extent::Run;
use super::key::{self, FileItem, KeyParts};
use super::record::{FileKind, NameValue, Record, RecordBody};
use super::time::Timestamp;
use crate::store::salvage::{Damage, found_parts};
use crate::{Extent, ScanStep, Store, TreeId};

/// What a kind of file is called.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// A key: the path it is for, or which item of which file.
pub fn key(tree: TreeId, bytes: &[u8]) -> String {
    if let Some((slot, end)) = found_parts(tree, bytes) {
        return format!("(found in node {slot}: ...{})", end.escape_ascii());
    }
    match tree {
        TreeId::Names => KeyParts::of(bytes).map(|parts| {
            let begin = parts.zone.map_or_else(String::new, |zone| format!("(zone {zone})"));
            parts.dirs.iter().chain([&parts.name]).fold(begin, |path, name| format!("{path}/{}", String::from_utf8_lossy(name)))
        }),
        TreeId::Files => key::file_parts(bytes).map(|(ino, item, offset)| match item {
            FileItem::Record => format!("file {ino}: record"),
            FileItem::Extent => format!("file {ino}: run at block {offset}"),
            FileItem::Xattrs => format!("file {ino}: attributes, piece {offset}"),
            FileItem::Orphan => format!("mark of file {offset}"),
            FileItem::Numbers => "numbers for new files".to_owned(),
            FileItem::Target => format!("file {ino}: target, piece {offset}"),
        }),
    }
    .unwrap_or_else(|| format!("(unknown key: {})", bytes.escape_ascii()))
}

/// A run: which blocks of the file are where.
pub fn run(run: &Run) -> String {
    let end = run.start.0.saturating_add(u64::from(run.blocks)).saturating_sub(1);
    let what = if run.sums.is_some() { "" } else { ", set aside" };
    format!("{}+{} at {}-{end}{what}", run.at, run.blocks, run.start.0)
}

fn time(stamp: Timestamp) -> String {
    format!("{}.{:09}", stamp.sec, stamp.nsec)
}

/// A record: what `stat` would tell, and where the content is.
pub fn record(record: &Record) -> String {
    let body = match &record.body {
        RecordBody::None => String::new(),
        RecordBody::Inline(bytes) if record.kind == FileKind::Symlink => format!(" -> {}", bytes.escape_ascii()),
        RecordBody::Inline(_) => ", content in the record".to_owned(),
        RecordBody::Runs(runs) => format!(", blocks {}", runs.iter().map(run).collect::<Vec<_>>().join("; ")),
        RecordBody::Items => ", content in Files".to_owned(),
    };
    let flags = format!("{}{}", if record.zone { ", zone" } else { "" }, if record.xattrs { ", extended attributes" } else { "" });
    format!(
        "{} {}, mode {:04o}, {} links, owner {}:{}, size {}, {} blocks, atime {} mtime {} ctime {} btime {}{flags}{body}",
        kind(record.kind),
        record.ino,
        record.mode,
        record.nlink,
        record.uid,
        record.gid,
        record.size,
        record.blocks,
        time(record.atime),
        time(record.mtime),
        time(record.ctime),
        time(record.btime),
    )
}

/// A value, by its key.
pub fn value(tree: TreeId, of: &[u8], bytes: &[u8]) -> String {
    let item = key::file_parts(of).map(|parts| parts.1);
    let number = || <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes);
    let said = match (tree, item) {
        (TreeId::Names, _) => NameValue::parse(bytes).map(|value| match value {
            NameValue::Here(of) => record(&of),
            NameValue::Link { ino, kind: of } => format!("one of the names of {} {ino}", kind(of)),
        }),
        (TreeId::Files, Some(FileItem::Record)) => Record::parse(bytes).map(|of| record(&of)),
        (TreeId::Files, Some(FileItem::Extent)) => Run::parse(bytes).map(|of| run(&of)),
        (TreeId::Files, Some(FileItem::Numbers)) => return number().map_or("no number".to_owned(), |next| format!("from {next} on")),
        (TreeId::Files, Some(FileItem::Orphan)) => {
            return number().map_or("no number".to_owned(), |from| format!("has nothing from block {from} on"));
        }
        (TreeId::Files, _) => return format!("{} bytes", bytes.len()),
    };
    said.unwrap_or_else(|malformed| format!("(damaged: {})", malformed.0))
}

/// Describes a key and its value for people.
pub fn entry(tree: TreeId, of: &[u8], bytes: &[u8]) -> String {
    format!("{}: {}", key(tree, of), value(tree, of, bytes))
}

/// What is wrong with the store, and what it means.
pub fn damage(damage: &Damage) -> String {
    let blocks = |extent: &Extent| format!("blocks {} to {}", extent.start.0, extent.start.0.saturating_add(u64::from(extent.blocks)) - 1);
    match damage {
        Damage::Superblock { at, why } => format!("superblock {}: {why}: its copy is used", at.0),
        Damage::Bitmap { at } => {
            format!("block {}: a page of the bitmaps cannot be read: what is in use is known from the files alone", at.0)
        }
        Damage::Node { tree, level, at, why, from, to, entries } => {
            let of = if *level == 0 { "entries" } else { "entries, and all below" };
            let from = if from.is_empty() { "the first".to_owned() } else { key_or_bytes(*tree, from) };
            let to = to.as_ref().map_or("the last".to_owned(), |to| key_or_bytes(*tree, to));
            let what = if *entries > 0 { format!("{entries} of its {of}") } else { of.to_owned() };
            format!("node at block {} ({tree:?}, level {level}): {why}: lost are {what} between {from} and {to}", at.0)
        }
        Damage::Found { tree, entries } => format!("{tree:?}: {entries} entries were found that a lost node had led to"),
        Damage::Log { lsn, why, ends: true } => format!("log: change {}: {why}: it and all later ones are left out", lsn.0),
        Damage::Log { lsn, why, ends: false } => format!("log: change {}: {why}: some of it does not fit what is there", lsn.0),
        Damage::NodesLeaked(count) => format!("{count} nodes of the metadata are in use and belong to nothing: space is lost"),
        Damage::NodesFree(count) => format!("{count} nodes of the metadata are in use and not marked so: they may be overwritten"),
        Damage::Leaked(extent) => format!("{} are in use and belong to no file: space is lost", blocks(extent)),
        Damage::Free(extent) => format!("{} of files are free: they may be given to others", blocks(extent)),
        Damage::More(count) => format!("{count} more rows of blocks like these"),
    }
}

/// A limit need not be a whole key.
fn key_or_bytes(tree: TreeId, bytes: &[u8]) -> String {
    let whole = match tree {
        TreeId::Names => KeyParts::of(bytes).is_some(),
        TreeId::Files => key::file_parts(bytes).is_some(),
    };
    if whole { key(tree, bytes) } else { bytes.escape_ascii().to_string() }
}

/// A path of each of these files, as far as one can be found.
///
/// # Errors
/// The store's.
pub fn paths(store: &Store, wanted: &HashSet<u64>) -> Result<HashMap<u64, String>> {
    let mut keys: HashMap<u64, KeyParts> = HashMap::new();
    let mut zones: HashMap<u64, KeyParts> = HashMap::new();
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    store.scan(TreeId::Names, &[], &[0xff; 16], &mut |key, value| {
        if let (Some(parts), Ok(value)) = (KeyParts::of(key), NameValue::parse(value)) {
            if matches!(&value, NameValue::Here(record) if record.zone) {
                zones.insert(value.ino(), parts.clone());
            }
            if wanted.contains(&value.ino()) {
                keys.entry(value.ino()).or_insert(parts);
            }
        }
        ScanStep::Go
    })?;
    Ok(keys.into_iter().map(|(ino, parts)| (ino, whole(&parts, &zones))).collect())
}

fn whole(parts: &KeyParts, zones: &HashMap<u64, KeyParts>) -> String {
    let names = |parts: &KeyParts| -> String {
        parts.dirs.iter().chain([&parts.name]).map(|name| format!("/{}", String::from_utf8_lossy(name))).collect()
    };
    let (mut path, mut zone) = (names(parts), parts.zone);
    // In a damaged image zones may lie in each other.
    for _ in 0..64 {
        match zone.and_then(|ino| zones.get(&ino)) {
            Some(above) => (path, zone) = (names(above) + &path, above.zone),
            None => break,
        }
    }
    zone.map_or(path.clone(), |ino| format!("(zone {ino}){path}"))
}
