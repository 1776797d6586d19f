//! What of the seats only this process knows.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{SeatNo, index};
use crate::region::{Pages, Region};

/// How it stands with our own leading.
pub(super) const NOT: u32 = 0;
pub(super) const TRYING: u32 = 1;
pub(super) const LEADING: u32 = 2;

/// In memory that a fork finds zeroed: a fork sits nowhere and does not lead.
pub(super) struct Local(Region);

impl Local {
    pub(super) fn new() -> io::Result<Local> {
        let region = Region::private(4096, Pages::Small)?;
        if !region.wiped_by_fork() && cfg!(not(miri)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel cannot hide memory from forks (Linux 4.14 and later can)"));
        }
        Ok(Local(region))
    }

    /// The turn in which we sit there; 0: we do not.
    #[inline]
    pub(super) fn mine(&self, seat: SeatNo) -> &AtomicU32 {
        self.0.u32(4 * index(seat))
    }

    /// Bits of the seats that are ours or that a thread of ours tries to get.
    pub(super) fn claimed(&self) -> &AtomicU64 {
        self.0.u64(256)
    }

    /// Bits of pretended seats.
    pub(super) fn killed(&self) -> &AtomicU64 {
        self.0.u64(264)
    }

    pub(super) fn leading(&self) -> &AtomicU32 {
        self.0.u32(272)
    }

    /// The term in which we lead.
    pub(super) fn term(&self) -> &AtomicU32 {
        self.0.u32(276)
    }

    /// The pulse of somebody who was found silent, and a bit above it; 0: of nobody.
    pub(super) fn silent(&self, of: usize) -> &AtomicU64 {
        self.0.u64(1024 + 8 * of)
    }

    /// The process that led when the leader was last watched.
    pub(super) fn watched_leader(&self) -> &AtomicU32 {
        self.0.u32(284)
    }

    /// Counts our pulse.
    pub(super) fn beats(&self) -> &AtomicU32 {
        self.0.u32(280)
    }
}
