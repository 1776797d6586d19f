//! Queue quotas of users, which the library does not enforce.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::c_int;
use std::sync::Arc;

use crate::api_error::{ApiError, ApiResult};
use crate::device::Device;
use crate::guard::ffi_guard;
use crate::objects::with;
use crate::types::*;

/// Devices opened by name are protected by the kernel: file permissions are the quota.
fn refused<T>(device: *mut NVMED) -> ApiResult<T> {
    with(device, |device: &Arc<Device>| {
        let name = &device.name;
        let what = format!(
            "{name} is opened directly: the permissions of its file say who may use it; quotas are the broker's (hotshelf queue grant)"
        );
        Err(ApiError::new(libc::ENOTSUP, what))
    })
}

/// Sets how many queues a user may have. The broker enforces quotas (hotshelf queue grant); a device that a program opens by itself has
/// none. Thread-safe.
///
/// Returns -1: EBADF; ENOTSUP (a device without quotas).
///
/// # Safety
/// `max` and `used` are NULL or valid for a write; they are not changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_set_user_quota(device: *mut NVMED, uid: libc::uid_t, queues: u32, max: *mut u32, used: *mut u32) -> c_int {
    let _ = (uid, queues, max, used);
    ffi_guard(|| refused(device))
}

/// Returns how many queues a user may have (`max`) and has (`used`). See nvmed_set_user_quota. Thread-safe.
///
/// Returns -1: EBADF; ENOTSUP (a device without quotas).
///
/// # Safety
/// `max` and `used` are NULL or valid for a write; they are not changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_get_user_quota(device: *mut NVMED, uid: libc::uid_t, max: *mut u32, used: *mut u32) -> c_int {
    let _ = (uid, max, used);
    ffi_guard(|| refused(device))
}
