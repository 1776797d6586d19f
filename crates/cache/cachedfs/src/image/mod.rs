//! Creates, checks, resizes and removes the SSD of a cache that no process uses.
//!
//! The attached processes of an instance hold a shared lock (`flock`) on its SSD. These functions lock it exclusively and fail while it is
//! in use. They read and write page by page with ordinary calls.
//!
//! *Creating is atomic.* A new file gets its name last. On a device or an existing file, the superblocks are erased durably first and
//! written last.

mod check;
mod create;
mod disk;
mod inspect;
mod log;
mod resize;
mod signature;
#[cfg(test)]
mod test;

pub use check::{Checked, Finding, check};
pub use create::{Made, Options, create};
pub(crate) use inspect::hex;
pub use inspect::{SsdContents, inspect};
pub use resize::{Resized, check_size, plan_resize, resize};

/// What lies in a file or on a device, by the marks that its kind leaves; none: zeroes.
///
/// # Errors
/// Reading it.
pub fn what_is_there(path: &Path) -> std::io::Result<Option<String>> {
    use std::io::{Seek, SeekFrom};
    use std::os::unix::fs::FileExt;
    let mut file = std::fs::File::open(path)?;
    let bytes = file.seek(SeekFrom::End(0))?;
    Ok(signature::find(bytes, &mut |at, to| file.read_exact_at(to, at))?.map(str::to_owned))
}

use std::path::Path;

use rustix::io::Errno;

use crate::error::{Error, Kind};
use disk::Disk;
pub(crate) use disk::holder;

/// Receives the progress of a call: the amount done, and the total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Returns the identity of a cache SSD, also while it is in use. None: there is no cache, or it may not be read.
pub fn uuid_of(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    let mut pages = [[0; ssdcache::PAGE_BYTES]; 2];
    std::os::unix::fs::FileExt::read_exact_at(&file, pages.as_flattened_mut(), 0).ok()?;
    // Whether it is all there is for others to say.
    Some(hex(&ssdcache::Superblock::choose(&pages, u64::MAX).ok()?.uuid))
}

/// What is known of the last one at that place is of no use any more.
///
/// # Errors
/// The kernel's: it would be believed of the next one.
pub fn forget_note(path: &Path) -> Result<(), Error> {
    let Some(note) = crate::note::Note::of(path) else { return Ok(()) };
    note.write(None).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::new(Kind::System, errno, format!("{}: the note of what is on it cannot be removed: {error}", path.display()))
    })
}

/// Removes a cache: the file, or what marks the device.
///
/// # Errors
/// [`Kind::Device`]: somebody uses it, it is no cache, or it holds the only copy of something and `lose_dirty` is not said.
pub fn remove(path: &Path, lose_dirty: bool) -> Result<(), Error> {
    let disk = removable(path, lose_dirty)?;
    disk.erase()?;
    if disk.is_file() {
        std::fs::remove_file(path).map_err(|error| disk.failed("removing", &error))?;
    }
    forget_note(path)
}

/// Returns the error that [`remove`] would return, and changes nothing.
///
/// # Errors
/// Those of [`remove`].
pub fn check_removal(path: &Path, lose_dirty: bool) -> Result<(), Error> {
    removable(path, lose_dirty).map(drop)
}

/// Opens a cache that may be removed.
fn removable(path: &Path, lose_dirty: bool) -> Result<Disk, Error> {
    let disk = Disk::alone(path)?;
    if !lose_dirty {
        let found = inspect::of(&disk)?;
        if found.dirty_pages + found.suspect_pages > 0 {
            return Err(Error::new(
                Kind::Device,
                Errno::BUSY,
                format!(
                    "{}: {} pages are on this SSD only: `hotshelf cache flush {0}` writes them to their files (see --discard in the help)",
                    path.display(),
                    found.dirty_pages + found.suspect_pages
                ),
            ));
        }
    } else {
        // A wrong path must not cost anybody a file: it has to be a cache, if a damaged one.
        disk.is_ours()?;
    }
    Ok(disk)
}
