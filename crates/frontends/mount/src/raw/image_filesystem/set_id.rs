//! What a write or a change of the owner takes from a file: set-id bits and capabilities.

use fuser::WriteFlags;
use rawfs::fs::{Creds, Error, FileKind, Node, SetAttr};
use rustix::io::Errno;

use super::{GROUP_EXEC, ImageFilesystem, OpenImageFile, SET_GID, SET_ID, SET_UID, attr, creds, is_of_group};
use crate::wire::{Attr, Request};

impl ImageFilesystem {
    /// Whoever is not the superuser takes a file's set-id bits by changing its content or its owner, as ext4 does it; the kernel leaves
    /// that to us.
    pub(super) fn lose_set_id(&self, node: &Node, req: &Request<'_>) -> Result<(), Error> {
        let stat = node.stat()?;
        if stat.kind != FileKind::File || stat.mode & SET_ID == 0 {
            return Ok(());
        }
        let group = if stat.mode & GROUP_EXEC != 0 || stat.mode & SET_GID != 0 && !is_of_group(req, stat.gid) { SET_GID } else { 0 };
        let kept = stat.mode & 0o7777 & !(SET_UID | group);
        if kept == stat.mode & 0o7777 {
            return Ok(());
        }
        self.inner.fs.set_attr(node, &SetAttr { mode: Some(kept as u16), ..SetAttr::default() }, &creds(req, 0))?;
        // What the kernel believes of the mode decides about the rights of a program.
        self.inner.changed.invalidate_attributes(stat.ino);
        Ok(())
    }

    /// A request that changes nothing is one of two things, and the kernel does not say which: `chown(path, -1, -1)`, which takes
    /// set-id bits and is not for strangers then; or it comes before a change of data, which takes the bits by itself. Answers
    /// whether the owner is to be set.
    fn is_change_of_owner(&self, node: &Node, req: &Request<'_>) -> Result<bool, Error> {
        let stat = node.stat()?;
        if stat.kind != FileKind::File || stat.mode & SET_ID == 0 {
            return Ok(true);
        }
        if req.uid() == 0 {
            // Root's write takes file capabilities only, and is announced by their removal.
            let announced = self.inner.set_id.capabilities_removed.lock().remove(&stat.ino) == Some(req.pid());
            return Ok(!(announced && self.has_writers(stat.ino)));
        }
        if req.uid() == stat.uid {
            return Ok(true);
        }
        let taken = stat.mode & SET_UID != 0 || stat.mode & GROUP_EXEC != 0 || !is_of_group(req, stat.gid);
        if taken && !self.has_writers(stat.ino) { Err(Errno::PERM.into()) } else { Ok(false) }
    }

    /// The kernel removes file capabilities by itself before a file is written or gets another owner, also in the name of somebody who
    /// may do neither.
    pub(super) fn may_take_capabilities(&self, node: &Node, req: &Request<'_>) -> Result<(), Error> {
        const MOST: usize = 1024;
        let stat = node.stat()?;
        if stat.kind != FileKind::File || stat.mode & SET_ID == 0 {
            return Ok(());
        }
        if req.uid() == 0 {
            let mut removed = self.inner.set_id.capabilities_removed.lock();
            if removed.len() >= MOST {
                removed.clear();
            }
            removed.insert(stat.ino, req.pid());
            return Ok(());
        }
        let member = is_of_group(req, stat.gid);
        let taken = stat.mode & SET_UID != 0 || stat.mode & GROUP_EXEC != 0 || !member;
        // A truncation by its name needs no open file.
        let by_mode = stat.mode & if member { 0o020 } else { 0o002 } != 0;
        let may_write = || by_mode || self.inner.fs.get_xattr(node, b"system.posix_acl_access", &creds(req, 0)).is_ok();
        if !taken || req.uid() == stat.uid || self.has_writers(stat.ino) || may_write() { Ok(()) } else { Err(Errno::PERM.into()) }
    }

    fn has_writers(&self, ino: u64) -> bool {
        self.inner.set_id.writers.lock().contains_key(&ino)
    }

    /// An access control list set by somebody outside the file's group takes the set-group-id bit, as chmod(2) does.
    pub(super) fn lose_foreign_set_gid(&self, node: &Node, req: &Request<'_>) -> Result<(), Error> {
        let stat = node.stat()?;
        if stat.mode & SET_GID == 0 || is_of_group(req, stat.gid) {
            return Ok(());
        }
        let kept = stat.mode & 0o7777 & !SET_GID;
        self.inner.fs.set_attr(node, &SetAttr { mode: Some(kept as u16), ..SetAttr::default() }, &creds(req, 0))
    }

    pub(super) fn change(&self, req: &Request<'_>, node: &Node, size: Option<(u64, bool)>, set: &SetAttr) -> Result<Attr, Error> {
        let creds = creds(req, 0);
        let mut set = *set;
        if set.owner == Some((None, None)) && !self.is_change_of_owner(node, req)? {
            set.owner = None;
        }
        let kills = size.is_some_and(|(_, kill)| kill);
        if kills || set.owner.is_some() && creds.uid != 0 {
            self.lose_set_id(node, req)?;
        }
        if let Some((size, _)) = size {
            self.inner.fs.set_len(node, size, &creds)?;
        }
        if set != SetAttr::default() {
            self.inner.fs.set_attr(node, &set, &creds)?;
        }
        node.stat().map(|stat| attr(&stat))
    }

    pub(super) fn write_now(
        &self,
        req: &Request<'_>,
        opened: &OpenImageFile,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, Error> {
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.lose_set_id(opened.file.node(), req)?;
        }
        // The kernel sends a direct write unchanged; before other writes it clears the bits itself.
        if flags.contains(WriteFlags::FUSE_WRITE_LOCKOWNER) {
            self.lose_capabilities(opened.file.node())?;
        }
        opened.file.write_at(data, offset)
    }

    /// A change of the content removes them, whichever process makes it.
    fn lose_capabilities(&self, node: &Node) -> Result<(), Error> {
        match self.inner.fs.remove_xattr(node, b"security.capability", &Creds { check: false, ..Creds::root() }) {
            Err(error) if error.errno() == Errno::NODATA => Ok(()),
            removed => removed,
        }
    }
}
