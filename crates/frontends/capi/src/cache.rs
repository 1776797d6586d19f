//! The cache that this process is attached to; `library.rs` opens it for the first call that needs it.

#![expect(unsafe_code, reason = "a lock that another function lets go")]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use cachedfs::Instance;
use parking_lot::Mutex;

use crate::api_error::{self, ApiError, ApiResult};
use crate::config;

static INSTANCE: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// Returns the cache if it is open.
pub fn opened() -> Option<Arc<Instance>> {
    INSTANCE.lock().clone()
}

/// Opens the configured cache unless it is open already.
pub fn open() -> ApiResult<Arc<Instance>> {
    let mut instance = INSTANCE.lock();
    if let Some(instance) = &*instance {
        return Ok(Arc::clone(instance));
    }
    let opened = stack::open_cache(&config::defaults().cache)?;
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
