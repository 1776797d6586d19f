//! Extended attributes.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use fusedev::Caller;
use rustix::fs::{StatVfsMountFlags, XattrFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::Result;
use crate::cache::FileCache;
use crate::directory::{DirectoryFs, proc_path};
use crate::nodes::Node;
use crate::remembered::XattrSet;

/// The access control list of a file.
pub(crate) const ACCESS_LIST: &str = "system.posix_acl_access";
/// The access control list that new files of a directory get.
pub(crate) const DEFAULT_LIST: &str = "system.posix_acl_default";

/// Repeats a query with larger buffers until the answer fits.
fn whole(mut query: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 256];
    loop {
        match query(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            // The longest value and the longest list are 64 KiB (xattr(7)).
            Err(Errno::RANGE) if buffer.len() < 1 << 17 => buffer.resize(buffer.len() * 8, 0),
            Err(error) => return Err(error),
        }
    }
}

impl<C: FileCache> DirectoryFs<C> {
    /// Returns whether a file has an attribute.
    pub(crate) fn has_xattr(&self, caller: Caller, file: BorrowedFd<'_>, name: &str) -> bool {
        self.also_as_caller(caller, || rustix::fs::getxattr(&*proc_path(file), name, &mut [0u8; 0][..])).is_ok()
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA, or as getxattr(2).
    pub fn getxattr(&self, caller: Caller, number: u64, name: &OsStr) -> Result<Vec<u8>> {
        let asked = match name.as_bytes() {
            name if name == ACCESS_LIST.as_bytes() => Some(XattrSet::ACCESS_LIST),
            name if name == DEFAULT_LIST.as_bytes() => Some(XattrSet::DEFAULT_LIST),
            _ => None,
        };
        if let Some(error) = asked.and_then(|asked| self.known_xattr_error(number, asked)) {
            return Err(error);
        }
        let moment = self.moment();
        let node = self.node(caller, number)?;
        let hides_capabilities = || Ok(rustix::fs::fstatvfs(node.as_fd())?.f_flag.contains(StatVfsMountFlags::NOSUID));
        if name == "security.capability" && self.honours_set_id && hides_capabilities()? {
            return Err(Errno::NODATA);
        }
        let path = proc_path(node.as_fd());
        let value = self.also_as_caller(caller, || whole(|buffer| rustix::fs::getxattr(&*path, name, buffer)));
        if let (Some(asked), Err(error)) = (asked, &value) {
            self.remember_xattr_error(&node, asked, *error, moment);
        }
        value
    }

    /// Returns the names of the extended attributes, each ended by a zero byte. Only root sees those of root.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn listxattr(&self, caller: Caller, number: u64) -> Result<Vec<u8>> {
        match self.known_xattr_error(number, XattrSet::NAMES) {
            Some(Errno::NODATA) => return Ok(Vec::new()),
            Some(error) => return Err(error),
            None => {}
        }
        let moment = self.moment();
        let node = self.node(caller, number)?;
        let path = proc_path(node.as_fd());
        let all = self.also_as_caller(caller, || whole(|buffer| rustix::fs::listxattr(&*path, buffer)));
        let error = all.as_ref().map_or_else(|error| Some(*error), |all| all.is_empty().then_some(Errno::NODATA));
        if let Some(error) = error {
            self.remember_xattr_error(&node, XattrSet::NAMES, error, moment);
        }
        let all = all?;
        if caller.is_root() {
            return Ok(all);
        }
        Ok(all.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn setxattr(&self, caller: Caller, number: u64, name: &OsStr, value: &[u8], flags: u32) -> Result<()> {
        let node = self.node(caller, number)?;
        self.may_change_attribute(caller, &node, name)?;
        let path = proc_path(node.as_fd());
        let mut set = || rustix::fs::setxattr(&*path, name, value, XattrFlags::from_bits_retain(flags));
        let mut change = || self.also_as_caller(caller, &mut set);
        let set = self.nodes.with_descriptors(|| self.cache.change(node.as_fd(), &mut change));
        self.forget_attributes(number);
        set?;
        if name == ACCESS_LIST { self.take_foreign_set_gid(caller, &node) } else { Ok(()) }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn removexattr(&self, caller: Caller, number: u64, name: &OsStr) -> Result<()> {
        let node = self.node(caller, number)?;
        self.may_change_attribute(caller, &node, name)?;
        if name == "security.capability" {
            self.may_take_capabilities(caller, &node)?;
        }
        let path = proc_path(node.as_fd());
        let mut remove = || rustix::fs::removexattr(&*path, name);
        let mut change = || self.also_as_caller(caller, &mut remove);
        let removed = self.nodes.with_descriptors(|| self.cache.change(node.as_fd(), &mut change));
        self.forget_attributes(number);
        removed
    }

    /// Checks the present owner and mode: only the owner changes access control lists, and whoever may write changes attributes of users.
    fn may_change_attribute(&self, caller: Caller, node: &Node, name: &OsStr) -> Result<()> {
        if name.as_bytes().starts_with(b"user.") && !node.is_dir() {
            return self.may_open(caller, node, false, true);
        }
        let is_list = name.as_bytes().starts_with(b"system.posix_acl_");
        if !is_list || caller.owns_or_has(node.stat()?.permissions(), CapabilitySet::FOWNER) { Ok(()) } else { Err(Errno::PERM) }
    }
}
