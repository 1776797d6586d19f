//! Names of the library file system: create, remove, rename, link.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};

use libc::{dev_t, mode_t, ssize_t};
use rustix::fs::RenameFlags;
use stack::rawfs::fs::FileKind;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::memory;
use crate::nfiles::share;
use crate::nplace::{DirPath, below_dir, from_dir, from_root};
use crate::ntypes::NVMEDFS;

/// Keeps the permission bits of a mode.
fn permissions(mode: mode_t) -> u16 {
    (mode & 0o7777) as u16
}

/// Creates a directory at a path.
pub fn mkdir(at: &DirPath<'_>, mode: mode_t) -> ApiResult<c_int> {
    at.changed(at.fs.mkdir(at.node, at.path, permissions(mode), &at.creds)).map(|_| 0)
}

fn mknod(at: &DirPath<'_>, mode: mode_t, device: dev_t) -> ApiResult<c_int> {
    let kind = match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::File,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        libc::S_IFDIR => return Err(ApiError::new(libc::EPERM, "a directory is made by nvmedfs_mkdir")),
        kind => return Err(ApiError::new(libc::EINVAL, format!("{kind:#o} is no kind of file"))),
    };
    at.changed(at.fs.mknod(at.node, at.path, kind, permissions(mode), device, &at.creds)).map(|_| 0)
}

/// Removes a name; AT_REMOVEDIR: an empty directory.
pub fn unlink_at(at: &DirPath<'_>, flags: c_int) -> ApiResult<c_int> {
    let done = match flags {
        0 => at.fs.unlink(at.node, at.path, &at.creds),
        libc::AT_REMOVEDIR => at.fs.rmdir(at.node, at.path, &at.creds),
        _ => return Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x} of unlinkat: only AT_REMOVEDIR is known"))),
    };
    at.changed(done).map(|()| 0)
}

fn symlink(target: &[u8], at: &DirPath<'_>) -> ApiResult<c_int> {
    at.changed(at.fs.symlink(target, at.node, at.path, &at.creds)).map(|_| 0)
}

/// Renames within the same file system.
pub fn rename(from: &DirPath<'_>, to: &DirPath<'_>, flags: u32) -> ApiResult<c_int> {
    if !std::sync::Arc::ptr_eq(from.mount, to.mount) {
        return Err(ApiError::new(libc::EXDEV, "the new name is in another file system"));
    }
    let flags = RenameFlags::from_bits_retain(flags);
    from.changed(from.fs.rename(from.node, from.path, to.node, to.path, flags, &from.creds)).map(|()| 0)
}

fn link(from: &DirPath<'_>, to: &DirPath<'_>, flags: c_int) -> ApiResult<c_int> {
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(ApiError::new(libc::EINVAL, format!("flags {flags:#x} of linkat: AT_SYMLINK_FOLLOW, AT_EMPTY_PATH")));
    }
    if !std::sync::Arc::ptr_eq(from.mount, to.mount) {
        return Err(ApiError::new(libc::EXDEV, "the new name is in another file system"));
    }
    let is_held = flags & libc::AT_EMPTY_PATH != 0 && from.path.is_empty();
    let node = if is_held { from.node.clone() } else { from.node(flags & libc::AT_SYMLINK_FOLLOW != 0)? };
    from.changed(from.fs.link(&node, to.node, to.path, &from.creds)).map(|()| 0)
}

/// Reads the target of a symbolic link into the buffer.
///
/// # Safety
/// `buf` has `n` bytes.
unsafe fn readlink(at: &DirPath<'_>, buf: *mut c_char, n: usize) -> ApiResult<ssize_t> {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory::Memory::new(buf.cast(), n) }?;
    if n == 0 {
        return Err(ApiError::new(libc::EINVAL, "there is no room for the target"));
    }
    let target = at.fs.readlink(at.node, at.path, &at.creds)?;
    let len = target.len().min(n);
    memory.part(0, len).with_mut(|to| to.copy_from_slice(&target[..len]));
    Ok(len as ssize_t)
}

/// Works like mkdir(2). Thread-safe. Returns 0, or -1: any error of mkdir(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mkdir(fs: *mut NVMEDFS, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| mkdir(at, mode)) })
}

/// Works like mkdirat(2). `dir` is the number of an open directory. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_dir(dir, path, |at| mkdir(at, mode)) })
}

/// Works like mknod(2): also pipes, sockets and devices, which have names and attributes here, and cannot be opened. Thread-safe.
///
/// Returns 0, or -1: any error of mknod(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mknod(fs: *mut NVMEDFS, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| mknod(at, mode, device)) })
}

/// Works like mknodat(2); see nvmedfs_mknod. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_dir(dir, path, |at| mknod(at, mode, device)) })
}

/// Works like mkfifo(3); see nvmedfs_mknod. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mkfifo(fs: *mut NVMEDFS, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| mknod(at, (mode & 0o7777) | libc::S_IFIFO, 0)) })
}

/// Works like mkfifoat(3); see nvmedfs_mknod. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mkfifoat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_dir(dir, path, |at| mknod(at, (mode & 0o7777) | libc::S_IFIFO, 0)) })
}

/// Works like readlink(2): no zero byte follows. Thread-safe. Returns the number of bytes, or -1: any error of readlink(2).
///
/// # Safety
/// `path` is NULL or a string; `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_readlink(fs: *mut NVMEDFS, path: *const c_char, buf: *mut c_char, n: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| readlink(at, buf, n)) })
}

/// Works like readlinkat(2). Thread-safe. Returns as nvmedfs_readlink.
///
/// # Safety
/// `path` is NULL or a string; `buf` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, n: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_dir(dir, path, |at| readlink(at, buf, n)) })
}

/// Works like unlink(2). An open file lives until it is closed. Thread-safe. Returns 0, or -1: any error of unlink(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_unlink(fs: *mut NVMEDFS, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| unlink_at(at, 0)) })
}

/// Works like unlinkat(2), AT_REMOVEDIR included. `dir` is the number of an open directory. Thread-safe.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_dir(dir, path, |at| unlink_at(at, flags)) })
}

/// Works like rmdir(2). Thread-safe. Returns 0, or -1: any error of rmdir(2).
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_rmdir(fs: *mut NVMEDFS, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { from_root(fs, path, |at| unlink_at(at, libc::AT_REMOVEDIR)) })
}

/// Works like symlink(2): `path` becomes a link to `target`. Thread-safe. Returns 0, or -1: any error of symlink(2).
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_symlink(fs: *mut NVMEDFS, target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe {
        let target = memory::bytes(target, "the target")?;
        from_root(fs, path, |at| symlink(target, at))
    })
}

/// Works like symlinkat(2). Thread-safe. Returns as nvmedfs_symlink.
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe {
        let target = memory::bytes(target, "the target")?;
        from_dir(dir, path, |at| symlink(target, at))
    })
}

/// Works like rename(2); renaming a directory takes constant time. Thread-safe. Returns 0, or -1: any error of rename(2).
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_rename(fs: *mut NVMEDFS, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe {
        let to = memory::bytes(to, "the new name")?;
        from_root(fs, from, |at| rename(at, &DirPath { path: to, creds: at.creds.clone(), ..*at }, 0))
    })
}

/// Works like renameat2(2), with RENAME_NOREPLACE and RENAME_EXCHANGE. Thread-safe. Returns 0, or -1: any error of renameat2(2).
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: u32) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe {
        let to = memory::bytes(to, "the new name")?;
        self::from_dir(from_dir, from, |from| below_dir(&*share(to_dir)?, to, |to| rename(from, to, flags)))
    })
}

/// Works like link(2). Thread-safe. Returns 0, or -1: any error of link(2).
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_link(fs: *mut NVMEDFS, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe {
        let to = memory::bytes(to, "the new name")?;
        from_root(fs, from, |at| link(at, &DirPath { path: to, creds: at.creds.clone(), ..*at }, 0))
    })
}

/// Works like linkat(2), with AT_SYMLINK_FOLLOW, and with AT_EMPTY_PATH, which gives an O_TMPFILE file (`from_dir`) its name. Thread-safe.
///
/// Returns 0, or -1: any error of linkat(2).
///
/// # Safety
/// Both are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe {
        let to = memory::bytes(to, "the new name")?;
        self::from_dir(from_dir, from, |from| below_dir(&*share(to_dir)?, to, |to| link(from, to, flags)))
    })
}

/// Works like realpath(3), from the file system's root; the result needs PATH_MAX (4096) bytes. Thread-safe.
///
/// Returns `resolved`, or NULL: any error of realpath(3); EFAULT (`resolved` is NULL); ENAMETOOLONG.
///
/// # Safety
/// `path` is NULL or a string; `resolved` has 4096 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_realpath(fs: *mut NVMEDFS, path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { from_root(fs, path, |at| Ok(at.fs.real_path(at.node, at.path, &at.creds)?)) }?;
        if found.len() >= libc::PATH_MAX as usize {
            return Err(ApiError::new(libc::ENAMETOOLONG, "the path from the root is longer than 4095 bytes"));
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { memory::Memory::new(resolved.cast(), found.len() + 1) }?;
        memory.with_mut(|to| {
            to[..found.len()].copy_from_slice(&found);
            to[found.len()] = 0;
        });
        Ok(resolved)
    })
}
