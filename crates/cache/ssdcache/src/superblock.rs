//! The first two pages of the device: what lies on it. Layout: docs/formats.md, "The SSD cache".

use crate::open_error::CacheOpenError;
use crate::units::{DevicePage, PAGE_BYTES, Page};
use crate::version::{VERSION, migrate};

const MAGIC: [u8; 4] = *b"hssc";
const USED: usize = 72;
const _: () = assert!(USED <= 512, "within the sector that a device writes whole");
/// Where the segments begin.
pub(crate) const FIRST: u64 = 2;
const SEGMENT_PAGES: std::ops::RangeInclusive<u32> = 8..=32768;
/// 1 TiB: 28 bits of an entry of the index.
const SLOTS_MAX: u64 = (1 << 28) - 2;

/// Sizes of a cache, in pages of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Pages of a segment, 8 to 32768.
    pub segment_pages: u32,
    /// The number of segments, at least 3.
    pub segments: u32,
}

impl Shape {
    /// As many segments as fit.
    pub fn of_device(device_pages: u64, segment_pages: u32) -> Shape {
        let segments = device_pages.saturating_sub(FIRST).min(SLOTS_MAX) / u64::from(segment_pages.max(1));
        Shape { segment_pages, segments: segments as u32 }
    }

    /// Slots, those that will hold summaries included.
    pub fn slots(self) -> u32 {
        self.segments * self.segment_pages
    }

    /// Pages the device needs to have.
    pub fn device_pages(self) -> u64 {
        FIRST + u64::from(self.segments) * u64::from(self.segment_pages)
    }

    /// # Errors
    /// What is wrong with the sizes, or with the device for them.
    pub fn check(self, device_pages: u64) -> Result<(), CacheOpenError> {
        let slots = u64::from(self.segments) * u64::from(self.segment_pages);
        if !SEGMENT_PAGES.contains(&self.segment_pages) || self.segments < 3 || slots > SLOTS_MAX {
            return Err(CacheOpenError::Shape);
        }
        if self.device_pages() > device_pages { Err(CacheOpenError::Size(device_pages)) } else { Ok(()) }
    }
}

/// The contents of a superblock of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Random, made when the cache was.
    pub uuid: [u8; 16],
    /// Counted up with each writing; also the number of the life, see `summary`.
    pub generation: u64,
    /// The sizes of the cache.
    pub shape: Shape,
    /// Segments with a lower sequence number are no longer part of the cache.
    pub(crate) tail: u64,
    /// Segment `seq` is at `(seq + rotation)` modulo their number: so segments stay where they are when the cache grows.
    pub(crate) rotation: u64,
}

impl Superblock {
    /// Makes the superblock of an empty cache.
    pub fn new(uuid: [u8; 16], shape: Shape) -> Superblock {
        Superblock { uuid, generation: 1, shape, tail: 1, rotation: 0 }
    }

    /// Where a segment is.
    pub(crate) fn place_of(&self, seq: u64) -> usize {
        ((seq + self.rotation) % u64::from(self.shape.segments)) as usize
    }

    /// The next one, and which page of the device it goes to: they take turns, so that one is whole at any time.
    pub(crate) fn place(&self) -> DevicePage {
        DevicePage(self.generation % 2)
    }

    pub(crate) fn encode(&self) -> Page {
        let mut page = [0; PAGE_BYTES];
        page[..4].copy_from_slice(&MAGIC);
        page[4..8].copy_from_slice(&VERSION.to_le_bytes());
        page[8..24].copy_from_slice(&self.uuid);
        page[24..32].copy_from_slice(&self.generation.to_le_bytes());
        page[32..40].copy_from_slice(&FIRST.to_le_bytes());
        page[40..44].copy_from_slice(&self.shape.segment_pages.to_le_bytes());
        page[44..48].copy_from_slice(&self.shape.segments.to_le_bytes());
        page[48..56].copy_from_slice(&self.tail.to_le_bytes());
        page[56..64].copy_from_slice(&self.rotation.to_le_bytes());
        let checksum = checksum(&page, self.place());
        page[68..72].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    fn decode(page: &Page, at: DevicePage) -> Result<Superblock, CacheOpenError> {
        if page[..4] != MAGIC {
            return Err(CacheOpenError::None);
        }
        let version = u32_at(page, 4);
        // The checksum is that of the page as it was written.
        let has_checksum = u32_at(page, 68) == checksum(page, at);
        let page = &mut page.clone();
        migrate(version, page)?;
        let block = Superblock {
            uuid: page[8..24].try_into().map_err(|_| CacheOpenError::None)?,
            generation: u64_at(page, 24),
            shape: Shape { segment_pages: u32_at(page, 40), segments: u32_at(page, 44) },
            tail: u64_at(page, 48),
            rotation: u64_at(page, 56),
        };
        let whole = has_checksum && block.place() == at && u64_at(page, 32) == FIRST;
        // A count that could overflow was not counted.
        let sane = block.generation < u64::from(u32::MAX) && (1..SEQ_END).contains(&block.tail);
        if whole && sane && block.rotation <= u64::from(block.shape.segments) { Ok(block) } else { Err(CacheOpenError::None) }
    }

    /// The newer of the two whole ones.
    ///
    /// # Errors
    /// None is whole, one is of a later version, or the device is too small.
    pub fn choose(pages: &[Page; 2], device_pages: u64) -> Result<Superblock, CacheOpenError> {
        let both = [Superblock::decode(&pages[0], DevicePage(0)), Superblock::decode(&pages[1], DevicePage(1))];
        if let Some(later) = both.iter().find_map(|block| block.err().filter(|why| matches!(why, CacheOpenError::Later(_)))) {
            return Err(later);
        }
        let newer = both.into_iter().flatten().max_by_key(|block| block.generation).ok_or(CacheOpenError::None)?;
        newer.shape.check(device_pages)?;
        Ok(newer)
    }
}

/// Sequence numbers are below; stamps have 48 bits for them.
pub(crate) const SEQ_END: u64 = 1 << 47;

fn checksum(page: &Page, at: DevicePage) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&at.0.to_le_bytes()), &page[..68])
}

pub(crate) fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

pub(crate) fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from(u32_at(page, at)) | u64::from(u32_at(page, at + 4)) << 32
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_newer_whole_one_counts_and_a_later_version_is_refused() {
        let shape = Shape { segment_pages: 8, segments: 4 };
        let old = Superblock::new([7; 16], shape);
        let new = Superblock { generation: 2, tail: 9, ..old };
        let mut pages = [new.encode(), old.encode()];
        assert_eq!(Superblock::choose(&pages, 34), Ok(new));
        assert_eq!(Superblock::choose(&pages, 33), Err(CacheOpenError::Size(33)));
        pages[0][30] ^= 1;
        assert_eq!(Superblock::choose(&pages, 34), Ok(old));
        assert_eq!(Superblock::choose(&[old.encode(), new.encode()], 34), Err(CacheOpenError::None), "in each other's place");
        pages[0][4] = 2;
        assert_eq!(Superblock::choose(&pages, 34), Err(CacheOpenError::Later(2)));
    }
}
