//! What went wrong, for errno and for people.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

/// What kind of failure it is. More may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// The kernel refused a call; the errno is its own.
    System,
    /// The configuration or the arguments are wrong (EINVAL).
    Invalid,
    /// The file was changed from outside while we had changes of our own (ESTALE).
    Conflict,
    /// Data that was acknowledged is lost, and no `sync` of it had succeeded (EIO).
    Lost,
    /// The instance is of another version, another configuration, or damaged (EPROTO).
    Segment,
    /// The SSD belongs to something else or to another instance (EBUSY, EEXIST).
    Device,
    /// A bound set at creation is reached: process slots, files, pins (ENFILE, ENOBUFS).
    Full,
    /// The mode forbids it (EROFS).
    ReadOnly,
    /// This process was forked from the one that opened it (ECHILD).
    Forked,
    /// The instance was left (ENXIO).
    Detached,
}

/// A failure: its kind, an errno, and a sentence.
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

    /// A call of the kernel's that failed, on a file.
    pub(crate) fn system(errno: Errno, doing: &'static str, path: &Arc<Path>) -> Error {
        Error { kind: Kind::System, errno, doing, path: Some(Arc::clone(path)), more: None }
    }

    /// What is behind it, in words.
    pub(crate) fn because(mut self, kind: Kind, sentence: &str) -> Error {
        self.kind = kind;
        self.more = Some(sentence.into());
        self
    }

    pub(crate) fn invalid(sentence: impl Into<String>) -> Error {
        Error::new(Kind::Invalid, Errno::INVAL, sentence)
    }

    /// What kind of failure it is.
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
