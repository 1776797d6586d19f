//! What went wrong, for errno and for people.

use rustix::io::Errno;

/// Why a call on the file system failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// Refused, as Linux refuses it.
    #[error("{}", std::io::Error::from(*.0))]
    Refused(Errno),
    /// The store, or the device below it.
    #[error("{0}")]
    Store(crate::Error),
    /// The bytes of a file on the device are not those that were written.
    #[error("file {ino}, offset {offset}: what is on the device (block {block}) is not what was written: its checksum is wrong")]
    Checksum {
        /// The file's number.
        ino: u64,
        /// Of the block of 4 KiB, in bytes from the file's begin.
        offset: u64,
        /// On the device.
        block: u64,
    },
    /// Metadata that this program cannot have written.
    #[error("file {ino}: {what}: run `hotshelf fs check`")]
    Malformed {
        /// The file's number; 0 if it is not known.
        ino: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// What was written earlier, and acknowledged, could not be brought to the device.
    #[error("file {ino}: earlier writes have not reached the device: {why}")]
    WriteBack {
        /// The file's number.
        ino: u64,
        /// Why.
        why: Box<Error>,
    },
}

/// What calls of the file system return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the errno for this error.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Refused(errno) => *errno,
            Error::Store(error) => Errno::from_raw_os_error(error.errno()),
            Error::Checksum { .. } | Error::Malformed { .. } => Errno::IO,
            Error::WriteBack { why, .. } => why.errno(),
        }
    }

    pub(super) fn malformed(ino: u64) -> impl Fn(MalformedRecordError) -> Error {
        move |MalformedRecordError(what)| Error::Malformed { ino, what }
    }
}

/// Reports bytes that are not the stored form of what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedRecordError(pub &'static str);

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::Refused(errno)
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Error {
        Error::Store(error)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        error.errno().into()
    }
}
