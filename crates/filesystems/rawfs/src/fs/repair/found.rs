//! What no name or record leads to: it gets one.

use super::{Repair, bare};
use crate::fs::error::Result;
use crate::fs::extent::Run;
use crate::fs::key::{self, ENTRY, Item, unescape};
use crate::fs::record::{Body, Kind, Record, Value};
use crate::store::salvage::found_parts;
use crate::{Batch, Next, Tree};

/// Bytes of a key of Files behind the number.
const BEHIND: usize = 9;
const WHOLE: usize = 17;

impl Repair {
    /// An entry whose key names nothing: if it leads to a file, that is in `lost+found` then.
    pub(super) fn adopt_name(&mut self, key: &[u8]) -> Result<Option<String>> {
        let Some(bytes) = self.core.get(Tree::Names, key)? else { return Ok(None) };
        let end = found_parts(Tree::Names, key).map_or(&[][..], |(_, end)| end);
        let from = end.iter().rposition(|byte| *byte == ENTRY).map_or(0, |at| at + 1);
        let name = unescape(&end[from..]).unwrap_or_default();
        let value = match Value::parse(&bytes) {
            Ok(value) => Some(value),
            Err(_) => self.mended(&bytes)?.map(Value::Here),
        };
        let mut batch = Batch::new();
        batch.delete(Tree::Names, key);
        let done = match value {
            Some(value) if matches!(value, Value::Link { .. }) || !self.is_known(value.ino(), key)? => {
                let (new, path) = self.lost_name(value.ino(), &name)?;
                let bytes = match &value {
                    Value::Here(record) => record.bytes(),
                    Value::Link { .. } => bytes,
                };
                batch.put(Tree::Names, &new, &bytes);
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
        let mut known = self.core.get(Tree::Files, &key::file(ino, Item::Record, 0))?.is_some();
        self.core.store.scan(Tree::Names, &[], &[0xff; 16], &mut |key, value| {
            known |= key != but && matches!(Value::parse(value), Ok(Value::Here(record)) if record.ino == ino);
            if known { Next::Stop } else { Next::Go }
        })?;
        Ok(known)
    }

    /// An item of Files whose key is not known as a whole: the begin can be told if all numbers begin so, or if a record of the same
    /// node says its own.
    pub(super) fn adopt_item(&mut self, key: &[u8]) -> Result<Option<String>> {
        let Some(bytes) = self.core.get(Tree::Files, key)? else { return Ok(None) };
        let mut batch = Batch::new();
        batch.delete(Tree::Files, key);
        let mut done = "it is removed: nobody can tell whose it was";
        if key.len() == WHOLE && key[8] == Item::Record as u8 {
            let right = key::file(u64::from_be_bytes(*key.first_chunk().expect("17 bytes")), Item::Record, 0);
            if self.core.get(Tree::Files, &right)?.is_none() {
                batch.put(Tree::Files, &right, &bytes);
                done = "it is put in its place";
            }
        }
        if let Some((slot, end)) = found_parts(Tree::Files, key)
            && let Some(begin) = self.begin_of(slot, WHOLE.saturating_sub(end.len()))?
        {
            let whole = [&begin, end].concat();
            done = "an entry of its key is there, and is newer: this one is removed";
            if key::file_parts(&whole).is_some() && self.core.get(Tree::Files, &whole)?.is_none() {
                batch.put(Tree::Files, &whole, &bytes);
                done = "it is in its place again";
            }
        }
        self.apply(batch)?;
        Ok(Some(done.to_owned()))
    }

    fn begin_of(&self, slot: u32, missing: usize) -> Result<Option<Vec<u8>>> {
        let most = self.core.get(Tree::Files, &key::file(0, Item::Numbers, 0))?.and_then(|bytes| bytes.try_into().ok());
        let most = most.map_or(u64::MAX, u64::from_le_bytes);
        if missing == 0 || missing <= (most.leading_zeros() / 8) as usize {
            return Ok(Some(vec![0; missing]));
        }
        let mut begin = None;
        let from = crate::store::salvage::found_key(Tree::Files, slot, &[]);
        let to = crate::store::salvage::found_key(Tree::Files, slot.saturating_add(1), &[]);
        self.core.store.scan(Tree::Files, &from, &to, &mut |key, value| {
            let end = found_parts(Tree::Files, key).map_or(&[][..], |(_, end)| end);
            let of_record = end.len() >= BEHIND && end[end.len() - BEHIND..] == [0; BEHIND] && missing <= WHOLE - BEHIND;
            if let (true, Ok(record)) = (of_record, Record::parse(value)) {
                begin = Some(record.ino.to_be_bytes()[..missing].to_vec());
            }
            if begin.is_some() { Next::Stop } else { Next::Go }
        })?;
        Ok(begin)
    }

    /// What can be said of a file from its items alone; `None`: it has none.
    pub(super) fn recovered(&self, ino: u64) -> Result<Option<Record>> {
        let (mut blocks, mut end, mut any, mut target, mut xattrs) = (0, 0, false, 0, false);
        let (from, to) = (key::file(ino, Item::Record, 0), key::file(ino, Item::Target, u64::MAX));
        self.core.store.scan(Tree::Files, &from, &to, &mut |key, value| {
            match key::file_parts(key).map(|parts| parts.1) {
                Some(Item::Extent) => {
                    if let Ok(run) = Run::parse(value) {
                        (any, blocks, end) = (true, blocks + u64::from(run.blocks), end.max(run.end()));
                    }
                }
                Some(Item::Target) => target += value.len() as u64,
                Some(Item::Xattrs) => xattrs = true,
                _ => {}
            }
            Next::Go
        })?;
        let mut record = bare(ino, blocks, end, self.now);
        record.xattrs = xattrs;
        if any {
            return Ok(Some(record));
        }
        if target == 0 || target > crate::fs::record::TARGET_MAX as u64 {
            return Ok(None);
        }
        (record.kind, record.mode, record.size) = (Kind::Symlink, 0o777, target);
        Ok(Some(record))
    }

    /// Items that no record knows of.
    pub(super) fn stray(&mut self, ino: u64, what: Item) -> Result<Option<String>> {
        if !self.done.insert(ino) {
            return Ok(None);
        }
        let mut batch = Batch::new();
        let done = match (self.place(ino)?, what) {
            (None, _) => match self.recovered(ino)?.filter(|_| ino != 0) {
                Some(record) => {
                    let (name, path) = self.lost_name(ino, b"")?;
                    batch.put(Tree::Names, &name, &record.bytes());
                    format!("its name and attributes are lost: its content is in {path}")
                }
                None => {
                    self.each_item(ino, None, |key| batch.delete(Tree::Files, key))?;
                    "they are removed: nothing else is left of the file".to_owned()
                }
            },
            (Some((tree, key, mut record)), Item::Xattrs) => {
                record.xattrs = true;
                batch.put(tree, &key, &record.bytes());
                "they are the file's again".to_owned()
            }
            (Some((_, _, record)), Item::Extent) if record.body != Body::Items || record.kind != Kind::File => {
                let other = self.core.number()?;
                let begin = |ino| key::file(ino, Item::Extent, 0)[..BEHIND].to_vec();
                batch.move_range(Tree::Files, &begin(ino), &begin(other));
                let mut record = self.recovered(ino)?.unwrap_or_else(|| bare(other, 0, 0, self.now));
                (record.ino, record.xattrs) = (other, false);
                let (name, path) = self.lost_name(other, b"")?;
                batch.put(Tree::Names, &name, &record.bytes());
                format!("the file does not have them: they are in {path}")
            }
            (Some(_), what) => {
                self.each_item(ino, Some(what), |key| batch.delete(Tree::Files, key))?;
                "they are removed".to_owned()
            }
        };
        if batch.is_empty() {
            return Ok(None);
        }
        self.apply(batch)?;
        Ok(Some(done))
    }

    fn each_item(&self, ino: u64, what: Option<Item>, mut each: impl FnMut(&[u8])) -> Result<()> {
        let (from, to) = (key::file(ino, Item::Record, 0), [&ino.to_be_bytes()[..], &[0xff; 10]].concat());
        self.core.store.scan(Tree::Files, &from, &to, &mut |key, _| {
            let item = key::file_parts(key).map(|parts| parts.1);
            let special = ino == 0 && matches!(item, Some(Item::Numbers | Item::Orphan));
            if what.is_none_or(|what| item == Some(what)) && !special {
                each(key);
            }
            Next::Go
        })?;
        Ok(())
    }
}
