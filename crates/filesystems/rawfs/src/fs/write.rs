//! The path of a write: into the record while the file is small, else into pages that write-back places later.
//!
//! Bytes of a file's last block behind its size mean nothing; a call that makes the file longer makes them zero.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::SIZE_MAX;
use super::core::FsCore;
use super::creds::{Creds, mode_written};
use super::error::Result;
use super::record::{INLINE_MAX, RecordBody};
use super::table::{Inode, InodeState};
use crate::page::{Bytes, Page};
use crate::{BLOCK_BYTES, Batch};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes between two looks at the memory in use.
const GO: usize = 4 << 20;

impl FsCore {
    /// Writes into a file; `None`: at its end. Returns how much, and where it ends. The name space is shared, no other lock held.
    pub fn write(&self, inode: &Arc<Inode>, at: Option<u64>, data: &[u8], creds: &Creds) -> Result<(usize, u64)> {
        self.make_room(data.len().min(GO));
        let _names = self.locks.shared();
        let mut state = inode.state.write();
        let begin = at.unwrap_or(state.record.size);
        if data.is_empty() {
            return Ok((0, begin));
        }
        if begin >= SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        let data = &data[..data.len().min(usize::try_from(SIZE_MAX - begin).unwrap_or(usize::MAX))];
        let mut done = 0;
        for go in data.chunks(GO) {
            match self.write_go(inode, &mut state, begin + done as u64, go) {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            self.tell_unwritten();
            if done % GO != 0 || done == data.len() {
                break;
            }
            if self.unwritten() > self.settings.dirty_bytes as u64 {
                self.write_back(inode, &mut state)?;
            }
        }
        let now = self.now();
        (state.record.mtime, state.record.ctime) = (now, now);
        state.record.mode = mode_written(&state.record, creds);
        state.changed = true;
        self.list(inode, &mut state);
        Ok((done, begin + done as u64))
    }

    fn write_go(&self, inode: &Arc<Inode>, state: &mut InodeState, at: u64, data: &[u8]) -> Result<usize> {
        let written = self.put_pages(state, at, data)?;
        if written == data.len() {
            return Ok(written);
        }
        // Full: what this file has in memory may free blocks that it replaces, and blocks were set aside for it.
        self.write_back(inode, state)?;
        self.give_up_reserved(inode, state, &(at / BLOCK..(at + data.len() as u64).div_ceil(BLOCK)))?;
        self.store.sync(state.lsn)?;
        let more = self.put_pages(state, at + written as u64, &data[written..])?;
        if written + more == 0 { Err(Errno::NOSPC.into()) } else { Ok(written + more) }
    }

    /// What was set aside in a range is free, for the pages that will take its place.
    fn give_up_reserved(&self, inode: &Arc<Inode>, state: &mut InodeState, blocks: &Range<u64>) -> Result<()> {
        let reserved = self.runs(&state.record, blocks)?.into_iter().filter(|run| run.sums.is_none());
        for part in reserved.filter_map(|run| run.part(blocks)).collect::<Vec<_>>() {
            let (mut batch, mut record) = (Batch::new(), state.record.clone());
            self.cut_range(&mut batch, &mut record, &(part.at..part.end()))?;
            self.put_record(&mut batch, inode, state, &record);
            state.lsn = self.apply(batch)?;
            state.record = record;
        }
        Ok(())
    }

    /// Blocks that are free and promised to no file, beside those of pages in memory.
    fn room(&self) -> u64 {
        self.store.blocks_free().saturating_sub(self.reserved.load(Ordering::SeqCst))
    }

    /// Blocks that nobody counts on.
    pub fn unpromised(&self) -> u64 {
        self.room().saturating_sub(self.dirty_pages.load(Ordering::SeqCst))
    }

    /// Counts a page that was just put into memory; what was promised to the file is used first.
    fn count_page(&self, state: &mut InodeState) {
        self.dirty_pages.fetch_add(1, Ordering::SeqCst);
        if state.reserved > 0 {
            state.reserved -= 1;
            self.reserved.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Promises so many blocks to a file, for pages that it will write; fewer than now: the others are given back. Its lock is held.
    pub fn promise(&self, state: &mut InodeState, blocks: u64) -> Result<()> {
        if blocks <= state.reserved {
            self.reserved.fetch_sub(state.reserved - blocks, Ordering::SeqCst);
        } else {
            let more = blocks - state.reserved;
            if self.unpromised() < more {
                return Err(Errno::NOSPC.into());
            }
            self.reserved.fetch_add(more, Ordering::SeqCst);
        }
        state.reserved = blocks;
        Ok(())
    }

    /// As much as there is room for.
    pub fn put_pages(&self, state: &mut InodeState, at: u64, data: &[u8]) -> Result<usize> {
        let end = at + data.len() as u64;
        if let RecordBody::Inline(content) = &mut state.record.body
            && end <= INLINE_MAX as u64
        {
            let (from, to) = (at as usize, end as usize);
            if content.len() < to {
                content.resize(to, 0);
            }
            content[from..to].copy_from_slice(data);
            state.record.size = content.len() as u64;
            return Ok(data.len());
        }
        self.to_blocks(state);
        let room = self.room();
        if at > state.record.size {
            self.clear_tail(state)?;
        }
        let mut done = 0;
        while done < data.len() {
            let here = at + done as u64;
            let (block, skip) = (here / BLOCK, (here % BLOCK) as usize);
            let part = &data[done..data.len().min(done + BLOCK_BYTES - skip)];
            let promised = state.reserved > 0 || self.dirty_pages.load(Ordering::SeqCst) < room;
            if !promised && !state.pages.contains_key(&block) {
                break;
            }
            match <&Bytes>::try_from(part) {
                Ok(page) if !state.pages.contains_key(&block) => {
                    state.pages.insert(block, self.cache.page(page));
                    self.count_page(state);
                }
                _ => {
                    let page = self.page(state, block, part.len() == BLOCK_BYTES)?;
                    page[skip..skip + part.len()].copy_from_slice(part);
                }
            }
            done += part.len();
            state.record.size = state.record.size.max(at + done as u64);
        }
        Ok(done)
    }

    /// A block to be changed; `whole`: all of it will be. What is behind the file's end is zero.
    pub fn page<'s>(&self, state: &'s mut InodeState, block: u64, whole: bool) -> Result<&'s mut Bytes> {
        let valid = state.record.size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        if !state.pages.contains_key(&block) {
            // Shared with the cache until it is changed.
            let page = if whole || valid == 0 { Page::zero() } else { self.block(&state.record, block)? };
            state.pages.insert(block, page);
            self.count_page(state);
        }
        let page = state.pages.get_mut(&block).expect("just put").make_mut();
        page[valid..].fill(0);
        Ok(page)
    }

    /// What is behind the end in the last block becomes zero, before the file becomes longer.
    pub fn clear_tail(&self, state: &mut InodeState) -> Result<()> {
        let size = state.record.size;
        if size.is_multiple_of(BLOCK) || matches!(state.record.body, RecordBody::Inline(_)) {
            return Ok(());
        }
        let block = size / BLOCK;
        let mapped = self.runs(&state.record, &(block..block + 1))?.iter().any(|run| run.sums.is_some());
        if mapped || state.pages.contains_key(&block) {
            self.page(state, block, false)?;
            state.changed = true;
        }
        Ok(())
    }

    /// A file in its record becomes one with blocks, and stays one.
    pub fn to_blocks(&self, state: &mut InodeState) {
        let RecordBody::Inline(content) = &mut state.record.body else { return };
        let content = std::mem::take(content);
        state.record.body = RecordBody::Runs(Vec::new());
        state.changed = true;
        if !content.is_empty() {
            let mut page = [0; BLOCK_BYTES];
            page[..content.len()].copy_from_slice(&content);
            state.pages.insert(0, Page::new(&page));
            self.count_page(state);
        }
    }
}
