//! The superblock: the image's sizes, and the checkpoint that counts. Both copies say the same, but while one is written.

use super::seal::Seal;
use super::version::{VERSION, migrate};
use super::{Shape, put_u32, put_u64, u32_at, u64_at};
use crate::error::Error;
use crate::tree::NodeAt;
use crate::units::{BLOCK_BYTES, Block, Lsn};

const MAGIC: [u8; 4] = *b"hsfS";
/// A sector, which a device writes whole.
const BYTES: usize = 512;
/// The blocks that hold the two copies.
pub const COPIES: [Block; 2] = [Block(0), Block(1)];
const CLEAN: u32 = 1;
const ROOTS: usize = 112;
/// Of an image that was resized: where bitmaps and nodes begin; 0: where the sizes say.
const MOVED: usize = 136;

/// The root of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Where the root node is.
    pub at: NodeAt,
    /// Above the leaves, which are 0.
    pub level: u8,
}

/// The contents of a superblock, apart from its seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The UUID that names the image.
    pub uuid: [u8; 16],
    /// Counted up by each writing.
    pub generation: u64,
    /// The sizes of the image's regions.
    pub shape: Shape,
    /// Closed in order, and not opened since: the log has nothing.
    pub clean: bool,
    /// Counted up by each opening; groups of the log carry it, so that those of an earlier life are not taken for ours.
    pub life: u64,
    /// The last batch that the trees hold.
    pub lsn: Lsn,
    /// Where the log goes on behind it, in blocks written to it since the image was made.
    pub log_position: u64,
    /// The roots of the two trees, by tree.
    pub roots: [Root; 2],
}

impl Superblock {
    /// What seals of this image carry.
    pub fn image(&self) -> u64 {
        u64_at(&self.uuid, 0)
    }

    /// Its bytes for one of the copies.
    pub fn encode(&self, at: Block) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        put_u32(&mut block, 32, VERSION);
        put_u32(&mut block, 36, if self.clean { CLEAN } else { 0 });
        block[40..56].copy_from_slice(&self.uuid);
        let shape = self.shape;
        let numbers = [shape.blocks, shape.log_blocks, shape.nodes, shape.data_blocks, self.life, self.lsn.0, self.log_position];
        for (index, number) in numbers.into_iter().enumerate() {
            put_u64(&mut block, 56 + 8 * index, number);
        }
        for (index, at) in [shape.bitmaps_at, shape.nodes_at].into_iter().enumerate() {
            put_u64(&mut block, MOVED + 8 * index, at.map_or(0, |at| at.0));
        }
        for (index, root) in self.roots.iter().enumerate() {
            let at = ROOTS + 12 * index;
            put_u32(&mut block, at, root.at.slot);
            put_u32(&mut block, at + 4, root.at.sum);
            put_u32(&mut block, at + 8, u32::from(root.level));
        }
        Seal { magic: MAGIC, at: at.0, generation: self.generation, image: self.image() }.put(&mut block[..BYTES]);
        block
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// [`Error::NoImage`] if it is none or damaged, [`Error::Later`], or what is wrong with its sizes.
    pub fn decode(block: &[u8], at: Block) -> Result<Superblock, Error> {
        let bytes = block.get(..BYTES).ok_or(Error::NoImage)?;
        let seal = Seal::get(bytes).filter(|seal| seal.magic == MAGIC && seal.at == at.0).ok_or(Error::NoImage)?;
        let mut bytes = bytes.to_vec();
        let version = u32_at(&bytes, 32);
        migrate(version, &mut bytes, at)?;
        let bytes = &bytes[..];
        let number = |index: usize| u64_at(bytes, 56 + 8 * index);
        let moved = |index: usize| Some(Block(u64_at(bytes, MOVED + 8 * index))).filter(|at| at.0 != 0);
        let (bitmaps_at, nodes_at) = (moved(0), moved(1));
        let shape = Shape { blocks: number(0), log_blocks: number(1), nodes: number(2), data_blocks: number(3), bitmaps_at, nodes_at };
        shape.check()?;
        let root = |index: usize| -> Result<Root, Error> {
            let place = ROOTS + 12 * index;
            let level = u8::try_from(u32_at(bytes, place + 8)).map_err(|_| Error::Damaged { what: "a tree's level", at })?;
            Ok(Root { at: NodeAt { slot: u32_at(bytes, place), sum: u32_at(bytes, place + 4) }, level })
        };
        let uuid: [u8; 16] = bytes[40..56].try_into().expect("sixteen bytes");
        let superblock = Superblock {
            uuid,
            generation: seal.generation,
            shape,
            clean: u32_at(bytes, 36) & CLEAN != 0,
            life: number(4),
            lsn: Lsn(number(5)),
            log_position: number(6),
            roots: [root(0)?, root(1)?],
        };
        // Counters of a real image never come near their ends.
        let counters = [superblock.generation, superblock.life, superblock.lsn.0, superblock.log_position];
        if superblock.image() != seal.image || counters.iter().any(|number| *number >= 1 << 62) {
            return Err(Error::Damaged { what: "a superblock", at });
        }
        Ok(superblock)
    }
}
