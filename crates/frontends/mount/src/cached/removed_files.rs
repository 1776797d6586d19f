//! Removed files: those that other programs remove below the mount free their blocks, and the kernel forgets them. The cached data of those
//! that are removed through the mount is dropped when the kernel has forgotten them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use directoryfs::KeptData;

use super::shared::CachedShared;

/// How often known files are looked at. The kernel says nothing of a removal by another program, and may know a name for hours.
const INTERVAL: Duration = Duration::from_secs(2);
/// How many files are looked at each time: some milliseconds of work.
const FILES_MAX: usize = 4096;
/// How many forgotten files wait for their data to be dropped, at most: each has open descriptors.
pub const FORGOTTEN_MAX: usize = 64;

/// Starts a thread that drops the data of files that the kernel has forgotten, and one that looks for removed files. They end when nobody
/// can send any more; nobody waits for that, as the slow side may not reply. Without them (no memory for a thread) removed files go when
/// the kernel forgets them.
pub fn start(shared: &Arc<CachedShared>, forgotten: Receiver<KeptData>) {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    spawn("hotshelf-forget", move || {
        forgotten.into_iter().for_each(drop);
        drop(stop);
    });
    let shared = Arc::downgrade(shared);
    spawn("hotshelf-removed", move || {
        let mut next = Instant::now() + INTERVAL;
        while stopped.recv_timeout(next.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
            let Some(shared) = shared.upgrade() else { return };
            for name in shared.fs.close_removed(FILES_MAX) {
                shared.changed.drop_removed_name(name.parent, name.number, &name.name);
            }
            next = Instant::now() + INTERVAL;
        }
    });
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
        tracing::warn!(%error, "files that are removed keep their space for longer");
    }
}
