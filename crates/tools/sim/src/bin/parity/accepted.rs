//! Known differences, each with its reason. Everything else is a bug.
//!
//! Beside those listed here: sizes, link counts and positions of directories are those of two directories, and are not compared. Reads
//! from the kernel's cache do not update the access time, and `O_NOATIME` has no effect because all opens of a file share a descriptor, so
//! an access time is compared only if it was set and the file not read since. A move sets the change time of the copy.

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use sim::posix::call::Call;
use sim::posix::tree::{CallResult, FileTree, Stat, stat};

type Applies = fn(&Call) -> bool;

/// A call, the error that the mount may return, and the reason. Such a call is not made on the plain directory.
const REFUSED: [(Applies, Errno, &str); 4] = [
    (lists, Errno::ACCESS, "see `unlisted`"),
    (names, Errno::ACCESS, "an ordinary user's directory above that may not be written gets no other half on the other side"),
    (shifts, Errno::OPNOTSUPP, "the kernel passes these modes of fallocate to no FUSE daemon"),
    (unnamed, Errno::OPNOTSUPP, "the FUSE crate has no O_TMPFILE yet"),
];

/// The same for images only.
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

/// Returns whether an ordinary user's mount cannot list a directory: one that is readable but not searchable does not give the daemon the
/// inode numbers.
pub fn unlisted(dir: &Stat) -> bool {
    dir.mode & 0o100 == 0 && !rustix::process::geteuid().is_root()
}

/// Returns whether an ordinary user's mount cannot read the number stored with a moved file, because the owner may not read the file.
pub fn number_unread(stat: &Stat) -> bool {
    stat.mode & 0o400 == 0 && !rustix::process::geteuid().is_root()
}

/// Returns whether an ordinary user's mount may have lost an open file that the kernel did not report: a pipe, or a file opened with
/// O_PATH. The mount finds it by its path, which may contain a directory that the user closed.
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

/// Returns whether the mount, of an image or not, may refuse a call that the plain directory would perform.
pub fn refused(call: &Call, mount: &CallResult, image: bool) -> bool {
    let Err(error) = mount else { return false };
    let of_images: &[_] = if image { &REFUSED_BY_IMAGES } else { &[] };
    REFUSED.iter().chain(of_images).any(|(applies, refusal, _)| refusal == error && applies(call))
}

/// Returns whether the call concerns a removed directory that is still open, where ext4 behaves differently: directory positions become
/// invalid. An image also drops extended attributes at once, ext4 at the last close.
pub fn of_removed(call: &Call, plain: &FileTree, image: bool) -> bool {
    let about = match call {
        Call::ReadDir { rewind: false, .. } => true,
        Call::SetXattr { .. } | Call::GetXattr { .. } | Call::ListXattr { .. } | Call::RemoveXattr { .. } => image,
        _ => false,
    };
    let removed = |slot: &usize| plain.slot(*slot).and_then(|dir| stat(dir, "")).is_ok_and(|dir| dir.is_dir() && dir.nlink == 0);
    about && call.slots().iter().any(removed)
}

/// Holes are the file system's choice: a copy made during writes has fewer. The data is compared.
pub fn holes(call: &Call, plain: &CallResult, mount: &CallResult) -> bool {
    let looked = matches!(call, Call::Seek { to: SeekFrom::Data(_) | SeekFrom::Hole(_), .. });
    let found = |said: &CallResult| matches!(said, Ok(_) | Err(Errno::NXIO));
    looked && found(plain) && found(mount)
}

/// Returns whether a directory's time changed before the first check: the kernel caches for a second the reply to another process (the
/// mover) that arrived during the change.
pub fn older_answer(looked: (i64, u32), time: (i64, u32)) -> bool {
    time <= looked
}

/// Giving a file with set-id bits to no one, by a user who may not: ext4 refuses, because the bits would be cleared. The kernel does not
/// forward this to a FUSE daemon.
pub fn given_to_nobody(call: &Call, plain: &CallResult, mount: &CallResult) -> bool {
    matches!(call, Call::ChOwn { uid: None, gid: None, .. }) && *plain == Err(Errno::PERM) && mount.is_ok()
}

/// Returns whether the kernel changes these times without the daemon: for pipes, and for files with its write-back cache. That clock has
/// steps of milliseconds and ignores the limits of the underlying file system.
pub fn times_by_kernel(stat: &Stat, gathered: bool) -> bool {
    stat.mode & 0o170_000 == 0o010_000 || gathered && stat.is_file()
}
