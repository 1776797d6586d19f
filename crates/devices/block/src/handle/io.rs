//! The words of handles: what is asked for, and what comes back.

use std::time::Duration;

use crate::buffer::{Buf, Span};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::{Class, Op, Status, Urgency};
use crate::units::Lba;

/// Names a request of one handle while it has not been given back as [`Done`]. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// A place on the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum At {
    /// By block.
    Block(Lba),
    /// By byte: a multiple of the block's size.
    Byte(u64),
}

impl At {
    /// The block it is in.
    pub(super) fn lba(self, geometry: &Geometry) -> Lba {
        match self {
            At::Block(lba) => lba,
            At::Byte(byte) => Lba(byte / u64::from(geometry.block_bytes)),
        }
    }
}

impl From<Lba> for At {
    #[inline]
    fn from(lba: Lba) -> At {
        At::Block(lba)
    }
}

/// Bytes from the device's begin.
impl From<u64> for At {
    #[inline]
    fn from(byte: u64) -> At {
        At::Byte(byte)
    }
}

/// The memory of a request. It goes to the handle, and comes back with the completion.
#[derive(Debug, Default)]
pub enum Data {
    /// Of a request without data.
    #[default]
    None,
    /// A buffer.
    Buf(Buf),
    /// Several buffers, in the order of the blocks.
    Bufs(Vec<Buf>),
    /// Memory whose owner keeps the books himself (frames of a cache, the C library): not to be used until it comes back.
    Span(Span),
    /// Several such pieces.
    Spans(Vec<Span>),
}

impl Data {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        match self {
            Data::None => 0,
            Data::Buf(buf) => buf.len() as u64,
            Data::Span(span) => u64::from(span.bytes),
            Data::Bufs(bufs) => bufs.iter().map(|buf| buf.len() as u64).sum(),
            Data::Spans(spans) => spans.iter().map(|span| u64::from(span.bytes)).sum(),
        }
    }

    /// Pieces.
    pub fn len(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Buf(_) | Data::Span(_) => 1,
            Data::Bufs(bufs) => bufs.len(),
            Data::Spans(spans) => spans.len(),
        }
    }

    /// Whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The only piece, if it is one.
    #[inline(always)]
    pub(super) fn single(&self) -> Option<Span> {
        match self {
            Data::Buf(buf) => Some(buf.span()),
            Data::Span(span) => Some(*span),
            _ => None,
        }
    }

    /// One of the pieces.
    pub(super) fn piece(&self, at: usize) -> Span {
        match self {
            Data::None => unreachable!("no pieces"),
            Data::Buf(buf) => buf.span(),
            Data::Span(span) => *span,
            Data::Bufs(bufs) => bufs[at].span(),
            Data::Spans(spans) => spans[at],
        }
    }
}

/// For how long a request may take.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Timeout {
    /// As the handle's parameter says.
    #[default]
    OfHandle,
    /// For ever.
    Never,
    /// So long, from the next ring on.
    After(Duration),
}

/// One request as a caller makes it: any length, in bytes or blocks; the handle cuts it as the device needs it.
#[derive(Debug)]
pub struct Io {
    pub(super) op: Op,
    pub(super) fua: Option<bool>,
    pub(super) urgency: Option<Urgency>,
    pub(super) class: Option<Class>,
    pub(super) at: At,
    /// Of requests without data: in blocks or bytes, as `at`.
    pub(super) length: u64,
    pub(super) user: u64,
    pub(super) timeout: Timeout,
    pub(super) data: Data,
}

impl Io {
    #[inline(always)]
    fn new(op: Op, at: At, length: u64, data: Data) -> Io {
        Io { op, fua: None, urgency: None, class: None, at, length, user: 0, timeout: Timeout::OfHandle, data }
    }

    /// Blocks into memory: as many as it holds.
    #[inline]
    pub fn read(at: impl Into<At>, data: impl Into<Data>) -> Io {
        Io::new(Op::Read, at.into(), 0, data.into())
    }

    /// Memory into blocks.
    #[inline]
    pub fn write(at: impl Into<At>, data: impl Into<Data>) -> Io {
        Io::new(Op::Write, at.into(), 0, data.into())
    }

    /// What was completed before this is submitted survives a loss of power.
    #[inline]
    pub fn flush() -> Io {
        Io::new(Op::Flush, At::Block(Lba(0)), 0, Data::None)
    }

    /// Gives blocks back. `length` is in blocks if `at` is, else in bytes.
    #[inline]
    pub fn discard(at: impl Into<At>, length: u64) -> Io {
        Io::new(Op::Discard, at.into(), length, Data::None)
    }

    /// Makes blocks zero. `length` is in blocks if `at` is, else in bytes.
    #[inline]
    pub fn write_zeroes(at: impl Into<At>, length: u64) -> Io {
        Io::new(Op::WriteZeroes, at.into(), length, Data::None)
    }

    /// With a word that comes back in [`Done::user`].
    #[must_use]
    #[inline]
    pub fn user(self, user: u64) -> Io {
        Io { user, ..self }
    }

    /// For a write: complete only when it survives a loss of power. Without this as the handle's parameter says.
    #[must_use]
    pub fn fua(self, fua: bool) -> Io {
        Io { fua: Some(fua), ..self }
    }

    /// With a deadline of its own.
    #[must_use]
    pub fn timeout(self, timeout: Timeout) -> Io {
        Io { timeout, ..self }
    }

    /// With an urgency of its own.
    #[must_use]
    pub fn urgency(self, urgency: Urgency) -> Io {
        Io { urgency: Some(urgency), ..self }
    }

    /// Counted to another share of the device.
    #[must_use]
    pub fn class(self, class: Class) -> Io {
        Io { class: Some(class), ..self }
    }

    /// Gives the memory back, of a request that was not taken.
    pub fn into_data(self) -> Data {
        self.data
    }
}

impl From<Buf> for Data {
    #[inline]
    fn from(buf: Buf) -> Data {
        Data::Buf(buf)
    }
}

impl From<Vec<Buf>> for Data {
    fn from(bufs: Vec<Buf>) -> Data {
        Data::Bufs(bufs)
    }
}

impl From<Span> for Data {
    #[inline]
    fn from(span: Span) -> Data {
        Data::Span(span)
    }
}

impl From<Vec<Span>> for Data {
    fn from(spans: Vec<Span>) -> Data {
        Data::Spans(spans)
    }
}

/// No place: collect completions, then submit it again. Here it is back.
#[derive(Debug)]
#[must_use]
pub struct Full(pub Io);

/// A request has ended.
#[derive(Debug)]
pub struct Done {
    /// As returned by submit.
    pub ticket: Ticket,
    /// The word the caller gave.
    pub user: u64,
    /// What it was.
    pub op: Op,
    /// Whether the device may still read or write its memory: then `data` is `None`, and the memory comes back to its arena,
    /// or by `take_released`, when the device leaves it alone.
    pub held: bool,
    /// How it ended: the first error, in time.
    pub status: Status,
    /// Its memory.
    pub data: Data,
    pub(super) failures: Failures,
}

/// Allocated only when a part of a request that was cut in parts fails.
pub(super) type Failures = Option<Box<Vec<Failure>>>;

impl Done {
    /// Of a request that was cut in parts: every part that failed, in the order of their ends. Empty for one that was not cut.
    pub fn failures(&self) -> &[Failure] {
        self.failures.as_ref().map_or(&[], |failures| failures.as_slice())
    }

    /// The buffer, if it has one and it is not held.
    #[inline]
    pub fn into_buf(self) -> Option<Buf> {
        match self.data {
            Data::Buf(buf) => Some(buf),
            _ => None,
        }
    }
}

/// A part of a request has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its first block.
    pub lba: Lba,
    /// Its blocks.
    pub blocks: u32,
    /// Why.
    pub error: Error,
}

/// Memory of a held request is free again.
#[derive(Debug)]
pub struct Released {
    /// The request's ticket.
    pub ticket: Ticket,
    /// The word the caller gave.
    pub user: u64,
    /// The memory.
    pub data: Data,
}
