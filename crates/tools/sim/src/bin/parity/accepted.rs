//! Differences that stay, each with its reason. Everything else is a bug.
//!
//! Beside those below: sizes, links and positions of directories are those of two, and are not compared.
//! Reads that the kernel serves from its cache do not update the access time, and `O_NOATIME` is not honoured
//! because all opens of a file share a descriptor, so only an access time that was set and not read since is
//! compared. A move sets the change time of the copy, so that may change by itself.

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use sim::posix::call::Call;
use sim::posix::tree::{CallResult, FileTree, Stat, stat};

type Applies = fn(&Call) -> bool;

/// The call, the error the mount may answer to it, and why. Such a call is not done on the plain directory.
const REFUSED: [(Applies, Errno, &str); 4] = [
    (lists, Errno::ACCESS, "see `unlisted`"),
    (names, Errno::ACCESS, "an ordinary user's directory above that may not be written gets no other half on the other side"),
    (shifts, Errno::OPNOTSUPP, "the kernel passes these modes of fallocate to no FUSE daemon"),
    (unnamed, Errno::OPNOTSUPP, "the FUSE crate has no O_TMPFILE yet"),
];

/// The same, of images alone.
const REFUSED_BY_IMAGES: [(Applies, Errno, &str); 1] = [(lists_of_access, Errno::OPNOTSUPP, "images have no access control lists")];

fn names(call: &Call) -> bool {
    let named = match call {
        Call::Open { flags, .. } | Call::OpenAt { flags, .. } => flags.contains(OFlags::CREATE),
        Call::Link { .. } | Call::LinkSlot { .. } | Call::Rename { .. } | Call::MkDir { .. } | Call::SymLink { .. } => true,
        Call::MkNod { .. } => true,
        _ => false,
    };
    named && !rustix::process::geteuid().is_root()
}

fn lists(call: &Call) -> bool {
    matches!(call, Call::ReadDir { .. }) && !rustix::process::geteuid().is_root()
}

/// Whether an ordinary user's mount cannot list a directory: one that may be read but not searched does not tell
/// the daemon the numbers of what is in it.
pub fn unlisted(dir: &Stat) -> bool {
    dir.mode & 0o100 == 0 && !rustix::process::geteuid().is_root()
}

/// Whether an ordinary user's mount cannot read the number that a moved file carries: its owner may not read it.
pub fn number_unread(stat: &Stat) -> bool {
    stat.mode & 0o400 == 0 && !rustix::process::geteuid().is_root()
}

/// Whether an ordinary user's mount may have lost an open file of which the kernel did not tell it: a pipe, or one open for its
/// name alone (O_PATH). It finds it by its path, on which the user may have closed a directory.
pub fn out_of_reach(slot: usize, plain: &FileTree) -> bool {
    let Ok(file) = plain.slot(slot) else { return false };
    let named = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::PATH));
    let plain_data = stat(file, "").is_ok_and(|stat| stat.is_file() || stat.is_dir());
    (named || !plain_data) && !rustix::process::geteuid().is_root()
}

fn shifts(call: &Call) -> bool {
    let passed = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
    matches!(call, Call::Fallocate { flags, .. } if !(*flags - passed).is_empty())
}

fn lists_of_access(call: &Call) -> bool {
    let named = match call {
        Call::SetXattr { name, .. } | Call::GetXattr { name, .. } | Call::RemoveXattr { name, .. } => name,
        _ => return false,
    };
    named.starts_with("system.posix_acl_")
}

fn unnamed(call: &Call) -> bool {
    matches!(call, Call::Open { flags, .. } | Call::OpenAt { flags, .. } if flags.contains(OFlags::TMPFILE))
}

/// Whether the mount, of an image or not, may refuse a call that the plain directory would do.
pub fn refused(call: &Call, mount: &CallResult, image: bool) -> bool {
    let Err(error) = mount else { return false };
    let of_images: &[_] = if image { &REFUSED_BY_IMAGES } else { &[] };
    REFUSED.iter().chain(of_images).any(|(applies, refusal, _)| refusal == error && applies(call))
}

/// Whether it is about a removed directory that is still open, in a way that ext4 has its own mind of: no place where a listing
/// stopped is one any more. And an image forgets its extended attributes at once, ext4 when nobody has it open.
pub fn of_removed(call: &Call, plain: &FileTree, image: bool) -> bool {
    let about = match call {
        Call::ReadDir { rewind: false, .. } => true,
        Call::SetXattr { .. } | Call::GetXattr { .. } | Call::ListXattr { .. } | Call::RemoveXattr { .. } => image,
        _ => false,
    };
    let removed = |slot: &usize| plain.slot(*slot).and_then(|dir| stat(dir, "")).is_ok_and(|dir| dir.is_dir() && dir.nlink == 0);
    about && call.slots().iter().any(removed)
}

/// Where holes are is the file system's choice: a copy made beside its writers has less of them. What is read is compared.
pub fn holes(call: &Call, plain: &CallResult, mount: &CallResult) -> bool {
    let looked = matches!(call, Call::Seek { to: SeekFrom::Data(_) | SeekFrom::Hole(_), .. });
    let found = |said: &CallResult| matches!(said, Ok(_) | Err(Errno::NXIO));
    looked && found(plain) && found(mount)
}

/// Whether a directory's time had changed before the first look: the kernel keeps an answer for a second that somebody else (the
/// mover, on its way to a file) asked for while the directory was changed.
pub fn older_answer(looked: (i64, u32), time: (i64, u32)) -> bool {
    time <= looked
}

/// Giving a file with set-id bits to nobody else, by somebody who may not: ext4 refuses, for the bits would go. The kernel does not
/// ask a FUSE daemon when nothing else is to be changed.
pub fn given_to_nobody(call: &Call, plain: &CallResult, mount: &CallResult) -> bool {
    matches!(call, Call::ChOwn { uid: None, gid: None, .. }) && *plain == Err(Errno::PERM) && mount.is_ok()
}

/// Whether the kernel does not tell FUSE daemons of what changes these times: pipes are its own, and so are files for which it
/// gathers writes. Its clock for those has steps of milliseconds, and it knows no limits of the file system below.
pub fn times_by_kernel(stat: &Stat, gathered: bool) -> bool {
    stat.mode & 0o170_000 == 0o010_000 || gathered && stat.is_file()
}
