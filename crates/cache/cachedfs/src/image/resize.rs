//! Another size. Of a file: what is cached is copied, oldest first, to a new log in a new file, which then takes the old one's name.
//! Of a device, and of a file if there is no room for both: in place ([`ssdcache::resize`]), where less can be kept.

use std::path::Path;

use rustix::io::Errno;
use serde::Serialize;
use ssdcache::{DevicePage, PAGE_BYTES, PageVersion, SsdCache, VerifyResult};

use super::Progress;
use super::create::{self, Unnamed};
use super::disk::{Disk, failed};
use super::inspect;
use super::log::Log;
use crate::Size;
use crate::error::{Error, Kind};

/// The result of resizing a cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Resized {
    /// Bytes of the file before.
    pub bytes_before: u64,
    /// Bytes for pages after it.
    pub bytes: u64,
    /// Pages that are cached still.
    pub pages: u64,
    /// Clean pages, the oldest, for which there is no room any more, or which were damaged.
    pub left_out: u64,
}

/// Resizes a cache that no process uses. If it is killed, either the old or the new cache is there.
///
/// # Errors
/// [`Kind::Invalid`]: a size that cannot be; [`Kind::Device`]: in use, or dirty pages do not fit or are damaged;
/// [`Kind::System`]: the kernel's, no space among them.
pub fn resize(path: &Path, size: Size, progress: Progress<'_>) -> Result<Resized, Error> {
    resize_or_plan(path, size, false, progress)
}

/// Returns what [`resize`] would make of a cache, and changes nothing. How many pages would be left out is not known before.
///
/// # Errors
/// Those of [`resize`].
pub fn plan_resize(path: &Path, size: Size) -> Result<Resized, Error> {
    resize_or_plan(path, size, true, &mut |_, _| {})
}

/// Returns the bytes that a cache's file has and would have, if that can be: for a cache in use, which [`plan_resize`] refuses. None: a
/// device, of which nothing is known.
///
/// # Errors
/// A size that cannot be, or more than is free.
pub fn check_size(path: &Path, size: Size) -> Result<Option<(u64, u64)>, Error> {
    if crate::user_space_nvme::is_meant(path) {
        return Ok(None);
    }
    let found = std::fs::metadata(path).map_err(|error| failed(path, "finding", &error))?;
    if !found.is_file() {
        return Ok(None);
    }
    let path = std::fs::canonicalize(path).map_err(|error| failed(path, "finding", &error))?;
    let bytes = new_bytes(path.parent().unwrap_or(Path::new("/")), found.len(), size)?;
    Ok(Some((found.len(), bytes)))
}

/// Returns the new size of a file in this directory that has `before` bytes, and checks that there is room: in place to grow, beside the
/// old file otherwise.
fn new_bytes(dir: &Path, before: u64, size: Size) -> Result<u64, Error> {
    let free = create::free_bytes(dir)?;
    let bytes = size.of(free.saturating_add(before)) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    create::shape(bytes)?;
    let fits_in_place = bytes > before && bytes - before <= free;
    if bytes > free && !fits_in_place {
        return Err(create::no_space(dir, free));
    }
    Ok(bytes)
}

fn resize_or_plan(path: &Path, size: Size, dry_run: bool, progress: Progress<'_>) -> Result<Resized, Error> {
    let old = Disk::alone(path)?;
    if !old.is_file() {
        let bytes = size.of(old.bytes);
        if bytes > old.bytes {
            return Err(Error::invalid(format!("{} has {} bytes, less than that --size", path.display(), old.bytes)));
        }
        return in_place(&old, bytes, dry_run);
    }
    let path = &std::fs::canonicalize(path).map_err(|error| failed(path, "finding", &error))?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let bytes = new_bytes(dir, old.bytes, size)?;
    let (free, shape) = (create::free_bytes(dir)?, create::shape(bytes)?);
    if bytes > free && bytes > old.bytes && bytes - old.bytes <= free {
        if !dry_run {
            old.file().and_then(|file| create::allocate(file, bytes, progress)).map_err(|error| old.failed("allocating", &error))?;
        }
        return in_place(&Disk { bytes, ..old }, bytes, dry_run);
    }
    let (cache, _, contents) = inspect::recover(&old)?;
    let own = |dirty: u64| {
        Error::new(
            Kind::Device,
            Errno::NOSPC,
            format!("{}: {dirty} pages are on this SSD only, too many for that size: `hotshelf cache flush` first", path.display()),
        )
    };
    // Half, so that the log can go around.
    if contents.dirty_pages + contents.catalogue_pages > u64::from(shape.slots()) / 2 {
        return Err(own(contents.dirty_pages));
    }
    if dry_run {
        return Ok(Resized { bytes_before: old.bytes, bytes, pages: contents.pages + contents.catalogue_pages, left_out: 0 });
    }
    let unnamed = Unnamed::new(dir, path)?;
    let new = Disk::of(unnamed.file.try_clone().map_err(|error| failed(path, "making", &error))?, path, true)?;
    let room = new.file().and_then(|file| create::allocate(file, bytes, &mut |_, _| {}));
    room.map_err(|error| new.failed("allocating the new file beside the old one", &error))?;
    new.file().and_then(|file| create::like(file, old.file()?)).map_err(|error| new.failed("giving it its owner", &error))?;
    let uuid = create::random()?;
    new.finish(&SsdCache::format(uuid, shape))?;
    let new = Disk { bytes, ..new };
    let mut resized = Resized { bytes_before: old.bytes, bytes, pages: 0, left_out: 0 };
    copy(&old, &cache, &new, &mut resized, progress)?;
    unnamed.replace(path)?;
    Ok(resized)
}

/// Gives a disk as many segments, of the size they have, as fit into so many bytes; with `dry_run` it only says what that would be.
pub(super) fn in_place(disk: &Disk, bytes: u64, dry_run: bool) -> Result<Resized, Error> {
    let before = inspect::of(disk)?;
    let segment_bytes = u64::from(before.segment_pages) * PAGE_BYTES as u64;
    let segments = (bytes.saturating_sub(2 * PAGE_BYTES as u64) / segment_bytes).min(u32::MAX.into()) as u32;
    let mut page = [0; PAGE_BYTES];
    let read = |wanted: &[DevicePage], found: &mut dyn FnMut(usize, &ssdcache::Page)| {
        for (n, at) in wanted.iter().enumerate() {
            if disk.read(*at, &mut page).is_ok() {
                found(n, &page);
            }
        }
    };
    let superblocks = ssdcache::resize(disk.pages(), segments, read)
        .map_err(|why| Error::new(Kind::Device, Errno::BUSY, format!("{}: {why}", disk.path.display())))?;
    if dry_run {
        let pages = before.pages + before.catalogue_pages;
        return Ok(Resized { bytes_before: before.bytes, bytes, pages, left_out: 0 });
    }
    for (at, page) in superblocks {
        disk.write(at, &page[..])?;
        disk.sync()?;
    }
    let after = inspect::of(disk)?;
    let pages = after.pages + after.catalogue_pages;
    let left_out = (before.pages + before.catalogue_pages).saturating_sub(pages);
    Ok(Resized { bytes_before: before.bytes, bytes: after.bytes, pages, left_out })
}

/// The oldest clean ones are left out if there is no room.
fn copy(old: &Disk, cache: &SsdCache, new: &Disk, resized: &mut Resized, progress: Progress<'_>) -> Result<(), Error> {
    let (mut metadata, _, contents) = inspect::recover(new)?;
    let room = u64::from(contents.segments.saturating_sub(2)) * pages_of_segment(u64::from(contents.segment_pages));
    let (pages, dirty) = cache.len();
    let mut leave = (pages - dirty).min(pages.saturating_sub(room));
    resized.left_out = leave;
    let mut log = Log::open(new, &mut metadata)?;
    let mut page = [0; PAGE_BYTES];
    for (n, (item, version)) in cache.items().enumerate() {
        if n.is_multiple_of(256) {
            progress(n as u64, pages);
        }
        if version == PageVersion::Clean && leave > 0 {
            leave -= 1;
            continue;
        }
        let is_good = old.read(item.at, &mut page).is_ok() && cache.verify(&item, &page) == VerifyResult::Good;
        match version {
            _ if is_good => {}
            PageVersion::Clean => {
                resized.left_out += 1;
                continue;
            }
            PageVersion::Dirty => return Err(damaged(old, item.at)),
        }
        log.put(&page, |metadata| metadata.put(item.key, item.page, version, &page))?;
        resized.pages += 1;
    }
    progress(pages, pages);
    log.end()
}

/// Besides its summaries, one for 126 pages, and its last page, which is kept for one.
fn pages_of_segment(segment_pages: u64) -> u64 {
    segment_pages - 1 - (segment_pages - 1).div_ceil(127)
}

fn damaged(old: &Disk, at: DevicePage) -> Error {
    let what = format!(
        "{}: page {} is damaged and was the only copy of something: `hotshelf cache check --repair` says of what, and drops it",
        old.path.display(),
        at.0
    );
    Error::new(Kind::Device, Errno::IO, what)
}
