//! The legal content of each block, given submissions and completions.

use block::{Buf, Error, Op, Request, Time};

use crate::{BLOCK, BLOCKS};

/// A possible content of a block: one write to it.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Stamp of the write; 0: zeroes.
    pub stamp: u64,
    /// Time of submission: zeroes have no stamp.
    pub begun: u64,
    /// Time after which the device no longer performs the write.
    pub ended: u64,
    /// Time after which a later write has replaced it.
    pub replaced: u64,
}

pub const NOT_YET: u64 = u64::MAX;

/// The legal content of each block, given submissions and completions. Events are numbered.
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

    /// Records a submission at the current time.
    pub fn begins(&mut self, request: &Request, stamp: u64) {
        for block in range(request) {
            self.blocks[block].push(Version { stamp, begun: self.moment, ended: NOT_YET, replaced: NOT_YET });
        }
    }

    /// Records that the device is done with a write; `done`: all of it is on the medium.
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

    /// Drops versions replaced before the oldest request in flight was submitted.
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

/// A submitted request.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub request: Request,
    /// Stamp of a write; unique except for zeroes.
    pub stamp: u64,
    pub moment: u64,
    pub deadline: Time,
    pub buffer: Option<usize>,
    pub cancelled: bool,
    /// Its expected error if the device is alive.
    pub expected: Option<Error>,
    /// It completed, but the device may still use its memory.
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

/// Returns the stamp if the whole block is from one write to this position; 0 for zeroes.
pub fn read_stamp(buffer: &Buf, at: usize, lba: u64) -> Option<u64> {
    let mut bytes = [0; BLOCK];
    buffer.read(at * BLOCK, &mut bytes);
    let (first, whole) = (&bytes[..16], bytes.chunks_exact(16).all(|word| word == &bytes[..16]));
    let stamp = u64::from_ne_bytes(first[..8].try_into().expect("eight"));
    let place = u64::from_ne_bytes(first[8..].try_into().expect("eight"));
    (whole && (place == lba || (stamp == 0 && place == 0))).then_some(stamp)
}
