//! Creates file systems in files and on devices.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use stack::DeviceName;
use stack::rawfs::fs::{Creds, Fs, FsSettings, SetAttr, Timestamp};
use stack::rawfs::{BLOCK_BYTES, Block, Disk, DiskSettings, FormatOptions, QueueClass, Settings, Store};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::library::ensure_init;
use crate::memory;
use crate::ntypes::*;
use crate::options::{self, Versioned};

/// A device counts as blank if this many leading bytes are zero.
const BLANK_BYTES: usize = 1 << 20;

// SAFETY: integers alone, `usize` first.
unsafe impl Versioned for nvmedfs_mkfs_options {
    fn defaults() -> Self {
        nvmedfs_mkfs_options { size: size_of::<Self>(), ..nvmedfs_mkfs_options::default() }
    }
}

/// Parses the name of a device; EINVAL if it is not one.
pub fn device_name(device: &str) -> ApiResult<DeviceName> {
    device.parse().map_err(|error| ApiError::new(libc::EINVAL, error))
}

/// Returns whether the start of a device has only zeros.
pub fn is_blank(disk: &Disk) -> ApiResult<bool> {
    let blocks = disk.blocks().min((BLANK_BYTES / BLOCK_BYTES) as u64);
    let mut begin = vec![0; usize::try_from(blocks).expect("few") * BLOCK_BYTES];
    disk.read_blocks(QueueClass::Data, Block(0), &mut begin)?;
    Ok(begin.iter().all(|byte| *byte == 0))
}

/// Creates an empty store on the disk; an option of 0 means its default.
pub fn format(disk: &Disk, options: &nvmedfs_mkfs_options) -> ApiResult<()> {
    let wish = |bytes: u64| (bytes > 0).then_some(bytes);
    let blocks = wish(options.bytes / BLOCK_BYTES as u64);
    if blocks.is_some_and(|blocks| blocks > disk.blocks()) {
        return Err(ApiError::new(libc::EINVAL, format!("it has {} bytes: fewer than asked for", disk.blocks() * BLOCK_BYTES as u64)));
    }
    let (metadata_bytes, log_bytes) = (wish(options.metadata_bytes), wish(options.log_bytes));
    Ok(Store::format(disk, &FormatOptions { blocks, metadata_bytes, log_bytes, discard: true, ..FormatOptions::default() })?)
}

/// Creates the root directory of the file system.
pub fn make_root(store: &Store) -> ApiResult<()> {
    Ok(Fs::format(store, Timestamp::now())?)
}

/// Gives the root directory to the effective user and group.
pub fn own_root(fs: &Fs) -> ApiResult<()> {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let set = SetAttr { owner: Some((Some(owner.0), Some(owner.1))), ..SetAttr::default() };
    Ok(fs.set_attr(fs.root(), &set, &Creds::root())?)
}

/// Locks a read-only image against writers, until the file is dropped.
pub fn keep_writers_away(name: &DeviceName) -> ApiResult<Option<File>> {
    let DeviceName::Path(path) = name else { return Ok(None) };
    let is_block = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    let failed = |error: std::io::Error| {
        let in_use = error.kind() == std::io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::EBUSY);
        let what =
            if in_use { format!("{} is in use: somebody writes to it", path.display()) } else { format!("{}: {error}", path.display()) };
        ApiError::new(if in_use { libc::EBUSY } else { error.raw_os_error().unwrap_or(libc::EIO) }, what)
    };
    let file = OpenOptions::new().read(true).custom_flags(if is_block { libc::O_EXCL } else { 0 }).open(path).map_err(failed)?;
    if !is_block {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).map_err(|errno| failed(errno.into()))?;
    }
    Ok(Some(file))
}

/// Creates a file of zeros of this size.
fn make_file(path: &Path, bytes: u64) -> ApiResult<()> {
    let failed = |error: std::io::Error| ApiError::new(error.raw_os_error().unwrap_or(libc::EIO), format!("making the file: {error}"));
    let file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.set_len(bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).map_err(failed)
}

fn make_in(name: &DeviceName, is_new: bool, options: &nvmedfs_mkfs_options) -> ApiResult<()> {
    // The device is exclusively ours from here on.
    let disk = stack::open_disk(name, false, &DiskSettings::default())?;
    if options.flags & NVMEDFS_FORCE == 0
        && !is_new
        && let DeviceName::Path(path) = name
    {
        let found =
            cachedfs::image::what_is_there(path).map_err(|error| ApiError::new(error.raw_os_error().unwrap_or(libc::EIO), error))?;
        if let Some(what) = found {
            return Err(ApiError::new(libc::EEXIST, format!("it holds {what}, which is kept: only NVMEDFS_FORCE overwrites it")));
        }
    }
    format(&disk, options)?;
    let (store, _) = Store::open(disk, &Settings::default())?;
    make_root(&store)?;
    let (fs, _) = Fs::open(store, FsSettings::default())?;
    own_root(&fs)?;
    Ok(fs.close()?)
}

fn mkfs(device: &str, options: &nvmedfs_mkfs_options) -> ApiResult<()> {
    if options.flags & !NVMEDFS_FORCE != 0 || options.reserved != 0 {
        return Err(ApiError::new(libc::EINVAL, format!("flags {:#x} of mkfs: only NVMEDFS_FORCE is known", options.flags)));
    }
    let name = device_name(device)?;
    let path = if let DeviceName::Path(path) = &name { Some(path) } else { None };
    let new = path.filter(|path| options.bytes > 0 && !path.exists());
    if let Some(path) = new {
        make_file(path, options.bytes)?;
    }
    let made = make_in(&name, new.is_some(), options);
    if made.is_err()
        && let Some(path) = new
    {
        // A file without a file system would block the next attempt; the first error is reported.
        let _ = std::fs::remove_file(path);
    }
    made
}

/// Fills a struct nvmedfs_mkfs_options with defaults. Thread-safe.
///
/// `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `options` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mkfs_options_init(options: *mut nvmedfs_mkfs_options, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { options::write(options, size, Versioned::defaults()) })
}

/// Creates an empty file system in a file or on a block device; `options` NULL: in an existing one that is blank. Its root directory
/// belongs to the effective user and group of the process. Thread-safe.
///
/// Returns 0, or -1: EEXIST (it is not blank, hs_error says what it contains: NVMEDFS_FORCE overwrites it); EBUSY (it is in use); EINVAL
/// (inconsistent sizes, invalid options); E2BIG; any error of open(2).
///
/// # Safety
/// `device` is NULL or a string; `options` is NULL or as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mkfs(device: *const c_char, options: *const nvmedfs_mkfs_options) -> c_int {
    ffi_guard(|| {
        ensure_init()?;
        // SAFETY: the caller's promise.
        let (device, options) = unsafe { (memory::text(device, "the device")?, options::read(options)?) };
        mkfs(device, &options).map(|()| 0).map_err(|fail| fail.named(device))
    })
}
