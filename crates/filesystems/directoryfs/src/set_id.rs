//! When a change of data or owner takes the set-ID bits of a file.
//!
//! The kernel leaves this to the daemon (FUSE_HANDLE_KILLPRIV_V2), which has root's capabilities: the file system below keeps the bits.

use std::os::fd::AsFd;

use fusedev::{Caller, Identity, SET_GID, SET_UID, without_set_id};
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::cache::FileCache;
use crate::directory::{DirectoryFs, proc_path};
use crate::nodes::Node;
use crate::{Result, Stat, xattrs};

impl<C: FileCache> DirectoryFs<C> {
    /// Notes that a file was opened for writing.
    pub fn add_writer(&self, number: u64) {
        *self.set_id.lock().writers.entry(number).or_default() += 1;
    }

    /// Notes that a file that was opened for writing was closed: what is remembered of it is old.
    pub fn remove_writer(&self, number: u64) {
        self.forget_attributes(number);
        let mut state = self.set_id.lock();
        if let Some(count) = state.writers.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                state.writers.remove(&number);
            }
        }
    }

    pub(crate) fn has_writers(&self, number: u64) -> bool {
        self.set_id.lock().writers.contains_key(&number)
    }

    /// Takes the bits that a change of data or owner by this caller takes. Returns whether the mode changed.
    ///
    /// # Errors
    /// As chmod(2).
    pub fn take_set_id(&self, caller: Caller, node: &Node) -> Result<bool> {
        let stat = node.stat()?;
        if stat.is_dir() || stat.mode & (SET_UID | SET_GID) == 0 {
            return Ok(false);
        }
        let kept = |stat: &Stat| without_set_id(stat.mode, caller.is_root() || caller.in_group(stat.gid));
        if kept(&stat) == stat.mode & 0o7777 {
            return Ok(false);
        }
        self.keep_bits(node, &kept)
    }

    /// Sets the mode of a file to what `kept` leaves of it. It reads the mode when nothing delays the change any more: the owner may have
    /// changed it meanwhile, and that must not be undone. Returns whether the mode changed.
    fn keep_bits(&self, node: &Node, kept: &dyn Fn(&Stat) -> u32) -> Result<bool> {
        let path = proc_path(node.as_fd());
        let mut has_changed = false;
        let mut change = || {
            let stat = Stat::newest_of(node.as_fd())?;
            let mode = kept(&stat);
            has_changed = mode != stat.mode & 0o7777;
            if !has_changed {
                return Ok(());
            }
            let set = || rustix::fs::chmod(&*path, Mode::from_raw_mode(mode & 0o7777));
            // Where the file system refuses root, only the owner may. The caller is whoever writes.
            let owner = Identity { uid: stat.uid, gid: stat.gid };
            match set() {
                Err(Errno::ACCESS | Errno::PERM) if self.is_privileged => owner.act(set)?,
                other => other,
            }
        };
        let changed = self.nodes.with_descriptors(|| self.cache.change(node.as_fd(), &mut change));
        self.forget_attributes(node.number());
        changed?;
        Ok(has_changed)
    }

    /// Handles a request that changes no attribute. The kernel does not say which of two it is: `chown(path, -1, -1)`, which takes set-ID
    /// bits and is refused to strangers; or the announcement of a change of data, which takes the bits itself.
    pub(crate) fn owner_to_what_it_is(&self, caller: Caller, node: &Node) -> Result<bool> {
        let stat = node.stat()?;
        if stat.is_dir() || stat.mode & (SET_UID | SET_GID) == 0 {
            return Ok(false);
        }
        let number = node.number();
        if caller.is_root() {
            // A write by root takes file capabilities only, and their removal precedes it.
            let is_announced = self.set_id.lock().capabilities_removed.remove(&number) == Some(caller.pid);
            return if is_announced && self.has_writers(number) { Ok(false) } else { self.take_set_id(caller, node) };
        }
        if caller.uid == stat.uid {
            return self.take_set_id(caller, node);
        }
        let is_taken = without_set_id(stat.mode, caller.in_group(stat.gid)) != stat.mode & 0o7777;
        if is_taken && !self.has_writers(number) { Err(Errno::PERM) } else { Ok(false) }
    }

    /// Checks whether the kernel may remove file capabilities in the name of this caller. It does that before a write and before a change
    /// of the owner, also for those who may do neither.
    pub(crate) fn may_take_capabilities(&self, caller: Caller, node: &Node) -> Result<()> {
        const REMEMBERED_MAX: usize = 1024;
        let stat = node.stat()?;
        if !stat.is_file() || stat.mode & (SET_UID | SET_GID) == 0 {
            return Ok(());
        }
        if caller.is_root() {
            let removed = &mut self.set_id.lock().capabilities_removed;
            if removed.len() >= REMEMBERED_MAX {
                removed.clear();
            }
            removed.insert(node.number(), caller.pid);
            return Ok(());
        }
        let is_taken = without_set_id(stat.mode, caller.in_group(stat.gid)) != stat.mode & 0o7777;
        // A truncation by name needs no open file.
        let may_write = || caller.may_write_by_mode(stat.permissions()) || self.has_xattr(caller, node.as_fd(), xattrs::ACCESS_LIST);
        if !is_taken || caller.uid == stat.uid || self.has_writers(node.number()) || may_write() { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Takes the set-group-ID bit after an access control list was set by a caller who is not in the file's group, as chmod(2) does.
    pub(crate) fn take_foreign_set_gid(&self, caller: Caller, node: &Node) -> Result<()> {
        let stat = node.stat()?;
        if stat.mode & SET_GID == 0 || caller.is_root() || caller.in_group(stat.gid) {
            return Ok(());
        }
        self.keep_bits(node, &|stat| stat.mode & 0o7777 & !SET_GID).map(drop)
    }
}
