//! Changes the number of segments while no process uses the cache.
//!
//! *To grow* nothing is moved. The log wraps around the device. Where it is contiguous, a number (`rotation`) in the superblock keeps its
//! segments in place while the device becomes longer. Where the log wraps at the end of the device, its older part is discarded, which
//! requires that it is clean. *To shrink* everything is discarded, if no page is dirty: the removed segments may be the newest.

use crate::cache::SsdCache;
use crate::open_error::CacheOpenError;
use crate::recover::recover;
use crate::slots::FILES_MAX;
use crate::superblock::{Shape, Superblock};
use crate::units::{DevicePage, FileKey, Page};

/// The reason why a cache keeps its size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResizeError {
    /// There is no usable cache, or the new size is not valid.
    #[error(transparent)]
    Unusable(#[from] CacheOpenError),
    /// Durable batches of the cache are missing.
    #[error("the cache is damaged: `hotshelf cache check` says what is left")]
    Damaged,
    /// Some pages to be discarded are newer than the backing files.
    #[error("{0} dirty pages are in the way: write them back first with `hotshelf cache flush`")]
    Dirty(u64),
    /// The cache already has that size.
    #[error("the cache has that size already")]
    Same,
}

/// Returns the superblocks for this number of segments: write and flush the first, then the second. To grow, the device must have its new
/// size already (`device_pages`); to shrink, it may be shortened afterwards. No process may use the cache meanwhile. `read` is as for
/// [`recover`].
///
/// # Errors
/// See [`ResizeError`]; then nothing is to be written.
pub fn resize(
    device_pages: u64,
    segments: u32,
    read: impl FnMut(&[DevicePage], &mut dyn FnMut(usize, &Page)),
) -> Result<[(DevicePage, Box<Page>); 2], ResizeError> {
    let (cache, found) = recover(device_pages, None, FILES_MAX, None, &[], read)?;
    let shape = Shape { segments, ..cache.shape() };
    shape.check(device_pages)?;
    if segments == cache.shape().segments {
        return Err(ResizeError::Same);
    }
    if found.damaged > 0 {
        return Err(ResizeError::Damaged);
    }
    let (tail, rotation) = if segments > cache.shape().segments { grown(&cache, shape)? } else { (emptied(&cache)?, 0) };
    Ok([1, 2].map(|n| {
        let next = Superblock { shape, tail, rotation, generation: cache.superblock.generation + n, ..cache.superblock };
        (next.place(), Box::new(next.encode()))
    }))
}

/// Returns the tail from which the log is contiguous, and the rotation that keeps it in place.
fn grown(cache: &SsdCache, shape: Shape) -> Result<(u64, u64), ResizeError> {
    let (mut tail, head) = (cache.superblock.tail, cache.head.seq);
    if cache.place_of(tail) > cache.place_of(head) && tail <= head {
        tail = head - cache.place_of(head) as u64;
    }
    let mut given_up = (cache.superblock.tail..tail).map(|seq| cache.segments[cache.place_of(seq)]);
    if given_up.any(|segment| segment.dirty > 0) {
        // The cache's own pages may go too when there are no others that are dirty.
        none_dirty(cache)?;
    }
    let segments = u64::from(shape.segments);
    Ok((tail, (cache.place_of(tail) as u64 + segments - tail % segments) % segments))
}

/// Returns a tail behind all segments.
fn emptied(cache: &SsdCache) -> Result<u64, ResizeError> {
    none_dirty(cache)?;
    Ok(cache.head.seq + 1)
}

fn none_dirty(cache: &SsdCache) -> Result<(), ResizeError> {
    let dirty = cache.len().1.saturating_sub(u64::from(cache.dirty_of(FileKey::OWN)));
    if dirty > 0 { Err(ResizeError::Dirty(dirty)) } else { Ok(()) }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::hostile::{SHAPE, image};
    use crate::oracle::bytes_of;
    use crate::*;

    type Each<'a> = dyn FnMut(usize, &Page) + 'a;

    fn read(media: &[Page]) -> impl FnMut(&[DevicePage], &mut Each<'_>) {
        move |wanted: &[DevicePage], each: &mut Each<'_>| {
            for (n, at) in wanted.iter().enumerate() {
                media.get(at.0 as usize).inspect(|page| each(n, page));
            }
        }
    }

    fn pages(media: &[Page]) -> Vec<(Item, bool)> {
        let (cache, found) = recover(media.len() as u64, None, 9, None, &[], read(media)).expect("whole");
        assert_eq!(found.damaged, 0);
        let items = (1..3).flat_map(|key| (0..30).map(move |page| (FileKey(key), PageIndex(page))));
        items
            .filter_map(|(key, page)| match cache.lookup(key, page) {
                LookupResult::Hit(item) => {
                    assert_eq!(cache.verify(&item, &media[item.at.0 as usize]), VerifyResult::Good);
                    Some((item, cache.is_dirty(key, page)))
                }
                _ => None,
            })
            .collect()
    }

    /// Puts pages until the log has wrapped around.
    fn write_on(media: &mut [Page], puts: u64, version: PageVersion) {
        let (mut cache, _) = recover(media.len() as u64, None, 9, None, &[], read(media)).expect("whole");
        let at = cache.superblock(&mut [0; PAGE_BYTES]);
        let mut page = [0; PAGE_BYTES];
        assert_eq!(cache.superblock(&mut page).0, 1 - at.0);
        media[1 - at.0 as usize] = page;
        cache.superblock_written();
        let mut items = Vec::new();
        for n in 0..puts {
            let bytes = bytes_of(n, FileKey(1), n % 30);
            loop {
                match cache.put(FileKey(1), PageIndex(n % 30), version, &bytes) {
                    Ok(put) => break media[put.at.0 as usize] = bytes,
                    Err(CacheError::Reclaim) => {
                        cache.collect_dirty(CollectScope::Oldest(1), 99, &mut items);
                        items.iter().for_each(|item| assert!(cache.written_back(item)));
                        if let Err(CacheError::Seal | CacheError::Flush) = cache.reclaim() {
                            commit(&mut cache, media);
                        }
                    }
                    Err(CacheError::Superblock) => {
                        let at = cache.superblock(&mut page);
                        media[at.0 as usize] = page;
                        cache.superblock_written();
                    }
                    Err(CacheError::Seal | CacheError::Flush) => commit(&mut cache, media),
                    Err(other) => panic!("{other}"),
                }
            }
        }
        commit(&mut cache, media);
    }

    fn commit(cache: &mut SsdCache, media: &mut [Page]) {
        let mut summary = [0; PAGE_BYTES];
        if let Some(sealed) = cache.seal(&mut summary) {
            media[sealed.at.0 as usize] = summary;
            cache.ended(sealed.stamp, true);
        }
        cache.flush_ended(cache.flush_begins(), true);
    }

    #[test]
    fn what_grows_keeps_its_pages_and_goes_on_where_it_was_half_written_too() {
        let (mut grew, mut wrapped, mut refused) = (0, 0, 0);
        for puts in 0..15 {
            let mut media = image(3);
            write_on(&mut media, puts * 12, PageVersion::Dirty);
            let before = pages(&media);
            let shape = Shape { segments: 9, ..SHAPE };
            media.resize(shape.device_pages() as usize, [0; PAGE_BYTES]);
            let written = match resize(media.len() as u64, 9, read(&media)) {
                Ok(written) => written,
                Err(ResizeError::Dirty(dirty)) => {
                    (refused, _) = (refused + 1, assert!(dirty > 0));
                    continue;
                }
                Err(other) => panic!("{other}"),
            };
            for (at, page) in written {
                media[at.0 as usize] = *page;
                let after = pages(&media);
                wrapped += u32::from(after.len() < before.len());
                assert!(after.iter().all(|page| before.contains(page)), "pages stay where they are");
                assert!(before.iter().all(|page| after.contains(page) || !page.1), "no dirty page goes");
            }
            grew += 1;
            write_on(&mut media, 150, PageVersion::Dirty);
            let report = check(media.len() as u64, true, read(&media)).expect("whole");
            assert!(report.is_sound() && report.shape == shape && report.len().0 >= 30, "{report:?}");
            assert!(report.segments.iter().filter(|segment| segment.state != SegmentState::Free).count() >= 7, "all are used");
        }
        println!("{grew} grew, {refused} were refused, {wrapped} gave up pages");
        assert!(grew > 3 && refused > 3, "{grew} {refused}");
    }

    #[test]
    fn what_shrinks_has_to_be_clean_and_is_empty_then() {
        let mut media = image(5);
        let resized = resize(media.len() as u64, 3, read(&media));
        assert!(matches!(resized, Err(ResizeError::Dirty(dirty)) if dirty > 0), "{resized:?}");
        assert_eq!(resize(media.len() as u64, 6, read(&media)).err(), Some(ResizeError::Same));
        assert!(matches!(resize(media.len() as u64, 7, read(&media)), Err(ResizeError::Unusable(CacheOpenError::Size(_)))));
        media = vec![[0; PAGE_BYTES]; SHAPE.device_pages() as usize];
        media[..2].copy_from_slice(&SsdCache::format([1; 16], SHAPE));
        write_on(&mut media, 99, PageVersion::Clean);
        assert!(!pages(&media).is_empty());
        for (at, page) in resize(media.len() as u64, 3, read(&media)).expect("all is clean") {
            media[at.0 as usize] = *page;
        }
        media.truncate(Shape { segments: 3, ..SHAPE }.device_pages() as usize);
        assert_eq!(pages(&media), []);
        write_on(&mut media, 100, PageVersion::Dirty);
        let report = check(media.len() as u64, true, read(&media)).expect("whole");
        assert!(report.is_sound() && report.len().0 > 5, "{report:?}");
    }

    #[test]
    fn a_check_names_what_is_bad() {
        let mut media = image(4);
        let report = check(media.len() as u64, true, read(&media)).expect("whole");
        assert!(report.is_sound() && !report.is_empty() && report.len().1 > 0, "{report:?}");
        let place = |item: &Item| (item.at.0 - 2) / u64::from(SHAPE.segment_pages);
        // Pages of the head that are bad are not taken for pages.
        let used = |(item, _): &(Item, bool)| report.segments[place(item) as usize].state == SegmentState::Used;
        let (item, dirty) = pages(&media).into_iter().find(used).expect("some are there");
        media[item.at.0 as usize][77] ^= 1;
        let report = check(media.len() as u64, true, read(&media)).expect("whole");
        assert_eq!(report.bad, [BadPage { item, dirty }]);
    }
}
