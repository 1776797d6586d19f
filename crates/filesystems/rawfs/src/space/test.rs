use std::sync::Arc;

use super::bits::Bitmap;
use super::blocks::{BlockAllocator, GROUP_BLOCKS};
use super::freed::FreedBlocks;
use super::nodes::NodeAllocator;
use crate::layout::bitmap::PAGE_BITS;
use crate::units::Lsn;

#[test]
fn a_bitmap_is_a_row_of_flags() {
    let mut rng = crate::testing::rng();
    let len = 3 * PAGE_BITS + 77;
    let (mut bits, mut flags) = (Bitmap::new(len), vec![false; len as usize]);
    for _ in 0..2000 {
        let from = rng.u64(..len);
        let range = from..(from + 1 + rng.u64(..200)).min(len);
        let within = &mut flags[range.start as usize..range.end as usize];
        let (all, none) = (within.iter().all(|flag| *flag), within.iter().all(|flag| !*flag));
        assert_eq!((bits.all(range.clone(), true), bits.all(range.clone(), false)), (all, none));
        if all || none {
            bits.set(range, none);
            within.fill(none);
        }
    }
    assert_eq!(bits.used(), flags.iter().filter(|flag| **flag).count() as u64);
    let rows: Vec<u64> = bits.rows().flatten().collect();
    assert_eq!(rows, (0..len).filter(|at| flags[*at as usize]).collect::<Vec<_>>());
    let mut again = Bitmap::new(len);
    for (page, words) in bits.take_dirty() {
        assert!(again.load(page, words.iter().copied()));
    }
    assert_eq!(again.as_words(), bits.as_words());
    assert!(bits.take_dirty().is_empty());
    assert!(!Bitmap::new(70).load(0, [0, 1 << 6].into_iter()), "a bit behind the end");
}

#[test]
fn blocks_are_given_out_once_and_come_back() {
    let mut rng = crate::testing::rng();
    let len = 2 * GROUP_BLOCKS + 100;
    let mut used = Bitmap::new(len);
    used.set(10..20, true);
    let blocks = BlockAllocator::new(&used);
    let mut taken = vec![false; len as usize];
    taken[10..20].fill(true);
    let mut held = Vec::new();
    for _ in 0..3000 {
        if rng.u8(..3) > 0 {
            let goal = rng.bool().then(|| rng.u64(..len + 10));
            let wanted = rng.u32(1..300);
            match blocks.allocate(goal, wanted) {
                Some(range) => {
                    assert!(range.end - range.start <= u64::from(wanted) && range.start < range.end);
                    assert!(taken[range.start as usize..range.end as usize].iter().all(|taken| !*taken));
                    taken[range.start as usize..range.end as usize].fill(true);
                    held.push(range);
                }
                None => assert!(taken.iter().all(|taken| *taken), "none though some are free"),
            }
        } else if !held.is_empty() {
            let range = held.swap_remove(rng.usize(..held.len()));
            assert!(blocks.all_taken(range.clone()) && !blocks.claim(range.clone()) && blocks.give(range.clone()));
            taken[range.start as usize..range.end as usize].fill(false);
            assert!(range.end / GROUP_BLOCKS > range.start / GROUP_BLOCKS || blocks.claim(range.clone()) && blocks.give(range));
        }
        assert_eq!(blocks.free(), taken.iter().filter(|taken| !**taken).count() as u64);
    }
    assert!(!blocks.give(0..1) || taken[0]);
}

#[test]
fn the_goal_is_kept_and_a_long_row_is_looked_for() {
    let blocks = BlockAllocator::new(&Bitmap::new(4 * GROUP_BLOCKS));
    let first = blocks.allocate(Some(100), 10).expect("free");
    assert_eq!(first, 100..110);
    assert_eq!(blocks.allocate(Some(first.end), 10), Some(110..120));
    // The rest of this group is in rows of one.
    for at in (0..GROUP_BLOCKS).step_by(2).filter(|at| !(100..120).contains(at)) {
        assert!(blocks.claim(at..at + 1));
    }
    let row = blocks.allocate(Some(200), 64).expect("free");
    assert!(row.end - row.start == 64 && row.start >= GROUP_BLOCKS, "{row:?}");
}

#[test]
fn threads_get_different_blocks() {
    let blocks = Arc::new(BlockAllocator::new(&Bitmap::new(8 * GROUP_BLOCKS)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let blocks = Arc::clone(&blocks);
            std::thread::spawn(move || (0..1000).map_while(|_| blocks.allocate(None, 5)).collect::<Vec<_>>())
        })
        .collect();
    let mut all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
    all.sort_by_key(|range| range.start);
    assert!(all.windows(2).all(|two| two[0].end <= two[1].start));
    assert_eq!(blocks.free(), 8 * GROUP_BLOCKS - all.iter().map(|range| range.end - range.start).sum::<u64>());
}

#[test]
fn a_node_is_free_when_no_reader_looks_at_it() {
    let mut nodes = NodeAllocator::new(Bitmap::new(70));
    let slots = nodes.take(70).expect("free");
    assert!(nodes.take(1).is_none() && nodes.used() == 70);
    assert!(nodes.replaced(&slots[..3]) && !nodes.replaced(&slots[..1]) && !nodes.replaced(&[70]));
    let (early, late) = (Arc::new(()), Arc::new(()));
    let reader = Arc::clone(&early);
    nodes.leave(early, slots[..2].to_vec());
    nodes.leave(late, slots[2..3].to_vec());
    assert_eq!(nodes.free(), 0);
    drop(reader);
    nodes.settle();
    assert_eq!(nodes.take(3), Some(slots[..3].to_vec()));
}

#[test]
fn freed_blocks_wait_for_the_log_and_are_remembered_in_rows() {
    let mut freed = FreedBlocks::default();
    for at in 0..20 {
        freed.push(Lsn(at + 1), at * 10..at * 10 + 10, false);
    }
    freed.push(Lsn(30), 1000..1004, false);
    assert_eq!((freed.pop(Lsn(0), Lsn(0)), freed.blocks()), (None, 204));
    let mut back = 0;
    while let Some(range) = freed.pop(Lsn(20), Lsn(0)) {
        back += range.end - range.start;
    }
    assert_eq!((back, freed.blocks()), (200, 4));
    assert!(freed.pop(Lsn(30), Lsn(0)).is_some());
    freed.push(Lsn(31), 2000..2001, true);
    assert!(freed.wants_checkpoint() && freed.pop(Lsn(40), Lsn(30)).is_none());
    assert_eq!(freed.pop(Lsn(40), Lsn(31)), Some(2000..2001));
    let rows = freed.take_discards();
    assert!(rows.len() == 1 && rows[0] == (0..200), "long rows alone: {rows:?}");
}
