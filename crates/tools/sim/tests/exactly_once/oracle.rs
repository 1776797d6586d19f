//! What each block may hold, given what was asked for and what was answered.

use block::{Buf, Error, Op, Request, Time};

use crate::{BLOCK, BLOCKS};

/// What a block may hold: one write to it.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// What it was written with; 0: zeroes.
    pub stamp: u64,
    /// When it was asked for: zeroes have no stamp of their own.
    pub begun: u64,
    /// From then on the device does nothing with that write any more.
    pub ended: u64,
    /// From then on a later write is known to have replaced it.
    pub replaced: u64,
}

pub const NOT_YET: u64 = u64::MAX;

/// What each block may hold, given what was asked for and answered. Moments are numbered.
pub struct Oracle {
    pub blocks: Vec<Vec<Version>>,
    pub moment: u64,
}

impl Oracle {
    pub fn new() -> Oracle {
        let zeroes = Version { stamp: 0, begun: 0, ended: 0, replaced: NOT_YET };
        Oracle { blocks: vec![vec![zeroes]; BLOCKS as usize], moment: 0 }
    }

    pub fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// At the moment that is now.
    pub fn begins(&mut self, request: &Request, stamp: u64) {
        for block in range(request) {
            self.blocks[block].push(Version { stamp, begun: self.moment, ended: NOT_YET, replaced: NOT_YET });
        }
    }

    /// The device is done with a write; `done`: it says that all of it is there.
    pub fn ends(&mut self, asked: &Asked, done: bool) {
        let now = self.tick();
        for block in range(&asked.request) {
            let versions = &mut self.blocks[block];
            for version in versions.iter_mut() {
                if version.begun == asked.moment && version.ended == NOT_YET {
                    version.ended = now;
                } else if done && asked.request.op != Op::Discard && version.ended < asked.moment {
                    version.replaced = version.replaced.min(now);
                }
            }
        }
    }

    pub fn is_long(&self, request: &Request) -> bool {
        range(request).any(|block| self.blocks[block].len() > 12)
    }

    /// Nobody reads what was replaced before the oldest request in flight was submitted.
    pub fn forget(&mut self, request: &Request, oldest: u64) {
        range(request).for_each(|block| self.blocks[block].retain(|version| version.replaced >= oldest));
    }

    pub fn may_be_read(&self, block: usize, stamp: u64, since: u64) -> bool {
        self.blocks[block].iter().any(|version| version.stamp == stamp && version.replaced > since)
    }
}

pub fn range(request: &Request) -> std::ops::Range<usize> {
    request.lba.0 as usize..request.lba.0 as usize + request.blocks as usize
}

/// A request that was handed over.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub request: Request,
    /// What a write writes. Unique, but for zeroes.
    pub stamp: u64,
    pub moment: u64,
    pub deadline: Time,
    pub buffer: Option<usize>,
    pub cancelled: bool,
    /// What its answer has to be, if the device lives.
    pub expected: Option<Error>,
    /// It is reported, and the device may still have its memory.
    pub abandoned: bool,
}

pub fn stamp_block(buffer: &Buf, at: usize, stamp: u64, lba: u64) {
    let mut bytes = [0; BLOCK];
    for word in bytes.chunks_exact_mut(16) {
        word[..8].copy_from_slice(&stamp.to_ne_bytes());
        word[8..].copy_from_slice(&lba.to_ne_bytes());
    }
    buffer.write(at * BLOCK, &bytes);
}

/// The stamp, if all of the block is of one write to this place; 0 for zeroes.
pub fn read_stamp(buffer: &Buf, at: usize, lba: u64) -> Option<u64> {
    let mut bytes = [0; BLOCK];
    buffer.read(at * BLOCK, &mut bytes);
    let (first, whole) = (&bytes[..16], bytes.chunks_exact(16).all(|word| word == &bytes[..16]));
    let stamp = u64::from_ne_bytes(first[..8].try_into().expect("eight"));
    let place = u64::from_ne_bytes(first[8..].try_into().expect("eight"));
    (whole && (place == lba || (stamp == 0 && place == 0))).then_some(stamp)
}
