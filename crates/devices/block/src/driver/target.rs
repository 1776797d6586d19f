//! An open file or block device, as the queues of a [`FileDevice`](super::FileDevice) share it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::Op;

/// The open file, as its queues use it.
#[derive(Debug)]
pub(super) struct FileTarget {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) geometry: Geometry,
    pub(super) direct: bool,
    /// Whether holes can be punched, and read as zeroes: an alternative way to write zeroes.
    pub(super) holes: bool,
    pub(super) zero_by_holes: AtomicBool,
    /// The reason why the device cannot be polled, or `None` if it can.
    pub(super) not_polled: Option<String>,
    pub(super) polled_bytes_max: u32,
    pub(super) warned: AtomicBool,
}

impl FileTarget {
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the largest transfer that reaches the drive unsplit, in bytes.
    pub(super) fn polled_bytes_max(&self) -> u32 {
        self.polled_bytes_max
    }

    /// Returns the fallocate(2) mode that frees or zeroes space.
    pub(super) fn fallocate_mode(&self, op: Op, by_holes: bool) -> FallocateFlags {
        let hole = op == Op::Discard || by_holes || self.zero_by_holes.load(Ordering::Relaxed);
        FallocateFlags::KEEP_SIZE | if hole { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE }
    }

    /// Called when zeroing is unsupported (tmpfs): uses holes instead from now on, and returns whether that is possible.
    pub(super) fn zero_by_holes(&self) -> bool {
        self.zero_by_holes.store(self.holes, Ordering::Relaxed);
        self.holes
    }

    /// Checks a call that transferred `did` of `wanted` bytes: returns whether it is complete, or another call must transfer the rest. A
    /// transfer of nothing, or of less than a block with direct I/O, means that the file ends there: another program truncated it.
    #[inline]
    pub(super) fn after(&self, did: u64, wanted: u64) -> Result<bool, Error> {
        let stuck = did == 0 || (self.direct && !did.is_multiple_of(u64::from(self.geometry.block_bytes)));
        if did == wanted {
            Ok(true)
        } else if stuck {
            Err(Error::Media)
        } else {
            Ok(false)
        }
    }

    /// Reads the whole range, with as many calls as necessary.
    pub(super) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(&self.file, &mut to[done..], at + done as u64) {
                Ok(did) if self.after(did as u64, (to.len() - done) as u64)? => return Ok(()),
                Ok(did) => done += did,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::from_errno(errno.raw_os_error())),
            }
        }
        Ok(())
    }

    /// Logs a warning, once per device.
    pub(super) fn warn(&self, what: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("{what}");
        }
    }
}
