//! Files whose memory processes share: made so that nobody sees them half done, opened so that nobody is fooled.
//!
//! A new file has no name until it is whole (O_TMPFILE): all its bytes are there, so that a full file system is an error now and
//! no SIGBUS later; owner, group and rights are set. Who dies before that leaves nothing behind.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::region::{AttachError, HUGE_BYTES, Region};

/// Bytes asked for in one call: a signal undoes what the call had done.
const STEP: u64 = 256 << 20;

/// From so many bytes on huge pages are worth the time they take: below, the TLB has most of the small ones.
const JOINED_MIN: usize = 64 << 20;
/// The CPU time that huge pages may take when a file is made, and for each GiB. Usually it is a tenth of a second a GiB, less than
/// small ones take; up to two where memory has to be moved to make some, or where a virtual machine's host only now brings it.
const JOINING: std::time::Duration = std::time::Duration::from_secs(1);
const JOINING_EACH: std::time::Duration = std::time::Duration::from_secs(2);

/// statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// With whom a file is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileAccess {
    /// Rights, as chmod(2) takes them; 0o600 for one user, 0o660 for a group.
    pub permissions: u32,
    /// The group the file is given to. Its members are trusted: each can spoil or cut off the file. None: only this user is.
    pub group: Option<u32>,
}

impl Region {
    /// Makes a file of `bytes` (rounded up to whole pages, zero) and maps it. `prepare` writes its first contents; only then it gets
    /// its name.
    ///
    /// # Errors
    /// `AlreadyExists`; `StorageFull`: no room, or (tmpfs) less memory than that; the file system knows no
    /// unnamed files; what `prepare` says.
    pub fn create_file_with(
        path: &Path,
        bytes: usize,
        sharing: FileAccess,
        prepare: impl FnOnce(&Region) -> io::Result<()>,
    ) -> io::Result<Region> {
        let fd = unnamed(path, sharing)?;
        let region = allocated(fd, crate::region::whole_pages(bytes))?;
        prepare(&region)?;
        name(region.fd().expect("a file"), path)?;
        Ok(region)
    }

    /// As [`Region::create_file_with`], all zero.
    ///
    /// # Errors
    /// As there.
    pub fn create_file(path: &Path, bytes: usize, sharing: FileAccess) -> io::Result<Region> {
        Region::create_file_with(path, bytes, sharing, |_| Ok(()))
    }

    /// Maps a file that [`Region::create_file`] made, in its full length. It must belong to this user or to root, or to `group`, and not be
    /// writable by everybody. What is in it has to be checked.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn open_file(path: &Path, group: Option<u32>) -> Result<Region, AttachError> {
        let (fd, stat) = open(path, group)?;
        let len = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if len == 0 || !len.is_multiple_of(4096) || (stat.st_blocks as u64).saturating_mul(512) < len as u64 {
            return Err(AttachError::NotWhole);
        }
        Region::over_file(fd, len).map_err(AttachError::System)
    }
}

/// A file without contents, for locks.
pub(crate) fn open_or_create_empty(path: &Path, sharing: FileAccess) -> Result<OwnedFd, AttachError> {
    loop {
        match open(path, sharing.group) {
            Err(AttachError::System(error)) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened.map(|(fd, _)| fd),
        }
        let fd = unnamed(path, sharing).map_err(AttachError::System)?;
        match name(&fd, path) {
            Ok(()) => return Ok(fd),
            // Another was faster: its file it is.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(AttachError::System(error)),
        }
    }
}

fn unnamed(path: &Path, sharing: FileAccess) -> io::Result<OwnedFd> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fd = rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
    // The group first: the old one gets no rights on the way.
    if let Some(group) = sharing.group {
        rustix::fs::fchown(&fd, None, Some(Gid::from_raw(group)))?;
    }
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(sharing.permissions & 0o666))?;
    Ok(fd)
}

/// All its bytes, in huge pages where they are available. Those come first, while there is next to nothing in the file: to join what
/// is there already takes the time of both and of a copy.
fn allocated(fd: OwnedFd, len: usize) -> io::Result<Region> {
    if len as u64 > room(&fd)? {
        return Err(Errno::NOSPC.into());
    }
    if len < JOINED_MIN {
        allocate(&fd, len as u64)?;
        return Region::over_file(fd, len);
    }
    rustix::fs::ftruncate(&fd, len as u64)?;
    // The kernel joins no stretch of nothing at all.
    for at in (0..len as u64).step_by(HUGE_BYTES) {
        take(&fd, at, 1)?;
    }
    let region = Region::over_file(fd, len)?;
    region.join_pages(JOINING + JOINING_EACH.mul_f64(len as f64 / (1_u64 << 30) as f64));
    allocate(&region.fd().expect("a file"), len as u64)?;
    Ok(region)
}

fn allocate(fd: &impl AsFd, len: u64) -> io::Result<()> {
    (0..len).step_by(STEP as usize).try_for_each(|at| take(fd, at, STEP.min(len - at)))
}

/// The memory for these bytes, unless it is there.
fn take(fd: &impl AsFd, at: u64, bytes: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), at, bytes) {
            Err(Errno::INTR) => {}
            taken => return Ok(taken?),
        }
    }
}

/// Available bytes, checked before any is taken: a tmpfs may promise more than the machine has memory, and on the way
/// there the kernel ends other processes.
fn room(fd: &OwnedFd) -> io::Result<u64> {
    let system = rustix::fs::fstatvfs(fd)?;
    // Without a limit: no blocks.
    let free = if system.f_blocks == 0 { u64::MAX } else { system.f_bavail.saturating_mul(system.f_frsize) };
    let of_memory = rustix::fs::fstatfs(fd)?.f_type == TMPFS_MAGIC;
    Ok(free.min(if of_memory { available_memory().unwrap_or(u64::MAX) } else { u64::MAX }))
}

/// proc(5): memory available without swapping, and the free swap. None if proc does not report it.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Some((kibibytes("MemAvailable:")? + kibibytes("SwapFree:").unwrap_or(0)).saturating_mul(1024))
}

/// Fails if the name is taken, also by a link.
fn name(fd: impl std::os::fd::AsFd, path: &Path) -> io::Result<()> {
    let fd = fd.as_fd();
    match rustix::fs::linkat(fd, "", CWD, path, AtFlags::EMPTY_PATH) {
        // Before Linux 6.10 that is root's; the way by /proc is anybody's.
        Err(Errno::NOENT | Errno::PERM) => {
            let known = format!("/proc/self/fd/{}", fd.as_raw_fd());
            Ok(rustix::fs::linkat(CWD, known, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
        }
        named => Ok(named?),
    }
}

/// Opens what is there and looks at whose it is. Never waits (a pipe), never follows a link.
fn open(path: &Path, group: Option<u32>) -> Result<(OwnedFd, Stat), AttachError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::LOOP | Errno::ISDIR | Errno::NXIO => AttachError::NotAFile,
        error => AttachError::System(error.into()),
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|error| AttachError::System(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(AttachError::NotAFile);
    }
    let ours = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid) || group == Some(stat.st_gid);
    if !ours {
        return Err(AttachError::Foreign { user: stat.st_uid });
    }
    if stat.st_mode & 0o002 != 0 {
        return Err(AttachError::OpenToAll);
    }
    Ok((fd, stat))
}
