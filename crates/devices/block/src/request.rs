//! What goes down a queue, and what comes up.

use crate::error::Error;
use crate::units::{Lba, Tag};

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Blocks into memory.
    Read,
    /// Memory into blocks.
    Write,
    /// What was completed before this was submitted survives a loss of power. Has no blocks.
    Flush,
    /// The blocks' content is not needed any more; they read as zeroes or as before.
    Discard,
    /// The blocks read as zeroes.
    WriteZeroes,
}

impl Op {
    /// Whether it has a buffer.
    pub fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    /// Whether it changes blocks.
    pub fn writes(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }
}

/// How much somebody waits for it: a hint for completion modes and schedulers, never a promise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Urgency {
    /// A thread stands and waits.
    Urgent,
    /// As it comes.
    #[default]
    Normal,
    /// One of many: only the end of the batch matters.
    Batch,
}

/// Which share of the device it is counted to: see the scheduler's classes. 0 is the foreground.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Class(pub u8);

/// One request, without its memory: that is handed to [`crate::Queue::submit`] beside it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Comes back in the completion.
    pub tag: Tag,
    /// First block. 0 for a flush.
    pub lba: Lba,
    /// Blocks, at least one. 0 for a flush.
    pub blocks: u32,
    /// What to do.
    pub op: Op,
    /// For a write: completes only when it survives a loss of power (force unit access).
    pub fua: bool,
    /// Who waits for it.
    pub urgency: Urgency,
    /// Whose share it is.
    pub class: Class,
}

impl Request {
    #[inline]
    fn new(op: Op, tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request { tag, lba, blocks, op, fua: false, urgency: Urgency::Normal, class: Class(0) }
    }

    /// Reads blocks.
    #[inline]
    pub fn read(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::Read, tag, lba, blocks)
    }

    /// Writes blocks.
    #[inline]
    pub fn write(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::Write, tag, lba, blocks)
    }

    /// Writes blocks, through every cache of the device.
    pub fn write_fua(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request { fua: true, ..Request::new(Op::Write, tag, lba, blocks) }
    }

    /// Makes durable what was completed.
    pub fn flush(tag: Tag) -> Request {
        Request::new(Op::Flush, tag, Lba(0), 0)
    }

    /// Gives blocks back.
    pub fn discard(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::Discard, tag, lba, blocks)
    }

    /// Makes blocks zero.
    pub fn write_zeroes(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::WriteZeroes, tag, lba, blocks)
    }
}

/// How it ended.
pub type Status = Result<(), Error>;

/// One request has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// As submitted.
    pub tag: Tag,
    /// How it ended.
    pub status: Status,
}

impl Completion {
    /// Fills a place of an array that `poll` will write.
    pub const EMPTY: Completion = Completion { tag: Tag(0), status: Ok(()) };
}

const _: () = assert!(size_of::<Request>() == 24 && size_of::<Completion>() == 16);
