//! Parameters by key, and NVMeDirect's features.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use block::handle::{Key, ParamError};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::handle::Handle;
use crate::memory::{self, store};
use crate::objects::with;
use crate::types::*;

fn failure(error: ParamError) -> ApiError {
    let errno = match error {
        ParamError::Unknown => libc::ENOENT,
        ParamError::Value { .. } => libc::EINVAL,
        ParamError::Fixed(_) => libc::EBUSY,
    };
    ApiError::new(errno, error)
}

fn get(handle: &Handle, key: Key) -> ApiResult<u64> {
    match key {
        Key::Cached => Ok(handle.is(NVMED_CACHED).into()),
        Key::Synchronous if handle.is(NVMED_CACHED) => Ok(handle.is(NVMED_SYNC).into()),
        Key::Synchronous => Ok((!handle.is(NVMED_ASYNC)).into()),
        Key::CacheBytes | Key::ReadaheadBytes => Ok(handle.device.params.lock().get(key)),
        key => handle.engine.get(key),
    }
}

fn set(handle: &Handle, key: Key, value: u64) -> ApiResult<()> {
    match key {
        Key::ReadaheadBytes if handle.device.cache_in_use().is_none() => handle.device.params.lock().set(key, value).map_err(failure),
        Key::ReadaheadBytes if get(handle, key)? == value => Ok(()),
        Key::ReadaheadBytes | Key::CacheBytes => Err(failure(ParamError::Fixed(key))),
        key => {
            handle.engine.set(key, value)?.map_err(failure)?;
            match (key, value) {
                (Key::Cached, 1) => {
                    handle.cached()?;
                    handle.set_modes(NVMED_CACHED, 0);
                }
                (Key::Cached, _) => handle.set_modes(0, NVMED_CACHED),
                (Key::Synchronous, 1) => handle.set_modes(NVMED_SYNC, NVMED_ASYNC),
                (Key::Synchronous, _) => handle.set_modes(NVMED_ASYNC, NVMED_SYNC),
                _ => {}
            }
            Ok(())
        }
    }
}

/// Returns the number of a parameter (NVMED_PARAM_...) by its name, such as "timeout_ms". Thread-safe.
///
/// Returns the number, or -1: ENOENT (no such parameter), EFAULT (NULL).
///
/// # Safety
/// `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_param_by_name(name: *const c_char) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { memory::text(name, "the name of the parameter") }?;
        let key = Key::from_name(name).map_err(|_| ApiError::new(libc::ENOENT, format!("there is no parameter `{name}`")))?;
        Ok(key as i32)
    })
}

/// Sets a parameter of a handle (NVMED_PARAM_...), for requests submitted from now on. Thread-safe, as the handle is.
///
/// Returns 0, or -1: EBADF; ENOENT (no such parameter); EINVAL (no such value); EBUSY (fixed once the queue is open, or the cache
/// in use; or another call is inside a dedicated handle); ENOTSUP (cached, and the device has no cache).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_set_param(handle: *mut NVMED_HANDLE, key: u32, value: u64) -> c_int {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            let key = Key::from_number(key).map_err(|_| ApiError::new(libc::ENOENT, format!("there is no parameter {key}")))?;
            set(handle, key, value).map(|()| 0)
        })
    })
}

/// Returns the value of a parameter of a handle (NVMED_PARAM_...). Thread-safe, as the handle is.
///
/// Returns 0, or -1: EBADF; ENOENT (no such parameter); EFAULT (value is NULL); EBUSY (another call is inside a dedicated handle).
///
/// # Safety
/// `value` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_get_param(handle: *mut NVMED_HANDLE, key: u32, value: *mut u64) -> c_int {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            if value.is_null() {
                return Err(ApiError::new(libc::EFAULT, "value is NULL"));
            }
            let key = Key::from_number(key).map_err(|_| ApiError::new(libc::ENOENT, format!("there is no parameter {key}")))?;
            let found = get(handle, key)?;
            // SAFETY: the caller's promise.
            unsafe { store(value, found) };
            Ok(0)
        })
    })
}

fn no_feature(feature: i32) -> ApiError {
    let known = "HANDLE_DIRECT_IO, HANDLE_SYNC_IO, HANDLE_HINT_DMEM, HANDLE_INTERRUPT";
    ApiError::new(libc::EINVAL, format!("there is no feature {feature} of a handle: {known}"))
}

/// Returns a feature of a handle (NVMeDirect): HANDLE_DIRECT_IO, HANDLE_SYNC_IO, HANDLE_HINT_DMEM, HANDLE_INTERRUPT. Thread-safe, as the
/// handle is.
///
/// Returns 0 or 1, or -1: EBADF; EINVAL (no such feature); EBUSY (another call is inside a dedicated handle).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_feature_get(handle: *mut NVMED_HANDLE, feature: c_int) -> c_int {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            let value = match feature as u32 {
                HANDLE_DIRECT_IO => !handle.is(NVMED_CACHED),
                HANDLE_SYNC_IO => get(handle, Key::Synchronous)? == 1,
                HANDLE_HINT_DMEM => handle.is(NVMED_ZERO_COPY),
                HANDLE_INTERRUPT => get(handle, Key::Completion)? != 1,
                _ => return Err(no_feature(feature)),
            };
            Ok(value.into())
        })
    })
}

/// Sets one of NVMeDirect's features of a handle to 0 or 1, for requests submitted from now on. Thread-safe, as the handle is.
///
/// Returns 0, or -1: EBADF; EINVAL (no such feature or value); EBUSY (another call is inside a dedicated handle); ENOTSUP (cached, and
/// the device has no cache).
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_handle_feature_set(handle: *mut NVMED_HANDLE, feature: c_int, value: c_int) -> c_int {
    ffi_guard(|| {
        with(handle, |handle: &Arc<Handle>| {
            let value = u64::try_from(value).ok().filter(|value| *value <= 1);
            let value = value.ok_or_else(|| ApiError::new(libc::EINVAL, "a feature is set to 0 or 1"))?;
            match feature as u32 {
                HANDLE_DIRECT_IO => set(handle, Key::Cached, 1 - value)?,
                HANDLE_SYNC_IO => set(handle, Key::Synchronous, value)?,
                HANDLE_HINT_DMEM if value == 1 => handle.set_modes(NVMED_ZERO_COPY, 0),
                HANDLE_HINT_DMEM => handle.set_modes(0, NVMED_ZERO_COPY),
                HANDLE_INTERRUPT => set(handle, Key::Completion, if value == 1 { handle.queue_completion() } else { 1 })?,
                _ => return Err(no_feature(feature)),
            }
            Ok(0)
        })
    })
}
