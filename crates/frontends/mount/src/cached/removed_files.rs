//! Removed files: the kernel forgets those that other programs remove below the mount, and their data is dropped after that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use directoryfs::KeptData;

use super::filesystem::CachedShared;

/// How often known files are looked at. The kernel says nothing of a removal by another program, and may know a name for hours.
const INTERVAL: Duration = Duration::from_secs(2);
/// How many files are looked at each time: some milliseconds of work.
const FILES_MAX: usize = 4096;

/// Starts a thread that drops the data of files that the kernel has forgotten, and looks for removed files. It ends when nobody can send
/// any more; nobody waits for that, as the slow side may not reply. Without it (no memory for a thread) removed files go when the kernel
/// forgets them.
pub fn start(shared: &Arc<CachedShared>, forgotten: Receiver<KeptData>) {
    let shared = Arc::downgrade(shared);
    let run = move || {
        let mut next = Instant::now() + INTERVAL;
        loop {
            match forgotten.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(data) => drop(data),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let Some(shared) = shared.upgrade() else { return };
                    for name in shared.fs.removed_names(FILES_MAX) {
                        shared.changed.drop_removed_name(&name);
                    }
                    next = Instant::now() + INTERVAL;
                }
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("hotshelf-removed".into()).spawn(run) {
        tracing::warn!(%error, "files that other programs remove keep their space for longer");
    }
}
