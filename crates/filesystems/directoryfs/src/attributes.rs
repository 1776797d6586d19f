//! Attributes: reading and changing them.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use fusedev::{Caller, SetAttr, SetTime, without_set_id};
use rustix::fs::{AtFlags, Gid, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::cache::FileCache;
use crate::directory::{DirectoryFs, proc_path};
use crate::nodes::Node;
use crate::remembered::Known;
use crate::{Result, Stat};

impl Node {
    /// Returns how often the file was changed by calls of this process, to be given to [`Node::set_last_stat`].
    pub fn changes(&self) -> u64 {
        self.record.last_stat.lock().changes()
    }

    /// Remembers attributes that were read after `changes` was, unless the file was changed meanwhile: they may be older than that.
    pub fn set_last_stat(&self, stat: &Stat, changes: u64) {
        self.record.last_stat.lock().set(stat, changes);
    }

    /// Notes that the file was written up to this offset.
    pub fn note_written(&self, end: u64) {
        self.record.last_stat.lock().note_written(end);
    }

    /// Notes that the file was changed in another way: what is known of its attributes is old.
    pub fn note_changed(&self) {
        self.record.last_stat.lock().note_changed();
    }
}

impl<C: FileCache> DirectoryFs<C> {
    /// Returns the attributes of a known inode that are remembered, however old, or were read last ([`Node::set_last_stat`]). Never waits
    /// for the file system.
    pub fn last_stat(&self, number: u64) -> Option<Stat> {
        let record = self.nodes.known(number)?;
        let remembered = self.remembered.as_ref().and_then(|remembered| remembered.attributes(record.id()));
        let remembered = remembered.filter(|_| !self.has_writers(number)).map(|known| known.what);
        remembered.or_else(|| record.last_stat.lock().get())
    }

    /// Notes that a known inode is being changed: what [`DirectoryFs::last_stat`] returns is old.
    pub fn note_changed(&self, number: u64) {
        if let Some(record) = self.nodes.known(number) {
            record.last_stat.lock().note_changed();
        }
    }

    /// Reads the attributes of a file, with the size and time of data that the cache has not written back.
    ///
    /// # Errors
    /// ESTALE, or as statx(2).
    pub fn getattr(&self, caller: Caller, number: u64) -> Result<Stat> {
        self.stat_of(&self.node(caller, number)?)
    }

    /// Returns the attributes of a file that are remembered, however old, and has old ones read again in the background. None: nothing is
    /// remembered, or the file is open for writing.
    pub fn known_attributes(&self, caller: Caller, number: u64) -> Option<Stat> {
        let record = self.nodes.known(number)?;
        let is_believed = |known: &Known<Stat>| !known.what.has_power() && !self.has_writers(number);
        let known = self.remembered.as_ref()?.attributes(record.id()).filter(is_believed)?;
        if !known.is_fresh {
            // With all other names of its directory; what one directory is itself is read with its own.
            let parent = if known.what.is_dir() { number } else { record.location.lock().parent };
            self.check_later(caller, parent);
        }
        Some(known.what)
    }

    /// Returns the attributes of a file that are remembered and were read within the time to live.
    pub fn fresh_attributes(&self, number: u64) -> Option<Stat> {
        let record = self.nodes.known(number)?;
        let is_believed = |known: &Known<Stat>| !known.what.has_power() && !self.has_writers(number);
        let known = self.remembered.as_ref()?.attributes(record.id()).filter(is_believed)?;
        known.is_fresh.then_some(known.what)
    }

    /// Returns the attributes of a known file that are remembered, however old, as the file system does not reply.
    pub fn old_attributes(&self, number: u64) -> Option<Stat> {
        let record = self.nodes.known(number)?;
        let is_believed = |known: &Known<Stat>| !known.what.has_power() && !self.has_writers(number);
        Some(self.remembered.as_ref()?.attributes(record.id()).filter(is_believed)?.what)
    }

    /// Returns whether a known file is found again after another program has changed it: it is open below, or has a time of birth.
    pub fn is_found_again(&self, number: u64) -> bool {
        self.held(number).is_some() || self.nodes.known(number).is_some_and(|record| record.id().is_unique())
    }

    /// Reads the attributes of a known file now, with one question to the file system: less than an open takes. None: the cache has newer
    /// data of the file, or it gives power to those who open it, or it is open for writing.
    ///
    /// # Errors
    /// As [`DirectoryFs::node`], or as statx(2).
    pub fn look_again(&self, caller: Caller, number: u64) -> Result<Option<Stat>> {
        let node = self.node(caller, number)?;
        let moment = self.moment();
        let mut stat = Stat::newest_of(node.as_fd())?;
        if stat.is_file() && self.correct(node.as_fd(), &mut stat)? || stat.has_power() || self.has_writers(number) {
            return Ok(None);
        }
        self.remember_attributes(&node, &stat, moment);
        Ok(Some(stat))
    }

    /// Returns the number by which the cache knows the data of a known file, and the file's path below the top directory when it was last
    /// seen, if both are remembered.
    pub fn known_data(&self, number: u64) -> Option<(u64, PathBuf)> {
        let record = self.nodes.known(number)?;
        let key = self.remembered.as_ref()?.of_file(record.id(), |file| file.data_key)?;
        Some((key, self.nodes.path_of(&record)?))
    }

    /// Returns a known file, if it is open below.
    pub fn held(&self, number: u64) -> Option<Node> {
        self.nodes.held(number)
    }

    /// Returns whether the kernel's pages of a known file are of this version of it.
    pub fn is_cached(&self, number: u64, stat: &Stat) -> bool {
        self.nodes.known(number).is_some_and(|record| record.is_cached(stat))
    }

    /// Remembers the version of a known file that the kernel's pages are of.
    pub fn set_cached(&self, number: u64, stat: &Stat) {
        if let Some(record) = self.nodes.known(number) {
            record.set_cached(stat);
        }
    }

    /// Reads the attributes of a node as [`DirectoryFs::getattr`] does.
    ///
    /// # Errors
    /// As statx(2).
    pub fn stat_of(&self, node: &Node) -> Result<Stat> {
        let moment = self.moment();
        let mut stat = node.stat()?;
        let has_newer_data = stat.is_file() && self.correct(node.as_fd(), &mut stat)?;
        if !has_newer_data {
            self.remember_attributes(node, &stat, moment);
        }
        Ok(stat)
    }

    /// Sets the size and the time of data that the cache has not written back. Returns whether it has such data.
    pub(crate) fn correct(&self, file: BorrowedFd<'_>, stat: &mut Stat) -> Result<bool> {
        self.cache.correct(file, stat)
    }

    /// Changes attributes, but not the size: that belongs to whoever has the data.
    ///
    /// # Errors
    /// EPERM, or as chown(2), chmod(2), utimensat(2).
    pub fn setattr(&self, caller: Caller, number: u64, set: &SetAttr) -> Result<()> {
        let node = self.node(caller, number)?;
        self.may_change(caller, &node.stat()?, set)?;
        if set.uid.is_some() || set.gid.is_some() {
            self.take_set_id(caller, &node)?;
        } else if set.changes_nothing() {
            self.owner_to_what_it_is(caller, &node)?;
        }
        let file = node.as_fd();
        let mut change = || self.also_as_caller(caller, || apply(file, set));
        let is_timed = set.atime.is_some() || set.mtime.is_some();
        let has_data = is_timed && node.is_file();
        let changed = self.nodes.with_descriptors(|| match has_data {
            true => self.cache.change_times(file, &mut change),
            false => self.cache.change(file, &mut change),
        });
        self.forget_attributes(number);
        changed
    }

    /// Compares the caller with the present owner. The kernel has compared the owner that it remembers.
    fn may_change(&self, caller: Caller, stat: &Stat, set: &SetAttr) -> Result<()> {
        let file = stat.permissions();
        // A writer takes set-ID bits in the name of whoever writes.
        let only_takes_set_id = |mode: u32| mode & !stat.mode & 0o7777 == 0 && (stat.mode & !mode) & 0o1777 == 0;
        let owner = set.uid.is_none() && set.gid.is_none() || caller.owns_or_has(file, CapabilitySet::CHOWN);
        let mode = set.mode.is_none_or(|mode| only_takes_set_id(mode) || caller.owns_or_has(file, CapabilitySet::FOWNER));
        if owner && mode { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Compares the caller of open(2) or truncate(2) with the present mode. The kernel has compared the mode that it remembers.
    ///
    /// # Errors
    /// EACCES: the file may not be opened any more.
    pub fn may_open(&self, caller: Caller, node: &Node, read: bool, write: bool) -> Result<()> {
        if !self.is_privileged || caller.is_root() { Ok(()) } else { self.may_open_with(caller, &node.stat()?, read, write) }
    }

    /// Compares the caller of open(2) with these attributes of a file.
    ///
    /// # Errors
    /// EACCES: the file may not be opened.
    pub fn may_open_with(&self, caller: Caller, stat: &Stat, read: bool, write: bool) -> Result<()> {
        let may = !self.is_privileged || caller.is_root() || caller.may_still_open(stat.permissions(), read, write);
        if may { Ok(()) } else { Err(Errno::ACCESS) }
    }
}

/// Changes the owner before the mode: a change of the owner takes set-ID bits, as on any file system.
fn apply(file: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        rustix::fs::chownat(file, c"", set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw), AtFlags::EMPTY_PATH)?;
    }
    if set.changes_nothing() {
        // A change of the owner to what it is updates the time of the last change, and takes set-ID bits, which may have to stay. It never
        // takes the set-group-ID bit of a file that the group may not execute.
        let stat = Stat::of(file)?;
        if !stat.is_file() || without_set_id(stat.mode, true) == stat.mode & 0o7777 {
            rustix::fs::chownat(file, c"", None, None, AtFlags::EMPTY_PATH)?;
        }
    }
    if let Some(mode) = set.mode {
        rustix::fs::chmod(&*proc_path(file), rustix::fs::Mode::from_raw_mode(mode & 0o7777))?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        set_times(file, &Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) })?;
    }
    Ok(())
}

/// Sets times by descriptor. Kernels before 5.8 know no empty path here; a symbolic link has times only by it.
fn set_times(file: BorrowedFd<'_>, times: &Timestamps) -> Result<()> {
    match rustix::fs::utimensat(file, c"", times, AtFlags::EMPTY_PATH) {
        Err(Errno::INVAL) => rustix::fs::utimensat(rustix::fs::CWD, &*proc_path(file), times, AtFlags::empty()),
        set => set,
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetTime::At(sec, nsec)) => Timespec { tv_sec: sec, tv_nsec: i64::from(nsec) as _ },
    }
}
