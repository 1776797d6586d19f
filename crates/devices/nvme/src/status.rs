//! The status of a completed command (NVMe base specification 2.0, section 3.3.3.2.1).

use std::fmt;

use block::Error;

/// The 15 bits of a completion's status: code (0 to 7), its type (8 to 10), when to try again (11, 12), more in the error log (13), do
/// not try again (14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u16);

impl Status {
    /// The command completed without an error.
    pub const OK: Status = Status(0);
    /// The controller does not know the operation.
    pub const INVALID_OPCODE: Status = Status(0x4001);
    /// A field of the command is wrong.
    pub const INVALID_FIELD: Status = Status(0x4002);
    /// The transfer of data to or from memory failed.
    pub const DATA_TRANSFER: Status = Status(0x0004);
    /// The controller had an internal error.
    pub const INTERNAL: Status = Status(0x0006);
    /// The command was aborted by request.
    pub const ABORTED: Status = Status(0x0007);
    /// The command was aborted because its queue was deleted.
    pub const QUEUE_DELETED: Status = Status(0x0008);
    /// There is no such namespace, or its format is invalid.
    pub const INVALID_NAMESPACE: Status = Status(0x400b);
    /// The namespace may be written no more.
    pub const WRITE_PROTECTED: Status = Status(0x4020);
    /// The command was interrupted; a retry may succeed.
    pub const INTERRUPTED: Status = Status(0x0021);
    /// Blocks that are not there.
    pub const OUT_OF_RANGE: Status = Status(0x4080);
    /// The namespace is not ready; a retry may succeed.
    pub const NOT_READY: Status = Status(0x0082);
    /// There is no such queue, or the number of queues is exhausted.
    pub const INVALID_QUEUE: Status = Status(0x4101);
    /// A queue of a size that cannot be.
    pub const INVALID_QUEUE_SIZE: Status = Status(0x4102);
    /// Too many Abort commands were in flight.
    pub const ABORT_LIMIT: Status = Status(0x0103);
    /// Too many Asynchronous Event Requests were in flight.
    pub const EVENT_LIMIT: Status = Status(0x4105);
    /// There is no such log page.
    pub const INVALID_LOG: Status = Status(0x4109);
    /// The medium could not be written.
    pub const WRITE_FAULT: Status = Status(0x0280);
    /// The medium could not be read.
    pub const READ_ERROR: Status = Status(0x4281);

    /// Returns whether the command succeeded.
    #[inline]
    pub const fn is_ok(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Returns the status code and its type, bits 0 to 10.
    pub const fn kind(self) -> u16 {
        self.0 & 0x7ff
    }

    /// The controller says that the same command will fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// Returns whether a retry may succeed: the error is temporary, and the controller does not forbid a retry.
    pub const fn retry(self) -> bool {
        // Interrupted, transient transport error, namespace not ready, internal error of the path.
        matches!(self.kind(), 0x021 | 0x022 | 0x082 | 0x300) && !self.do_not_retry()
    }

    /// Converts the status to the block layer's outcome.
    ///
    /// # Errors
    /// If it was not done.
    pub fn outcome(self) -> Result<(), Error> {
        if self.is_ok() { Ok(()) } else { Err(block::driver::passthrough::status::error(self.0)) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = if self.do_not_retry() { ", do not retry" } else { "" };
        write!(f, "Status(type {} code {:#04x}{last})", self.0 >> 8 & 7, self.0 & 0xff)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_passes_is_tried_again_unless_the_controller_says_no() {
        assert!(Status::OK.is_ok() && Status(0x4000).is_ok(), "a success says nothing of trying again");
        assert!(Status::NOT_READY.retry() && Status::INTERRUPTED.retry());
        assert!(!Status(Status::NOT_READY.0 | 1 << 14).retry());
        assert!(!Status::READ_ERROR.retry() && !Status::WRITE_FAULT.retry());
        assert_eq!(Status::READ_ERROR.outcome(), Err(Error::Media));
        assert_eq!(Status::INTERRUPTED.outcome(), Err(Error::NoResources));
        assert_eq!(format!("{:?}", Status::READ_ERROR), "Status(type 2 code 0x81, do not retry)");
    }
}
