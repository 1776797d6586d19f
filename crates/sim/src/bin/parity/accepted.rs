//! Differences that stay, each with its reason. Everything else is a bug.

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::call::Call;
use crate::world::Said;

type Applies = fn(&Call) -> bool;

/// The call, the error the mount may answer to it, and why. Such a call is not done on the plain directory.
const REFUSED: [(Applies, Errno, &str); 2] = [
    (shifts, Errno::OPNOTSUPP, "the kernel passes these modes of fallocate to no FUSE daemon"),
    (unnamed, Errno::OPNOTSUPP, "the FUSE crate has no O_TMPFILE yet"),
];

fn shifts(call: &Call) -> bool {
    let passed = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
    matches!(call, Call::Fallocate { flags, .. } if !(*flags - passed).is_empty())
}

fn unnamed(call: &Call) -> bool {
    matches!(call, Call::Open { flags, .. } | Call::OpenAt { flags, .. } if flags.contains(OFlags::TMPFILE))
}

/// Whether the mount may refuse a call that the plain directory would do.
pub fn refused(call: &Call, mount: &Said) -> bool {
    let Err(error) = mount else { return false };
    REFUSED.iter().any(|(applies, refusal, _)| refusal == error && applies(call))
}
