//! Sequential readers find their pages there.

use block::Op;
use datapath::Settings;
use pagecache::PAGE_BYTES;

use crate::device::Device;
use crate::model::Pair;

fn pair(frames: u32, ahead_max: u32) -> Pair {
    let device = Device::new(4096, 4 << 20, 1);
    device.state.lock().latency_ns = 100_000;
    Pair::new(device, Settings { ahead_max, ..Settings::new(frames) }, 1, 32)
}

/// Reads every page in order; takes 20 us for each. Returns the time it took, in us.
fn read_all(pair: &mut Pair) -> u64 {
    for page in 0..pair.bytes.len() / PAGE_BYTES {
        pair.read(page * PAGE_BYTES, PAGE_BYTES).expect("nothing fails");
        pair.device.state.lock().now_ns += 20_000;
    }
    pair.device.state.lock().now_ns / 1000
}

#[test]
fn a_stream_waits_for_few_pages() {
    let [without, with] = [0, 32].map(|ahead_max| read_all(&mut pair(256, ahead_max)));
    assert!(without >= 1024 * 70, "each page waits for the device: {without} us");
    assert!(with < 1024 * 24, "the device works while the reader does: {with} us");
}

#[test]
fn the_window_goes_with_the_miss_and_one_bell() {
    let mut pair = pair(256, 32);
    pair.read(0, PAGE_BYTES).expect("nothing fails");
    let rings = pair.device.state.lock().rings;
    pair.read(PAGE_BYTES, PAGE_BYTES).expect("nothing fails");
    let state = pair.device.state.lock();
    let reads: Vec<_> = state.log.iter().map(|(op, lba, blocks, _)| (*op, *lba, *blocks)).collect();
    assert_eq!(reads, [(Op::Read, 0, 1), (Op::Read, 1, 1), (Op::Read, 2, 4)]);
    assert_eq!((state.log[1].3, state.rings), (state.log[2].3, rings + 1), "at one time, with one bell");
}

#[test]
fn hot_pages_stay_while_a_stream_goes_by() {
    let mut pair = pair(64, 32);
    for _ in 0..4 {
        for page in [900, 950, 1000, 1020] {
            pair.read(page * PAGE_BYTES, 100).expect("nothing fails");
        }
    }
    for page in 0..800 {
        pair.read(page * PAGE_BYTES, PAGE_BYTES).expect("nothing fails");
    }
    let misses = pair.cache.stats().misses;
    for page in [900, 950, 1000, 1020] {
        pair.read(page * PAGE_BYTES, 100).expect("nothing fails");
    }
    assert_eq!(pair.cache.stats().misses, misses, "they are still here");
}

#[test]
fn a_failure_of_what_nobody_asked_for_is_nobodys() {
    let mut pair = pair(256, 32);
    pair.device.state.lock().bad_blocks = 20..21;
    for page in 0..20 {
        pair.read(page * PAGE_BYTES, PAGE_BYTES).expect("these pages are good");
    }
    assert_eq!(pair.read(20 * PAGE_BYTES, PAGE_BYTES), Err(block::Error::Media));
    pair.read(21 * PAGE_BYTES, 40 * PAGE_BYTES).expect("the others are good, too");
    pair.device.state.lock().bad_blocks = 0..0;
    pair.read(20 * PAGE_BYTES, PAGE_BYTES).expect("asked for again");
}
