//! The segment that is being written: its open batch, and those on their way to the device.

use std::collections::VecDeque;
use std::ops::Range;

use crate::summary::{ENTRIES, Entry, EntryKind, PreviousSegment};
use crate::units::{DevicePage, FileKey, Stamp};

/// Most batches between two flushes.
pub(crate) const TRACKS: usize = 128;

/// A batch to be written: the summary at `at`, and right behind it so many pages, in the order they were put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealedBatch {
    /// Names it; durable when [`crate::SsdCache::durable`] has come so far.
    pub stamp: Stamp,
    /// Where the summary is to be written.
    pub at: DevicePage,
    /// The number of pages behind the summary.
    pub pages: u32,
}

/// A batch between seal and flush.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTrack {
    pub(crate) batch: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) tail: u64,
    pub(crate) ended: bool,
}

#[derive(Debug)]
pub(crate) struct HeadSegment {
    pub(crate) seq: u64,
    pub(crate) before: PreviousSegment,
    /// Number of the open batch: so many are sealed.
    pub(crate) batch: u32,
    /// Place of the open batch's summary.
    pub(crate) start: u32,
    pub(crate) entries: Vec<Entry>,
    /// Pages in the open batch.
    pub(crate) pages: u32,
    pub(crate) tracks: VecDeque<BatchTrack>,
    /// Drops in batches that are sealed and not durable, with their batch.
    pub(crate) drops: VecDeque<(u32, FileKey, Range<u64>)>,
    /// The first batch that failed.
    pub(crate) failed: Option<u32>,
    /// Takes nothing any more.
    pub(crate) closed: bool,
}

impl HeadSegment {
    pub(crate) fn new(seq: u64, before: PreviousSegment) -> HeadSegment {
        let (entries, tracks) = (Vec::with_capacity(ENTRIES), VecDeque::with_capacity(TRACKS));
        HeadSegment { seq, before, batch: 0, start: 0, entries, pages: 0, tracks, drops: VecDeque::new(), failed: None, closed: false }
    }

    /// From this position on pages are not durable.
    pub(crate) fn durable_end(&self) -> u32 {
        self.tracks.front().map_or(self.start, |track| track.start)
    }

    /// Whether the bytes at a position are on the device.
    pub(crate) fn is_written(&self, position: u32) -> bool {
        let at = self.tracks.partition_point(|track| track.end <= position);
        position < self.start && self.tracks.get(at).is_none_or(|track| self.is_good(track) || position < track.start)
    }

    fn is_good(&self, track: &BatchTrack) -> bool {
        track.ended && self.failed.is_none_or(|failed| track.batch < failed)
    }

    /// Up to this position all bytes are on the device.
    pub(crate) fn written_end(&self) -> u32 {
        self.tracks.iter().find(|track| !self.is_good(track)).map_or(self.start, |track| track.start)
    }

    /// The position of the next page, which is also the order of a drop that is noted now.
    pub(crate) fn next_position(&self) -> u32 {
        self.start + 1 + self.pages
    }

    /// Remembers the open batch's drops until it is durable.
    pub(crate) fn keep_drops(&mut self) {
        for entry in &self.entries {
            if let EntryKind::Dropped { count } = entry.kind {
                self.drops.push_back((self.batch, entry.key, entry.page.0..entry.page.0 + count));
            }
        }
    }

    /// Up to where a flush that begins now makes batches durable.
    pub(crate) fn written(&self) -> u32 {
        let first = self.tracks.front().map_or(self.batch, |track| track.batch);
        first + self.tracks.iter().take_while(|track| self.is_good(track)).count() as u32
    }
}
