//! A segment and its lock file, as each process opens them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shm::{FileAccess, OwnedLock, ProcessSlot, ProcessSlots, Region};

/// For this user alone.
pub const OURS: FileAccess = FileAccess { permissions: 0o600, group: None };
/// Where things lie in the segment.
const PROCESS_SLOTS: usize = 0;
const LOCK: usize = 2048;
/// What the lock guards: two counters that are equal whenever nobody holds it.
pub const FIRST: usize = 2056;
pub const SECOND: usize = 2064;
/// How often the two were not.
pub const REPAIRS: usize = 2072;

pub struct Segment {
    pub region: Arc<Region>,
    pub processes: Arc<ProcessSlots>,
}

/// A temporary folder where memory is shared, removed when dropped.
pub fn folder() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    tempfile::Builder::new()
        .prefix("hotshelf-test-")
        .tempdir_in(if shared.is_dir() { shared } else { Path::new("/tmp") })
        .expect("a folder")
}

pub fn lock_file(dir: &Path) -> PathBuf {
    dir.join("locks")
}

impl Segment {
    pub fn create(dir: &Path) -> Segment {
        Segment::over(Region::create_file(&dir.join("segment"), 8192, OURS).expect("created"), dir)
    }

    pub fn open(dir: &Path) -> Segment {
        Segment::over(Region::open_file(&dir.join("segment"), None).expect("opened"), dir)
    }

    fn over(region: Region, dir: &Path) -> Segment {
        let region = Arc::new(region);
        let locks = ProcessSlots::open_lock_file(&lock_file(dir), OURS).expect("a lock file");
        let processes = Arc::new(ProcessSlots::open(region.clone(), PROCESS_SLOTS, locks).expect("process slots"));
        Segment { region, processes }
    }

    pub fn attach(&self) -> ProcessSlot {
        self.processes.attach().expect("a process slot")
    }

    pub fn lock(&self, me: ProcessSlot) -> OwnedLock<'_> {
        OwnedLock::new(&self.region, LOCK, &self.processes, me)
    }
}
