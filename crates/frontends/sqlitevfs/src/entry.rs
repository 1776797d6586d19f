//! What SQLite calls when it loads us.
#![expect(unsafe_code, reason = "a C function with SQLite's pointers")]

use std::ffi::{c_char, c_int};

use libsqlite3_sys as sys;

use crate::api::{Api, api, text};
use crate::{error, vfs};

/// URI parameters are found from any name since then.
const OLDEST: c_int = 3_031_000;

/// `.load libhotshelf_sqlite`: SQLite looks for this name first.
///
/// # Safety
/// As sqlite3_load_extension calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    database: *mut sys::sqlite3,
    error: *mut *mut c_char,
    routines: *const sys::sqlite3_api_routines,
) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { load(database, routines) } {
        // What was registered lives longer than the connection.
        Ok(()) => sys::SQLITE_OK_LOAD_PERMANENTLY,
        Err(words) => {
            if !error.is_null() && !words.is_empty() {
                // SAFETY: a place for text that SQLite frees.
                unsafe { *error = text(words) };
            }
            sys::SQLITE_ERROR
        }
    }
}

/// A function of SQLite by its field; those in use are in every version since [`OLDEST`].
macro_rules! routine {
    ($routines:ident, $field:ident) => {
        // SAFETY: the field lies within the structure of any version that we accept.
        unsafe { (&raw const (*$routines).$field).read() }.ok_or("SQLite lacks a function")?
    };
}

/// # Safety
/// As [`sqlite3_extension_init`].
unsafe fn load(database: *mut sys::sqlite3, routines: *const sys::sqlite3_api_routines) -> Result<(), &'static str> {
    let version = routine!(routines, libversion_number);
    // SAFETY: it only tells a number.
    if unsafe { version() } < OLDEST {
        return Err("");
    }
    let api = Api {
        vfs_find: routine!(routines, vfs_find),
        vfs_register: routine!(routines, vfs_register),
        uri_parameter: routine!(routines, uri_parameter),
        malloc: routine!(routines, malloc),
        log: routine!(routines, log),
        result_text: routine!(routines, result_text),
    };
    vfs::register(api).map_err(|_| "the VFS is refused")?;
    // SAFETY: the function is as SQLite calls it: a connection, a place for an error, the routines; it wants another type for it.
    let function = unsafe { std::mem::transmute::<Entry, unsafe extern "C" fn()>(sqlite3_hotshelf_functions) };
    let for_each_connection = routine!(routines, auto_extension);
    // SAFETY: the function stays: the library is not unloaded.
    unsafe { for_each_connection(Some(function)) };
    // SAFETY: as the caller says.
    unsafe { add_functions(database, routines) }
}

type Entry = unsafe extern "C" fn(*mut sys::sqlite3, *mut *mut c_char, *const sys::sqlite3_api_routines) -> c_int;

/// Called for each new connection, also one that was to a database that cannot be opened.
unsafe extern "C" fn sqlite3_hotshelf_functions(
    database: *mut sys::sqlite3,
    _: *mut *mut c_char,
    routines: *const sys::sqlite3_api_routines,
) -> c_int {
    // SAFETY: as SQLite calls it.
    if unsafe { add_functions(database, routines) }.is_ok() { sys::SQLITE_OK } else { sys::SQLITE_ERROR }
}

/// `hotshelf_error()`: the words of the last failure.
///
/// # Safety
/// A connection, and SQLite's routines.
unsafe fn add_functions(database: *mut sys::sqlite3, routines: *const sys::sqlite3_api_routines) -> Result<(), &'static str> {
    let create = routine!(routines, create_function);
    let none = std::ptr::null_mut();
    // SAFETY: a connection that is open, and a function that stays.
    let code = unsafe { create(database, c"hotshelf_error".as_ptr(), 0, sys::SQLITE_UTF8, none, Some(hotshelf_error), None, None) };
    if code == sys::SQLITE_OK { Ok(()) } else { Err("a function is refused") }
}

unsafe extern "C" fn hotshelf_error(context: *mut sys::sqlite3_context, _: c_int, _: *mut *mut sys::sqlite3_value) {
    let words = error::last();
    let len = c_int::try_from(words.len()).unwrap_or(0);
    // SAFETY: an SQL call of this library, and text of so many bytes, which SQLite copies.
    unsafe { (api().result_text)(context, words.as_ptr().cast(), len, sys::SQLITE_TRANSIENT()) }
}
