//! The errors of requests.

/// The reason why a request failed. It is small and has no text; callers turn it into a message or an errno.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Error {
    /// The device could not read or write the requested blocks.
    #[error("the device reports a media error")]
    Media,
    /// The device did not complete the request by its deadline. It may still access the buffer.
    #[error("the device did not answer in time")]
    Timeout,
    /// The device was removed, or no longer responds.
    #[error("the device is gone")]
    Gone,
    /// Thinly provisioned storage, or the file system of the backing file, is full.
    #[error("no space is left on the device")]
    NoSpace,
    /// The buffer or its length does not match the device's block size or alignment.
    #[error("the buffer is not aligned to the device's blocks")]
    Misaligned,
    /// The blocks do not exist on the device, or are outside the user's grant.
    #[error("the blocks are out of the device's range")]
    OutOfRange,
    /// The request was cancelled by the caller.
    #[error("the request was cancelled")]
    Cancelled,
    /// The queue was reset while the request was in flight. It may or may not have been executed.
    #[error("the queue was reset before the request was done")]
    Reset,
    /// The device is read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The device does not support this operation.
    #[error("the device does not support the operation")]
    Unsupported,
    /// The user is not permitted to do this.
    #[error("the operation is not permitted")]
    NotPermitted,
    /// The driver ran out of memory or another resource.
    #[error("out of resources below the queue")]
    NoResources,
    /// Any other error, with the errno of the system.
    #[error("the device failed (errno {0})")]
    Other(u16),
}

impl Error {
    /// All errors without an errno, in the order of their codes in file formats and protocols. New ones are only appended.
    pub const CODES: [Error; 12] = [
        Error::Media,
        Error::Timeout,
        Error::Gone,
        Error::NoSpace,
        Error::Misaligned,
        Error::OutOfRange,
        Error::Cancelled,
        Error::Reset,
        Error::ReadOnly,
        Error::Unsupported,
        Error::NotPermitted,
        Error::NoResources,
    ];

    /// Converts an errno of the kernel's block layer.
    pub fn from_errno(errno: i32) -> Error {
        use rustix::io::Errno;
        match Errno::from_raw_os_error(errno) {
            // The kernel reports a drive's target, medium and protection errors as EREMOTEIO, EBADMSG, EILSEQ and ENODATA.
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

    /// Returns the errno that programs get.
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
