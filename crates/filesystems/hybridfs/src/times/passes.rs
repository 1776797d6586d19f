//! The passes of moves over directories: which thread restores the times of which directory.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard};

/// Many: directories that share one wait for each other's passes.
pub(super) const COUNTS: u64 = 1 << 14;

/// Which thread restores the times of which directory.
#[derive(Debug)]
pub(crate) struct DirTimes {
    /// Odd while a move has changed a directory and not yet put its times back.
    pub(super) counts: Vec<AtomicU64>,
    /// Held by whoever sets a directory's times, so that none that a user sets are lost.
    pub(super) setting: Mutex<()>,
    /// The passes of all directories.
    pub(super) passes: AtomicU64,
    pub(super) running: Mutex<Option<ActiveDirectory>>,
}

/// The directory that a move changes now.
#[derive(Debug)]
pub(super) struct ActiveDirectory {
    pub(super) dir: u64,
    /// By a user, since the pass began.
    pub(super) changed: bool,
}

impl DirTimes {
    pub(crate) fn new() -> DirTimes {
        let counts = (0..COUNTS).map(|_| AtomicU64::new(0)).collect();
        DirTimes { counts, setting: Mutex::new(()), passes: AtomicU64::new(0), running: Mutex::new(None) }
    }

    /// While this is held, no times of directories are set.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.setting.lock()
    }

    pub(super) fn passes_of(&self, dir: u64) -> &AtomicU64 {
        &self.counts[(dir % COUNTS) as usize]
    }

    /// A user has changed this directory. A pass that starts later finds the change in the times.
    pub(super) fn note_change(&self, dir: u64) {
        if self.passes.load(SeqCst).is_multiple_of(2) {
            return;
        }
        if let Some(pass) = self.running.lock().as_mut().filter(|pass| pass.dir == dir) {
            pass.changed = true;
        }
    }

    /// Whether a user has changed the directory of the pass that runs.
    pub(super) fn is_changed(&self) -> bool {
        self.running.lock().as_ref().is_some_and(|pass| pass.changed)
    }
}
