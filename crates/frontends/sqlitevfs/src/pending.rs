//! What was written to a database and is not in its file yet: all connections of the process see it, the device does not.
//!
//! It goes below as one transaction of the file system: after a loss of power all of it is there or nothing. A file that became
//! shorter is cut behind that, which only gives back space: SQLite's header says how many pages count.

use std::collections::BTreeMap;
use std::ops::Range;

use rawfs::fs::{File, Fs, Result, Transaction};
use rawfs::{BLOCK_BYTES, Lsn};

const BLOCK: u64 = BLOCK_BYTES as u64;
type Page = [u8; BLOCK_BYTES];

/// Written blocks that are not committed yet, in memory.
#[derive(Clone)]
pub struct Pending {
    blocks: BTreeMap<u64, Box<Page>>,
    /// Bytes of the database as connections see it.
    len: u64,
    /// Bytes of the database file.
    below: u64,
    /// Bytes of it that are the database, as it was when nothing was pending.
    base: u64,
}

impl Pending {
    /// Nothing, over a file of so many bytes.
    pub fn new(below: u64) -> Pending {
        Pending { blocks: BTreeMap::new(), len: below, below, base: below }
    }

    /// Bytes of the database as connections see it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the database file is what connections see.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.len == self.below
    }

    /// Whether the database file is going to be longer.
    pub fn grows(&self) -> bool {
        self.len > self.below
    }

    /// Returns the number of blocks in memory.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of the database file.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Blocks that a write would add to those in memory.
    pub fn added_by(&self, at: u64, len: usize) -> u64 {
        // What lies between is made zero.
        let from = if self.len < at.min(self.below) { self.len } else { at };
        let touched = from / BLOCK..blocks(at, len).end;
        let known = self.blocks.range(touched.clone()).count() as u64;
        (touched.end - touched.start).saturating_sub(known)
    }

    /// Whether a write would change nothing.
    pub fn has(&self, file: &File, from: &[u8], at: u64) -> bool {
        let mut now = vec![0; from.len()];
        self.read(file, &mut now, at).is_ok_and(|done| done == now.len()) && now == from
    }

    /// Discards what is in memory: connections see the database file.
    pub fn forget(&mut self) {
        self.blocks.clear();
        self.len = self.base;
    }

    /// Returns to the state before, over the present database file.
    pub fn back_to(&mut self, before: Pending) {
        *self = Pending { below: self.below, ..before };
    }

    /// Forgets blocks that are the same below.
    pub fn prune(&mut self, file: &File) {
        let (len, below) = (self.len, self.below);
        self.blocks.retain(|block, page| {
            let valid = below.min(len).saturating_sub(block * BLOCK).min(BLOCK) as usize;
            let mut old = [0; BLOCK_BYTES];
            let same = valid as u64 == len.saturating_sub(block * BLOCK).min(BLOCK)
                && file.read_at(&mut old[..valid], block * BLOCK).is_ok_and(|done| done == valid)
                && old[..valid] == page[..valid];
            !same
        });
    }

    /// Reads; returns how much, which is less than asked for only at the end.
    pub fn read(&self, file: &File, to: &mut [u8], at: u64) -> Result<usize> {
        let len = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX).min(to.len());
        let to = &mut to[..len];
        let first = self.blocks.get(&(at / BLOCK));
        if let Some(page) = first.filter(|_| at % BLOCK + len as u64 <= BLOCK) {
            to.copy_from_slice(&page[(at % BLOCK) as usize..][..len]);
            return Ok(len);
        }
        let done = file.read_at(to, at)?;
        to[done..].fill(0);
        for (block, page) in self.blocks.range(blocks(at, len)) {
            let (from, part) = shared(*block, at, len);
            to[from].copy_from_slice(&page[part]);
        }
        Ok(len)
    }

    /// Writes bytes into the blocks in memory.
    pub fn write(&mut self, file: &File, from: &[u8], at: u64) -> Result<()> {
        // What lies between is zero, whatever the database file still has there.
        let end = at.min(self.below);
        if self.len < end {
            self.clear(file, self.len..end)?;
        }
        self.put(file, from, at)
    }

    fn put(&mut self, file: &File, from: &[u8], at: u64) -> Result<()> {
        for block in blocks(at, from.len()) {
            let (bytes, part) = shared(block, at, from.len());
            let page = match self.blocks.entry(block) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let mut page = Box::new([0; BLOCK_BYTES]);
                    let valid = self.len.min(self.below).saturating_sub(block * BLOCK).min(BLOCK) as usize;
                    if part.len() < BLOCK_BYTES {
                        file.read_at(&mut page[..valid], block * BLOCK)?;
                    }
                    entry.insert(page)
                }
            };
            page[part].copy_from_slice(&from[bytes]);
        }
        self.len = self.len.max(at + from.len() as u64);
        Ok(())
    }

    fn clear(&mut self, file: &File, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let bytes = (BLOCK - at % BLOCK).min(range.end - at);
            self.put(file, &[0; BLOCK_BYTES][..bytes as usize], at)?;
            at += bytes;
        }
        Ok(())
    }

    /// Makes the database shorter or longer.
    pub fn set_len(&mut self, file: &File, len: u64) -> Result<()> {
        if len > self.len {
            return self.clear(file, self.len..len);
        }
        self.blocks.split_off(&len.div_ceil(BLOCK));
        self.len = len;
        if let Some(page) = self.blocks.get_mut(&(len / BLOCK)) {
            page[(len % BLOCK) as usize..].fill(0);
        }
        Ok(())
    }

    /// Puts all of it into a transaction of the file system; [`Pending::applied`] once that is done.
    pub fn gather(&self, file: &File, to: &mut Transaction) -> Result<()> {
        self.gather_some(file, self.blocks.iter(), to)
    }

    /// Records that it is in the database file.
    pub fn applied(&mut self, file: &File) {
        self.below = self.below.max(self.end());
        self.blocks.clear();
        self.base = self.len;
        self.cut(file);
    }

    /// Writes all of it to the database file, in one batch and in order with everything else, not yet durable. An error: nothing is
    /// written.
    pub fn apply(&mut self, fs: &Fs, file: &File) -> Result<()> {
        let mut all = fs.begin();
        self.gather(file, &mut all)?;
        fs.apply(&all)?;
        self.applied(file);
        Ok(())
    }

    /// The same piece by piece, for more than one transaction can be; something else makes it whole. `piece`: blocks of each. `next` is
    /// called after each with the length of the file.
    pub fn apply_in_pieces(&mut self, fs: &Fs, file: &File, piece: usize, next: &mut dyn FnMut(u64)) -> Result<()> {
        while !self.blocks.is_empty() {
            let mut some = fs.begin();
            let last = *self.blocks.keys().nth(piece - 1).or_else(|| self.blocks.keys().next_back()).expect("not empty");
            self.gather_some(file, self.blocks.range(..=last), &mut some)?;
            let _: Lsn = fs.apply(&some)?;
            self.below = self.below.max(((last + 1) * BLOCK).min(self.len));
            self.blocks = self.blocks.split_off(&(last + 1));
            next(self.below);
        }
        self.base = self.len;
        self.cut(file);
        Ok(())
    }

    fn end(&self) -> u64 {
        self.blocks.keys().next_back().map_or(0, |last| ((last + 1) * BLOCK).min(self.len))
    }

    /// Gives back space that nothing counts on; what fails is tried again.
    pub fn cut(&mut self, file: &File) {
        if self.len != self.below && file.set_len(self.len).is_ok() {
            self.below = self.len;
        }
    }

    fn gather_some<'p>(&self, file: &File, some: impl Iterator<Item = (&'p u64, &'p Box<Page>)>, to: &mut Transaction) -> Result<()> {
        for (block, page) in some {
            let bytes = (self.len - block * BLOCK).min(BLOCK) as usize;
            to.write_at(file, &page[..bytes], block * BLOCK)?;
        }
        Ok(())
    }
}

/// The blocks that bytes touch.
fn blocks(at: u64, len: usize) -> Range<u64> {
    at / BLOCK..(at + len as u64).div_ceil(BLOCK)
}

/// The part of the bytes that lies in a block, and where in it.
fn shared(block: u64, at: u64, len: usize) -> (Range<usize>, Range<usize>) {
    let begin = block * BLOCK;
    let (from, to) = (begin.max(at), (begin + BLOCK).min(at + len as u64));
    ((from - at) as usize..(to - at) as usize, (from - begin) as usize..(to - begin) as usize)
}
