//! The whole metadata, for tools that inspect a cache which is not in use.

use crate::cache::{PageVersion, SsdCache};
use crate::superblock::Superblock;
use crate::units::Item;

impl SsdCache {
    /// Returns all cached pages, in the order in which they were written, and how each compares with the backing file.
    pub fn items(&self) -> impl Iterator<Item = (Item, PageVersion)> + '_ {
        let seqs = self.superblock.tail..=self.head.seq;
        let places = seqs.map(|seq| (seq, self.place_of(seq))).filter(|(seq, place)| self.segments[*place].seq == *seq);
        let slots = places.flat_map(|(_, place)| self.slots_of(place));
        slots.filter_map(|slot| Some((self.item(slot)?, if self.shared.is_dirty(slot) { PageVersion::Dirty } else { PageVersion::Clean })))
    }

    /// The superblock in force: who the cache is, and in which life.
    pub fn identity(&self) -> Superblock {
        self.superblock
    }

    /// Returns the number of segments with cached pages.
    pub fn segments_used(&self) -> u32 {
        self.segments.iter().filter(|segment| segment.live > 0).count() as u32
    }

    /// Pages written to the device since it was formatted, summaries among them: the log only ever goes on. Superblocks, and what
    /// was torn by a crash, are not counted.
    pub fn written_ever_pages(&self) -> u64 {
        self.head.seq.saturating_sub(1) * u64::from(self.superblock.shape.segment_pages) + u64::from(self.head.start)
    }
}

/// Repair: all that damage made worthless is left behind, so that the next recovery does not meet it.
impl SsdCache {
    /// Nothing more is put into the segment that is being written. Only with no batch in flight.
    pub fn end_segment(&mut self) {
        self.head.closed = true;
    }

    /// Segments before the oldest that holds something are no longer part of the cache; in force with the next superblock.
    pub fn pass_empty_segments(&mut self) {
        let holds = |seq: &u64| {
            let segment = self.segments[self.place_of(*seq)];
            segment.seq == *seq && segment.live > 0
        };
        let first = (self.superblock.tail..self.head.seq).find(holds);
        self.superblock.tail = first.unwrap_or(self.head.seq);
    }
}
