//! Changing attributes: mode, owner, size, times, extended attributes.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fusedev::{Caller, SET_GID, SET_UID, SetAttr, SetTime, without_set_id};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::errno::Result;
use crate::names::Attr;
use crate::nodes::NodeKind;
use crate::number;
use crate::open::FileHandle;
use crate::pair::TieredFs;
use crate::path::proc_path;
use crate::report::TierName;
use crate::stat::Stat;

impl TieredFs {
    /// Changes attributes by number; `handle` is the open file that the request named, if any.
    pub fn setattr(&self, caller: Caller, ino: u64, set: &SetAttr, handle: Option<&FileHandle>) -> Result<Attr> {
        self.writable()?;
        if let Some(size) = set.size {
            self.truncate(caller, ino, size, set.kill_set_id, handle)?;
        }
        let gate = self.gate(ino).read();
        let timed = set.atime.is_some() || set.mtime.is_some();
        let is_dir = || self.nodes.with(ino, |node| node.kind == NodeKind::Directory).unwrap_or(ino == number::ROOT);
        let times = (timed && is_dir()).then(|| self.times.hold());
        for (tier, file) in self.handles(ino)? {
            self.may_change(caller, ino, &self.tier(tier).stat_fd(file.as_fd())?, set)?;
            if set.uid.is_some() || set.gid.is_some() {
                self.take_set_id(caller, ino, tier, file.as_fd())?;
            } else if set.changes_nothing() {
                self.owner_to_what_it_is(caller, ino, tier, file.as_fd())?;
            }
            self.noted_at(tier, file.as_fd(), apply(file.as_fd(), set))?;
        }
        drop(times);
        if set.mtime.is_some() || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.dirs.ask_again(ino);
        }
        drop(gate);
        self.getattr(ino)
    }

    /// Compares the caller with the owner of now. The kernel has compared it with the owner that it remembers, which somebody may have
    /// changed in the backing directory since.
    fn may_change(&self, caller: Caller, ino: u64, stat: &Stat, set: &SetAttr) -> Result<()> {
        // A writer takes set-id bits in the name of whoever writes.
        let only_takes_set_id = |mode: u32| mode & !stat.mode & 0o7777 == 0 && (stat.mode & !mode) & 0o1777 == 0;
        let owner = set.uid.is_none() && set.gid.is_none() || caller.owns_or_has(stat.permissions(), CapabilitySet::CHOWN);
        let mode = set.mode.is_none_or(|mode| only_takes_set_id(mode) || caller.owns_or_has(stat.permissions(), CapabilitySet::FOWNER));
        self.known_owner(ino, owner && mode)
    }

    /// Compares the caller of open(2) or truncate(2) with the mode of now. The kernel has compared it with what it remembers, for an hour
    /// by default: whoever makes a file private in the backing directory does not wait for that.
    pub(crate) fn may_open(&self, caller: Caller, ino: u64, stat: &Stat, read: bool, write: bool) -> Result<()> {
        if !self.privileged || caller.may_still_open(stat.permissions(), read, write) {
            return Ok(());
        }
        self.tell_changed(ino);
        Err(Errno::ACCESS)
    }

    fn known_owner(&self, ino: u64, may: bool) -> Result<()> {
        if may {
            return Ok(());
        }
        self.tell_changed(ino);
        Err(Errno::PERM)
    }

    fn truncate(&self, caller: Caller, ino: u64, size: u64, kill: bool, handle: Option<&FileHandle>) -> Result<()> {
        let gate = self.gate(ino).read();
        let open = match handle {
            Some(handle) => Some(handle.inode.clone()),
            None => self.opens.lock().get(&ino).cloned(),
        };
        // Before the change: nobody runs what is new with rights that were given to what was there.
        let take = |tier: TierName, file: &OwnedFd| if kill { self.take_set_id(caller, ino, tier, file.as_fd()) } else { Ok(()) };
        match open.as_ref().and_then(|open| Some((open, open.writable_io()?))) {
            Some((open, io)) => {
                if handle.is_none() {
                    self.may_open(caller, ino, &self.tier(io.tier).stat_fd(io.must_rw()?.as_fd())?, false, true)?;
                }
                take(io.tier, io.must_rw()?)?;
                self.noted_at(io.tier, io.any().as_fd(), rustix::fs::ftruncate(io.must_rw()?, size))?;
                open.note_truncated(size);
            }
            None => {
                let (tier, file) = self.handles(ino)?.remove(0);
                self.may_open(caller, ino, &self.tier(tier).stat_fd(file.as_fd())?, false, true)?;
                let writable = self.noted_at(tier, file.as_fd(), self.tier(tier).reopen(file.as_fd(), OFlags::WRONLY))?;
                take(tier, &writable)?;
                self.noted_at(tier, writable.as_fd(), rustix::fs::ftruncate(&writable, size))?;
            }
        }
        drop(gate);
        Ok(())
    }

    /// Before a change of the data that does not say whether the caller may keep set-id bits (fallocate, copy_file_range): anybody but
    /// root may not.
    pub(crate) fn drop_set_id(&self, caller: Caller, ino: u64, tier: TierName, file: BorrowedFd<'_>) -> Result<()> {
        if caller.is_root() { Ok(()) } else { self.take_set_id(caller, ino, tier, file) }
    }

    /// Takes the bits that a change of data or owner by this caller takes, and lets the kernel know before the change: what it
    /// believes of the mode decides about the rights of a program.
    pub(crate) fn take_set_id(&self, caller: Caller, ino: u64, tier: TierName, file: BorrowedFd<'_>) -> Result<()> {
        let stat = self.tier(tier).stat_fd(file)?;
        if !stat.is_file() || stat.mode & (SET_UID | SET_GID) == 0 {
            return Ok(());
        }
        let kept = without_set_id(stat.mode, caller.is_root() || caller.in_group(stat.gid));
        if kept != stat.mode & 0o7777 {
            // The descriptor may be one that only names the file.
            rustix::fs::chmod(&*proc_path(file), Mode::from_raw_mode(kept))?;
            self.tell_changed(ino);
        }
        Ok(())
    }

    /// A request that changes nothing is one of two things, and the kernel does not say which: `chown(path, -1, -1)`, which takes
    /// set-id bits and is not for strangers then; or it comes before a change of data, which takes the bits by itself.
    fn owner_to_what_it_is(&self, caller: Caller, ino: u64, tier: TierName, file: BorrowedFd<'_>) -> Result<()> {
        let stat = self.tier(tier).stat_fd(file)?;
        if !stat.is_file() || stat.mode & (SET_UID | SET_GID) == 0 {
            return Ok(());
        }
        if caller.is_root() {
            // Root's write takes file capabilities only, and is announced by their removal.
            let announced = self.capabilities_removed.lock().remove(&ino) == Some(caller.pid);
            return if announced && self.has_writers(ino) { Ok(()) } else { self.take_set_id(caller, ino, tier, file) };
        }
        if caller.uid == stat.uid {
            return self.take_set_id(caller, ino, tier, file);
        }
        let taken = without_set_id(stat.mode, caller.in_group(stat.gid)) != stat.mode & 0o7777;
        if taken && !self.has_writers(ino) { Err(Errno::PERM) } else { Ok(()) }
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: u64, name: &OsStr) -> Result<Vec<u8>> {
        if number::is_ours(name.as_bytes()) {
            return Err(Errno::NODATA);
        }
        if name == ACCESS_LIST && self.is_on_both_sides(ino) {
            return self.merged_acl(ino);
        }
        if asked_all_the_time(name) && self.is_bare(ino) {
            return Err(Errno::NODATA);
        }
        if name == "security.capability" && self.config.honours.set_id {
            let (tier, file) = self.primary_handle(ino)?;
            if !self.tier(tier).gives_rights(file.as_fd())? {
                return Err(Errno::NODATA);
            }
        }
        if let Some(value) = self.by_name(ino, |path| crate::copy::value_at(path, name.as_bytes())) {
            return value;
        }
        let (_, file) = self.primary_handle(ino)?;
        crate::copy::value(&proc_path(file.as_fd()), name.as_bytes())
    }

    fn is_on_both_sides(&self, ino: u64) -> bool {
        self.nodes.with(ino, |node| node.kind == NodeKind::Directory && node.backing.inos().iter().all(|half| *half != 0)).unwrap_or(false)
    }

    /// The access control list of a directory on both sides. The kernel checks it in place of the mode, so it must allow no more than both
    /// halves do: where they differ, nobody but the owner is let in.
    fn merged_acl(&self, ino: u64) -> Result<Vec<u8>> {
        let mut halves = Vec::with_capacity(2);
        for (tier, file) in self.handles(ino)? {
            let list = match crate::copy::value(&proc_path(file.as_fd()), ACCESS_LIST.as_bytes()) {
                Err(error) if error == Errno::NODATA || number::unsupported(error) => None,
                list => Some(list?),
            };
            halves.push((self.tier(tier).stat_fd(file.as_fd())?, list));
        }
        match &mut halves[..] {
            // Without lists the modes say all; where files have no owners nobody else has made one of the halves.
            [(_, None), (_, None)] => Err(Errno::NODATA),
            [(ssd, list), (hdd, other)] if (ssd.uid, ssd.gid) != (hdd.uid, hdd.gid) || list != other => {
                // Of the tops of one owner the SSD's says who may.
                let ssd_counts = !self.have_owners() || ino == number::ROOT && ssd.uid == hdd.uid;
                if ssd_counts { list.take().ok_or(Errno::NODATA) } else { Ok(of_owner_alone(ssd.mode & hdd.mode)) }
            }
            [(_, list), ..] => list.take().ok_or(Errno::NODATA),
            [] => Err(Errno::STALE),
        }
    }

    /// Whether a regular file has no extended attributes at all: one look answers for all the names.
    fn is_bare(&self, ino: u64) -> bool {
        let Some(before) = self.nodes.xattr_hint(ino) else { return false };
        if before.is_sure() {
            return true;
        }
        let ours_only = |names: &[u8]| names.split_inclusive(|byte| *byte == 0).all(number::is_ours);
        let names = match self.by_name(ino, crate::copy::list_at) {
            Some(names) => names,
            None => self.primary_handle(ino).and_then(|(_, file)| crate::copy::list(&proc_path(file.as_fd()))),
        };
        let bare = names.is_ok_and(|names| ours_only(&names));
        if bare {
            self.nodes.note_xattr_hint(ino, before);
        }
        bare
    }

    /// Asks by directory and name, the cheap way; `None` when that is not sure to be the file.
    fn by_name<T>(&self, ino: u64, ask: impl FnOnce(&[u8]) -> Result<T>) -> Option<Result<T>> {
        let place = self.nodes.place(ino).filter(|place| !place.nameless && ino != number::ROOT)?;
        let dir = self.open_dir_of(place.parent)?;
        if !dir.is_private(place.tier()) {
            return None;
        }
        let answer = ask(&crate::path::child_path(dir.on(place.tier())?, &place.name));
        // Only we change names while we are mounted: a place that stayed the same was right all the time.
        let sure = !matches!(answer, Err(Errno::NOENT | Errno::ACCESS));
        (sure && self.nodes.place(ino)? == place).then_some(answer)
    }

    /// The names of the extended attributes, each ended by a zero byte; of those only root may read, to root.
    pub fn listxattr(&self, caller: Caller, ino: u64) -> Result<Vec<u8>> {
        let (_, file) = self.primary_handle(ino)?;
        let all = crate::copy::list(&proc_path(file.as_fd()))?;
        let mut shown = Vec::with_capacity(all.len());
        let hidden = |name: &[u8]| number::is_ours(name) || name.starts_with(b"trusted.") && !caller.is_root();
        for name in all.split_inclusive(|byte| *byte == 0).filter(|name| !hidden(name)) {
            shown.extend_from_slice(name);
        }
        Ok(shown)
    }

    /// Sets an extended attribute (on both sides of a directory).
    pub fn setxattr(&self, caller: Caller, ino: u64, name: &OsStr, value: &[u8], flags: u32) -> Result<()> {
        self.writable()?;
        if number::is_ours(name.as_bytes()) {
            return Err(Errno::PERM);
        }
        let _gate = self.gate(ino).read();
        for (tier, file) in self.handles(ino)? {
            let path = proc_path(file.as_fd());
            self.may_change_attribute(caller, ino, name, &self.tier(tier).stat_fd(file.as_fd())?)?;
            let set = rustix::fs::setxattr(&*path, name, value, XattrFlags::from_bits_retain(flags));
            self.noted_at(tier, file.as_fd(), set)?;
            if name == "system.posix_acl_access" {
                self.drop_foreign_set_gid(caller, tier, file.as_fd())?;
            }
        }
        self.acl_changed(ino, name);
        Ok(())
    }

    /// Removes an extended attribute (on both sides of a directory).
    pub fn removexattr(&self, caller: Caller, ino: u64, name: &OsStr) -> Result<()> {
        self.writable()?;
        if number::is_ours(name.as_bytes()) {
            return Err(Errno::NODATA);
        }
        let _gate = self.gate(ino).read();
        for (tier, file) in self.handles(ino)? {
            self.may_change_attribute(caller, ino, name, &self.tier(tier).stat_fd(file.as_fd())?)?;
            if name == "security.capability" {
                self.may_take_capabilities(caller, ino, tier, file.as_fd())?;
            }
            self.noted_at(tier, file.as_fd(), rustix::fs::removexattr(&*proc_path(file.as_fd()), name))?;
        }
        self.acl_changed(ino, name);
        Ok(())
    }

    /// The kernel removes file capabilities by itself before a file is written or gets another owner, also in the name of somebody who
    /// may do neither: see [`TieredFs::owner_to_what_it_is`].
    fn may_take_capabilities(&self, caller: Caller, ino: u64, tier: TierName, file: BorrowedFd<'_>) -> Result<()> {
        const MOST: usize = 1024;
        let stat = self.tier(tier).stat_fd(file)?;
        if !stat.is_file() || stat.mode & (SET_UID | SET_GID) == 0 {
            return Ok(());
        }
        if caller.is_root() {
            let mut removed = self.capabilities_removed.lock();
            if removed.len() >= MOST {
                removed.clear();
            }
            removed.insert(ino, caller.pid);
            return Ok(());
        }
        let taken = without_set_id(stat.mode, caller.in_group(stat.gid)) != stat.mode & 0o7777;
        // A truncation by its name needs no open file.
        let may_write = || caller.may_write_by_mode(stat.permissions()) || value_exists(file, "system.posix_acl_access");
        if !taken || caller.uid == stat.uid || self.has_writers(ino) || may_write() { Ok(()) } else { Err(Errno::PERM) }
    }

    fn acl_changed(&self, ino: u64, name: &OsStr) {
        self.nodes.attributes_changed(ino);
        self.tell_changed(ino);
        if name == "system.posix_acl_default" || name == "system.posix_acl_access" {
            self.dirs.ask_again(ino);
        }
    }

    /// As [`TieredFs::may_change`] for access control lists, which only the owner changes, and for attributes of users, which whoever may
    /// write changes.
    fn may_change_attribute(&self, caller: Caller, ino: u64, name: &OsStr, stat: &Stat) -> Result<()> {
        if name.as_bytes().starts_with(b"user.") && !stat.is_dir() {
            return self.may_open(caller, ino, stat, false, true);
        }
        let is_acl = name.as_bytes().starts_with(b"system.posix_acl_");
        self.known_owner(ino, !is_acl || caller.owns_or_has(stat.permissions(), CapabilitySet::FOWNER))
    }

    /// An ACL set by somebody outside the file's group takes the set-group-id bit, as chmod(2) does.
    fn drop_foreign_set_gid(&self, caller: Caller, tier: TierName, file: BorrowedFd<'_>) -> Result<()> {
        let stat = self.tier(tier).stat_fd(file)?;
        if stat.mode & SET_GID == 0 {
            return Ok(());
        }
        if caller.is_root() || caller.in_group(stat.gid) {
            return Ok(());
        }
        rustix::fs::chmod(&*proc_path(file), Mode::from_raw_mode(stat.mode & 0o7777 & !SET_GID))
    }

    pub(crate) fn primary_handle(&self, ino: u64) -> Result<(TierName, Arc<OwnedFd>)> {
        Ok(self.handles(ino)?.remove(0))
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        let (_, file) = self.primary_handle(ino)?;
        let target = rustix::fs::readlinkat(&*file, c"", Vec::with_capacity(256))?;
        Ok(target.into_bytes())
    }
}

pub(crate) fn value_exists(file: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::getxattr_query(&*proc_path(file), name).is_ok()
}

const ACCESS_LIST: &str = "system.posix_acl_access";

/// An access control list (linux/posix_acl_xattr.h) that gives the owner what the mode does, and nobody else anything.
fn of_owner_alone(mode: u32) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NOBODY: u32 = u32::MAX;
    let (owner, group, other) = (1_u16, 4_u16, 32_u16);
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights) in [(owner, mode >> 6 & 7), (group, 0), (other, 0)] {
        list.extend(tag.to_le_bytes());
        list.extend((rights as u16).to_le_bytes());
        list.extend(NOBODY.to_le_bytes());
    }
    list
}

/// The kernel reads these at each first write, ls(1) and cp(1) for each file. File systems list them.
fn asked_all_the_time(name: &OsStr) -> bool {
    matches!(name.as_bytes(), b"security.capability" | b"security.selinux" | b"system.posix_acl_access")
}

/// Owner before mode: a change of owner takes set-id bits, as it does on any file system. A change of nothing
/// is a change of owner to what it is, and updates the time of the last change: see [`TieredFs::owner_to_what_it_is`].
fn apply(file: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        rustix::fs::chownat(file, c"", set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw), AtFlags::EMPTY_PATH)?;
    }
    if set.changes_nothing() {
        let stat = rustix::fs::fstat(file)?;
        let set_id = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & (SET_UID | SET_GID) != 0;
        // Bits that are still there stay, and chown(2) would take them.
        if !set_id {
            rustix::fs::chownat(file, c"", None, None, AtFlags::EMPTY_PATH)?;
        }
    }
    if let Some(mode) = set.mode {
        rustix::fs::chmod(&*proc_path(file), Mode::from_raw_mode(mode & 0o7777))?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let times = Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
        crate::copy::set_times(file, &times)?;
    }
    Ok(())
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetTime::At(sec, nsec)) => Timespec { tv_sec: sec, tv_nsec: i64::from(nsec) as _ },
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_access_list_of_two_halves_allows_no_more_than_both() {
        use std::os::unix::fs::{PermissionsExt, chown};

        use crate::testing::TestPair;

        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let fs = TestPair::with(&["ssd/d/x", "hdd/d/y"]);
        // User 4343 has all rights, which the mode shows as the group's.
        let entries = [(1_u16, 7_u16, u32::MAX), (2, 7, 4343), (4, 0, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        let bytes = |(tag, rights, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat();
        let list = [&2_u32.to_le_bytes()[..], &entries.map(bytes).concat()].concat();
        let set = |half: &str| rustix::fs::setxattr(fs.at(half), ACCESS_LIST, &list, XattrFlags::empty());
        if set("ssd/d") == Err(Errno::OPNOTSUPP) {
            return println!("this file system has no access control lists: nothing is tested");
        }
        std::fs::set_permissions(fs.at("hdd/d"), std::fs::Permissions::from_mode(0o770)).expect("set");
        let d = fs.look_up("d");
        let seen = || fs.getxattr(d, OsStr::new(ACCESS_LIST));
        assert_eq!(seen(), Ok(of_owner_alone(0o700)), "only one half has it");
        set("hdd/d").expect("set");
        assert_eq!(seen(), Ok(list.clone()), "both have it");
        chown(fs.at("hdd/d"), None, Some(4444)).expect("given");
        assert_eq!(seen(), Ok(of_owner_alone(0o700)), "the halves are of two groups");
        chown(fs.at("hdd/d"), None, Some(0)).expect("given back");
        rustix::fs::removexattr(fs.at("ssd/d"), ACCESS_LIST).expect("removed");
        assert_eq!(seen(), Ok(of_owner_alone(0o700)), "only the other half has it");
        rustix::fs::removexattr(fs.at("hdd/d"), ACCESS_LIST).expect("removed");
        assert_eq!(seen(), Err(Errno::NODATA));
    }
}
