//! Miri has no mappings: the heap stands in for private regions.

use super::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, PAGE_BYTES).expect("a sane size")
}

/// Allocates zeroed memory that stands in for a mapping.
pub fn private(len: usize, _: bool) -> io::Result<Region> {
    // SAFETY: the length is not zero.
    let base = NonNull::new(unsafe { alloc_zeroed(layout(len)) }).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(Region { base, len, fd: None })
}

/// Reports that Miri has no forks.
pub fn wiped_by_fork(_: NonNull<u8>, _: usize) -> bool {
    false
}

/// Reports that Miri has no huge pages.
pub fn huge(_: usize) -> Option<Region> {
    None
}

/// Does nothing, as Miri has no huge pages.
pub fn join_pages(_: NonNull<u8>, _: usize, _: std::time::Duration) {}

/// Allocates memory of this process, as Miri shares none.
pub fn shared(_: &str, len: usize) -> io::Result<Region> {
    private(len, false)
}

/// Fails, as Miri maps no files.
pub fn file(_: OwnedFd, _: usize) -> io::Result<Region> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails, as Miri maps no files.
pub fn attach(_: OwnedFd, _: usize) -> Result<Region, AttachError> {
    Err(AttachError::System(io::ErrorKind::Unsupported.into()))
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `private` with this layout.
        unsafe { dealloc(self.base.as_ptr(), layout(self.len)) }
    }
}
