//! Which open files bypass us, and the backing ids that let them.
//!
//! The kernel's rules: while any open of an inode bypasses, all its opens must, with the same backing id;
//! while any open goes through the page cache, none may bypass. So the first open decides for all until the
//! last one is gone:
//!
//! ```text
//!           first open: may bypass            last release
//!   closed ------------------------> bypass -------------> closed
//!      |      first open: may not                             ^
//!      +-----------------------------> cached ----------------+
//! ```

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hybridfs::OpenInode;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::direct_writes::KernelCacheState;
use crate::wire::Backing;

/// Decides for every open inode whether its data bypasses the daemon.
#[derive(Debug)]
pub struct BypassModes {
    open: Mutex<HashMap<u64, InodeMode>>,
    enabled: AtomicBool,
    reason: Mutex<Option<String>>,
}

#[derive(Debug)]
struct InodeMode {
    opens: u32,
    backing: Option<Arc<Backing>>,
    cached: Arc<KernelCacheState>,
}

impl BypassModes {
    /// Creates the modes: bypassing is tried until the kernel refuses, or never if `why_not` gives a reason.
    pub fn new(why_not: Option<String>) -> BypassModes {
        BypassModes { open: Mutex::default(), enabled: AtomicBool::new(why_not.is_none()), reason: Mutex::new(why_not) }
    }

    /// Disables bypassing from now on, for this reason.
    pub fn disable(&self, why: String) {
        if self.enabled.swap(false, Ordering::Relaxed) {
            tracing::info!(why, "file data goes through the daemon");
            *self.reason.lock() = Some(why);
        }
    }

    /// Returns why no file bypasses the daemon, if none does.
    pub fn why_not(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// Enters an open. Answers the backing id if it bypasses; then the file is held where it is. And what the kernel may have
    /// cached, which all opens have in common and `cached` makes. `register` makes a backing id of a descriptor.
    pub fn enter(
        &self,
        inode: &OpenInode,
        may_bypass: impl FnOnce() -> bool,
        register: impl FnOnce(&OwnedFd) -> rustix::io::Result<Backing>,
        cached: impl FnOnce() -> Arc<KernelCacheState>,
    ) -> (Option<Arc<Backing>>, Arc<KernelCacheState>) {
        let mut open = self.open.lock();
        if let Some(mode) = open.get_mut(&inode.ino) {
            mode.opens += 1;
            return (mode.backing.clone(), mode.cached.clone());
        }
        let backing = self.first(inode, may_bypass, register);
        let cached = cached();
        open.insert(inode.ino, InodeMode { opens: 1, backing: backing.clone(), cached: cached.clone() });
        (backing, cached)
    }

    /// What the kernel may have cached of an open file.
    pub fn cached(&self, ino: u64) -> Option<Arc<KernelCacheState>> {
        self.open.lock().get(&ino).map(|mode| mode.cached.clone())
    }

    fn first(
        &self,
        inode: &OpenInode,
        may_bypass: impl FnOnce() -> bool,
        register: impl FnOnce(&OwnedFd) -> rustix::io::Result<Backing>,
    ) -> Option<Arc<Backing>> {
        if !self.enabled.load(Ordering::Relaxed) || !may_bypass() {
            return None;
        }
        let file = inode.hold()?;
        match register(&file) {
            Ok(backing) => Some(Arc::new(backing)),
            Err(error) => {
                inode.unhold();
                // EPERM is permanent; other errors may concern this file only (a nested mount, no more ids).
                if error == Errno::PERM {
                    self.disable(format!("the kernel does not let this daemon use passthrough ({error}): it needs CAP_SYS_ADMIN"));
                } else if matches!(error, Errno::NOTTY | Errno::INVAL | Errno::OPNOTSUPP) {
                    self.disable(format!("this kernel has no FUSE passthrough ({error}): Linux 6.9 or later has"));
                }
                None
            }
        }
    }

    /// Leaves an open; the last one lets the file move again.
    pub fn leave(&self, inode: &OpenInode) {
        let mut open = self.open.lock();
        let Some(mode) = open.get_mut(&inode.ino) else { return };
        mode.opens -= 1;
        if mode.opens > 0 {
            return;
        }
        let mode = open.remove(&inode.ino);
        if mode.is_some_and(|mode| mode.backing.is_some()) {
            inode.unhold();
        }
    }

    /// Whether opens of this inode bypass us now.
    pub fn bypasses(&self, ino: u64) -> bool {
        self.open.lock().get(&ino).is_some_and(|mode| mode.backing.is_some())
    }
}
