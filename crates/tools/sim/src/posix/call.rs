// long: a table: every call of POSIX that is compared, with its arguments and its run.
//! The calls, and their execution on one side.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use rustix::fs::{
    Access, AtFlags, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::ReadWriteFlags;

use super::tree::{CallResult, FileTree, Stat, digest, list, stat};

/// The object of a call: a path or an open file.
#[derive(Clone, Debug)]
pub enum CallTarget {
    Path(String),
    /// A symbolic link itself.
    Link(String),
    Slot(usize),
}

/// A system call with its arguments.
#[derive(Clone, Debug)]
pub enum Call {
    Open {
        slot: usize,
        path: String,
        flags: OFlags,
        mode: u32,
    },
    /// Relative to an open directory.
    OpenAt {
        slot: usize,
        at: usize,
        path: String,
        flags: OFlags,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Dup {
        slot: usize,
        to: usize,
    },
    Read {
        slot: usize,
        len: usize,
    },
    PRead {
        slot: usize,
        at: u64,
        len: usize,
    },
    ReadV {
        slot: usize,
        lens: [usize; 3],
    },
    Write {
        slot: usize,
        len: usize,
        seed: u8,
    },
    PWrite {
        slot: usize,
        at: u64,
        len: usize,
        seed: u8,
    },
    WriteV {
        slot: usize,
        lens: [usize; 3],
        seed: u8,
    },
    /// With RWF_ flags.
    PWrite2 {
        slot: usize,
        at: u64,
        len: usize,
        seed: u8,
        flags: ReadWriteFlags,
    },
    Seek {
        slot: usize,
        to: SeekFrom,
    },
    Truncate {
        path: String,
        size: u64,
    },
    FTruncate {
        slot: usize,
        size: u64,
    },
    Fallocate {
        slot: usize,
        flags: FallocateFlags,
        at: u64,
        len: u64,
    },
    CopyRange {
        from: usize,
        at: u64,
        to: usize,
        to_at: u64,
        len: usize,
    },
    SendFile {
        from: usize,
        at: u64,
        to: usize,
        len: usize,
    },
    Clone {
        from: usize,
        to: usize,
    },
    MkDir {
        path: String,
        mode: u32,
    },
    RmDir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    Link {
        from: String,
        to: String,
        follow: bool,
    },
    /// Links an open file, as for O_TMPFILE.
    LinkSlot {
        slot: usize,
        to: String,
    },
    SymLink {
        target: String,
        path: String,
    },
    ReadLink {
        path: String,
    },
    MkNod {
        path: String,
        kind: FileType,
        mode: u32,
        dev: u64,
    },
    ChMod {
        which: CallTarget,
        mode: u32,
    },
    ChOwn {
        which: CallTarget,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    UTimes {
        which: CallTarget,
        access: (i64, i64),
        modified: (i64, i64),
    },
    SetXattr {
        which: CallTarget,
        name: String,
        value: Vec<u8>,
        flags: u32,
    },
    GetXattr {
        which: CallTarget,
        name: String,
        room: usize,
    },
    ListXattr {
        which: CallTarget,
        room: usize,
    },
    RemoveXattr {
        which: CallTarget,
        name: String,
    },
    Access {
        path: String,
        how: Access,
        effective: bool,
    },
    Stat {
        which: CallTarget,
    },
    /// Lists some names; position 0 restarts.
    ReadDir {
        slot: usize,
        rewind: bool,
        most: usize,
    },
    Sync {
        slot: usize,
        data_only: bool,
    },
    SyncFs {
        slot: usize,
    },
    FLock {
        slot: usize,
        how: FlockOperation,
    },
    PosixLock {
        slot: usize,
        how: FlockOperation,
    },
    UMask {
        mask: u32,
    },
    SetFlags {
        slot: usize,
        flags: OFlags,
    },
    GetFlags {
        slot: usize,
    },
    Advise {
        slot: usize,
    },
}

/// Returns bytes that differ at every position.
pub fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(seed) | 1).collect()
}

/// Alignment for O_DIRECT.
const ALIGN: usize = 4096;

fn aligned(len: usize) -> (Vec<u8>, usize) {
    let room = vec![0u8; len + ALIGN];
    let skip = (ALIGN - room.as_ptr() as usize % ALIGN) % ALIGN;
    (room, skip)
}

fn aligned_bytes(len: usize, seed: u8) -> (Vec<u8>, usize) {
    let (mut room, skip) = aligned(len);
    room[skip..skip + len].copy_from_slice(&bytes(len, seed));
    (room, skip)
}

fn count(n: usize) -> String {
    n.to_string()
}

fn done(_: ()) -> String {
    "0".into()
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn spec(time: (i64, i64)) -> Timespec {
    Timespec { tv_sec: time.0, tv_nsec: time.1 as _ }
}

/// Formats the attributes that must be equal on both sides.
pub fn shown(stat: &Stat) -> String {
    let mut text = format!("mode {:o} uid {} gid {}", stat.mode, stat.uid, stat.gid);
    if !stat.is_dir() {
        text += &format!(" nlink {} size {}", stat.nlink, stat.size);
    }
    if !stat.is_file() && !stat.is_dir() && !stat.is_link() {
        text += &format!(" rdev {:?}", stat.rdev);
    }
    text
}

impl Call {
    /// Executes the call on one side.
    // long: one match over all calls of POSIX.
    pub fn run(&self, tree: &mut FileTree) -> CallResult {
        // Directory positions, and errors of invalid ones, are specific to the file system.
        if let Call::Read { slot, .. } | Call::ReadV { slot, .. } | Call::Seek { slot, .. } = self
            && stat(tree.slot(*slot)?, "")?.is_dir()
        {
            return Ok("not asked of a directory".into());
        }
        match self {
            Call::Open { slot, path, flags, mode: bits } => {
                let opened = rustix::fs::openat(tree.root(), path.as_str(), *flags | OFlags::CLOEXEC, mode(*bits))?;
                tree.slots[*slot] = Some(opened);
                tree.cookies[*slot] = 0;
                Ok("open".into())
            }
            Call::OpenAt { slot, at, path, flags, mode: bits } => {
                let opened = rustix::fs::openat(tree.slot(*at)?, path.as_str(), *flags | OFlags::CLOEXEC, mode(*bits))?;
                tree.slots[*slot] = Some(opened);
                tree.cookies[*slot] = 0;
                Ok("open".into())
            }
            Call::Close { slot } => {
                tree.slots[*slot] = None;
                Ok("closed".into())
            }
            Call::Dup { slot, to } => {
                tree.slots[*to] = Some(rustix::io::dup(tree.slot(*slot)?)?);
                tree.cookies[*to] = 0;
                Ok("open".into())
            }
            Call::Read { slot, len } => {
                let (mut room, skip) = aligned(*len);
                let n = rustix::io::read(tree.slot(*slot)?, &mut room[skip..skip + len])?;
                Ok(digest(&room[skip..skip + n]))
            }
            Call::PRead { slot, at, len } => {
                let (mut room, skip) = aligned(*len);
                let n = rustix::io::pread(tree.slot(*slot)?, &mut room[skip..skip + len], *at)?;
                Ok(digest(&room[skip..skip + n]))
            }
            Call::ReadV { slot, lens } => {
                let mut rooms = lens.map(|len| vec![0u8; len]);
                let n = rustix::io::readv(tree.slot(*slot)?, &mut rooms.each_mut().map(|room| IoSliceMut::new(room)))?;
                Ok(digest(&rooms.concat()[..n]))
            }
            Call::Write { slot, len, seed } => {
                let (data, skip) = aligned_bytes(*len, *seed);
                rustix::io::write(tree.slot(*slot)?, &data[skip..skip + len]).map(count)
            }
            Call::PWrite { slot, at, len, seed } => {
                let (data, skip) = aligned_bytes(*len, *seed);
                rustix::io::pwrite(tree.slot(*slot)?, &data[skip..skip + len], *at).map(count)
            }
            Call::WriteV { slot, lens, seed } => {
                let parts = lens.map(|len| bytes(len, *seed));
                rustix::io::writev(tree.slot(*slot)?, &parts.each_ref().map(|part| IoSlice::new(part))).map(count)
            }
            Call::PWrite2 { slot, at, len, seed, flags } => {
                rustix::io::pwritev2(tree.slot(*slot)?, &[IoSlice::new(&bytes(*len, *seed))], *at, *flags).map(count)
            }
            Call::Seek { slot, to } => rustix::fs::seek(tree.slot(*slot)?, *to).map(|at| at.to_string()),
            Call::Truncate { path, size } => {
                // This does what truncate(2) does, except for the descriptor.
                let file = rustix::fs::openat(tree.root(), path.as_str(), OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, mode(0))?;
                rustix::fs::ftruncate(file, *size).map(done)
            }
            Call::FTruncate { slot, size } => rustix::fs::ftruncate(tree.slot(*slot)?, *size).map(done),
            Call::Fallocate { slot, flags, at, len } => rustix::fs::fallocate(tree.slot(*slot)?, *flags, *at, *len).map(done),
            Call::CopyRange { from, at, to, to_at, len } => {
                // The file system may copy less at a time: the loop copies everything.
                let (mut from_at, mut to_at) = (*at, *to_at);
                let mut copied = 0;
                while copied < *len {
                    let (source, target) = (tree.slot(*from)?, tree.slot(*to)?);
                    match rustix::fs::copy_file_range(source, Some(&mut from_at), target, Some(&mut to_at), len - copied) {
                        Ok(0) => break,
                        Ok(n) => copied += n,
                        Err(error) if copied == 0 => return Err(error),
                        Err(_) => break,
                    }
                }
                Ok(count(copied))
            }
            Call::SendFile { from, at, to, len } => {
                let mut at = *at;
                rustix::fs::sendfile(tree.slot(*to)?, tree.slot(*from)?, Some(&mut at), *len).map(count)
            }
            Call::Clone { from, to } => rustix::fs::ioctl_ficlone(tree.slot(*to)?, tree.slot(*from)?).map(done),
            Call::MkDir { path, mode: bits } => rustix::fs::mkdirat(tree.root(), path.as_str(), mode(*bits)).map(done),
            Call::RmDir { path } => rustix::fs::unlinkat(tree.root(), path.as_str(), AtFlags::REMOVEDIR).map(done),
            Call::Unlink { path } => rustix::fs::unlinkat(tree.root(), path.as_str(), AtFlags::empty()).map(done),
            Call::Rename { from, to, flags } => {
                rustix::fs::renameat_with(tree.root(), from.as_str(), tree.root(), to.as_str(), *flags).map(done)
            }
            Call::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                rustix::fs::linkat(tree.root(), from.as_str(), tree.root(), to.as_str(), flags).map(done)
            }
            Call::LinkSlot { slot, to } => {
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&tree.slot(*slot)?));
                rustix::fs::linkat(rustix::fs::CWD, path, tree.root(), to.as_str(), AtFlags::SYMLINK_FOLLOW).map(done)
            }
            Call::SymLink { target, path } => rustix::fs::symlinkat(target.as_str(), tree.root(), path.as_str()).map(done),
            Call::ReadLink { path } => {
                rustix::fs::readlinkat(tree.root(), path.as_str(), Vec::new()).map(|target| target.to_string_lossy().into_owned())
            }
            Call::MkNod { path, kind, mode: bits, dev } => {
                rustix::fs::mknodat(tree.root(), path.as_str(), *kind, mode(*bits), *dev).map(done)
            }
            Call::ChMod { which, mode: bits } => match which {
                CallTarget::Slot(slot) => rustix::fs::fchmod(tree.slot(*slot)?, mode(*bits)),
                CallTarget::Path(path) => rustix::fs::chmodat(tree.root(), path.as_str(), mode(*bits), AtFlags::empty()),
                CallTarget::Link(path) => rustix::fs::chmodat(tree.root(), path.as_str(), mode(*bits), AtFlags::SYMLINK_NOFOLLOW),
            }
            .map(done),
            Call::ChOwn { which, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                match which {
                    CallTarget::Slot(slot) => rustix::fs::fchown(tree.slot(*slot)?, uid, gid),
                    CallTarget::Path(path) => rustix::fs::chownat(tree.root(), path.as_str(), uid, gid, AtFlags::empty()),
                    CallTarget::Link(path) => rustix::fs::chownat(tree.root(), path.as_str(), uid, gid, AtFlags::SYMLINK_NOFOLLOW),
                }
                .map(done)
            }
            Call::UTimes { which, access, modified } => {
                let times = Timestamps { last_access: spec(*access), last_modification: spec(*modified) };
                match which {
                    CallTarget::Slot(slot) => rustix::fs::futimens(tree.slot(*slot)?, &times),
                    CallTarget::Path(path) => rustix::fs::utimensat(tree.root(), path.as_str(), &times, AtFlags::empty()),
                    CallTarget::Link(path) => rustix::fs::utimensat(tree.root(), path.as_str(), &times, AtFlags::SYMLINK_NOFOLLOW),
                }
                .map(done)
            }
            Call::SetXattr { which, name, value, flags } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                match which {
                    CallTarget::Slot(slot) => rustix::fs::fsetxattr(tree.slot(*slot)?, name.as_str(), value, flags),
                    CallTarget::Path(path) => rustix::fs::setxattr(tree.full(path), name.as_str(), value, flags),
                    CallTarget::Link(path) => rustix::fs::lsetxattr(tree.full(path), name.as_str(), value, flags),
                }
                .map(done)
            }
            Call::GetXattr { which, name, room } => {
                let mut value = vec![0u8; *room];
                let n = match which {
                    CallTarget::Slot(slot) => rustix::fs::fgetxattr(tree.slot(*slot)?, name.as_str(), &mut value[..]),
                    CallTarget::Path(path) => rustix::fs::getxattr(tree.full(path), name.as_str(), &mut value[..]),
                    CallTarget::Link(path) => rustix::fs::lgetxattr(tree.full(path), name.as_str(), &mut value[..]),
                }?;
                Ok(if *room == 0 { count(n) } else { digest(&value[..n]) })
            }
            Call::ListXattr { which, room } => {
                let mut names = vec![0u8; *room];
                let n = match which {
                    CallTarget::Slot(slot) => rustix::fs::flistxattr(tree.slot(*slot)?, &mut names[..]),
                    CallTarget::Path(path) => rustix::fs::listxattr(tree.full(path), &mut names[..]),
                    CallTarget::Link(path) => rustix::fs::llistxattr(tree.full(path), &mut names[..]),
                }?;
                names.truncate(if *room == 0 { 0 } else { n });
                let mut names: Vec<String> =
                    names.split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned()).collect();
                names.sort();
                Ok(format!("{n} {names:?}"))
            }
            Call::RemoveXattr { which, name } => match which {
                CallTarget::Slot(slot) => rustix::fs::fremovexattr(tree.slot(*slot)?, name.as_str()),
                CallTarget::Path(path) => rustix::fs::removexattr(tree.full(path), name.as_str()),
                CallTarget::Link(path) => rustix::fs::lremovexattr(tree.full(path), name.as_str()),
            }
            .map(done),
            Call::Access { path, how, effective } => {
                let flags = if *effective { AtFlags::EACCESS } else { AtFlags::empty() };
                rustix::fs::accessat(tree.root(), path.as_str(), *how, flags).map(done)
            }
            Call::Stat { which } => match which {
                CallTarget::Slot(slot) => stat(tree.slot(*slot)?, ""),
                CallTarget::Link(path) => stat(tree.root(), path),
                CallTarget::Path(path) => {
                    let file = rustix::fs::openat(tree.root(), path.as_str(), OFlags::PATH | OFlags::CLOEXEC, mode(0))?;
                    stat(file.as_fd(), "")
                }
            }
            .map(|stat| shown(&stat)),
            Call::ReadDir { slot, rewind, most } => {
                let dir = tree.slot(*slot)?;
                let cookie = if *rewind { 0 } else { tree.cookies[*slot] };
                // Names are not compared: their order is specific to the file system.
                rustix::fs::seek(dir, SeekFrom::Start(cookie))?;
                let (mut names, cookie) = list(dir, *most)?;
                tree.cookies[*slot] = cookie;
                names.sort();
                let all: Vec<String> = names.into_iter().map(|listed| format!("{} {}", listed.name, listed.kind)).collect();
                Ok(if *rewind && *most == usize::MAX { format!("{all:?}") } else { "listed".into() })
            }
            Call::Sync { slot, data_only } => {
                let file = tree.slot(*slot)?;
                if *data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) }.map(done)
            }
            Call::SyncFs { slot } => rustix::fs::syncfs(tree.slot(*slot)?).map(done),
            Call::FLock { slot, how } => rustix::fs::flock(tree.slot(*slot)?, *how).map(done),
            Call::PosixLock { slot, how } => rustix::fs::fcntl_lock(tree.slot(*slot)?, *how).map(done),
            Call::UMask { mask } => {
                rustix::process::umask(mode(*mask));
                Ok("0".into())
            }
            Call::SetFlags { slot, flags } => rustix::fs::fcntl_setfl(tree.slot(*slot)?, *flags).map(done),
            Call::GetFlags { slot } => rustix::fs::fcntl_getfl(tree.slot(*slot)?).map(|flags| format!("{flags:?}")),
            Call::Advise { slot } => rustix::fs::fadvise(tree.slot(*slot)?, 0, None, rustix::fs::Advice::DontNeed).map(done),
        }
    }

    /// Returns the paths whose attributes the call may change or return.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Call::Open { path, .. }
            | Call::Truncate { path, .. }
            | Call::MkDir { path, .. }
            | Call::RmDir { path }
            | Call::Unlink { path }
            | Call::SymLink { path, .. }
            | Call::ReadLink { path }
            | Call::MkNod { path, .. }
            | Call::Access { path, .. } => vec![path],
            Call::LinkSlot { to, .. } => vec![to],
            Call::Rename { from, to, .. } | Call::Link { from, to, .. } => vec![from, to],
            Call::ChMod { which, .. }
            | Call::ChOwn { which, .. }
            | Call::UTimes { which, .. }
            | Call::SetXattr { which, .. }
            | Call::GetXattr { which, .. }
            | Call::ListXattr { which, .. }
            | Call::RemoveXattr { which, .. }
            | Call::Stat { which } => match which {
                CallTarget::Path(path) | CallTarget::Link(path) => vec![path],
                CallTarget::Slot(_) => vec![],
            },
            _ => vec![],
        }
    }

    /// Returns the open files of the call.
    pub fn slots(&self) -> Vec<usize> {
        match self {
            Call::Open { slot, .. }
            | Call::OpenAt { slot, .. }
            | Call::Close { slot }
            | Call::Read { slot, .. }
            | Call::PRead { slot, .. }
            | Call::ReadV { slot, .. }
            | Call::Write { slot, .. }
            | Call::PWrite { slot, .. }
            | Call::WriteV { slot, .. }
            | Call::PWrite2 { slot, .. }
            | Call::Seek { slot, .. }
            | Call::FTruncate { slot, .. }
            | Call::Fallocate { slot, .. }
            | Call::LinkSlot { slot, .. }
            | Call::ReadDir { slot, .. }
            | Call::Sync { slot, .. }
            | Call::SyncFs { slot }
            | Call::FLock { slot, .. }
            | Call::PosixLock { slot, .. }
            | Call::SetFlags { slot, .. }
            | Call::GetFlags { slot }
            | Call::Advise { slot } => vec![*slot],
            Call::Dup { slot, to } => vec![*slot, *to],
            Call::CopyRange { from, to, .. } | Call::SendFile { from, to, .. } | Call::Clone { from, to } => vec![*from, *to],
            Call::ChMod { which, .. }
            | Call::ChOwn { which, .. }
            | Call::UTimes { which, .. }
            | Call::SetXattr { which, .. }
            | Call::GetXattr { which, .. }
            | Call::ListXattr { which, .. }
            | Call::RemoveXattr { which, .. }
            | Call::Stat { which } => match which {
                CallTarget::Slot(slot) => vec![*slot],
                _ => vec![],
            },
            _ => vec![],
        }
    }
}
