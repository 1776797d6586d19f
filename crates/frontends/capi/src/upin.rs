//! Pages of the cache lent to the program where they are: no copy.
#![expect(unsafe_code, reason = "called by C")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, compiler_fence};

use cachedfs::{File, Lent, Not, Pinned, Thought};
use hashbrown::HashTable;
use libc::{off_t, ssize_t};
use parking_lot::Mutex;

use crate::edge::{answer_at_once, answer_of_files as answer};
use crate::fail::{Fail, Outcome};
use crate::memory::store;
use crate::seat::{self, Seat};
use crate::transfer::{at_once_from, offset_of};
use crate::uopen::{at_once, with_seat};

/// What an open file has lent, by address. How many there may be is the cache's to say.
///
/// A few of each thread stand in places of its own, which it changes without an atomic exchange: that costs as much as finding the
/// page. Other threads look at them only if they give back what it was lent (see [`seat::Seat::enter`]); the rest, and copies, are in
/// a table.
#[derive(Default)]
pub struct Pins {
    few: OnceLock<Box<[Lane<Lent>; LANES]>>,
    more: Mutex<HashTable<Pin>>,
}

const LANES: usize = 16;
const FEW: usize = 8;
/// Looks at a thread that is inside before it is let go on.
const LOOKS: u32 = 64;

/// The places of the thread that came to them first.
#[repr(align(128))]
struct Lane<T> {
    owner: AtomicPtr<Seat>,
    /// Another thread looks at them, and has the table's lock.
    wanted: AtomicBool,
    places: [Place<T>; FEW],
}

/// A page lent, or none.
struct Place<T> {
    /// Where it is; or one of those below.
    address: AtomicUsize,
    at: AtomicU64,
    /// Means something where there is an address.
    lent: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane { owner: AtomicPtr::default(), wanted: AtomicBool::new(false), places: std::array::from_fn(|_| Place::default()) }
    }
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Place { address: AtomicUsize::new(FREE), at: AtomicU64::new(0), lent: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// Nothing is lent.
const FREE: usize = 0;
/// Its thread was interrupted by a signal while it changed the place.
const BUSY: usize = 1;

// SAFETY: `lent` is touched only by who may change the lane, one thread at a time, and not while it is `BUSY`.
unsafe impl<T: Send> Sync for Place<T> {}

/// The right to change the places of a lane: its thread's own, or another's which has made it wait.
struct Places<'a, T>(&'a [Place<T>; FEW]);

impl<T> Places<'_, T> {
    #[inline]
    fn put(&self, at: u64, address: usize, lent: T) -> Result<(), T> {
        let Some(free) = self.free() else { return Err(lent) };
        free.prepare(at, lent);
        free.show(address);
        Ok(())
    }

    #[inline]
    fn free(&self) -> Option<Free<'_, T>> {
        self.0.iter().find(|place| place.address.load(Relaxed) == FREE).map(Free)
    }

    #[inline]
    fn take(&self, at: u64, address: usize) -> Option<T> {
        let is_it = |place: &&Place<T>| place.address.load(Relaxed) == address && place.at.load(Relaxed) == at;
        let place = self.0.iter().find(is_it)?;
        place.address.store(BUSY, Relaxed);
        compiler_fence(SeqCst);
        // SAFETY: the lane is ours to change, and a signal handler of this thread leaves a busy place alone. There was an address.
        let lent = unsafe { (*place.lent.get()).assume_init_read() };
        place.address.store(FREE, Release);
        Some(lent)
    }
}

/// A place that has nothing: nobody but who has the right to change it looks at more than that.
struct Free<'a, T>(&'a Place<T>);

impl<T> Free<'_, T> {
    /// Puts there what will be lent; it is not, and has no end to be given back, until it is shown.
    #[inline(always)]
    fn prepare(&self, at: u64, lent: T) {
        self.0.at.store(at, Relaxed);
        // SAFETY: the lane is ours to change, and a signal handler of this thread leaves a free place alone.
        unsafe { (*self.0.lent.get()).write(lent) };
    }

    #[inline(always)]
    fn show(self, address: usize) {
        compiler_fence(SeqCst);
        self.0.address.store(address, Release);
    }
}

impl<T> Lane<T> {
    /// For its own thread, unless another one is at it.
    #[inline]
    fn own<R>(&self, mine: &'static Seat, call: impl FnOnce(&Places<'_, T>) -> R) -> Option<R> {
        let ours = std::ptr::from_ref(mine).cast_mut();
        let owner = self.owner.load(Relaxed);
        if owner != ours && !(owner.is_null() && self.owner.compare_exchange(owner, ours, AcqRel, Relaxed).is_ok()) {
            return None;
        }
        let _inside = mine.enter(&self.wanted)?;
        Some(call(&Places(&self.places)))
    }

    /// For any thread, who has the table's lock. Err: its own thread is at it, who may be waiting for that lock.
    fn of_another(&self, at: u64, address: usize) -> Result<Option<T>, Inside> {
        let is_here = || self.places.iter().any(|place| place.address.load(Acquire) == address);
        // SAFETY: seats are never given back.
        let Some(owner) = (unsafe { self.owner.load(Acquire).as_ref() }).filter(|_| is_here()) else { return Ok(None) };
        if seat::mine().is_some_and(|mine| std::ptr::eq(mine, owner)) {
            // It may be inside, if a signal interrupted it there: it is not going on now.
            return Ok(Places(&self.places).take(at, address));
        }
        self.wanted.store(true, SeqCst);
        seat::barrier();
        let is_free = (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            !owner.is_inside()
        });
        let result = if is_free { Ok(Places(&self.places).take(at, address)) } else { Err(Inside) };
        self.wanted.store(false, Release);
        result
    }
}

/// A thread is changing its places.
struct Inside;

struct Pin {
    at: u64,
    kept: Kept,
}

enum Kept {
    Lent(Lent),
    Pinned(Pinned),
}

impl Pin {
    fn address(&self) -> usize {
        match &self.kept {
            Kept::Lent(lent) => lent.as_ptr().addr(),
            Kept::Pinned(pinned) => pinned.as_ptr().addr(),
        }
    }
}

impl Kept {
    fn give_back(self, file: &File) {
        match self {
            Kept::Lent(lent) => file.give_back(lent),
            Kept::Pinned(pinned) => drop(pinned),
        }
    }
}

/// Addresses differ in the middle: pages, and where in them.
fn hash(address: usize) -> u64 {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

impl Pins {
    /// Calls with this thread's places, if it has any and nobody else is at them.
    #[inline]
    fn own<R>(&self, mine: Option<&'static Seat>, call: impl FnOnce(&Places<'_, Lent>) -> R) -> Option<R> {
        let mine = mine?;
        self.few.get_or_init(Box::default)[mine.number() as usize % LANES].own(mine, call)
    }

    /// Likewise, if they are there.
    #[inline(always)]
    fn own_at_once<R>(&self, mine: &'static Seat, call: impl FnOnce(&Places<'_, Lent>) -> Option<R>) -> Result<R, Not> {
        let lanes = self.few.get().ok_or(Not::Done)?;
        lanes[mine.number() as usize % LANES].own(mine, call).flatten().ok_or(Not::Done)
    }

    /// Lends bytes of a page in a place of this thread, if it is the page and there is one; how many. `tell` gets where they are.
    #[inline(always)]
    fn lend_at_once(&self, mine: &'static Seat, page: Thought<'_>, at: u64, n: usize, tell: impl FnOnce(*const u8)) -> Result<usize, Not> {
        self.own_at_once(mine, move |places| {
            let free = places.free()?;
            let len = page.lend(n, |lent| {
                let len = lent.len();
                free.prepare(at, lent);
                len
            })?;
            free.show(page.as_ptr().addr());
            tell(page.as_ptr());
            Some(len)
        })
    }

    /// Gives back what stands in a place of this thread.
    #[inline(always)]
    fn give_back_at_once(&self, mine: &'static Seat, file: &File, at: u64, address: usize) -> Result<(), Not> {
        if address <= BUSY {
            return Err(Not::Done);
        }
        let lent = self.own_at_once(mine, |places| places.take(at, address))?;
        file.give_back(lent);
        Ok(())
    }

    #[inline]
    fn add(&self, mine: Option<&'static Seat>, at: u64, lent: Lent) {
        let mut lent = Some(lent);
        let put = |places: &Places<'_, Lent>| lent = lent.take().and_then(|lent| places.put(at, lent.as_ptr().addr(), lent).err());
        let _ = self.own(mine, put);
        if let Some(lent) = lent {
            self.add_more(Pin { at, kept: Kept::Lent(lent) });
        }
    }

    #[inline(never)]
    fn add_more(&self, pin: Pin) {
        self.more.lock().insert_unique(hash(pin.address()), pin, |pin| hash(pin.address()));
    }

    /// Gives back what is there; false: nothing is.
    #[inline]
    fn give_back(&self, mine: Option<&'static Seat>, file: &File, at: u64, address: usize) -> bool {
        if address <= BUSY {
            return false;
        }
        match self.own(mine, |places| places.take(at, address)).flatten() {
            Some(lent) => file.give_back(lent),
            None => match self.take_elsewhere(at, address) {
                Some(kept) => kept.give_back(file),
                None => return false,
            },
        }
        true
    }

    /// It is one of many, or another thread's.
    #[inline(never)]
    fn take_elsewhere(&self, at: u64, address: usize) -> Option<Kept> {
        loop {
            let mut pins = self.more.lock();
            let entry = pins.find_entry(hash(address), |pin| pin.address() == address && pin.at == at).ok();
            if let Some(entry) = entry {
                return Some(entry.remove().0.kept);
            }
            let mut is_inside = false;
            for lane in self.few.get().into_iter().flat_map(|few| few.iter()) {
                match lane.of_another(at, address) {
                    Ok(Some(lent)) => return Some(Kept::Lent(lent)),
                    Ok(None) => {}
                    Err(Inside) => is_inside = true,
                }
            }
            drop(pins);
            if !is_inside {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// All of them: nobody uses the file any more.
    pub fn release_all(&mut self, file: &File) {
        for place in self.few.get_mut().into_iter().flat_map(|few| few.iter_mut().flat_map(|lane| &mut lane.places)) {
            if *place.address.get_mut() > BUSY {
                *place.address.get_mut() = FREE;
                // SAFETY: there was an address, and nobody else looks at the place any more.
                file.give_back(unsafe { place.lent.get_mut().assume_init_read() });
            }
        }
        self.more.get_mut().drain().for_each(|pin| pin.kept.give_back(file));
    }
}

#[inline]
fn pin(ufd: c_int, off: off_t, n: usize) -> Outcome<(usize, *const c_void)> {
    let at = offset_of(off)?;
    with_seat(ufd, move |open, seat| {
        let file = open.cached().ok_or_else(no_pages)?;
        let Some(lent) = file.lend(at, n)? else { return copied(file, &open.pins, at, n) };
        let lies = (lent.len(), lent.as_ptr().cast());
        open.pins.add(seat, at, lent);
        Ok(lies)
    })
}

#[cold]
#[inline(never)]
fn no_pages() -> Fail {
    Fail::new(libc::ESPIPE, "a stream has no pages")
}

/// Of what is not cached; or there is nothing at the end of the file.
#[inline(never)]
fn copied(file: &File, pins: &Pins, at: u64, n: usize) -> Outcome<(usize, *const c_void)> {
    let pinned = file.pin(at, n)?;
    let (bytes, address) = (pinned.len(), pinned.as_ptr().cast());
    if bytes == 0 {
        return Ok((0, std::ptr::null()));
    }
    pins.add_more(Pin { at, kept: Kept::Pinned(pinned) });
    Ok((bytes, address))
}

/// Lends bytes of a file where the cache has them, without a copy: up to `n` from `off` on, at most to the end of their page of 4096
/// bytes and of the file. They stay there until uunpin, or until the last ufd of the file is closed, and are only to be read; what
/// others write to the file meanwhile is seen in them. Where there is no page to lend (what is not cached) they are a copy. Thread-safe.
///
/// Returns how many bytes are at *p; 0 at the end of the file (*p is NULL, nothing is to be given back); or -1: those of upread;
/// EFAULT (p is NULL); ENOBUFS (too many pages are lent).
///
/// # Safety
/// `p` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upin(ufd: c_int, off: off_t, n: usize, p: *mut *const c_void) -> ssize_t {
    // SAFETY: the caller's promise.
    answer_at_once(|| unsafe { pin_at_once::<false>(ufd, off, n, p) }, |not| unsafe { pin_otherwise(not, ufd, off, n, p) })
}

#[inline(always)]
unsafe fn pin_at_once<const BY_INDEX: bool>(ufd: c_int, off: off_t, n: usize, p: *mut *const c_void) -> Result<ssize_t, Not> {
    let at = at_once_from(off)?;
    if p.is_null() {
        return Err(Not::Done);
    }
    // SAFETY: the caller's promise.
    let tell = |address: *const u8| unsafe { store(p, address.cast()) };
    let lent = at_once(ufd, |open, file, seat| open.pins.lend_at_once(seat, file.think::<BY_INDEX>(at)?, at, n, tell));
    lent.map(|bytes| bytes as ssize_t)
}

#[inline(never)]
unsafe fn pin_otherwise(not: Not, ufd: c_int, off: off_t, n: usize, p: *mut *const c_void) -> ssize_t {
    // SAFETY: the caller's promise.
    let by_index = || if not == Not::Guessed { unsafe { pin_at_once::<true>(ufd, off, n, p) } } else { Err(not) };
    // SAFETY: likewise.
    answer_at_once(by_index, |_| unsafe { pin_slowly(ufd, off, n, p) })
}

#[inline(never)]
unsafe fn pin_slowly(ufd: c_int, off: off_t, n: usize, p: *mut *const c_void) -> ssize_t {
    answer(|| {
        if p.is_null() {
            return Err(Fail::new(libc::EFAULT, "there is no place for the address"));
        }
        let (bytes, address) = pin(ufd, off, n)?;
        // SAFETY: the caller's promise.
        unsafe { store(p, address) };
        Ok(bytes as isize)
    })
}

/// Gives back what upin lent, of the same offset. Thread-safe.
///
/// Returns 0, or -1: EBADF; EINVAL (it is not lent, or not at that offset).
#[unsafe(no_mangle)]
pub extern "C" fn uunpin(ufd: c_int, off: off_t, p: *const c_void) -> c_int {
    let given_back = || {
        let at = at_once_from(off)?;
        at_once(ufd, |open, file, seat| open.pins.give_back_at_once(seat, file, at, p.addr())).map(|()| 0)
    };
    answer_at_once(given_back, |_| unpin_slowly(ufd, off, p))
}

#[inline(never)]
fn unpin_slowly(ufd: c_int, off: off_t, p: *const c_void) -> c_int {
    let given_back: isize = answer(|| {
        let at = offset_of(off)?;
        let address = p.addr();
        with_seat(ufd, move |open, seat| match open.cached() {
            Some(file) if open.pins.give_back(seat, file, at, address) => Ok(0),
            _ => Err(not_lent(off)),
        })
    });
    given_back as c_int
}

#[cold]
#[inline(never)]
fn not_lent(off: off_t) -> Fail {
    Fail::new(libc::EINVAL, format!("nothing is lent there of offset {off}: given back before?"))
}

#[cfg(test)]
mod test {
    use super::*;

    /// The owner lends and takes back, others give back for it: each page once, and none is left over.
    #[test]
    fn what_a_thread_was_lent_is_given_back_once_whoever_does_it() {
        static OPEN: crate::ufd::Ufds<u8> = crate::ufd::Ufds::new();
        static TAKEN: [AtomicU64; ROUNDS] = [const { AtomicU64::new(0) }; ROUNDS];
        const ROUNDS: usize = if cfg!(miri) { 200 } else { 2000 };
        let ufd = OPEN.insert(std::sync::Arc::new(0), 0).expect("room");
        let (lane, more, next) = (Lane::<usize>::default(), Mutex::new(()), AtomicUsize::new(0));
        let take = |n: usize| {
            let _held = more.lock();
            lane.of_another(n as u64, n + 2)
        };
        let count = |taken: Option<usize>| taken.inspect(|n| _ = TAKEN[*n].fetch_add(1, Relaxed)).is_some();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A look gives this thread its seat.
                OPEN.with(ufd, |_| ());
                let own = |call: &dyn Fn(&Places<'_, usize>) -> bool| lane.own(seat::mine().expect("a seat"), |places| call(places));
                for n in 0..ROUNDS {
                    while own(&|places| places.put(n as u64, n + 2, n).is_ok()) != Some(true) {
                        std::thread::yield_now();
                    }
                    next.store(n + 1, Release);
                    if n % 3 == 0 {
                        own(&|places| count(places.take(n as u64, n + 2)));
                    }
                }
                next.store(usize::MAX, Release);
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut from = 0;
                    loop {
                        let to = next.load(Acquire);
                        for n in from..to.min(ROUNDS) {
                            while let Err(Inside) = take(n).map(count) {
                                std::thread::yield_now();
                            }
                        }
                        if to == usize::MAX {
                            return;
                        }
                        from = to;
                    }
                });
            }
        });
        assert!(TAKEN.iter().all(|taken| taken.load(Relaxed) == 1), "lost, or given back twice");
        assert!(lane.places.iter().all(|place| place.address.load(Relaxed) == FREE));
    }
}
