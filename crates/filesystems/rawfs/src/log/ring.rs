//! The ring of blocks that the log goes round in. Positions count blocks since the image was made and never come again.

use std::collections::VecDeque;

use super::group::{self, GroupHeader};
use crate::units::{BLOCK_BYTES, Block, Lsn};

/// Kept free, so that an empty group can always be written.
const SLACK_BLOCKS: u64 = 4;
const GROUP_BYTES_MAX: usize = 1 << 20;

/// Where the ring lies on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingRegion {
    /// The first block of the ring.
    pub start: Block,
    /// The number of blocks in it.
    pub blocks: u64,
}

impl RingRegion {
    /// Bytes of a batch, at most.
    pub fn batch_bytes_max(self) -> usize {
        (self.blocks / 4) as usize * BLOCK_BYTES - group::HEADER_BYTES - group::RECORD_HEAD
    }

    /// Blocks of a group, at most.
    pub fn group_blocks_max(self) -> u64 {
        self.blocks / 4
    }

    /// A group is closed when it has more bytes than this.
    pub fn group_bytes(self) -> usize {
        GROUP_BYTES_MAX.min(self.batch_bytes_max())
    }

    /// Blocks from a position on, as they lie on the device: one row, or two where the ring ends.
    pub fn rows(self, position: u64, blocks: u64) -> impl Iterator<Item = (Block, u64)> {
        let at = position % self.blocks;
        let first = blocks.min(self.blocks - at);
        [(self.start.after(at), first), (self.start, blocks - first)].into_iter().filter(|(_, blocks)| *blocks > 0)
    }

    /// Blocks that records of so many bytes take at most, whatever groups they are in.
    fn cost(self, bytes: usize) -> u64 {
        let groups = 2 * bytes / self.group_bytes() + 1;
        (bytes + groups * group::HEADER_BYTES).div_ceil(BLOCK_BYTES) as u64 + groups as u64
    }
}

/// Which groups are in it.
pub struct Ring {
    /// Where the ring lies on the device.
    pub place: RingRegion,
    head: u64,
    tail: u64,
    groups: VecDeque<(u64, Lsn)>,
}

impl Ring {
    /// Empty; the next group goes to this position.
    pub fn new(place: RingRegion, position: u64) -> Ring {
        Ring { place, head: position, tail: position, groups: VecDeque::new() }
    }

    /// Where the next group goes.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns the number of blocks in use.
    pub fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// Whether records of so many bytes surely find room.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.used() + self.place.cost(bytes) + SLACK_BLOCKS <= self.place.blocks
    }

    /// Whether an empty group finds room.
    pub fn has_slack(&self) -> bool {
        self.used() < self.place.blocks
    }

    /// A group goes to the head.
    pub fn push(&mut self, header: &GroupHeader) {
        self.groups.push_back((self.head, header.last()));
        self.head += header.blocks();
        assert!(self.used() <= self.place.blocks, "the caller checked for room");
    }

    /// Where the first record behind this one is, or will be.
    pub fn behind(&self, lsn: Lsn) -> u64 {
        self.groups.iter().find(|(_, last)| *last > lsn).map_or(self.head, |(position, _)| *position)
    }

    /// What lies before this position is not needed any more.
    pub fn release(&mut self, position: u64) {
        while self.groups.front().is_some_and(|(at, _)| *at < position) {
            self.groups.pop_front();
        }
        self.tail = position.max(self.tail);
        self.head = self.head.max(self.tail);
    }
}
