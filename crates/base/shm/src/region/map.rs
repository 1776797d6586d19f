//! Mappings of memory: anonymous, shared, and of files.

use super::*;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// statfs(2).
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn region(base: *mut std::ffi::c_void, len: usize, fd: Option<OwnedFd>) -> Region {
    let base = NonNull::new(base.cast()).expect("a mapping is never at address 0");
    Region { base, len, fd }
}

/// Maps private zeroed memory, with huge pages if wanted.
pub fn private(len: usize, join: bool) -> io::Result<Region> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE)? };
    if join {
        // Only a hint: kernels without it are no failure.
        // SAFETY: the whole of the mapping just made; the advice changes no bytes.
        let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
    }
    Ok(region(base, len, None))
}

/// Asks the kernel to zero the memory in forked children.
pub fn wiped_by_fork(base: NonNull<u8>, len: usize) -> bool {
    // SAFETY: a whole mapping of this type; the advice changes no bytes of this process.
    unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxWipeOnFork) }.is_ok()
}

/// Maps huge pages if the kernel has enough of them.
pub fn huge(len: usize) -> Option<Region> {
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice. The pages are reserved at once, or it fails.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, READ_WRITE, flags) }.ok()?;
    Some(region(base, len, None))
}

/// Maps a new sealed memfd of this length.
pub fn shared(name: &str, len: usize) -> io::Result<Region> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    map_fd(fd, len)
}

/// Maps a memfd that another process has sealed.
pub fn attach(fd: OwnedFd, len: usize) -> Result<Region, AttachError> {
    let system = |error: rustix::io::Errno| AttachError::System(error.into());
    if !fcntl_get_seals(&fd).map_err(system)?.contains(SealFlags::SHRINK) {
        return Err(AttachError::MayShrink);
    }
    if fstatfs(&fd).map_err(system)?.f_type == HUGETLBFS_MAGIC {
        return Err(AttachError::HugePages);
    }
    let bytes = u64::try_from(fstat(&fd).map_err(system)?.st_size).unwrap_or(0);
    if bytes < len as u64 || len == 0 {
        return Err(AttachError::TooSmall { bytes, wanted: len as u64 });
    }
    map_fd(fd, len).map_err(AttachError::System)
}

/// linux/mman.h
const MADV_COLLAPSE: libc::c_int = 25;
/// Bytes of a call: each call waits for all CPUs once.
const JOINED_AT_ONCE: usize = 64 << 20;

/// The CPU time of this thread.
fn processor_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Collapses small pages into huge ones, within a time limit.
pub fn join_pages(base: NonNull<u8>, len: usize, most: std::time::Duration) {
    let begun = processor_time();
    let whole = len / HUGE_BYTES * HUGE_BYTES;
    for at in (0..whole).step_by(JOINED_AT_ONCE) {
        // SAFETY: within a mapping of this type; the advice changes no bytes.
        let joined = unsafe { libc::madvise(base.as_ptr().add(at).cast(), JOINED_AT_ONCE.min(whole - at), MADV_COLLAPSE) };
        // Somebody has a hand on one of them, and the rest is joined; else an older kernel, or no such pages are free: it works with
        // small ones, too.
        let is_refused = joined != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN);
        if is_refused || processor_time().saturating_sub(begun) > most {
            break;
        }
    }
}

/// Maps a file of this length, shared.
pub fn file(fd: OwnedFd, len: usize) -> io::Result<Region> {
    let region = map_file(fd, len)?;
    // A dying process counts as living until its core is written: keep that short. Only a hint.
    // SAFETY: the whole of the mapping just made; the advice changes no bytes.
    let _ = unsafe { madvise(region.base.as_ptr().cast(), len, Advice::LinuxDontDump) };
    Ok(region)
}

fn map_fd(fd: OwnedFd, len: usize) -> io::Result<Region> {
    // SAFETY: a new mapping at an address of the kernel's choice, of a file that cannot shrink.
    let base = unsafe { mmap(std::ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED, &fd, 0)? };
    Ok(region(base, len, Some(fd)))
}

/// At a multiple of a huge page, so that the kernel can map such.
fn map_file(fd: OwnedFd, len: usize) -> io::Result<Region> {
    if len < HUGE_BYTES {
        return map_fd(fd, len);
    }
    let reserved = len.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody may touch.
    let begin = unsafe { mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)? };
    let before = begin.addr().next_multiple_of(HUGE_BYTES) - begin.addr();
    // SAFETY: over a part of what was just reserved, of a file that cannot shrink.
    let mapped = unsafe { mmap(begin.byte_add(before), len, READ_WRITE, MapFlags::SHARED | MapFlags::FIXED, &fd, 0) };
    let unused = match mapped {
        Ok(_) => [(0, before), (before + len, reserved - before - len)],
        Err(_) => [(0, reserved), (0, 0)],
    };
    for (at, bytes) in unused.into_iter().filter(|(_, bytes)| *bytes > 0) {
        // SAFETY: what was reserved above and nothing was put into.
        let unmapped = unsafe { munmap(begin.byte_add(at), bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
    Ok(region(mapped?, len, Some(fd)))
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every use of it borrowed `self`, or kept it alive.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
