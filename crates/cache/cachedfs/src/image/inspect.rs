//! What is on an SSD, as a start of the cache would find it.

use std::path::PathBuf;
use std::time::Instant;

use datapath::engine::CATALOGUE;
use serde::Serialize;
use ssdcache::{DevicePage, PAGE_BYTES, Page, RecoveryResult, SsdCache};

use super::disk::Disk;
use crate::error::Error;

/// The largest number of files that are counted one by one.
const FILES_MAX: u64 = 1 << 20;

/// The state of a cache SSD that is not in use.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct SsdContents {
    /// The path of the file or device.
    pub path: PathBuf,
    /// The identity of the SSD, which formatting makes.
    pub uuid: String,
    /// How often it was opened.
    pub generation: u64,
    /// Bytes that are available for pages.
    pub bytes: u64,
    /// The number of segments of its log.
    pub segments: u32,
    /// The number of segments that hold pages.
    pub segments_used: u32,
    /// The number of pages of a segment.
    pub segment_pages: u32,
    /// Pages of files that are cached.
    pub pages: u64,
    /// Cached pages that are newer than the backing file: the only copy.
    pub dirty_pages: u64,
    /// Pages of the catalogue, which names the files.
    pub catalogue_pages: u64,
    /// Segments of which something was missing or damaged.
    pub damaged_segments: u64,
    /// Dirty pages that were given up, since what is missing may have been newer.
    pub suspect_pages: u64,
    /// Pages given up because there are too many files.
    pub crowded_pages: u64,
    /// Bytes written to it since it was formatted.
    pub written_ever_bytes: u64,
    /// How long it took to find all this, milliseconds: a start of the cache takes the same.
    pub recovery_ms: u64,
    /// Pages that were read for it.
    pub recovery_reads: u64,
    /// Of them, those that the device failed to read.
    pub failed_reads: u64,
}

/// Reads the state of a cache that no process uses. Writes nothing.
///
/// # Errors
/// [`crate::Kind::Device`]: it is in use, no cache, or of a later version. [`crate::Kind::System`]: the error of the kernel.
pub fn inspect(path: &std::path::Path) -> Result<SsdContents, Error> {
    of(&Disk::alone(path)?)
}

pub(super) fn of(disk: &Disk) -> Result<SsdContents, Error> {
    recover(disk).map(|(_, _, contents)| contents)
}

/// Reads the metadata and the state.
pub(super) fn recover(disk: &Disk) -> Result<(SsdCache, RecoveryResult, SsdContents), Error> {
    let begin = Instant::now();
    let superblock = disk.superblock()?;
    let files_max = u64::from(superblock.shape.slots()).clamp(16, FILES_MAX - 1) as u32;
    let (mut page, mut failed_reads) = ([0; PAGE_BYTES], 0);
    let read = |wanted: &[DevicePage], found: &mut dyn FnMut(usize, &Page)| {
        for (n, at) in wanted.iter().enumerate() {
            match disk.read(*at, &mut page) {
                Ok(()) => found(n, &page),
                Err(_) => failed_reads += 1,
            }
        }
    };
    let recovered = ssdcache::recover(disk.pages(), Some(superblock.uuid), files_max, None, &[], read);
    let (cache, found) = recovered.map_err(|why| disk.unusable(why))?;
    let (live, dirty) = cache.len();
    let (own, own_dirty) = (u64::from(cache.pages_of(CATALOGUE)), u64::from(cache.dirty_of(CATALOGUE)));
    let contents = SsdContents {
        path: disk.path.clone(),
        uuid: hex(&superblock.uuid),
        generation: superblock.generation,
        bytes: u64::from(superblock.shape.slots()) * PAGE_BYTES as u64,
        segments: superblock.shape.segments,
        segments_used: cache.segments_used(),
        segment_pages: superblock.shape.segment_pages,
        pages: live - own,
        dirty_pages: dirty - own_dirty,
        catalogue_pages: own,
        damaged_segments: found.damaged,
        suspect_pages: found.suspect.iter().filter(|item| item.key != CATALOGUE).count() as u64,
        crowded_pages: found.crowded,
        written_ever_bytes: cache.written_ever_pages() * PAGE_BYTES as u64,
        recovery_ms: begin.elapsed().as_millis() as u64,
        recovery_reads: found.reads,
        failed_reads,
    };
    Ok((cache, found, contents))
}

/// A UUID as people write it.
pub(crate) fn hex(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
