//! Translates spans into addresses, and registers arenas with the kernel.
#![expect(unsafe_code, reason = "tells the kernel of memory")]

use std::io;

use super::ring::{End, Ring};
use crate::buffer::{Arena, ArenaId, Span};
use crate::error::Error;
use io_uring::squeue;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// The kernel registers at most 1 GiB in one piece (as a power of two).
pub(super) const PIECE_SHIFT_MAX: u32 = 30;
/// The kernel registers at most this many pieces.
const PIECES_MAX: u32 = 1 << 14;
/// Memory is also registered as single pages, up to this number: enough for a deep queue of small requests, in less than a millisecond at
/// open. In a longer piece, the kernel checks for each request whether to split it, which took a tenth of its time (Linux 6.18,
/// decisions/15).
const SINGLE_PAGES_MAX: u64 = 1024;
const PAGE_SHIFT: u32 = 12;
/// A limit of lockable memory from which a few MiB do not matter, in bytes.
const LOCKED_MUCH: u64 = 64 << 20;

/// The arenas registered with a queue, which keeps each alive.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    known: Vec<Known>,
    piece_shift: u32,
    pieces: u32,
    warned: bool,
}

impl Default for Buffers {
    fn default() -> Self {
        Buffers::new(PIECE_SHIFT_MAX)
    }
}

#[derive(Clone, Debug)]
struct Known {
    id: ArenaId,
    /// Kept alive as long as the queue.
    _arena: Arena,
    base: u64,
    bytes: u64,
    /// The index of its first registered piece.
    first: u32,
    /// The number of bytes from its start that are registered in pieces.
    pinned: u64,
    /// The index of its first page that is registered individually.
    first_page: u32,
    /// The number of bytes from its start that are registered as single pages.
    paged: u64,
}

/// The checked memory of one span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The address of the first byte.
    pub address: u64,
    /// The length of the memory in bytes.
    pub bytes: u32,
    /// The registered piece that contains the memory.
    pub fixed: Fixed,
}

/// The index of the registered piece that contains the memory, if any. Not an `Option<u16>`: its two halves are written separately and
/// read together, which stalls the CPU's store forwarding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fixed(u32);

impl Fixed {
    pub(crate) const NONE: Fixed = Fixed(u32::MAX);

    #[inline]
    pub(crate) fn index(self) -> Option<u16> {
        u16::try_from(self.0).ok()
    }
}

impl Buffers {
    /// Creates an empty registry; arenas will be registered in pieces of `1 << piece_shift` bytes.
    pub(super) fn new(piece_shift: u32) -> Buffers {
        Buffers { known: Vec::new(), piece_shift, pieces: 0, warned: false }
    }

    /// Adds an arena; returns whether it is new.
    pub(crate) fn add(&mut self, arena: &Arena) -> bool {
        let new = self.known.iter().all(|known| known.id != arena.id());
        if new {
            let region = arena.region();
            self.known.push(Known {
                id: arena.id(),
                _arena: arena.clone(),
                base: region.address(0) as u64,
                bytes: region.len() as u64,
                first: 0,
                pinned: 0,
                first_page: 0,
                paged: 0,
            });
        }
        new
    }

    /// Adds an arena and pins it for the ring, which saves a page lookup for each request. An ordinary user may lock little memory
    /// (RLIMIT_MEMLOCK). Unpinned memory works as well, only slower, so a failure to pin is no error.
    pub(super) fn register<S: squeue::EntryMarker, C: End>(&mut self, arena: &Arena, ring: &Ring<S, C>) -> Result<(), Error> {
        if !self.add(arena) {
            return Ok(());
        }
        let places = self.table_size();
        let known = self.known.last_mut().expect("just added");
        if self.pieces == 0 && !ring.make_buffer_table(places) {
            return Ok(());
        }
        known.first = self.pieces;
        while known.pinned < known.bytes && self.pieces < places {
            let bytes = (known.bytes - known.pinned).min(1 << self.piece_shift);
            let piece = libc::iovec { iov_base: (known.base + known.pinned) as *mut libc::c_void, iov_len: bytes as usize };
            // SAFETY: `known` keeps the arena, and is dropped when the ring has nothing in flight, or leaked.
            if let Err(error) = unsafe { ring.register(self.pieces, piece) } {
                warn_once(&mut self.warned, known, &error);
                break;
            }
            known.pinned += bytes;
            self.pieces += 1;
        }
        if self.piece_shift == PIECE_SHIFT_MAX && may_count_twice() {
            self.register_pages(ring);
        }
        Ok(())
    }

    /// Registers pages of the last arena individually. Pages that fail to register are still part of a longer piece.
    fn register_pages<S: squeue::EntryMarker, C: End>(&mut self, ring: &Ring<S, C>) {
        let room = SINGLE_PAGES_MAX - self.known.iter().map(|known| known.paged >> PAGE_SHIFT).sum::<u64>();
        let known = self.known.last_mut().expect("just added");
        known.first_page = self.pieces;
        let base = known.base;
        let pages: Vec<libc::iovec> = (0..room.min(known.pinned >> PAGE_SHIFT))
            .map(|page| libc::iovec { iov_base: (base + (page << PAGE_SHIFT)) as *mut libc::c_void, iov_len: 1 << PAGE_SHIFT })
            .collect();
        if !pages.is_empty() {
            // SAFETY: `known` keeps the arena, and is dropped when the ring has nothing in flight, or leaked.
            let taken = unsafe { ring.register_many(self.pieces, &pages) };
            known.paged = u64::from(taken) << PAGE_SHIFT;
            self.pieces += taken;
        }
    }

    /// Returns the table size: enough for 256 GiB and the single pages, limited by the kernel.
    fn table_size(&self) -> u32 {
        PIECES_MAX.min((1 << (38 - self.piece_shift)) + SINGLE_PAGES_MAX as u32)
    }

    /// Returns the memory of a span, or `None` if it is not inside a registered arena.
    #[inline]
    pub(crate) fn find(&self, span: Span) -> Option<Piece> {
        let known = self.known.iter().find(|known| known.id == span.arena)?;
        let end = span.at.checked_add(u64::from(span.bytes))?;
        if end > known.bytes || span.bytes == 0 {
            return None;
        }
        let piece = |first: u32, shift: u32, registered: u64| {
            let in_one = end <= registered && span.at >> shift == (end - 1) >> shift;
            in_one.then_some(Fixed(first + (span.at >> shift) as u32))
        };
        let page = piece(known.first_page, PAGE_SHIFT, known.paged);
        let fixed = page.or_else(|| piece(known.first, self.piece_shift, known.pinned)).unwrap_or(Fixed::NONE);
        Some(Piece { address: known.base + span.at, bytes: span.bytes, fixed })
    }
}

/// Returns whether pages may be locked twice: pages that are not huge count again. A user with a small limit needs it for other queues.
fn may_count_twice() -> bool {
    let is_free = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    is_free || getrlimit(Resource::Memlock).current.is_none_or(|most| most >= LOCKED_MUCH)
}

fn warn_once(warned: &mut bool, known: &Known, error: &io::Error) {
    if !std::mem::replace(warned, true) {
        let mib = known.bytes >> 20;
        tracing::warn!("an arena of {mib} MiB is not pinned whole ({error}): I/O costs more CPU; raise `ulimit -l`");
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_what_lies_in_a_known_arena_is_found() {
        let arena = Arena::private(8192).expect("memory");
        let mut buffers = Buffers::default();
        assert_eq!(buffers.find(arena.span(0, 512)), None);
        assert!(buffers.add(&arena));
        assert!(!buffers.add(&arena), "once");
        let address = arena.region().address(4096) as u64;
        assert_eq!(buffers.find(arena.span(4096, 4096)), Some(Piece { address, bytes: 4096, fixed: Fixed::NONE }));
        assert_eq!(buffers.find(Span { at: 4097, ..arena.span(4096, 4096) }), None, "a byte too far");
        assert_eq!(buffers.find(Span { at: u64::MAX, ..arena.span(0, 512) }), None);
    }

    #[test]
    fn what_lies_in_one_page_is_found_as_that_page() {
        let arena = Arena::private(64 << 10).expect("memory");
        let mut buffers = Buffers::default();
        assert!(buffers.add(&arena));
        let known = buffers.known.last_mut().expect("just added");
        (known.first, known.pinned, known.first_page, known.paged) = (3, 64 << 10, 10, 16 << 10);
        let fixed = |at: usize, bytes: u32| buffers.find(arena.span(at, bytes)).and_then(|piece| piece.fixed.index());
        assert_eq!((fixed(0, 4096), fixed(4096 + 512, 512), fixed(12 << 10, 4096)), (Some(10), Some(11), Some(13)));
        assert_eq!(fixed(4096, 8192), Some(3), "more than a page");
        assert_eq!(fixed(4096 + 512, 4096), Some(3), "parts of two");
        assert_eq!((fixed(16 << 10, 4096), fixed(60 << 10, 4096)), (Some(3), Some(3)), "pages that are not registered");
    }
}
