//! Attributes of files of the library file system.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};

use libc::{gid_t, mode_t, off_t, stat, statvfs, statx, statx_timestamp, timespec, uid_t};
use stack::rawfs::fs::{Fs, SetAttr, SetTime, Stat, Timestamp};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::memory::{self, offset_of};
use crate::mounted::Mount;
use crate::nfiles::{DIRECT_ALIGN, with_fs};
use crate::nmount::space;
use crate::nplace::{DirPath, from_dir, from_root};
use crate::ntypes::{NVMEDFS, NVMEDFS_READ_ONLY};

/// Converts attributes to stat(2).
fn to_c_stat(fs: &Fs, from: &Stat) -> stat {
    // SAFETY: integers alone, for which zeroes are values.
    let mut to: stat = unsafe { std::mem::zeroed() };
    to.st_dev = Mount::number(fs) as _;
    to.st_ino = from.ino as _;
    to.st_nlink = from.nlink as _;
    to.st_mode = from.mode as _;
    to.st_uid = from.uid;
    to.st_gid = from.gid;
    to.st_rdev = from.device as _;
    to.st_size = from.size as _;
    to.st_blksize = 4096;
    to.st_blocks = from.blocks as _;
    (to.st_atime, to.st_atime_nsec) = (from.atime.sec as _, from.atime.nsec as _);
    (to.st_mtime, to.st_mtime_nsec) = (from.mtime.sec as _, from.mtime.nsec as _);
    (to.st_ctime, to.st_ctime_nsec) = (from.ctime.sec as _, from.ctime.nsec as _);
    to
}

/// Converts attributes to statx(2): all requested fields and more.
fn told_x(fs: &Fs, from: &Stat) -> statx {
    let time = |stamp: Timestamp| {
        // SAFETY: integers alone, for which zeroes are values.
        let mut time: statx_timestamp = unsafe { std::mem::zeroed() };
        (time.tv_sec, time.tv_nsec) = (stamp.sec, stamp.nsec);
        time
    };
    let device = |number: u64| (libc::major(number as _) as u32, libc::minor(number as _) as u32);
    // SAFETY: integers alone, for which zeroes are values.
    let mut to: statx = unsafe { std::mem::zeroed() };
    to.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_DIOALIGN;
    (to.stx_ino, to.stx_nlink, to.stx_mode) = (from.ino, from.nlink, from.mode as u16);
    (to.stx_uid, to.stx_gid, to.stx_blksize) = (from.uid, from.gid, 4096);
    (to.stx_size, to.stx_blocks) = (from.size, from.blocks);
    (to.stx_atime, to.stx_mtime, to.stx_ctime, to.stx_btime) = (time(from.atime), time(from.mtime), time(from.ctime), time(from.btime));
    (to.stx_rdev_major, to.stx_rdev_minor) = device(from.device);
    (to.stx_dev_major, to.stx_dev_minor) = device(Mount::number(fs));
    (to.stx_dio_mem_align, to.stx_dio_offset_align) = (DIRECT_ALIGN as u32, DIRECT_ALIGN as u32);
    to
}

fn find(at: &DirPath<'_>, flags: c_int) -> ApiResult<Stat> {
    let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_SYNC_TYPE;
    if flags & !known != 0 {
        return Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x}: AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH")));
    }
    if at.path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        return Ok(at.node.stat()?);
    }
    Ok(at.fs.stat(at.node, at.path, flags & libc::AT_SYMLINK_NOFOLLOW == 0, &at.creds)?)
}

/// Works like stat(2). Thread-safe. Returns 0, or -1: any error of stat(2).
///
/// # Safety
/// `path` is NULL or a string; `st` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_stat(fs: *mut NVMEDFS, path: *const c_char, st: *mut stat) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { memory::fill(st, "the struct stat", from_root(fs, path, |at| Ok(to_c_stat(at.fs, &find(at, 0)?)))?) }
    })
}

/// Works like lstat(2). Thread-safe. Returns 0, or -1: any error of lstat(2).
///
/// # Safety
/// Works like nvmedfs_stat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_lstat(fs: *mut NVMEDFS, path: *const c_char, st: *mut stat) -> c_int {
    ffi_guard(|| {
        let of = |at: &DirPath<'_>| Ok(to_c_stat(at.fs, &find(at, libc::AT_SYMLINK_NOFOLLOW)?));
        // SAFETY: the caller's promise.
        unsafe { memory::fill(st, "the struct stat", from_root(fs, path, of)?) }
    })
}

/// Works like fstatat(2), with AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH. `dir` is the number of an open directory. Thread-safe.
///
/// # Safety
/// Works like nvmedfs_stat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fstatat(dir: c_int, path: *const c_char, st: *mut stat, flags: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { memory::fill(st, "the struct stat", from_dir(dir, path, |at| Ok(to_c_stat(at.fs, &find(at, flags)?)))?) }
    })
}

/// Works like fstat(2). Thread-safe. Returns 0, or -1: EBADF, EFAULT.
///
/// # Safety
/// `st` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fstat(fd: c_int, st: *mut stat) -> c_int {
    ffi_guard(|| {
        let found = with_fs(fd, |fs, file, _| Ok(to_c_stat(fs, &file.node().stat()?)))?;
        // SAFETY: the caller's promise.
        unsafe { memory::fill(st, "the struct stat", found) }
    })
}

/// Works like statx(2) from the root: including the birth time and the alignment for O_DIRECT. `mask` is ignored: all fields are set.
/// Thread-safe.
///
/// Returns 0, or -1: any error of statx(2).
///
/// # Safety
/// `path` is NULL or a string; `st` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_statx(fs: *mut NVMEDFS, path: *const c_char, flags: c_int, mask: u32, st: *mut statx) -> c_int {
    let _ = mask;
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        unsafe { memory::fill(st, "the struct statx", from_root(fs, path, |at| Ok(told_x(at.fs, &find(at, flags)?)))?) }
    })
}

/// Works like fstatvfs(3), of the file's file system. Thread-safe. Returns 0, or -1: EBADF, EFAULT.
///
/// # Safety
/// `buf` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fstatvfs(fd: c_int, buf: *mut statvfs) -> c_int {
    ffi_guard(|| {
        let space = with_fs(fd, |fs, _, mount| Ok(space(fs, mount.is(NVMEDFS_READ_ONLY))))?;
        // SAFETY: the caller's promise.
        unsafe { memory::fill(buf, "the struct statvfs", space) }
    })
}

fn access(at: &DirPath<'_>, mode: c_int) -> ApiResult<c_int> {
    let wanted = u16::try_from(mode).ok().filter(|mode| *mode <= 7);
    let wanted = wanted.ok_or_else(|| ApiError::new(libc::EINVAL, format!("mode {mode} of access: R_OK, W_OK, X_OK or F_OK")))?;
    at.fs.access(at.node, at.path, wanted, &at.creds)?;
    if wanted & 2 != 0 && at.mount.is(NVMEDFS_READ_ONLY) {
        return Err(ApiError::new(libc::EROFS, "the file system is mounted read-only"));
    }
    Ok(0)
}

/// Works like access(2); without NVMEDFS_CHECK whatever is there may be used. Thread-safe. Returns 0, or -1: any error of access(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_access(fs: *mut NVMEDFS, path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| access(at, mode)) })
}

/// Works like faccessat(2); see nvmedfs_access. `flags`: AT_EACCESS changes nothing. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    ffi_guard(|| {
        if flags & !libc::AT_EACCESS != 0 {
            return Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x} of faccessat: only AT_EACCESS is known")));
        }
        // SAFETY: the caller's promise.
        unsafe { from_dir(dir, path, |at| access(at, mode)) }
    })
}

/// Returns a change of permissions.
pub fn of_mode(mode: mode_t) -> SetAttr {
    SetAttr { mode: Some((mode & 0o7777) as u16), ..SetAttr::default() }
}

/// Returns a change of owner and group; -1 keeps one.
pub fn of_owner(owner: uid_t, group: gid_t) -> SetAttr {
    let wanted = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { owner: Some((wanted(owner), wanted(group))), ..SetAttr::default() }
}

/// Returns whether links are followed.
fn follows(flags: c_int) -> ApiResult<bool> {
    match flags {
        0 => Ok(true),
        libc::AT_SYMLINK_NOFOLLOW => Ok(false),
        _ => Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x}: only AT_SYMLINK_NOFOLLOW is known"))),
    }
}

fn set_open(fd: c_int, set: &SetAttr) -> ApiResult<c_int> {
    with_fs(fd, |fs, file, mount| mount.changed(fs, fs.set_attr(file.node(), set, &mount.creds())).map(|()| 0))
}

/// Works like chmod(2). Thread-safe. Returns 0, or -1: any error of chmod(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_chmod(fs: *mut NVMEDFS, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| at.set(true, &of_mode(mode))) })
}

/// Works like fchmod(2). Thread-safe. Returns 0, or -1: any error of fchmod(2).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fchmod(fd: c_int, mode: mode_t) -> c_int {
    ffi_guard(|| set_open(fd, &of_mode(mode)))
}

/// Works like fchmodat(2); AT_SYMLINK_NOFOLLOW is EOPNOTSUPP for a symbolic link. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
    ffi_guard(|| {
        let follow = follows(flags)?;
        let set = |at: &DirPath<'_>| {
            if !follow && at.node(false)?.kind() == stack::rawfs::fs::FileKind::Symlink {
                return Err(ApiError::new(libc::EOPNOTSUPP, "a symbolic link has no mode"));
            }
            at.set(follow, &of_mode(mode))
        };
        // SAFETY: the caller's promise.
        unsafe { from_dir(dir, path, set) }
    })
}

/// Works like chown(2). Thread-safe. Returns 0, or -1: any error of chown(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_chown(fs: *mut NVMEDFS, path: *const c_char, owner: uid_t, group: gid_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| at.set(true, &of_owner(owner, group))) })
}

/// Works like lchown(2). Thread-safe. Returns 0, or -1: any error of lchown(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_lchown(fs: *mut NVMEDFS, path: *const c_char, owner: uid_t, group: gid_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| at.set(false, &of_owner(owner, group))) })
}

/// Works like fchown(2). Thread-safe. Returns 0, or -1: any error of fchown(2).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int {
    ffi_guard(|| set_open(fd, &of_owner(owner, group)))
}

/// Works like fchownat(2), with AT_SYMLINK_NOFOLLOW. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fchownat(dir: c_int, path: *const c_char, owner: uid_t, group: gid_t, flags: c_int) -> c_int {
    ffi_guard(|| {
        let follow = follows(flags)?;
        // SAFETY: the caller's promise.
        unsafe { from_dir(dir, path, |at| at.set(follow, &of_owner(owner, group))) }
    })
}

/// Returns a change of times; NULL: to now.
///
/// # Safety
/// NULL, or two elements.
pub unsafe fn of_times(times: *const timespec) -> ApiResult<SetAttr> {
    let time = |time: timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(SetTime::Now),
        libc::UTIME_OMIT => Ok(SetTime::Omit),
        nsec @ 0..1_000_000_000 => Ok(SetTime::At(Timestamp { sec: time.tv_sec, nsec: nsec as u32 })),
        nsec => Err(ApiError::new(libc::EINVAL, format!("{nsec} nanoseconds are no part of a second"))),
    };
    if times.is_null() {
        return Ok(SetAttr { atime: SetTime::Now, mtime: SetTime::Now, ..SetAttr::default() });
    }
    // SAFETY: not NULL, the rest is the caller's promise.
    let (atime, mtime) = unsafe { (times.read(), times.add(1).read()) };
    Ok(SetAttr { atime: time(atime)?, mtime: time(mtime)?, ..SetAttr::default() })
}

/// Works like utimensat(2) from the root, with AT_SYMLINK_NOFOLLOW. Thread-safe. Returns 0, or -1: any error of utimensat(2).
///
/// # Safety
/// `path` is NULL or a string; `times` is NULL or has two elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_utimens(fs: *mut NVMEDFS, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let (set, follow) = (unsafe { of_times(times) }?, follows(flags)?);
        // SAFETY: the caller's promise.
        unsafe { from_root(fs, path, |at| at.set(follow, &set)) }
    })
}

/// Works like utimensat(2), with AT_SYMLINK_NOFOLLOW. `dir` is the number of an open directory. Thread-safe.
///
/// # Safety
/// Works like nvmedfs_utimens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let (set, follow) = (unsafe { of_times(times) }?, follows(flags)?);
        // SAFETY: the caller's promise.
        unsafe { from_dir(dir, path, |at| at.set(follow, &set)) }
    })
}

/// Works like futimens(2). Thread-safe. Returns 0, or -1: any error of futimens(2).
///
/// # Safety
/// `times` is NULL or has two elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_futimens(fd: c_int, times: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| set_open(fd, &unsafe { of_times(times) }?))
}

/// Works like truncate(2). Thread-safe. Returns 0, or -1: any error of truncate(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_truncate(fs: *mut NVMEDFS, path: *const c_char, len: off_t) -> c_int {
    ffi_guard(|| {
        let len = offset_of(len)?;
        let cut = |at: &DirPath<'_>| {
            at.fs.truncate(at.node, at.path, len, &at.creds)?;
            // The size is synced with the data.
            if at.mount.is(crate::ntypes::NVMEDFS_SYNC) { Ok(at.fs.sync().map(|()| 0)?) } else { Ok(0) }
        };
        // SAFETY: the caller's promise.
        unsafe { from_root(fs, path, cut) }
    })
}
