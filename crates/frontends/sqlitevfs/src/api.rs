//! The functions of SQLite that we call, as whoever loaded us has them.
#![expect(unsafe_code, reason = "calls SQLite's functions through their pointers")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libsqlite3_sys as sys;

/// Pointers into the SQLite that runs.
#[derive(Clone, Copy)]
pub struct Api {
    /// The function `sqlite3_vfs_find` of SQLite.
    pub vfs_find: unsafe extern "C" fn(*const c_char) -> *mut sys::sqlite3_vfs,
    /// The function `sqlite3_vfs_register` of SQLite.
    pub vfs_register: unsafe extern "C" fn(*mut sys::sqlite3_vfs, c_int) -> c_int,
    /// The function `sqlite3_uri_parameter` of SQLite.
    pub uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    /// The function `sqlite3_malloc` of SQLite.
    pub malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    /// The function `sqlite3_log` of SQLite.
    pub log: unsafe extern "C" fn(c_int, *const c_char, ...),
    /// The function `sqlite3_result_text` of SQLite.
    pub result_text: unsafe extern "C" fn(*mut sys::sqlite3_context, *const c_char, c_int, sys::sqlite3_destructor_type),
}

static API: OnceLock<Api> = OnceLock::new();

/// Remembers the functions; the first to call is heard.
pub fn set(api: Api) {
    let _ = API.set(api);
}

/// Returns SQLite's functions. No method of this library runs before [`set`].
pub fn api() -> &'static Api {
    API.get().expect("set when the VFS was registered")
}

/// A line for SQLite's log.
pub fn log(code: c_int, words: &str) {
    let Ok(words) = CString::new(format!("hotshelf: {words}")) else { return };
    // SAFETY: the format takes one string, which ends with a zero and outlives the call.
    unsafe { (api().log)(code, c"%s".as_ptr(), words.as_ptr()) }
}

/// Text in memory that SQLite frees; null if there is none.
pub fn text(words: &str) -> *mut c_char {
    let bytes = words.as_bytes();
    let Ok(room) = c_int::try_from(bytes.len() + 1) else { return std::ptr::null_mut() };
    // SAFETY: sqlite3_malloc takes any number.
    let to = unsafe { (api().malloc)(room) }.cast::<u8>();
    if !to.is_null() {
        // SAFETY: there is room for all bytes and a zero, and it is nobody else's.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            to.add(bytes.len()).write(0);
        }
    }
    to.cast()
}
