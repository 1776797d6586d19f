//! The boundary to SQLite: outcomes become its codes, and no panic passes.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libsqlite3_sys as sys;

use crate::api;
use crate::error::{Outcome, VfsError, remember};

/// Runs the work of one call and returns SQLite's code for its outcome. Failures go to SQLite's log; a panic becomes a failure.
pub fn ffi_guard(work: impl FnOnce() -> Outcome<()>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(VfsError::new(sys::SQLITE_INTERNAL, format!("a mistake inside hotshelf ({}): please report it", said.unwrap_or("no words"))))
    });
    let Err(fault) = outcome else { return sys::SQLITE_OK };
    if !fault.words.is_empty() {
        remember(&fault);
        api::log(fault.code, &fault.words);
    }
    fault.code
}
