//! The asynchronous requests of a handle on a device, as a table.
#![expect(unsafe_code, reason = "a request has addresses in it")]

use std::collections::VecDeque;

use block::Op;
use block::handle::Ticket;

use crate::memory::Memory;
use crate::pool::LentData;
use crate::types::{NVMED_AIO_CTX, nvmed_event};

/// A context of the program, which is updated when its request completes.
#[derive(Clone, Copy, Debug)]
pub struct AioContext(pub *mut NVMED_AIO_CTX);

// SAFETY: it is used by one thread at a time: the one that collected its request. The program leaves it alone meanwhile.
unsafe impl Send for AioContext {}

/// A request as the program specified it.
#[derive(Clone, Copy, Debug)]
pub struct RequestSpec {
    /// The operation that the device performs.
    pub op: Op,
    /// The memory of the program for the data.
    pub memory: Memory,
    /// The first byte of the range on the device.
    pub offset: u64,
    /// The length of the range in bytes.
    pub bytes: u64,
    /// The program's number, which the completion returns.
    pub user: u64,
    /// The deadline in milliseconds; 0 selects that of the handle.
    pub timeout_ms: u32,
    /// Whether the data must survive a power cut at the completion.
    pub durable: bool,
    /// The context of NVMeDirect's calls, if the request has one.
    pub context: Option<AioContext>,
}

impl RequestSpec {
    /// Creates a read or write of the program's memory, without timeout and context.
    pub fn transfer(op: Op, memory: Memory, offset: u64) -> RequestSpec {
        let bytes = memory.len() as u64;
        RequestSpec { op, memory, offset, bytes, user: 0, timeout_ms: 0, durable: false, context: None }
    }

    /// Creates a request for a range of the device that transfers no data.
    pub fn sweep(op: Op, offset: u64, bytes: u64) -> RequestSpec {
        RequestSpec { bytes, ..RequestSpec::transfer(op, Memory::NONE, offset) }
    }
}

/// A request of a handle that is in flight.
pub struct Request {
    /// The request as the program specified it.
    pub wish: RequestSpec,
    /// The memory of its data: a lent buffer of the pool, or a copy.
    pub data: LentData,
    /// The ticket of the block layer, once it is submitted.
    pub ticket: Option<Ticket>,
}

/// The requests of a handle: in flight, and completed but not reported. The parameter `requests_max` limits them; allocated once.
pub struct Requests {
    slots: Box<[(u32, Option<Request>)]>,
    free: Vec<u32>,
    /// The completions that nobody has collected yet.
    pub ended: VecDeque<CompletedRequest>,
}

/// A completion to be reported to the program.
#[derive(Clone, Copy, Debug)]
pub struct CompletedRequest {
    /// The event that the program gets.
    pub event: nvmed_event,
    /// The context to complete, if the request has one.
    pub context: Option<AioContext>,
}

impl Requests {
    /// Allocates slots for at most `most` requests.
    pub fn new(most: u32) -> Requests {
        let slots = (0..most).map(|_| (0, None)).collect();
        Requests { slots, free: (0..most).rev().collect(), ended: VecDeque::with_capacity(most as usize) }
    }

    /// Adds a request and returns its number, never 0. `None`: the table is full.
    pub fn add(&mut self, request: Request) -> Option<u64> {
        if self.slots.len() - self.free.len() + self.ended.len() >= self.slots.len() {
            return None;
        }
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(request);
        Some((u64::from(slot.0) << 32) | (u64::from(index) + 1))
    }

    /// Returns the request in flight of this number.
    pub fn find(&mut self, number: u64) -> Option<&mut Request> {
        let index = (number & 0xffff_ffff).checked_sub(1)?;
        let slot = self.slots.get_mut(usize::try_from(index).ok()?)?;
        if u64::from(slot.0) == number >> 32 { slot.1.as_mut() } else { None }
    }

    /// Returns the most requests that the table can hold.
    pub fn limit(&self) -> usize {
        self.slots.len()
    }

    /// Removes a completed request and frees its slot; `None` if the number is unknown.
    pub fn take(&mut self, number: u64) -> Option<Request> {
        self.find(number)?;
        let index = (number & 0xffff_ffff) as u32 - 1;
        let slot = &mut self.slots[index as usize];
        slot.0 = slot.0.wrapping_add(1);
        self.free.push(index);
        slot.1.take()
    }
}
