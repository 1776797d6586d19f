//! What no name or record leads to: it gets one.

use super::{Repair, bare};
use crate::fs::error::Result;
use crate::fs::extent::Run;
use crate::fs::key::{self, ENTRY, FileItem, unescape};
use crate::fs::record::{FileKind, NameValue, Record, RecordBody};
use crate::store::salvage::found_parts;
use crate::{Batch, ScanStep, TreeId};

/// Bytes of a key of Files behind the number.
const BEHIND: usize = 9;
const WHOLE: usize = 17;

impl Repair {
    /// An entry whose key names nothing: if it leads to a file, that is in `lost+found` then.
    pub(super) fn adopt_name(&mut self, key: &[u8]) -> Result<Option<String>> {
        let Some(bytes) = self.core.get(TreeId::Names, key)? else { return Ok(None) };
        let end = found_parts(TreeId::Names, key).map_or(&[][..], |(_, end)| end);
        let from = end.iter().rposition(|byte| *byte == ENTRY).map_or(0, |at| at + 1);
        let name = unescape(&end[from..]).unwrap_or_default();
        let value = match NameValue::parse(&bytes) {
            Ok(value) => Some(value),
            Err(_) => self.mended(&bytes)?.map(NameValue::Here),
        };
        let mut batch = Batch::new();
        batch.delete(TreeId::Names, key);
        let done = match value {
            Some(value) if matches!(value, NameValue::Link { .. }) || !self.is_known(value.ino(), key)? => {
                let (new, path) = self.lost_name(value.ino(), &name)?;
                let bytes = match &value {
                    NameValue::Here(record) => record.bytes(),
                    NameValue::Link { .. } => bytes,
                };
                batch.put(TreeId::Names, &new, &bytes);
                format!("it is in {path}")
            }
            Some(_) => "another entry has its number, and is newer: this one is removed".to_owned(),
            None => "it is removed: it led to nothing".to_owned(),
        };
        self.apply(batch)?;
        Ok(Some(done))
    }

    /// Whether a record with this number is somewhere else.
    fn is_known(&self, ino: u64, but: &[u8]) -> Result<bool> {
        let mut known = self.core.get(TreeId::Files, &key::file(ino, FileItem::Record, 0))?.is_some();
        self.core.store.scan(TreeId::Names, &[], &[0xff; 16], &mut |key, value| {
            known |= key != but && matches!(NameValue::parse(value), Ok(NameValue::Here(record)) if record.ino == ino);
            if known { ScanStep::Stop } else { ScanStep::Go }
        })?;
        Ok(known)
    }

    /// An item of Files whose key is not known as a whole: the begin is known if all numbers begin so, or if a record of the same
    /// node says its own.
    pub(super) fn adopt_item(&mut self, key: &[u8]) -> Result<Option<String>> {
        let Some(bytes) = self.core.get(TreeId::Files, key)? else { return Ok(None) };
        let mut batch = Batch::new();
        batch.delete(TreeId::Files, key);
        let mut done = "it is removed: nobody can tell whose it was";
        if key.len() == WHOLE && key[8] == FileItem::Record as u8 {
            let right = key::file(u64::from_be_bytes(*key.first_chunk().expect("17 bytes")), FileItem::Record, 0);
            if self.core.get(TreeId::Files, &right)?.is_none() {
                batch.put(TreeId::Files, &right, &bytes);
                done = "it is put in its place";
            }
        }
        if let Some((slot, end)) = found_parts(TreeId::Files, key)
            && let Some(begin) = self.begin_of(slot, WHOLE.saturating_sub(end.len()))?
        {
            let whole = [&begin, end].concat();
            done = "an entry of its key is there, and is newer: this one is removed";
            if key::file_parts(&whole).is_some() && self.core.get(TreeId::Files, &whole)?.is_none() {
                batch.put(TreeId::Files, &whole, &bytes);
                done = "it is in its place again";
            }
        }
        self.apply(batch)?;
        Ok(Some(done.to_owned()))
    }

    fn begin_of(&self, slot: u32, missing: usize) -> Result<Option<Vec<u8>>> {
        let most = self.core.get(TreeId::Files, &key::file(0, FileItem::Numbers, 0))?.and_then(|bytes| bytes.try_into().ok());
        let most = most.map_or(u64::MAX, u64::from_le_bytes);
        if missing == 0 || missing <= (most.leading_zeros() / 8) as usize {
            return Ok(Some(vec![0; missing]));
        }
        let mut begin = None;
        let from = crate::store::salvage::found_key(TreeId::Files, slot, &[]);
        let to = crate::store::salvage::found_key(TreeId::Files, slot.saturating_add(1), &[]);
        self.core.store.scan(TreeId::Files, &from, &to, &mut |key, value| {
            let end = found_parts(TreeId::Files, key).map_or(&[][..], |(_, end)| end);
            let of_record = end.len() >= BEHIND && end[end.len() - BEHIND..] == [0; BEHIND] && missing <= WHOLE - BEHIND;
            if let (true, Ok(record)) = (of_record, Record::parse(value)) {
                begin = Some(record.ino.to_be_bytes()[..missing].to_vec());
            }
            if begin.is_some() { ScanStep::Stop } else { ScanStep::Go }
        })?;
        Ok(begin)
    }

    /// What can be said of a file from its items alone; `None`: it has none.
    pub(super) fn recovered(&self, ino: u64) -> Result<Option<Record>> {
        let (mut blocks, mut end, mut any, mut target, mut xattrs) = (0, 0, false, 0, false);
        let (from, to) = (key::file(ino, FileItem::Record, 0), key::file(ino, FileItem::Target, u64::MAX));
        self.core.store.scan(TreeId::Files, &from, &to, &mut |key, value| {
            match key::file_parts(key).map(|parts| parts.1) {
                Some(FileItem::Extent) => {
                    if let Ok(run) = Run::parse(value) {
                        (any, blocks, end) = (true, blocks + u64::from(run.blocks), end.max(run.end()));
                    }
                }
                Some(FileItem::Target) => target += value.len() as u64,
                Some(FileItem::Xattrs) => xattrs = true,
                _ => {}
            }
            ScanStep::Go
        })?;
        let mut record = bare(ino, blocks, end, self.now);
        record.xattrs = xattrs;
        if any {
            return Ok(Some(record));
        }
        if target == 0 || target > crate::fs::record::TARGET_MAX as u64 {
            return Ok(None);
        }
        (record.kind, record.mode, record.size) = (FileKind::Symlink, 0o777, target);
        Ok(Some(record))
    }

    /// Items that no record knows of.
    pub(super) fn stray(&mut self, ino: u64, what: FileItem) -> Result<Option<String>> {
        if !self.done.insert(ino) {
            return Ok(None);
        }
        let mut batch = Batch::new();
        let done = match (self.place(ino)?, what) {
            (None, _) => match self.recovered(ino)?.filter(|_| ino != 0) {
                Some(record) => {
                    let (name, path) = self.lost_name(ino, b"")?;
                    batch.put(TreeId::Names, &name, &record.bytes());
                    format!("its name and attributes are lost: its content is in {path}")
                }
                None => {
                    self.each_item(ino, None, |key| batch.delete(TreeId::Files, key))?;
                    "they are removed: nothing else is left of the file".to_owned()
                }
            },
            (Some((tree, key, mut record)), FileItem::Xattrs) => {
                record.xattrs = true;
                batch.put(tree, &key, &record.bytes());
                "they are the file's again".to_owned()
            }
            (Some((_, _, record)), FileItem::Extent) if record.body != RecordBody::Items || record.kind != FileKind::File => {
                let other = self.core.number()?;
                let begin = |ino| key::file(ino, FileItem::Extent, 0)[..BEHIND].to_vec();
                batch.move_range(TreeId::Files, &begin(ino), &begin(other));
                let mut record = self.recovered(ino)?.unwrap_or_else(|| bare(other, 0, 0, self.now));
                (record.ino, record.xattrs) = (other, false);
                let (name, path) = self.lost_name(other, b"")?;
                batch.put(TreeId::Names, &name, &record.bytes());
                format!("the file does not have them: they are in {path}")
            }
            (Some(_), what) => {
                self.each_item(ino, Some(what), |key| batch.delete(TreeId::Files, key))?;
                "they are removed".to_owned()
            }
        };
        if batch.is_empty() {
            return Ok(None);
        }
        self.apply(batch)?;
        Ok(Some(done))
    }

    fn each_item(&self, ino: u64, what: Option<FileItem>, mut each: impl FnMut(&[u8])) -> Result<()> {
        let (from, to) = (key::file(ino, FileItem::Record, 0), [&ino.to_be_bytes()[..], &[0xff; 10]].concat());
        self.core.store.scan(TreeId::Files, &from, &to, &mut |key, _| {
            let item = key::file_parts(key).map(|parts| parts.1);
            let special = ino == 0 && matches!(item, Some(FileItem::Numbers | FileItem::Orphan));
            if what.is_none_or(|what| item == Some(what)) && !special {
                each(key);
            }
            ScanStep::Go
        })?;
        Ok(())
    }
}
