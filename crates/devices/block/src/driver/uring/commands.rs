//! What a request becomes for the kernel, and what the kernel's answers mean: where files and NVMe drives differ.

use io_uring::squeue;

use super::buffers::{PIECE_SHIFT_MAX, Piece};
use super::ring::End;
use crate::buffer::Arena;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::Request;

/// What to tell the kernel for a request, and what its answers mean.
pub(crate) trait Commands: Send {
    type Entry: squeue::EntryMarker + From<squeue::Entry>;
    type End: End;

    fn geometry(&self) -> &Geometry;

    /// Whether a polled ring takes this; what it does not goes to a second ring.
    fn may_poll(&self, rest: &Rest<'_>) -> bool;

    /// Bytes of the pieces that arenas are registered in, as a power of two.
    fn piece_shift(&self) -> u32 {
        PIECE_SHIFT_MAX
    }

    /// Other memory than the arenas of the queue's users that entries name; registered first.
    fn memory(&self) -> Option<&Arena> {
        None
    }

    /// The entry for what is left of a request, called `name`.
    fn entry(&mut self, index: u32, name: u64, rest: &Rest<'_>) -> Self::Entry;

    /// The answer that says that all of a new request is done, if there is one such answer.
    fn whole(&self, request: &Request) -> Option<i32>;

    /// What an answer to the rest of a request means, of which so much was done before.
    fn outcome(&mut self, request: &Request, done: u64, answer: i32) -> Outcome;
}

/// A request as far as it is not done.
pub(crate) struct Rest<'a> {
    pub request: &'a Request,
    pub memory: Memory,
    /// As [`Outcome::Did`] counted.
    pub done: u64,
}

/// Where the data is.
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    None,
    One(Piece),
    /// Vectors that stay in place until the completion.
    Many(*const libc::iovec, u32),
}

/// What an answer means.
pub(crate) enum Outcome {
    /// All of it is done.
    Done,
    /// So many bytes of memory, more than 0, less than all; the next entry is for the rest.
    Did(u64),
    /// So much of a request without memory is done; the next entry is for the rest.
    Stepped(u64),
    Failed(Error),
}
