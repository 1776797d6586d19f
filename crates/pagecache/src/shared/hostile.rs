//! Any bytes in the region: nobody panics, reaches beyond it, or loops for ever.

use std::sync::atomic::Ordering::Relaxed;

use super::oracle::{AT, cache, name, page, put, small};
use super::*;

/// All calls once or twice.
fn use_it(pages: &SharedPages, random: &mut fastrand::Rng) {
    for _ in 0..30 {
        let name = name(random.u32(0..2), random.u64(0..20));
        let mut bytes = page(0);
        let _ = put(pages, name, 1, Marks(random.u8(0..4)));
        pages.read(name, 5, &mut bytes[..50]);
        pages.write(name, 1, &[1; 70], Marks::DIRTY, 1);
        pages.read_at_once(name, 5, &mut bytes[..50]);
        pages.write_at_once(name, 1, &[1; 70], Marks::DIRTY, 1);
        if let Some(snapshot) = pages.snapshot(name, &mut bytes) {
            pages.settle(name, &snapshot, Marks::DIRTY);
        }
        for pin in [pages.pin(name), pages.pin_at_once(name)].into_iter().flatten() {
            pages.address(&pin);
            pages.unpin(pin);
        }
        pages.cut_tail(name, 9);
        pages.marked(Which::All, 5, &mut Vec::new());
        pages.invalidate(FileNo(0), 3..4);
    }
    pages.evict_ahead(3, 6);
    pages.drop_clean(FileNo(1));
    pages.stats();
    pages.invalidate(FileNo(0), 0..u64::MAX);
    // It says what is wrong, or nothing is.
    let _ = pages.check();
}

#[test]
fn any_bytes_in_the_books_are_survived() {
    let seeds = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 20_000 } else { 300 };
    for seed in 0..if cfg!(miri) { 3 } else { seeds } {
        let mut random = fastrand::Rng::with_seed(seed);
        let (pages, region, seats) = cache(&small(8 << random.u32(0..2), 1 << random.u32(0..2), Replacement::S3Fifo));
        println!("seed {seed}");
        use_it(&pages, &mut random);
        for _ in 0..random.u32(1..40) {
            // Not the locks: who writes a living owner into one makes the others wait, and may.
            let at = AT + pages.plan.heads_at / 8 * 8 + random.usize(0..(pages.plan.data_at - pages.plan.heads_at) / 8) * 8;
            let head = (at - AT - pages.plan.heads_at).is_multiple_of(shape::HEAD_BYTES) && at < AT + pages.plan.frames_at;
            let value = [random.u64(..), random.u64(0..20), 0, !0][random.usize(0..4)];
            if !head {
                region.u64(at).store(value, Relaxed);
            }
        }
        // Frames that look taken by somebody who lives would be waited for.
        let mine = |word: &AtomicU64| word::Word(word.load(Relaxed)).owner() == pages.me;
        pages.records.iter().filter(|record| mine(&record[frame::WORD])).for_each(|record| record[frame::WORD].store(0, Relaxed));
        use_it(&pages, &mut random);
        pages.reap(shm::SeatNo(63));
        use_it(&pages, &mut random);
        drop(seats);
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let (pages, region, seats) = cache(&small(8, 2, Replacement::Lru));
    let attach = |at: usize, bytes: usize| SharedPages::attach(&region, at, bytes, &seats, pages.me).map(drop);
    assert_eq!(attach(AT, region.len() - AT), Ok(()));
    for (at, bytes) in [(AT, region.len()), (AT + 8, 8192), (AT, 0), (AT, pages.plan.bytes - 1), (1 << 40, 8192), (0, 8192)] {
        assert!(attach(at, bytes).is_err(), "{at} {bytes}");
    }
    for at in 0..HEADER_BYTES + 4 {
        let mut byte = [0];
        region.read(AT + at, &mut byte);
        region.write(AT + at, &[byte[0] ^ 4]);
        assert!(attach(AT, region.len() - AT).is_err(), "byte {at}");
        region.write(AT + at, &byte);
    }
    // A shape that cannot be, with a good sum.
    for (at, value) in [(12, 0), (16, 3), (16, 0), (20, u32::MAX), (24, 3), (12, u32::MAX)] {
        let mut header = [0; HEADER_BYTES + 4];
        region.read(AT, &mut header);
        let mut lie = header;
        lie[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        let sum = crc32c::crc32c(&lie[..HEADER_BYTES]);
        lie[HEADER_BYTES..].copy_from_slice(&sum.to_le_bytes());
        region.write(AT, &lie);
        assert!(attach(AT, region.len() - AT).is_err(), "{value} at {at}");
        region.write(AT, &header);
    }
}
