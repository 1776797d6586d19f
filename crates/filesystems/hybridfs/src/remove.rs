//! Names that go: unlink and rmdir.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fusedev::Identity;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::dirs::DirPair;
use crate::errno::Result;
use crate::names::FoundName;
use crate::nodes::NodeKind;
use crate::pair::TieredFs;
use crate::path::NAME_ONLY;
use crate::report::TierName;
use fusedev::Caller;

impl TieredFs {
    /// Removes a name that is no directory (Algorithm 2: from the policy's queue and from its side).
    pub fn unlink(&self, caller: Caller, parent: u64, name: &OsStr) -> Result<()> {
        self.writable()?;
        let dir = self.dir(parent)?;
        let moves = self.moves_seen.load(Ordering::Acquire);
        let found = self.find(&dir, name)?;
        if found.kind == NodeKind::Directory {
            return Err(Errno::ISDIR);
        }
        let _gate = self.gate(found.ino).read_recursive();
        self.cancel_duplicate(found.ino);
        let found = if self.moves_seen.load(Ordering::Acquire) == moves {
            found
        } else {
            // The mover was faster than the gate.
            self.find(&dir, name)?
        };
        let kept = self.keep_nameless(&dir, name, &found);
        let fd = dir.must(found.tier)?;
        if let Err(error) = self.changing(&dir, || self.unless_sticky(caller, &[fd], || self.tier(found.tier).unlink(fd, name))) {
            self.still_named(&found, kept);
            return self.noted_at(found.tier, fd, Err(error));
        }
        self.name_removed(&found, parent, name);
        Ok(())
    }

    /// Keeps a handle on a file or directory that is about to lose its name while the kernel may still ask about
    /// it, also after it is closed. Answers whether it is kept by this.
    pub(crate) fn keep_nameless(&self, dir: &DirPair, name: &OsStr, found: &FoundName) -> bool {
        let Some(fd) = dir.on(found.tier) else { return false };
        let tier = self.tier(found.tier);
        let Ok(file) = tier.open_at(fd, name, NAME_ONLY) else { return false };
        // Somebody may have put another file there meanwhile, and what is kept is changed by number.
        let same =
            tier.stat_fd(file.as_fd()).is_ok_and(|stat| stat.ino == found.backing[found.tier as usize] && stat.birth == found.stat.birth);
        same && self.held.lock().insert(found.ino, (found.tier, Arc::new(file))).is_none()
    }

    /// The name could not be removed: the file may move again, so no handle on this inode may stand for it.
    pub(crate) fn still_named(&self, found: &FoundName, kept: bool) {
        if kept {
            self.held.lock().remove(&found.ino);
        }
    }

    /// Updates the records after a name was removed.
    pub(crate) fn name_removed(&self, found: &FoundName, parent: u64, name: &OsStr) {
        if found.kind == NodeKind::Regular && found.stat.nlink <= 1 {
            self.forget_file(found.ino);
            self.mover.note_removed();
        }
        let linked = found.kind != NodeKind::Directory && found.stat.nlink > 1;
        if !self.nodes.unnamed(found.ino, parent, name, linked) {
            self.held.lock().remove(&found.ino);
        }
    }

    /// Removes an empty directory, on both sides.
    pub fn rmdir(&self, caller: Caller, parent: u64, name: &OsStr) -> Result<()> {
        self.writable()?;
        let _shape = self.shape.lock();
        let dir = self.dir(parent)?;
        let found = self.find(&dir, name)?;
        if found.kind != NodeKind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.must_be_empty(&dir, name, &found)?;
        let kept = self.keep_nameless(&dir, name, &found);
        // The HDD's half first: what is left after a crash is an empty directory, which is where we began.
        for tier in [TierName::Hdd, TierName::Ssd] {
            if found.backing[tier as usize] == 0 {
                continue;
            }
            let removed = dir.must(tier).and_then(|fd| {
                self.changing(&dir, || self.unless_sticky(caller, &[fd], || rustix::fs::unlinkat(fd, name, AtFlags::REMOVEDIR)))
            });
            if let Err(error) = removed {
                // The half that is gone must not be used any more; it is made again when it is needed.
                self.dirs.drop_dir(found.ino);
                self.still_named(&found, kept);
                if tier == TierName::Ssd {
                    self.nodes.change(found.ino, |node| node.backing = node.backing.without(TierName::Hdd));
                }
                return match dir.on(tier) {
                    Some(fd) => self.noted_at(tier, fd, Err(error)),
                    None => Err(error),
                };
            }
        }
        self.dirs.drop_dir(found.ino);
        self.name_removed(&found, parent, name);
        Ok(())
    }

    /// Takes names away from directories in the name of the caller where one of them is sticky. The kernel above us has compared the owner
    /// of what it believes to have the name; by now that may be another's file, which the file system below does not give to the caller.
    pub(crate) fn unless_sticky<T>(&self, caller: Caller, dirs: &[BorrowedFd<'_>], change: impl FnOnce() -> Result<T>) -> Result<T> {
        const STICKY: u32 = 0o1000;
        if !self.privileged || caller.is_root() {
            return change();
        }
        for dir in dirs {
            if rustix::fs::fstat(dir)?.st_mode & STICKY != 0 {
                let caller = Identity { uid: caller.uid, gid: caller.gid };
                return caller.act_without(CapabilitySet::FOWNER, change)?;
            }
        }
        change()
    }

    /// An error unless a directory is empty on all its sides.
    pub(crate) fn must_be_empty(&self, dir: &DirPair, name: &OsStr, found: &FoundName) -> Result<()> {
        for tier in [TierName::Ssd, TierName::Hdd] {
            if found.backing[tier as usize] == 0 {
                continue;
            }
            let handle = self.tier(tier).open_dir(dir.must(tier)?, name)?;
            match crate::read_dir::is_empty(handle.as_fd()) {
                Ok(false) => return Err(Errno::NOTEMPTY),
                // What may not be read is looked at by the file system when it removes it.
                Ok(true) | Err(Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use std::ffi::OsStr;

    use rustix::io::Errno;

    use crate::number::ROOT;
    use crate::testing::{TestPair, me};
    use fusedev::{SetAttr, SetTime};

    #[test]
    fn who_looks_whether_a_directory_is_empty_has_not_read_it() {
        let fs = TestPair::with(&["ssd/dir/file", "hdd/dir/"]);
        let dir = fs.look_up("dir");
        let old = (1_000_000_000, 5);
        let set = SetAttr { atime: Some(SetTime::At(old.0, old.1)), ..SetAttr::default() };
        fs.setattr(me(), dir, &set, None).expect("set");
        assert_eq!(fs.rmdir(me(), ROOT, OsStr::new("dir")), Err(Errno::NOTEMPTY));
        assert_eq!(fs.getattr(dir).expect("there").stat.atime, old);
    }
}
