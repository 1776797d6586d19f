//! The translation of requests into io_uring entries, and of results back: the part in which files and NVMe drives differ.

use io_uring::squeue;

use super::buffers::{PIECE_SHIFT_MAX, Piece};
use super::ring::End;
use crate::buffer::Arena;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::Request;

/// Translates requests into io_uring entries, and the kernel's results into outcomes.
pub(crate) trait Commands: Send {
    type Entry: squeue::EntryMarker + From<squeue::Entry>;
    type End: End;

    fn geometry(&self) -> &Geometry;

    /// Returns whether a polled ring accepts this request; others go to a second ring.
    fn may_poll(&self, rest: &Rest<'_>) -> bool;

    /// Returns the size of the pieces in which arenas are registered, as a power of two.
    fn piece_shift(&self) -> u32 {
        PIECE_SHIFT_MAX
    }

    /// Returns memory that entries name besides the arenas of users; it is registered first.
    fn memory(&self) -> Option<&Arena> {
        None
    }

    /// Builds the entry for the rest of a request, with `name` as its user data.
    fn entry(&mut self, index: u32, name: u64, rest: &Rest<'_>) -> Self::Entry;

    /// Returns the result that means that a new request is complete, if there is a single such result.
    fn whole(&self, request: &Request) -> Option<i32>;

    /// Returns what a result means for the rest of a request, of which `done` was completed before.
    fn outcome(&mut self, request: &Request, done: u64, answer: i32) -> Outcome;
}

/// The part of a request that is not done yet.
pub(crate) struct Rest<'a> {
    /// The request as it was submitted.
    pub request: &'a Request,
    /// The memory of the remaining data.
    pub memory: Memory,
    /// The amount already done, as [`Outcome::Did`] and [`Outcome::Stepped`] count it.
    pub done: u64,
}

/// The memory that holds the data.
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    None,
    One(Piece),
    /// Vectors that stay in place until the completion.
    Many(*const libc::iovec, u32),
}

/// The meaning of a result from the kernel.
pub(crate) enum Outcome {
    /// The request is complete.
    Done,
    /// This many bytes of memory were transferred, more than 0 and less than all; the next entry is for the rest.
    Did(u64),
    /// This part of a request without memory is done; the next entry is for the rest.
    Stepped(u64),
    Failed(Error),
}
