//! How a request can fail.

/// Why a request failed. Small, copied, without text: front doors say it in words and as errno.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Error {
    /// The device could not read or write what it was asked for.
    #[error("the device reports a media error")]
    Media,
    /// Not answered by its deadline. The device may still read or write the buffer.
    #[error("the device did not answer in time")]
    Timeout,
    /// The device was removed, or answers nothing any more.
    #[error("the device is gone")]
    Gone,
    /// Thinly provisioned storage, or the file system below, is full.
    #[error("no space is left on the device")]
    NoSpace,
    /// The buffer, or its length, does not fit the device's blocks.
    #[error("the buffer is not aligned to the device's blocks")]
    Misaligned,
    /// Blocks that the device, or the grant of its user, does not have.
    #[error("the blocks are out of the device's range")]
    OutOfRange,
    /// Cancelled on request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The queue was reset while it was in flight: it may or may not have been done.
    #[error("the queue was reset before the request was done")]
    Reset,
    /// The device cannot be written.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device does not know this operation.
    #[error("the device does not support the operation")]
    Unsupported,
    /// Not allowed to this user.
    #[error("the operation is not permitted")]
    NotPermitted,
    /// Memory or another resource ran out below.
    #[error("out of resources below the queue")]
    NoResources,
    /// Anything else, with the errno of the system.
    #[error("the device failed (errno {0})")]
    Other(u16),
}

impl Error {
    /// What an errno of the kernel's block layer means.
    pub fn from_errno(errno: i32) -> Error {
        use rustix::io::Errno;
        match Errno::from_raw_os_error(errno) {
            // EREMOTEIO, EBADMSG, EILSEQ, ENODATA: what the kernel makes of a drive's target, medium and protection errors.
            Errno::IO | Errno::REMOTEIO | Errno::NODATA | Errno::ILSEQ | Errno::BADMSG => Error::Media,
            Errno::TIMEDOUT | Errno::TIME => Error::Timeout,
            Errno::NODEV | Errno::NXIO | Errno::NOLINK | Errno::SHUTDOWN => Error::Gone,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Error::NoSpace,
            Errno::INVAL => Error::Misaligned,
            Errno::CANCELED => Error::Cancelled,
            Errno::ROFS | Errno::BADF => Error::ReadOnly,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => Error::Unsupported,
            Errno::PERM | Errno::ACCESS => Error::NotPermitted,
            Errno::NOMEM | Errno::AGAIN | Errno::NOBUFS => Error::NoResources,
            other => Error::Other(u16::try_from(other.raw_os_error()).unwrap_or(0)),
        }
    }

    /// The errno that programs are told.
    pub fn errno(self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Error::Media | Error::Reset => Errno::IO,
            Error::Timeout => Errno::TIMEDOUT,
            Error::Gone => Errno::NODEV,
            Error::NoSpace => Errno::NOSPC,
            Error::Misaligned | Error::OutOfRange => Errno::INVAL,
            Error::Cancelled => Errno::CANCELED,
            Error::ReadOnly => Errno::ROFS,
            Error::Unsupported => Errno::OPNOTSUPP,
            Error::NotPermitted => Errno::PERM,
            Error::NoResources => Errno::NOMEM,
            Error::Other(errno) => return i32::from(errno),
        };
        errno.raw_os_error()
    }
}
