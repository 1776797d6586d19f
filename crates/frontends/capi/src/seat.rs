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
#![expect(unsafe_code, reason = "membarrier(2), and a list of seats that only grows")]

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

/// A thread's word: which time this is (upper half), and which place (lower half), plus one; 0: none.
#[repr(align(128))]
#[derive(Default)]
pub struct Seat {
    word: AtomicU64,
    /// Its thread changes what is its own, and others may change too: see [`Seat::enter`]. Always, where the kernel has no membarrier.
    inside: AtomicBool,
    taken: AtomicBool,
    number: AtomicU32,
    next: AtomicPtr<Seat>,
}

/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);

const PLACE: u64 = 0xffff_ffff;
const ONCE_MORE: u64 = 1 << 32;

/// All seats there ever were: as many as threads at a time.
static SEATS: AtomicPtr<Seat> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static MINE: Cell<Option<&'static Seat>> = const { Cell::new(None) };
    static LEASE: Lease = const { Lease };
}

/// Gives the seat back when the thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(seat) = MINE.take() {
            seat.taken.store(false, Ordering::Release);
        }
    }
}

/// A look under way.
pub struct Look(&'static Seat);

impl Look {
    /// Whose it is.
    #[inline(always)]
    pub fn seat(&self) -> &'static Seat {
        self.0
    }
}

impl Drop for Look {
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.0.word.load(Ordering::Relaxed);
        self.0.word.store(word & !PLACE, Ordering::Release);
    }
}

/// Begins to look at a place. None: this thread looks at another one already (a signal handler), or is about to end.
#[inline]
pub fn look(place: u32) -> Option<Look> {
    let seat = match MINE.get() {
        Some(seat) => seat,
        None => sit()?,
    };
    let look = seat.look(place)?;
    order();
    Some(look)
}

/// Likewise where nothing needs to be done first. None: something does, or as `look` says.
#[inline(always)]
pub fn look_at_once(place: u32) -> Option<Look> {
    if !AT_ONCE.load(Ordering::Relaxed) {
        return None;
    }
    let look = MINE.get()?.look(place)?;
    compiler_fence(Ordering::SeqCst);
    Some(look)
}

/// This thread's seat, which no other thread has meanwhile. None: it has none, or is about to end.
#[inline]
pub fn mine() -> Option<&'static Seat> {
    MINE.get()
}

impl Seat {
    /// Says that its thread looks there. None: it looks somewhere already.
    #[inline(always)]
    fn look(&'static self, place: u32) -> Option<Look> {
        let word = self.word.load(Ordering::Relaxed);
        if word & PLACE != 0 {
            return None;
        }
        self.word.store(word.wrapping_add(ONCE_MORE) | u64::from(place + 1), Ordering::Relaxed);
        Some(Look(self))
    }

    /// No other living thread's seat has this one.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The seat's own thread begins to change what is its own. Others who want to change it say so in `wanted`, wait for a
    /// [`barrier`], and then until this is over. None: somebody does, this thread is inside already (in a signal handler), or the kernel
    /// has no membarrier.
    #[inline]
    pub fn enter(&'static self, wanted: &AtomicBool) -> Option<Inside> {
        if self.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.inside.store(true, Ordering::Relaxed);
        let inside = Inside(self);
        compiler_fence(Ordering::SeqCst);
        (!wanted.load(Ordering::Acquire)).then_some(inside)
    }

    /// Whether its thread is changing what is its own.
    pub fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire) && has_barrier()
    }
}

/// A change under way.
pub struct Inside(&'static Seat);

impl Drop for Inside {
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

/// Takes a seat for this thread.
#[cold]
fn sit() -> Option<&'static Seat> {
    LEASE.try_with(|_| ()).ok()?;
    ask_for_barrier();
    let seat = free_seat().unwrap_or_else(new_seat);
    MINE.set(Some(seat));
    Some(seat)
}

fn seats() -> impl Iterator<Item = &'static Seat> {
    let mut at = SEATS.load(Ordering::SeqCst);
    std::iter::from_fn(move || {
        // SAFETY: seats are made from boxes that are never given back.
        let seat: &'static Seat = unsafe { at.as_ref() }?;
        at = seat.next.load(Ordering::Relaxed);
        Some(seat)
    })
}

fn free_seat() -> Option<&'static Seat> {
    seats().find(|seat| seat.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

fn new_seat() -> &'static Seat {
    let seat: &'static Seat = Box::leak(Box::default());
    seat.taken.store(true, Ordering::Relaxed);
    seat.inside.store(!has_barrier(), Ordering::Relaxed);
    seat.number.store(COUNT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    let ours = std::ptr::from_ref(seat).cast_mut();
    let mut first = SEATS.load(Ordering::Relaxed);
    loop {
        seat.next.store(first, Ordering::Relaxed);
        match SEATS.compare_exchange(first, ours, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return seat,
            Err(now) => first = now,
        }
    }
}

/// Waits until nobody looks at what this place held before it was emptied (with `SeqCst`). The caller looks at nothing itself.
pub fn wait_until_unseen(place: u32) {
    barrier();
    for seat in seats() {
        let seen = seat.word.load(Ordering::SeqCst);
        if seen & PLACE != u64::from(place + 1) {
            continue;
        }
        let mut turns = 0_u32;
        // The word of a later look is another one.
        while seat.word.load(Ordering::Acquire) == seen {
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
    AT_ONCE.store(false, Ordering::SeqCst);
    let mine = MINE.get().map(std::ptr::from_ref);
    if has_barrier() && !membarrier(REGISTER_PRIVATE_EXPEDITED) {
        HAS_BARRIER.store(NO, Ordering::SeqCst);
        seats().for_each(|seat| seat.inside.store(true, Ordering::Relaxed));
    }
    for seat in seats().filter(|seat| mine != Some(std::ptr::from_ref(*seat))) {
        seat.word.store(0, Ordering::Relaxed);
        seat.inside.store(!has_barrier(), Ordering::Relaxed);
        seat.taken.store(false, Ordering::Relaxed);
    }
}

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;
static HAS_BARRIER: AtomicU8 = AtomicU8::new(UNKNOWN);
/// A compiler fence does, and files are in use.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// From now on this process uses files.
pub fn use_at_once() {
    ask_for_barrier();
    AT_ONCE.store(has_barrier(), Ordering::SeqCst);
}

/// Known once a thread has a seat.
#[inline(always)]
fn has_barrier() -> bool {
    HAS_BARRIER.load(Ordering::Relaxed) == YES
}

fn ask_for_barrier() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        let there = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
        HAS_BARRIER.store(if there { YES } else { NO }, Ordering::SeqCst);
    });
}

/// A full fence, also in every other thread that is looking.
pub fn barrier() {
    ask_for_barrier();
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
