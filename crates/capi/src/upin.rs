//! Pages of the cache lent to the program where they are: no copy.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_int, c_void};

use cachedfs::Pinned;
use hashbrown::HashTable;
use libc::{off_t, ssize_t};
use parking_lot::Mutex;

use crate::edge::answer_of_files as answer;
use crate::fail::{Fail, Outcome};
use crate::memory::store;
use crate::transfer::offset_of;
use crate::uopen::with;

/// What an open file has lent, by address. How many there may be is the cache's to say.
#[derive(Default)]
pub struct Pins(Mutex<HashTable<Pin>>);

struct Pin {
    at: u64,
    pinned: Pinned,
}

impl Pin {
    fn address(&self) -> usize {
        self.pinned.as_ptr().addr()
    }
}

/// Addresses differ in the middle: pages, and where in them.
fn hash(address: usize) -> u64 {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

impl Pins {
    fn add(&self, pin: Pin) -> *const c_void {
        let address = pin.pinned.as_ptr();
        self.0.lock().insert_unique(hash(address.addr()), pin, |pin| hash(pin.address()));
        address.cast()
    }

    fn take(&self, at: u64, address: usize) -> Option<Pin> {
        let mut pins = self.0.lock();
        let found = pins.find_entry(hash(address), |pin| pin.address() == address && pin.at == at).ok()?;
        Some(found.remove().0)
    }

    pub fn release_all(&self) {
        std::mem::take(&mut *self.0.lock());
    }
}

fn pin(ufd: c_int, off: off_t, n: usize) -> Outcome<(usize, *const c_void)> {
    let at = offset_of(off)?;
    with(ufd, |open| {
        let file = open.cached().ok_or_else(|| Fail::new(libc::ESPIPE, "a stream has no pages"))?;
        let pinned = file.pin(at, n)?;
        let bytes = pinned.len();
        Ok((bytes, if bytes == 0 { std::ptr::null() } else { open.pins.add(Pin { at, pinned }) }))
    })
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
        with(ufd, |open| match open.pins.take(at, p.addr()) {
            Some(_) => Ok(0),
            None => Err(Fail::new(libc::EINVAL, format!("nothing is lent there of offset {off}: given back before?"))),
        })
    })
}
