//! Attributes of files, and what else the kernel believes of them.

use std::os::fd::AsFd;

use directoryfs::{Node, Stat};
use fusedev::{Caller, SetAttr};
use rustix::io::Errno;

use super::CachedShared;
use crate::filesystem::fuse_rdev;
use crate::options::MountFlags;
use crate::wire::{Attr, AttrChanges};

/// Returns attributes as the kernel gets them. Where the mount lets programs and devices have their power (`-o suid`, `-o dev`), those of a
/// file system that does not allow it have none.
pub fn to_wire_attr(number: u64, stat: &Stat, flags: MountFlags) -> Attr {
    let hides_device = stat.is_powerless && flags.dev;
    let hides_set_id = stat.is_powerless && flags.suid && stat.is_file();
    Attr {
        ino: number,
        size: stat.size,
        blocks: stat.blocks,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        mode: if hides_set_id { stat.mode & !0o6000 } else { stat.mode },
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: if hides_device { 0 } else { fuse_rdev(stat.rdev) },
        blksize: stat.blksize,
    }
}

impl CachedShared {
    /// Reads the attributes of a node, and remembers them for when the slow side is away.
    pub fn newest(&self, node: &Node) -> Result<Stat, Errno> {
        let changes = node.changes();
        let stat = self.fs.stat_of(node)?;
        node.set_last_stat(&stat, changes);
        Ok(stat)
    }

    /// Returns attributes: what is remembered of them if it is fresh or the slow side is away, or else those of the slow side.
    pub fn getattr(&self, caller: Caller, number: u64) -> Result<Stat, Errno> {
        // Of an open file the cache compares its pages with what the slow side says now.
        if !self.pages.is_open(number)
            && let Some(stat) = self.fs.known_attributes(caller, number)
        {
            return Ok(stat);
        }
        if self.side.is_away() {
            return self.fs.last_stat(number).ok_or(Errno::TIMEDOUT);
        }
        let node = self.fs.node(caller, number)?;
        let stat = self.newest(&node)?;
        self.compare(&node, &stat);
        Ok(stat)
    }

    /// Changes attributes, and returns the new ones.
    pub fn setattr(&self, caller: Caller, number: u64, changes: &AttrChanges) -> Result<Stat, Errno> {
        let node = self.fs.node(caller, number)?;
        node.note_changed();
        let set: SetAttr = changes.set;
        if let Some(size) = set.size {
            let open = changes.fh.and_then(|fh| self.opened.get(fh).ok()?.get());
            if !open.as_ref().is_some_and(|open| open.is_written) {
                self.fs.may_open(caller, &node, false, true)?;
            }
            let resized = self.set_len(caller, &node, open.as_deref(), (size, set.kill_set_id));
            self.fs.forget_attributes(number);
            resized?;
        }
        let rest = SetAttr { size: None, ..set };
        if set.size.is_none() || !rest.changes_nothing() {
            self.fs.setattr(caller, number, &rest)?;
        }
        node.note_changed();
        self.newest(&node)
    }

    /// Takes set-ID bits before a change of the data, and lets the kernel know: what it believes of the mode decides about the rights of a
    /// program.
    pub fn take_set_id(&self, caller: Caller, node: &Node) -> Result<(), Errno> {
        if self.fs.take_set_id(caller, node)? {
            self.changed.invalidate_attributes(node.number());
        }
        Ok(())
    }

    /// Makes the cache compare its pages of an open file that seems changed, before the kernel drops its own with these attributes and
    /// reads them again. A file that is not open is compared when it is opened.
    pub fn compare(&self, node: &Node, stat: &Stat) {
        let is_cached = node.is_file() && stat.dev == self.device;
        let compare = || self.fs.with_descriptors(|| self.instance.compare(node.as_fd())) == Ok(true);
        if is_cached && !node.is_compared(stat) && self.pages.is_open(node.number()) && compare() {
            node.set_compared(stat);
        }
    }
}
