//! A mount of our own of the same file system, out of everybody's sight: open files below the users' mount would keep them from
//! unmounting it. It keeps the file system alive, so it must go when theirs has gone.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::CWD;
use rustix::mount::OpenTreeFlags;

use crate::source;

/// The kernel's list of mounts, and the device that is looked for in it.
#[derive(Debug)]
pub struct Watch {
    list: File,
    device: String,
}

/// Makes one, of what is mounted there. Before the users know of the mount: for a moment this is what keeps them from unmounting.
pub fn take(mountpoint: &Path) -> std::io::Result<(OwnedFd, Watch)> {
    let watch = Watch { list: File::open("/proc/self/mountinfo")?, device: source::device_at(mountpoint).ok_or(rustix::io::Errno::NOENT)? };
    let tree = rustix::mount::open_tree(CWD, mountpoint, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    Ok((tree, watch))
}

impl Watch {
    /// Returns when the file system is mounted nowhere any more, as far as can be seen here (proc_pid_mountinfo(5), mount_namespaces(7)).
    pub fn until_unmounted(&self) -> std::io::Result<()> {
        while source::is_mounted(&self.device)? {
            let mut list = [PollFd::new(&self.list, PollFlags::PRI)];
            match rustix::event::poll(&mut list, None) {
                Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}
