//! Implements [`Queue`] over a ring, for any kind of command.
//!
//! The life of a request: `submit` checks it, takes a slot, translates its spans into addresses and pushes one entry. `poll` sees the
//! completion and reports it, or, after a short transfer, pushes an entry for the rest. A request that does not fit the device never
//! reaches the kernel: its completion waits in `own`.
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};
use rustix::io::Errno;

use super::buffers::Fixed;
use super::commands::{Commands, Memory, Rest};
use super::doorbell::RingDoorbell;
use super::owner::OwnerState;
use super::ring::{ALARM_AFTER, FOR_EVER, Ring, RingError};
use super::slots::{ALARM, OWN, RequestMemory, RequestSlot};
use crate::buffer::{Arena, Span};
use crate::device::QueueOptions;
use crate::driver::CompletionRing;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Armed, Doorbell, Queue, Submit};
use crate::request::{Completion, Request, Status};
use crate::units::Tag;

/// How long `reset` and `drop` wait for requests that the kernel cannot cancel. It is shorter than the kernel's time-out of a drive (30
/// seconds for NVMe and SCSI): the queue is abandoned before.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// How long a single-thread queue that another thread drops waits for requests of the first thread, which has exited. The kernel cancelled
/// them at its exit, and their completions are about to reach the ring.
const LEFT_BEHIND: Duration = Duration::from_millis(100);
const RETRY_PERIOD: Duration = Duration::from_millis(1);

/// A queue of requests over one or two io_uring instances.
pub(crate) struct UringQueue<C: Commands> {
    ring: Ring<C::Entry, C::End>,
    /// The second ring, for requests that a polled ring does not accept.
    aside: Option<Ring<C::Entry, C::End>>,
    owner: OwnerState<C>,
    /// Completions not yet reported, of requests that were reaped early or never started.
    own: CompletionRing,
    depth: u32,
    /// Requests submitted and not reported yet.
    in_flight: u32,
    broken: bool,
    /// Whether there is one ring only, and it accepts requests.
    is_straight: bool,
    /// The doorbell with which other threads submit without holding the queue.
    doorbell: Option<Arc<RingDoorbell>>,
}

impl<C: Commands> UringQueue<C> {
    /// Creates a queue of the file or node `fd`, which the kernel keeps open.
    pub(crate) fn new(commands: C, fd: BorrowedFd<'_>, options: &QueueOptions) -> Result<UringQueue<C>, RingError> {
        let depth = options.depth;
        let ring = Ring::new(depth, options, fd)?;
        let aside = if options.device_polled {
            // The two rings are polled in turn.
            let options = QueueOptions { device_polled: false, kernel_submits: false, waits: false, ..options.clone() };
            Some(Ring::new(depth, &options, fd)?)
        } else {
            None
        };
        let owner = OwnerState::new(commands, depth, &ring)?;
        let (own, is_straight) = (CompletionRing::new(depth), aside.is_none());
        Ok(UringQueue { ring, aside, owner, own, depth, in_flight: 0, broken: false, is_straight, doorbell: None })
    }

    /// The fast path: a read or write of one piece of memory, as nearly all requests are. Its code is short and contiguous, because a
    /// system call evicts it from the caches. Returns `false`, without effect, if the request is of another kind or invalid.
    #[inline(always)]
    fn start_one(&mut self, request: &Request, span: Span) -> bool {
        let OwnerState { commands, buffers, .. } = &self.owner;
        if !self.is_straight || !commands.geometry().takes_one(request, span) {
            return false;
        }
        let Some(piece) = buffers.find(span) else { return false };
        let index = self.owner.open(request, RequestMemory::One(piece));
        let name = self.owner.slots.name(index);
        let entry = self.owner.commands.entry(index, name, &Rest { request, memory: Memory::One(piece), done: 0 });
        // SAFETY: as in `push`.
        unsafe { self.ring.push(&entry) };
        true
    }

    #[cold]
    #[inline(never)]
    fn start(&mut self, request: &Request, data: &[Span]) {
        if let Err(error) = self.try_start(request, data) {
            self.own.push(Completion { tag: request.tag, status: Err(error) });
        }
    }

    fn try_start(&mut self, request: &Request, data: &[Span]) -> Status {
        self.owner.commands.geometry().check(request, data)?;
        if self.broken {
            return Err(Error::Gone);
        }
        let index = self.owner.open(request, RequestMemory::None);
        let place = self.owner.place(index, data).inspect_err(|_| self.owner.close(index))?;
        self.owner.slots.get(index).place = place;
        self.push(index, request, place, 0);
        Ok(())
    }

    /// Pushes an entry for the rest of a slot's request.
    fn push(&mut self, index: u32, request: &Request, place: RequestMemory, done: u64) {
        let name = self.owner.slots.name(index);
        let mut rest = Rest { request, memory: self.owner.memory(index, place), done };
        let ring = match &mut self.aside {
            Some(aside) if !self.owner.commands.may_poll(&rest) => {
                // Only the first ring has registered arenas.
                if let Memory::One(piece) = &mut rest.memory {
                    piece.fixed = Fixed::NONE;
                }
                aside
            }
            _ => &mut self.ring,
        };
        let entry = self.owner.commands.entry(index, name, &rest);
        // SAFETY: the addresses come from `Buffers::find`, and arenas and vectors are kept until nothing is in the kernel, or
        // leaked (`drop`).
        unsafe { ring.push(&entry) };
    }

    /// Takes completions out of the rings.
    #[inline]
    fn reap(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = self.owner.reap(&mut self.ring, completions);
        if let Some(aside) = &mut self.aside {
            count += self.owner.reap(aside, &mut completions[count..]);
        }
        if !self.owner.again.is_empty() {
            self.push_again();
        }
        count
    }

    #[cold]
    fn push_again(&mut self) {
        while let Some(index) = self.owner.again.pop() {
            let RequestSlot { request, place, done, .. } = *self.owner.slots.get(index);
            self.push(index, &request, place, done);
        }
        self.ring();
    }

    /// Returns whether another thread is submitting through the doorbell; the holder of the queue must not wait for that.
    fn is_rung(&self) -> bool {
        self.doorbell.as_ref().is_some_and(|doorbell| doorbell.is_rung())
    }

    /// Runs pending task work of the kernel.
    fn run_work(&mut self) {
        if self.is_rung() {
            return;
        }
        for at in 0..2 {
            let Some(ring) = (if at == 0 { Some(&mut self.ring) } else { self.aside.as_mut() }) else { continue };
            let entered = if ring.work_waits() { ring.run_work() } else { ring.submit(0) };
            self.entered(entered);
        }
    }

    /// Handles an error of entering the ring, which never concerns a single request.
    #[inline]
    fn entered(&mut self, entered: Result<(), Errno>) {
        if let Err(error) = entered {
            self.refused(error);
        }
    }

    #[cold]
    fn refused(&mut self, error: Errno) {
        assert!(error != Errno::EXIST, "a queue that was promised to one thread is used by another");
        if !self.broken {
            tracing::error!("io_uring does not take requests any more: {error}");
            (self.broken, self.is_straight) = (true, false);
        }
    }

    fn push_cancel(&mut self, target: types::CancelBuilder) {
        if self.owner.cancels >= self.depth {
            return; // that many are on their way
        }
        let entry = opcode::AsyncCancel2::new(target).build().user_data(OWN);
        // A polled ring does not accept such an entry; only the second ring finds its requests.
        let ring = self.aside.as_mut().unwrap_or(&mut self.ring);
        // SAFETY: it names no memory.
        unsafe { ring.push(&entry.into()) };
        self.owner.cancels += 1;
    }

    /// Cancels all requests and waits for them, for at most `at_most`. Their completions are then in `own`.
    fn give_up(&mut self, at_most: Duration) -> Result<(), Error> {
        let end = Instant::now() + at_most;
        let mut ended = [Completion::EMPTY; 32];
        self.owner.giving_up = true;
        if self.owner.in_kernel > 0 {
            self.push_cancel(types::CancelBuilder::any());
            if self.aside.is_some() {
                self.ring.cancel_all_polled();
            }
        }
        let mut entered = self.ring.submit(0);
        if entered == Err(Errno::EXIST) {
            return self.give_up_outside();
        }
        while self.owner.in_kernel > 0 {
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
        self.owner.giving_up = false;
        if self.owner.in_kernel == 0 { Ok(()) } else { Err(Error::Timeout) }
    }

    /// Does the same where the kernel admits only another thread. While that thread lives, its pending task work does not run.
    #[cold]
    fn give_up_outside(&mut self) -> Result<(), Error> {
        let end = Instant::now() + LEFT_BEHIND;
        let mut ended = [Completion::EMPTY; 32];
        loop {
            let count = self.reap(&mut ended);
            ended[..count].iter().for_each(|completion| self.own.push(*completion));
            match self.owner.in_kernel {
                0 => break,
                _ if count > 0 => {}
                _ if Instant::now() < end => std::thread::sleep(RETRY_PERIOD),
                _ => break,
            }
        }
        self.owner.giving_up = false;
        if self.owner.in_kernel == 0 { Ok(()) } else { Err(Error::Timeout) }
    }

    #[inline(always)]
    fn wait_in_kernel(&mut self, at_most: Duration) -> Result<(), Errno> {
        if self.aside.is_some() {
            return self.wait_for_either(at_most);
        }
        let by_alarm = (ALARM_AFTER..FOR_EVER).contains(&at_most) && (self.owner.has_alarm || self.start_alarm());
        self.ring.wait(if by_alarm { FOR_EVER } else { at_most }, self.owner.in_kernel)
    }

    #[cold]
    fn start_alarm(&mut self) -> bool {
        self.owner.has_alarm = self.ring.push_alarm(ALARM);
        self.owner.has_alarm
    }

    /// Polls the polled ring and the second ring in turn, because they have no common event.
    fn wait_for_either(&mut self, at_most: Duration) -> Result<(), Errno> {
        let Some(aside) = &mut self.aside else { return Ok(()) };
        let begin = Instant::now();
        while !self.ring.has_ended() && !aside.has_ended() {
            self.ring.run_work()?;
            // The second ring uses interrupts: mostly there is no need to enter the kernel.
            if aside.work_waits() {
                aside.run_work()?
            } else {
                aside.submit(0)?
            }
            if begin.elapsed() >= at_most {
                break;
            }
        }
        Ok(())
    }

    /// Polls as [`Queue::poll`] does.
    #[inline(always)]
    fn take_ended(&mut self, completions: &mut [Completion]) -> usize {
        let mut count = if self.own.len() > 0 { self.own.take(completions) } else { 0 };
        count += self.reap(&mut completions[count..]);
        if count == 0 && self.owner.in_kernel > 0 && !completions.is_empty() {
            self.run_work();
            count = self.reap(completions);
        }
        if count > 0 {
            self.ring.disarm();
        }
        self.in_flight -= u32::try_from(count).expect("no more than the depth");
        count
    }

    /// Waits as [`Queue::wait`] does.
    #[inline(always)]
    fn wait_for_ended(&mut self, at_most: Duration) {
        if self.own.len() > 0 || self.owner.in_kernel == 0 || at_most.is_zero() {
            return self.ring();
        }
        let entered = self.wait_in_kernel(at_most);
        self.entered(entered);
    }
}

impl<C: Commands> Queue for UringQueue<C> {
    fn geometry(&self) -> &Geometry {
        self.owner.commands.geometry()
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.owner.buffers.register(arena, &self.ring)
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.in_flight >= self.depth {
            return Submit::Full;
        }
        self.in_flight += 1;
        match data {
            [span] if self.start_one(request, *span) => {}
            _ => self.start(request, data),
        }
        Submit::Queued
    }

    fn ring(&mut self) {
        let entered = self.ring.submit(self.owner.in_kernel);
        self.entered(entered);
        if let Some(aside) = &mut self.aside {
            let entered = aside.submit(0);
            self.entered(entered);
        }
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.take_ended(completions)
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, at_most: Duration) {
        self.wait_for_ended(at_most);
    }

    fn wait_and_poll(&mut self, at_most: Duration, completions: &mut [Completion]) -> usize {
        self.wait_for_ended(at_most);
        self.take_ended(completions)
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.aside.is_none().then(|| self.ring.event())
    }

    fn doorbell(&mut self) -> Option<Arc<dyn Doorbell>> {
        if self.aside.is_some() {
            return None;
        }
        self.doorbell = self.doorbell.take().or_else(|| self.ring.doorbell().map(Arc::new));
        self.doorbell.clone().map(|doorbell| doorbell as Arc<dyn Doorbell>)
    }

    fn arm(&mut self) -> Armed {
        if !self.is_rung() {
            self.ring();
        }
        let waiting = self.own.len() == 0 && self.aside.is_none() && self.ring.arm();
        if waiting { Armed::Waiting } else { Armed::Ready }
    }

    fn cancel(&mut self, tag: Tag) {
        let Some(index) = self.owner.slots.find(tag) else { return };
        self.push_cancel(types::CancelBuilder::user_data(self.owner.slots.name(index)));
        self.ring();
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.give_up(GIVE_UP_AFTER)?;
        self.own.clear();
        self.in_flight = 0;
        self.ring.disarm();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}

impl<C: Commands> Drop for UringQueue<C> {
    /// Waits for requests in flight. If the kernel keeps some, their arenas and vectors are leaked.
    fn drop(&mut self) {
        if self.owner.in_kernel > 0 && self.give_up(GIVE_UP_AFTER).is_err() {
            tracing::error!("a queue is closed with {} requests in the kernel: their memory is kept for ever", self.owner.in_kernel);
            return;
        }
        // SAFETY: this is the end of the queue, and of its state.
        unsafe { self.owner.free() };
    }
}

#[cfg(test)]
mod test {
    use std::os::fd::{AsFd, OwnedFd};

    use io_uring::{cqueue, squeue};
    use rustix::pipe::pipe;

    use super::*;
    use crate::driver::uring::commands::{Memory, Outcome};
    use crate::units::Lba;

    /// Reads from a pipe, which complete when the test writes to it.
    struct FromPipe(Geometry);

    impl Commands for FromPipe {
        type Entry = squeue::Entry;
        type End = cqueue::Entry;

        fn geometry(&self) -> &Geometry {
            &self.0
        }
        fn may_poll(&self, _: &Rest<'_>) -> bool {
            false
        }
        fn entry(&mut self, _: u32, name: u64, rest: &Rest<'_>) -> squeue::Entry {
            let Memory::One(piece) = rest.memory else { panic!("one piece") };
            opcode::Read::new(types::Fixed(0), piece.address as *mut u8, piece.bytes).build().user_data(name)
        }
        fn whole(&self, request: &Request) -> Option<i32> {
            i32::try_from(request.blocks * self.0.block_bytes).ok()
        }
        fn outcome(&mut self, _: &Request, _: u64, answer: i32) -> Outcome {
            if answer < 0 { Outcome::Failed(Error::Cancelled) } else { Outcome::Done }
        }
    }

    /// Returns `None` if this machine has no io_uring.
    fn queue(options: &QueueOptions) -> Option<(UringQueue<FromPipe>, OwnedFd, Arena)> {
        let (from, to) = pipe().expect("a pipe");
        let mut queue = match UringQueue::new(FromPipe(Geometry::plain(512, 8)), from.as_fd(), options) {
            Ok(queue) => queue,
            Err(RingError::Forbidden(why)) => {
                println!("SKIP: {why}");
                return None;
            }
            Err(RingError::Failed(error)) => panic!("a ring: {error}"),
        };
        let arena = Arena::private(8192).expect("memory");
        queue.register(&arena).expect("registered");
        Some((queue, to, arena))
    }

    #[test]
    fn long_waits_have_one_timer_in_common_and_end_all_the_same() {
        for single_issuer in [false, true] {
            let options = QueueOptions { depth: 4, single_issuer, waits: single_issuer, ..QueueOptions::default() };
            let Some((mut queue, to, arena)) = queue(&options) else { return };
            let buf = arena.allocate(512).expect("room");
            let mut ended = [Completion::EMPTY; 4];
            for round in 0..4 {
                assert_eq!(queue.submit(&Request::read(Tag(round), Lba(0), 1), &[buf.span()]), Submit::Queued);
                if round == 2 {
                    // No data is written: waits end, and nothing is reported.
                    assert!(queue.owner.has_alarm, "of an earlier wait");
                    while queue.owner.has_alarm {
                        assert_eq!(queue.wait_and_poll(Duration::from_secs(1000), &mut ended), 0);
                    }
                }
                rustix::io::write(&to, &[round as u8; 512]).expect("written");
                let mut count = 0;
                while count == 0 {
                    count = queue.wait_and_poll(Duration::from_secs(20), &mut ended);
                }
                assert_eq!((count, ended[0]), (1, Completion { tag: Tag(round), status: Ok(()) }));
                assert_eq!(buf.to_vec(), [round as u8; 512]);
            }
            assert_eq!((queue.in_flight(), queue.owner.cancels), (0, 0));
            // A short wait has a separate timer.
            assert_eq!(queue.submit(&Request::read(Tag(9), Lba(0), 1), &[buf.span()]), Submit::Queued);
            assert_eq!(queue.wait_and_poll(Duration::from_millis(1), &mut ended), 0);
            // A cancellation also cancels the timer.
            queue.reset().expect("cancelled");
            assert_eq!((queue.in_flight(), queue.owner.in_kernel), (0, 0));
        }
    }
}
