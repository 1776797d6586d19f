//! Sizes and holes: truncate, fallocate, SEEK_DATA and SEEK_HOLE.

use std::ops::Range;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::core::FsCore;
use super::error::Result;
use super::extent::{Run, pieces};
use super::key::{self, FileItem};
use super::record::{INLINE_MAX, RecordBody};
use super::table::{Inode, InodeState};
use super::{BLOCKS_MAX, SIZE_MAX};
use crate::{BLOCK_BYTES, Batch, TreeId};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks set aside by one batch, at most.
const RESERVE_MAX: u64 = 1 << 15;

impl FsCore {
    /// Makes a file longer, by a hole, or shorter. Its lock is held, and the name space shared.
    pub fn set_size(&self, inode: &Arc<Inode>, state: &mut InodeState, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        if let RecordBody::Inline(content) = &mut state.record.body
            && size <= INLINE_MAX as u64
        {
            content.resize(size as usize, 0);
            state.record.size = size;
        } else if size > state.record.size {
            self.to_blocks(state);
            self.clear_tail(state)?;
            state.record.size = size;
        } else if !matches!(state.record.body, RecordBody::Inline(_)) {
            self.shorten(inode, state, size)?;
        }
        state.changed = true;
        self.list(inode, state);
        Ok(())
    }

    fn shorten(&self, inode: &Arc<Inode>, state: &mut InodeState, size: u64) -> Result<()> {
        let from = size.div_ceil(BLOCK);
        if self.next_run(&state.record, from)?.is_some() {
            if from > 0 {
                self.write_back(inode, state)?;
            }
            self.cut_file(inode, state, size, from)?;
        }
        self.forget_pages(state, from..);
        state.record.size = size;
        Ok(())
    }

    /// Frees blocks from one on, and sets the size: all or nothing, though it may take several batches.
    fn cut_file(&self, inode: &Arc<Inode>, state: &mut InodeState, size: u64, from: u64) -> Result<()> {
        let mark = key::file(0, FileItem::Orphan, inode.ino);
        let mut record = state.record.clone();
        let blocks = record.blocks - self.blocks_from(&record, from)?.min(record.blocks);
        record.size = size;
        let mut batch = Batch::new();
        let mut more = self.cut(&mut batch, &mut record, from)?;
        record.blocks = blocks;
        self.put_record(&mut batch, inode, state, &record);
        if more {
            batch.put(TreeId::Files, &mark, &from.to_le_bytes());
        }
        state.lsn = self.apply(batch)?;
        state.record = record;
        while more {
            let mut batch = Batch::new();
            more = self.cut(&mut batch, &mut state.record.clone(), from)?;
            if !more {
                batch.delete(TreeId::Files, &mark);
            }
            state.lsn = self.apply(batch)?;
        }
        Ok(())
    }

    /// Sets blocks aside, or makes a hole, or zeros. Its lock is held, and the name space shared.
    pub fn allocate(&self, inode: &Arc<Inode>, state: &mut InodeState, mode: FallocateFlags, at: u64, len: u64) -> Result<()> {
        let keep = mode.contains(FallocateFlags::KEEP_SIZE);
        let what = mode - FallocateFlags::KEEP_SIZE;
        if at.checked_add(len).is_none_or(|end| end > SIZE_MAX) {
            return Err(Errno::FBIG.into());
        }
        let bytes = at..at + len;
        if what == FallocateFlags::PUNCH_HOLE && keep {
            self.punch(inode, state, &bytes)?;
        } else if what == FallocateFlags::ZERO_RANGE {
            self.punch(inode, state, &bytes)?;
            self.reserve(inode, state, &bytes, keep)?;
        } else if what.is_empty() {
            self.reserve(inode, state, &bytes, keep)?;
        } else {
            return Err(Errno::OPNOTSUPP.into());
        }
        state.changed = true;
        self.list(inode, state);
        Ok(())
    }

    fn reserve(&self, inode: &Arc<Inode>, state: &mut InodeState, bytes: &Range<u64>, keep: bool) -> Result<()> {
        let grows = !keep && bytes.end > state.record.size;
        if let RecordBody::Inline(content) = &mut state.record.body
            && bytes.end <= INLINE_MAX as u64
        {
            if grows {
                content.resize(bytes.end as usize, 0);
                state.record.size = bytes.end;
            }
            return Ok(());
        }
        self.to_blocks(state);
        // Memory's promise of blocks to what is unwritten does not bind others who set blocks aside.
        self.write_back(inode, state)?;
        let (mut block, end) = (bytes.start / BLOCK, bytes.end.div_ceil(BLOCK));
        while block < end {
            let until = end.min(block + RESERVE_MAX);
            self.reserve_some(inode, state, &(block..until))?;
            block = until;
        }
        if grows {
            self.clear_tail(state)?;
            state.record.size = bytes.end;
        }
        Ok(())
    }

    /// Fills the holes in a range with blocks that read as zeros.
    fn reserve_some(&self, inode: &Arc<Inode>, state: &mut InodeState, range: &Range<u64>) -> Result<()> {
        let (mut new, mut taken, mut outcome) = (Vec::new(), Vec::new(), Ok(()));
        let mut goal = None;
        let mut at = range.start;
        let runs = self.runs(&state.record, range)?;
        // What is promised to pages in memory, of this file or another, is not set aside a second time.
        let mapped: u64 = runs.iter().map(|run| run.end().min(range.end) - run.at.max(range.start)).sum();
        if self.unpromised() + state.reserved < range.end - range.start - mapped {
            return Err(Errno::NOSPC.into());
        }
        'holes: for run in runs.into_iter().chain([Run::reserved(range.end, crate::Block(0), 1)]) {
            while at < run.at {
                match self.store.allocate(goal, u32::try_from(run.at - at).expect("below RESERVE_MAX")) {
                    Ok(extent) => {
                        taken.push(extent);
                        new.extend(pieces(extent, at).map(|(at, piece)| Run::reserved(at, piece.start, piece.blocks)));
                        at += u64::from(extent.blocks);
                        goal = extent.end();
                    }
                    Err(error) => {
                        outcome = Err(error.into());
                        break 'holes;
                    }
                }
            }
            at = run.end();
        }
        let outcome = outcome.and_then(|()| {
            let (mut batch, mut record) = (Batch::new(), state.record.clone());
            let mut edit = self.edit(&record, range)?;
            new.into_iter().for_each(|run| edit.replace(&(run.at..run.end()), vec![run]));
            self.put(&mut batch, &mut record, edit);
            self.put_record(&mut batch, inode, state, &record);
            state.lsn = self.apply(batch)?;
            state.record = record;
            Ok(())
        });
        outcome.inspect_err(|_| taken.into_iter().for_each(|extent| self.store.abandon(extent)))
    }

    /// Makes bytes zero; whole blocks become a hole. The size stays.
    fn punch(&self, inode: &Arc<Inode>, state: &mut InodeState, bytes: &Range<u64>) -> Result<()> {
        if let RecordBody::Inline(content) = &mut state.record.body {
            let size = content.len() as u64;
            content[bytes.start.min(size) as usize..bytes.end.min(size) as usize].fill(0);
            return Ok(());
        }
        let whole = bytes.start.div_ceil(BLOCK)..bytes.end / BLOCK;
        if self.next_run(&state.record, whole.start)?.is_some_and(|run| run.at < whole.end) {
            // What frees the blocks says how long the file is, so what was written has to be there.
            self.write_back(inode, state)?;
        }
        if !whole.is_empty() {
            self.forget_pages(state, whole.clone());
        }
        for block in [bytes.start / BLOCK, bytes.end / BLOCK] {
            let part = bytes.start.max(block * BLOCK)..bytes.end.min((block + 1) * BLOCK);
            if whole.contains(&block) || part.is_empty() || part.start >= state.record.size {
                continue;
            }
            if state.pages.contains_key(&block) || !self.runs(&state.record, &(block..block + 1))?.is_empty() {
                let page = self.page(state, block, false)?;
                page[(part.start - block * BLOCK) as usize..(part.end - block * BLOCK) as usize].fill(0);
            }
        }
        self.punch_blocks(inode, state, &whole)
    }

    fn punch_blocks(&self, inode: &Arc<Inode>, state: &mut InodeState, whole: &Range<u64>) -> Result<()> {
        let mut from = whole.start;
        while from < whole.end
            && let Some(run) = self.next_run(&state.record, from)?.filter(|run| run.at < whole.end)
        {
            let until = whole.end.min(run.at.max(from) + RESERVE_MAX);
            let (mut batch, mut record) = (Batch::new(), state.record.clone());
            self.cut_range(&mut batch, &mut record, &(from..until))?;
            self.put_record(&mut batch, inode, state, &record);
            state.lsn = self.apply(batch)?;
            state.record = record;
            from = until;
        }
        Ok(())
    }

    /// Where data begins, from a place on.
    pub fn seek_data(&self, state: &InodeState, at: u64) -> Result<u64> {
        let size = state.record.size;
        if at >= size {
            return Err(Errno::NXIO.into());
        }
        if matches!(state.record.body, RecordBody::Inline(_)) {
            return Ok(at);
        }
        let mut from = at / BLOCK;
        let run = loop {
            match self.next_run(&state.record, from)? {
                Some(run) if run.sums.is_none() => from = run.end(),
                Some(run) => break run.at.max(from),
                None => break BLOCKS_MAX,
            }
        };
        let page = state.pages.range(at / BLOCK..).next().map_or(BLOCKS_MAX, |(block, _)| *block);
        let found = (run.min(page) * BLOCK).max(at);
        if found < size { Ok(found) } else { Err(Errno::NXIO.into()) }
    }

    /// Where a hole begins, from a place on; the end of the file is one.
    pub fn seek_hole(&self, state: &InodeState, at: u64) -> Result<u64> {
        let size = state.record.size;
        if at >= size {
            return Err(Errno::NXIO.into());
        }
        if matches!(state.record.body, RecordBody::Inline(_)) {
            return Ok(size);
        }
        let mut block = at / BLOCK;
        loop {
            if state.pages.contains_key(&block) {
                block += 1;
                continue;
            }
            match self.runs(&state.record, &(block..block + 1))?.first() {
                Some(run) if run.sums.is_some() => block = run.end(),
                _ => return Ok((block * BLOCK).max(at).min(size)),
            }
        }
    }
}
