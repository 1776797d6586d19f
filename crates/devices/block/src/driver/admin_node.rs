//! Questions to a drive that the kernel drives: through the node of its controller (/dev/nvme0) or of a namespace (/dev/ng0n1).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::uring::{identify, log_page};

/// An open node.
#[derive(Debug)]
pub struct AdminNode(File);

impl AdminNode {
    /// Opens it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(path: &Path) -> io::Result<AdminNode> {
        Ok(AdminNode(File::open(path)?))
    }

    /// A page of Identify: what (CNS), of which namespace (0: none).
    ///
    /// # Errors
    /// The kernel refuses (before Linux 6.2 this is CAP_SYS_ADMIN's), or the drive does.
    pub fn identify(&self, what: u8, namespace: u32) -> io::Result<Box<[u8; 4096]>> {
        identify(self.0.as_fd(), namespace, what.into())
    }

    /// The first 512 bytes of a log page, the rest zeroes.
    ///
    /// # Errors
    /// As [`AdminNode::identify`].
    pub fn log_page(&self, page: u8) -> io::Result<Box<[u8; 4096]>> {
        log_page(self.0.as_fd(), page)
    }
}
