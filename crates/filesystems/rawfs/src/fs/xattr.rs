//! Calls on extended attributes. Two of these are access control lists, with rules of their own ([`super::acl`]).

use std::sync::Arc;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::acl;
use super::core::FsCore;
use super::creds::{Creds, READ, WRITE};
use super::error::{Error, Result};
use super::record::{FileKind, Record};
use super::table::Inode;

/// Bytes of a name and of a value, at most.
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65_536;

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
