//! The number of open files, and its limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::core::FsCore;
use super::error::Result;

/// Counts an open file until it is dropped.
pub struct OpenFileCount(Arc<FsCore>);

impl OpenFileCount {
    /// Counts one more open file.
    ///
    /// # Errors
    /// ENFILE: as many are open as may be.
    pub fn new(core: &Arc<FsCore>) -> Result<OpenFileCount> {
        let counted = OpenFileCount(Arc::clone(core));
        // In case of an error the count goes down again when `counted` is dropped.
        if core.opened.fetch_add(1, Ordering::Relaxed) < core.settings.open_max { Ok(counted) } else { Err(Errno::NFILE.into()) }
    }
}

impl Drop for OpenFileCount {
    fn drop(&mut self) {
        self.0.opened.fetch_sub(1, Ordering::Relaxed);
    }
}
