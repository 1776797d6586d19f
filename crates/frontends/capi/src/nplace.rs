//! Base directories of paths: the root of a file system, or an open directory.
#![expect(unsafe_code, reason = "strings of the program")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use stack::rawfs::fs::{Creds, Fs, Node, SetAttr};

use crate::api_error::{ApiError, ApiResult};
use crate::memory;
use crate::mounted::Mount;
use crate::nfiles::{Open, share};
use crate::ntypes::NVMEDFS;
use crate::objects::with;

/// A path with its base directory and the caller's credentials.
pub struct DirPath<'a> {
    /// The mount that the path belongs to.
    pub mount: &'a Arc<Mount>,
    /// The file system of the mount.
    pub fs: &'a Fs,
    /// The directory where a relative path starts.
    pub node: &'a Node,
    /// The credentials with which permissions are checked.
    pub creds: Creds,
    /// The path as the program passed it.
    pub path: &'a [u8],
}

impl DirPath<'_> {
    /// Finishes a call that changed something.
    pub fn changed<T>(&self, done: stack::rawfs::fs::Result<T>) -> ApiResult<T> {
        self.mount.changed(self.fs, done)
    }

    /// Looks up the node of the path.
    pub fn node(&self, follow: bool) -> ApiResult<Node> {
        Ok(self.fs.lookup(self.node, self.path, follow, &self.creds)?)
    }

    /// Sets attributes of the node of the path.
    pub fn set(&self, follow: bool, set: &SetAttr) -> ApiResult<c_int> {
        let node = self.node(follow)?;
        self.changed(self.fs.set_attr(&node, set, &self.creds)).map(|()| 0)
    }
}

#[cold]
#[inline(never)]
fn named(path: &[u8], fail: ApiError) -> ApiError {
    fail.named(&String::from_utf8_lossy(path))
}

/// Runs a call with a path relative to the root.
pub fn below_root<T>(mount: &Arc<Mount>, path: &[u8], call: impl FnOnce(&DirPath<'_>) -> ApiResult<T>) -> ApiResult<T> {
    mount.run(|fs| call(&DirPath { mount, fs, node: fs.root(), creds: mount.creds(), path }).map_err(|fail| named(path, fail)))
}

/// Runs a call with a path relative to an open directory.
pub fn below_dir<T>(open: &Open, path: &[u8], call: impl FnOnce(&DirPath<'_>) -> ApiResult<T>) -> ApiResult<T> {
    let mount: &Arc<Mount> = &open.mount;
    let of = |fs: &Fs| call(&DirPath { mount, fs, node: open.file.node(), creds: mount.creds(), path }).map_err(|fail| named(path, fail));
    mount.run(of)
}

/// # Safety
/// `path` is NULL or a string.
pub unsafe fn from_root<T>(fs: *const NVMEDFS, path: *const c_char, call: impl FnOnce(&DirPath<'_>) -> ApiResult<T>) -> ApiResult<T> {
    // SAFETY: the caller's promise.
    let path = unsafe { memory::bytes(path, "the path") }?;
    with(fs, |mount: &Arc<Mount>| below_root(mount, path, call))
}

/// # Safety
/// `path` is NULL or a string.
pub unsafe fn from_dir<T>(dir: c_int, path: *const c_char, call: impl FnOnce(&DirPath<'_>) -> ApiResult<T>) -> ApiResult<T> {
    // SAFETY: the caller's promise.
    below_dir(&*share(dir)?, unsafe { memory::bytes(path, "the path") }?, call)
}
