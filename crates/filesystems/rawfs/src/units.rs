//! A type for each number.

/// Bytes of a block, the unit of everything on the device.
pub const BLOCK_BYTES: usize = 4096;

/// A block, counted from the device's first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Block(pub u64);

impl Block {
    /// Returns the block that many blocks further on.
    #[must_use]
    pub fn after(self, blocks: u64) -> Block {
        Block(self.0 + blocks)
    }

    /// Its first byte, from the device's begin.
    pub fn byte(self) -> u64 {
        self.0 * BLOCK_BYTES as u64
    }
}

/// A run of consecutive blocks on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Extent {
    /// The first block of the run.
    pub start: Block,
    /// The number of blocks in it.
    pub blocks: u32,
}

impl Extent {
    /// So many from here on.
    pub fn new(start: Block, blocks: u32) -> Extent {
        Extent { start, blocks }
    }

    /// The block behind it, if there is such a number.
    pub fn end(self) -> Option<Block> {
        self.start.0.checked_add(u64::from(self.blocks)).map(Block)
    }
}

/// The number of a batch, in the order in which they were applied. 0: none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);
