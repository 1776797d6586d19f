//! The log as a crash left it: the groups that follow each other from a position on, and where they end.

use super::group::{self, GroupHeader};
use super::ring::RingRegion;
use crate::disk::{Disk, QueueClass};
use crate::error::Error;
use crate::units::{BLOCK_BYTES, Lsn};

/// What belongs to the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogSearch {
    /// The blocks of the log ring.
    pub place: RingRegion,
    /// Where the first group is.
    pub position: u64,
    /// The life that every group must carry.
    pub life: u64,
    /// The image tag that every group must carry.
    pub image: u64,
    /// The last record that the checkpoint has.
    pub lsn: Lsn,
}

/// What a search of the log found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogTail {
    /// The groups found, in log order.
    pub groups: Vec<GroupHeader>,
    /// The last record of which the device says that it is durable.
    pub durable: Lsn,
    /// The position behind the last group.
    pub end: u64,
}

impl LogSearch {
    /// Looks for all groups. A group that is not whole, or not the next one, ends the log.
    ///
    /// # Errors
    /// The device's: nothing is known then.
    pub fn run(&self, disk: &Disk) -> Result<LogTail, Error> {
        let mut found = LogTail { groups: Vec::new(), durable: self.lsn, end: self.position };
        let mut bytes = Vec::new();
        while let Some(header) = self.next(disk, &found, &mut bytes)? {
            found.durable = found.durable.max(header.durable.min(header.last()));
            found.end += header.blocks();
            found.groups.push(header);
        }
        Ok(found)
    }

    fn next(&self, disk: &Disk, found: &LogTail, bytes: &mut Vec<u8>) -> Result<Option<GroupHeader>, Error> {
        let left = self.place.blocks - (found.end - self.position);
        if left == 0 {
            return Ok(None);
        }
        self.read(disk, found.end, 1, bytes)?;
        let Some(header) = group::peek(bytes) else { return Ok(None) };
        let ours = header.position == found.end && header.life == self.life && header.image == self.image;
        let next = found.groups.last().map_or(header.first.0 <= self.lsn.0 + 1, |last| header.first.0 == last.last().0 + 1);
        let fits = header.blocks() <= self.place.group_blocks_max().min(left) && header.records <= header.bytes / 4;
        if !ours || !next || !fits || header.first == Lsn(0) || header.first.0 > 1 << 62 {
            return Ok(None);
        }
        self.read(disk, found.end, header.blocks(), bytes)?;
        Ok(group::is_whole(bytes).then_some(header))
    }

    /// The bytes of a group that was found.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self, disk: &Disk, position: u64, blocks: u64, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.resize(blocks as usize * BLOCK_BYTES, 0);
        let mut rest = &mut bytes[..];
        for (at, blocks) in self.place.rows(position, blocks) {
            let (row, behind) = rest.split_at_mut(blocks as usize * BLOCK_BYTES);
            disk.read_blocks(QueueClass::Control, at, row)?;
            rest = behind;
        }
        Ok(())
    }
}
