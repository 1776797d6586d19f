//! Reads every block of every file, and compares it with its checksum.

use super::error::Result;
use super::extent::Run;
use super::key::{self, FileItem};
use super::record::{NameValue, Record, RecordBody};
use crate::{BLOCK_BYTES, Block, ScanStep, Store, TreeId};

/// Runs remembered before they are read: in the order of the device, so that a disk's head goes one way.
const RUNS_AT_ONCE: usize = 1 << 16;
/// Blocks read in one go.
const GO_MAX: usize = 512;

/// Blocks in a row of one file that are not what was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadBlocks {
    /// The inode number of the file.
    pub ino: u64,
    /// The first, counted in the file.
    pub at: u64,
    /// The number of damaged blocks.
    pub blocks: u64,
    /// The first, on the device.
    pub start: Block,
    /// The device could not even read it.
    pub unreadable: bool,
}

/// Gives each run of each file to `each`: with its file's number, as far as somebody knows it.
///
/// # Errors
/// The store's.
pub fn each_run(store: &Store, each: &mut dyn FnMut(u64, Run)) -> Result<()> {
    fn of(record: Record, each: &mut dyn FnMut(u64, Run)) {
        if let RecordBody::Runs(runs) = record.body {
            runs.into_iter().for_each(|run| each(record.ino, run));
        }
    }
    store.scan(TreeId::Names, &[], &[0xff; 16], &mut |_, value| {
        if let Ok(NameValue::Here(record)) = NameValue::parse(value) {
            of(record, each);
        }
        ScanStep::Go
    })?;
    store.scan(TreeId::Files, &[], &[0xff; 18], &mut |key, value| {
        match key::file_parts(key) {
            Some((_, FileItem::Record, _)) => Record::parse(value).into_iter().for_each(|record| of(record, each)),
            Some((ino, FileItem::Extent, _)) => Run::parse(value).into_iter().for_each(|run| each(ino, run)),
            _ => {}
        }
        ScanStep::Go
    })?;
    Ok(())
}

/// Checks all blocks that have a checksum; `progress` gets how many were checked since it was last called.
///
/// # Errors
/// The store's; the device's, unless it is about the block itself.
pub fn scrub(store: &Store, bad: &mut dyn FnMut(BadBlocks), progress: &mut dyn FnMut(u64)) -> Result<()> {
    let mut waiting: Vec<(u64, Run)> = Vec::new();
    let mut failed = Ok(());
    let shape = store.shape();
    each_run(store, &mut |ino, run| {
        if run.sums.is_none() || shape.data_range(run.extent()).is_none() || failed.is_err() {
            return;
        }
        waiting.push((ino, run));
        if waiting.len() == RUNS_AT_ONCE {
            failed = look(store, &mut waiting, bad, progress);
        }
    })?;
    failed.and_then(|()| look(store, &mut waiting, bad, progress))
}

fn look(store: &Store, waiting: &mut Vec<(u64, Run)>, bad: &mut dyn FnMut(BadBlocks), progress: &mut dyn FnMut(u64)) -> Result<()> {
    waiting.sort_unstable_by_key(|(_, run)| run.start);
    let mut room = vec![0; GO_MAX * BLOCK_BYTES];
    let mut rest = &waiting[..];
    while !rest.is_empty() {
        let mut blocks = 0;
        let fits = |(_, run): &&(u64, Run)| {
            blocks += run.blocks as usize;
            blocks <= GO_MAX
        };
        let (some, later) = rest.split_at(rest.iter().take_while(fits).count());
        rest = later;
        look_at(store, some, &mut room, bad)?;
        progress(some.iter().map(|(_, run)| u64::from(run.blocks)).sum());
    }
    waiting.clear();
    Ok(())
}

fn look_at(store: &Store, some: &[(u64, Run)], room: &mut [u8], bad: &mut dyn FnMut(BadBlocks)) -> Result<()> {
    let mut reads: Vec<(Block, &mut [u8])> = Vec::new();
    let mut left = &mut *room;
    for (_, run) in some {
        let (to, behind) = left.split_at_mut(run.blocks as usize * BLOCK_BYTES);
        reads.push((run.start, to));
        left = behind;
    }
    let together = store.read_data(&mut reads).is_ok();
    for ((ino, run), (_, bytes)) in some.iter().zip(&mut reads) {
        let mut row: Option<BadBlocks> = None;
        for (n, bytes) in (0..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            let (place, sum) = run.find(run.at + n).expect("a run with sums");
            let unreadable = !together && read_alone(store, place, bytes)?;
            if !unreadable && crc32c::crc32c(bytes) == sum {
                row.take().into_iter().for_each(&mut *bad);
            } else if let Some(row) = row.as_mut().filter(|row| row.unreadable == unreadable) {
                row.blocks += 1;
            } else {
                let next = BadBlocks { ino: *ino, at: run.at + n, blocks: 1, start: place, unreadable };
                row.replace(next).into_iter().for_each(&mut *bad);
            }
        }
        row.into_iter().for_each(&mut *bad);
    }
    Ok(())
}

/// True: the device says that this block cannot be read.
fn read_alone(store: &Store, place: Block, bytes: &mut [u8]) -> Result<bool> {
    match store.read_data(&mut [(place, bytes)]) {
        Ok(()) => Ok(false),
        Err(crate::Error::Device(block::Error::Media)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
