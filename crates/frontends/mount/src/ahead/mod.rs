//! Attributes told before anybody asks for them.
//!
//! A write leaves the kernel without the times of a file, so the next stat(2) of it is a request: two changes of process, ten times what
//! the look itself takes. Nothing gives the kernel many attributes at once but the answer to somebody who reads a directory. So when
//! files that were written are asked for one after the other, a helper reads their directory, and is told of all that were written
//! there. The kernel takes nothing from such an answer for a file that was changed meanwhile.

mod helper;
mod own_mount;
mod written;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use helper::Helper;
pub use helper::help;
use written::WriteOutcome;

/// Knows what to tell ahead, and to whom. Tells nothing before it is begun.
#[derive(Debug, Default)]
pub struct Ahead {
    written: WriteOutcome,
    helper: OnceLock<Arc<Helper>>,
}

impl Ahead {
    /// Begins, with this program as helper: the mount is there.
    pub fn begin(&self, program: PathBuf, mountpoint: &Path) -> std::io::Result<()> {
        let (mount, watch) = own_mount::take(mountpoint)?;
        let helper = Arc::new(Helper::new(program, mount));
        let watched = helper.clone();
        let name = "unmounted".to_owned();
        let _detached = std::thread::Builder::new().name(name).spawn(move || {
            if let Err(error) = watch.until_unmounted() {
                tracing::info!(%error, "attributes are not told ahead: the list of mounts cannot be watched");
            }
            watched.end();
        })?;
        // Only now: a mount of ours that nobody gives back would never end.
        let _ = self.helper.set(helper);
        Ok(())
    }

    /// Somebody who could write this file has closed it.
    pub fn wrote(&self, dir: u64, ino: u64) {
        if self.helper.get().is_some() {
            self.written.add(dir, ino);
        }
    }

    /// Whether it matters what is asked for.
    pub fn listens(&self) -> bool {
        !self.written.is_empty()
    }

    /// Somebody has asked for the attributes of this file. `path` gives that of its directory, from the root on.
    pub fn asked(&self, dir: u64, ino: u64, path: impl FnOnce() -> Option<Vec<u8>>) {
        if self.written.asked(dir, ino)
            && let Some(helper) = self.helper.get()
            && let Some(path) = path()
        {
            helper.read(&path);
        }
    }

    /// What the helper shall be told of a directory that it has opened; `None`: it is somebody else.
    pub fn for_helper(&self, pid: u32, dir: u64) -> Option<VecDeque<u64>> {
        let ours = self.helper.get().is_some_and(|helper| helper.is(pid));
        ours.then(|| self.written.take(dir))
    }
}
