//! Spans become addresses.
#![expect(unsafe_code, reason = "tells the kernel of memory")]

use std::io;

use super::ring::{BUFFERS_MAX, End, Ring};
use crate::buffer::{Arena, Span};
use crate::error::Error;
use io_uring::squeue;

/// The kernel registers at most a GiB in one piece.
const PIECE_SHIFT: u32 = 30;

/// The arenas a queue was told of. Each is kept alive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    known: Vec<Known>,
    pieces: u16,
    warned: bool,
}

#[derive(Clone, Debug)]
struct Known {
    arena: Arena,
    base: u64,
    bytes: u64,
    /// Number of its first registered piece.
    first: u16,
    /// Bytes from its begin that are registered, in pieces of a GiB.
    pinned: u64,
}

/// Memory of one span, checked. `fixed` is the number of the registered piece it lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub fixed: Option<u16>,
}

impl Buffers {
    /// Knows an arena from now on.
    pub(crate) fn add(&mut self, arena: &Arena) -> bool {
        let new = self.known.iter().all(|known| known.arena.id() != arena.id());
        if new {
            let region = arena.region();
            self.known.push(Known {
                arena: arena.clone(),
                base: region.address(0) as u64,
                bytes: region.len() as u64,
                first: 0,
                pinned: 0,
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
        let known = self.known.last_mut().expect("just added");
        if self.pieces == 0 && !ring.make_buffer_table() {
            return Ok(());
        }
        known.first = self.pieces;
        while known.pinned < known.bytes && self.pieces < BUFFERS_MAX {
            let bytes = (known.bytes - known.pinned).min(1 << PIECE_SHIFT);
            let piece = libc::iovec { iov_base: (known.base + known.pinned) as *mut libc::c_void, iov_len: bytes as usize };
            // SAFETY: `known` keeps the arena, and is dropped when the ring has nothing in flight, or leaked.
            if let Err(error) = unsafe { ring.register(self.pieces, piece) } {
                warn_once(&mut self.warned, known, &error);
                break;
            }
            known.pinned += bytes;
            self.pieces += 1;
        }
        Ok(())
    }

    /// Where a span lies; none: not in an arena of ours.
    #[inline]
    pub(crate) fn find(&self, span: Span) -> Option<Piece> {
        let known = self.known.iter().find(|known| known.arena.id() == span.arena)?;
        let end = span.at.checked_add(u64::from(span.bytes))?;
        if end > known.bytes || span.bytes == 0 {
            return None;
        }
        let in_one = end <= known.pinned && span.at >> PIECE_SHIFT == (end - 1) >> PIECE_SHIFT;
        let fixed = in_one.then_some(known.first + (span.at >> PIECE_SHIFT) as u16);
        Some(Piece { address: known.base + span.at, bytes: span.bytes, fixed })
    }
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
        assert_eq!(buffers.find(arena.span(4096, 4096)), Some(Piece { address, bytes: 4096, fixed: None }));
        assert_eq!(buffers.find(Span { at: 4097, ..arena.span(4096, 4096) }), None, "a byte too far");
        assert_eq!(buffers.find(Span { at: u64::MAX, ..arena.span(0, 512) }), None);
    }
}
