//! One io_uring instance.
//!
//! Which thread may use it, and what that costs. A request ends in two steps: the drive's interrupt, and then work of the task
//! that submitted it (task work), which writes the completion. A queue may move between threads, and shared handles use one from
//! many under a lock, so the thread that looks for a completion need not be the one that submitted.
//!
//! - By default the kernel interrupts the submitting thread at once (no COOP_TASKRUN): who polls the ring's memory sees every
//!   completion, whatever the submitter does meanwhile. With COOP_TASKRUN a submitter that computes, or spins on a flag that the
//!   polling thread shall set, would hold the completion back until its next timer tick.
//! - With `single_issuer` the work is done when the thread asks for it (DEFER_TASKRUN), in batches and without being interrupted.
//!   The ring begins disabled and is bound to the thread that first enters it, so that it may be opened by another. From then on
//!   that thread has it under a number of its own (REGISTERED_RING).
//! - That there is such work is a bit in the ring's memory (TASKRUN_FLAG), so that a poll that finds nothing is no system call.
//!   Setting it costs the processor that ends a request, and clearing it the thread, a line that both write to. With `waits` it
//!   is left out, and who finds nothing asks.
//! - A wait that may be long has no timer of its own, but one in common with the waits before and after it (`ALARM_AFTER`).
//! - A thread that exits takes its unfinished work along: the kernel cancels what a thread submitted when it ends.
//!
//! (io_uring_setup(2).)
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::io_uring::{IoringEnterFlags, IoringRegisterOp};
use rustix::io_uring::{io_uring_enter, io_uring_ptr, io_uring_register, io_uring_rsrc_update, io_uring_rsrc_update2};

use super::doorbell::RingDoorbell;
use crate::device::QueueOptions;

/// How long the kernel's thread spins without work before it sleeps and has to be woken by a system call.
const SUBMITTER_IDLE_MS: u32 = 10;
/// Longer waits are waits without a timer.
pub(super) const FOR_EVER: Duration = Duration::from_secs(1 << 32);
/// Waits of this length or more have one timer in common, which ends the wait that it finds: to start one for each wait, and to stop
/// it, costs as much as a good part of a request.
pub(super) const ALARM_AFTER: Duration = Duration::from_secs(1);
static ALARM_TIME: Timespec = Timespec::new().sec(ALARM_AFTER.as_secs());

/// What a completion says.
pub(crate) trait End: cqueue::EntryMarker {
    fn user_data(&self) -> u64;
    fn result(&self) -> i32;
}

impl End for cqueue::Entry {
    fn user_data(&self) -> u64 {
        cqueue::Entry::user_data(self)
    }
    fn result(&self) -> i32 {
        cqueue::Entry::result(self)
    }
}

impl End for cqueue::Entry32 {
    fn user_data(&self) -> u64 {
        cqueue::Entry32::user_data(self)
    }
    fn result(&self) -> i32 {
        cqueue::Entry32::result(self)
    }
}

fn to_errno<T>(outcome: io::Result<T>) -> Result<(), Errno> {
    outcome.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Why there is no ring.
#[derive(Debug)]
pub(crate) enum RingError {
    /// This kernel or this process has no io_uring that serves: fall back.
    Forbidden(String),
    /// It has, but not now.
    Failed(io::Error),
}

/// Kernel and requests, without a meaning of the requests.
pub(super) struct Ring<S: squeue::EntryMarker, C: End> {
    uring: IoUring<S, C>,
    event: OwnedFd,
    /// The kernel knows the event: from the first `arm` on, since that costs a little at each completion.
    event_known: bool,
    armed: bool,
    polled: bool,
    /// Nothing tells of work that waits to be asked for.
    silent: bool,
    /// Any thread may enter it, and its entries are taken in the call.
    is_anybodys: bool,
    /// Neither a thread of the kernel nor a poll of the device has a part in it: a call says only what it is for.
    is_plain: bool,
    /// Its own descriptor is to be registered with the thread that uses it.
    is_of_one: bool,
    own: Option<Registered>,
    /// How long each wait looks before it sleeps.
    spin_duration: Duration,
}

/// The number under which a thread has a ring: entered by it, the kernel does not look up the descriptor, nor count its users,
/// 1 to 3 % of a short request. The thread keeps the ring until it gives the number back, or ends.
#[derive(Clone, Copy)]
struct Registered {
    thread: u64,
    number: u32,
}

/// A number that no other thread has or had; `ThreadId` costs more than the call shall save.
#[inline]
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static OWN: Cell<u64> = const { Cell::new(0) });
    match OWN.get() {
        0 => {
            OWN.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            OWN.get()
        }
        own => own,
    }
}

impl Registered {
    /// None: the kernel is older than 5.18, or the thread has as many as it may (16).
    fn of(ring: BorrowedFd<'_>) -> Option<Registered> {
        let mut update = io_uring_rsrc_update::default();
        update.offset = u32::MAX; // any
        update.data = io_uring_ptr::new(std::ptr::without_provenance_mut(ring.as_raw_fd().cast_unsigned() as usize));
        // SAFETY: one update, which says where the number goes.
        unsafe { io_uring_register(ring, IoringRegisterOp::RegisterRingFds, (&raw mut update).cast(), 1) }.ok()?;
        Some(Registered { thread: this_thread(), number: update.offset })
    }

    fn give_back(self, ring: BorrowedFd<'_>) {
        let mut update = io_uring_rsrc_update::default();
        update.offset = self.number;
        // SAFETY: one update.
        let _ = unsafe { io_uring_register(ring, IoringRegisterOp::UnregisterRingFds, (&raw const update).cast(), 1) };
    }
}

/// What the kernel is entered for; always with what was pushed.
#[derive(Clone, Copy)]
enum What {
    Submit,
    /// To do what waits for this thread.
    Ask,
    Wait(Duration),
}

/// What sets of flags there are, newest first; older kernels refuse what they do not know (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Age {
    /// 6.6: NO_SQARRAY.
    InOrder,
    /// 6.1: SINGLE_ISSUER, DEFER_TASKRUN.
    Deferred,
    /// 5.19: COOP_TASKRUN.
    Cooperative,
    /// 5.11 and later.
    Old,
}

impl<S: squeue::EntryMarker, C: End> Ring<S, C> {
    /// One for `places` requests and as many cancellations, with `fd` as its file 0.
    pub(super) fn new(places: u32, options: &QueueOptions, fd: BorrowedFd<'_>) -> Result<Ring<S, C>, RingError> {
        let (uring, age) = build(places * 2, options)?;
        let params = uring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(RingError::Forbidden("its io_uring is older than Linux 5.11".into()));
        }
        uring.submitter().register_files(&[fd.as_raw_fd()]).map_err(RingError::Failed)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| RingError::Failed(error.into()))?;
        let silent = is_silent(options, age);
        let is_plain = !options.kernel_submits && !options.device_polled;
        let is_anybodys = !options.single_issuer && is_plain;
        let is_of_one = is_deferred(options, age);
        let polled = options.device_polled;
        let (own, spin_duration) = (None, if silent { options.spin_duration } else { Duration::ZERO });
        Ok(Ring { uring, event, event_known: false, armed: false, polled, silent, is_anybodys, is_plain, is_of_one, own, spin_duration })
    }

    /// Puts an entry where the kernel will look when it is entered.
    ///
    /// # Safety
    /// The memory the entry names stays mapped until its completion was seen.
    pub(super) unsafe fn push(&mut self, entry: &S) {
        // SAFETY: what the entry names is the caller's promise.
        let pushed = unsafe { self.uring.submission().push(entry) };
        assert!(pushed.is_ok(), "the ring has a place for each request and its cancellation");
    }

    /// Starts a timer that ends as `name`. False: there is no room for it, or a call on this ring may not be for ever.
    pub(super) fn push_alarm(&mut self, name: u64) -> bool
    where
        S: From<squeue::Entry>,
    {
        let entry = opcode::Timeout::new(&raw const ALARM_TIME).build().user_data(name);
        // SAFETY: the time stays where it is.
        self.is_plain && unsafe { self.uring.submission().push(&entry.into()) }.is_ok()
    }

    /// Makes room for the arenas; false when the kernel has no such table.
    pub(super) fn make_buffer_table(&self, places: u32) -> bool {
        self.uring.submitter().register_buffers_sparse(places).is_ok()
    }

    /// Pins memory.
    ///
    /// # Safety
    /// It stays mapped as long as the ring lives, or its arena is leaked.
    pub(super) unsafe fn register(&self, place: u32, piece: libc::iovec) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.uring.submitter().register_buffers_update(place, &[piece], None) }
    }

    /// Pins as many of these as the kernel lets us, from the first on, in one call.
    ///
    /// # Safety
    /// As of [`Ring::register`], for each of them.
    pub(super) unsafe fn register_many(&self, place: u32, pieces: &[libc::iovec]) -> u32 {
        let mut update = io_uring_rsrc_update2::default();
        (update.offset, update.nr) = (place, pieces.len() as u32);
        update.data = io_uring_ptr::new(pieces.as_ptr().cast_mut().cast());
        // SAFETY: one update, of its own size, with so many pieces; their memory is the caller's promise. The crate's call keeps to itself
        // how many were taken.
        let taken = unsafe {
            let bytes = size_of_val(&update) as u32;
            io_uring_register(self.fd(), IoringRegisterOp::RegisterBuffersUpdate, (&raw const update).cast(), bytes)
        };
        taken.unwrap_or(0)
    }

    /// The kernel is to_errno of what was pushed. `in_kernel` is all it has not ended then: if that is more than what is new, what
    /// waits to be asked for is asked for in the same call.
    #[inline(always)]
    pub(super) fn submit(&mut self, in_kernel: u32) -> Result<(), Errno> {
        let pushed = self.pushed();
        match pushed {
            0 => Ok(()),
            _ if self.silent && in_kernel > pushed => self.enter(What::Ask, pushed),
            _ => self.enter(What::Submit, pushed),
        }
    }

    /// The same, then waits for a completion.
    #[inline(always)]
    pub(super) fn wait(&mut self, at_most: Duration, in_kernel: u32) -> Result<(), Errno> {
        if self.has_ended() {
            return self.submit(in_kernel);
        }
        if !self.spin_duration.is_zero() {
            return self.wait_awake(at_most);
        }
        let pushed = self.pushed();
        self.enter(What::Wait(at_most), pushed)
    }

    /// Looks for a completion, and sleeps when there was none for long.
    #[inline(never)]
    fn wait_awake(&mut self, at_most: Duration) -> Result<(), Errno> {
        let begin = Instant::now();
        loop {
            let pushed = self.pushed();
            self.enter(What::Ask, pushed)?;
            let took = begin.elapsed();
            if self.has_ended() || took >= at_most {
                return Ok(());
            }
            if took >= self.spin_duration {
                return self.enter(What::Wait(at_most), 0);
            }
        }
    }

    /// The kernel does what it left for us to ask for.
    pub(super) fn run_work(&mut self) -> Result<(), Errno> {
        let pushed = self.pushed();
        self.enter(if self.silent { What::Ask } else { What::Submit }, pushed)
    }

    /// Whether completions may be behind a call of `run_work`: work of ours, a full ring, or a device that has to be polled.
    pub(super) fn work_waits(&mut self) -> bool {
        self.polled || self.silent || self.work_shows()
    }

    fn work_shows(&mut self) -> bool {
        let submission = self.uring.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// Whether a completion can be taken.
    pub(super) fn has_ended(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// The completions.
    pub(super) fn completion(&mut self) -> cqueue::CompletionQueue<'_, C> {
        self.uring.completion()
    }

    /// A doorbell of its own, if threads may take turns with this ring.
    pub(super) fn doorbell(&self) -> Option<RingDoorbell> {
        if !self.is_anybodys {
            return None;
        }
        Some(RingDoorbell::new(self.fd().try_clone_to_owned().ok()?, self.uring.params().sq_entries()))
    }

    /// Entries that the kernel has not taken.
    #[inline(always)]
    fn pushed(&mut self) -> u32 {
        self.uring.submission().len() as u32
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring is.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// True: the next completion signals the event. False: there is something already, or no event to be had.
    pub(super) fn arm(&mut self) -> bool {
        if !self.event_known {
            self.event_known = self.uring.submitter().register_eventfd(self.event.as_raw_fd()).is_ok();
            if !self.event_known {
                return false;
            }
        }
        self.uring.completion().enable_eventfd();
        self.armed = true;
        let _ = rustix::io::read(&self.event, &mut [0; 8]); // empty already is fine
        // Our wish for a signal comes before our look; the kernel's completion comes before its look at our wish.
        fence(Ordering::SeqCst);
        if self.silent {
            let _ = self.run_work(); // what fails here fails at the next submission, too
        }
        if self.has_ended() || self.polled || self.work_shows() {
            self.disarm();
            return false;
        }
        true
    }

    /// No signals any more: they cost a write for each completion.
    #[inline]
    pub(super) fn disarm(&mut self) {
        if self.armed {
            self.uring.completion().disable_eventfd();
            self.armed = false;
        }
    }

    /// Asks for everything to be cancelled, where that can be asked without an entry (a polled ring takes none for that).
    pub(super) fn cancel_all_polled(&self) {
        // Fails when there is nothing, or when the device cannot: the caller waits in any case.
        let _ = self.uring.submitter().register_sync_cancel(Some(Timespec::new()), CancelBuilder::any());
    }

    /// Inlined into its callers, as they into theirs: after a system call each return is guessed wrong, since the kernel emptied
    /// the processor's stack of returns (decisions/15).
    #[inline(always)]
    fn enter(&mut self, what: What, pushed: u32) -> Result<(), Errno> {
        let entered = match what {
            // What waits for this thread is done, and completions for which there was no room are given, only if that is asked for.
            What::Submit if self.is_plain && !self.work_shows() => self.call(pushed, 0, IoringEnterFlags::empty()),
            What::Ask => self.call(pushed, 0, IoringEnterFlags::GETEVENTS),
            What::Wait(at_most) if self.is_plain && at_most >= FOR_EVER => self.call(pushed, 1, IoringEnterFlags::GETEVENTS),
            What::Submit => to_errno(self.uring.submitter().submit()),
            What::Wait(at_most) if at_most >= FOR_EVER => to_errno(self.uring.submitter().submit_and_wait(1)),
            What::Wait(at_most) => {
                to_errno(self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&Timespec::from(at_most))))
            }
        };
        match entered {
            Ok(()) => Ok(()),
            Err(error) => self.refused(error, what),
        }
    }

    /// The system call.
    #[inline(always)]
    fn call(&mut self, pushed: u32, least: u32, flags: IoringEnterFlags) -> Result<(), Errno> {
        let (fd, flags) = match self.own {
            Some(own) if own.thread == this_thread() => (own.number.cast_signed(), flags | IoringEnterFlags::REGISTERED_RING),
            _ => (self.uring.as_raw_fd(), flags), // to another thread the kernel says no
        };
        // SAFETY: open as long as the ring is, or a number that it has until it is dropped; who pushed the entries promised their
        // memory.
        unsafe { io_uring_enter(BorrowedFd::borrow_raw(fd), pushed, least, flags) }.map(drop)
    }

    /// From here on the ring is this thread's.
    fn begin(&mut self) -> Result<(), Errno> {
        to_errno(self.uring.submitter().register_enable_rings())?;
        if self.is_of_one {
            self.own = Registered::of(self.fd());
        }
        Ok(())
    }

    #[cold]
    fn refused(&mut self, error: Errno, what: What) -> Result<(), Errno> {
        match error {
            // Interrupted, late, or out of memory or places for now: what was not taken stays pushed and goes with the next.
            Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY => Ok(()),
            // Not enabled yet.
            Errno::BADFD => {
                self.begin()?;
                let pushed = self.pushed();
                self.enter(what, pushed)
            }
            error => Err(error),
        }
    }
}

impl<S: squeue::EntryMarker, C: End> Drop for Ring<S, C> {
    /// The kernel takes a ring apart some time after it was closed. Let go of the file now, so that a device that was opened
    /// exclusively can be opened again at once.
    fn drop(&mut self) {
        let _ = self.uring.submitter().unregister_files(); // refused to other threads than the ring's: then it is later
        if let Some(own) = self.own.filter(|own| own.thread == this_thread()) {
            own.give_back(self.fd());
        }
    }
}

fn build<S: squeue::EntryMarker, C: End>(entries: u32, options: &QueueOptions) -> Result<(IoUring<S, C>, Age), RingError> {
    let mut last = None;
    for age in [Age::InOrder, Age::Deferred, Age::Cooperative, Age::Old] {
        match builder(options, age).build(entries) {
            Ok(uring) => return Ok((uring, age)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INVAL) => last = Some(error),
                Some(Errno::NOSYS) => return Err(RingError::Forbidden("this kernel has no io_uring".into())),
                Some(Errno::PERM | Errno::ACCESS) => return Err(RingError::Forbidden(forbidden())),
                _ => return Err(RingError::Failed(error)),
            },
        }
    }
    Err(RingError::Failed(last.unwrap_or_else(|| io::ErrorKind::InvalidInput.into())))
}

/// Who forbade it.
pub(super) fn forbidden() -> String {
    let switch = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match switch.trim() {
        "1" => "io_uring is for one group only (sysctl kernel.io_uring_disabled is 1, kernel.io_uring_group says which)".into(),
        "2" => "io_uring is switched off (sysctl kernel.io_uring_disabled is 2)".into(),
        _ => "io_uring is forbidden to this process (a seccomp filter, as container engines set, or a security module)".into(),
    }
}

/// Whether the ring is one thread's, from the first time it enters it.
fn is_deferred(options: &QueueOptions, age: Age) -> bool {
    options.single_issuer && !options.kernel_submits && age <= Age::Deferred
}

/// Whether nothing shall tell of work to be asked for.
fn is_silent(options: &QueueOptions, age: Age) -> bool {
    is_deferred(options, age) && options.waits
}

fn builder<S: squeue::EntryMarker, C: End>(options: &QueueOptions, age: Age) -> Builder<S, C> {
    let mut builder = IoUring::<S, C>::builder();
    if options.device_polled {
        builder.setup_iopoll();
    }
    if options.kernel_submits {
        builder.setup_sqpoll(SUBMITTER_IDLE_MS);
    }
    if age < Age::Old {
        builder.setup_submit_all();
    }
    if age == Age::InOrder {
        builder.setup_no_sqarray();
    }
    // The kernel's thread has its own task work: neither flag means anything for it.
    if options.single_issuer && !options.kernel_submits && age < Age::Old {
        builder.setup_coop_taskrun();
        if !is_silent(options, age) {
            builder.setup_taskrun_flag();
        }
        if is_deferred(options, age) {
            builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled();
        }
    }
    builder
}
