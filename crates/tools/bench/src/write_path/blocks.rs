//! Sequential blocks of the device: the paper's `raw_seq_read` and `raw_seq_write`.
//!
//! Only free blocks are used, so no file is harmed.

use std::time::Duration;

use anyhow::{bail, ensure};
use block::Tag;
use block::future::{Future, Keep};
use stack::rawfs::{BLOCK_BYTES, Block, Disk, Extent, QueueClass, Store};

use super::{Sample, WriteMode, WritePathBench};

/// The operation on the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockAccess {
    /// Read the blocks.
    Read,
    /// Write the blocks, without a flush.
    Write,
}

/// Reads or writes `count` blocks of 4 KiB, one request each: synchronously, and all at once.
///
/// # Errors
/// Too few free blocks; errors of the device; interrupted.
pub fn raw(bench: &WritePathBench<'_>, what: BlockAccess, count: u32) -> anyhow::Result<Sample> {
    let store = bench.fs.store();
    let mut extents = Vec::new();
    let outcome = take(store, count, &mut extents).and_then(|places| {
        if what == BlockAccess::Read {
            // A drive may skip reads of blocks that were never written.
            let data = [0x5a; BLOCK_BYTES];
            store.disk().write_blocks(QueueClass::Data, &places.iter().map(|at| (*at, &data[..])).collect::<Vec<_>>())?;
        }
        bench.trials(&[WriteMode::Sync, WriteMode::Async], |side| trial(bench, what, &places, side))
    });
    extents.into_iter().for_each(|extent| store.abandon(extent));
    outcome
}

fn take(store: &Store, count: u32, extents: &mut Vec<Extent>) -> anyhow::Result<Vec<Block>> {
    let (mut left, mut goal) = (count, None);
    while left > 0 {
        let extent = store.allocate(goal, left)?;
        ensure!(extent.blocks > 0, "no space is left");
        goal = extent.end();
        left -= extent.blocks;
        extents.push(extent);
    }
    Ok(extents.iter().flat_map(|extent| (0..u64::from(extent.blocks)).map(|n| extent.start.after(n))).collect())
}

fn trial(bench: &WritePathBench<'_>, what: BlockAccess, places: &[Block], side: WriteMode) -> anyhow::Result<Duration> {
    let disk = bench.fs.store().disk();
    let mut memory = vec![0x5a; places.len() * BLOCK_BYTES];
    bench.time(|| match (what, side) {
        (BlockAccess::Read, WriteMode::Async) => {
            let mut reads: Vec<(Block, &mut [u8])> = places.iter().copied().zip(memory.chunks_mut(BLOCK_BYTES)).collect();
            Ok(disk.read_many(QueueClass::Data, &mut reads)?)
        }
        (BlockAccess::Read, _) => {
            Ok(places.iter().zip(memory.chunks_mut(BLOCK_BYTES)).try_for_each(|(at, to)| disk.read_blocks(QueueClass::Data, *at, to))?)
        }
        (BlockAccess::Write, WriteMode::Async) => write_all(disk, places, &memory),
        (BlockAccess::Write, _) => {
            let blocks = places.iter().zip(memory.chunks(BLOCK_BYTES));
            Ok(blocks.into_iter().try_for_each(|(at, from)| disk.write_blocks(QueueClass::Data, &[(*at, from)]))?)
        }
    })
}

fn write_all(disk: &Disk, places: &[Block], memory: &[u8]) -> anyhow::Result<()> {
    let mut future = Future::new(1, Keep::Bounded(1));
    for (at, from) in places.iter().zip(memory.chunks(BLOCK_BYTES)) {
        future.expect(0, 1);
        disk.write_later(QueueClass::Data, &[(*at, from)], future.promise(0), Tag(at.0));
    }
    future.wait_polling(|| {
        disk.drive(QueueClass::Data, Duration::from_secs(1));
        true
    });
    future.take_failures().kept.first().map_or(Ok(()), |failed| bail!("a block was not written: {}", failed.error))
}
