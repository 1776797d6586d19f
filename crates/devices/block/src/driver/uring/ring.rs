// long: the entries, completions and alarms of one ring, which share its state.
//! One io_uring instance: which thread may use it, and what that costs (io_uring_setup(2)).
//!
//! A request completes in two steps: the drive's interrupt, and then work of the task that submitted it (task work), which writes the
//! completion. A queue may move between threads, and shared handles use one from many threads under a lock. The thread that polls is
//! therefore not always the one that submitted.
//!
//! - By default the kernel interrupts the submitting thread at once (no COOP_TASKRUN): a thread that polls the ring's memory sees every
//!   completion, whatever the submitter does meanwhile. With COOP_TASKRUN a submitter that computes, or spins on a flag that the polling
//!   thread sets, would delay the completion until its next timer tick.
//! - With `single_issuer` the work runs when the thread requests it (DEFER_TASKRUN), in batches and without interruption. The ring starts
//!   disabled and is bound to the thread that first enters it, so that another thread may open it. That thread then registers the ring's
//!   descriptor (REGISTERED_RING).
//! - A bit in the ring's memory shows pending task work (TASKRUN_FLAG), so that an empty poll costs no system call. The CPU that completes
//!   a request sets the bit and the thread clears it, so they share a dirty cache line. With `waits` the bit is not used, and an empty
//!   poll enters the kernel.
//! - Long waits have no separate timers; they share one with the waits before and after them (`ALARM_AFTER`).
//! - When a thread exits, the kernel cancels the requests that it submitted.
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

/// How long the kernel's submission thread spins without work before it sleeps and needs a system call to wake.
const SUBMITTER_IDLE_MS: u32 = 10;
/// How often a full ring waits for the kernel's submission thread, which takes an entry each time.
const FULL_WAITS: usize = 64;
/// Waits of this length or more have no timer.
pub(super) const FOR_EVER: Duration = Duration::from_secs(1 << 32);
/// Waits of this length or more share one timer, which ends the wait that is running when it expires. Starting and stopping a timer for
/// each wait would cost a large part of a short request.
pub(super) const ALARM_AFTER: Duration = Duration::from_secs(1);
static ALARM_TIME: Timespec = Timespec::new().sec(ALARM_AFTER.as_secs());

/// A completion entry of the ring.
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

/// The reason why a ring could not be created.
#[derive(Debug)]
pub(crate) enum RingError {
    /// This kernel or process has no usable io_uring: fall back.
    Forbidden(String),
    /// io_uring exists, but creating the ring failed.
    Failed(io::Error),
}

/// An io_uring instance, independent of the meaning of its requests.
pub(super) struct Ring<S: squeue::EntryMarker, C: End> {
    uring: IoUring<S, C>,
    event: OwnedFd,
    /// Whether the event is registered: from the first `arm` on, because it slows each completion slightly.
    event_known: bool,
    armed: bool,
    polled: bool,
    /// Whether the ring has no flag for pending task work.
    silent: bool,
    /// Whether any thread may enter the ring, and the call itself takes the entries.
    is_anybodys: bool,
    /// Whether neither a kernel thread submits nor the device is polled: the flags of a call then depend only on its purpose.
    is_plain: bool,
    /// Whether the thread that uses the ring registers the ring's descriptor.
    is_of_one: bool,
    own: Option<Registered>,
    /// How long each wait spins before it sleeps.
    spin_duration: Duration,
}

/// The index under which a thread has registered the ring's descriptor. With it the kernel does not look up the descriptor or count its
/// references: 1 to 3 % of a short request. The registration keeps the ring alive until the thread removes it or exits.
#[derive(Clone, Copy)]
struct Registered {
    thread: u64,
    number: u32,
}

/// Returns a number that is unique to this thread; `ThreadId` would cost more than the call saves.
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
    /// Registers the descriptor; returns `None` if the kernel is older than 5.18, or the thread has reached its limit of 16.
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

/// The purpose of entering the kernel; pushed entries are always submitted too.
#[derive(Clone, Copy)]
enum What {
    Submit,
    /// To run the pending task work of this thread.
    BrokerRequest,
    Wait(Duration),
}

/// The sets of set-up flags, newest first; older kernels refuse unknown flags (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Age {
    /// Linux 6.6: NO_SQARRAY.
    InOrder,
    /// Linux 6.1: SINGLE_ISSUER, DEFER_TASKRUN.
    Deferred,
    /// Linux 5.19: COOP_TASKRUN.
    Cooperative,
    /// Linux 5.11 and later.
    Old,
}

impl<S: squeue::EntryMarker, C: End> Ring<S, C> {
    /// Creates a ring for `places` requests and as many cancellations, with `fd` as its file 0.
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

    /// Pushes an entry into the submission queue, for the next time the kernel is entered.
    ///
    /// # Safety
    /// The memory the entry names stays mapped until its completion was seen.
    pub(super) unsafe fn push(&mut self, entry: &S) {
        // SAFETY: what the entry names is the caller's promise.
        let mut pushed = unsafe { self.uring.submission().push(entry) };
        for _ in 0..FULL_WAITS {
            if pushed.is_ok() || !self.uring.params().is_setup_sqpoll() {
                break;
            }
            // The kernel's thread takes the entries, and gets no processor at the moment: it is woken, and waited for.
            let _ = self.uring.submit();
            let _ = self.uring.submitter().squeue_wait();
            // SAFETY: as above.
            pushed = unsafe { self.uring.submission().push(entry) };
        }
        assert!(pushed.is_ok(), "the ring has a place for each request and its cancellation");
    }

    /// Starts a timer that completes as `name`. Returns `false` if there is no room for it, or calls on this ring need a time limit.
    pub(super) fn push_alarm(&mut self, name: u64) -> bool
    where
        S: From<squeue::Entry>,
    {
        let entry = opcode::Timeout::new(&raw const ALARM_TIME).build().user_data(name);
        // SAFETY: the time stays where it is.
        self.is_plain && unsafe { self.uring.submission().push(&entry.into()) }.is_ok()
    }

    /// Creates the table for registered arenas; returns `false` if the kernel does not support it.
    pub(super) fn make_buffer_table(&self, places: u32) -> bool {
        self.uring.submitter().register_buffers_sparse(places).is_ok()
    }

    /// Pins one piece of memory, at index `place`.
    ///
    /// # Safety
    /// It stays mapped as long as the ring lives, or its arena is leaked.
    pub(super) unsafe fn register(&self, place: u32, piece: libc::iovec) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.uring.submitter().register_buffers_update(place, &[piece], None) }
    }

    /// Pins as many of these pieces as the kernel allows, from the first on, in one call; returns their number.
    ///
    /// # Safety
    /// As of [`Ring::register`], for each of them.
    pub(super) unsafe fn register_many(&self, place: u32, pieces: &[libc::iovec]) -> u32 {
        let mut update = io_uring_rsrc_update2::default();
        (update.offset, update.nr) = (place, pieces.len() as u32);
        update.data = io_uring_ptr::new(pieces.as_ptr().cast_mut().cast());
        // SAFETY: one update, given with its size, with so many pieces; their memory is the caller's promise. The crate's call does not
        // return how many were taken.
        let taken = unsafe {
            let bytes = size_of_val(&update) as u32;
            io_uring_register(self.fd(), IoringRegisterOp::RegisterBuffersUpdate, (&raw const update).cast(), bytes)
        };
        taken.unwrap_or(0)
    }

    /// Submits the pushed entries. `in_kernel` is the number of uncompleted requests, including the new ones: if there are older ones, the
    /// same call runs pending task work.
    #[inline(always)]
    pub(super) fn submit(&mut self, in_kernel: u32) -> Result<(), Errno> {
        let pushed = self.pushed();
        match pushed {
            0 => Ok(()),
            _ if self.silent && in_kernel > pushed => self.enter(What::BrokerRequest, pushed),
            _ => self.enter(What::Submit, pushed),
        }
    }

    /// Submits like `submit`, then waits for a completion.
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

    /// Polls for a completion, and sleeps once `spin_duration` has passed without one.
    #[inline(never)]
    fn wait_awake(&mut self, at_most: Duration) -> Result<(), Errno> {
        let begin = Instant::now();
        loop {
            let pushed = self.pushed();
            self.enter(What::BrokerRequest, pushed)?;
            let took = begin.elapsed();
            if self.has_ended() || took >= at_most {
                return Ok(());
            }
            if took >= self.spin_duration {
                return self.enter(What::Wait(at_most), 0);
            }
        }
    }

    /// Runs the task work that the kernel deferred for this thread.
    pub(super) fn run_work(&mut self) -> Result<(), Errno> {
        let pushed = self.pushed();
        self.enter(if self.silent { What::BrokerRequest } else { What::Submit }, pushed)
    }

    /// Returns whether `run_work` may bring completions: from task work, from a full ring, or from a device that has to be polled.
    pub(super) fn work_waits(&mut self) -> bool {
        self.polled || self.silent || self.work_shows()
    }

    fn work_shows(&mut self) -> bool {
        let submission = self.uring.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// Returns whether a completion can be taken.
    pub(super) fn has_ended(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Returns the completion queue of the ring.
    pub(super) fn completion(&mut self) -> cqueue::CompletionQueue<'_, C> {
        self.uring.completion()
    }

    /// Returns a separate doorbell, if other threads may enter this ring.
    pub(super) fn doorbell(&self) -> Option<RingDoorbell> {
        if !self.is_anybodys {
            return None;
        }
        Some(RingDoorbell::new(self.fd().try_clone_to_owned().ok()?, self.uring.params().sq_entries()))
    }

    /// Returns the number of entries that the kernel has not taken.
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

    /// Arms the event: if `true`, the next completion signals it; if `false`, there is a completion already, or no event is available.
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
        // This thread sets its flag before it checks the ring; the kernel writes a completion before it checks the flag.
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

    /// Disarms the event, which costs a write for each completion.
    #[inline]
    pub(super) fn disarm(&mut self) {
        if self.armed {
            self.uring.completion().disable_eventfd();
            self.armed = false;
        }
    }

    /// Cancels all requests without an entry, where possible; a polled ring accepts no cancel entry.
    pub(super) fn cancel_all_polled(&self) {
        // An error means that nothing is in flight, or that the device cannot cancel: the caller waits in any case.
        let _ = self.uring.submitter().register_sync_cancel(Some(Timespec::new()), CancelBuilder::any());
    }

    /// Inlined, like its callers: after a system call the CPU mispredicts each return, because the kernel cleared its return stack buffer
    /// (decisions/15).
    #[inline(always)]
    fn enter(&mut self, what: What, pushed: u32) -> Result<(), Errno> {
        let entered = match what {
            // Without GETEVENTS the kernel neither runs this thread's task work nor flushes overflowed completions.
            What::Submit if self.is_plain && !self.work_shows() => self.call(pushed, 0, IoringEnterFlags::empty()),
            What::BrokerRequest => self.call(pushed, 0, IoringEnterFlags::GETEVENTS),
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

    /// Makes the system call io_uring_enter(2).
    #[inline(always)]
    fn call(&mut self, pushed: u32, least: u32, flags: IoringEnterFlags) -> Result<(), Errno> {
        let (fd, flags) = match self.own {
            Some(own) if own.thread == this_thread() => (own.number.cast_signed(), flags | IoringEnterFlags::REGISTERED_RING),
            _ => (self.uring.as_raw_fd(), flags), // the kernel refuses other threads
        };
        // SAFETY: open as long as the ring is, or a number that it has until it is dropped; the callers of `push` promised the memory of
        // the entries.
        unsafe { io_uring_enter(BorrowedFd::borrow_raw(fd), pushed, least, flags) }.map(drop)
    }

    /// Binds the ring to this thread.
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
            // Interrupted, timed out, or short of memory or places for now: entries not taken stay pushed and go with the next call.
            Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY => Ok(()),
            // The ring is not enabled yet.
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
    /// Releases the file at once: the kernel destroys a ring some time after its close. A device that was opened exclusively can then be
    /// reopened immediately.
    fn drop(&mut self) {
        let _ = self.uring.submitter().unregister_files(); // refused to other threads than the ring's: then it is later
        if let Some(own) = self.own.filter(|own| own.thread == this_thread()) {
            own.give_back(self.fd());
        }
    }
}

const NO_MEMORY: &str = "this user may lock no more memory: raise the limit (ulimit -l, LimitMEMLOCK=, or memlock in limits.conf(5))";

fn build<S: squeue::EntryMarker, C: End>(entries: u32, options: &QueueOptions) -> Result<(IoUring<S, C>, Age), RingError> {
    let mut last = None;
    for age in [Age::InOrder, Age::Deferred, Age::Cooperative, Age::Old] {
        match builder(options, age).build(entries) {
            Ok(uring) => return Ok((uring, age)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INVAL) => last = Some(error),
                Some(Errno::NOSYS) => return Err(RingError::Forbidden("this kernel has no io_uring".into())),
                Some(Errno::PERM | Errno::ACCESS) => return Err(RingError::Forbidden(forbidden())),
                // Memory that is pinned for other rings of the user counts against the same limit.
                Some(Errno::NOMEM) => return Err(RingError::Forbidden(NO_MEMORY.into())),
                _ => return Err(RingError::Failed(error)),
            },
        }
    }
    Err(RingError::Failed(last.unwrap_or_else(|| io::ErrorKind::InvalidInput.into())))
}

/// Returns the reason why io_uring is forbidden.
pub(super) fn forbidden() -> String {
    let switch = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match switch.trim() {
        "1" => "io_uring is for one group only (sysctl kernel.io_uring_disabled is 1, kernel.io_uring_group says which)".into(),
        "2" => "io_uring is switched off (sysctl kernel.io_uring_disabled is 2)".into(),
        _ => "io_uring is forbidden to this process (a seccomp filter, as container engines set, or a security module)".into(),
    }
}

/// Returns whether the ring is bound to the thread that first enters it.
fn is_deferred(options: &QueueOptions, age: Age) -> bool {
    options.single_issuer && !options.kernel_submits && age <= Age::Deferred
}

/// Returns whether the ring has no flag for pending task work.
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
    // The kernel's submission thread runs its task work itself: neither flag has any effect for it.
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
