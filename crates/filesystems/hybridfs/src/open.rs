//! Open files: one shared descriptor per file, whoever opens it.
//!
//! All handles of a file share its descriptors, so that the mover can exchange them when the file changes
//! sides while it is open. States of an open file:
//!
//! ```text
//!   closed --open--> through us --hold--> bypassed (data goes straight to the SSD's file system)
//!     ^                 |  ^                  |
//!     +-----release-----+  +-----unhold-------+
//! ```
//!
//! Through us it may move at any time; bypassed it stays where it is.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::io::Errno;

use crate::errno::Result;
use crate::report::TierName;

/// Where the data of an open file is.
#[derive(Debug)]
pub struct OpenDescriptors {
    /// The side on which the backing file is.
    pub tier: TierName,
    /// Inode number of the backing file.
    pub backing: u64,
    /// For reading, unless `rw` serves both.
    pub rd: Option<Arc<OwnedFd>>,
    /// A descriptor for reading and writing, if one was opened.
    pub rw: Option<Arc<OwnedFd>>,
    /// For writing only, where the file may not be read (an ordinary user's write-only file).
    pub wr: Option<Arc<OwnedFd>>,
}

impl OpenDescriptors {
    /// A descriptor to read from.
    pub fn must_rd(&self) -> Result<&Arc<OwnedFd>> {
        self.rw.as_ref().or(self.rd.as_ref()).ok_or(Errno::BADF)
    }

    /// A descriptor to write to.
    pub fn must_rw(&self) -> Result<&Arc<OwnedFd>> {
        self.rw.as_ref().or(self.wr.as_ref()).ok_or(Errno::BADF)
    }

    /// Returns one of the open descriptors.
    pub fn any(&self) -> &Arc<OwnedFd> {
        let any = self.rw.as_ref().or(self.rd.as_ref()).or(self.wr.as_ref());
        any.expect("an open file has a descriptor")
    }
}

/// A file that somebody has open.
#[derive(Debug)]
pub struct OpenInode {
    /// The inode number that users see.
    pub ino: u64,
    /// Shared by reads and writes, exclusive for a change of side.
    pub io: RwLock<OpenDescriptors>,
    pub(crate) handles: AtomicU32,
    pub(crate) writers: AtomicU32,
    pub(crate) holds: AtomicU32,
    /// Blocks it had when its first open was for writing.
    pub(crate) began: AtomicU64,
    /// Room on the SSD it may take while its writers bypass us.
    pub(crate) promised: AtomicU64,
    /// Counts changes of the data through us.
    pub(crate) changes: AtomicU64,
    pub(crate) track: Mutex<Option<ChangedRanges>>,
    /// A write or flush failed: every flush says so until the last handle is closed.
    pub(crate) failed: Mutex<Option<Errno>>,
}

/// What changed during a copy.
#[derive(Debug, Default)]
pub struct ChangedRanges {
    /// Byte ranges written, joined where they touch.
    pub ranges: Vec<(u64, u64)>,
    /// Too much to list, or not a plain write: copy all again.
    pub all: bool,
}

const RANGES_MAX: usize = 4096;

/// In [`OpenInode::began`]: the first open was not for writing, or made the file.
pub(crate) const UNKNOWN: u64 = u64::MAX;

impl ChangedRanges {
    fn add(&mut self, start: u64, end: u64) {
        if let Some(last) = self.ranges.last_mut()
            && start <= last.1
            && end >= last.0
        {
            *last = (last.0.min(start), last.1.max(end));
        } else if self.ranges.len() < RANGES_MAX {
            self.ranges.push((start, end));
        } else {
            self.all = true;
        }
    }

    /// Returns the number of bytes that must be copied again.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }
}

impl OpenInode {
    /// An open file on `tier` with the descriptors given.
    pub fn new(ino: u64, io: OpenDescriptors) -> OpenInode {
        OpenInode {
            ino,
            io: RwLock::new(io),
            handles: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            holds: AtomicU32::new(0),
            began: AtomicU64::new(UNKNOWN),
            promised: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            track: Mutex::new(None),
            failed: Mutex::new(None),
        }
    }

    /// A descriptor of any kind and its side.
    pub fn any_fd(&self) -> (TierName, Arc<OwnedFd>) {
        let io = self.io.read();
        (io.tier, io.any().clone())
    }

    /// Whether it can be read; some files of an ordinary user can only be written.
    pub fn can_read(&self) -> bool {
        self.io.read().must_rd().is_ok()
    }

    /// The descriptors, if one can be written to.
    pub(crate) fn writable_io(&self) -> Option<RwLockReadGuard<'_, OpenDescriptors>> {
        let io = self.io.read();
        (io.rw.is_some() || io.wr.is_some()).then_some(io)
    }

    /// Records a write that is done; called with `io` held.
    pub(crate) fn note_written(&self, at: u64, len: u64) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        if let Some(changed) = self.track.lock().as_mut() {
            changed.add(at, at + len);
        }
    }

    /// Records a change that is no plain write; called with `io` held.
    pub(crate) fn note_truncated(&self, _size: u64) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        if let Some(changed) = self.track.lock().as_mut() {
            changed.all = true;
        }
    }

    /// Keeps the file where it is while its data is used without us. `None`: not on the SSD.
    pub fn hold(&self) -> Option<Arc<OwnedFd>> {
        let io = self.io.read();
        if io.tier != TierName::Ssd {
            return None;
        }
        self.holds.fetch_add(1, Ordering::AcqRel);
        Some(io.rw.as_ref().or(io.rd.as_ref())?.clone())
    }

    /// Ends one [`OpenInode::hold`], so that the file may move again.
    pub fn unhold(&self) {
        let before = self.holds.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "unhold without hold");
    }

    /// Whether its data is used without us.
    pub fn held_in_place(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }
}

/// One open(2) of a file.
#[derive(Debug)]
pub struct FileHandle {
    /// The open inode behind the handle.
    pub inode: Arc<OpenInode>,
    /// Whether the file was opened for writing.
    pub write: bool,
    /// Who opened it, for set-id bits.
    pub caller: fusedev::Caller,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn touching_ranges_are_joined_and_their_number_is_bounded() {
        let mut changed = ChangedRanges::default();
        changed.add(0, 10);
        changed.add(10, 20);
        changed.add(5, 8);
        assert_eq!(changed.ranges, [(0, 20)]);
        for n in 0..10_000u64 {
            changed.add(100 + n * 10, 101 + n * 10);
        }
        assert!(changed.all);
        assert!(changed.ranges.len() <= RANGES_MAX);
    }
}
