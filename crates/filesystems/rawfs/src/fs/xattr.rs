//! Extended attributes: all of a file's together in Files, at most 4 KiB as ext4 has it.
//!
//! ```text
//!  name length (1) | value length (2) | name | value, one behind the other
//! ```
//!
//! Access control lists are two of them, with rules of their own ([`super::acl`]).

use std::sync::Arc;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::acl;
use super::core::FsCore;
use super::creds::{Creds, READ, WRITE};
use super::error::{Error, Result};
use super::key::FileItem;
use super::record::{FileKind, Record};
use super::table::Inode;
use crate::Batch;

/// Bytes of a name, of a value, and of all that a file has, at most.
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65_536;
const ALL_MAX: usize = super::core::LONG_MAX;

/// Names and values.
pub(super) type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

fn parse(mut bytes: &[u8]) -> Option<Attributes> {
    let mut all = Attributes::new();
    while !bytes.is_empty() {
        let (name, value) = (usize::from(*bytes.first()?), usize::from(u16::from_le_bytes(bytes.get(1..3)?.try_into().ok()?)));
        all.push((bytes.get(3..3 + name)?.to_vec(), bytes.get(3 + name..3 + name + value)?.to_vec()));
        bytes = &bytes[3 + name + value..];
    }
    Some(all)
}

fn bytes(all: &Attributes) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in all {
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    bytes
}

impl FsCore {
    /// Whether a name may be asked for, or set; as the kernel has it for each name space.
    fn check_xattr(&self, name: &[u8], record: &Record, writes: bool, creds: &Creds) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE.into());
        }
        if acl::is_acl(name) {
            // Whether a value is a list at all comes first.
            return if record.kind == FileKind::Symlink && !writes { Err(Errno::OPNOTSUPP.into()) } else { Ok(()) };
        }
        let no = if writes { Errno::PERM } else { Errno::NODATA };
        let rest = if let Some(rest) = name.strip_prefix(b"user.") {
            if !matches!(record.kind, FileKind::File | FileKind::Dir) {
                return Err(no.into());
            }
            if record.kind == FileKind::Dir && record.mode & 0o1000 != 0 && writes && !creds.is_owner(record) {
                return Err(Errno::PERM.into());
            }
            self.may(creds, record, if writes { WRITE } else { READ })?;
            rest
        } else if let Some(rest) = name.strip_prefix(b"trusted.") {
            if !creds.is_capable() {
                return Err(no.into());
            }
            rest
        } else if let Some(rest) = name.strip_prefix(b"security.") {
            if writes && !creds.is_capable() {
                return Err(Errno::PERM.into());
            }
            rest
        } else {
            self.may(creds, record, if writes { WRITE } else { READ })?;
            return Err(Errno::OPNOTSUPP.into());
        };
        if rest.is_empty() { Err(Errno::INVAL.into()) } else { Ok(()) }
    }
}

impl FsCore {
    /// All of a file.
    pub(super) fn xattrs(&self, record: &Record) -> Result<Attributes> {
        if let Some(kept) = &record.kept {
            return Ok(Attributes::clone(kept));
        }
        if !record.xattrs {
            return Ok(Attributes::new());
        }
        let stored = self.get_long(record.ino, FileItem::Xattrs)?;
        parse(&stored).ok_or(Error::Malformed { ino: record.ino, what: "extended attributes that are none" })
    }

    /// A directory is being removed: its open handles still have its attributes, above all its access list.
    pub(super) fn keep_xattrs(&self, record: &mut Record) {
        // What is damaged is gone with the directory.
        record.kept = self.xattrs(record).ok().map(Arc::new);
    }

    /// One of them.
    pub(super) fn xattr_of(&self, record: &Record, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.xattrs(record)?.into_iter().find(|(other, _)| other == name).map(|(_, value)| value))
    }

    /// Puts all of a file; the record says whether there are any.
    pub(super) fn put_xattrs(&self, batch: &mut Batch, record: &mut Record, all: &Attributes) -> Result<()> {
        if all.iter().map(|(name, value)| 3 + name.len() + value.len()).sum::<usize>() > ALL_MAX {
            return Err(Errno::NOSPC.into());
        }
        record.xattrs = !all.is_empty();
        if record.kept.is_some() {
            record.kept = Some(Arc::new(all.clone()));
            return Ok(());
        }
        self.put_long(batch, record.ino, FileItem::Xattrs, &bytes(all));
        Ok(())
    }

    /// Sets or removes (`None`) one.
    pub fn set_xattr(&self, inode: &Arc<Inode>, name: &[u8], value: Option<&[u8]>, flags: XattrFlags, creds: &Creds) -> Result<()> {
        if !(XattrFlags::CREATE | XattrFlags::REPLACE).contains(flags) {
            return Err(Errno::INVAL.into());
        }
        if value.is_some_and(|value| value.len() > VALUE_MAX) {
            return Err(Errno::TOOBIG.into());
        }
        let now = self.now();
        self.change(inode, &mut |record, batch| {
            self.check_xattr(name, record, true, creds)?;
            let mut all = self.xattrs(record)?;
            if acl::is_acl(name) {
                let changed = self.put_acl(record, &mut all, name, value, creds)?;
                if changed {
                    record.ctime = now;
                    self.put_xattrs(batch, record, &all)?;
                }
                return Ok(changed);
            }
            let at = all.iter().position(|(other, _)| other == name);
            match (at, value) {
                (Some(_), Some(_)) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EXIST.into()),
                (None, Some(_)) if flags.contains(XattrFlags::REPLACE) => return Err(Errno::NODATA.into()),
                (None, None) => return Err(Errno::NODATA.into()),
                // Nothing changes, not even a time: as ext4 has it.
                (Some(at), Some(value)) if all[at].1 == value => return Ok(false),
                (Some(at), Some(value)) => all[at].1 = value.to_vec(),
                (None, Some(value)) => all.push((name.to_vec(), value.to_vec())),
                (Some(at), None) => drop(all.remove(at)),
            }
            record.ctime = now;
            self.put_xattrs(batch, record, &all)?;
            Ok(true)
        })
    }

    /// Returns the value of one extended attribute.
    pub fn get_xattr(&self, inode: &Inode, name: &[u8], creds: &Creds) -> Result<Vec<u8>> {
        let _names = self.locks.shared();
        let record = self.record(inode)?.0;
        self.check_xattr(name, &record, false, creds)?;
        self.xattr_of(&record, name)?.ok_or(Error::Refused(Errno::NODATA))
    }

    /// The names of all, each with a zero byte behind it.
    pub fn list_xattrs(&self, inode: &Inode, creds: &Creds) -> Result<Vec<u8>> {
        let _names = self.locks.shared();
        let all = self.xattrs(&self.record(inode)?.0)?;
        let shown = all.into_iter().filter(|(name, _)| creds.is_capable() || !name.starts_with(b"trusted."));
        Ok(shown.flat_map(|(name, _)| name.into_iter().chain([0])).collect())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn damaged_attributes_are_refused() {
        let all = vec![(b"user.a".to_vec(), vec![7; 300]), (b"trusted.b".to_vec(), Vec::new())];
        let stored = bytes(&all);
        assert_eq!(parse(&stored), Some(all));
        for len in 1..stored.len() {
            let cut = parse(&stored[..len]);
            assert!(cut.is_none() || len == 309, "{len}");
        }
    }
}
