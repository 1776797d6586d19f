//! Errors with an errno and a message for the user.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

/// The kind of a failure. More kinds may be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// The kernel refused a call; the errno is the kernel's.
    System,
    /// The configuration or the arguments are wrong (EINVAL).
    Invalid,
    /// Another program changed the file while the cache had dirty pages of it (ESTALE).
    Conflict,
    /// Data that was acknowledged is lost, and no `sync` of it had succeeded (EIO).
    Lost,
    /// The instance is of another version, another configuration, or damaged (EPROTO).
    Segment,
    /// The SSD belongs to something else or to another instance (EBUSY, EEXIST).
    Device,
    /// A limit set at creation is reached: process slots, files, pins (ENFILE, ENOBUFS).
    Full,
    /// The mode forbids the call (EROFS).
    ReadOnly,
    /// A forked child used an object that its parent opened (ECHILD).
    Forked,
    /// This process has detached from the instance (ENXIO).
    Detached,
}

/// A failure: its kind, an errno, and a message.
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    errno: Errno,
    doing: &'static str,
    path: Option<Arc<Path>>,
    more: Option<Box<str>>,
}

impl Error {
    pub(crate) fn new(kind: Kind, errno: Errno, sentence: impl Into<String>) -> Error {
        Error { kind, errno, doing: "", path: None, more: Some(sentence.into().into()) }
    }

    /// Creates the error of a failed system call on a file.
    pub(crate) fn system(errno: Errno, doing: &'static str, path: &Arc<Path>) -> Error {
        Error { kind: Kind::System, errno, doing, path: Some(Arc::clone(path)), more: None }
    }

    /// Returns the message, which names the cause.
    pub(crate) fn because(mut self, kind: Kind, sentence: &str) -> Error {
        self.kind = kind;
        self.more = Some(sentence.into());
        self
    }

    pub(crate) fn invalid(sentence: impl Into<String>) -> Error {
        Error::new(Kind::Invalid, Errno::INVAL, sentence)
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the errno for the C interface.
    pub fn errno(&self) -> i32 {
        self.errno.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: {}: ", path.display(), self.doing)?;
        }
        match &self.more {
            Some(sentence) => f.write_str(sentence),
            None => write!(f, "{}", std::io::Error::from(self.errno)),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}): {self}", self.kind, self.errno())
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        std::io::Error::from_raw_os_error(error.errno())
    }
}
