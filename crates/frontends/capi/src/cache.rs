//! The cache that this process is attached to, opened by the first call that needs it.

#![expect(unsafe_code, reason = "a lock that another function lets go")]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use cachedfs::Instance;
use parking_lot::Mutex;

use crate::api_error::{self, ApiError, ApiResult};
use crate::library::{defaults, ensure_init};

static INSTANCE: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// Returns the configured cache, and opens it at the first call.
pub fn instance() -> ApiResult<Arc<Instance>> {
    if let Some(instance) = &*INSTANCE.lock() {
        return Ok(Arc::clone(instance));
    }
    ensure_init()?;
    let mut instance = INSTANCE.lock();
    if let Some(instance) = &*instance {
        return Ok(Arc::clone(instance));
    }
    let opened = stack::open_cache(&defaults().cache)?;
    if let Some(why) = opened.without_ssd() {
        // The call succeeds; `hs_error` returns the message.
        api_error::remember(&ApiError::new(libc::EIO, format!("the cache goes on without its SSD: {why}")));
    }
    Ok(Arc::clone(instance.insert(opened)))
}

/// Returns whether the cache is open.
pub fn is_open() -> bool {
    INSTANCE.lock().is_some()
}

/// Detaches the process from the cache.
pub fn leave() -> ApiResult<()> {
    match INSTANCE.lock().take() {
        Some(instance) => instance.detach().map_err(ApiError::from),
        None => Ok(()),
    }
}

/// Locks the cache before a fork: no thread is in the middle of a change.
pub fn hold() {
    let _held = ManuallyDrop::new(INSTANCE.lock());
}

/// Unlocks the cache after a fork, in parent and child.
///
/// # Safety
/// After `hold`, once in each process.
pub unsafe fn let_go() {
    // SAFETY: held since `hold`, by this thread or the one that this is the child of.
    unsafe { INSTANCE.force_unlock() }
}
