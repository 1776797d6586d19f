//! New names: files, directories, links and special files.
//!
//! What is new goes to the SSD; to the HDD when a rule says so or the SSD is full or cannot be written.
//!
//! A new file is created by its owner, the caller. It never belongs to root first: between a creation and a change of the owner by
//! name, whoever may write the directory below could put another file there.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fusedev::Identity;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::dirs::DirPair;
use crate::errno::Result;
use crate::names::Attr;
use crate::nodes::NodeKind;
use crate::number::ROOT;
use crate::open::{FileHandle, OpenDescriptors, OpenInode};
use crate::pair::TieredFs;
use crate::path::{HIDDEN, proc_path, valid_name};
use crate::report::TierName;
use crate::stat::Stat;
use fusedev::Caller;
use fusedev::SET_GID;

/// Describes the file, directory or link to create.
#[derive(Clone, Copy, Debug)]
pub enum NewNode<'a> {
    /// A directory with these permission bits.
    Directory(u32),
    /// A file, pipe, socket or device: type and permission bits, device number.
    Node(u32, u64),
    /// A symbolic link to this target.
    Symlink(&'a OsStr),
}

impl TieredFs {
    /// Makes a directory, special file or symbolic link; adds a reference like a lookup.
    pub fn make(&self, caller: Caller, parent: u64, name: &OsStr, what: NewNode<'_>, umask: u32) -> Result<Attr> {
        self.may_create(parent, name)?;
        let (tier, stat) = self.on_a_tier(parent, name, |dir, tier| {
            let fd = dir.must(tier)?;
            let masked = |mode: u32| if dir.has_default_acl(tier) { mode } else { mode & !umask };
            self.as_caller(caller, || match what {
                NewNode::Directory(mode) => rustix::fs::mkdirat(fd, name, Mode::from_raw_mode(masked(mode & 0o7777))),
                NewNode::Node(mode, rdev) => {
                    let bits = masked(self.without_foreign_set_gid(caller, fd, mode & 0o7777)?);
                    let kind = match FileType::from_raw_mode(mode) {
                        FileType::Unknown => FileType::RegularFile,
                        kind => kind,
                    };
                    rustix::fs::mknodat(fd, name, kind, Mode::from_raw_mode(bits), rdev)
                }
                NewNode::Symlink(target) => rustix::fs::symlinkat(target, fd, name),
            })?;
            self.tier(tier).stat(fd, name)
        })?;
        Ok(self.made(parent, name, tier, stat))
    }

    /// Makes and opens a regular file. EEXIST: there is one; ESTALE, unless `exclusive`: the same, and the caller has to look it up and to
    /// check whether it may be opened.
    pub fn create(&self, caller: Caller, parent: u64, name: &OsStr, mode: u32, umask: u32, exclusive: bool) -> Result<(Attr, FileHandle)> {
        self.may_create(parent, name)?;
        let made = self.on_a_tier(parent, name, |dir, tier| {
            let masked = if dir.has_default_acl(tier) { mode } else { mode & !umask };
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
            let fd = dir.must(tier)?;
            let mode = self.without_foreign_set_gid(caller, fd, masked & 0o7777)?;
            let file = self.as_caller(caller, || rustix::fs::openat(fd, name, flags, Mode::from_raw_mode(mode)))?;
            let stat = self.tier(tier).stat_fd(file.as_fd())?;
            Ok((file, stat))
        });
        match made {
            Ok((tier, (file, stat))) => self.opened_new(caller, parent, name, tier, file, stat),
            // Somebody has made it below since the kernel looked. For a new file the kernel checks no permission, so this one must not be
            // opened here: by this error it looks once more, and opens what it finds as any file.
            Err(Errno::EXIST) if !exclusive => Err(Errno::STALE),
            Err(error) => Err(error),
        }
    }

    fn opened_new(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        tier: TierName,
        file: OwnedFd,
        stat: Stat,
    ) -> Result<(Attr, FileHandle)> {
        let attr = self.made(parent, name, tier, stat);
        let io = OpenDescriptors { tier, backing: stat.ino, rd: None, rw: Some(Arc::new(file)), wr: None };
        let inode = Arc::new(OpenInode::new(attr.ino, io));
        match self.register(inode, true, caller) {
            Ok(handle) => Ok((Attr { unsettled: true, ..attr }, handle)),
            Err(error) => {
                self.forget(attr.ino, 1);
                Err(error)
            }
        }
    }

    /// Gives a file another name, on the side where it is.
    pub fn link(&self, ino: u64, parent: u64, name: &OsStr) -> Result<Attr> {
        self.may_create(parent, name)?;
        let _gate = self.gate(ino).read_recursive();
        self.cancel_duplicate(ino);
        let (tier, file) = self.handles(ino)?.remove(0);
        let linked = self.tier(tier).stat_fd(file.as_fd())?;
        if linked.nlink == 0 {
            return Err(Errno::NOENT);
        }
        let dir = self.ensure_dir(parent, tier)?;
        let target = dir.must(tier)?;
        self.changing(&dir, || rustix::fs::linkat(rustix::fs::CWD, &*proc_path(file.as_fd()), target, name, AtFlags::SYMLINK_FOLLOW))?;
        let stat = self.tier(tier).stat(dir.must(tier)?, name)?;
        if !stat.is_same_file(&linked) {
            return Err(Errno::STALE);
        }
        let found = self.found_on(tier, &dir, name, stat).ok_or(Errno::NOENT)?;
        self.nodes.upsert(found.ino, parent, name, found.backing, found.kind, 1);
        Ok(self.attr_of(&found))
    }

    /// A new program for the directory's group, of which the caller is no member, is none that runs with the rights of that group. The
    /// kernel looks at that above us, but at the mode that a directory on both sides has there; below us a thread has root's
    /// capabilities, and it does not look.
    fn without_foreign_set_gid(&self, caller: Caller, dir: BorrowedFd<'_>, mode: u32) -> Result<u32> {
        const RUNS_AS_GROUP: u32 = SET_GID | 0o010;
        if mode & RUNS_AS_GROUP != RUNS_AS_GROUP || !self.privileged || caller.is_root() {
            return Ok(mode);
        }
        let stat = rustix::fs::fstat(dir)?;
        let foreign = stat.st_mode & SET_GID != 0 && !caller.in_group(stat.st_gid);
        Ok(if foreign { mode & !SET_GID } else { mode })
    }

    /// Creates in the name of the caller, to whom the file belongs then; its group is the directory's under set-group-id.
    fn as_caller<T>(&self, caller: Caller, create: impl FnOnce() -> Result<T>) -> Result<T> {
        self.in_the_name_of((caller.uid, caller.gid), create)?
    }

    /// Works on files for a user and a group, who own what is made and pay for what is written.
    pub(crate) fn in_the_name_of<T>(&self, (uid, gid): (u32, u32), work: impl FnOnce() -> T) -> Result<T> {
        if self.privileged { Identity { uid, gid }.act(work) } else { Ok(work()) }
    }

    fn may_create(&self, parent: u64, name: &OsStr) -> Result<()> {
        self.writable()?;
        valid_name(name)?;
        if parent == ROOT && name.as_bytes() == HIDDEN.as_bytes() {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// Tries the side where a new file belongs, then the other when the first is full or broken.
    fn on_a_tier<T>(&self, parent: u64, name: &OsStr, mut make: impl FnMut(&DirPair, TierName) -> Result<T>) -> Result<(TierName, T)> {
        let first = self.tier_for_new(parent, name);
        let mut attempt = |tier: TierName| {
            let dir = self.ensure_dir(parent, tier)?;
            self.changing(&dir, || make(&dir, tier))
        };
        match attempt(first) {
            Ok(made) => Ok((first, made)),
            // The other side gets nothing new.
            Err(error) if self.is_retiring(first.other()) => Err(error),
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)) => {
                match self.dir(parent).ok().as_ref().and_then(|dir| dir.on(first)) {
                    Some(dir) => self.note_failure_at(first, dir, error),
                    None => self.note_failure(first, error),
                }
                let second = first.other();
                // The first side's error is the one that tells what is wrong when both refuse.
                attempt(second).map(|made| (second, made)).map_err(|other| if other == Errno::EXIST { other } else { error })
            }
            // The side has no such names or kinds of files; its error tells more than the other's.
            Err(error) if crate::copy_job::bad_name(error) && !self.tier(first).abilities.takes_all() => {
                let second = first.other();
                attempt(second).map(|made| (second, made)).map_err(|other| if other == Errno::EXIST { other } else { error })
            }
            Err(error) => Err(error),
        }
    }

    fn made(&self, parent: u64, name: &OsStr, tier: TierName, stat: Stat) -> Attr {
        let backing = Backing::default().and(tier, &stat);
        let ino = self.own_number(crate::number::natural(tier, &stat), false, backing.inos(), parent, name);
        let kind = crate::names::kind_of(&stat);
        self.nodes.upsert(ino, parent, name, backing, kind, 1);
        if kind == NodeKind::Regular && tier == TierName::Ssd {
            self.remember_new(ino, stat.size);
        }
        Attr { ino, stat, unsettled: false }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::TestPair;

    #[test]
    fn a_file_that_is_there_is_not_opened_as_a_new_one() {
        let fs = TestPair::with(&["ssd/file"]);
        for (exclusive, error) in [(true, Errno::EXIST), (false, Errno::STALE)] {
            let made = fs.create(crate::testing::me(), ROOT, OsStr::new("file"), 0o644, 0, exclusive);
            assert_eq!(made.map(drop).expect_err("it is there"), error);
        }
    }

    #[test]
    fn a_new_file_of_a_stranger_does_not_run_as_the_group_of_its_directory() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let fs = TestPair::with(&["ssd/dir/file"]);
        std::os::unix::fs::chown(fs.at("ssd/dir"), None, Some(4343)).expect("given");
        rustix::fs::chmod(fs.at("ssd/dir"), Mode::from_raw_mode(0o2777)).expect("set");
        let dir = fs.look_up("dir");
        let made = |name: &str, gid: u32, mode: u32| {
            let caller = Caller { uid: 4242, gid, pid: std::process::id() };
            let (created, handle) = fs.create(caller, dir, OsStr::new(name), mode, 0, true).expect("made");
            fs.release(&handle, None);
            let node = fs.make(caller, dir, OsStr::new(&format!("{name}-node")), NewNode::Node(0o100_000 | mode, 0), 0).expect("made");
            assert_eq!((created.stat.mode, created.stat.gid), (node.stat.mode, 4343));
            created.stat.mode & 0o7777
        };
        assert_eq!(made("stranger", 4242, 0o2755), 0o755);
        assert_eq!(made("member", 4343, 0o2755), 0o2755);
        // Without execution by the group the bit means nothing.
        assert_eq!(made("lock", 4242, 0o2644), 0o2644);
    }
}
