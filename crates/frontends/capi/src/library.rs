//! The library itself: initialisation, shutdown, the last error, and the table of all objects.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use parking_lot::Mutex;

use crate::api_error::{self, ApiError, ApiResult};
use crate::config::{self, Defaults};
use crate::device::Device;
use crate::guard::guard_files;
use crate::handle::Handle;
use crate::memory;
use crate::ndir::NDir;
use crate::nfd;
use crate::nmount::Mount;
use crate::nrequests::Aio;
use crate::ntx::Tx;
use crate::queue::Queue;
use crate::table::{LookupError, Table, TableGuard};
use crate::udir::Dir;
use crate::urequests::Requests;
use crate::{cache, fork, uopen};

/// The objects behind opaque pointers.
pub enum ApiObject {
    Device(Arc<Device>),
    Queue(Arc<Queue>),
    Handle(Arc<Handle>),
    Requests(Arc<Requests>),
    Dir(Arc<Dir>),
    Mount(Arc<Mount>),
    NAio(Arc<Aio>),
    NDir(Arc<NDir>),
    Tx(Arc<Tx>),
}

static OBJECTS: Table<ApiObject> = Table::new();

/// Adds an object to the table and returns its opaque pointer.
pub fn enroll<P>(object: ApiObject) -> ApiResult<*mut P> {
    let full = |_| ApiError::new(libc::EMFILE, "too many devices, queues, handles, directories and file systems are open: close some");
    OBJECTS.insert(object).map(std::ptr::without_provenance_mut).map_err(full)
}

/// A type of objects in the table.
pub trait HandleKind: Sized {
    /// Name of the type in messages.
    const NAME: &'static str;
    /// Returns the object if it has this type.
    fn of(object: &ApiObject) -> Option<&Arc<Self>>;
    /// Returns whether a call panicked inside, here or in a shared part: the object can only be closed.
    fn is_broken(&self) -> bool {
        false
    }
    /// Marks the object as broken after a panic.
    fn break_down(&self) {}
}

/// Marks an object as broken if its call panics.
struct PanicGuard<'a, K: HandleKind>(&'a K);

impl<K: HandleKind> Drop for PanicGuard<'_, K> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_down();
        }
    }
}

fn refused<K: HandleKind>(number: usize, refused: LookupError) -> ApiError {
    match refused {
        LookupError::Unknown if number == 0 => ApiError::new(libc::EBADF, format!("NULL is no {}: was its opening checked?", K::NAME)),
        LookupError::Unknown => ApiError::new(libc::EBADF, format!("no such {}: closed already?", K::NAME)),
        LookupError::Poisoned => ApiError::new(libc::EIO, format!("an earlier call failed inside this {}: it can only be closed", K::NAME)),
    }
}

fn kind<K: HandleKind>(object: &ApiObject) -> ApiResult<&Arc<K>> {
    K::of(object).ok_or_else(|| ApiError::new(libc::EBADF, format!("this pointer is no {}", K::NAME)))
}

/// Calls a method of the object behind an opaque pointer.
pub fn with<K: HandleKind, P, T>(pointer: *const P, call: impl FnOnce(&Arc<K>) -> ApiResult<T>) -> ApiResult<T> {
    let inside = OBJECTS.enter(pointer.addr()).map_err(|why| refused::<K>(pointer.addr(), why))?;
    let object = kind::<K>(&inside)?;
    if object.is_broken() {
        return Err(refused::<K>(pointer.addr(), LookupError::Poisoned));
    }
    let _watch = PanicGuard(&**object);
    call(object)
}

/// Closes an object. `agree` may refuse; after that no call can reach it.
pub fn end<K: HandleKind, P>(
    pointer: *const P,
    agree: impl FnOnce(&K) -> ApiResult<()>,
    finish: impl FnOnce(&K) -> ApiResult<()>,
) -> ApiResult<i32> {
    let number = pointer.addr();
    {
        let inside = match OBJECTS.enter(number) {
            Err(LookupError::Poisoned) => return drop_poisoned(number),
            entered => entered.map_err(|why| refused::<K>(number, why))?,
        };
        let object = kind::<K>(&inside)?;
        agree(object)?;
        if object.is_broken() {
            drop(inside);
            return drop_poisoned(number);
        }
    }
    let inside = OBJECTS.close(number).map_err(|why| refused::<K>(number, why))?;
    finish(kind(&inside)?).map(|()| 0)
}

/// Drops a poisoned object without flushing; if that panics too, the rest is leaked.
fn drop_poisoned(number: usize) -> ApiResult<i32> {
    let closed: Option<TableGuard<ApiObject>> = OBJECTS.close(number).ok();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(closed)));
    Ok(0)
}

/// The defaults and the file they came from.
static DEFAULTS: Mutex<Option<(Defaults, Option<PathBuf>)>> = Mutex::new(None);
static FIRST: Once = Once::new();

/// Returns the default options; built-in ones before `hs_init`.
pub fn defaults() -> Defaults {
    DEFAULTS.lock().as_ref().map(|(defaults, _)| defaults.clone()).unwrap_or_default()
}

/// Initialises with defaults, as `hs_init(NULL)`, if that has not happened.
pub fn ensure_init() -> ApiResult<()> {
    let started = DEFAULTS.lock().is_some();
    if started { Ok(()) } else { init(None) }
}

fn init(path: Option<PathBuf>) -> ApiResult<()> {
    let path = path.or_else(|| shm::environment::path("HOTSHELF_CONFIG"));
    let read = path.as_deref().map(config::read).transpose()?.unwrap_or_default();
    if DEFAULTS.lock().as_ref().is_some_and(|(now, _)| *now != read) && in_use() {
        return Err(ApiError::new(libc::EBUSY, "devices or files are open with another configuration: hs_shutdown first"));
    }
    *DEFAULTS.lock() = Some((read, path));
    FIRST.call_once(|| {
        fork::watch();
        // SAFETY: the function may run at any exit. Without memory for it the process ends without our flush, as after a kill.
        unsafe { libc::atexit(at_exit) };
    });
    Ok(())
}

fn in_use() -> bool {
    !OBJECTS.open().is_empty() || uopen::any_open() || cache::is_open()
}

extern "C" fn at_exit() {
    if fork::has_files() {
        hs_shutdown();
    }
}

/// File systems are closed after everything open on them.
const LAST: u32 = 8;

/// Closes all objects, handles first. Returns the first error.
fn shutdown() -> ApiResult<i32> {
    let mut first = Ok(0);
    let mut note = |outcome: ApiResult<i32>| {
        if first.is_ok() {
            first = outcome;
        }
    };
    let agree = |_: &Handle| Ok(());
    // In a forked child these belong to the parent.
    let orders = if fork::is_child() { 0..0 } else { 0..LAST + 1 };
    for order in orders {
        if order == LAST {
            note(nfd::close_all().map(|()| 0));
        }
        for number in OBJECTS.open() {
            let pointer: *const u8 = std::ptr::without_provenance(number);
            let here = match OBJECTS.enter(number).as_deref() {
                Ok(ApiObject::Handle(_)) => 0,
                Ok(ApiObject::Queue(_)) => 1,
                Ok(ApiObject::Device(_)) => 2,
                Ok(ApiObject::Requests(_)) => 3,
                Ok(ApiObject::Dir(_)) => 4,
                Ok(ApiObject::NAio(_)) => 5,
                Ok(ApiObject::Tx(_)) => 6,
                Ok(ApiObject::NDir(_)) => 7,
                _ => LAST,
            };
            if here != order {
                continue;
            }
            // A concurrent close has reported its error.
            match order {
                0 => note(end(pointer, agree, Handle::finish)),
                1 => note(end(pointer, |_: &Queue| Ok(()), Queue::finish)),
                2 => note(end(pointer, |_: &Device| Ok(()), Device::finish)),
                3 => note(end(pointer, |_: &Requests| Ok(()), Requests::finish)),
                4 => note(end(pointer, |_: &Dir| Ok(()), Dir::finish)),
                5 => note(end(pointer, |_: &Aio| Ok(()), Aio::finish)),
                6 => note(end(pointer, |_: &Tx| Ok(()), Tx::finish)),
                7 => note(end(pointer, |_: &NDir| Ok(()), NDir::finish)),
                _ => note(Mount::finish(pointer)),
            }
        }
    }
    note(uopen::close_all().map(|()| 0));
    note(cache::leave().map(|()| 0));
    *DEFAULTS.lock() = None;
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
        let (path, to) = unsafe { (uopen::path(path)?, uopen::path(to)?) };
        cache::instance()?.export(path, to)?;
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
    guard_files(|| cache::instance()?.discard(unsafe { uopen::path(path) }?).map(|()| 0).map_err(ApiError::from))
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
    guard_files(|| cache::instance()?.force(unsafe { uopen::path(path) }?).map(|()| 0).map_err(ApiError::from))
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
