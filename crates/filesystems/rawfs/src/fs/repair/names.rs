//! Names, directories and records.

use super::{Repair, link};
use crate::fs::check::{CheckReport, Finding};
use crate::fs::core::ROOT;
use crate::fs::error::Result;
use crate::fs::extent::Run;
use crate::fs::key::{self, BELOW, ENTRY, FileItem, KeyParts, KeyPrefix, unescape};
use crate::fs::record::{FileKind, NameValue, Record, RecordBody};
use crate::{Batch, TreeId};

impl Repair {
    /// A value that cannot be read: what can be kept of it is.
    pub(super) fn mend_value(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<String>> {
        let Some(bytes) = self.core.get(tree, key)? else { return Ok(None) };
        if let (TreeId::Names, Ok(NameValue::Link { ino, kind })) = (tree, NameValue::parse(&bytes)) {
            return self.other_kind(key, ino, kind);
        }
        let mut batch = Batch::new();
        let done = match (tree, key::file_parts(key)) {
            (TreeId::Files, Some((ino, FileItem::Extent, _))) => match Run::parse(&bytes) {
                Ok(run) if self.core.get(tree, &key::file(ino, FileItem::Extent, run.at))?.is_none() => {
                    batch.put(tree, &key::file(ino, FileItem::Extent, run.at), &bytes);
                    batch.delete(tree, key);
                    "it is put in its place".to_owned()
                }
                _ => {
                    batch.delete(tree, key);
                    "it is removed: the file has a hole there".to_owned()
                }
            },
            (_, of_file) => match self.mended(&bytes)? {
                Some(mut record) => {
                    if let Some((ino, ..)) = of_file.filter(|_| tree == TreeId::Files) {
                        record.ino = ino;
                    }
                    batch.put(tree, key, &record.bytes());
                    "its attributes are brought into their range, its content is kept as far as it can be read".to_owned()
                }
                None => {
                    batch.delete(tree, key);
                    "the name is removed: it led to nothing".to_owned()
                }
            },
        };
        if !self.is_any_change(tree, key, &batch)? {
            return Ok(None);
        }
        self.apply(batch)?;
        Ok(Some(done))
    }

    /// A name that says another kind of file than the record does.
    fn other_kind(&self, key: &[u8], ino: u64, kind: FileKind) -> Result<Option<String>> {
        // Another name may just have taken it away.
        let Ok(mut record) = self.core.record_of(ino) else { return Ok(None) };
        let mut batch = Batch::new();
        if record.kind == kind {
            return Ok(None);
        }
        let mut done = "the name says what the record does";
        if ino == ROOT {
            batch.delete(TreeId::Names, key);
            done = "the name is removed: it led to the top directory, which has none";
        } else if record.kind == FileKind::Dir {
            // Its record belongs to its name.
            (record.zone, record.nlink) = (true, 2);
            batch.put(TreeId::Names, key, &record.bytes());
            batch.delete(TreeId::Files, &key::file(ino, FileItem::Record, 0));
        } else {
            batch.put(TreeId::Names, key, &link(&record));
        }
        self.apply(batch)?;
        Ok(Some(done.to_owned()))
    }

    /// A mend that changes nothing would be done for ever.
    fn is_any_change(&self, tree: TreeId, key: &[u8], batch: &Batch) -> Result<bool> {
        let old = self.core.get(tree, key)?;
        Ok(batch.changes().flatten().any(|change| match change {
            crate::store::Change::Put(_, at, value) => at != key || old.as_deref() != Some(value),
            _ => true,
        }))
    }

    /// Entries below a directory that is not there: one is made in `lost+found`, and they go into it.
    pub(super) fn lost(&mut self, begin: &[u8], dir: Option<u64>, report: &CheckReport) -> Result<Option<String>> {
        if let Some(ino) = dir {
            return self.circle(ino, report);
        }
        if self.above_is_lost(begin, report) {
            return Ok(None);
        }
        let zone = zone(begin);
        if let Some(done) = self.was_zone(zone)? {
            return Ok(Some(done));
        }
        // A number that another file has is not available.
        let kept = zone.filter(|ino| *ino > ROOT && *ino < crate::fs::record::INO_END && !self.places.contains_key(ino));
        let ino = kept.map_or_else(|| self.core.number(), Ok)?;
        let mut record = Record::new(FileKind::Dir, ino, 0o700, (0, 0), self.now);
        record.zone = true;
        let (key, path) = self.lost_name(ino, &last_name(begin))?;
        let mut batch = Batch::new();
        batch.put(TreeId::Names, &key, &record.bytes());
        if kept.is_none() {
            for kind in [ENTRY, BELOW] {
                let from: Vec<u8> = begin.iter().copied().chain([kind]).collect();
                batch.move_range(TreeId::Names, &from, &KeyPrefix::zone(ino).prefix(kind));
            }
        }
        self.apply(batch)?;
        Ok(Some(format!("all that was in its directory is in {path}")))
    }

    /// A directory that has forgotten that its entries are found by its number.
    fn was_zone(&mut self, zone: Option<u64>) -> Result<Option<String>> {
        let Some(ino) = zone.filter(|ino| *ino != ROOT) else { return Ok(None) };
        let Some((TreeId::Names, key, mut record)) = self.place(ino)? else { return Ok(None) };
        let Some(parts) = KeyParts::of(&key).filter(|_| record.kind == FileKind::Dir && !record.zone) else { return Ok(None) };
        if !self.core.is_empty(&parts.enc().below(&parts.name))? {
            return Ok(None);
        }
        record.zone = true;
        let mut batch = Batch::new();
        batch.put(TreeId::Names, &key, &record.bytes());
        self.apply(batch)?;
        Ok(Some("its directory has it again".to_owned()))
    }

    /// Whether a directory above is lost too: that is the one to be found first.
    fn above_is_lost(&self, begin: &[u8], report: &CheckReport) -> bool {
        report.findings.iter().any(|finding| match finding {
            Finding::Lost { begin: above, dir: None, .. } => {
                above.len() < begin.len() && begin.starts_with(above) && begin[above.len()] == BELOW
            }
            _ => false,
        })
    }

    /// Directories that are in each other, or whose way is lost: if nothing else can be done, one is taken out.
    fn circle(&mut self, ino: u64, report: &CheckReport) -> Result<Option<String>> {
        let waits = report.findings.iter().any(|finding| matches!(finding, Finding::Lost { dir: None, .. }));
        if waits || !self.done.is_empty() {
            return Ok(None);
        }
        let Some((TreeId::Names, old, record)) = self.place(ino)? else { return Ok(None) };
        if !record.zone {
            return Ok(None);
        }
        self.done.insert(ino);
        let name = KeyParts::of(&old).map(|parts| parts.name).unwrap_or_default();
        let (key, path) = self.lost_name(ino, &name)?;
        let mut batch = Batch::new();
        batch.delete(TreeId::Names, &old);
        batch.put(TreeId::Names, &key, &record.bytes());
        self.apply(batch)?;
        Ok(Some(format!("it is in {path}")))
    }

    /// Records with one number: all but one get another, or become names of the one.
    pub(super) fn twice(&mut self, ino: u64) -> Result<Option<String>> {
        if let Some(done) = self.misplaced(ino)? {
            return Ok(Some(done));
        }
        if !self.done.insert(ino) {
            return Ok(None);
        }
        let all = self.places.get(&ino).cloned().unwrap_or_default();
        let Some(((tree, kept_key, kept), others)) = all.split_first() else { return Ok(None) };
        let mut batch = Batch::new();
        let mut linked = false;
        for (_, key, record) in others.iter().filter(|(tree, ..)| *tree == TreeId::Names) {
            if record.kind == FileKind::Dir && record.zone {
                batch.delete(TreeId::Names, key);
            } else if record.body == RecordBody::Items && kept.body == RecordBody::Items && record.kind == kept.kind {
                batch.put(TreeId::Names, key, &link(kept));
                linked = true;
            } else {
                let mut other = record.clone();
                (other.ino, other.xattrs) = (self.core.number()?, false);
                if other.body == RecordBody::Items {
                    (other.body, other.size, other.blocks) = (RecordBody::Inline(Vec::new()), 0, 0);
                }
                if other.kind == FileKind::Symlink && other.size == 0 {
                    batch.delete(TreeId::Names, key);
                } else {
                    batch.put(TreeId::Names, key, &other.bytes());
                }
            }
        }
        if linked && *tree == TreeId::Names {
            batch.put(TreeId::Files, &key::file(ino, FileItem::Record, 0), &kept.bytes());
            batch.put(TreeId::Names, kept_key, &link(kept));
        }
        if batch.is_empty() {
            return Ok(None);
        }
        self.apply(batch)?;
        Ok(Some("the others got numbers of their own, or became names of the one file".to_owned()))
    }

    /// A record in Files under another file's number.
    fn misplaced(&mut self, ino: u64) -> Result<Option<String>> {
        let key = key::file(ino, FileItem::Record, 0);
        let Some(bytes) = self.core.get(TreeId::Files, &key)? else { return Ok(None) };
        match Record::parse(&bytes) {
            Ok(mut record) if record.ino != ino && ino != 0 => {
                record.ino = ino;
                let mut batch = Batch::new();
                batch.put(TreeId::Files, &key, &record.bytes());
                self.apply(batch)?;
                Ok(Some("its record got the number of the file it is for".to_owned()))
            }
            Ok(_) if ino == 0 => {
                let mut batch = Batch::new();
                batch.delete(TreeId::Files, &key);
                self.apply(batch)?;
                Ok(Some("no file has the number 0: the record is removed".to_owned()))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn set_links(&mut self, ino: u64, are: u32) -> Result<Option<String>> {
        let Some((tree, key, mut record)) = self.place(ino)? else { return Ok(None) };
        let mut batch = Batch::new();
        let mut done = "the record is put right".to_owned();
        record.nlink = are;
        if are == 0 {
            let (name, path) = self.lost_name(ino, b"")?;
            record.nlink = 1;
            batch.put(TreeId::Names, &name, &link(&record));
            done = format!("the file has no name: it is in {path}");
            if record.kind == FileKind::Dir {
                // Its record belongs to its name.
                (record.zone, record.nlink) = (true, 2);
                batch.put(TreeId::Names, &name, &record.bytes());
                batch.delete(tree, &key);
                self.apply(batch)?;
                return Ok(Some(done));
            }
        }
        batch.put(tree, &key, &record.bytes());
        self.apply(batch)?;
        Ok(Some(done))
    }

    pub(super) fn set_blocks(&mut self, ino: u64, are: u64) -> Result<Option<String>> {
        let Some((tree, key, mut record)) = self.place(ino)? else { return Ok(None) };
        let fewer = are < record.blocks;
        record.blocks = are;
        let mut batch = Batch::new();
        batch.put(tree, &key, &record.bytes());
        self.apply(batch)?;
        let lost = if fewer { "the record is put right; blocks that are lost read as zeros" } else { "the record is put right" };
        Ok(Some(lost.to_owned()))
    }

    /// Something that a record says is in Files, or the record that a name leads to.
    pub(super) fn missing(&mut self, ino: u64, what: FileItem) -> Result<Option<String>> {
        if what == FileItem::Record {
            return self.missing_record(ino);
        }
        let Some((tree, key, mut record)) = self.place(ino)? else { return Ok(None) };
        let mut batch = Batch::new();
        let done = if what == FileItem::Xattrs {
            record.xattrs = false;
            batch.put(tree, &key, &record.bytes());
            "its extended attributes are lost; the record says so"
        } else {
            self.each_name(ino, |name| batch.delete(TreeId::Names, name))?;
            batch.delete(tree, &key);
            "nothing is left of the symbolic link: it is removed"
        };
        self.apply(batch)?;
        Ok(Some(done.to_owned()))
    }

    fn missing_record(&mut self, ino: u64) -> Result<Option<String>> {
        if ino == ROOT {
            return Ok(None);
        }
        let (mut batch, mut names) = (Batch::new(), 0);
        match self.recovered(ino)? {
            Some(mut record) => {
                self.each_name(ino, |_| names += 1)?;
                record.nlink = names;
                let mut fixed = Vec::new();
                self.each_name(ino, |name| fixed.push(name.to_vec()))?;
                fixed.iter().for_each(|name| batch.put(TreeId::Names, name, &link(&record)));
                batch.put(TreeId::Files, &key::file(ino, FileItem::Record, 0), &record.bytes());
                self.done.insert(ino);
                self.apply(batch)?;
                Ok(Some("its attributes are lost: it has its content, and mode 0600".to_owned()))
            }
            None => {
                self.each_name(ino, |name| batch.delete(TreeId::Names, name))?;
                self.apply(batch)?;
                Ok(Some("nothing is left of the file: its names are removed".to_owned()))
            }
        }
    }

    /// Each name that leads to a file by a link.
    fn each_name(&self, ino: u64, mut each: impl FnMut(&[u8])) -> Result<()> {
        self.core.store.scan(TreeId::Names, &[], &[0xff; 16], &mut |key, value| {
            if matches!(NameValue::parse(value), Ok(NameValue::Link { ino: of, .. }) if of == ino) && KeyParts::of(key).is_some() {
                each(key);
            }
            crate::ScanStep::Go
        })?;
        Ok(())
    }
}

/// The number of the zone that keys begin with, if they begin with no more.
pub(super) fn zone(begin: &[u8]) -> Option<u64> {
    begin.strip_prefix(&[3]).and_then(|rest| rest.try_into().ok()).map(u64::from_be_bytes)
}

/// The last name of what keys begin with.
fn last_name(begin: &[u8]) -> Vec<u8> {
    let from = (0..begin.len()).rev().find(|at| begin[*at] == BELOW && (*at == 0 || begin[at - 1] != 2));
    from.and_then(|at| unescape(&begin[at + 1..])).unwrap_or_default()
}
