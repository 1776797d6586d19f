//! The rings of all queues of a controller: private memory, or a file that outlives the process.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shm::{FileAccess, PageSize, Region, SharedSlice};

use super::file::{HEADER, Header, LINE_BYTES, Reason, ring_bytes, with_suffix};
use super::ring::Recorder;

/// The memory of all flight recorders of a controller. Dropping it removes the file, which nobody needs after a clean shutdown.
pub(crate) struct Flight {
    region: Arc<Region>,
    rings: u32,
    events: u32,
    file: Option<PathBuf>,
}

impl Flight {
    /// Creates recorders for queues 0 to `queues` with `events` events each (a power of two, or 0). An existing file is renamed to
    /// `FILE.old`.
    pub(crate) fn new(name: &str, (queues, events): (u16, u32), file: Option<&Path>) -> io::Result<Flight> {
        let rings = u32::from(queues) + 1;
        let bytes = HEADER + rings as usize * ring_bytes(events);
        let region = match file {
            None => Region::private(bytes, PageSize::Small)?,
            Some(path) => {
                let header = Header::new(name, Reason::Running, rings, events);
                match std::fs::rename(path, with_suffix(path, "old")) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let sharing = FileAccess { permissions: 0o600, group: None };
                Region::create_file_with(path, bytes, sharing, |region| {
                    region.write(0, &header.bytes());
                    Ok(())
                })?
            }
        };
        Ok(Flight { region: Arc::new(region), rings, events, file: file.map(Path::to_owned) })
    }

    /// Returns the recorder of a new queue whose rings have `entries` entries.
    pub(crate) fn recorder(&self, queue: u16, entries: u32) -> Recorder {
        assert!(u32::from(queue) < self.rings, "queue {queue} of {}", self.rings);
        let at = HEADER + usize::from(queue) * ring_bytes(self.events);
        let lines = SharedSlice::new(&self.region, at + LINE_BYTES, self.events as usize);
        Recorder::new(SharedSlice::new(&self.region, at, 8), lines, queue, entries)
    }

    /// Returns the path of the file; incidents are written beside it.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Whether the file of our name is still ours.
    fn is_ours(&self, path: &Path) -> io::Result<bool> {
        let Some(fd) = self.region.fd() else { return Ok(false) };
        let ours = std::fs::File::from(fd.as_fd().try_clone_to_owned()?).metadata()?;
        let there = std::fs::symlink_metadata(path)?;
        Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(path) = &self.file
            && self.is_ours(path).unwrap_or(false)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}
