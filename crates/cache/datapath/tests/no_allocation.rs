//! Nothing is allocated on the path: neither by a hit, nor by a miss, a write, write-back or a flush.
#![forbid(unsafe_code)]

use allocation_counter::measure;
use block::driver::MemoryDevice;
use datapath::{BlockCache, Settings, SharedCache};
use pagecache::PageIndex;

#[test]
fn the_path_allocates_nothing() {
    let device = MemoryDevice::new(512, 8 << 20).expect("memory").with_geometry(|geometry| geometry.volatile_cache = true);
    let mut cache = BlockCache::open(vec![device.open_queue(32)], Settings::new(256)).expect("opened");
    let mut handle = cache.handle();
    let mut bytes = vec![7; 100_000];
    let counted = measure(|| {
        for round in 0..40_u64 {
            cache.write(&mut handle, round * 150_001, &bytes).expect("written");
            cache.read(&mut handle, round * 77_777, &mut bytes).expect("read");
            cache.read(&mut handle, round * 77_777, &mut bytes[..4096]).expect("a hit");
            let pinned = cache.pin(&mut handle, PageIndex(round)).expect("pinned");
            cache.unpin(pinned);
            if round % 8 == 0 {
                cache.flush(&mut handle).expect("flushed");
                cache.invalidate(0..1 << 20).expect("gone");
                cache.discard(1 << 20..2 << 20).expect("gone");
                cache.tick();
            }
        }
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
    assert!(cache.stats().hits > 0 && cache.stats().misses > 0 && cache.stats().pages_written > 0, "{:?}", cache.stats());
}

#[test]
fn nor_does_a_shared_hit() {
    let device = MemoryDevice::new(4096, 1 << 20).expect("memory");
    let cache = SharedCache::open(vec![device.open_queue(32)], Settings::new(256)).expect("opened");
    let mut handle = cache.handle();
    let mut bytes = vec![0; 4096];
    cache.read(&mut handle, 0, &mut bytes).expect("read");
    let counted = measure(|| {
        for _ in 0..100 {
            cache.read(&mut handle, 0, &mut bytes).expect("a hit");
            cache.write(&mut handle, 0, &bytes).expect("a hit");
        }
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
