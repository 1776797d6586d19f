//! What went wrong: a code for SQLite, words for people. SQLite has room for the code alone, so the words go to its log (`.log stderr`
//! in its shell) and are kept for `select hotshelf_error()`.

use std::ffi::c_int;
use std::fmt::Display;

use libsqlite3_sys as sys;
use parking_lot::Mutex;
use rawfs::fs::Error;
use rustix::io::Errno;

/// A failure that SQLite is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VfsError {
    /// SQLite's code.
    pub code: c_int,
    /// For people; empty for what is no fault but an answer, such as BUSY.
    pub words: String,
}

pub type Outcome<T> = Result<T, VfsError>;

impl VfsError {
    pub fn new(code: c_int, words: impl Into<String>) -> VfsError {
        VfsError { code, words: words.into() }
    }

    /// An answer.
    pub fn quiet(code: c_int) -> VfsError {
        VfsError::new(code, "")
    }

    /// A failure of the file system: FULL if there is no room, else as given. Words are put together when there is one.
    pub fn of(code: c_int, what: impl Display) -> impl Fn(Error) -> VfsError {
        move |error| {
            let code = if error.errno() == Errno::NOSPC { sys::SQLITE_FULL } else { code };
            VfsError::new(code, format!("{what}: {error}"))
        }
    }
}

static LAST: Mutex<String> = Mutex::new(String::new());

/// Keeps the words.
pub fn remember(fault: &VfsError) {
    LAST.lock().clone_from(&fault.words);
}

/// The words of the last failure in this process.
pub fn last() -> String {
    LAST.lock().clone()
}
