//! How the device is divided.
//!
//! ```text
//!  superblock | superblock | log ring | bitmap pages, two slots each | nodes of 16 KiB | data blocks
//! ```
//!
//! Where each region begins follows from the sizes, unless the image was resized: then the bitmaps may lie behind the data.

use super::NODE_BLOCKS;
use super::bitmap::PAGE_BITS;
use crate::error::Error;
use crate::units::{BLOCK_BYTES, Block, Extent};

const SUPERBLOCKS: u64 = 2;
/// Fewer blocks of log would leave no room for one large batch beside a checkpoint.
const LOG_BLOCKS_MIN: u64 = 32;
/// 1 GiB.
const LOG_BLOCKS_MAX: u64 = 1 << 18;
const LOG_BLOCKS_DEFAULT: std::ops::RangeInclusive<u64> = 256..=32768;
/// A longer log makes fewer checkpoints, and a longer recovery.
const LOG_SHARE_DEFAULT: u64 = 32;
const NODES_MIN: u64 = 32;
const NODES_MAX: u64 = u32::MAX as u64;
const NODES_DEFAULT_MIN: u64 = (4 << 20) / super::NODE_BYTES as u64;
const DATA_BLOCKS_MIN: u64 = 16;
/// Blocks of an image, at most: 1 PiB.
pub const BLOCKS_MAX: u64 = 1 << 38;

/// The sizes of an image's regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks in all, those that no region needs included.
    pub blocks: u64,
    /// The number of blocks of the log ring.
    pub log_blocks: u64,
    /// Nodes of the metadata region.
    pub nodes: u64,
    /// The number of blocks for file data.
    pub data_blocks: u64,
    /// Where the bitmaps begin, if not behind the log: they move when an image grows.
    pub bitmaps_at: Option<Block>,
    /// Where the nodes begin, if not behind the bitmaps.
    pub nodes_at: Option<Block>,
}

impl Shape {
    /// For a device of so many blocks; what is not chosen is chosen by its size.
    ///
    /// # Errors
    /// Not enough blocks.
    pub fn new(blocks: u64, log_bytes: Option<u64>, metadata_bytes: Option<u64>) -> Result<Shape, Error> {
        let blocks = blocks.min(BLOCKS_MAX);
        let log_default = (blocks / LOG_SHARE_DEFAULT).clamp(*LOG_BLOCKS_DEFAULT.start(), *LOG_BLOCKS_DEFAULT.end());
        let log_blocks = log_bytes.map_or(log_default, |bytes| bytes / BLOCK_BYTES as u64);
        let nodes_default = (blocks / 16 / NODE_BLOCKS).clamp(NODES_DEFAULT_MIN, NODES_MAX);
        let nodes = metadata_bytes.map_or(nodes_default, |bytes| bytes / super::NODE_BYTES as u64);
        let before = SUPERBLOCKS.saturating_add(log_blocks).saturating_add(nodes.saturating_mul(NODE_BLOCKS));
        let left = blocks.saturating_sub(before.saturating_add(2 * pages(nodes)));
        // Each page of the bitmap takes two blocks away from those that it counts.
        let data_blocks = left.saturating_sub(2 * pages(left));
        let shape = Shape { blocks, log_blocks, nodes, data_blocks, bitmaps_at: None, nodes_at: None };
        shape.check()?;
        Ok(shape)
    }

    /// The least blocks that an image with log and nodes of this one can have, for so many data blocks.
    pub fn least_blocks(self, data_blocks: u64) -> u64 {
        let data_blocks = data_blocks.max(DATA_BLOCKS_MIN);
        let mut blocks = self.data_start().0 + data_blocks;
        while blocks < BLOCKS_MAX && self.resized(blocks).is_ok_and(|shape| shape.data_blocks < data_blocks) {
            blocks += 1;
        }
        blocks
    }

    /// Whether the sizes go together: to be asked of all that was read.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(self) -> Result<(), Error> {
        if self.blocks > BLOCKS_MAX {
            return Err(Error::Sizes("an image has at most 1 PiB"));
        }
        if !(LOG_BLOCKS_MIN..=LOG_BLOCKS_MAX).contains(&self.log_blocks) {
            return Err(Error::Sizes("the log has 128 KiB to 1 GiB"));
        }
        if !(NODES_MIN..=NODES_MAX).contains(&self.nodes) {
            return Err(Error::Sizes("the metadata region has 512 KiB to 64 TiB"));
        }
        if self.data_blocks < DATA_BLOCKS_MIN {
            return Err(Error::Sizes("the device is too small for log, metadata and files; 8 MiB is enough by default"));
        }
        let moved = [self.bitmaps_at, self.nodes_at].into_iter().flatten().any(|at| at.0 > self.blocks);
        if self.data_blocks > self.blocks || moved || self.data_end().0 > self.blocks {
            return Err(Error::Sizes("the regions are larger than the image"));
        }
        // The bitmaps lie between log and nodes, or behind the data.
        let (bitmaps, end) = (self.bitmap_start(), self.bitmap_start().after(2 * (self.node_pages() + self.data_pages())));
        let before = bitmaps >= self.log_end() && end <= self.nodes_start();
        let behind = bitmaps >= self.data_end() && end.0 <= self.blocks;
        if self.nodes_start() < self.log_end() || !(before || behind) {
            return Err(Error::Sizes("the regions lie over each other"));
        }
        Ok(())
    }

    /// The same with so many blocks in all: log and nodes stay where they are.
    ///
    /// # Errors
    /// Not enough for what does not shrink.
    pub fn resized(self, blocks: u64) -> Result<Shape, Error> {
        let blocks = blocks.min(BLOCKS_MAX);
        let room = self.nodes_start().0.saturating_sub(self.log_end().0);
        let start = self.data_start().0;
        let fixed = |data_blocks: u64, bitmaps_at: Block| {
            let (bitmaps_at, nodes_at) = (Some(bitmaps_at), Some(self.nodes_start()));
            Shape { blocks, data_blocks, bitmaps_at, nodes_at, ..self }
        };
        // In the place they had at first, if they fit there.
        let left = blocks.saturating_sub(start);
        let mut shape = fixed(left, self.log_end());
        let bitmap = 2 * (self.node_pages() + pages(left));
        if bitmap > room {
            // With less data there may be a page less; two blocks are left over then.
            let data_blocks = left.saturating_sub(bitmap);
            let data_blocks = data_blocks.max(left.saturating_sub(2 * (self.node_pages() + pages(data_blocks + 2))));
            shape = fixed(data_blocks, Block(start.saturating_add(data_blocks)));
        }
        shape.check()?;
        Ok(shape)
    }

    fn log_end(self) -> Block {
        self.log_start().after(self.log_blocks)
    }

    /// Behind the last data block.
    pub fn data_end(self) -> Block {
        self.data_start().after(self.data_blocks)
    }

    /// Returns the first block of the log ring.
    pub fn log_start(self) -> Block {
        Block(SUPERBLOCKS)
    }

    fn bitmap_start(self) -> Block {
        self.bitmaps_at.unwrap_or(self.log_end())
    }

    /// Pages that say which nodes are in use.
    pub fn node_pages(self) -> u64 {
        pages(self.nodes)
    }

    /// Pages that say which data blocks are in use: behind those of the nodes.
    pub fn data_pages(self) -> u64 {
        pages(self.data_blocks)
    }

    /// The first slot of a page; the second lies behind it.
    pub fn page_at(self, page: u64) -> Block {
        self.bitmap_start().after(2 * page)
    }

    fn nodes_start(self) -> Block {
        self.nodes_at.unwrap_or_else(|| self.page_at(self.node_pages() + self.data_pages()))
    }

    /// Where a node lies, if there is such a one.
    pub fn node_at(self, slot: u32) -> Option<Block> {
        (u64::from(slot) < self.nodes).then(|| self.nodes_start().after(u64::from(slot) * NODE_BLOCKS))
    }

    /// The data region's first block.
    pub fn data_start(self) -> Block {
        self.nodes_start().after(self.nodes * NODE_BLOCKS)
    }

    /// The extent, counted from the data region's begin, if it lies within.
    pub fn data_range(self, extent: Extent) -> Option<std::ops::Range<u64>> {
        let from = extent.start.0.checked_sub(self.data_start().0)?;
        let to = from.checked_add(u64::from(extent.blocks))?;
        (extent.blocks > 0 && to <= self.data_blocks).then_some(from..to)
    }
}

fn pages(bits: u64) -> u64 {
    bits.div_ceil(PAGE_BITS)
}
