//! When pages are written, in which order, and in how many requests.

use block::Op;
use datapath::Settings;
use fastrand::Rng;
use pagecache::PAGE_BYTES;

use crate::device::Device;
use crate::model::Pair;

fn pair(frames: u32) -> Pair {
    Pair::new(Device::new(4096, 1 << 20, 1), Settings::new(frames), 1, 32)
}

/// The writes so far: first page and pages.
fn writes(pair: &Pair) -> Vec<(u64, u32)> {
    let state = pair.device.state.lock();
    state.log.iter().filter(|(op, ..)| *op == Op::Write).map(|(_, lba, blocks, _)| (*lba, *blocks)).collect()
}

fn dirty(pair: &mut Pair, pages: &[usize]) {
    for page in pages {
        pair.write(page * PAGE_BYTES, PAGE_BYTES, &mut Rng::with_seed(*page as u64)).expect("taken");
    }
}

#[test]
fn a_flush_writes_in_order_and_as_much_at_a_time_as_the_device_takes() {
    let mut pair = pair(128);
    dirty(&mut pair, &[90, 3, 1, 7, 2, 91, 50, 40, 41, 42, 43, 44, 45, 46]);
    assert_eq!(writes(&pair), [], "nothing before it has to be");
    pair.flush().expect("nothing fails");
    let sent = writes(&pair);
    assert!(sent.is_sorted(), "{sent:?}");
    assert_eq!(sent.iter().map(|(_, pages)| pages).sum::<u32>(), 14, "each once");
    // Five pieces of memory are what the device takes at a time.
    assert_eq!(sent.len(), 6, "{sent:?}");
    let state = pair.device.state.lock();
    assert_eq!(state.log.last().map(|entry| entry.0), Some(Op::Flush), "and then the command");
}

#[test]
fn old_pages_are_written_when_their_time_has_come() {
    let mut pair = pair(128);
    pair.cache.tick();
    dirty(&mut pair, &[5]);
    for (seconds, expected) in [(10, 0), (25, 0), (40, 1)] {
        pair.device.state.lock().now_ns = seconds * 1_000_000_000;
        pair.cache.tick();
        assert_eq!(writes(&pair).len(), expected, "after {seconds} s");
    }
}

#[test]
fn many_dirty_pages_are_written_in_the_background_and_more_make_the_writer_wait() {
    let mut pair = pair(128);
    dirty(&mut pair, &(0..33).collect::<Vec<_>>());
    assert_eq!(pair.device.state.lock().now_ns, 0, "nobody waited");
    assert!(!writes(&pair).is_empty(), "a quarter is dirty, and on its way");
    pair.device.state.lock().latency_ns = 1_000_000_000;
    dirty(&mut pair, &(33..200).collect::<Vec<_>>());
    assert!(pair.device.state.lock().now_ns > 0, "the writer waited for the device");
    assert!(pair.cache.pages().unwritten() <= 64, "half at most");
}

#[test]
fn a_page_written_while_it_is_on_its_way_is_dirty_again() {
    let mut pair = pair(128);
    dirty(&mut pair, &(0..33).collect::<Vec<_>>());
    assert!(!writes(&pair).is_empty(), "on their way");
    let mut random = Rng::with_seed(99);
    for page in 0..33 {
        pair.write(page * PAGE_BYTES + 10, 100, &mut random).expect("taken");
    }
    pair.flush().expect("what is durable is compared");
}

#[test]
fn the_pieces_of_a_page_that_a_stream_reads_are_one_access() {
    let mut pair = pair(128);
    for piece in 0..64 {
        pair.read(PAGE_BYTES + piece * 64, 64).expect("nothing fails");
    }
    assert_eq!((pair.cache.stats().hits, pair.cache.stats().misses), (0, 1));
    pair.read(0, 64).expect("elsewhere");
    pair.read(PAGE_BYTES, 64).expect("and back");
    assert_eq!(pair.cache.stats().hits, 1);
}

#[test]
fn nothing_is_changed_when_the_rest_of_a_page_cannot_be_read() {
    let mut pair = pair(128);
    dirty(&mut pair, &[0, 1]);
    pair.device.state.lock().bad_blocks = 2..3;
    let before = pair.bytes.clone();
    pair.write(0, 2 * PAGE_BYTES + 5, &mut Rng::with_seed(7)).expect_err("the last page cannot be read");
    pair.bytes = before;
    pair.read(0, 2 * PAGE_BYTES).expect("as before");
}

#[test]
fn behind_the_end_of_a_device_there_is_nothing() {
    let device = Device::new(512, 5 * 4096 + 512, 1);
    let mut pair = Pair::new(device, Settings::new(4), 1, 4);
    let mut random = Rng::with_seed(7);
    for round in 0..8 {
        pair.write(0, 5 * PAGE_BYTES, &mut random).expect("every frame is used");
        pair.write(5 * PAGE_BYTES, 512, &mut random).expect("the last page, from its begin to its end");
        pair.pin(5 * PAGE_BYTES + 1).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}
