//! Where the program's pointers become bytes: the only place.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::ffi::{CStr, c_char, c_void};

use crate::fail::{Fail, Outcome};

/// Memory of the program, for the time of a call or of a request.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address and a length; what is done with the bytes is said at each function, and the program has promised
// (hotshelf.h) to leave them alone meanwhile, whatever thread it is.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    /// `address` is valid for reads (of a write) or writes (of a read) of `bytes`, until the call has returned or the request
    /// was reported, and nobody else uses those bytes meanwhile in a way that C calls a data race.
    pub unsafe fn new(address: *mut c_void, bytes: usize) -> Outcome<Memory> {
        // As for every call of the kernel: what is longer cannot be counted by ssize_t.
        if bytes > isize::MAX as usize {
            return Err(Fail::new(libc::EINVAL, format!("a length of {bytes} bytes is more than memory can have")));
        }
        if address.is_null() && bytes > 0 {
            return Err(Fail::new(libc::EFAULT, "the memory of the request is NULL"));
        }
        Ok(Memory { address: address.cast(), bytes })
    }

    /// Of a request without data.
    pub const NONE: Memory = Memory { address: std::ptr::null_mut(), bytes: 0 };

    pub fn address(&self) -> *const u8 {
        self.address
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    /// `bytes` of it from `from` on.
    pub fn part(&self, from: usize, bytes: usize) -> Memory {
        assert!(from <= self.bytes && bytes <= self.bytes - from, "{bytes} bytes at {from} of {}", self.bytes);
        // A length of 0 may go with NULL.
        Memory { address: self.address.wrapping_add(from), bytes }
    }

    /// As bytes that are read.
    pub fn with<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        if self.bytes == 0 {
            return look(&[]);
        }
        // SAFETY: valid for reads as `new` was promised, for this call.
        look(unsafe { std::slice::from_raw_parts(self.address, self.bytes) })
    }

    /// As bytes that are written. `fill` only writes them: they may not have been written ever.
    pub fn with_mut<T>(&self, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        if self.bytes == 0 {
            return fill(&mut []);
        }
        // SAFETY: valid for writes as `new` was promised, for this call; nobody else uses them. `u8` has no wrong values, and
        // memory that C programs hand over is not undefined to us: it came from outside what the compiler sees.
        fill(unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) })
    }
}

/// A string of the program.
///
/// # Safety
/// NULL, or a string that ends with a zero byte and does not change during the call.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> Outcome<&'a str> {
    if string.is_null() {
        return Err(Fail::new(libc::EFAULT, format!("{what} is NULL")));
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    let string = unsafe { CStr::from_ptr(string) };
    string.to_str().map_err(|_| Fail::new(libc::EINVAL, format!("{what} is not UTF-8: {}", string.to_string_lossy())))
}

/// Stores an answer, if it is wanted.
///
/// # Safety
/// NULL, or valid for a write.
pub unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not NULL, the rest is the caller's promise.
        unsafe { place.write(value) }
    }
}
