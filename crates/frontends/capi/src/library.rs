//! The library itself: initialisation, the cache that it opens, shutdown, and the last error.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use cachedfs::Instance;

use crate::api_error::{self, ApiError, ApiResult};
use crate::guard::guard_files;
use crate::objects::{self, CloseOrder};
use crate::{atfork, cache, config, fork, memory, nfiles, ufiles};

static FIRST: Once = Once::new();

/// Initialises with defaults, as `hs_init(NULL)`, if that has not happened.
pub fn ensure_init() -> ApiResult<()> {
    if config::is_set() { Ok(()) } else { init(None) }
}

/// Returns the configured cache, and opens it at the first call.
pub fn instance() -> ApiResult<Arc<Instance>> {
    match cache::opened() {
        Some(instance) => Ok(instance),
        None => ensure_init().and_then(|()| cache::open()),
    }
}

fn init(path: Option<PathBuf>) -> ApiResult<()> {
    let path = path.or_else(|| shm::environment::path("HOTSHELF_CONFIG"));
    let read = path.as_deref().map(config::read).transpose()?.unwrap_or_default();
    if config::is_set() && config::defaults() != read && in_use() {
        return Err(ApiError::new(libc::EBUSY, "devices or files are open with another configuration: hs_shutdown first"));
    }
    config::set(Some(read));
    FIRST.call_once(|| {
        atfork::watch();
        // SAFETY: the function may run at any exit. Without memory for it the process ends without our flush, as after a kill.
        unsafe { libc::atexit(at_exit) };
    });
    Ok(())
}

fn in_use() -> bool {
    objects::any_open() || ufiles::any_open() || cache::is_open()
}

extern "C" fn at_exit() {
    if fork::has_files() {
        hs_shutdown();
    }
}

/// Closes all objects, handles first. Returns the first error.
fn shutdown() -> ApiResult<i32> {
    let mut first = Ok(0);
    let mut note = |outcome: ApiResult<i32>| {
        if first.is_ok() {
            first = outcome;
        }
    };
    // In a forked child these belong to the parent.
    for order in CloseOrder::ALL.into_iter().filter(|_| !fork::is_child()) {
        if order == CloseOrder::FileSystem {
            note(nfiles::close_all().map(|()| 0));
        }
        objects::close_all(order, &mut note);
    }
    note(ufiles::close_all().map(|()| 0));
    note(cache::leave().map(|()| 0));
    config::set(None);
    first
}

/// Initialises the library. Optional: opening the first device or file calls hs_init(NULL). Thread-safe.
///
/// `config_path`: a TOML file. Its table [cache] configures the cache of the u calls (memory, ssd, mode and more), and its table [library]
/// the defaults of devices (buffer_bytes, and the parameters of nvmed_set_param by name). NULL: the file that $HOTSHELF_CONFIG names,
/// otherwise built-in defaults: one cache for all programs of the user, in a quarter of the memory, at most 1 GiB, without an SSD. Can be
/// called again with other settings only while nothing is open.
///
/// Returns 0, or -1: ENOENT and other errors of open(2); EINVAL (the file is invalid, hs_error says where); EBUSY.
///
/// # Safety
/// `config_path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hs_init(config_path: *const c_char) -> c_int {
    guard_files(|| {
        if config_path.is_null() {
            return init(None).map(|()| 0);
        }
        // SAFETY: the caller's promise.
        let path = unsafe { memory::text(config_path, "config_path") }?;
        init(Some(Path::new(path).to_owned())).map(|()| 0)
    })
}

/// Shuts the library down: flushes cached handles and closes every handle, queue and device; closes every ufd and detaches from the cache
/// (the last program writes dirty data to the backing files). Also runs at exit (not after _exit or a signal). Thread-safe; calls of other
/// threads complete first or fail with EBADF.
///
/// Returns 0, or -1 with the errno of the first flush that failed; everything is closed in any case.
#[unsafe(no_mangle)]
pub extern "C" fn hs_shutdown() -> c_int {
    guard_files(shutdown)
}

/// Copies the cached version of a stranded file to a new file, which is durable on return. A file is stranded if another program changed,
/// moved or removed it while the cache had newer pages of it: calls on it fail with ESTALE, and `hotshelf cache status` lists it. The file
/// and its cached pages do not change. Thread-safe.
///
/// Returns 0, or -1: ENOENT (it is not stranded); EEXIST (`to` exists); errors of open(2) and write(2).
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hs_export(path: *const c_char, to: *const c_char) -> c_int {
    guard_files(|| {
        // SAFETY: the caller's promise.
        let (path, to) = unsafe { (memory::path(path)?, memory::path(to)?) };
        instance()?.export(path, to)?;
        Ok(0)
    })
}

/// Discards the cached version of a stranded file (see hs_export): the file's own content is valid. Thread-safe.
///
/// Returns 0, or -1: ENOENT (it is not stranded).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hs_discard(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    guard_files(|| instance()?.discard(unsafe { memory::path(path) }?).map(|()| 0).map_err(ApiError::from))
}

/// Writes the cached version of a stranded file (see hs_export) over the file: the newer pages and the length. Durable on return.
/// Thread-safe.
///
/// Returns 0, or -1: ENOENT (it is not stranded, or the file cannot be found); errors of write(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hs_force(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    guard_files(|| instance()?.force(unsafe { memory::path(path) }?).map(|()| 0).map_err(ApiError::from))
}

/// Returns the message of this thread's last error; "" if there was none. The string is valid until the next error of the same thread;
/// successful calls do not change it, with one exception: the call that opens a cache without its SSD, because the SSD failed, says so
/// here. Thread-safe. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn hs_error() -> *const c_char {
    api_error::last()
}

/// Returns the version of the library, such as "0.1.0". Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn hs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
