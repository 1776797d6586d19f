//! The path of a read: record, pages that are not written yet, cache, device.

use std::ops::Range;

use super::core::FsCore;
use super::error::{Error, Result};
use super::extent::Run;
use super::record::{Record, RecordBody};
use super::table::InodeState;
use crate::page::{Bytes, Page};
use crate::{BLOCK_BYTES, Block};

/// Blocks read from the device in one go, at most.
const GO_MAX: usize = 512;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A block of the file, its place on the device and its checksum.
type BlockRead = (u64, Block, u32);

impl FsCore {
    /// Reads into `to` from a place of a file whose lock is held; returns how much. `ahead`: blocks behind them worth having.
    pub fn read(&self, state: &InodeState, at: u64, to: &mut [u8], ahead: u64) -> Result<usize> {
        let size = state.record.size;
        let len = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(to.len());
        let to = &mut to[..len];
        if len == 0 {
            return Ok(0);
        }
        if let RecordBody::Inline(content) = &state.record.body {
            let from = usize::try_from(at).expect("inline");
            to.copy_from_slice(&content[from..from + len]);
            return Ok(len);
        }
        let blocks = at / BLOCK..(at + len as u64).div_ceil(BLOCK);
        if let Some(first) = self.copy_cached(state, &blocks, at, to) {
            let runs = self.runs(&state.record, &(first..blocks.end + ahead))?;
            self.fill_cache(state, &runs, &(first..(blocks.end + ahead).min(size.div_ceil(BLOCK))), at, to)?;
        }
        Ok(len)
    }

    /// Copies what is in memory, up to the first block that is not; returns that.
    fn copy_cached(&self, state: &InodeState, blocks: &Range<u64>, at: u64, to: &mut [u8]) -> Option<u64> {
        for block in blocks.clone() {
            if !state.pages.is_empty()
                && let Some(page) = state.pages.get(&block)
            {
                copy(page, block, at, to);
                continue;
            }
            match self.cache.get(state.record.ino, block) {
                Some(page) => copy(&page, block, at, to),
                None => return Some(block),
            }
        }
        None
    }

    /// As [`FsCore::read`] where all of it is in memory; `None`: it is not, and `to` may have some of it. Where there are holes is looked
    /// up all the same.
    pub fn read_here(&self, state: &InodeState, at: u64, to: &mut [u8]) -> Result<Option<usize>> {
        let size = state.record.size;
        let len = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(to.len());
        if len == 0 || matches!(state.record.body, RecordBody::Inline(_)) {
            return self.read(state, at, to, 0).map(Some);
        }
        let (to, blocks) = (&mut to[..len], at / BLOCK..(at + len as u64).div_ceil(BLOCK));
        let Some(first) = self.copy_cached(state, &blocks, at, to) else { return Ok(Some(len)) };
        let runs = self.runs(&state.record, &(first..blocks.end))?;
        for block in first..blocks.end {
            let known = state.pages.get(&block).cloned().or_else(|| self.cache.get(state.record.ino, block));
            match known {
                Some(page) => copy(&page, block, at, to),
                None if runs.iter().any(|run| run.find(block).is_some()) => return Ok(None),
                None => copy(&[0; BLOCK_BYTES], block, at, to),
            }
        }
        Ok(Some(len))
    }

    /// Copies what is in memory, then reads the rest; behind `to` only into the cache.
    fn fill_cache(&self, state: &InodeState, runs: &[Run], blocks: &Range<u64>, at: u64, to: &mut [u8]) -> Result<()> {
        let mut runs = runs.iter().peekable();
        let mut missing: Vec<BlockRead> = Vec::new();
        let end = (at + to.len() as u64).div_ceil(BLOCK);
        for block in blocks.clone() {
            while runs.peek().is_some_and(|run| run.end() <= block) {
                runs.next();
            }
            if let Some(page) = state.pages.get(&block) {
                copy(page, block, at, to);
                continue;
            }
            let Some((place, sum)) = runs.peek().and_then(|run| run.find(block)) else {
                copy(&[0; BLOCK_BYTES], block, at, to);
                continue;
            };
            match self.cache.get(state.record.ino, block) {
                Some(page) => copy(&page, block, at, to),
                // What is only ahead is not read for its own sake.
                None if block >= end && missing.is_empty() => break,
                None => missing.push((block, place, sum)),
            }
        }
        let outcome = self.fetch(&state.record, &missing, |block, page| copy(page, block, at, to));
        if outcome.is_err() && missing.last().is_some_and(|last| last.0 >= end) {
            // What was not asked for need not be right.
            missing.retain(|wanted| wanted.0 < end);
            return self.fetch(&state.record, &missing, |block, page| copy(page, block, at, to));
        }
        outcome
    }

    /// Reads blocks from the device, checks them and keeps them.
    fn fetch(&self, record: &Record, missing: &[BlockRead], mut each: impl FnMut(u64, &Page)) -> Result<()> {
        for some in missing.chunks(GO_MAX) {
            let mut room = vec![0; some.len() * BLOCK_BYTES];
            let mut reads: Vec<(Block, &mut [u8])> = Vec::new();
            let mut rest = &mut room[..];
            for row in some.chunk_by(|a, b| a.1.after(1) == b.1) {
                let (to, behind) = rest.split_at_mut(row.len() * BLOCK_BYTES);
                reads.push((row[0].1, to));
                rest = behind;
            }
            self.store.read_data(&mut reads)?;
            for ((block, place, sum), bytes) in some.iter().zip(room.chunks_exact(BLOCK_BYTES)) {
                checked(record, *block, *place, *sum, bytes)?;
                let page = self.cache.page(bytes.try_into().expect("a block"));
                each(*block, &page);
                self.cache.put(record.ino, *block, page);
            }
        }
        Ok(())
    }

    /// The present bytes of a block, without those that are not written yet.
    pub fn block(&self, record: &Record, block: u64) -> Result<Page> {
        if let Some(page) = self.cache.get(record.ino, block) {
            return Ok(page);
        }
        let runs = self.runs(record, &(block..block + 1))?;
        let Some((place, sum)) = runs.first().and_then(|run| run.find(block)) else { return Ok(Page::zero()) };
        let mut found = None;
        self.fetch(record, &[(block, place, sum)], |_, page| found = Some(page.clone()))?;
        Ok(found.expect("asked for"))
    }

    /// Reads whole blocks past the cache, from a file that has nothing unwritten.
    pub fn read_direct(&self, state: &InodeState, at: u64, to: &mut [u8]) -> Result<usize> {
        let len = usize::try_from(state.record.size.saturating_sub(at)).unwrap_or(usize::MAX).min(to.len());
        let to = &mut to[..len.next_multiple_of(BLOCK_BYTES)];
        let blocks = at / BLOCK..at / BLOCK + (to.len() / BLOCK_BYTES) as u64;
        let runs = self.runs(&state.record, &blocks)?;
        to.fill(0);
        let mut reads: Vec<(Block, &mut [u8])> = Vec::new();
        let (mut rest, mut from) = (to, blocks.start);
        let parts: Vec<Run> = runs.iter().filter(|run| run.sums.is_some()).filter_map(|run| run.part(&blocks)).collect();
        for part in &parts {
            let (_, behind) = rest.split_at_mut((part.at - from) as usize * BLOCK_BYTES);
            let (into, behind) = behind.split_at_mut(part.blocks as usize * BLOCK_BYTES);
            reads.push((part.start, into));
            (rest, from) = (behind, part.end());
        }
        self.store.read_data(&mut reads)?;
        for (part, (_, bytes)) in parts.iter().zip(&reads) {
            for (n, bytes) in (part.at..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                let (place, sum) = part.find(n).expect("part of it");
                checked(&state.record, n, place, sum, bytes)?;
            }
        }
        Ok(len)
    }
}

fn checked(record: &Record, block: u64, place: Block, sum: u32, bytes: &[u8]) -> Result<()> {
    if crc32c::crc32c(bytes) == sum {
        return Ok(());
    }
    let error = Error::Checksum { ino: record.ino, offset: block * BLOCK, block: place.0 };
    tracing::error!(%error, "a block is damaged");
    Err(error)
}

/// The part of a block that is wanted.
fn copy(page: &Bytes, block: u64, at: u64, to: &mut [u8]) {
    let (begin, end) = (block * BLOCK, at + to.len() as u64);
    let (from, until) = (begin.max(at), (begin + BLOCK).min(end));
    if from < until {
        to[(from - at) as usize..(until - at) as usize].copy_from_slice(&page[(from - begin) as usize..(until - begin) as usize]);
    }
}
