//! Names: lookups, links, renames and removals.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use fusedev::Caller;
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::cache::{FileCache, RemovedFile};
use crate::directory::{DirectoryFs, open_name, proc_path};
use crate::identity::InodeId;
use crate::nodes::Node;
use crate::remembered::{Moment, Target};
use crate::{Result, Stat};

const STICKY: u32 = 0o1000;
/// The longest names that file systems have; some have shorter ones.
const NAME_MAX: usize = 143;

/// Refuses names that are no names of one directory.
pub(crate) fn check_name(name: &OsStr) -> Result<()> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(Errno::INVAL),
        name if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// A file that was looked up.
#[derive(Clone, Debug)]
pub struct Found {
    /// The inode number that users see.
    pub number: u64,
    /// The attributes of the file.
    pub stat: Stat,
    /// The file, unless the answer was remembered and nobody has opened it yet.
    pub node: Option<Node>,
}

impl From<(Node, Stat)> for Found {
    fn from((node, stat): (Node, Stat)) -> Found {
        Found { number: node.number(), stat, node: Some(node) }
    }
}

impl<C: FileCache> DirectoryFs<C> {
    /// Looks up a name, and adds one reference of the kernel to what it stands for.
    ///
    /// # Errors
    /// ENOENT, or as openat(2).
    pub fn lookup(&self, caller: Caller, parent: u64, name: &OsStr) -> Result<Found> {
        check_name(name)?;
        if let Some(known) = self.known_name(caller, parent, name) {
            return known;
        }
        let dir = self.node(caller, parent)?;
        self.read_as(caller, |moment| self.find(&dir, name, moment)).map(Found::from)
    }

    /// Looks up a name in what is remembered, and adds one reference of the kernel. None: nothing is remembered of it.
    fn known_name(&self, caller: Caller, parent: u64, name: &OsStr) -> Option<Result<Found>> {
        if name.len() > NAME_MAX {
            // The file system has an error for it.
            return None;
        }
        let known = self.remembered.as_ref()?.name(self.nodes.known(parent)?.id(), name)?;
        let found = match known.what {
            None => Err(Errno::NOENT),
            Some((id, stat)) => {
                if stat.has_power() || self.nodes.number_of_id(id).is_some_and(|number| self.has_writers(number)) {
                    return None;
                }
                Ok(Found { number: self.nodes.remember_unopened(id, &stat, parent, name), stat, node: None })
            }
        };
        if !known.is_fresh {
            self.check_later(caller, parent);
        }
        Some(found)
    }

    /// Adds one reference of the kernel to what a name stands for, and remembers it, unless `moment` is none.
    pub(crate) fn find(&self, dir: &Node, name: &OsStr, moment: Option<Moment>) -> Result<(Node, Stat)> {
        // A file that was removed between the two calls has no link. Some file systems count none at all.
        const TRIES: u32 = 3;
        let mut tries = 0;
        loop {
            let file = match self.nodes.with_descriptors(|| open_name(dir.as_fd(), name)) {
                Err(Errno::NOENT) => {
                    self.remember_name(dir.id(), name, Target::Absent, moment);
                    return Err(Errno::NOENT);
                }
                file => file?,
            };
            let mut stat = Stat::of(file.as_fd())?;
            tries += 1;
            if stat.nlink == 0 && tries < TRIES {
                continue;
            }
            let has_newer_data = stat.is_file() && self.correct(file.as_fd(), &mut stat)?;
            let node = self.nodes.remember(file, &stat, dir.number(), name);
            self.remember_name(dir.id(), name, Target::Inode(InodeId::of(&stat)), moment);
            if !has_newer_data {
                self.remember_attributes(&node, &stat, moment);
            }
            return Ok((node, stat));
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// As readlinkat(2).
    pub fn readlink(&self, caller: Caller, number: u64) -> Result<Vec<u8>> {
        if let Some(target) = self.known_link(number) {
            return Ok(target);
        }
        let node = self.node(caller, number)?;
        self.read_as(caller, |moment| {
            let target = rustix::fs::readlinkat(node.as_fd(), c"", Vec::with_capacity(256))?.into_bytes();
            self.remember_link(&node, &target, moment);
            Ok(target)
        })
    }

    /// Adds a name to a file, and one reference of the kernel.
    ///
    /// # Errors
    /// As linkat(2).
    pub fn link(&self, caller: Caller, number: u64, parent: u64, name: &OsStr) -> Result<(Node, Stat)> {
        check_name(name)?;
        let (node, dir) = (self.node(caller, number)?, self.node(caller, parent)?);
        let stat = node.stat()?;
        if stat.nlink == 0 && stat.is_file() {
            // The kernel below would link a file of O_TMPFILE; by its number this one is gone.
            return Err(Errno::NOENT);
        }
        let mut link = || rustix::fs::linkat(rustix::fs::CWD, &*proc_path(node.as_fd()), dir.as_fd(), name, AtFlags::SYMLINK_FOLLOW);
        let mut change = || self.also_as_caller(caller, &mut link);
        let linked = self.nodes.with_descriptors(|| self.cache.change(node.as_fd(), &mut change));
        self.forget_attributes(number);
        self.note_name_made(&dir, name, &linked);
        linked?;
        self.remember_name(dir.id(), name, Target::Inode(node.id()), self.moment());
        // The link is there, so the call succeeds. The new name may already be another file's, or have another inode number, as it does
        // where a file system numbers names: the kernel finds out at its next lookup.
        self.note_name(caller, &dir, name);
        self.nodes.add_lookup(&node);
        let linked = self.stat_of(&node).unwrap_or(Stat { nlink: stat.nlink + 1, ..stat });
        Ok((node, linked))
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// As unlinkat(2).
    pub fn unlink(&self, caller: Caller, parent: u64, name: &OsStr) -> Result<()> {
        check_name(name)?;
        let dir = self.node(caller, parent)?;
        let _noted = self.nodes.removals.read();
        let unlink = || self.nodes.with_descriptors(|| self.cache.unlink(dir.as_fd(), name));
        let named = self.inode_named(caller, &dir, name);
        let _held = self.hold_named(caller, named);
        let removed = self.also_as_caller(caller, || self.bound_by_sticky(caller, &[dir.as_fd()], unlink));
        self.note_name_removed(&dir, name, &removed);
        self.forget_inode(named);
        self.note_removed(removed?);
        Ok(())
    }

    /// Keeps the data of a removed file as long as the kernel knows the file.
    fn note_removed(&self, removed: Option<RemovedFile>) {
        if let Some(RemovedFile { stat, data }) = removed {
            self.nodes.removed(&stat, data);
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As unlinkat(2).
    pub fn rmdir(&self, caller: Caller, parent: u64, name: &OsStr) -> Result<()> {
        check_name(name)?;
        let dir = self.node(caller, parent)?;
        let remove = || self.cache.rmdir(dir.as_fd(), name);
        let named = self.inode_named(caller, &dir, name);
        let _held = self.hold_named(caller, named);
        let removed = self.also_as_caller(caller, || self.bound_by_sticky(caller, &[dir.as_fd()], remove));
        self.note_name_removed(&dir, name, &removed);
        self.forget_inode(named);
        removed
    }

    /// Renames `from` to `to`, each a directory and a name. Returns the inode numbers of what has the names now, where the kernel knows
    /// them: of `to`, and after an exchange also of `from`.
    ///
    /// # Errors
    /// As renameat2(2); EINVAL for flags that FUSE does not pass on.
    pub fn rename(&self, caller: Caller, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags) -> Result<[Option<u64>; 2]> {
        check_name(from.1)?;
        check_name(to.1)?;
        if !(flags - RenameFlags::NOREPLACE - RenameFlags::EXCHANGE).is_empty() {
            return Err(Errno::INVAL);
        }
        let (old, new) = (self.node(caller, from.0)?, self.node(caller, to.0)?);
        if from.0 != to.0 {
            self.may_move_away(caller, old.as_fd(), from.1)?;
            if flags.contains(RenameFlags::EXCHANGE) {
                self.may_move_away(caller, new.as_fd(), to.1)?;
            }
        }
        let removal = self.nodes.removals.read();
        let rename = || self.nodes.with_descriptors(|| self.cache.rename((old.as_fd(), from.1), (new.as_fd(), to.1), flags));
        let named = (self.inode_named(caller, &old, from.1), self.inode_named(caller, &new, to.1));
        let _held = self.hold_named(caller, named.1);
        let renamed = self.also_as_caller(caller, || self.bound_by_sticky(caller, &[old.as_fd(), new.as_fd()], rename));
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        self.note_renamed((&old, from.1), (&new, to.1), renamed.is_ok() && !is_exchange);
        self.forget_inode(named.0);
        self.forget_inode(named.1);
        self.note_removed(renamed?);
        drop(removal);
        Ok([self.note_name(caller, &new, to.1), if is_exchange { self.note_name(caller, &old, from.1) } else { None }])
    }

    /// Records what has a name now, so that the file is found again, and returns its number if the kernel knows it.
    fn note_name(&self, caller: Caller, dir: &Node, name: &OsStr) -> Option<u64> {
        let open = || self.also_as_caller(caller, || open_name(dir.as_fd(), name));
        let file = self.nodes.with_descriptors(open).ok()?;
        self.nodes.set_location(&Stat::of(file.as_fd()).ok()?, dir.number(), name)
    }

    /// Refuses to give a directory another parent in the name of a caller who may not write it. The kernel has checked the directory that
    /// it believes to have the name; another program may have given the name to another directory since.
    fn may_move_away(&self, caller: Caller, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        if !self.is_privileged || caller.is_root() {
            return Ok(());
        }
        let file = self.nodes.with_descriptors(|| self.also_as_caller(caller, || open_name(dir, name)))?;
        let stat = Stat::of(file.as_fd())?;
        let may = || caller.may_write_directory(stat.permissions()) || self.has_xattr(caller, file.as_fd(), crate::xattrs::ACCESS_LIST);
        if !stat.is_dir() || may() { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Changes names of sticky directories without root's right to ignore the owner. The kernel has compared the owner of what it
    /// believes to have the name; another user's file may have it by now.
    fn bound_by_sticky<T>(&self, caller: Caller, dirs: &[BorrowedFd<'_>], change: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_privileged && !caller.is_root() {
            for dir in dirs {
                if rustix::fs::fstat(dir)?.st_mode & STICKY != 0 {
                    return caller.identity().act_without(CapabilitySet::FOWNER, change)?;
                }
            }
        }
        change()
    }
}
