//! Extended attributes of files of the library file system.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int, c_void};

use libc::ssize_t;
use rustix::fs::XattrFlags;
use stack::rawfs::fs::{Creds, Fs, Node};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::memory::{self, Memory};
use crate::nfiles::with_fs;
use crate::nplace::from_root;
use crate::ntypes::NVMEDFS;

/// Stores a value as getxattr(2) does: with size 0, only its length.
fn copy_value(found: &[u8], to: Memory) -> ApiResult<ssize_t> {
    if to.len() == 0 {
        return Ok(found.len() as ssize_t);
    }
    if to.len() < found.len() {
        return Err(ApiError::new(libc::ERANGE, format!("it has {} bytes, and there is room for {}", found.len(), to.len())));
    }
    to.part(0, found.len()).with_mut(|to| to.copy_from_slice(found));
    Ok(found.len() as ssize_t)
}

/// An operation on a file node.
trait Does<T>: FnOnce(&Fs, &Node, &Creds) -> ApiResult<T> {}
impl<T, F: FnOnce(&Fs, &Node, &Creds) -> ApiResult<T>> Does<T> for F {}

/// # Safety
/// `path` is NULL or a string.
unsafe fn by_path<T>(fs: *mut NVMEDFS, path: *const c_char, follow: bool, does: impl Does<T>) -> ApiResult<T> {
    // SAFETY: the caller's promise.
    unsafe { from_root(fs, path, |at| at.changed(Ok(does(at.fs, &at.node(follow)?, &at.creds)?))) }
}

fn by_number<T>(fd: c_int, does: impl Does<T>) -> ApiResult<T> {
    with_fs(fd, |fs, file, mount| mount.changed(fs, Ok(does(fs, file.node(), &mount.creds())?)))
}

/// # Safety
/// `name` is NULL or a string; `value` has `n` bytes.
unsafe fn set<'a>(name: *const c_char, value: *const c_void, n: usize, flags: c_int) -> ApiResult<impl Does<c_int> + 'a> {
    // SAFETY: the caller's promise.
    let (name, value) = unsafe { (memory::bytes(name, "the name")?, Memory::new(value.cast_mut(), n)?) };
    let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
    Ok(move |fs: &Fs, node: &Node, creds: &Creds| Ok(value.with(|value| fs.set_xattr(node, name, value, flags, creds)).map(|()| 0)?))
}

/// # Safety
/// `name` is NULL or a string; `value` has `n` bytes.
unsafe fn get<'a>(name: *const c_char, value: *mut c_void, n: usize) -> ApiResult<impl Does<ssize_t> + 'a> {
    // SAFETY: the caller's promise.
    let (name, value) = unsafe { (memory::bytes(name, "the name")?, Memory::new(value, n)?) };
    Ok(move |fs: &Fs, node: &Node, creds: &Creds| copy_value(&fs.get_xattr(node, name, creds)?, value))
}

/// # Safety
/// `list` has `n` bytes.
unsafe fn list<'a>(list: *mut c_char, n: usize) -> ApiResult<impl Does<ssize_t> + 'a> {
    // SAFETY: the caller's promise.
    let list = unsafe { Memory::new(list.cast(), n) }?;
    Ok(move |fs: &Fs, node: &Node, creds: &Creds| copy_value(&fs.list_xattrs(node, creds)?, list))
}

/// # Safety
/// `name` is NULL or a string.
unsafe fn remove<'a>(name: *const c_char) -> ApiResult<impl Does<c_int> + 'a> {
    // SAFETY: the caller's promise.
    let name = unsafe { memory::bytes(name, "the name") }?;
    Ok(move |fs: &Fs, node: &Node, creds: &Creds| Ok(fs.remove_xattr(node, name, creds).map(|()| 0)?))
}

/// Works like setxattr(2), with XATTR_CREATE and XATTR_REPLACE; names begin with user., trusted. or security. Thread-safe.
///
/// Returns 0, or -1: any error of setxattr(2); ENOSPC (also: all of a file are more than 4 KiB).
///
/// # Safety
/// `path` is NULL or a string; `name` is NULL or a string; `value` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_setxattr(
    fs: *mut NVMEDFS,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    n: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, true, set(name, value, n, flags)?) })
}

/// Works like lsetxattr(2); see nvmedfs_setxattr. Thread-safe.
///
/// # Safety
/// Works like nvmedfs_setxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_lsetxattr(
    fs: *mut NVMEDFS,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    n: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, false, set(name, value, n, flags)?) })
}

/// Works like fsetxattr(2); see nvmedfs_setxattr. Thread-safe.
///
/// # Safety
/// `name` is NULL or a string; `value` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, n: usize, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| by_number(fd, unsafe { set(name, value, n, flags) }?))
}

/// Works like getxattr(2) (with `n` 0 only how long it is). Thread-safe. Returns the number of bytes, or -1: any error of getxattr(2).
///
/// # Safety
/// `path` is NULL or a string; `name` is NULL or a string; `value` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_getxattr(
    fs: *mut NVMEDFS,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    n: usize,
) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, true, get(name, value, n)?) })
}

/// Works like lgetxattr(2); see nvmedfs_getxattr. Thread-safe.
///
/// # Safety
/// Works like nvmedfs_getxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_lgetxattr(
    fs: *mut NVMEDFS,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    n: usize,
) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, false, get(name, value, n)?) })
}

/// Works like fgetxattr(2); see nvmedfs_getxattr. Thread-safe.
///
/// # Safety
/// `name` is NULL or a string; `value` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, n: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| by_number(fd, unsafe { get(name, value, n) }?))
}

/// Works like listxattr(2): each name with a zero byte behind it; with `n` 0 only how long they are. Thread-safe.
///
/// Returns the number of bytes, or -1: any error of listxattr(2).
///
/// # Safety
/// `path` is NULL or a string; `list` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_listxattr(fs: *mut NVMEDFS, path: *const c_char, list: *mut c_char, n: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, true, self::list(list, n)?) })
}

/// Works like llistxattr(2); see nvmedfs_listxattr. Thread-safe.
///
/// # Safety
/// Works like nvmedfs_listxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_llistxattr(fs: *mut NVMEDFS, path: *const c_char, list: *mut c_char, n: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, false, self::list(list, n)?) })
}

/// Works like flistxattr(2); see nvmedfs_listxattr. Thread-safe.
///
/// # Safety
/// `list` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_flistxattr(fd: c_int, list: *mut c_char, n: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    ffi_guard(|| by_number(fd, unsafe { self::list(list, n) }?))
}

/// Works like removexattr(2). Thread-safe. Returns 0, or -1: any error of removexattr(2).
///
/// # Safety
/// `path` is NULL or a string; `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_removexattr(fs: *mut NVMEDFS, path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, true, remove(name)?) })
}

/// Works like lremovexattr(2); see nvmedfs_removexattr. Thread-safe.
///
/// # Safety
/// Works like nvmedfs_removexattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_lremovexattr(fs: *mut NVMEDFS, path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { by_path(fs, path, false, remove(name)?) })
}

/// Works like fremovexattr(2); see nvmedfs_removexattr. Thread-safe.
///
/// # Safety
/// `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_fremovexattr(fd: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| by_number(fd, unsafe { remove(name) }?))
}
