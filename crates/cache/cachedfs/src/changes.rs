//! Notices of changes that other processes of the instance make, or detect: see `datapath`.

use std::time::Duration;

use crate::cached_version::CachedVersion;
use crate::file::File;
use crate::instance::Instance;

impl Instance {
    /// Makes other processes notify this one when they change files that it has open, and wait until it has looked
    /// ([`Instance::look_at_changes`]); or ends that. Detaching ends it too.
    pub fn listen_to_changes(&self, listens: bool) {
        self.while_attached(|part| {
            part.engine.set_listening(listens);
            Some(())
        });
    }

    /// Returns a count that changes with each change of which processes are notified; 0 if this one has detached.
    pub fn change_count(&self) -> u32 {
        self.while_attached(|part| Some(part.engine.change_count())).unwrap_or(0)
    }

    /// Waits until the count is not `seen` any more, or for so long. Returns at once if this process has detached.
    pub fn wait_for_changes(&self, seen: u32, at_most: Duration) {
        // It may detach meanwhile: the memory stays.
        if let Some(engine) = self.while_attached(|part| Some(std::sync::Arc::clone(&part.engine))) {
            engine.wait_for_changes(seen, at_most);
        }
    }

    /// Ends the wait of this process.
    pub fn wake_listener(&self) {
        self.while_attached(|part| {
            part.engine.wake_listener();
            Some(())
        });
    }

    /// Runs `look`, which calls [`File::take_change`] on the open files of this process and does what their changes need before it returns.
    pub fn look_at_changes(&self, look: impl FnOnce()) {
        self.while_attached(|part| {
            let _round = part.engine.begin_round();
            look();
            Some(())
        });
    }
}

impl File {
    /// Returns whether the file was changed, by another process of the instance or behind its back, since the last call in this process.
    pub fn take_change(&self) -> bool {
        self.cached_open().is_some_and(|open| open.take_change())
    }

    /// Returns whether the file was changed, and no call has taken that.
    pub fn has_change(&self) -> bool {
        self.cached_open().is_some_and(|open| open.has_change())
    }
}

impl CachedVersion {
    /// Returns whether the file was changed, as [`File::take_change`] does.
    pub fn take_change(&self) -> bool {
        self.version().take_change()
    }
}
