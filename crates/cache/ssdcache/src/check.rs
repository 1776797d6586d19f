//! Checks a device for the user, without changing anything.

use std::collections::BTreeMap;

use crate::cache::SsdCache;
use crate::checksum::page_checksum;
use crate::open_error::CacheOpenError;
use crate::recover::{RecoveryResult, recover};
use crate::slots::FILES_MAX;
use crate::superblock::Shape;
use crate::units::{DevicePage, FileKey, Item, Page, SsdSlot};

/// Number of pages that are read at once.
const AT_ONCE: usize = 256;

/// The state of a segment of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// The segment is not part of the log.
    Free,
    /// The segment is complete and part of the log.
    Used,
    /// The segment is being written.
    Head,
}

/// The result of checking a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentReport {
    /// The state of the segment.
    pub state: SegmentState,
    /// The sequence number of the segment; 0 if it is free.
    pub seq: u64,
    /// The number of valid pages in it.
    pub live: u32,
    /// The number of dirty pages among them.
    pub dirty: u32,
}

/// The result of checking a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileReport {
    /// The key of the file; [`FileKey::OWN`] are the cache's own pages.
    pub key: FileKey,
    /// The number of valid pages it has.
    pub pages: u64,
    /// The number of dirty pages among them.
    pub dirty: u64,
}

/// A page whose bytes differ from those that were written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPage {
    /// The page and its place on the device.
    pub item: Item,
    /// Whether it was newer than the backing file: then bytes are lost.
    pub dirty: bool,
}

/// The result of checking a whole cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckReport {
    /// The UUID of the cache.
    pub uuid: [u8; 16],
    /// The sizes of the cache.
    pub shape: Shape,
    /// The number of superblocks written so far.
    pub generation: u64,
    /// The segments, by their place on the device.
    pub segments: Vec<SegmentReport>,
    /// The files with cached pages, by key.
    pub files: Vec<FileReport>,
    /// The damage and the suspect pages that recovery found.
    pub recovered: RecoveryResult,
    /// The bad pages, if the pages were read.
    pub bad: Vec<BadPage>,
}

impl CheckReport {
    /// Returns the number of valid pages, and of dirty ones among them without the cache's own.
    pub fn len(&self) -> (u64, u64) {
        let dirty = self.files.iter().filter(|file| file.key != FileKey::OWN).map(|file| file.dirty).sum();
        (self.files.iter().map(|file| file.pages).sum(), dirty)
    }

    /// Returns whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns whether nothing is damaged or lost.
    pub fn is_sound(&self) -> bool {
        self.recovered.damaged == 0 && self.recovered.suspect.is_empty() && self.bad.is_empty()
    }
}

/// Checks a device with this number of pages; if `deep`, it also reads every valid page. `read` is as for [`recover`].
///
/// # Errors
/// As [`recover`].
pub fn check(
    device_pages: u64,
    deep: bool,
    mut read: impl FnMut(&[DevicePage], &mut dyn FnMut(usize, &Page)),
) -> Result<CheckReport, CacheOpenError> {
    let (cache, recovered) = recover(device_pages, None, FILES_MAX, None, &[], &mut read)?;
    let log = cache.superblock.tail..=cache.head.seq;
    let segments = cache.segments.iter().map(|one| {
        let state = match one.seq {
            seq if seq == 0 || !log.contains(&seq) => SegmentState::Free,
            seq if seq == cache.head.seq => SegmentState::Head,
            _ => SegmentState::Used,
        };
        SegmentReport { state, seq: one.seq, live: one.live, dirty: one.dirty }
    });
    let superblock = cache.superblock;
    Ok(CheckReport {
        uuid: superblock.uuid,
        shape: superblock.shape,
        generation: superblock.generation,
        segments: segments.collect(),
        files: files(&cache),
        recovered,
        bad: if deep { bad(&cache, read) } else { Vec::new() },
    })
}

fn items(cache: &SsdCache) -> impl Iterator<Item = Item> {
    (0..cache.shape().slots()).filter_map(|slot| cache.item(SsdSlot(slot)))
}

fn files(cache: &SsdCache) -> Vec<FileReport> {
    let mut files = BTreeMap::new();
    for item in items(cache) {
        let (pages, dirty) = files.entry(item.key).or_insert((0, 0));
        *pages += 1;
        *dirty += u64::from(cache.shared.is_dirty(item.slot));
    }
    files.into_iter().map(|(key, (pages, dirty))| FileReport { key, pages, dirty }).collect()
}

fn bad(cache: &SsdCache, mut read: impl FnMut(&[DevicePage], &mut dyn FnMut(usize, &Page))) -> Vec<BadPage> {
    let (mut bad, mut left) = (Vec::new(), items(cache));
    loop {
        let some: Vec<Item> = left.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return bad;
        }
        let wanted: Vec<DevicePage> = some.iter().map(|item| item.at).collect();
        let mut good = vec![false; some.len()];
        read(&wanted, &mut |n, bytes| {
            let Some(item) = some.get(n) else { return };
            let seq = cache.segments[cache.place(item.slot).0].seq;
            good[n] = page_checksum(bytes, item.key, item.page, item.at, seq) == cache.shared.checksum(item.slot);
        });
        let lost = some.iter().zip(good).filter(|(_, good)| !good);
        bad.extend(lost.map(|(item, _)| BadPage { item: *item, dirty: cache.shared.is_dirty(item.slot) }));
    }
}
