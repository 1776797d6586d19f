//! Files that other programs have removed below the mount: their blocks are freed, and the kernel forgets them.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::filesystem::CachedShared;

/// How often known files are looked at. The kernel says nothing of a removal by another program, and may know a name for hours.
const INTERVAL: Duration = Duration::from_secs(2);
/// How many files are looked at each time: some milliseconds of work.
const FILES_MAX: usize = 4096;

/// Looks for removed files until it is dropped. Nobody waits for the end of the thread: the slow side may not reply.
pub struct RemovedFiles {
    _stop: Sender<()>,
}

impl RemovedFiles {
    /// Starts a thread that looks for removed files. Without it (no memory for a thread) they go when the kernel forgets them.
    pub fn start(shared: Arc<CachedShared>) -> RemovedFiles {
        let (stop, stopped) = channel();
        let run = move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                for name in shared.fs.close_removed(FILES_MAX) {
                    shared.changed.drop_removed_name(name.parent, name.number, &name.name);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("hotshelf-removed".into()).spawn(run) {
            tracing::warn!(%error, "files that other programs remove keep their space for longer");
        }
        RemovedFiles { _stop: stop }
    }
}
