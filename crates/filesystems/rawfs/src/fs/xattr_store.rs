//! Extended attributes in the store: all of a file's together in Files, at most 4 KiB as ext4 has it.

use std::sync::Arc;

use rustix::io::Errno;

use super::core::{FsCore, LONG_MAX};
use super::error::{Error, Result};
use super::key::FileItem;
use super::record::Record;
use super::xattr_list::{self, Attributes};
use crate::Batch;

impl FsCore {
    /// Returns all attributes of a file.
    pub(super) fn xattrs(&self, record: &Record) -> Result<Attributes> {
        if let Some(kept) = &record.kept {
            return Ok(Attributes::clone(kept));
        }
        if !record.xattrs {
            return Ok(Attributes::new());
        }
        let stored = self.get_long(record.ino, FileItem::Xattrs)?;
        xattr_list::parse(&stored).ok_or(Error::Malformed { ino: record.ino, what: "extended attributes that are none" })
    }

    /// A directory is being removed: its open handles still have its attributes, above all its access list.
    pub(super) fn keep_xattrs(&self, record: &mut Record) {
        // What is damaged is gone with the directory.
        record.kept = self.xattrs(record).ok().map(Arc::new);
    }

    /// Returns the value of one attribute.
    pub(super) fn xattr_of(&self, record: &Record, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.xattrs(record)?.into_iter().find(|(other, _)| other == name).map(|(_, value)| value))
    }

    /// Replaces all attributes of a file; the record says whether there are any.
    pub(super) fn put_xattrs(&self, batch: &mut Batch, record: &mut Record, all: &Attributes) -> Result<()> {
        if all.iter().map(|(name, value)| 3 + name.len() + value.len()).sum::<usize>() > LONG_MAX {
            return Err(Errno::NOSPC.into());
        }
        record.xattrs = !all.is_empty();
        if record.kept.is_some() {
            record.kept = Some(Arc::new(all.clone()));
            return Ok(());
        }
        self.put_long(batch, record.ino, FileItem::Xattrs, &xattr_list::bytes(all));
        Ok(())
    }
}
