//! Spans become addresses.
#![expect(unsafe_code, reason = "tells the kernel of memory")]

use std::io;

use super::ring::{End, Ring};
use crate::buffer::{Arena, ArenaId, Span};
use crate::error::Error;
use io_uring::squeue;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// The kernel registers at most a GiB in one piece (as a power of two).
pub(super) const PIECE_SHIFT_MAX: u32 = 30;
/// And so many pieces.
const PIECES_MAX: u32 = 1 << 14;
/// Memory is registered page by page, too, up to so many: enough for a deep queue of small requests, and under a millisecond at open. The
/// kernel looks at each request of a longer piece whether it has to be divided, which took a tenth of all its time (Linux 6.18,
/// decisions/15).
const SINGLE_PAGES_MAX: u64 = 1024;
const PAGE_SHIFT: u32 = 12;
/// Bytes a user may lock, of which a few MiB are no matter.
const LOCKED_MUCH: u64 = 64 << 20;

/// The arenas a queue was told of. Each is kept alive.
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
    /// Kept as long as the queue.
    _arena: Arena,
    base: u64,
    bytes: u64,
    /// Number of its first registered piece.
    first: u32,
    /// Bytes from its begin that are registered, piece by piece.
    pinned: u64,
    /// Number of its first page that is registered by itself.
    first_page: u32,
    /// Bytes from its begin of which that is so.
    paged: u64,
}

/// Memory of one span, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub fixed: Fixed,
}

/// The number of the registered piece that memory lies in, if it does. Not an `Option<u16>`: half a word is written apart from the other
/// half and read with it, for which the processor waits.
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
    /// With arenas registered in pieces of so many bytes, as a power of two.
    pub(super) fn new(piece_shift: u32) -> Buffers {
        Buffers { known: Vec::new(), piece_shift, pieces: 0, warned: false }
    }

    /// Knows an arena from now on.
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

    /// The same, and pins it for the ring: no lookup of pages at each request. An ordinary user may lock little memory
    /// (RLIMIT_MEMLOCK); without a pin it works as well, only slower, so that is no error.
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

    /// The pages of the arena known last. Those that cannot be had are part of a longer piece all the same.
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

    /// Enough for 256 GiB, as far as the kernel has places, and for single pages.
    fn table_size(&self) -> u32 {
        PIECES_MAX.min((1 << (38 - self.piece_shift)) + SINGLE_PAGES_MAX as u32)
    }

    /// Where a span lies; none: not in an arena of ours.
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

/// Pages that are not huge count as locked once more. Whoever is held to a small limit needs that for other queues.
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
