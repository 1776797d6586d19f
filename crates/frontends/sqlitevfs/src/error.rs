//! What went wrong: a code for SQLite, words for people. SQLite has room for the code alone, so the words go to its log (`.log stderr`
//! in its shell) and are kept for `select hotshelf_error()`.

use std::ffi::c_int;
use std::fmt::Display;

use libsqlite3_sys as sys;
use parking_lot::Mutex;
use rawfs::fs::Error;
use rustix::io::Errno;

/// A failure that is reported to SQLite.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VfsError {
    /// The SQLite result code to return.
    pub code: c_int,
    /// For people; empty for what is no fault but an answer, such as BUSY.
    pub words: String,
}

/// The result of a VFS method.
pub type Outcome<T> = Result<T, VfsError>;

impl VfsError {
    /// Makes an error with a code and a message.
    pub fn new(code: c_int, words: impl Into<String>) -> VfsError {
        VfsError { code, words: words.into() }
    }

    /// Makes an error that needs no message.
    pub fn quiet(code: c_int) -> VfsError {
        VfsError::new(code, "")
    }

    /// Returns a failure of the file system: FULL if there is no room, else the given code. The message is formatted only on failure.
    pub fn of(code: c_int, what: impl Display) -> impl Fn(Error) -> VfsError {
        move |error| {
            let code = if error.errno() == Errno::NOSPC { sys::SQLITE_FULL } else { code };
            VfsError::new(code, format!("{what}: {error}"))
        }
    }
}

static LAST: Mutex<String> = Mutex::new(String::new());

/// Stores the message as this process's last error.
pub fn remember(fault: &VfsError) {
    LAST.lock().clone_from(&fault.words);
}

/// The words of the last failure in this process.
pub fn last() -> String {
    LAST.lock().clone()
}
