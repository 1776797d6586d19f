//! What of the process slots only this process knows.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{ProcessSlot, index};
use crate::region::{PageSize, Region};

/// How it stands with our own leading.
pub(super) const NOT_LEADING: u32 = 0;
pub(super) const TRYING: u32 = 1;
pub(super) const LEADING: u32 = 2;

/// In memory that a fork finds zeroed: a fork sits nowhere and does not lead.
pub(super) struct ProcessLocal(Region);

impl ProcessLocal {
    pub(super) fn new() -> io::Result<ProcessLocal> {
        let region = Region::private(4096, PageSize::Small)?;
        if !region.wiped_by_fork() && cfg!(not(miri)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel cannot hide memory from forks (Linux 4.14 and later can)"));
        }
        Ok(ProcessLocal(region))
    }

    /// The generation in which we sit there; 0: we do not.
    #[inline]
    pub(super) fn mine(&self, process: ProcessSlot) -> &AtomicU32 {
        self.0.u32(4 * index(process))
    }

    /// Bits of the process slots that this process has or is about to get.
    pub(super) fn claimed(&self) -> &AtomicU64 {
        self.0.u64(256)
    }

    /// Bits of pretended process slots.
    pub(super) fn killed(&self) -> &AtomicU64 {
        self.0.u64(264)
    }

    /// Bits of pretended process slots that are treated as another process's.
    pub(super) fn strange(&self) -> &AtomicU64 {
        self.0.u64(288)
    }

    pub(super) fn leading(&self) -> &AtomicU32 {
        self.0.u32(272)
    }

    /// The term in which we lead.
    pub(super) fn term(&self) -> &AtomicU32 {
        self.0.u32(276)
    }

    /// The heartbeat of a process that was found silent, and a bit above it; 0: none was.
    pub(super) fn silent(&self, of: usize) -> &AtomicU64 {
        self.0.u64(1024 + 8 * of)
    }

    /// The process that led when the leader was last watched.
    pub(super) fn watched_leader(&self) -> &AtomicU32 {
        self.0.u32(284)
    }

    /// Counts our heartbeat.
    pub(super) fn beats(&self) -> &AtomicU32 {
        self.0.u32(280)
    }
}
