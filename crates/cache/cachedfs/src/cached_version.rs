//! Reading what the cache has of a file whose attributes are known, without opening the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datapath::engine::Stamp;
use ssdcache::{FileKey, Mode};

use crate::attach::Attachment;
use crate::instance::Instance;
use crate::options::Options;

/// A file whose attributes are known, and which is not open.
#[derive(Clone, Debug)]
pub struct KnownFile {
    /// The number by which caches know it: [`crate::data_key`].
    pub key: u64,
    /// Where it was last seen.
    pub path: PathBuf,
    /// The length of the file, in bytes.
    pub size: u64,
    /// Its modification time: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// The time of its last change of any kind, likewise.
    pub ctime: (i64, u32),
    /// Whether it keeps its key when its file system is mounted again: [`crate::is_lasting`].
    pub is_lasting: bool,
}

/// What the cache has of one version of a file. It is read without a call to the file system.
pub struct CachedVersion {
    version: datapath::engine::CachedVersion,
    /// Dropped last.
    _counted: Counted,
}

/// Counts an open file of this process, which may not detach meanwhile.
struct Counted(Arc<Attachment>);

impl Counted {
    fn new(part: &Arc<Attachment>) -> Counted {
        part.open_files.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(part))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open_files.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for CachedVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CachedVersion")
    }
}

impl Instance {
    /// Returns what the cache has of a file that the caller knows to be this version and may read. None: it has nothing of that version, or
    /// has newer data, or the file must be looked at for another reason. Then open it.
    pub fn cached_version(&self, file: &KnownFile, options: &Options) -> Option<CachedVersion> {
        let ns = |time: (i64, u32)| time.0.checked_mul(1_000_000_000)?.checked_add(time.1.into());
        let stamp = Stamp { size: file.size, mtime: ns(file.mtime)?, ctime: ns(file.ctime)? };
        self.while_attached(|part| {
            // In a group's cache the file itself says who may share it.
            if part.group().is_some() {
                return None;
            }
            let mode = part.rules.of(&file.path, options).mode;
            let mode = if file.is_lasting { mode } else { mode.within(Mode::WriteThrough) };
            let counted = Counted::new(part);
            let version = part.engine.cached_version(FileKey(file.key), &file.path, mode, stamp)?;
            Some(CachedVersion { version, _counted: counted })
        })
    }
}

impl CachedVersion {
    pub(crate) fn version(&self) -> &datapath::engine::CachedVersion {
        &self.version
    }

    /// Reads at byte `at`, as pread does. None: the cache does not have all of it, or has another version by now. Then open the file.
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> Option<usize> {
        self.version.read(at, to)
    }
}
