//! [`Queue`] over a ring, for any kind of command.
//!
//! The life of a request: `submit` checks it, takes a slot, turns its spans into addresses and pushes one entry; `poll` sees the
//! completion, and either reports it or, when less was done than was asked, pushes an entry for the rest. What does not fit the
//! device never reaches the kernel: it waits in `own` to be reported.
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue, types};
use rustix::io::Errno;

use super::buffers::{Buffers, Piece};
use super::ring::{End, Refused, Ring};
use super::slots::{OWN, Place, Slots};
use crate::buffer::{Arena, Span};
use crate::device::QueueOptions;
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Completion, Request, Status};
use crate::units::Tag;

/// Most pieces of memory of one request.
pub(crate) const SEGMENTS_MAX: u16 = 64;
/// How long `reset` and `drop` wait for what the kernel cannot cancel: a drive's answer, or the kernel's own time-out of it
/// (30 seconds for NVMe and SCSI), is not waited for; the queue is given up before.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// What to tell the kernel for a request, and what its answers mean.
pub(crate) trait Commands: Send {
    type Entry: squeue::EntryMarker + From<squeue::Entry>;
    type End: End;

    fn geometry(&self) -> &Geometry;

    /// Whether a polled ring takes this; what it does not goes to a second ring.
    fn may_poll(&self, request: &Request) -> bool;

    /// Other memory than the arenas of the queue's users that entries name; registered first.
    fn memory(&self) -> Option<&Arena> {
        None
    }

    /// The entry for what is left of a request, called `name`.
    fn entry(&mut self, index: u32, name: u64, rest: &Rest) -> Self::Entry;

    /// What an answer means.
    fn outcome(&mut self, rest: &Rest, answer: i32) -> Outcome;
}

/// A request as far as it is not done.
pub(crate) struct Rest {
    pub request: Request,
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

/// See the module.
pub(crate) struct UringQueue<C: Commands> {
    ring: Ring<C::Entry, C::End>,
    /// For what a polled ring does not take.
    aside: Option<Ring<C::Entry, C::End>>,
    books: Books<C>,
    /// Ended, or never begun, and not yet reported.
    own: CompletionRing,
    depth: u32,
    /// Taken and not reported.
    in_flight: u32,
    broken: bool,
}

/// All but the rings.
struct Books<C: Commands> {
    commands: C,
    /// These two are leaked if the kernel does not let go of them.
    buffers: ManuallyDrop<Buffers>,
    vectors: ManuallyDrop<Vectors>,
    slots: Slots,
    /// Slots whose request needs another entry.
    again: Vec<u32>,
    in_kernel: u32,
    cancels: u32,
    giving_up: bool,
}

/// `SEGMENTS_MAX` vectors for each slot.
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
}

impl<C: Commands> UringQueue<C> {
    /// A queue of the file or node `fd`, which the kernel keeps open.
    pub(crate) fn new(commands: C, fd: BorrowedFd<'_>, options: &QueueOptions) -> Result<UringQueue<C>, Refused> {
        let depth = options.depth;
        let ring = Ring::new(depth, options, fd)?;
        let aside = if options.device_polled {
            Some(Ring::new(depth, &QueueOptions { device_polled: false, kernel_submits: false, ..options.clone() }, fd)?)
        } else {
            None
        };
        let mut buffers = Buffers::default();
        if let Some(arena) = commands.memory() {
            buffers.register(arena, &ring).map_err(|_| Refused::Failed(std::io::ErrorKind::OutOfMemory.into()))?;
        }
        let books = Books {
            commands,
            buffers: ManuallyDrop::new(buffers),
            vectors: ManuallyDrop::new(Vectors::new(depth)),
            slots: Slots::new(depth),
            again: Vec::with_capacity(depth as usize),
            in_kernel: 0,
            cancels: 0,
            giving_up: false,
        };
        Ok(UringQueue { ring, aside, books, own: CompletionRing::new(depth), depth, in_flight: 0, broken: false })
    }

    #[inline]
    fn start(&mut self, request: &Request, data: &[Span]) -> Status {
        self.books.commands.geometry().check(request, data)?;
        if self.broken {
            return Err(Error::Gone);
        }
        let index = self.books.slots.take(request);
        match self.books.place(index, data) {
            Ok(place) => self.books.slots.get(index).place = place,
            Err(error) => {
                self.books.slots.give(index);
                return Err(error);
            }
        }
        self.books.in_kernel += 1;
        self.push(index);
        Ok(())
    }

    /// Pushes an entry for what is left of a slot's request.
    #[inline]
    fn push(&mut self, index: u32) {
        let name = self.books.slots.name(index);
        let mut rest = self.books.rest(index);
        let ring = match &mut self.aside {
            Some(aside) if !self.books.commands.may_poll(&rest.request) => {
                // Arenas are registered with the first ring only.
                if let Memory::One(piece) = &mut rest.memory {
                    piece.fixed = None;
                }
                aside
            }
            _ => &mut self.ring,
        };
        let entry = self.books.commands.entry(index, name, &rest);
        // SAFETY: the addresses come from `Buffers::find`, and arenas and vectors are kept until nothing is in the kernel, or
        // leaked (`drop`).
        unsafe { ring.push(&entry) };
    }

    /// Moves what has ended out of the rings.
    #[inline]
    fn reap(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = self.books.reap(&mut self.ring, completions);
        if let Some(aside) = &mut self.aside {
            count += self.books.reap(aside, &mut completions[count..]);
        }
        if !self.books.again.is_empty() {
            while let Some(index) = self.books.again.pop() {
                self.push(index);
            }
            self.ring();
        }
        count
    }

    /// Does what the kernel wants to be asked for.
    fn run_work(&mut self) {
        for at in 0..2 {
            let Some(ring) = (if at == 0 { Some(&mut self.ring) } else { self.aside.as_mut() }) else { continue };
            let entered = if ring.work_waits() { ring.run_work() } else { ring.submit() };
            self.entered(entered);
        }
    }

    /// What an error of entering the ring means: nothing that a request could have.
    fn entered(&mut self, entered: Result<(), Errno>) {
        let Err(error) = entered else { return };
        assert!(error != Errno::EXIST, "a queue that was promised to one thread is used by another");
        if !self.broken {
            tracing::error!("io_uring does not take requests any more: {error}");
            self.broken = true;
        }
    }

    fn push_cancel(&mut self, target: types::CancelBuilder) {
        if self.books.cancels >= self.depth {
            return; // that many are on their way
        }
        let entry = opcode::AsyncCancel2::new(target).build().user_data(OWN);
        // A polled ring takes no such entry; a request of a second ring is found by that ring only.
        let ring = self.aside.as_mut().unwrap_or(&mut self.ring);
        // SAFETY: it names no memory.
        unsafe { ring.push(&entry.into()) };
        self.books.cancels += 1;
    }

    /// Cancels everything and waits, at most so long. What ends is in `own` afterwards.
    fn give_up(&mut self, at_most: Duration) -> Result<(), Error> {
        let end = Instant::now() + at_most;
        let mut ended = [Completion::EMPTY; 32];
        self.books.giving_up = true;
        if self.books.in_kernel > 0 {
            self.push_cancel(types::CancelBuilder::any());
            if self.aside.is_some() {
                self.ring.cancel_all_polled();
            }
        }
        let mut entered = self.ring.submit();
        while self.books.in_kernel > 0 {
            let count = self.reap(&mut ended);
            ended[..count].iter().for_each(|completion| self.own.push(*completion));
            let left = end.saturating_duration_since(Instant::now());
            if count == 0 && (left.is_zero() || entered.is_err()) {
                break;
            }
            if count == 0 {
                entered = self.wait_in_kernel(left);
            }
        }
        self.books.giving_up = false;
        if self.books.in_kernel == 0 { Ok(()) } else { Err(Error::Timeout) }
    }

    /// A polled ring, and the one beside it, have no common event: they are looked at in turn.
    fn wait_in_kernel(&mut self, at_most: Duration) -> Result<(), Errno> {
        let Some(aside) = &mut self.aside else { return self.ring.wait(at_most) };
        let begin = Instant::now();
        while !self.ring.has_ended() && !aside.has_ended() {
            self.ring.run_work()?;
            aside.run_work()?;
            if begin.elapsed() >= at_most {
                break;
            }
        }
        Ok(())
    }
}

impl<C: Commands> Books<C> {
    /// The memory of a request. Pieces that follow each other in one arena become one.
    #[inline]
    fn place(&mut self, index: u32, data: &[Span]) -> Result<Place, Error> {
        let [first, others @ ..] = data else { return Ok(Place::None) };
        let mut last = self.buffers.find(*first).ok_or(Error::NotPermitted)?;
        if others.is_empty() {
            return Ok(Place::One(last));
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
            return Ok(Place::One(last));
        }
        self.vectors.of(index)[count] = vector(last);
        Ok(Place::Many { first: 0, count: u16::try_from(count + 1).expect("no more than segments_max") })
    }

    #[inline]
    fn rest(&mut self, index: u32) -> Rest {
        let slot = self.slots.get(index);
        let memory = match slot.place {
            Place::None => Memory::None,
            Place::One(piece) => Memory::One(piece),
            Place::Many { first, count } => Memory::Many(&raw const self.vectors.of(index)[usize::from(first)], u32::from(count)),
        };
        Rest { request: slot.request, memory, done: slot.done }
    }

    /// Takes bytes that were transferred off the front of a slot's memory.
    fn advance(&mut self, index: u32, bytes: u64) {
        let slot = self.slots.get(index);
        slot.done += bytes;
        match &mut slot.place {
            Place::None => {}
            Place::One(piece) => {
                let bytes = u32::try_from(bytes).expect("less than the piece");
                piece.address += u64::from(bytes);
                piece.bytes -= bytes;
            }
            Place::Many { first, count } => {
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
    fn reap(&mut self, ring: &mut Ring<C::Entry, C::End>, completions: &mut [Completion]) -> usize {
        let mut count = 0;
        let mut ended = ring.completion();
        while count < completions.len() {
            let Some(end) = ended.next() else { break };
            if let Some(completion) = self.end(end.user_data(), end.result()) {
                completions[count] = completion;
                count += 1;
            }
        }
        count
    }

    /// One answer of the kernel. None: nothing to report.
    #[inline]
    fn end(&mut self, name: u64, answer: i32) -> Option<Completion> {
        let Some(index) = self.slots.named(name) else {
            self.cancels -= 1;
            return None;
        };
        let rest = self.rest(index);
        let status = match self.commands.outcome(&rest, answer) {
            Outcome::Done => Ok(()),
            Outcome::Failed(error) => Err(error),
            _ if self.giving_up => Err(Error::Reset),
            Outcome::Did(bytes) => {
                self.advance(index, bytes);
                self.again.push(index);
                return None;
            }
            Outcome::Stepped(step) => {
                self.slots.get(index).done += step;
                self.again.push(index);
                return None;
            }
        };
        self.slots.give(index);
        self.in_kernel -= 1;
        Some(Completion { tag: rest.request.tag, status })
    }
}

fn vector(piece: Piece) -> libc::iovec {
    libc::iovec { iov_base: piece.address as *mut libc::c_void, iov_len: piece.bytes as usize }
}

impl<C: Commands> Queue for UringQueue<C> {
    fn geometry(&self) -> &Geometry {
        self.books.commands.geometry()
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.books.buffers.register(arena, &self.ring)
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.depth {
            return Submit::Full;
        }
        self.in_flight += 1;
        if let Err(error) = self.start(request, data) {
            self.own.push(Completion { tag: request.tag, status: Err(error) });
        }
        Submit::Queued
    }

    fn ring(&mut self) {
        let entered = self.ring.submit();
        self.entered(entered);
        if let Some(aside) = &mut self.aside {
            let entered = aside.submit();
            self.entered(entered);
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = self.own.take(completions);
        count += self.reap(&mut completions[count..]);
        if count == 0 && self.books.in_kernel > 0 && !completions.is_empty() {
            self.run_work();
            count = self.reap(completions);
        }
        if count > 0 {
            self.ring.disarm();
        }
        self.in_flight -= u32::try_from(count).expect("no more than the depth");
        count
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        if self.own.len() > 0 || self.books.in_kernel == 0 || at_most.is_zero() {
            return self.ring();
        }
        let entered = self.wait_in_kernel(at_most);
        self.entered(entered);
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.aside.is_none().then(|| self.ring.event())
    }

    fn arm(&mut self) -> Armed {
        self.ring();
        let waiting = self.own.len() == 0 && self.aside.is_none() && self.ring.arm();
        if waiting { Armed::Waiting } else { Armed::Ready }
    }

    fn cancel(&mut self, tag: Tag) {
        let Some(index) = self.books.slots.find(tag) else { return };
        self.push_cancel(types::CancelBuilder::user_data(self.books.slots.name(index)));
        self.ring();
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.give_up(GIVE_UP_AFTER)?;
        self.own.clear();
        self.in_flight = 0;
        self.ring.disarm();
        Ok(())
    }
}

impl<C: Commands> Drop for UringQueue<C> {
    /// Waits for what is in flight. What the kernel does not give back keeps its memory: arenas and vectors are leaked.
    fn drop(&mut self) {
        if self.books.in_kernel > 0 && self.give_up(GIVE_UP_AFTER).is_err() {
            tracing::error!("a queue is closed with {} requests in the kernel: their memory is kept for ever", self.books.in_kernel);
            return;
        }
        // SAFETY: nothing is in the kernel, and neither is used again.
        unsafe {
            ManuallyDrop::drop(&mut self.books.buffers);
            ManuallyDrop::drop(&mut self.books.vectors);
        }
    }
}
