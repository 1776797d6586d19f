//! The cache that this process takes part in: opened by the first call that needs it.

#![expect(unsafe_code, reason = "a lock that another function lets go")]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use cachedfs::Instance;
use parking_lot::Mutex;

use crate::api_error::{self, ApiError, ApiResult};
use crate::library::{defaults, ensure_init};

static INSTANCE: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// As the configuration has it.
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
        // No call fails of it, and whoever asks for the sentence finds it.
        api_error::remember(&ApiError::new(libc::EIO, format!("the cache goes on without its SSD: {why}")));
    }
    Ok(Arc::clone(instance.insert(opened)))
}

/// Whether it was opened.
pub fn is_open() -> bool {
    INSTANCE.lock().is_some()
}

/// Takes no part any more.
pub fn leave() -> ApiResult<()> {
    match INSTANCE.lock().take() {
        Some(instance) => instance.detach().map_err(ApiError::from),
        None => Ok(()),
    }
}

/// Before a fork: nobody is in the middle of a change.
pub fn hold() {
    let _held = ManuallyDrop::new(INSTANCE.lock());
}

/// After a fork, in both.
///
/// # Safety
/// After `hold`, once in each process.
pub unsafe fn let_go() {
    // SAFETY: held since `hold`, by this thread or the one that this is the child of.
    unsafe { INSTANCE.force_unlock() }
}
