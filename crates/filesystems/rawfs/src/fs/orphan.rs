//! What a crash left: files without a name, and files that were being cut.
//!
//! A mark in Files, below number 0, names the file and the block from which it has nothing. If its record has no name the file is
//! removed; else its record says already what is left of it. Removing is done in steps; the mark goes with the last.

use super::core::FsCore;
use super::error::{Error, Result};
use super::key::{self, FileItem};
use super::record::{FileKind, Record, RecordBody};
use super::time::Timestamp;
use crate::{Batch, ScanStep, TreeId};

impl FsCore {
    /// Removes what is marked; returns how many there were.
    pub fn remove_orphans(&self) -> Result<u64> {
        let mut count = 0;
        while let Some((ino, from)) = self.next_orphan()? {
            let stored = self.get(TreeId::Files, &key::file(ino, FileItem::Record, 0))?;
            let record = stored.map(|bytes| Record::parse(&bytes).map_err(Error::malformed(ino))).transpose()?;
            match record.filter(|record| record.nlink == 0 && record.ino == ino) {
                Some(record) => self.purge(&record)?,
                None => self.cut_items(ino, from)?,
            }
            count += 1;
        }
        Ok(count)
    }

    fn next_orphan(&self) -> Result<Option<(u64, u64)>> {
        let (begin, end) = (key::file(0, FileItem::Orphan, 0), key::file(0, FileItem::Orphan, u64::MAX));
        let mut found = None;
        self.store.scan(TreeId::Files, &begin, &end, &mut |key, value| {
            found = Some((key::file_parts(key).map(|parts| parts.2), value.try_into().ok().map(u64::from_le_bytes)));
            ScanStep::Stop
        })?;
        match found {
            None => Ok(None),
            Some((Some(ino), Some(from))) => Ok(Some((ino, from))),
            Some(_) => Err(Error::Malformed { ino: 0, what: "a mark of a removed file that is none" }),
        }
    }

    fn cut_items(&self, ino: u64, from: u64) -> Result<()> {
        let mut record = Record::new(FileKind::File, ino, 0, (0, 0), Timestamp::default());
        record.body = RecordBody::Items;
        loop {
            let mut batch = Batch::new();
            let more = self.cut(&mut batch, &mut record, from)?;
            if !more {
                batch.delete(TreeId::Files, &key::file(0, FileItem::Orphan, ino));
            }
            self.apply(batch)?;
            if !more {
                return Ok(());
            }
        }
    }
}
