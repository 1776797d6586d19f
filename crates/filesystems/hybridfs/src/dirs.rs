//! Open directories: one handle per side, cached for reuse.
//!
//! Everything below a directory is reached relative to these handles, so a renamed directory keeps
//! working and no path is ever built.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::errno::Result;
use crate::report::TierName;

/// One directory, open on the sides where it exists.
#[derive(Debug)]
pub struct DirPair {
    /// Inode number of the directory.
    pub ino: u64,
    /// Name-only handles, SSD and HDD.
    pub sides: [Option<OwnedFd>; 2],
    /// Backing inodes of these handles, 0: none (and for the root, which is always the same).
    pub backing: [u64; 2],
    default_acl: AtomicU8,
    /// Whether only the daemon's user may change the names, by side.
    private: [AtomicU8; 2],
    ahead: AtomicU8,
}

impl DirPair {
    /// A directory open on the given sides.
    pub fn new(ino: u64, sides: [Option<OwnedFd>; 2], backing: [u64; 2]) -> Arc<DirPair> {
        let private = [const { AtomicU8::new(0) }; 2];
        Arc::new(DirPair { ino, sides, backing, default_acl: AtomicU8::new(0), private, ahead: AtomicU8::new(0) })
    }

    /// The handle on a side, if the directory exists there.
    pub fn on(&self, tier: TierName) -> Option<BorrowedFd<'_>> {
        self.sides[tier as usize].as_ref().map(AsFd::as_fd)
    }

    /// The handle on a side; a directory that was there is gone behind our back.
    pub fn must(&self, tier: TierName) -> Result<BorrowedFd<'_>> {
        self.on(tier).ok_or(Errno::STALE)
    }

    /// The side whose attributes count: the SSD's where both exist.
    pub fn primary(&self) -> Result<(TierName, BorrowedFd<'_>)> {
        if let Some(fd) = self.on(TierName::Ssd) {
            return Ok((TierName::Ssd, fd));
        }
        self.must(TierName::Hdd).map(|fd| (TierName::Hdd, fd))
    }

    /// Whether it is on both sides and was said to be modified in the future; asked once (times that are set
    /// drop this handle).
    pub fn is_ahead(&self) -> bool {
        let [Some(ssd), Some(hdd)] = &self.sides else { return false };
        match self.ahead.load(Ordering::Relaxed) {
            0 => {
                let now = i64::from(crate::clock::now_s());
                let later = |side: &OwnedFd| rustix::fs::fstat(side).is_ok_and(|stat| stat.st_mtime > now);
                let ahead = later(ssd) || later(hdd);
                self.ahead.store(if ahead { 2 } else { 1 }, Ordering::Relaxed);
                ahead
            }
            known => known == 2,
        }
    }

    /// Whether nobody but the daemon's user and root can change the names here, behind our back: then a name that was looked up means the
    /// same file as long as we do not change it. Asked once (a change of owner or mode drops this handle).
    pub fn is_private(&self, tier: TierName) -> bool {
        let Some(fd) = self.on(tier) else { return false };
        let known = &self.private[tier as usize];
        match known.load(Ordering::Relaxed) {
            0 => {
                // With an ACL the group's bits are the most that it grants.
                let own = |stat: rustix::fs::Stat| stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
                let private = rustix::fs::fstat(fd).is_ok_and(own);
                known.store(if private { 2 } else { 1 }, Ordering::Relaxed);
                private
            }
            known => known == 2,
        }
    }

    /// Whether new files inherit an ACL here; asked once (a change of the ACL drops this handle).
    pub fn has_default_acl(&self, tier: TierName) -> bool {
        match self.default_acl.load(Ordering::Relaxed) {
            1 => return false,
            2 => return true,
            _ => {}
        }
        let Some(fd) = self.on(tier) else { return false };
        let path = crate::path::proc_path(fd);
        let has = rustix::fs::getxattr_query(&*path, "system.posix_acl_default").is_ok();
        self.default_acl.store(if has { 2 } else { 1 }, Ordering::Relaxed);
        has
    }
}

/// The most recently used directories.
#[derive(Debug)]
pub struct DirCache {
    inner: Mutex<DirCacheState>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct DirCacheState {
    map: HashMap<u64, (Arc<DirPair>, u64)>,
    tick: u64,
}

impl DirCache {
    /// Keeps up to `capacity` directories (two handles each).
    pub fn new(capacity: usize) -> DirCache {
        DirCache { inner: Mutex::new(DirCacheState::default()), capacity }
    }

    /// A directory that is open already.
    pub fn get(&self, ino: u64) -> Option<Arc<DirPair>> {
        let mut inner = self.inner.lock();
        inner.tick += 1;
        let tick = inner.tick;
        inner.map.get_mut(&ino).map(|(dir, used)| {
            *used = tick;
            dir.clone()
        })
    }

    /// Keeps a directory, letting the longest unused eighth go when full.
    pub fn put(&self, dir: Arc<DirPair>) {
        let mut inner = self.inner.lock();
        inner.tick += 1;
        let tick = inner.tick;
        inner.map.insert(dir.ino, (dir, tick));
        if inner.map.len() > self.capacity {
            let mut ages: Vec<u64> = inner.map.values().map(|(_, used)| *used).collect();
            let eighth = ages.len() / 8;
            let (_, limit, _) = ages.select_nth_unstable(eighth);
            let limit = *limit;
            inner.map.retain(|_, (_, used)| *used > limit);
        }
    }

    /// Forgets what is known of an open directory, but not how to reach it: an ordinary user may not get there again.
    pub fn ask_again(&self, ino: u64) {
        let Some(dir) = self.get(ino) else { return };
        let again = |side: &Option<OwnedFd>| side.as_ref().map(OwnedFd::try_clone).transpose();
        match (again(&dir.sides[0]), again(&dir.sides[1])) {
            (Ok(ssd), Ok(hdd)) => self.put(DirPair::new(ino, [ssd, hdd], dir.backing)),
            // No descriptors left: it is opened again when it is needed.
            _ => self.drop_dir(ino),
        }
    }

    /// Forgets a directory: removed, or its sides changed.
    pub fn drop_dir(&self, ino: u64) {
        self.inner.lock().map.remove(&ino);
    }
}
