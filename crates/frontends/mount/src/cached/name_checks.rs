//! Reading remembered names again in the background, and telling the kernel what has changed.

use std::sync::Arc;

use directoryfs::Change;

use super::shared::CachedShared;
use crate::kernel_notifier::KernelNotifier;

/// How many directories are read at the same time: most of the time goes into waiting for the slow side.
const THREADS: usize = 4;

/// Starts the threads that read directories again of which something old was answered. They end with
/// [`directoryfs::DirectoryFs::end_checks`]; nobody waits for that, as the slow side may not reply. Without them (no memory for a thread)
/// old answers stay.
pub fn start(shared: &Arc<CachedShared>) {
    let threads = if shared.fs.remembers_names() { THREADS } else { 0 };
    for _ in 0..threads {
        let shared = Arc::clone(shared);
        let run = move || while shared.fs.check_next(&mut |change| tell(&shared.changed, change)) {};
        if let Err(error) = std::thread::Builder::new().name("hotshelf-names".into()).spawn(run) {
            tracing::warn!(%error, "names that are remembered are not read again: mount anew without --names");
        }
    }
}

/// Makes the kernel look at what has changed. Never to be called by a thread that serves requests.
fn tell(changed: &KernelNotifier, change: Change) {
    match change {
        Change::Name { parent, name } => changed.drop_name(parent, &name),
        Change::Attributes(number) => changed.invalidate_attributes(number),
    }
}
