//! Requests, which are submitted to a queue, and completions, which it reports.

use crate::error::Error;
use crate::units::{Lba, Tag};

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Reads blocks into memory.
    Read,
    /// Writes memory to blocks.
    Write,
    /// Makes writes that completed before its submission survive a power loss. Has no blocks.
    Flush,
    /// Marks the content of the blocks as no longer needed. Later reads return zeroes or the old content.
    Discard,
    /// Fills the blocks with zeroes.
    WriteZeroes,
}

impl Op {
    /// Returns whether the operation has a buffer.
    pub fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    /// Returns whether the operation changes blocks.
    pub fn writes(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }
}

/// How urgently a caller waits for the request: a hint for completion modes and schedulers, without guarantees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Urgency {
    /// A thread is blocked until the request completes.
    Urgent,
    /// The default urgency.
    #[default]
    Normal,
    /// One of many requests: only the completion of the whole batch matters.
    Batch,
}

/// The class of a request, whose share of the device it uses: see the scheduler's classes. 0 is the foreground.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Class(pub u8);

/// A request without its memory, which the caller passes to [`crate::Queue::submit`] separately.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The submitter's name for the request, which the completion repeats.
    pub tag: Tag,
    /// The first block; 0 for a flush.
    pub lba: Lba,
    /// The number of blocks, at least one; 0 for a flush.
    pub blocks: u32,
    /// The operation of the request.
    pub op: Op,
    /// For a write: whether it completes only once it survives a power loss (force unit access).
    pub fua: bool,
    /// How urgently the submitter waits for the request.
    pub urgency: Urgency,
    /// The class whose share of the device the request uses.
    pub class: Class,
}

impl Request {
    #[inline]
    fn new(op: Op, tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request { tag, lba, blocks, op, fua: false, urgency: Urgency::Normal, class: Class(0) }
    }

    /// Makes a request that reads blocks.
    #[inline]
    pub fn read(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::Read, tag, lba, blocks)
    }

    /// Makes a request that writes blocks.
    #[inline]
    pub fn write(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::Write, tag, lba, blocks)
    }

    /// Makes a request that writes blocks through every cache of the device.
    pub fn write_fua(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request { fua: true, ..Request::new(Op::Write, tag, lba, blocks) }
    }

    /// Makes a request that makes completed writes durable.
    pub fn flush(tag: Tag) -> Request {
        Request::new(Op::Flush, tag, Lba(0), 0)
    }

    /// Makes a request that discards blocks.
    pub fn discard(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::Discard, tag, lba, blocks)
    }

    /// Makes a request that fills blocks with zeroes.
    pub fn write_zeroes(tag: Tag, lba: Lba, blocks: u32) -> Request {
        Request::new(Op::WriteZeroes, tag, lba, blocks)
    }
}

/// The outcome of a request: success or an error.
pub type Status = Result<(), Error>;

/// The report that one request has completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// The tag with which the request was submitted.
    pub tag: Tag,
    /// The outcome of the request.
    pub status: Status,
}

impl Completion {
    /// A placeholder in an array that `poll` will overwrite.
    pub const EMPTY: Completion = Completion { tag: Tag(0), status: Ok(()) };
}

const _: () = assert!(size_of::<Request>() == 24 && size_of::<Completion>() == 16);
