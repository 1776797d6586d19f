//! The meaning of a command's status (NVMe base specification 2.0, section 3.3.3.2.1; NVM command set specification 1.0, section 3.2.3).
//! Only this module converts it to an [`Error`].

use rustix::io::Errno;

use crate::error::Error;

/// Converts a status code (bits 0 to 7) and its type (8 to 10), as the kernel reports them; higher bits only say whether to retry.
pub fn error(status: u16) -> Error {
    let code = status & 0xff;
    match (status >> 8) & 0x7 {
        0 => generic(code),
        1 => specific(code),
        // Media and data integrity: all are media errors except a denied access.
        2 if code == 0x86 => Error::NotPermitted,
        2 => Error::Media,
        // Path: aborted by the host (0x71), otherwise the path to the drive is lost.
        3 if code == 0x71 => Error::Cancelled,
        3 => Error::Gone,
        _ => Error::Other(errno(Errno::IO)),
    }
}

fn generic(code: u16) -> Error {
    match code {
        0x01 => Error::Unsupported,        // invalid opcode
        0x02 => Error::Misaligned,         // invalid field: a size or address the drive does not take
        0x04 | 0x06 => Error::Media,       // data transfer error, internal error
        0x05 => Error::Gone,               // aborted, power is going
        0x07..=0x0a => Error::Cancelled,   // abort requested; queue deleted; fused partner failed, missing
        0x0b => Error::Gone,               // invalid namespace or format: detached
        0x0d..=0x13 => Error::Misaligned,  // descriptors of the memory
        0x15 => Error::NotPermitted,       // operation denied
        0x21 | 0x22 => Error::NoResources, // command interrupted, transient transport error: try again
        0x20 => Error::ReadOnly,           // namespace is write protected
        0x80 => Error::OutOfRange,         // LBA out of range
        0x81 => Error::NoSpace,            // capacity exceeded
        0x82 => Error::NoResources,        // namespace not ready
        0x83 => Error::NotPermitted,       // reservation conflict
        _ => Error::Other(errno(Errno::IO)),
    }
}

fn specific(code: u16) -> Error {
    match code {
        0x80 => Error::Misaligned, // conflicting attributes
        0x82 => Error::ReadOnly,   // write to a read-only range
        0x83 => Error::OutOfRange, // command size limit exceeded
        _ => Error::Other(errno(Errno::IO)),
    }
}

fn errno(errno: Errno) -> u16 {
    u16::try_from(errno.raw_os_error()).expect("an errno")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_status_is_recognized_by_its_meaning_whatever_its_upper_bits() {
        assert_eq!(error(0x0281), Error::Media, "unrecovered read error");
        assert_eq!(error(0x4281), Error::Media, "with the bit that says do not retry");
        assert_eq!(error(0x0080), Error::OutOfRange);
        assert_eq!(error(0x4020), Error::ReadOnly);
        assert_eq!(error(0x0007), Error::Cancelled);
        assert_eq!(error(0x0300), Error::Gone);
        assert_eq!(error(0x0001), Error::Unsupported);
        assert_eq!(error(0x07ff), Error::Other(5));
    }
}
