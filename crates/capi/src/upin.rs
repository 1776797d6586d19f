//! Pages of the cache lent to the program where they are: no copy.
#![expect(unsafe_code, reason = "called by C")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use cachedfs::{File, Lent, Pinned};
use hashbrown::HashTable;
use libc::{off_t, ssize_t};
use parking_lot::Mutex;

use crate::edge::answer_of_files as answer;
use crate::fail::{Fail, Outcome};
use crate::memory::store;
use crate::seat;
use crate::transfer::offset_of;
use crate::uopen::with;

/// What an open file has lent, by address. How many there may be is the cache's to say.
///
/// A few of each thread stand in places that other threads look at only if they give back what it was lent; the rest, and copies,
/// in a table.
#[derive(Default)]
pub struct Pins {
    few: OnceLock<Box<[Lane; LANES]>>,
    more: Mutex<HashTable<Pin>>,
}

const LANES: usize = 8;
const FEW: usize = 8;

/// The places of a thread, or of a few.
#[derive(Default)]
#[repr(align(128))]
struct Lane([Place; FEW]);

/// A page lent, or none.
#[derive(Default)]
struct Place {
    /// Where it is; or one of those below.
    address: AtomicUsize,
    at: AtomicU64,
    lent: UnsafeCell<Option<Lent>>,
}

/// Nothing is lent.
const FREE: usize = 0;
/// Somebody is changing the place: `lent` is his alone.
const BUSY: usize = 1;

// SAFETY: `lent` is touched only by who has exchanged the address for `BUSY`, or has the place to himself.
unsafe impl Sync for Place {}

impl Place {
    /// Takes the place for whoever finds this address in it.
    #[inline]
    fn claim(&self, address: usize) -> bool {
        self.address.load(Relaxed) == address && self.address.compare_exchange(address, BUSY, Acquire, Relaxed).is_ok()
    }

    #[inline]
    fn put(&self, at: u64, lent: Lent) -> Result<(), Lent> {
        if !self.claim(FREE) {
            return Err(lent);
        }
        let address = lent.as_ptr().addr();
        self.at.store(at, Relaxed);
        // SAFETY: claimed.
        unsafe { *self.lent.get() = Some(lent) };
        self.address.store(address, Release);
        Ok(())
    }

    #[inline]
    fn take(&self, at: u64, address: usize) -> Option<Lent> {
        if !self.claim(address) {
            return None;
        }
        let is_it = self.at.load(Relaxed) == at;
        // SAFETY: claimed.
        let lent = if is_it { unsafe { (*self.lent.get()).take() } } else { None };
        self.address.store(if is_it { FREE } else { address }, Release);
        lent
    }
}

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
    #[inline]
    fn lane(&self) -> usize {
        seat::number() as usize % LANES
    }

    #[inline]
    fn add(&self, at: u64, lent: Lent) {
        let mut lent = lent;
        for place in &self.few.get_or_init(Box::default)[self.lane()].0 {
            match place.put(at, lent) {
                Ok(()) => return,
                Err(back) => lent = back,
            }
        }
        self.add_more(Pin { at, kept: Kept::Lent(lent) });
    }

    #[inline(never)]
    fn add_more(&self, pin: Pin) {
        self.more.lock().insert_unique(hash(pin.address()), pin, |pin| hash(pin.address()));
    }

    /// Gives back what is there; false: nothing is.
    #[inline]
    fn give_back(&self, file: &File, at: u64, address: usize) -> bool {
        if address <= BUSY {
            return false;
        }
        let mine = self.few.get().and_then(|few| few[self.lane()].0.iter().find_map(|place| place.take(at, address)));
        match mine {
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
        let found = {
            let mut pins = self.more.lock();
            let entry = pins.find_entry(hash(address), |pin| pin.address() == address && pin.at == at).ok();
            entry.map(|entry| entry.remove().0.kept)
        };
        let places = || self.few.get().into_iter().flat_map(|few| few.iter().flat_map(|lane| &lane.0));
        found.or_else(|| places().find_map(|place| place.take(at, address)).map(Kept::Lent))
    }

    /// All of them: nobody uses the file any more.
    pub fn release_all(&mut self, file: &File) {
        for place in self.few.get_mut().into_iter().flat_map(|few| few.iter_mut().flat_map(|lane| &mut lane.0)) {
            if let Some(lent) = place.lent.get_mut().take() {
                file.give_back(lent);
            }
            *place.address.get_mut() = FREE;
        }
        self.more.get_mut().drain().for_each(|pin| pin.kept.give_back(file));
    }
}

#[inline]
fn pin(ufd: c_int, off: off_t, n: usize) -> Outcome<(usize, *const c_void)> {
    let at = offset_of(off)?;
    with(ufd, |open| {
        let file = open.cached().ok_or_else(no_pages)?;
        let Some(lent) = file.lend(at, n)? else { return copied(file, &open.pins, at, n) };
        let lies = (lent.len(), lent.as_ptr().cast());
        open.pins.add(at, lent);
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
    answer(|| {
        let at = offset_of(off)?;
        with(ufd, |open| match open.cached() {
            Some(file) if open.pins.give_back(file, at, p.addr()) => Ok(0),
            _ => Err(not_lent(off)),
        })
    })
}

#[cold]
#[inline(never)]
fn not_lent(off: off_t) -> Fail {
    Fail::new(libc::EINVAL, format!("nothing is lent there of offset {off}: given back before?"))
}
