//! The Nth request fails, for every N until nothing fails; devices with a bad block; flushes that forget.

use block::Error;
use datapath::{Settings, WriteMode};
use fastrand::Rng;
use pagecache::PAGE_BYTES;

use crate::device::{Device, Fault};
use crate::model::Pair;

/// A random life in which one request goes wrong. Returns whether it came to that.
fn life(seed: u64, number: u64, fault: Fault) -> bool {
    let mut random = Rng::with_seed(seed);
    let mut pair = Pair::random(&mut random);
    pair.device.state.lock().fault = Some((number, fault));
    let mut errors = 0;
    for _ in 0..30 {
        errors += u64::from(pair.step(&mut random).is_err());
        pair.cache.pages().check();
        let faults = pair.device.state.lock().faults;
        assert!(errors == 0 || faults > 0, "an error out of nothing");
    }
    pair.device.state.lock().fault = None;
    // What hangs lets go in time; what was lost is told to who was there, so somebody new asks.
    for attempt in 0.. {
        assert!(attempt < 3, "one fault cannot hinder for ever");
        pair.device.state.lock().now_ns += 1_000_000;
        pair.cache.tick();
        pair.handle = pair.cache.handle();
        if pair.flush().is_ok() {
            break;
        }
    }
    pair.read(0, pair.bytes.len()).expect("all is well again");
    pair.flush().expect("all is well again");
    pair.device.state.lock().faults > 0
}

fn every_request(fault: Fault) {
    let seeds = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 60 } else { 2 };
    for seed in 0..seeds {
        let mut number = 1;
        while life(seed, number, fault) {
            println!("seed {seed}, request {number}, {fault:?}");
            number += 1;
        }
        assert!(number > 5, "seed {seed} asks the device for nothing");
    }
}

#[test]
fn a_request_fails() {
    every_request(Fault::Failed(Error::Media));
}

#[test]
fn a_request_is_torn() {
    every_request(Fault::Torn);
}

#[test]
fn a_request_hangs_and_is_done_later() {
    every_request(Fault::Hung);
}

fn pair(mode: WriteMode) -> Pair {
    Pair::new(Device::new(4096, 256 << 10, 1), Settings { mode, ..Settings::new(32) }, 1, 8)
}

#[test]
fn a_page_that_cannot_be_written_stays_and_hinders_no_other() {
    let mut pair = pair(WriteMode::Back);
    let mut random = Rng::with_seed(1);
    pair.device.state.lock().bad_blocks = 5..6;
    pair.write(0, 10 * PAGE_BYTES, &mut random).expect("taken");
    assert_eq!(pair.flush(), Err(Error::Media));
    assert_eq!(pair.flush(), Err(Error::Media), "it is not forgotten");
    let durable = pair.device.state.lock().durable.clone();
    for page in [0, 4, 6, 9] {
        let at = page * PAGE_BYTES;
        assert!((at..at + PAGE_BYTES).all(|at| Some(durable[at]) == pair.bytes[at]), "page {page} is down");
    }
    pair.read(0, 10 * PAGE_BYTES).expect("all of it is in the cache");
    pair.read(32 * PAGE_BYTES, 32 * PAGE_BYTES).expect("and others have room");
    pair.read(5 * PAGE_BYTES, PAGE_BYTES).expect("it does not leave");
    let mut other = pair.cache.handle();
    pair.device.state.lock().bad_blocks = 0..0;
    pair.flush().expect("the second try");
    pair.cache.flush(&mut other).expect("he came later, and has lost nothing");
}

#[test]
fn each_handle_hears_once_of_what_failed_in_the_background() {
    let mut pair = pair(WriteMode::Back);
    let mut other = pair.cache.handle();
    pair.write(0, PAGE_BYTES, &mut Rng::with_seed(1)).expect("taken");
    pair.device.state.lock().bad_blocks = 0..1;
    pair.cache.write_back(0..4096).expect_err("not taken");
    pair.device.state.lock().bad_blocks = 0..0;
    assert_eq!(pair.flush(), Err(Error::Media));
    pair.flush().expect("told already");
    assert_eq!(pair.cache.flush(&mut other), Err(Error::Media));
    pair.cache.flush(&mut other).expect("told already");
}

#[test]
fn a_flush_that_forgets_is_made_good_from_the_cache() {
    let mut pair = pair(WriteMode::Through);
    pair.write(0, 8 * PAGE_BYTES, &mut Rng::with_seed(1)).expect("written through");
    let next = pair.device.state.lock().requests + 1;
    pair.device.state.lock().fault = Some((next, Fault::Forgot));
    assert_eq!(pair.flush(), Err(Error::Media));
    assert_eq!(pair.device.bytes()[..100], [0; 100], "the device has forgotten");
    pair.flush().expect("written once more");
    pair.read(0, 8 * PAGE_BYTES).expect("nothing is lost");
}

#[test]
fn what_left_the_cache_before_a_flush_forgot_it_is_lost_and_told() {
    let mut pair = pair(WriteMode::Through);
    pair.write(0, 8 * PAGE_BYTES, &mut Rng::with_seed(1)).expect("written through");
    pair.cache.invalidate(0..4096).expect("gone");
    let next = pair.device.state.lock().requests + 1;
    pair.device.state.lock().fault = Some((next, Fault::Forgot));
    assert_eq!(pair.flush(), Err(Error::Media));
    pair.bytes[..PAGE_BYTES].fill(Some(0));
    for _ in 0..3 {
        assert_eq!(pair.flush(), Err(Error::Media), "until it is opened anew");
    }
    pair.handle = pair.cache.handle();
    pair.flush().expect("the others were written once more");
}

#[test]
fn a_writer_whose_pages_cannot_be_written_is_told_in_the_end() {
    let mut pair = pair(WriteMode::Back);
    pair.device.state.lock().bad_blocks = 0..64;
    let mut random = Rng::with_seed(1);
    let taken = (0..64).take_while(|page| pair.write(page * PAGE_BYTES, PAGE_BYTES, &mut random).is_ok()).count();
    assert!((8..=16).contains(&taken), "half of the cache at most: {taken}");
    pair.read(0, taken * PAGE_BYTES).expect("what was taken is there");
    pair.device.state.lock().bad_blocks = 0..0;
    pair.flush().expect_err("told of what failed");
    pair.flush().expect("all is down");
}

#[test]
fn the_first_error_of_a_write_through_is_the_writers() {
    for mode in [WriteMode::Through, WriteMode::Durable] {
        let mut pair = pair(mode);
        pair.device.state.lock().bad_blocks = 3..4;
        assert_eq!(pair.write(0, 8 * PAGE_BYTES, &mut Rng::with_seed(1)), Err(Error::Media));
        pair.write(10 * PAGE_BYTES, 100, &mut Rng::with_seed(2)).expect("another page");
    }
}

#[test]
fn devices_that_do_not_fit_are_refused_with_a_reason() {
    let big = Device::new(8192, 64 << 10, 1);
    let refused = datapath::BlockCache::open(vec![big.queue(4)], Settings::new(8)).err().expect("refused");
    assert!(refused.to_string().contains("8192 bytes"), "{refused}");
    let mut pair = pair(WriteMode::Back);
    let end = pair.bytes.len() as u64;
    let mut handle = pair.cache.handle();
    assert_eq!(pair.cache.read(&mut handle, end - 1, &mut [0; 2]), Err(Error::OutOfRange));
    assert_eq!(pair.cache.write(&mut handle, u64::MAX, &[0; 2]), Err(Error::OutOfRange));
    assert_eq!(pair.cache.discard(0..end + 4096), Err(Error::OutOfRange));
    assert_eq!(pair.cache.discard(1..4096), Err(Error::Misaligned));
}
