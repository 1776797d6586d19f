//! Access control lists (POSIX 1003.1e, as Linux and ext4 have them): kept among the extended attributes, in the form the kernel gives
//! and takes them (linux/posix_acl_xattr.h), drawn in docs/formats.md.
//!
//! A file's list and its mode say the same: owner, others, and the mask (or the group's entry, without a mask) are the mode's nine bits.

use rustix::io::Errno;

use super::core::FsCore;
use super::creds::{Creds, EXEC, WRITE};
use super::error::{Error, Result};
use super::record::{FileKind, Record};
use super::xattr_list::Attributes;
use crate::Batch;

/// The names of the attributes.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds a directory's default access list.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;
const NOBODY: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A list that is one: owner, users, group, groups, mask (where there are users or groups), others, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Reads one; `None`: it has no entries, which means that there is to be none.
    ///
    /// # Errors
    /// EOPNOTSUPP for another version, EINVAL for what is no list. What is wrong with the list itself [`Acl::check`] tells.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Option<Acl>, Errno> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*head) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (entries, more) = rest.as_chunks::<ENTRY>();
        if !more.is_empty() {
            return Err(Errno::INVAL);
        }
        let entries: std::result::Result<Vec<AclEntry>, Errno> = entries.iter().map(entry).collect();
        Ok(entries.map(Acl)?.some())
    }

    fn some(self) -> Option<Acl> {
        if self.0.is_empty() { None } else { Some(self) }
    }

    /// EINVAL unless every entry is where it belongs.
    pub fn check(&self) -> std::result::Result<(), Errno> {
        let (mut next, mut masked) = (USER_OBJ, false);
        for AclEntry { tag, perm, .. } in &self.0 {
            if *perm > 7 {
                return Err(Errno::INVAL);
            }
            next = match (*tag, next) {
                (USER_OBJ, USER_OBJ) => USER,
                (USER, USER) => {
                    masked = true;
                    USER
                }
                (GROUP_OBJ, USER) => GROUP,
                (GROUP, GROUP) => {
                    masked = true;
                    GROUP
                }
                (MASK, GROUP) => OTHER,
                (OTHER, OTHER) => 0,
                (OTHER, GROUP) if !masked => 0,
                _ => return Err(Errno::INVAL),
            };
        }
        if next == 0 { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Returns the list in its stored form.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, perm, id } in &self.0 {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&perm.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    fn of(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// The entry that stands for the group's bits of the mode.
    fn group_tag(&self) -> u16 {
        if self.of(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// The nine bits of a mode that say the same.
    fn mode(&self) -> u16 {
        let of = |tag| self.of(tag).unwrap_or(0);
        of(USER_OBJ) << 6 | of(self.group_tag()) << 3 | of(OTHER)
    }

    /// Whether a mode says all of it.
    fn is_mode(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// After chmod.
    fn set_mode(&mut self, mode: u16) {
        let group = self.group_tag();
        for entry in &mut self.0 {
            match entry.tag {
                USER_OBJ => entry.perm = mode >> 6 & 7,
                OTHER => entry.perm = mode & 7,
                tag if tag == group => entry.perm = mode >> 3 & 7,
                _ => {}
            }
        }
    }

    /// For a new file that was to have this mode: what both allow.
    fn narrow(&mut self, mode: u16) {
        self.set_mode(self.mode() & mode);
    }

    /// Whether a user other than the owner may do all of this.
    fn grants(&self, creds: &Creds, group: u32, wanted: u16) -> bool {
        let mask = self.of(MASK).unwrap_or(7);
        let all = |perm: u16| perm & wanted == wanted;
        if let Some(user) = self.0.iter().find(|entry| entry.tag == USER && entry.id == creds.uid) {
            return all(user.perm & mask);
        }
        let ours = |entry: &&AclEntry| entry.tag == GROUP_OBJ && creds.in_group(group) || entry.tag == GROUP && creds.in_group(entry.id);
        let mut groups = self.0.iter().filter(ours).peekable();
        if groups.peek().is_none() {
            return all(self.of(OTHER).unwrap_or(0));
        }
        // One of them has to allow all of it.
        groups.any(|entry| all(entry.perm)) && all(mask)
    }
}

fn entry(bytes: &[u8; ENTRY]) -> std::result::Result<AclEntry, Errno> {
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let (tag, perm, id) = (word(0), word(2), u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
    match tag {
        USER_OBJ | GROUP_OBJ | MASK | OTHER => Ok(AclEntry { tag, perm, id: NOBODY }),
        USER | GROUP if id != NOBODY => Ok(AclEntry { tag, perm, id }),
        _ => Err(Errno::INVAL),
    }
}

/// Whether an attribute is one of the lists.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl FsCore {
    /// A list of a file; damaged ones are an error, as who may what is not known then.
    fn acl(&self, record: &Record, name: &[u8]) -> Result<Option<Acl>> {
        let Some(value) = self.xattr_of(record, name)? else { return Ok(None) };
        let damaged = Error::Malformed { ino: record.ino, what: "an access control list that is none" };
        match Acl::parse(&value) {
            Ok(Some(acl)) if acl.check().is_ok() => Ok(Some(acl)),
            _ => Err(damaged),
        }
    }

    /// EACCES unless all of `wanted` is granted by mode and list.
    pub fn may(&self, creds: &Creds, record: &Record, wanted: u16) -> Result<()> {
        // As Linux: without a bit for the group there is nothing a list could give.
        let listed = creds.checks_access() && record.xattrs && record.uid != creds.uid && record.mode & 0o070 != 0;
        let acl = if listed { self.acl(record, ACCESS)? } else { None };
        match acl {
            None => creds.may(record, wanted),
            Some(acl) if acl.grants(creds, record.gid, wanted) => Ok(()),
            Some(_) => Err(Errno::ACCESS.into()),
        }
    }

    /// Whether entries of a directory may be added.
    pub fn may_add(&self, creds: &Creds, dir: &Record) -> Result<()> {
        self.may(creds, dir, WRITE | EXEC)
    }

    /// Whether an entry may be taken away.
    pub fn may_remove(&self, creds: &Creds, dir: &Record, entry: &Record) -> Result<()> {
        self.may(creds, dir, WRITE | EXEC)?;
        creds.may_remove_by_sticky(dir, entry)
    }

    /// Sets a list (`None`: there is to be none), and the mode with it. Returns whether anything is different.
    pub(super) fn put_acl(
        &self,
        record: &mut Record,
        all: &mut Attributes,
        name: &[u8],
        value: Option<&[u8]>,
        creds: &Creds,
    ) -> Result<bool> {
        let mut acl = value.map_or(Ok(None), Acl::parse)?;
        if record.kind == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        if name == DEFAULT && record.kind != FileKind::Dir {
            return if acl.is_some() { Err(Errno::ACCESS.into()) } else { Ok(false) };
        }
        if !creds.is_owner(record) {
            return Err(Errno::PERM.into());
        }
        let before = (record.mode, all.clone());
        if let Some(set) = &acl {
            set.check()?;
            if name == ACCESS {
                record.mode = record.mode & !0o777 | set.mode();
                if !creds.in_group(record.gid) && !creds.is_capable() {
                    record.mode &= !0o2000;
                }
                if set.is_mode() {
                    acl = None;
                }
            }
        }
        set(all, name, acl.map(|acl| acl.bytes()));
        Ok(before != (record.mode, all.clone()))
    }

    /// The mode of a file was set: its list says the same.
    pub(super) fn follow_mode(&self, record: &mut Record, batch: &mut Batch) -> Result<()> {
        let Some(mut acl) = self.acl(record, ACCESS)? else { return Ok(()) };
        acl.set_mode(record.mode);
        let mut all = self.xattrs(record)?;
        set(&mut all, ACCESS, Some(acl.bytes()));
        self.put_xattrs(batch, record, &all)
    }

    /// What files that are made in a directory inherit; none: the umask counts.
    pub(super) fn default_acl(&self, dir: &Record, kind: FileKind) -> Result<Option<Acl>> {
        if dir.xattrs && kind != FileKind::Symlink { self.acl(dir, DEFAULT) } else { Ok(None) }
    }

    /// Gives a new file what it inherits: its mode is not more than the list allows, and the list not more than the mode.
    pub(super) fn inherit(&self, batch: &mut Batch, record: &mut Record, inherited: Acl) -> Result<()> {
        let mut all = Attributes::new();
        let mut own = inherited.clone();
        own.narrow(record.mode);
        record.mode = record.mode & !0o777 | own.mode();
        if !own.is_mode() {
            set(&mut all, ACCESS, Some(own.bytes()));
        }
        if record.kind == FileKind::Dir {
            set(&mut all, DEFAULT, Some(inherited.bytes()));
        }
        if all.is_empty() { Ok(()) } else { self.put_xattrs(batch, record, &all) }
    }
}

fn set(all: &mut Attributes, name: &[u8], value: Option<Vec<u8>>) {
    let at = all.iter().position(|(other, _)| other == name);
    match (at, value) {
        (Some(at), Some(value)) => all[at].1 = value,
        (None, Some(value)) => all.push((name.to_vec(), value)),
        (Some(at), None) => drop(all.remove(at)),
        (None, None) => {}
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|(tag, perm, id)| AclEntry { tag: *tag, perm: *perm, id: *id }).collect())
    }

    fn user(uid: u32, groups: &[u32]) -> Creds {
        Creds { uid, gid: 100, groups: groups.to_vec(), umask: 0, check: true }
    }

    #[test]
    fn what_is_stored_is_read_and_what_is_no_list_is_refused() {
        let acl = list(&[(USER_OBJ, 7, NOBODY), (USER, 5, 9), (GROUP_OBJ, 1, NOBODY), (MASK, 3, NOBODY), (OTHER, 4, NOBODY)]);
        assert_eq!((Acl::parse(&acl.bytes()), acl.check()), (Ok(Some(acl.clone())), Ok(())));
        assert_eq!((acl.mode(), acl.is_mode()), (0o734, false));
        for len in 1..acl.bytes().len() {
            let cut = Acl::parse(&acl.bytes()[..len]);
            assert!(cut.is_err() || cut.as_ref().is_ok_and(|cut| cut.as_ref().is_none_or(|cut| cut.check().is_err())), "{len}: {cut:?}");
        }
        let wrong: [&[(u16, u16, u32)]; 5] = [
            &[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 8, NOBODY), (OTHER, 0, NOBODY)],
            &[(USER_OBJ, 7, NOBODY), (USER, 7, 1), (GROUP_OBJ, 7, NOBODY), (OTHER, 0, NOBODY)],
            &[(GROUP_OBJ, 7, NOBODY), (USER_OBJ, 7, NOBODY), (OTHER, 0, NOBODY)],
            &[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 7, NOBODY), (OTHER, 0, NOBODY), (OTHER, 0, NOBODY)],
            &[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 7, NOBODY), (MASK, 0, NOBODY)],
        ];
        assert!(wrong.iter().all(|wrong| list(wrong).check() == Err(Errno::INVAL)));
    }

    #[test]
    fn users_groups_and_the_mask_decide_in_their_order() {
        let acl =
            list(&[(USER_OBJ, 7, NOBODY), (USER, 6, 9), (GROUP_OBJ, 4, NOBODY), (GROUP, 2, 50), (MASK, 6, NOBODY), (OTHER, 1, NOBODY)]);
        let may = |uid, groups: &[u32], wanted| acl.grants(&user(uid, groups), 40, wanted);
        assert!(may(9, &[], 6) && !may(9, &[], 1), "by name");
        assert!(may(1, &[40], 4) && may(1, &[50], 2), "by group");
        // No single entry has both.
        assert!(!may(1, &[40, 50], 6) && !may(1, &[40], 1) && may(1, &[], 1) && !may(1, &[], 2));
    }
}
