//! Batches: what is changed together. Built up in the form in which the log keeps them (docs/formats.md, "The raw file system").

use crate::error::Error;
use crate::units::{BLOCK_BYTES, Block, Extent};

/// Bytes of a key, at most.
pub const KEY_BYTES_MAX: usize = crate::tree::KEY_MAX;
/// Bytes of a value, at most.
pub const VALUE_BYTES_MAX: usize = crate::tree::VALUE_MAX;

/// A key space: a separate tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TreeId {
    /// Paths.
    Names = 0,
    /// What belongs to a number of a file.
    Files = 1,
}

impl TreeId {
    /// Both trees, in their stored order.
    pub const ALL: [TreeId; 2] = [TreeId::Names, TreeId::Files];

    fn of(number: u8) -> Option<TreeId> {
        TreeId::ALL.get(usize::from(number)).copied()
    }
}

/// Changes that happen all or not at all, also when the power goes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    operations: u32,
    wrong: Option<&'static str>,
}

/// Room for what one call does, mostly.
const FIRST_BYTES: usize = 512;
const PUT: u8 = 1;
const PATCH: u8 = 2;
const DELETE: u8 = 3;
const MOVE: u8 = 4;
const USE: u8 = 5;
const FREE: u8 = 6;
const FILL: u8 = 7;

/// One change of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// The key has this value from now on.
    Put(TreeId, &'a [u8], &'a [u8]),
    /// Some of the bytes of its value.
    Patch(TreeId, &'a [u8], u16, &'a [u8]),
    /// The key is gone, if it was there.
    Delete(TreeId, &'a [u8]),
    /// All keys that begin with the first begin with the second instead.
    Move(TreeId, &'a [u8], &'a [u8]),
    /// Blocks belong to something from now on; a sum of each, 4 bytes little-endian.
    Use(Extent, &'a [u8]),
    /// Blocks belong to nothing any more.
    Free(Extent),
    /// Blocks in use hold these bytes from now on.
    Fill(Extent, &'a [u8]),
}

impl Batch {
    /// Makes a batch without any changes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// The key has this value from now on.
    pub fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.begin(PUT, tree as u8);
        self.key(key);
        self.value(value);
    }

    /// Replaces some bytes of a value, from its byte `at` on. The key is there, and its value as long.
    pub fn patch(&mut self, tree: TreeId, key: &[u8], at: u16, bytes: &[u8]) {
        self.begin(PATCH, tree as u8);
        self.key(key);
        self.bytes.extend(at.to_le_bytes());
        self.value(bytes);
    }

    /// The key is gone; nothing happens if it was not there.
    pub fn delete(&mut self, tree: TreeId, key: &[u8]) {
        self.begin(DELETE, tree as u8);
        self.key(key);
    }

    /// All keys that begin with `from` begin with `to` instead. Before, no key begins with `to`; neither is a prefix of the other. If
    /// `to` is the longer one, the range has at most 1024 keys, and none becomes longer than [`KEY_BYTES_MAX`].
    pub fn move_range(&mut self, tree: TreeId, from: &[u8], to: &[u8]) {
        self.begin(MOVE, tree as u8);
        self.key(from);
        self.key(to);
    }

    /// These blocks, allocated before, belong to something from now on. Their data are completed (not flushed) before the batch
    /// is applied; `sums` has a crc32c of each. No sums: whatever they hold after a crash is right.
    pub fn use_blocks(&mut self, extent: Extent, sums: &[u32]) {
        let right = sums.is_empty() || sums.len() == extent.blocks as usize;
        assert!(right, "{} sums of {} blocks", sums.len(), extent.blocks);
        self.begin(USE, u8::from(!sums.is_empty()));
        self.extent(extent);
        sums.iter().for_each(|sum| self.bytes.extend(sum.to_le_bytes()));
    }

    /// These blocks belong to nothing any more.
    pub fn free_blocks(&mut self, extent: Extent) {
        self.begin(FREE, 0);
        self.extent(extent);
    }

    /// These blocks, in use by now, hold these bytes from now on: the log has them, and the store brings them to their place later.
    /// [`crate::Store::may_fill`] was called; for blocks that an earlier batch had used, [`crate::Store::may_overwrite`] too.
    pub fn fill_blocks(&mut self, start: Block, pages: &[&[u8]]) {
        assert!(pages.iter().all(|page| page.len() == BLOCK_BYTES), "whole blocks");
        self.begin(FILL, 0);
        self.extent(Extent::new(start, pages.len() as u32));
        self.bytes.reserve(pages.len() * BLOCK_BYTES);
        pages.iter().for_each(|page| self.bytes.extend_from_slice(page));
    }

    /// Does what another does, behind what is in it.
    pub fn extend(&mut self, other: Batch) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.bytes.extend_from_slice(&other.bytes);
        self.operations += other.operations;
        self.wrong = self.wrong.or(other.wrong);
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.operations == 0
    }

    /// Bytes it takes in the log.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of changes in the batch.
    pub fn operations(&self) -> u32 {
        self.operations
    }

    /// What it does, in order.
    pub fn changes(&self) -> ChangeReader<'_> {
        ChangeReader { bytes: &self.bytes }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.wrong.map_or(Ok(()), |what| Err(Error::TooLarge(what)))
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        &self.bytes
    }

    fn begin(&mut self, kind: u8, of: u8) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(FIRST_BYTES);
        }
        self.bytes.push(kind | of << 4);
        self.operations += 1;
    }

    fn key(&mut self, key: &[u8]) {
        if key.len() > KEY_BYTES_MAX {
            self.wrong = Some("a key of more than 2048 bytes");
            return self.bytes.extend([0; 2]);
        }
        self.bytes.extend((key.len() as u16).to_le_bytes());
        self.bytes.extend(key);
    }

    fn value(&mut self, value: &[u8]) {
        if value.len() > VALUE_BYTES_MAX {
            self.wrong = Some("a value of more than 3328 bytes");
            return self.bytes.extend([0; 2]);
        }
        self.bytes.extend((value.len() as u16).to_le_bytes());
        self.bytes.extend(value);
    }

    fn extent(&mut self, extent: Extent) {
        self.bytes.extend(extent.start.0.to_le_bytes());
        self.bytes.extend(extent.blocks.to_le_bytes());
    }
}

/// Reads changes out of bytes that may be anything: `Err` where they mean nothing, and then no more.
#[derive(Clone, Debug)]
pub struct ChangeReader<'a> {
    bytes: &'a [u8],
}

/// Bytes that are no change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidBatch;

impl<'a> ChangeReader<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> ChangeReader<'a> {
        ChangeReader { bytes }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn sized(&mut self, most: usize) -> Option<&'a [u8]> {
        let len = usize::from(self.u16()?);
        if len <= most { self.take(len) } else { None }
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.sized(KEY_BYTES_MAX)
    }

    fn extent(&mut self) -> Option<Extent> {
        let start = u64::from_le_bytes(self.take(8)?.try_into().ok()?);
        let blocks = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        Some(Extent::new(Block(start), blocks))
    }

    fn change(&mut self) -> Option<Change<'a>> {
        let head = self.take(1)?[0];
        let (kind, of) = (head & 0xf, head >> 4);
        let tree = || TreeId::of(of);
        Some(match kind {
            PUT => Change::Put(tree()?, self.key()?, self.sized(VALUE_BYTES_MAX)?),
            PATCH => Change::Patch(tree()?, self.key()?, self.u16()?, self.sized(VALUE_BYTES_MAX)?),
            DELETE => Change::Delete(tree()?, self.key()?),
            MOVE => Change::Move(tree()?, self.key()?, self.key()?),
            USE if of <= 1 => {
                let extent = self.extent()?;
                let sums = (extent.blocks as usize).checked_mul(4 * usize::from(of))?;
                Change::Use(extent, self.take(sums)?)
            }
            FREE if of == 0 => Change::Free(self.extent()?),
            FILL if of == 0 => {
                let extent = self.extent()?;
                Change::Fill(extent, self.take((extent.blocks as usize).checked_mul(BLOCK_BYTES)?)?)
            }
            _ => return None,
        })
    }
}

impl<'a> Iterator for ChangeReader<'a> {
    type Item = Result<Change<'a>, InvalidBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let change = self.change();
        if change.is_none() {
            self.bytes = &[];
        }
        Some(change.ok_or(InvalidBatch))
    }
}
