//! Who is inside: each thread says in a word of its own, on a cache line of its own, which place of a table it looks at. Who empties
//! a place waits until nobody looks at it any more. A look costs two plain stores; all the cost is with who empties.
//!
//! ```text
//!   looking:   my word = place        emptying:   place = NULL
//!              (compiler fence)                   membarrier(2): a full fence in every running thread of ours
//!              look at the place                  wait for each word that names the place to change
//! ```
//! Either the one who looks sees NULL, or the one who empties sees the word. Where the kernel has no membarrier, a full fence stands
//! in the place of the compiler fence.
#![expect(unsafe_code, reason = "membarrier(2), and a list of records that only grows")]

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

/// A thread's word: which time this is (upper half), and which place (lower half), plus one; 0: none.
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

/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);

const PLACE: u64 = 0xffff_ffff;
const ONCE_MORE: u64 = 1 << 32;

/// All records there ever were: as many as threads at a time.
static RECORDS: AtomicPtr<ThreadRecord> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static CURRENT: Cell<Option<&'static ThreadRecord>> = const { Cell::new(None) };
    static LEASE: Lease = const { Lease };
}

/// Gives the record back when the thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(record) = CURRENT.take() {
            record.taken.store(false, Ordering::Release);
        }
    }
}

/// A look under way.
pub struct ReadGuard(&'static ThreadRecord);

impl ReadGuard {
    /// Whose it is.
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

/// Begins to look at a place. None: this thread looks at another one already (a signal handler), or is about to end.
#[inline]
pub fn protect(place: u32) -> Option<ReadGuard> {
    let record = match CURRENT.get() {
        Some(record) => record,
        None => register_thread()?,
    };
    let look = record.protect(place)?;
    order();
    Some(look)
}

/// Likewise where nothing needs to be done first. None: something does, or as `look` says.
#[inline(always)]
pub fn protect_fast(place: u32) -> Option<ReadGuard> {
    if !FAST_PATH.load(Ordering::Relaxed) {
        return None;
    }
    let look = CURRENT.get()?.protect(place)?;
    compiler_fence(Ordering::SeqCst);
    Some(look)
}

/// This thread's record, which no other thread has meanwhile. None: it has none, or is about to end.
#[inline]
pub fn current() -> Option<&'static ThreadRecord> {
    CURRENT.get()
}

impl ThreadRecord {
    /// Says that its thread looks there. None: it looks somewhere already.
    #[inline(always)]
    fn protect(&'static self, place: u32) -> Option<ReadGuard> {
        let word = self.word.load(Ordering::Relaxed);
        if word & PLACE != 0 {
            return None;
        }
        self.word.store(word.wrapping_add(ONCE_MORE) | u64::from(place + 1), Ordering::Relaxed);
        Some(ReadGuard(self))
    }

    /// No other living thread's record has this one.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The seat's own thread begins to change what is its own. Others who want to change it say so in `wanted`, wait for a
    /// [`barrier`], and then until this is over. None: somebody does, this thread is inside already (in a signal handler), or the kernel
    /// has no membarrier.
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

    /// Whether its thread is changing what is its own.
    pub fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire) && has_barrier()
    }
}

/// A change under way.
pub struct OwnerGuard(&'static ThreadRecord);

impl Drop for OwnerGuard {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::Release);
    }
}

/// What was stored before is seen by whoever looks after a [`barrier`] that this one's loads come before.
#[inline(always)]
fn order() {
    if has_barrier() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Takes a record for this thread.
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

/// Waits until nobody looks at what this place held before it was emptied (with `SeqCst`). The caller looks at nothing itself.
pub fn wait_for_readers(place: u32) {
    barrier();
    for record in records() {
        let seen = record.word.load(Ordering::SeqCst);
        if seen & PLACE != u64::from(place + 1) {
            continue;
        }
        let mut turns = 0_u32;
        // The word of a later look is another one.
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

/// In the child of a fork: the other threads are the parent's, and look at nothing here.
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
/// A compiler fence does, and files are in use.
static FAST_PATH: AtomicBool = AtomicBool::new(false);

/// From now on this process uses files.
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

/// A full fence, also in every other thread that is looking.
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
