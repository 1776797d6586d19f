//! A job from what its owner wants: the place on the device, and its parts.

use super::Owner;
use crate::buffer::Span;
use crate::clock::Time;
use crate::error::Error;
use crate::handle::cut::Limits;
use crate::handle::io::{At, Io, Timeout};
use crate::handle::job::{Cursor, Job, JobState};
use crate::handle::params::Defaults;
use crate::request::Op;
use crate::units::Lba;

impl Limits {
    /// Returns the first block and the number of blocks of a request.
    #[inline(always)]
    pub(super) fn place(&self, io: &Io, bytes: u64) -> Result<(Lba, u64), Error> {
        let in_block = (1 << self.block_shift) - 1;
        let lba = match io.at {
            At::Block(lba) => lba,
            At::Byte(byte) if byte & in_block == 0 => Lba(byte >> self.block_shift),
            At::Byte(_) => return Err(Error::Misaligned),
        };
        let bytes = match (io.op.has_data(), io.at) {
            (true, _) => bytes,
            (false, At::Byte(_)) => io.length,
            (false, At::Block(_)) => return self.not_empty(io.op, lba, io.length),
        };
        if bytes & in_block != 0 {
            return Err(Error::Misaligned);
        }
        self.not_empty(io.op, lba, bytes >> self.block_shift)
    }

    /// Refuses empty requests. The device's geometry checks the rest at submission.
    #[inline(always)]
    fn not_empty(&self, op: Op, lba: Lba, blocks: u64) -> Result<(Lba, u64), Error> {
        if blocks == 0 && op != Op::Flush { Err(Error::OutOfRange) } else { Ok((lba, blocks)) }
    }
}

impl Job {
    #[inline(always)]
    pub(super) fn fill(&mut self, owner: Owner, io: Io, defaults: &Defaults, claimed: bool) {
        self.owner = owner;
        self.state = JobState::Waiting;
        self.request.op = io.op;
        self.request.fua = io.op == Op::Write && io.fua.unwrap_or(defaults.fua);
        self.request.urgency = io.urgency.unwrap_or(defaults.urgency);
        self.request.class = io.class.unwrap_or(defaults.class);
        self.cut = false;
        self.claimed = claimed;
        self.status = Ok(());
        self.user = io.user;
        self.timeout = match io.timeout {
            Timeout::OfHandle => defaults.timeout,
            Timeout::Never => None,
            Timeout::After(timeout) => Some(timeout),
        };
        self.due = Time::NEVER;
        self.data = io.data;
        self.parts_made = 0;
        self.parts_out = 0;
        self.cursor = Cursor::default();
    }

    pub(super) fn lba_after(&self, blocks: u64) -> Lba {
        Lba(self.request.lba.0.saturating_add(blocks))
    }

    /// Returns the first block of a part, relative to the job's start, and its length, by splitting the job again up to this part.
    pub(super) fn part(&self, limits: &Limits, part: u32, spans: &mut Vec<Span>) -> (u64, u32) {
        let mut cursor = Cursor::default();
        for at in 0.. {
            let Ok((blocks, next)) = limits.next(self.request.op, self.blocks, &self.data, cursor, spans) else { break };
            if at == part {
                return (cursor.blocks, blocks);
            }
            cursor = next;
        }
        unreachable!("a part that was never cut")
    }
}
