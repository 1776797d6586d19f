//! SSD caches of released versions open, with every page, its state and its bytes.

use sim::golden;
use ssdcache::{
    CacheError, CollectScope, DevicePage, FileKey, LookupResult, PAGE_BYTES, Page, PageIndex, PageVersion, Shape, SsdCache, VerifyResult,
    recover,
};

/// The log is in its first round, with pages that were dropped and others that were written back.
const FRESH: &str = "ssd-cache-fresh.img";
/// The log has gone round the device.
const ROUND: &str = "ssd-cache-round.img";
const SHAPE: Shape = Shape { segment_pages: 8, segments: 6 };
const UUID: [u8; 16] = *b"golden cache 0.1";

struct TestDevice(Vec<Page>);

impl TestDevice {
    fn load(bytes: &[u8]) -> TestDevice {
        TestDevice(bytes.as_chunks::<PAGE_BYTES>().0.to_vec())
    }

    fn page(&mut self, at: DevicePage) -> &mut Page {
        &mut self.0[usize::try_from(at.0).expect("small")]
    }

    fn open(&self) -> SsdCache {
        let read = |wanted: &[DevicePage], each: &mut dyn FnMut(usize, &Page)| {
            wanted.iter().enumerate().for_each(|(n, at)| each(n, &self.0[usize::try_from(at.0).expect("small")]));
        };
        let (cache, found) = recover(self.0.len() as u64, Some(UUID), 9, None, &[], read).expect("opened");
        assert_eq!((found.damaged, found.suspect.len(), found.crowded), (0, 0, 0));
        cache
    }

    fn write_superblock(&mut self, cache: &mut SsdCache) {
        let mut page = [0; PAGE_BYTES];
        let at = cache.superblock(&mut page);
        *self.page(at) = page;
        cache.superblock_written();
    }

    fn commit(&mut self, cache: &mut SsdCache) {
        let mut summary = [0; PAGE_BYTES];
        if let Some(sealed) = cache.seal(&mut summary) {
            *self.page(sealed.at) = summary;
            cache.ended(sealed.stamp, true);
        }
        cache.flush_ended(cache.flush_begins(), true);
    }

    fn put(&mut self, cache: &mut SsdCache, (key, page): (u64, u64), version: PageVersion, round: u8) {
        let bytes = content(key, page, round);
        loop {
            match cache.put(FileKey(key), PageIndex(page), version, &bytes) {
                Ok(put) => break *self.page(put.at) = bytes,
                Err(CacheError::Reclaim) => {
                    let mut items = Vec::new();
                    cache.collect_dirty(CollectScope::Oldest(1), 99, &mut items);
                    items.iter().for_each(|item| assert!(cache.written_back(item)));
                    if cache.reclaim().is_err() {
                        self.commit(cache);
                    }
                }
                Err(CacheError::Superblock) => self.write_superblock(cache),
                Err(_) => self.commit(cache),
            }
        }
    }
}

/// Bytes that differ by file, page and round, and compress well.
fn content(key: u64, page: u64, round: u8) -> Page {
    std::array::from_fn(|at| (at / 512) as u8 ^ key as u8 ^ (page as u8) << 3 ^ round.wrapping_mul(31))
}

/// Every page with its place, state and checksum, in words that do not change with the names of the code.
fn listing(cache: &SsdCache, device: &TestDevice) -> Vec<String> {
    let mut lines = Vec::new();
    for (item, version) in cache.items() {
        let bytes = &device.0[usize::try_from(item.at.0).expect("small")];
        assert_eq!(cache.verify(&item, bytes), VerifyResult::Good, "{item:?}");
        let state = if version == PageVersion::Dirty { "dirty" } else { "clean" };
        lines.push(format!("file {} page {} at {} {state} {:08x}", item.key.0, item.page.0, item.at.0, crc32c::crc32c(bytes)));
    }
    lines.sort();
    let identity = cache.identity();
    let Shape { segment_pages, segments } = identity.shape;
    lines.push(format!("uuid {} generation {} segments {segments} of {segment_pages}", identity.uuid.escape_ascii(), identity.generation));
    lines
}

fn make() {
    let mut device = TestDevice(vec![[0; PAGE_BYTES]; usize::try_from(SHAPE.device_pages()).expect("small")]);
    device.0[..2].copy_from_slice(&SsdCache::format(UUID, SHAPE));
    let mut cache = device.open();
    device.write_superblock(&mut cache);
    for page in 0..6 {
        device.put(&mut cache, (1, page), PageVersion::Clean, 0);
        device.put(&mut cache, (2, page * 1000), PageVersion::Dirty, 0);
    }
    device.commit(&mut cache);
    device.put(&mut cache, (2, 1000), PageVersion::Dirty, 1);
    cache.invalidate(FileKey(1), 2..4).expect("room");
    let mut items = Vec::new();
    cache.collect_dirty(CollectScope::Oldest(1), 2, &mut items);
    items.iter().for_each(|item| assert!(cache.written_back(item)));
    device.commit(&mut cache);
    golden::store(FRESH, device.0.as_flattened());
    for round in 2..8 {
        for page in 0..9 {
            let version = if page % 3 == 0 { PageVersion::Clean } else { PageVersion::Dirty };
            device.put(&mut cache, (1 + page % 4, page), version, round);
        }
    }
    device.commit(&mut cache);
    golden::store(ROUND, device.0.as_flattened());
    for name in [FRESH, ROUND] {
        let device = TestDevice::load(&golden::load(golden::CURRENT, name));
        let lines = listing(&device.open(), &device);
        golden::store(&name.replace(".img", ".txt"), (lines.join("\n") + "\n").as_bytes());
    }
}

#[test]
fn caches_of_every_release_open_with_every_page() {
    if golden::is_made_anew() {
        make();
    }
    for release in golden::RELEASES {
        for name in [FRESH, ROUND] {
            let mut device = TestDevice::load(&golden::load(release, name));
            let mut cache = device.open();
            golden::compare(release, &name.replace(".img", ".txt"), &listing(&cache, &device));
            // It can be written and opened again.
            device.write_superblock(&mut cache);
            device.put(&mut cache, (7, 5), PageVersion::Dirty, 9);
            device.commit(&mut cache);
            let cache = device.open();
            let LookupResult::Hit(item) = cache.lookup(FileKey(7), PageIndex(5)) else { panic!("{release}: {name}: the new page is lost") };
            assert_eq!(*device.page(item.at), content(7, 5, 9));
        }
    }
}

#[test]
fn a_listing_holds_what_was_put() {
    if golden::is_made_anew() {
        return;
    }
    let stored = String::from_utf8(golden::load("0.1", "ssd-cache-fresh.txt")).expect("text");
    let has = |key: u64, page: u64, round: u8| {
        let checksum = format!("{:08x}", crc32c::crc32c(&content(key, page, round)));
        stored.lines().any(|line| line.starts_with(&format!("file {key} page {page} ")) && line.ends_with(&checksum))
    };
    assert!(has(1, 0, 0) && has(2, 0, 0) && has(2, 1000, 1) && has(1, 5, 0));
    assert!(!stored.contains("file 1 page 2 ") && !stored.contains("file 1 page 3 "), "dropped");
}
