//! The requests in the kernel, and their memory.
#![expect(unsafe_code, reason = "frees memory that is registered with the kernel")]

use std::io;
use std::mem::ManuallyDrop;

use super::buffers::{Buffers, Piece};
use super::commands::{Commands, Memory, Outcome};
use super::ring::{End, Ring, RingError};
use super::slots::{ALARM, RequestMemory, Slots, UNKNOWN};
use crate::buffer::Span;
use crate::error::Error;
use crate::request::{Completion, Request};

/// The maximum number of data segments of one request.
pub(crate) const SEGMENTS_MAX: u16 = 64;

/// The state of a queue except its rings.
pub(super) struct OwnerState<C: Commands> {
    /// The translation of requests into entries.
    pub commands: C,
    /// The buffers and vectors are leaked if the kernel still uses them.
    pub buffers: ManuallyDrop<Buffers>,
    vectors: ManuallyDrop<Vectors>,
    /// The slots of the requests in flight.
    pub slots: Slots,
    /// The slots whose request needs another entry.
    pub again: Vec<u32>,
    /// The number of requests in the kernel.
    pub in_kernel: u32,
    /// The number of cancellations in the kernel.
    pub cancels: u32,
    /// Whether the kernel has a timer of this queue, which will end a wait.
    pub has_alarm: bool,
    /// Whether all requests are being cancelled.
    pub giving_up: bool,
}

/// An array of `SEGMENTS_MAX` vectors for each slot.
struct Vectors(Box<[libc::iovec]>);

// SAFETY: addresses, which are looked at by the kernel alone; the arenas behind them can be reached from any thread.
unsafe impl Send for Vectors {}

impl Vectors {
    fn new(depth: u32) -> Vectors {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Vectors(vec![none; depth as usize * usize::from(SEGMENTS_MAX)].into())
    }

    fn of(&mut self, index: u32) -> &mut [libc::iovec] {
        let first = index as usize * usize::from(SEGMENTS_MAX);
        &mut self.0[first..first + usize::from(SEGMENTS_MAX)]
    }

    fn at(&self, index: u32, first: u16) -> *const libc::iovec {
        &raw const self.0[index as usize * usize::from(SEGMENTS_MAX) + usize::from(first)]
    }
}

impl<C: Commands> OwnerState<C> {
    pub(super) fn new(commands: C, depth: u32, ring: &Ring<C::Entry, C::End>) -> Result<OwnerState<C>, RingError> {
        let mut buffers = Buffers::new(commands.piece_shift());
        if let Some(arena) = commands.memory() {
            buffers.register(arena, ring).map_err(|_| RingError::Failed(io::ErrorKind::OutOfMemory.into()))?;
        }
        Ok(OwnerState {
            commands,
            buffers: ManuallyDrop::new(buffers),
            vectors: ManuallyDrop::new(Vectors::new(depth)),
            slots: Slots::new(depth),
            again: Vec::with_capacity(depth as usize),
            in_kernel: 0,
            cancels: 0,
            has_alarm: false,
            giving_up: false,
        })
    }

    /// Frees the memory, which is leaked without this call.
    ///
    /// # Safety
    /// Called once; this state is not used afterwards.
    pub(super) unsafe fn free(&mut self) {
        assert!(self.in_kernel == 0, "the kernel may still write into this memory");
        // SAFETY: nothing is in the kernel, and nobody else has these two.
        unsafe {
            ManuallyDrop::drop(&mut self.buffers);
            ManuallyDrop::drop(&mut self.vectors);
        }
    }

    /// Takes a slot for a request, and returns its index.
    #[inline(always)]
    pub(super) fn open(&mut self, request: &Request, place: RequestMemory) -> u32 {
        let whole = self.commands.whole(request).unwrap_or(UNKNOWN);
        self.in_kernel += 1;
        self.slots.take(request, place, whole)
    }

    /// Frees the slot of a request that is not in the kernel.
    pub(super) fn close(&mut self, index: u32) {
        self.slots.give(index);
        self.in_kernel -= 1;
    }

    /// Returns the memory of a request. Adjacent pieces of one arena are merged.
    #[inline]
    pub(super) fn place(&mut self, index: u32, data: &[Span]) -> Result<RequestMemory, Error> {
        let [first, others @ ..] = data else { return Ok(RequestMemory::None) };
        let mut last = self.buffers.find(*first).ok_or(Error::NotPermitted)?;
        if others.is_empty() {
            return Ok(RequestMemory::One(last));
        }
        let mut count = 0;
        for span in others {
            let piece = self.buffers.find(*span).ok_or(Error::NotPermitted)?;
            if piece.address == last.address + u64::from(last.bytes) && piece.fixed == last.fixed {
                last.bytes += piece.bytes;
            } else {
                self.vectors.of(index)[count] = vector(last);
                count += 1;
                last = piece;
            }
        }
        if count == 0 {
            return Ok(RequestMemory::One(last));
        }
        self.vectors.of(index)[count] = vector(last);
        Ok(RequestMemory::Many { first: 0, count: u16::try_from(count + 1).expect("no more than segments_max") })
    }

    /// Converts the memory of a slot to the form that commands use.
    #[inline]
    pub(super) fn memory(&self, index: u32, place: RequestMemory) -> Memory {
        match place {
            RequestMemory::None => Memory::None,
            RequestMemory::One(piece) => Memory::One(piece),
            RequestMemory::Many { first, count } => Memory::Many(self.vectors.at(index, first), u32::from(count)),
        }
    }

    /// Removes transferred bytes from the front of a slot's memory.
    fn advance(&mut self, index: u32, bytes: u64) {
        let slot = self.slots.get(index);
        slot.done += bytes;
        slot.whole = UNKNOWN;
        match &mut slot.place {
            RequestMemory::None => {}
            RequestMemory::One(piece) => {
                let bytes = u32::try_from(bytes).expect("less than the piece");
                piece.address += u64::from(bytes);
                piece.bytes -= bytes;
            }
            RequestMemory::Many { first, count } => {
                let mut bytes = usize::try_from(bytes).expect("less than the pieces");
                let vectors = self.vectors.of(index);
                while bytes >= vectors[usize::from(*first)].iov_len {
                    bytes -= vectors[usize::from(*first)].iov_len;
                    *first += 1;
                    *count -= 1;
                }
                let vector = &mut vectors[usize::from(*first)];
                vector.iov_base = vector.iov_base.wrapping_byte_add(bytes);
                vector.iov_len -= bytes;
            }
        }
    }

    #[inline]
    pub(super) fn reap(&mut self, ring: &mut Ring<C::Entry, C::End>, completions: &mut [Completion]) -> usize {
        let mut count = 0;
        let mut ended = ring.completion();
        while count < completions.len() {
            let Some(end) = ended.next() else { break };
            let (name, answer) = (end.user_data(), end.result());
            let completion = match self.slots.give_done(name, answer) {
                Some(tag) => {
                    self.in_kernel -= 1;
                    Completion { tag, status: Ok(()) }
                }
                None => match self.end(name, answer) {
                    Some(completion) => completion,
                    None => continue,
                },
            };
            completions[count] = completion;
            count += 1;
        }
        count
    }

    /// Handles a result that is not the expected one of a complete request; returns `None` if there is nothing to report.
    #[cold]
    fn end(&mut self, name: u64, answer: i32) -> Option<Completion> {
        let Some(index) = self.slots.named(name) else {
            if name == ALARM {
                self.has_alarm = false;
            } else {
                self.cancels -= 1;
            }
            return None;
        };
        let slot = self.slots.get(index);
        let tag = slot.request.tag;
        let status = match self.commands.outcome(&slot.request, slot.done, answer) {
            Outcome::Done => Ok(()),
            Outcome::Failed(error) => Err(error),
            _ if self.giving_up => Err(Error::Reset),
            Outcome::Did(bytes) => {
                self.advance(index, bytes);
                self.again.push(index);
                return None;
            }
            Outcome::Stepped(step) => {
                slot.done += step;
                slot.whole = UNKNOWN;
                self.again.push(index);
                return None;
            }
        };
        self.close(index);
        Some(Completion { tag, status })
    }
}

fn vector(piece: Piece) -> libc::iovec {
    libc::iovec { iov_base: piece.address as *mut libc::c_void, iov_len: piece.bytes as usize }
}
