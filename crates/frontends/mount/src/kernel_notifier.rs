//! Telling the kernel that the attributes it has of a file are not right any more.

use std::ffi::OsStr;
use std::sync::OnceLock;

use fuser::{INodeNo, Notifier};

/// Does nothing before the file system is mounted.
#[derive(Debug, Default)]
pub struct KernelNotifier(OnceLock<Notifier>);

impl KernelNotifier {
    /// Enables notifications once the file system is mounted.
    pub fn begin(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Answers that were given before now, and that the kernel has not looked at yet, count for nothing either.
    pub fn invalidate_attributes(&self, ino: u64) {
        if let Some(notifier) = self.0.get()
            && let Err(error) = notifier.inval_inode(INodeNo(ino), -1, 0)
        {
            // It knows nothing of the file, most often.
            tracing::debug!(ino, %error, "the kernel did not take an invalidation");
        }
    }
}

impl KernelNotifier {
    /// Makes the kernel drop a name whose file was removed below, if it still stands for this file. Waits while the directory is locked:
    /// never to be called by a thread that serves requests.
    pub fn drop_removed_name(&self, parent: u64, ino: u64, name: &OsStr) {
        if let Some(notifier) = self.0.get()
            && let Err(error) = notifier.delete(INodeNo(parent), INodeNo(ino), name)
        {
            tracing::debug!(ino, %error, "the kernel does not know the name of a removed file");
        }
    }

    /// Makes the kernel look a name up again. Waits while the directory is locked: never to be called by a thread that serves requests.
    pub fn drop_name(&self, parent: u64, name: &OsStr) {
        if let Some(notifier) = self.0.get()
            && let Err(error) = notifier.inval_entry(INodeNo(parent), name)
        {
            tracing::debug!(parent, %error, "the kernel does not know the name");
        }
    }

    /// The kernel's pages of this part are not right any more, nor the attributes. Waits for pages that are locked: never to be called by
    /// a thread that serves requests.
    pub fn drop_pages(&self, ino: u64, offset: u64, length: usize) {
        let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else { return self.invalidate_attributes(ino) };
        if let Some(notifier) = self.0.get()
            && let Err(error) = notifier.inval_inode(INodeNo(ino), offset, length)
        {
            tracing::debug!(ino, %error, "the kernel did not take an invalidation");
        }
    }
}

impl hybridfs::Listener for KernelNotifier {
    fn attributes_changed(&self, ino: u64) {
        self.invalidate_attributes(ino);
    }
}
