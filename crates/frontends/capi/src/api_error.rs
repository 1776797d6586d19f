//! Errors of calls: an errno and a message.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::ops::Deref;

use block::{Error, OpenError};

/// Why a call failed. Boxed, because every successful call returns the type too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiError(Box<ErrorDetail>);

/// The content of an [`ApiError`]: errno and message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorDetail {
    /// The errno that the call sets.
    pub errno: i32,
    /// The message that `hs_error` returns.
    pub text: String,
}

impl Deref for ApiError {
    type Target = ErrorDetail;

    fn deref(&self) -> &ErrorDetail {
        &self.0
    }
}

/// The result of an API call.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// Creates an error from an errno and a message.
    pub fn new(errno: i32, text: impl fmt::Display) -> ApiError {
        ApiError(Box::new(ErrorDetail { errno, text: text.to_string() }))
    }

    /// Creates an error from the C library's last errno; `what` was attempted.
    pub fn last(what: &str) -> ApiError {
        let error = std::io::Error::last_os_error();
        ApiError::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {error}"))
    }

    /// Returns the error with the name of its object before the message.
    pub fn named(self, name: &str) -> ApiError {
        ApiError::new(self.errno, format!("{name}: {}", self.text))
    }

    /// Creates an error with a prefix that says what was attempted.
    pub fn of(what: impl fmt::Display, error: Error) -> ApiError {
        ApiError::new(error.errno(), format!("{what}: {error}"))
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        ApiError::new(error.errno(), error)
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> ApiError {
        ApiError::new(error.errno(), error)
    }
}

impl From<stack::rawfs::Error> for ApiError {
    fn from(error: stack::rawfs::Error) -> ApiError {
        ApiError::new(error.errno(), error)
    }
}

impl From<stack::rawfs::fs::Error> for ApiError {
    #[cold]
    #[inline(never)]
    fn from(error: stack::rawfs::fs::Error) -> ApiError {
        ApiError::new(error.errno().raw_os_error(), error)
    }
}

impl From<cachedfs::Error> for ApiError {
    #[cold]
    #[inline(never)]
    fn from(error: cachedfs::Error) -> ApiError {
        ApiError::new(error.errno(), error)
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the error for `hs_error`.
pub fn remember(fail: &ApiError) {
    // Our messages have no zero byte, but a name from the program may.
    let text = CString::new(fail.text.replace('\0', " ")).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Returns the message of this thread's last error; empty if there was none. It is valid until the next error of the thread.
pub fn last() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}
