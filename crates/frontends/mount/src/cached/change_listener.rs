//! Making the kernel drop its pages of files that other mounts, and programs that use the cache themselves, have changed.
//!
//! The kernel looks at the attributes of an open file once in a second by itself. With this, a change that another process of the cache has
//! made is seen when its call returns.

use std::sync::Arc;
use std::time::Duration;

use super::shared::CachedShared;

/// How long the thread sleeps if nothing changes.
const REST: Duration = Duration::from_secs(1);
/// The same while no notice may be sent.
const RETRY: Duration = Duration::from_millis(20);

/// Starts the thread. Without it (no memory for a thread) changes are seen a second later. `was_away`: others may have changed files that
/// are open while this process did not listen.
pub fn start(shared: &Arc<CachedShared>, was_away: bool) {
    let (weak, listener) = (Arc::downgrade(shared), Arc::clone(&shared.listener));
    shared.instance.listen_to_changes(true);
    let run = move || {
        let mut drops_all = was_away;
        while !listener.has_ended() {
            let Some(shared) = weak.upgrade() else { return };
            let seen = shared.instance.change_count();
            let is_sent = shared.drop_changed_pages(drops_all);
            drops_all &= !is_sent;
            let instance = Arc::clone(&shared.instance);
            drop(shared);
            instance.wait_for_changes(seen, if is_sent { REST } else { RETRY });
        }
    };
    match std::thread::Builder::new().name("hotshelf-changes".into()).spawn(run) {
        Ok(thread) => shared.listener.set_thread(thread),
        Err(error) => {
            shared.instance.listen_to_changes(false);
            tracing::warn!(%error, "changes by other programs of the cache are seen after a second");
        }
    }
}

impl CachedShared {
    /// Ends the thread that listens to changes, before the cache is left.
    pub fn end_listening(&self) {
        self.instance.listen_to_changes(false);
        self.listener.end(|| self.instance.wake_listener());
    }

    /// Makes the kernel drop its pages of the open files that others have changed, or of all. Returns false if no notice may be sent now:
    /// then nothing is done.
    fn drop_changed_pages(&self, all: bool) -> bool {
        let look = |drop_pages: &dyn Fn(u64)| {
            self.instance.look_at_changes(|| self.take_changed_files(all).into_iter().for_each(drop_pages));
        };
        self.changed.try_send(look)
    }

    /// Returns the inode numbers of open files that others have changed since the last call, or of all.
    fn take_changed_files(&self, all: bool) -> Vec<u64> {
        let mut numbers = Vec::new();
        for (_, handle) in self.opened.all() {
            let (is_changed, number) = match (handle.get(), handle.version()) {
                (Some(opened), _) => (opened.file.take_change(), opened.node.number()),
                (None, Some((reads, promised))) => (reads.take_change(), promised.number),
                (None, None) => continue,
            };
            if is_changed {
                // Those that are remembered for longer are old, too.
                self.fs.forget_attributes(number);
            }
            if is_changed || all {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}
