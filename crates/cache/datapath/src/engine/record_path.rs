//! The path of a file in its record, which is read without a lock.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::record::{PATH_AT, PATH_MAX, RECORD_BYTES, Record};

/// How often a path is read that other processes are setting, and the pauses before each further attempt.
const PATH_READS: u32 = 32;
const PATH_SPINS: u32 = 64;

impl<'a> Record<'a> {
    /// Returns the path as one call of `set_path` set it, without the lock. It is empty if the file has none in the segment, or if the
    /// process that sets it does not finish meanwhile.
    pub(crate) fn path(self) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        for _ in 0..PATH_READS {
            if let Some(bytes) = self.path_now() {
                return std::ffi::OsString::from_vec(bytes).into();
            }
            (0..PATH_SPINS).for_each(|_| std::hint::spin_loop());
        }
        PathBuf::new()
    }

    /// Returns the bytes of the path, if no process set it meanwhile.
    fn path_now(self) -> Option<Vec<u8>> {
        let count = self.path_changes().load(Ordering::Acquire);
        let len = self.u32(24).load(Ordering::Acquire);
        let mut bytes = vec![0; (len as usize).min(PATH_MAX)];
        self.region.read(self.at + PATH_AT, &mut bytes);
        fence(Ordering::Acquire);
        let is_same = self.u32(24).load(Ordering::Relaxed) == len && self.path_changes().load(Ordering::Relaxed) == count;
        (len != 0 && is_same).then_some(bytes)
    }

    /// Counts the paths that were set: one may replace another of the same length.
    fn path_changes(self) -> &'a AtomicU32 {
        self.u32(116)
    }

    /// Sets the path, under the lock of the table or before other processes know the record.
    pub(crate) fn set_path(self, path: &Path) {
        use std::os::unix::ffi::OsStrExt;
        let bytes = path.as_os_str().as_bytes();
        let bytes = &bytes[..bytes.len().min(PATH_MAX)];
        self.u32(24).store(0, Ordering::Relaxed);
        // A reader of this count reads no earlier length.
        self.path_changes().fetch_add(1, Ordering::Release);
        fence(Ordering::Release);
        self.region.write(self.at + PATH_AT, bytes);
        // Erase the rest of a longer path.
        self.region.fill(self.at + PATH_AT + bytes.len()..self.at + RECORD_BYTES, 0);
        self.u32(24).store(bytes.len() as u32, Ordering::Release);
    }
}
