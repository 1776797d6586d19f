//! Admin commands to a drive of the kernel's driver, through the node of its controller (/dev/nvme0) or of a namespace (/dev/ng0n1).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::uring::{identify, log_page};

/// An open node of an NVMe controller or namespace.
#[derive(Debug)]
pub struct AdminNode(File);

impl AdminNode {
    /// Opens the node at `path` for reading.
    ///
    /// # Errors
    /// Fails with the error of the kernel.
    pub fn open(path: &Path) -> io::Result<AdminNode> {
        Ok(AdminNode(File::open(path)?))
    }

    /// Returns an Identify page: `what` is the CNS value, `namespace` the namespace ID (0: none).
    ///
    /// # Errors
    /// Fails if the kernel refuses (before Linux 6.2 it requires CAP_SYS_ADMIN), or the drive does.
    pub fn identify(&self, what: u8, namespace: u32) -> io::Result<Box<[u8; 4096]>> {
        identify(self.0.as_fd(), namespace, what.into())
    }

    /// Returns the first 512 bytes of a log page, padded with zeroes.
    ///
    /// # Errors
    /// Fails as [`AdminNode::identify`] does.
    pub fn log_page(&self, page: u8) -> io::Result<Box<[u8; 4096]>> {
        log_page(self.0.as_fd(), page)
    }
}
