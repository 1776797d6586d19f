//! The WAL's index: memory that the connections of this process share, and its eight locks. One process has the image, so it need not
//! be a file, and is gone with the last connection; SQLite makes it anew from the WAL.
#![expect(unsafe_code, reason = "memory that SQLite's threads share by pointers")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;

const LOCKS: usize = libsqlite3_sys::SQLITE_SHM_NLOCK as usize;
/// As a page of memory.
const ALIGN: usize = 4096;

/// A piece of memory with a fixed address.
struct ShmRegion {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: only an address; SQLite owns what is there, and orders its own accesses.
unsafe impl Send for ShmRegion {}

impl ShmRegion {
    fn new(bytes: usize) -> Option<ShmRegion> {
        let layout = Layout::from_size_align(bytes, ALIGN).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) }).map(|at| ShmRegion { at, layout })
    }
}

impl Drop for ShmRegion {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and no connection has it any more.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

/// The shared-memory index of the write-ahead log.
#[derive(Default)]
pub struct Shm {
    regions: Vec<ShmRegion>,
    /// Connections that take part, with their locks.
    members: HashMap<u64, [ShmLock; LOCKS]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum ShmLock {
    #[default]
    No,
    Shared,
    Alone,
}

impl Shm {
    /// A region for a connection, which takes part from now on; null if it is not there and not to be made. `None`: no memory.
    pub fn map(&mut self, who: u64, index: usize, bytes: usize, make: bool) -> Option<*mut c_void> {
        self.members.entry(who).or_default();
        while make && self.regions.len() <= index {
            self.regions.push(ShmRegion::new(bytes)?);
        }
        match self.regions.get(index) {
            Some(region) if region.layout.size() >= bytes => Some(region.at.as_ptr().cast()),
            Some(_) => None,
            None => Some(std::ptr::null_mut()),
        }
    }

    /// Takes locks of a range, all or none; `false`: others are in the way.
    pub fn lock(&mut self, who: u64, range: std::ops::Range<usize>, alone: bool) -> bool {
        let bars = |held: ShmLock| held == ShmLock::Alone || alone && held == ShmLock::Shared;
        let barred = self.members.iter().any(|(other, held)| *other != who && held[range.clone()].iter().any(|held| bars(*held)));
        if !barred {
            self.members.entry(who).or_default()[range].fill(if alone { ShmLock::Alone } else { ShmLock::Shared });
        }
        !barred
    }

    /// Releases locks on the index.
    pub fn unlock(&mut self, who: u64, range: std::ops::Range<usize>) {
        if let Some(held) = self.members.get_mut(&who) {
            held[range].fill(ShmLock::No);
        }
    }

    /// A connection leaves; the memory goes with the last.
    pub fn leave(&mut self, who: u64) {
        self.members.remove(&who);
        if self.members.is_empty() {
            self.regions.clear();
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn memory_is_shared_and_goes_with_the_last() {
        let mut shm = Shm::default();
        assert_eq!(shm.map(1, 0, 32768, false), Some(std::ptr::null_mut()));
        let first = shm.map(1, 1, 32768, true).expect("memory");
        assert_eq!(shm.map(2, 1, 32768, false), Some(first));
        shm.leave(1);
        assert_eq!(shm.map(2, 1, 32768, false), Some(first));
        shm.leave(2);
        assert_eq!(shm.map(2, 1, 32768, false), Some(std::ptr::null_mut()));
    }

    #[test]
    fn locks_of_a_range_are_all_or_none() {
        let mut shm = Shm::default();
        assert!(shm.lock(1, 3..4, false) && shm.lock(2, 3..4, false));
        assert!(!shm.lock(2, 0..8, true) && shm.lock(2, 0..3, true) && !shm.lock(1, 2..3, false));
        shm.unlock(1, 3..4);
        assert!(shm.lock(2, 3..8, true) && !shm.lock(1, 7..8, false));
        shm.leave(2);
        assert!(shm.lock(1, 0..8, true));
    }
}
