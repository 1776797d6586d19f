//! Versioned structs: their first field is their size, as the program was compiled.
//!
//! A program compiled with an older header has a smaller struct: missing fields have their defaults. One compiled with a newer header has
//! a larger struct: unknown fields must be 0, otherwise the call fails with E2BIG instead of ignoring them.
#![expect(unsafe_code, reason = "reads and writes structs of the program")]

use std::ffi::{c_int, c_void};

use block::{Params, QueueOptions};

use crate::api_error::{ApiError, ApiResult};
use crate::config::defaults;
use crate::guard::ffi_guard;
use crate::types::*;

/// A struct whose first field is its size.
///
/// # Safety
/// `#[repr(C)]`, with a `usize` first, without padding that matters, every pattern of bytes is a value, and no drop.
pub unsafe trait Versioned: Copy {
    /// Returns the default values.
    fn defaults() -> Self;
}

/// Smaller than any version.
const SIZE_MIN: usize = size_of::<usize>();
/// Larger than any version: the size was never set.
const SIZE_MAX: usize = 1 << 16;

/// Reads the program's fields over the defaults.
///
/// # Safety
/// NULL, or a struct that has as many bytes as its first field says.
pub unsafe fn read<T: Versioned>(options: *const T) -> ApiResult<T> {
    let mut known = T::defaults();
    if options.is_null() {
        return Ok(known);
    }
    // SAFETY: the first field is the size (`Versioned`).
    let size = unsafe { options.cast::<usize>().read() };
    if !(SIZE_MIN..=SIZE_MAX).contains(&size) {
        let what = format!("a struct of {size} bytes: set its size with the ..._init function of its type");
        return Err(ApiError::new(libc::EINVAL, what));
    }
    let ours = size_of::<T>();
    // SAFETY: as many bytes as both have; all patterns are values.
    unsafe { std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut known).cast::<u8>(), size.min(ours)) };
    // SAFETY: the struct has `size` bytes.
    let rest = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) }.get(ours..).unwrap_or(&[]);
    if rest.iter().any(|byte| *byte != 0) {
        let what = format!("an option that this version of the library ({}) does not know", env!("CARGO_PKG_VERSION"));
        return Err(ApiError::new(libc::E2BIG, what));
    }
    Ok(known)
}

/// Fills the program's struct of `size` bytes: common fields, zeroes for the rest, and its size.
///
/// # Safety
/// NULL, or valid for a write of `size` bytes.
pub unsafe fn write<T: Versioned>(place: *mut T, size: usize, value: T) -> ApiResult<i32> {
    if place.is_null() {
        return Err(ApiError::new(libc::EFAULT, "the struct to fill is NULL"));
    }
    if !(SIZE_MIN..=SIZE_MAX).contains(&size) {
        return Err(ApiError::new(libc::EINVAL, format!("a struct of {size} bytes: give its sizeof")));
    }
    // SAFETY: valid for `size` bytes; `value` has as many as are copied.
    unsafe {
        place.cast::<u8>().write_bytes(0, size);
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), place.cast::<u8>(), size.min(size_of::<T>()));
        place.cast::<usize>().write(size);
    }
    Ok(0)
}

// SAFETY: integers alone, `usize` first.
unsafe impl Versioned for nvmed_device_options {
    fn defaults() -> Self {
        let defaults = defaults();
        nvmed_device_options {
            size: size_of::<Self>(),
            buffer_bytes: defaults.buffer_bytes,
            cache_bytes: defaults.params.cache_bytes,
            readahead_bytes: defaults.params.readahead_bytes,
        }
    }
}

// SAFETY: integers alone, `usize` first.
unsafe impl Versioned for nvmed_queue_options {
    fn defaults() -> Self {
        let params = defaults().params;
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = flag(params.device_polled, NVMED_QUEUE_DEVICE_POLLED) | flag(params.kernel_submits, NVMED_QUEUE_KERNEL_SUBMITS);
        nvmed_queue_options {
            size: size_of::<Self>(),
            depth: params.queue_depth,
            flags,
            scheduler: params.get(block::handle::Key::Scheduler) as u32,
            cancel_grace_ms: params.get(block::handle::Key::CancelGraceMs) as u32,
            reset_after_ms: params.get(block::handle::Key::ResetAfterMs) as u32,
            completion: params.get(block::handle::Key::Completion) as u32,
        }
    }
}

// SAFETY: integers alone, `usize` first.
unsafe impl Versioned for nvmed_handle_options {
    fn defaults() -> Self {
        let params = defaults().params;
        nvmed_handle_options {
            size: size_of::<Self>(),
            flags: if params.cached { NVMED_CACHED } else { 0 },
            requests_max: params.requests_max,
            timeout_ms: params.get(block::handle::Key::TimeoutMs) as u32,
            priority_class: params.class.0.into(),
        }
    }
}

// SAFETY: integers and a raw pointer, `usize` first.
unsafe impl Versioned for nvmed_io {
    fn defaults() -> Self {
        nvmed_io { size: size_of::<Self>(), ..nvmed_io::default() }
    }
}

// SAFETY: integers alone, `usize` first.
unsafe impl Versioned for nvmed_info {
    fn defaults() -> Self {
        nvmed_info { size: size_of::<Self>(), ..nvmed_info::default() }
    }
}

/// Returns the parameters of a queue.
pub fn queue_params(options: &nvmed_queue_options) -> ApiResult<Params> {
    use block::handle::Key;
    let known = NVMED_QUEUE_DEDICATED | NVMED_QUEUE_DEVICE_POLLED | NVMED_QUEUE_KERNEL_SUBMITS;
    if options.completion == NVMED_COMPLETION_THREAD && options.flags & NVMED_QUEUE_DEDICATED != 0 {
        let what = "the completion thread serves shared queues: a dedicated one has its own thread alone";
        return Err(ApiError::new(libc::EINVAL, what));
    }
    if options.flags & !known != 0 {
        return Err(ApiError::new(libc::EINVAL, format!("flags {:#x} of a queue: only NVMED_QUEUE_... are known", options.flags)));
    }
    let mut params = defaults().params;
    let depth = if options.depth == 0 { QueueOptions::default().depth } else { options.depth };
    let flag = |flag| u64::from(options.flags & flag != 0);
    for (key, value) in [
        (Key::QueueDepth, depth.into()),
        (Key::Scheduler, options.scheduler.into()),
        (Key::Completion, options.completion.into()),
        (Key::CancelGraceMs, options.cancel_grace_ms.into()),
        (Key::ResetAfterMs, options.reset_after_ms.into()),
        (Key::DevicePolled, flag(NVMED_QUEUE_DEVICE_POLLED)),
        (Key::KernelSubmits, flag(NVMED_QUEUE_KERNEL_SUBMITS)),
    ] {
        params.set(key, value).map_err(|error| ApiError::new(libc::EINVAL, error))?;
    }
    Ok(params)
}

/// Fills a struct nvmed_device_options with defaults. Thread-safe.
///
/// `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `options` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_device_options_init(options: *mut nvmed_device_options, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { write(options, size, Versioned::defaults()) })
}

/// Fills a struct nvmed_queue_options with defaults. Thread-safe.
///
/// `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `options` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_queue_options_init(options: *mut nvmed_queue_options, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { write(options, size, Versioned::defaults()) })
}

/// Fills a struct nvmed_handle_options with defaults. Thread-safe.
///
/// `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `options` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_handle_options_init(options: *mut nvmed_handle_options, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { write(options, size, Versioned::defaults()) })
}

/// Fills a struct nvmed_io with zeroes and its size. Thread-safe.
///
/// `size` is sizeof *io. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `io` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_io_init(io: *mut nvmed_io, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { write(io, size, Versioned::defaults()) })
}

/// Fills an NVMED_AIO_CTX with zeroes and its size. Thread-safe.
///
/// `size` is sizeof *context. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `context` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_aio_ctx_init(context: *mut NVMED_AIO_CTX, size: usize) -> c_int {
    ffi_guard(|| {
        if context.is_null() || size < size_of::<NVMED_AIO_CTX>() {
            return Err(ApiError::new(libc::EINVAL, format!("a context of {size} bytes: give its sizeof")));
        }
        // SAFETY: the caller's promise.
        unsafe {
            context.cast::<c_void>().cast::<u8>().write_bytes(0, size);
            (&raw mut (*context).size).write(size);
        }
        Ok(0)
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[repr(C)]
    struct Newer {
        options: nvmed_queue_options,
        more: u64,
    }

    #[test]
    fn older_and_newer_programs_are_understood() {
        let mut options = nvmed_queue_options::defaults();
        options.depth = 8;
        options.scheduler = 3;
        // An older program, whose struct ended after the depth.
        options.size = 12;
        // SAFETY: the struct has more bytes than its size says.
        let read = |options: *const nvmed_queue_options| unsafe { super::read(options) };
        let older = read(&options).expect("understood");
        assert_eq!((older.depth, older.scheduler), (8, 0));
        let mut newer = Newer { options, more: 0 };
        newer.options.size = size_of::<Newer>();
        assert_eq!(read((&raw const newer).cast()).expect("understood").scheduler, 3);
        newer.more = 1;
        assert_eq!(read((&raw const newer).cast()).err().map(|fail| fail.errno), Some(libc::E2BIG));
        newer.options.size = 0;
        assert_eq!(read((&raw const newer).cast()).err().map(|fail| fail.errno), Some(libc::EINVAL));
        assert_eq!(read(std::ptr::null()).expect("defaults").depth, 128);
    }

    #[test]
    fn no_more_is_written_than_there_is() {
        let mut newer = Newer { options: nvmed_queue_options::default(), more: 7 };
        // SAFETY: the sizes are those of the structs.
        unsafe { write(&raw mut newer.options, size_of::<nvmed_queue_options>(), Versioned::defaults()) }.expect("filled");
        assert_eq!((newer.options.depth, newer.more), (128, 7));
        // SAFETY: as above.
        unsafe { write((&raw mut newer).cast::<nvmed_queue_options>(), size_of::<Newer>(), Versioned::defaults()) }.expect("filled");
        assert_eq!((newer.options.size, newer.more), (size_of::<Newer>(), 0));
    }
}
