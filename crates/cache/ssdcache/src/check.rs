//! What is on a device, for people: without changing anything.

use std::collections::BTreeMap;

use crate::cache::SsdCache;
use crate::checksum::page_checksum;
use crate::recover::{RecoveryResult, recover};
use crate::slots::FILES_MAX;
use crate::superblock::{CacheOpenError, Shape};
use crate::units::{DevicePage, FileKey, Item, Page, SsdSlot};

/// Pages that are read at once.
const AT_ONCE: usize = 256;

/// What becomes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    /// It is not part of the log.
    Free,
    /// Full.
    Used,
    /// It is being written.
    Head,
}

/// What a check found in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentReport {
    /// The state of the segment.
    pub state: SegmentState,
    /// Its sequence number; 0 if it is free.
    pub seq: u64,
    /// The number of valid pages in it.
    pub live: u32,
    /// The number of dirty pages among them.
    pub dirty: u32,
}

/// What a check found of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileReport {
    /// Which; [`FileKey::OWN`] are the cache's own pages.
    pub key: FileKey,
    /// The number of valid pages it has.
    pub pages: u64,
    /// The number of dirty pages among them.
    pub dirty: u64,
}

/// A page whose bytes are not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPage {
    /// The page and where it is.
    pub item: Item,
    /// Whether it was newer than below: then bytes are lost.
    pub dirty: bool,
}

/// What a check of a whole cache found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckReport {
    /// The UUID of the cache.
    pub uuid: [u8; 16],
    /// The sizes of the cache.
    pub shape: Shape,
    /// How often a superblock was written.
    pub generation: u64,
    /// The segments, by their place on the device.
    pub segments: Vec<SegmentReport>,
    /// The files with cached pages, by key.
    pub files: Vec<FileReport>,
    /// What recovery had to say: damage, suspects.
    pub recovered: RecoveryResult,
    /// If the pages were read: those that are bad.
    pub bad: Vec<BadPage>,
}

impl CheckReport {
    /// Pages that count, and dirty ones without the cache's own.
    pub fn len(&self) -> (u64, u64) {
        let dirty = self.files.iter().filter(|file| file.key != FileKey::OWN).map(|file| file.dirty).sum();
        (self.files.iter().map(|file| file.pages).sum(), dirty)
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Nothing is damaged or lost.
    pub fn is_sound(&self) -> bool {
        self.recovered.damaged == 0 && self.recovered.suspect.is_empty() && self.bad.is_empty()
    }
}

/// Looks at a device of so many pages, also at every page that counts if `deep`. `read` is as for [`recover`].
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
