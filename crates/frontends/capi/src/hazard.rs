//! Hazard pointers: each thread publishes, in its own record on its own cache line, which table slot it is reading. A thread that empties
//! a slot waits until no record names it. A read costs two plain stores; the cost is with the writer.
//!
//! ```text
//! reader:   my record = slot          writer:   slot = NULL
//!           (compiler fence)                    membarrier(2): a full fence in every running thread
//!           read the slot                       wait for each record that names the slot to change
//! ```
//! Either the reader sees NULL, or the writer sees the record. Where the kernel has no membarrier, a full fence replaces the compiler
//! fence.
#![expect(unsafe_code, reason = "membarrier(2), and a list of records that only grows")]

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

/// A thread's record: a sequence number (upper half) and the slot it reads plus one (lower half); 0: none.
#[repr(align(128))]
#[derive(Default)]
pub struct ThreadRecord {
    word: AtomicU64,
    /// The owner is in its critical section: see [`ThreadRecord::enter_owner_section`]. Always set where the kernel has no membarrier.
    inside: AtomicBool,
    taken: AtomicBool,
    number: AtomicU32,
    next: AtomicPtr<ThreadRecord>,
}

/// Number of records.
static COUNT: AtomicU32 = AtomicU32::new(0);

const PLACE: u64 = 0xffff_ffff;
const ONCE_MORE: u64 = 1 << 32;

/// All records ever created: at most the number of concurrent threads.
static RECORDS: AtomicPtr<ThreadRecord> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static CURRENT: Cell<Option<&'static ThreadRecord>> = const { Cell::new(None) };
    static LEASE: Lease = const { Lease };
}

/// Releases the record when the thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(record) = CURRENT.take() {
            record.taken.store(false, Ordering::Release);
        }
    }
}

/// A read in progress; the slot's object stays alive.
pub struct ReadGuard(&'static ThreadRecord);

impl ReadGuard {
    /// Returns the record of the reading thread.
    #[inline(always)]
    pub fn record(&self) -> &'static ThreadRecord {
        self.0
    }
}

impl Drop for ReadGuard {
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.0.word.load(Ordering::Relaxed);
        self.0.word.store(word & !PLACE, Ordering::Release);
    }
}

/// Starts reading a slot. `None`: this thread reads another one already (in a signal handler), or is about to end.
#[inline]
pub fn protect(place: u32) -> Option<ReadGuard> {
    let record = match CURRENT.get() {
        Some(record) => record,
        None => register_thread()?,
    };
    let guard = record.protect(place)?;
    order();
    Some(guard)
}

/// Starts reading a slot if no setup is needed. `None`: setup is needed, or as for `protect`.
#[inline(always)]
pub fn protect_fast(place: u32) -> Option<ReadGuard> {
    if !FAST_PATH.load(Ordering::Relaxed) {
        return None;
    }
    let guard = CURRENT.get()?.protect(place)?;
    compiler_fence(Ordering::SeqCst);
    Some(guard)
}

/// Returns this thread's record, which no other thread uses meanwhile. `None`: it has none, or is about to end.
#[inline]
pub fn current() -> Option<&'static ThreadRecord> {
    CURRENT.get()
}

impl ThreadRecord {
    /// Publishes the slot that the thread reads. `None`: it reads one already.
    #[inline(always)]
    fn protect(&'static self, place: u32) -> Option<ReadGuard> {
        let word = self.word.load(Ordering::Relaxed);
        if word & PLACE != 0 {
            return None;
        }
        self.word.store(word.wrapping_add(ONCE_MORE) | u64::from(place + 1), Ordering::Relaxed);
        Some(ReadGuard(self))
    }

    /// Returns the number of the record; no other live thread has it.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Enters the owner's critical section, in which the owning thread changes its own data. Other threads that want to change it set
    /// `wanted`, issue a [`barrier`], and wait until the section ends. `None`: another thread wants it, this thread is inside already (in
    /// a signal handler), or the kernel has no membarrier.
    #[inline]
    pub fn enter_owner_section(&'static self, wanted: &AtomicBool) -> Option<OwnerGuard> {
        if self.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.inside.store(true, Ordering::Relaxed);
        let inside = OwnerGuard(self);
        compiler_fence(Ordering::SeqCst);
        (!wanted.load(Ordering::Acquire)).then_some(inside)
    }

    /// Returns whether the owner is in its critical section.
    pub fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire) && has_barrier()
    }
}

/// The owner's critical section; ends on drop.
pub struct OwnerGuard(&'static ThreadRecord);

impl Drop for OwnerGuard {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::Release);
    }
}

/// Orders earlier stores before later loads, as seen by threads that issue a [`barrier`].
#[inline(always)]
fn order() {
    if has_barrier() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Assigns a record to this thread.
#[cold]
fn register_thread() -> Option<&'static ThreadRecord> {
    LEASE.try_with(|_| ()).ok()?;
    register_barrier();
    let record = free_record().unwrap_or_else(new_record);
    CURRENT.set(Some(record));
    Some(record)
}

fn records() -> impl Iterator<Item = &'static ThreadRecord> {
    let mut at = RECORDS.load(Ordering::SeqCst);
    std::iter::from_fn(move || {
        // SAFETY: records are made from boxes that are never given back.
        let record: &'static ThreadRecord = unsafe { at.as_ref() }?;
        at = record.next.load(Ordering::Relaxed);
        Some(record)
    })
}

fn free_record() -> Option<&'static ThreadRecord> {
    records().find(|record| record.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

fn new_record() -> &'static ThreadRecord {
    let record: &'static ThreadRecord = Box::leak(Box::default());
    record.taken.store(true, Ordering::Relaxed);
    record.inside.store(!has_barrier(), Ordering::Relaxed);
    record.number.store(COUNT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    let ours = std::ptr::from_ref(record).cast_mut();
    let mut first = RECORDS.load(Ordering::Relaxed);
    loop {
        record.next.store(first, Ordering::Relaxed);
        match RECORDS.compare_exchange(first, ours, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return record,
            Err(now) => first = now,
        }
    }
}

/// Waits until no thread reads what this slot held before it was emptied (with `SeqCst`). The caller must not be reading.
pub fn wait_for_readers(place: u32) {
    barrier();
    for record in records() {
        let seen = record.word.load(Ordering::SeqCst);
        if seen & PLACE != u64::from(place + 1) {
            continue;
        }
        let mut turns = 0_u32;
        // A later read has another sequence number.
        while record.word.load(Ordering::Acquire) == seen {
            turns += 1;
            match turns {
                0..64 => std::hint::spin_loop(),
                64..128 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

/// In a forked child: the other threads are the parent's and read nothing here.
pub fn forked() {
    FAST_PATH.store(false, Ordering::SeqCst);
    let mine = CURRENT.get().map(std::ptr::from_ref);
    if has_barrier() && !membarrier(REGISTER_PRIVATE_EXPEDITED) {
        HAS_BARRIER.store(NO, Ordering::SeqCst);
        records().for_each(|record| record.inside.store(true, Ordering::Relaxed));
    }
    for record in records().filter(|record| mine != Some(std::ptr::from_ref(*record))) {
        record.word.store(0, Ordering::Relaxed);
        record.inside.store(!has_barrier(), Ordering::Relaxed);
        record.taken.store(false, Ordering::Relaxed);
    }
}

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;
static HAS_BARRIER: AtomicU8 = AtomicU8::new(UNKNOWN);
/// A compiler fence is sufficient, and files are in use.
static FAST_PATH: AtomicBool = AtomicBool::new(false);

/// Enables the fast path for this process.
pub fn enable_fast_path() {
    register_barrier();
    FAST_PATH.store(has_barrier(), Ordering::SeqCst);
}

/// Known once a thread has a record.
#[inline(always)]
fn has_barrier() -> bool {
    HAS_BARRIER.load(Ordering::Relaxed) == YES
}

fn register_barrier() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let there = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
        HAS_BARRIER.store(if there { YES } else { NO }, Ordering::SeqCst);
    });
}

/// A full fence, also in every other reading thread.
pub fn barrier() {
    register_barrier();
    fence(Ordering::SeqCst);
    if HAS_BARRIER.load(Ordering::SeqCst) == YES {
        assert!(membarrier(PRIVATE_EXPEDITED), "membarrier(2) worked before");
    }
    fence(Ordering::SeqCst);
}

// linux/membarrier.h
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: no memory is handed over.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
