//! What lies on the device, for people: also of an image that cannot be opened.

use super::Store;
use super::open::{copies, superblock};
use crate::disk::Disk;
use crate::error::Error;
use crate::layout::superblock::Superblock;
use crate::log::read::LogSearch;
use crate::log::ring::RingRegion;
use crate::units::Lsn;

/// A group of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogGroup {
    /// Where it is, in blocks written to the log since the image was made.
    pub position: u64,
    /// The number of blocks the group takes.
    pub blocks: u64,
    /// Its batches, the first of them.
    pub first: Lsn,
    /// The number of batches in the group.
    pub batches: u32,
    /// What was known to be durable when it was written.
    pub durable: Lsn,
}

impl Store {
    /// Both superblocks, or what is wrong with them.
    ///
    /// # Errors
    /// The device has not even two blocks.
    pub fn superblocks(disk: &Disk) -> Result<[Result<Superblock, Error>; 2], Error> {
        copies(disk)
    }

    /// The log behind the last checkpoint: what the next opening does again, as far as its data blocks are there.
    ///
    /// # Errors
    /// No superblock; the device's.
    pub fn log_groups(disk: &Disk) -> Result<Vec<LogGroup>, Error> {
        let (superblock, _) = superblock(disk)?;
        let place = RingRegion { start: superblock.shape.log_start(), blocks: superblock.shape.log_blocks };
        let Superblock { log_position: position, life, lsn, clean, .. } = superblock;
        if clean || superblock.shape.blocks > disk.blocks() {
            return Ok(Vec::new());
        }
        let found = LogSearch { place, position, life, image: superblock.image(), lsn }.run(disk)?;
        let group = |header: &crate::log::group::GroupHeader| LogGroup {
            position: header.position,
            blocks: header.blocks(),
            first: header.first,
            batches: header.records,
            durable: header.durable,
        };
        Ok(found.groups.iter().map(group).collect())
    }
}
