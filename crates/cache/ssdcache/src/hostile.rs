//! Images made to do harm: with checksums that are right, flipped bytes, and ends cut off. The answer is an error or less
//! cache, within the reads that the sizes allow.

use std::sync::Arc;

use shm::{PageSize, Region};

use crate::oracle::{Disk, bytes_of};
use crate::*;

pub(crate) const SHAPE: Shape = Shape { segment_pages: 16, segments: 6 };

pub(crate) fn image(seed: u64) -> Vec<Page> {
    let mut disk = Disk::new(SHAPE.device_pages());
    disk.media[..2].copy_from_slice(&SsdCache::format([1; 16], SHAPE));
    let (mut cache, _) = open(&disk.media).expect("fresh");
    let at = cache.superblock(&mut disk.media[0]);
    assert_eq!(at, DevicePage(1), "the third goes where the first was");
    disk.media.swap(0, 1);
    let newest = disk.media[1];
    disk.media[0].copy_from_slice(&SsdCache::format([1; 16], SHAPE)[0]);
    disk.media[1] = newest;
    cache.superblock_written();
    let mut rng = fastrand::Rng::with_seed(seed);
    for n in 0..70 {
        let (key, page) = (FileKey(rng.u64(1..3)), PageIndex(rng.u64(..30)));
        let bytes = bytes_of(n, key, page.0);
        if rng.u8(..5) == 0 {
            // Refused now and then: no matter here.
            _ = cache.invalidate(key, page.0..page.0 + 3);
        }
        loop {
            match cache.put(key, page, PageVersion::Dirty, &bytes) {
                Ok(put) => break disk.write(put.at, &bytes),
                Err(CacheError::Reclaim) => {
                    let mut items = Vec::new();
                    cache.collect_dirty(CollectScope::Oldest(1), 99, &mut items);
                    items.iter().for_each(|item| assert!(cache.written_back(item)));
                    cache.reclaim().expect("clean");
                }
                Err(_) => commit(&mut cache, &mut disk),
            }
        }
    }
    commit(&mut cache, &mut disk);
    disk.media
}

fn commit(cache: &mut SsdCache, disk: &mut Disk) {
    let mut summary = [0; PAGE_BYTES];
    if let Some(sealed) = cache.seal(&mut summary) {
        disk.write(sealed.at, &summary);
        cache.ended(sealed.stamp, true);
    }
    disk.flush();
    cache.flush_ended(cache.flush_begins(), true);
}

fn open(media: &[Page]) -> Result<(SsdCache, RecoveryResult), CacheOpenError> {
    let opened = recover(media.len() as u64, None, 2, None, &[], |wanted, each| {
        for (n, at) in wanted.iter().enumerate() {
            if let Some(page) = media.get(at.0 as usize) {
                each(n, page);
            }
        }
    });
    if let Ok((cache, found)) = &opened {
        // First summaries, the newest three times, pages.
        assert!(found.reads <= 6 * media.len() as u64, "{} reads", found.reads);
        let (live, dirty) = cache.len();
        assert!(dirty <= live && live <= u64::from(cache.shape().slots()));
    }
    opened
}

/// Calls every query, and goes on writing.
fn use_it(mut cache: SsdCache) {
    let (mut items, mut summary) = (Vec::new(), [0; PAGE_BYTES]);
    cache.superblock(&mut summary);
    cache.superblock_written();
    for n in 0..60 {
        for _ in 0..8 {
            cache.collect_dirty(CollectScope::Oldest(9), 99, &mut items);
            items.iter().for_each(|item| _ = cache.written_back(item));
            cache.collect_hot(9, &mut items);
            _ = cache.reclaim();
            match cache.put(FileKey(1 + n % 3), PageIndex(n), PageVersion::Dirty, &[1; PAGE_BYTES]) {
                Ok(_) | Err(CacheError::NotCacheable) => break,
                Err(CacheError::Superblock) => {
                    cache.superblock(&mut summary);
                    cache.superblock_written();
                }
                Err(_) => {
                    cache.seal(&mut summary).inspect(|sealed| cache.ended(sealed.stamp, true));
                    cache.flush_ended(cache.flush_begins(), true);
                }
            }
        }
    }
    cache.invalidate(FileKey(1), 0..u64::MAX).ok();
}

/// Makes the checksum of a superblock or summary right again.
fn seal_again(page: &mut Page, at: u64) {
    let mut checksum = crc32c::crc32c(&at.to_le_bytes());
    if page[..4] == *b"hssc" {
        checksum = crc32c::crc32c_append(checksum, &page[..68]);
        page[68..72].copy_from_slice(&checksum.to_le_bytes());
    } else {
        checksum = crc32c::crc32c_append(crc32c::crc32c_append(checksum, &page[..60]), &page[64..]);
        page[60..64].copy_from_slice(&checksum.to_le_bytes());
    }
}

#[test]
fn an_image_of_an_enemy_gives_an_error_or_less_cache() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("SEED={seed}");
    let whole = image(seed);
    let (cache, found) = open(&whole).expect("whole");
    assert!(found.damaged == 0 && cache.len().0 > 20, "{found:?}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut opened, mut damaged) = (0, 0);
    for n in 0..3000 {
        let mut media = whole.clone();
        for _ in 0..rng.u8(1..4) {
            let at = if rng.bool() { rng.usize(..2) } else { rng.usize(..media.len()) };
            let is_ours = media[at][..3] == *b"hss";
            let byte = if rng.bool() { rng.usize(..72) } else { rng.usize(..PAGE_BYTES) };
            let value = [rng.u8(..), 0, 255, media[at][byte] ^ 1][rng.usize(..4)];
            let width = [1, 4, 8][rng.usize(..3)];
            media[at].iter_mut().skip(byte).take(width).for_each(|byte| *byte = value);
            if is_ours && n % 4 > 0 {
                seal_again(&mut media[at], at as u64);
            }
        }
        if rng.u8(..10) == 0 {
            media.truncate(rng.usize(..media.len()));
        }
        if let Ok((cache, found)) = open(&media) {
            (opened, damaged) = (opened + 1, damaged + u32::from(found.damaged > 0));
            use_it(cache);
        }
    }
    assert!(opened > 500 && damaged > 20, "{opened} opened, {damaged} of them damaged");
}

#[test]
fn a_durable_batch_that_is_gone_is_reported_and_nothing_older_is_believed() {
    let whole = image(3);
    let summaries: Vec<usize> = (2..whole.len()).filter(|at| whole[*at][..4] == *b"hssm").collect();
    let mut reported = 0;
    for at in summaries {
        let mut media = whole.clone();
        media[at][100] ^= 4;
        let (_, found) = open(&media).expect("superblocks are whole");
        reported += u32::from(found.damaged > 0);
    }
    assert!(reported >= 3, "{reported}");
}

/// The map in shared memory over random bytes, or half ours and half random: nothing panics or runs on, no page is taken for
/// another, and a leader whose map is written over goes on.
#[test]
fn a_map_that_others_wrote_over_gives_no_wrong_page() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let media = image(seed);
    let bytes = shared_bytes(SHAPE);
    for round in 0..45 {
        let region = Arc::new(Region::private(bytes, PageSize::Small).expect("memory"));
        format_shared(&region, 0, SHAPE);
        let opened = recover(media.len() as u64, None, 8, Some((&region, 0)), &[], |wanted, each| {
            wanted.iter().enumerate().for_each(|(n, at)| each(n, &media[at.0 as usize]));
        });
        let (mut cache, _) = opened.expect("an image that we made");
        let number = cache.hold(FileKey(1)).expect("room");
        let view = View::attach(&region, 0, bytes).expect("formatted");
        cache.superblock(&mut [0; PAGE_BYTES]);
        cache.superblock_written();
        for _ in 0..if round % 3 == 0 { bytes / 8 } else { 20 } {
            let at = rng.usize(16..bytes - 8);
            region.write(at, &[rng.u64(..), 0, u64::MAX, 1][rng.usize(..4)].to_le_bytes());
        }
        for page in 0..40 {
            if let ViewLookup::Hit(found) =
                view.lookup(rng.choice([number, 0, 1, 9, u32::MAX - 1]).expect("some"), FileKey(1), PageIndex(page))
            {
                let bytes = media.get(found.item.at.0 as usize).copied().unwrap_or([0; PAGE_BYTES]);
                if view.verify(&found, &bytes) == VerifyResult::Good {
                    assert_eq!(bytes, bytes_of(u64::from_le_bytes(bytes[..8].try_into().expect("eight")), FileKey(1), page));
                }
                view.touch(&found);
            }
        }
        use_it(cache);
    }
    for _ in 0..300 {
        let region = Arc::new(Region::private(bytes, PageSize::Small).expect("memory"));
        format_shared(&region, 0, SHAPE);
        let header: Vec<u8> = (0..32).map(|_| if rng.bool() { rng.u8(..) } else { 0 }).collect();
        let from = rng.usize(..32);
        region.write(from, &header[from..]);
        let attached = View::attach(&region, rng.usize(..2) * 4, rng.usize(..2 * bytes));
        assert!(attached.is_err() || attached.is_ok_and(|view| shared_bytes(view.shape()) <= region.len()));
    }
}
