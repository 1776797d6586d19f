//! The errors of a file layer: errnos.

use rustix::io::Errno;

/// The outcome of a system call: its value, or the errno it failed with.
pub type Result<T> = std::result::Result<T, Errno>;

/// Returns the errno of an error that came from a system call.
pub(crate) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
