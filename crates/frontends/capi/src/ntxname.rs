//! Names and attributes in transactions.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use libc::{gid_t, mode_t, timespec, uid_t};
use rustix::fs::RenameFlags;
use stack::rawfs::fs::{SetAttr, Transaction};

use crate::api_error::ApiResult;
use crate::guard::ffi_guard;
use crate::memory;
use crate::nattr::{of_mode, of_owner, of_times};
use crate::nplace::{DirPath, below_root};
use crate::ntx::{Tx, with_file};
use crate::ntypes::NVMEDFS_TX;
use crate::objects::with;

/// Adds a change of the file at a path.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn gather(
    tx: *mut NVMEDFS_TX,
    path: *const c_char,
    change: impl FnOnce(&mut Transaction, &DirPath<'_>) -> stack::rawfs::fs::Result<()>,
) -> ApiResult<c_int> {
    // SAFETY: the caller's promise.
    let path = unsafe { memory::bytes(path, "the path") }?;
    with(tx, |tx: &Arc<Tx>| below_root(&tx.mount()?, path, |at| tx.gather(|gathered| Ok(change(gathered, at).map(|()| 0)?))))
}

/// Works like nvmedfs_mkdir, at the commit. Later calls of the same transaction find the directory. Thread-safe.
///
/// Returns 0, or -1: EBADF; EFAULT. The commit reports the rest: any error of nvmedfs_mkdir.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_mkdir(tx: *mut NVMEDFS_TX, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { gather(tx, path, |tx, at| tx.mkdir(at.node, at.path, (mode & 0o7777) as u16, &at.creds)) })
}

/// Works like nvmedfs_symlink, at the commit. Thread-safe. Returns as nvmedfs_tx_mkdir.
///
/// # Safety
/// `target` and `path` are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_symlink(tx: *mut NVMEDFS_TX, target: *const c_char, path: *const c_char) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let target = unsafe { memory::bytes(target, "the target") }?;
        // SAFETY: the caller's promise.
        unsafe { gather(tx, path, |tx, at| tx.symlink(target, at.node, at.path, &at.creds)) }
    })
}

/// Works like nvmedfs_unlink, at the commit. An open file lives until it is closed. Thread-safe. Returns as nvmedfs_tx_mkdir.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_unlink(tx: *mut NVMEDFS_TX, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { gather(tx, path, |tx, at| tx.unlink(at.node, at.path, &at.creds)) })
}

/// Works like nvmedfs_rmdir, at the commit: its entries may be removed earlier in the same transaction. Thread-safe. Returns as
/// nvmedfs_tx_mkdir.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_rmdir(tx: *mut NVMEDFS_TX, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { gather(tx, path, |tx, at| tx.rmdir(at.node, at.path, &at.creds)) })
}

/// Works like renameat2(2) from `from` to `to`, both from the root, at the commit: also of directories of any size.
/// `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE. Thread-safe. Returns as nvmedfs_tx_mkdir.
///
/// # Safety
/// `from` and `to` are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_rename(tx: *mut NVMEDFS_TX, from: *const c_char, to: *const c_char, flags: u32) -> c_int {
    ffi_guard(|| {
        // SAFETY: the caller's promise.
        let to = unsafe { memory::bytes(to, "the new path") }?;
        let flags = RenameFlags::from_bits_retain(flags);
        // SAFETY: the caller's promise.
        unsafe { gather(tx, from, |tx, at| tx.rename(at.node, at.path, at.node, to, flags, &at.creds)) }
    })
}

fn set(tx: *mut NVMEDFS_TX, fd: c_int, set: &SetAttr) -> ApiResult<c_int> {
    let creds = with(tx, |tx: &Arc<Tx>| tx.mount())?.creds();
    with_file(tx, fd, |tx, file| Ok(tx.set_attr(file.node(), set, &creds).map(|()| 0)?))
}

/// Works like nvmedfs_fchmod, at the commit; `fd` may also be a directory, or opened with O_PATH. Thread-safe.
///
/// Returns 0, or -1: EBADF; EXDEV. The commit reports the rest: EPERM; ENOENT (a removed directory).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_tx_fchmod(tx: *mut NVMEDFS_TX, fd: c_int, mode: mode_t) -> c_int {
    ffi_guard(|| set(tx, fd, &of_mode(mode)))
}

/// Works like nvmedfs_fchown, at the commit. Thread-safe. Returns as nvmedfs_tx_fchmod.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_tx_fchown(tx: *mut NVMEDFS_TX, fd: c_int, owner: uid_t, group: gid_t) -> c_int {
    ffi_guard(|| set(tx, fd, &of_owner(owner, group)))
}

/// Works like nvmedfs_futimens, at the commit. Thread-safe. Returns as nvmedfs_tx_fchmod; also EINVAL.
///
/// # Safety
/// `times` is NULL or has two elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_tx_futimens(tx: *mut NVMEDFS_TX, fd: c_int, times: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| set(tx, fd, &unsafe { of_times(times) }?))
}
