//! The page before the pages of a batch that says what they are. Layout: docs/formats.md, "The SSD cache".

use crate::superblock::{SEQ_END, u32_at, u64_at};
use crate::units::{DevicePage, FileKey, PAGE_BYTES, PAGE_INDEX_END, Page, PageIndex};
use crate::version::{VERSION, is_summary_known};

const MAGIC: [u8; 4] = *b"hssm";
const HEAD: usize = 64;
const ENTRY: usize = 32;
/// Entries of one summary.
pub(crate) const ENTRIES: usize = (PAGE_BYTES - HEAD) / ENTRY;
const _: () = assert!(ENTRIES == 126 && HEAD + ENTRIES * ENTRY == PAGE_BYTES);

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    /// The next page of the batch is this page, the same as in the backing file.
    Clean { checksum: u32 },
    /// The same, but newer than below.
    Dirty { checksum: u32 },
    /// So many pages from this one on, as far as they were written to the cache before, are no longer valid.
    Dropped { count: u64 },
    /// So many pages from this one on, as far as they were written to the cache before, are now the same below.
    Cleaned { count: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) key: FileKey,
    pub(crate) page: PageIndex,
    pub(crate) kind: EntryKind,
}

impl Entry {
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.kind, EntryKind::Clean { .. } | EntryKind::Dirty { .. })
    }

    fn encode(&self, to: &mut [u8]) {
        let (count, kind, checksum) = match self.kind {
            EntryKind::Clean { checksum } => (1, 1_u32, checksum),
            EntryKind::Dirty { checksum } => (1, 2, checksum),
            EntryKind::Dropped { count } => (count, 3, 0),
            EntryKind::Cleaned { count } => (count, 4, 0),
        };
        to[..8].copy_from_slice(&self.key.0.to_le_bytes());
        to[8..16].copy_from_slice(&self.page.0.to_le_bytes());
        to[16..24].copy_from_slice(&count.to_le_bytes());
        to[24..28].copy_from_slice(&kind.to_le_bytes());
        to[28..32].copy_from_slice(&checksum.to_le_bytes());
    }

    fn decode(from: &[u8]) -> Option<Entry> {
        let (page, count, checksum) = (u64_at(from, 8), u64_at(from, 16), u32_at(from, 28));
        let kind = match u32_at(from, 24) {
            1 => EntryKind::Clean { checksum },
            2 => EntryKind::Dirty { checksum },
            3 => EntryKind::Dropped { count },
            4 => EntryKind::Cleaned { count },
            _ => return None,
        };
        let entry = Entry { key: FileKey(u64_at(from, 0)), page: PageIndex(page), kind };
        let sane = if entry.is_data() { count == 1 && page < PAGE_INDEX_END } else { count > 0 };
        sane.then_some(entry)
    }
}

/// What came before a segment, all of it durable when the segment began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PreviousSegment {
    /// Batches of the last segment that has any.
    pub(crate) batches: u16,
    /// Segments without any between that and this one: their first writes failed.
    pub(crate) skipped: u16,
}

/// A summary but for its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SummaryHeader {
    pub(crate) uuid: [u8; 16],
    /// Of the segment.
    pub(crate) seq: u64,
    /// Of the superblock when this was written: what a life left behind a torn batch is no continuation of a later life's.
    pub(crate) life: u32,
    /// Number of the batch in its segment.
    pub(crate) batch: u32,
    /// Place of this page in the segment.
    pub(crate) position: u32,
    /// Batches of this segment that were durable when this was written.
    pub(crate) durable: u32,
    pub(crate) before: PreviousSegment,
    /// See [`crate::Superblock`].
    pub(crate) tail: u64,
}

impl SummaryHeader {
    pub(crate) fn encode(&self, entries: &[Entry], at: DevicePage, page: &mut Page) {
        page.fill(0);
        page[..4].copy_from_slice(&MAGIC);
        page[4] = VERSION as u8;
        page[6..8].copy_from_slice(&(entries.len() as u16).to_le_bytes());
        page[8..24].copy_from_slice(&self.uuid);
        page[24..32].copy_from_slice(&self.seq.to_le_bytes());
        page[32..40].copy_from_slice(&self.tail.to_le_bytes());
        for (n, value) in [self.life, self.batch, self.position, self.durable].into_iter().enumerate() {
            page[40 + 4 * n..44 + 4 * n].copy_from_slice(&value.to_le_bytes());
        }
        page[56..58].copy_from_slice(&self.before.batches.to_le_bytes());
        page[58..60].copy_from_slice(&self.before.skipped.to_le_bytes());
        for (entry, to) in entries.iter().zip(page[HEAD..].chunks_mut(ENTRY)) {
            entry.encode(to);
        }
        let checksum = checksum(page, at);
        page[60..64].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Returns None if it is torn, not for this place, or makes no sense; puts the entries into the list.
    pub(crate) fn decode(page: &Page, at: DevicePage, uuid: &[u8; 16], entries: &mut Vec<Entry>) -> Option<SummaryHeader> {
        entries.clear();
        if page[..4] != MAGIC
            || !is_summary_known(page[4])
            || page[5] != 0
            || page[8..24] != *uuid
            || u32_at(page, 60) != checksum(page, at)
        {
            return None;
        }
        let count = usize::from(page[6]) | usize::from(page[7]) << 8;
        for from in page[HEAD..].chunks(ENTRY).take(count) {
            entries.push(Entry::decode(from)?);
        }
        let head = SummaryHeader {
            uuid: *uuid,
            seq: u64_at(page, 24),
            tail: u64_at(page, 32),
            life: u32_at(page, 40),
            batch: u32_at(page, 44),
            position: u32_at(page, 48),
            durable: u32_at(page, 52),
            before: PreviousSegment {
                batches: u16::from_le_bytes([page[56], page[57]]),
                skipped: u16::from_le_bytes([page[58], page[59]]),
            },
        };
        let sane = count <= ENTRIES && (1..SEQ_END).contains(&head.seq) && (1..=head.seq).contains(&head.tail);
        (sane && head.durable <= head.batch).then_some(head)
    }
}

fn checksum(page: &Page, at: DevicePage) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&at.0.to_le_bytes()), &page[..60]), &page[HEAD..])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_every_flipped_bit_is_noticed() {
        let head = SummaryHeader {
            uuid: [3; 16],
            seq: 5,
            life: 6,
            batch: 7,
            position: 8,
            durable: 2,
            before: PreviousSegment { batches: 9, skipped: 1 },
            tail: 4,
        };
        let entry = |page, kind| Entry { key: FileKey(1), page: PageIndex(page), kind };
        let entries = [
            entry(2, EntryKind::Dirty { checksum: 5 }),
            entry(9, EntryKind::Clean { checksum: 6 }),
            entry(0, EntryKind::Dropped { count: u64::MAX }),
        ];
        let (mut page, mut found) = ([0; PAGE_BYTES], Vec::new());
        head.encode(&entries, DevicePage(77), &mut page);
        assert_eq!(SummaryHeader::decode(&page, DevicePage(77), &[3; 16], &mut found), Some(head));
        assert_eq!(found, entries);
        assert_eq!(SummaryHeader::decode(&page, DevicePage(78), &[3; 16], &mut found), None, "misdirected");
        assert_eq!(SummaryHeader::decode(&page, DevicePage(77), &[4; 16], &mut found), None, "another cache's");
        for bit in (0..PAGE_BYTES * 8).step_by(7) {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SummaryHeader::decode(&page, DevicePage(77), &[3; 16], &mut found), None, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
