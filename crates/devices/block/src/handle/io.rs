//! The types of a handle's interface: requests and their results.

use std::time::Duration;

use crate::buffer::{Buf, Span};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::{Class, Op, Status, Urgency};
use crate::units::Lba;

/// Identifies a request of one handle until it is returned as [`Done`]. Tickets are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// A position on the device, by block or by byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum At {
    /// A block number.
    Block(Lba),
    /// A byte offset: a multiple of the block size.
    Byte(u64),
}

impl At {
    /// Returns the block that contains this position.
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

/// Byte offset from the start of the device.
impl From<u64> for At {
    #[inline]
    fn from(byte: u64) -> At {
        At::Byte(byte)
    }
}

/// The memory of a request. The handle owns it until the request completes and returns it with the completion.
#[derive(Debug, Default)]
pub enum Data {
    /// No memory, for a request without data.
    #[default]
    None,
    /// One buffer.
    Buf(Buf),
    /// Several buffers, in the order of the blocks.
    Bufs(Vec<Buf>),
    /// Memory that the caller manages itself, such as cache frames or memory of the C library. The caller must not use it until the
    /// request returns it.
    Span(Span),
    /// Several such pieces.
    Spans(Vec<Span>),
}

impl Data {
    /// Returns the total length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Data::None => 0,
            Data::Buf(buf) => buf.len() as u64,
            Data::Span(span) => u64::from(span.bytes),
            Data::Bufs(bufs) => bufs.iter().map(|buf| buf.len() as u64).sum(),
            Data::Spans(spans) => spans.iter().map(|span| u64::from(span.bytes)).sum(),
        }
    }

    /// Returns the number of pieces of memory.
    pub fn len(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Buf(_) | Data::Span(_) => 1,
            Data::Bufs(bufs) => bufs.len(),
            Data::Spans(spans) => spans.len(),
        }
    }

    /// Returns whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the piece if there is exactly one, in one of the single forms.
    #[inline(always)]
    pub(super) fn single(&self) -> Option<Span> {
        match self {
            Data::Buf(buf) => Some(buf.span()),
            Data::Span(span) => Some(*span),
            _ => None,
        }
    }

    /// Returns one of the pieces.
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

/// The time limit of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Timeout {
    /// The timeout of the handle's parameters.
    #[default]
    OfHandle,
    /// No timeout.
    Never,
    /// A timeout that starts at the next ring.
    After(Duration),
}

/// A request as the caller makes it: of any length, in bytes or blocks. The handle splits it into parts that the device accepts.
#[derive(Debug)]
pub struct Io {
    pub(super) op: Op,
    pub(super) fua: Option<bool>,
    pub(super) urgency: Option<Urgency>,
    pub(super) class: Option<Class>,
    pub(super) at: At,
    /// The length of a request without data, in the unit of `at`: blocks or bytes.
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

    /// Makes a request that reads blocks until the memory is full.
    #[inline]
    pub fn read(at: impl Into<At>, data: impl Into<Data>) -> Io {
        Io::new(Op::Read, at.into(), 0, data.into())
    }

    /// Makes a request that writes the memory to blocks.
    #[inline]
    pub fn write(at: impl Into<At>, data: impl Into<Data>) -> Io {
        Io::new(Op::Write, at.into(), 0, data.into())
    }

    /// Makes a request after which writes that completed before its submission survive a power loss.
    #[inline]
    pub fn flush() -> Io {
        Io::new(Op::Flush, At::Block(Lba(0)), 0, Data::None)
    }

    /// Makes a request that discards blocks. `length` has the unit of `at`: blocks or bytes.
    #[inline]
    pub fn discard(at: impl Into<At>, length: u64) -> Io {
        Io::new(Op::Discard, at.into(), length, Data::None)
    }

    /// Makes a request that fills blocks with zeroes. `length` has the unit of `at`: blocks or bytes.
    #[inline]
    pub fn write_zeroes(at: impl Into<At>, length: u64) -> Io {
        Io::new(Op::WriteZeroes, at.into(), length, Data::None)
    }

    /// Attaches a caller's value, which [`Done::user`] returns.
    #[must_use]
    #[inline]
    pub fn user(self, user: u64) -> Io {
        Io { user, ..self }
    }

    /// Sets whether a write completes only once it survives a power loss. The default is the handle's parameter.
    #[must_use]
    pub fn fua(self, fua: bool) -> Io {
        Io { fua: Some(fua), ..self }
    }

    /// Sets the timeout of this request.
    #[must_use]
    pub fn timeout(self, timeout: Timeout) -> Io {
        Io { timeout, ..self }
    }

    /// Sets the urgency of this request.
    #[must_use]
    pub fn urgency(self, urgency: Urgency) -> Io {
        Io { urgency: Some(urgency), ..self }
    }

    /// Sets the class of this request, whose share of the device it uses.
    #[must_use]
    pub fn class(self, class: Class) -> Io {
        Io { class: Some(class), ..self }
    }

    /// Returns the memory of a request that was not accepted.
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

/// The handle is full. Collect completions, then submit the returned request again.
#[derive(Debug)]
#[must_use]
pub struct Full(pub Io);

/// The result of a completed request.
#[derive(Debug)]
pub struct Done {
    /// The ticket that the submission returned.
    pub ticket: Ticket,
    /// The caller's value from [`Io::user`].
    pub user: u64,
    /// The operation of the request.
    pub op: Op,
    /// Whether the device may still access the memory. If so, `data` is [`Data::None`]; once the device releases the memory, it
    /// returns to its arena, or `take_released` returns it.
    pub held: bool,
    /// The status of the request: the first error that occurred, if any.
    pub status: Status,
    /// The memory of the request, unless it is held.
    pub data: Data,
    pub(super) failures: Failures,
}

/// The failed parts. Allocated only when a part of a split request fails.
pub(super) type Failures = Option<Box<Vec<Failure>>>;

impl Done {
    /// Returns the failed parts of a request that was split, in the order of their completion. Empty for a request of one part.
    pub fn failures(&self) -> &[Failure] {
        self.failures.as_ref().map_or(&[], |failures| failures.as_slice())
    }

    /// Returns the buffer, if the request has one and it is not held.
    #[inline]
    pub fn into_buf(self) -> Option<Buf> {
        match self.data {
            Data::Buf(buf) => Some(buf),
            _ => None,
        }
    }
}

/// A failed part of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The first block of the part.
    pub lba: Lba,
    /// The number of blocks of the part.
    pub blocks: u32,
    /// The error of this part.
    pub error: Error,
}

/// The memory of a held request, released by the device.
#[derive(Debug)]
pub struct Released {
    /// The ticket of the request.
    pub ticket: Ticket,
    /// The caller's value from [`Io::user`].
    pub user: u64,
    /// The released memory of the request.
    pub data: Data,
}
