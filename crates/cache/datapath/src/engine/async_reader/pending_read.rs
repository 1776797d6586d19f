//! A read in flight: which of its pages were looked up, and what is left in the queue.

use std::time::Instant;

use pagecache::LookupKey;
use ssdcache::ViewLookup;

use super::Outcome;
use super::ssd_queue::SsdQueue;
use crate::engine::open::Open;
use crate::engine::read::{Piece, pieces};

/// A read that owns a job.
#[derive(Clone, Copy, Default)]
pub(super) struct PendingRead {
    /// Index into `files`.
    pub(super) file: u32,
    /// Position in the file, and length.
    pub(super) at: u64,
    pub(super) len: usize,
    /// Bytes for which the lookup is done.
    pub(super) looked: usize,
    /// Number of parts in the queue.
    pub(super) parts: u32,
    /// Whether the read is in `waiting`.
    pub(super) is_waiting: bool,
    pub(super) is_slow: bool,
    pub(super) is_lost: bool,
    pub(super) begun: Option<Instant>,
}

impl PendingRead {
    pub(super) fn has_ended(&self) -> bool {
        self.parts == 0 && (self.is_slow || self.looked == self.len)
    }

    pub(super) fn outcome(&self) -> Outcome {
        match (self.is_lost, self.is_slow) {
            (true, _) => Outcome::Lost,
            (_, true) => Outcome::Slow,
            _ => Outcome::Read(self.len),
        }
    }
}

/// A piece of a page that is in no frame.
pub(super) struct PageMiss<'a> {
    pub(super) piece: Piece,
    pub(super) in_frames: &'a LookupKey,
    /// The key for its lookup on the SSD.
    pub(super) on_ssd: Option<&'a ssdcache::LookupKey>,
}

impl PendingRead {
    /// Looks up the pages of the read while there are free slots. Returns false if there is none for the next page.
    pub(super) fn look(&mut self, index: u32, open: &Open, ssd_queue: &mut SsdQueue, to: &mut [u8]) -> bool {
        let from = self.looked;
        for piece in pieces(self.at + from as u64, self.len - from) {
            let piece = Piece { at: piece.at + from, ..piece };
            let to = &mut to[piece.at..piece.at + piece.len];
            let in_frames = &open.engine.pages.sought(open.name(piece.page));
            if open.engine.pages.read_by_key(in_frames, piece.offset, to) {
                self.looked = piece.at + piece.len;
                continue;
            }
            let on_ssd = open.key_on_ssd(piece.page);
            if !self.look_for(&PageMiss { piece, in_frames, on_ssd: on_ssd.as_ref() }, index, open, ssd_queue, to) {
                return false;
            }
            if self.is_slow {
                break;
            }
        }
        true
    }

    /// Looks up on the SSD a piece that is in no frame. Returns false if the queue has no free slot.
    #[inline(always)]
    pub(super) fn look_for(&mut self, missed: &PageMiss<'_>, index: u32, open: &Open, ssd_queue: &mut SsdQueue, to: &[u8]) -> bool {
        if ssd_queue.free.is_empty() {
            return false;
        }
        let &PageMiss { piece, in_frames, on_ssd } = missed;
        let mut seen = open.look_where(on_ssd);
        let mut ticket = None;
        if matches!(seen, ViewLookup::Hit(_)) && open.wants_sought(piece, in_frames) {
            ticket = open.engine.pages.ticket_of_missing(in_frames);
            // The lookup must be newer than the ticket. Few pages need this.
            seen = open.look_again(on_ssd);
        }
        let ViewLookup::Hit(found) = seen else {
            self.is_slow = true;
            return true;
        };
        if !ssd_queue.submit(index, piece, &found, ticket, to) {
            return false;
        }
        // Do it now, while its word is in the CPU cache.
        open.touch_on_ssd(&found);
        self.parts += 1;
        self.looked = piece.at + piece.len;
        true
    }
}
