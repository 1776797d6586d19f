//! Conversion of the program's pointers to bytes; nothing else does that.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::iovec;

use crate::api_error::{ApiError, ApiResult};

/// Memory of the program, for the duration of a call or a request.
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
    /// `address` is valid for reads (of a write) or writes (of a read) of `bytes`, until the call returned or the request completed, and
    /// no other thread accesses those bytes meanwhile in a data race.
    #[inline]
    pub unsafe fn new(address: *mut c_void, bytes: usize) -> ApiResult<Memory> {
        // SAFETY: the caller's promise.
        unsafe { Memory::checked(address, bytes) }.ok_or_else(|| no_memory(bytes))
    }

    /// Checks an address and a length. `None`: there is no such memory.
    ///
    /// # Safety
    /// As `new`.
    #[inline]
    pub unsafe fn checked(address: *mut c_void, bytes: usize) -> Option<Memory> {
        let is_none = bytes > isize::MAX as usize || (address.is_null() && bytes > 0);
        (!is_none).then_some(Memory { address: address.cast(), bytes })
    }

    /// The memory of a request without data.
    pub const NONE: Memory = Memory { address: std::ptr::null_mut(), bytes: 0 };

    /// Returns the address of the first byte.
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns `bytes` of it, starting at `from`.
    pub fn part(&self, from: usize, bytes: usize) -> Memory {
        assert!(from <= self.bytes && bytes <= self.bytes - from, "{bytes} bytes at {from} of {}", self.bytes);
        // A length of 0 may go with NULL.
        Memory { address: self.address.wrapping_add(from), bytes }
    }

    /// Calls with the bytes for reading.
    #[inline]
    pub fn with<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        if self.bytes == 0 {
            return look(&[]);
        }
        // SAFETY: valid for reads as `new` was promised, for this call.
        look(unsafe { std::slice::from_raw_parts(self.address, self.bytes) })
    }

    /// Calls with the bytes for writing. `fill` only writes them: they may be uninitialised.
    #[inline]
    pub fn with_mut<T>(&self, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        if self.bytes == 0 {
            return fill(&mut []);
        }
        // SAFETY: valid for writes as `new` was promised, for this call; nobody else uses them. `u8` has no wrong values, and
        // memory that C programs hand over is not undefined to us: it came from outside what the compiler sees.
        fill(unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) })
    }
}

/// The error for NULL or an impossible range.
#[cold]
#[inline(never)]
fn no_memory(bytes: usize) -> ApiError {
    // As in the kernel: a longer range cannot be counted by ssize_t.
    if bytes > isize::MAX as usize {
        return ApiError::new(libc::EINVAL, format!("a length of {bytes} bytes is more than memory can have"));
    }
    ApiError::new(libc::EFAULT, "the memory of the request is NULL")
}

/// For a read that continues after the call: the bytes belong to the library until it is reaped.
impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `with_mut`, for as long as the request is not reported.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

/// For a write that continues after the call.
impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: as in `with`, for as long as the request is not reported.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }
}

/// Reads a string of the program.
///
/// # Safety
/// NULL, or a string that ends with a zero byte and does not change during the call.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> ApiResult<&'a str> {
    // SAFETY: the caller's promise.
    let string = unsafe { bytes(string, what) }?;
    std::str::from_utf8(string)
        .map_err(|_| ApiError::new(libc::EINVAL, format!("{what} is not UTF-8: {}", String::from_utf8_lossy(string))))
}

/// Reads a string of the program as bytes.
///
/// # Safety
/// As `text`.
pub unsafe fn bytes<'a>(string: *const c_char, what: &str) -> ApiResult<&'a [u8]> {
    if string.is_null() {
        return Err(ApiError::new(libc::EFAULT, format!("{what} is NULL")));
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// Maximum number of parts of a vectored call, as in the kernel.
const PARTS_MAX: usize = 1024;
/// Up to this number no allocation is needed.
const PARTS_FEW: usize = 16;

/// Returns the parts of a vectored call, each checked.
///
/// # Safety
/// `iov` has `count` elements.
pub unsafe fn parts<'a>(iov: *const iovec, count: c_int) -> ApiResult<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX);
    let count =
        count.ok_or_else(|| ApiError::new(libc::EINVAL, format!("at most {PARTS_MAX} parts of memory, and not fewer than none")))?;
    if count == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return Err(ApiError::new(libc::EFAULT, "the list of parts is NULL"));
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(iov, count) };
    let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len));
    if sum.is_none_or(|sum| sum > isize::MAX as usize) {
        return Err(ApiError::new(libc::EINVAL, "more bytes than memory can have"));
    }
    if parts.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return Err(ApiError::new(libc::EFAULT, "the memory of a part is NULL"));
    }
    Ok(parts)
}

/// Returns the address of a part; an empty part may be NULL.
fn place(part: &iovec) -> *mut u8 {
    if part.iov_len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { part.iov_base.cast() }
}

/// Calls with the parts that a vectored read fills.
///
/// # Safety
/// `iov` has `count` elements, each valid for `Memory::new`.
pub unsafe fn scatter<T>(iov: *const iovec, count: c_int, fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> ApiResult<T>) -> ApiResult<T> {
    // SAFETY: the caller's promise.
    let parts = unsafe { parts(iov, count) }?;
    // SAFETY: valid for writes as promised; `fill` only writes (see `Memory::with_mut`).
    let slice = |part: &iovec| IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(place(part), part.iov_len) });
    if parts.len() > PARTS_FEW {
        return fill(&mut parts.iter().map(slice).collect::<Vec<_>>());
    }
    let mut few = [(); PARTS_FEW].map(|()| IoSliceMut::new(&mut []));
    few.iter_mut().zip(parts).for_each(|(to, part)| *to = slice(part));
    fill(&mut few[..parts.len()])
}

/// Calls with the parts that a vectored write takes.
///
/// # Safety
/// As `scatter`.
pub unsafe fn gather<T>(iov: *const iovec, count: c_int, take: impl FnOnce(&[IoSlice<'_>]) -> ApiResult<T>) -> ApiResult<T> {
    // SAFETY: the caller's promise.
    let parts = unsafe { parts(iov, count) }?;
    // SAFETY: valid for reads as promised.
    let slice = |part: &iovec| IoSlice::new(unsafe { std::slice::from_raw_parts(place(part), part.iov_len) });
    if parts.len() > PARTS_FEW {
        return take(&parts.iter().map(slice).collect::<Vec<_>>());
    }
    let mut few = [IoSlice::new(&[]); PARTS_FEW];
    few.iter_mut().zip(parts).for_each(|(to, part)| *to = slice(part));
    take(&few[..parts.len()])
}

/// Converts an offset of the program; EINVAL if it is negative.
#[inline]
pub fn offset_of(offset: i64) -> ApiResult<u64> {
    if offset < 0 { Err(negative(offset)) } else { Ok(offset as u64) }
}

/// Converts an offset on the fast path.
#[inline(always)]
pub fn fast_path_from(offset: i64) -> Option<u64> {
    u64::try_from(offset).ok()
}

#[cold]
#[inline(never)]
fn negative(offset: i64) -> ApiError {
    ApiError::new(libc::EINVAL, format!("the offset is negative ({offset})"))
}

/// Reads a path of the program.
///
/// # Safety
/// NULL, or a string that does not change during the call.
pub unsafe fn path<'a>(path: *const c_char) -> ApiResult<&'a Path> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(path, "the path") }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Stores a result for the program.
///
/// # Safety
/// NULL, or valid for a write.
pub unsafe fn fill<T>(place: *mut T, what: &str, value: T) -> ApiResult<c_int> {
    if place.is_null() {
        return Err(ApiError::new(libc::EFAULT, format!("{what} is NULL")));
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    unsafe { place.write(value) };
    Ok(0)
}

/// Stores an optional result.
///
/// # Safety
/// NULL, or valid for a write.
pub unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not NULL, the rest is the caller's promise.
        unsafe { place.write(value) }
    }
}
