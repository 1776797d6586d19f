//! The library file system: mount, unmount, and calls on the whole.
#![expect(unsafe_code, reason = "called by C")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{mode_t, statvfs};
use stack::rawfs::fs::{Atime, Creds, Fs, FsSettings, Memory};
use stack::rawfs::{BLOCK_BYTES, Disk, DiskSettings, Recovery, Settings, Store};

use crate::api_error::{ApiError, ApiResult};
use crate::guard::ffi_guard;
use crate::library::ensure_init;
use crate::memory;
use crate::mounted::Mount;
use crate::nmkfs;
use crate::ntypes::*;
use crate::objects::{ObjectKind as _, end, enroll, with};
use crate::options::{self, Versioned};

// SAFETY: integers alone, `usize` first.
unsafe impl Versioned for nvmedfs_options {
    fn defaults() -> Self {
        let (files, metadata) = (FsSettings::default(), Settings::default());
        nvmedfs_options {
            size: size_of::<Self>(),
            flags: 0,
            write_back_ms: files.write_back.as_millis() as u32,
            cache_bytes: files.cache_bytes as u64,
            dirty_bytes: files.dirty_bytes as u64,
            metadata_cache_bytes: metadata.node_cache_bytes as u64,
            metadata_dirty_bytes: metadata.dirty_bytes as u64,
            readahead_bytes: files.read_ahead_bytes as u64,
            memory_bytes: 0,
        }
    }
}

// SAFETY: integers alone, `usize` first.
unsafe impl Versioned for nvmedfs_stats {
    fn defaults() -> Self {
        nvmedfs_stats { size: size_of::<Self>(), ..nvmedfs_stats::default() }
    }
}

/// Fills a struct nvmedfs_options with defaults. Thread-safe.
///
/// `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
///
/// # Safety
/// `options` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_options_init(options: *mut nvmedfs_options, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    ffi_guard(|| unsafe { options::write(options, size, Versioned::defaults()) })
}

fn settings(options: &nvmedfs_options) -> (Settings, FsSettings) {
    let is = |flag| options.flags & flag != 0;
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let store = Settings {
        node_cache_bytes: bytes(options.metadata_cache_bytes),
        dirty_bytes: bytes(options.metadata_dirty_bytes),
        discard: !is(NVMEDFS_NO_DISCARD),
        read_only: is(NVMEDFS_READ_ONLY),
        ..Settings::default()
    };
    let files = FsSettings {
        cache_bytes: bytes(options.cache_bytes),
        dirty_bytes: bytes(options.dirty_bytes),
        write_back: Duration::from_millis(options.write_back_ms.into()),
        read_ahead_bytes: bytes(options.readahead_bytes),
        atime: if is(NVMEDFS_NO_ATIME) { Atime::Never } else { Atime::Relative },
        ..FsSettings::default()
    };
    (store, files)
}

/// Returns the current credentials and umask of the process.
fn creds(check: bool) -> (Creds, u16) {
    let groups = if check { rustix::process::getgroups().unwrap_or_default() } else { Vec::new() };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let groups = groups.into_iter().map(|group| group.as_raw()).collect();
    // umask(2) would change it for a moment.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).and_then(|mask| u16::from_str_radix(mask.trim(), 8).ok());
    (Creds { uid, gid, groups, umask: 0, check }, umask.unwrap_or(0o022))
}

fn mount(device: &str, options: &nvmedfs_options) -> ApiResult<Mount> {
    let known = NVMEDFS_READ_ONLY | NVMEDFS_SYNC | NVMEDFS_NO_ATIME | NVMEDFS_NO_DISCARD | NVMEDFS_CHECK | NVMEDFS_CREATE;
    if options.flags & !known != 0 {
        return Err(ApiError::new(libc::EINVAL, format!("flags {:#x} of a mount: only NVMEDFS_... are known", options.flags)));
    }
    let is = |flag| options.flags & flag != 0;
    if is(NVMEDFS_CREATE) && is(NVMEDFS_READ_ONLY) {
        return Err(ApiError::new(libc::EINVAL, "NVMEDFS_CREATE and NVMEDFS_READ_ONLY do not go together"));
    }
    let (mut store, mut files) = settings(options);
    let memory = usize::try_from(options.memory_bytes).ok().filter(|bytes| *bytes > 0).map(Memory::of);
    let (creds, umask) = creds(is(NVMEDFS_CHECK));
    let named = |fail: ApiError| fail.named(device);
    let name = nmkfs::device_name(device)?;
    let no_writers = if is(NVMEDFS_READ_ONLY) { nmkfs::keep_writers_away(&name)? } else { None };
    let disk = stack::open_disk(&name, is(NVMEDFS_READ_ONLY), &memory.map_or_else(DiskSettings::default, Memory::disk))?;
    if let Some(memory) = memory {
        let least = Memory::least(disk.blocks());
        let too_little =
            |_| ApiError::new(libc::ENOMEM, format!("{device}: memory_bytes of {}: at least {least} are needed", options.memory_bytes));
        memory.divide(disk.blocks(), &mut store, &mut files).map_err(too_little)?;
    }
    let is_new = is(NVMEDFS_CREATE) && nmkfs::is_blank(&disk).map_err(named)?;
    let opened = open(disk, is_new, &store, files).map_err(named)?;
    Ok(Mount::new(device, opened, no_writers, (options.flags, creds, umask)))
}

fn open(disk: Disk, is_new: bool, settings: &Settings, files: FsSettings) -> ApiResult<(Fs, Recovery, u64)> {
    if is_new {
        nmkfs::format(&disk, &nvmedfs_mkfs_options::default())?;
    }
    let (store, recovery) = Store::open(disk, settings)?;
    if is_new {
        nmkfs::make_root(&store)?;
    }
    let (fs, orphans) = Fs::open(store, files)?;
    if is_new {
        nmkfs::own_root(&fs)?;
    }
    Ok((fs, recovery, orphans))
}

/// Mounts the file system in an image: a file or a block device by its path, an NVMe character device, or `memory:SIZE` (with
/// NVMEDFS_CREATE). After a crash it is recovered first: everything durable is present, transactions completely or not at all. Any number
/// of images can be mounted at a time, each by one process. Thread-safe.
///
/// `options` NULL: the defaults of nvmedfs_options_init. New files belong to the current effective user and group of the process, with its
/// current umask (see nvmedfs_umask).
///
/// Returns it, or NULL: EBUSY (another process, or this one, has the image open: hs_error says which); EINVAL (no hotshelf file system, or
/// invalid options); E2BIG (an option of a later version); EIO (damaged); ENOMEM (`memory_bytes` is too small); ENOSPC; EMFILE; any error
/// of open(2).
///
/// # Safety
/// `device` is NULL or a string; `options` is NULL or as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_mount(device: *const c_char, options: *const nvmedfs_options) -> *mut NVMEDFS {
    ffi_guard(|| {
        ensure_init()?;
        // SAFETY: the caller's promise.
        let (device, options) = unsafe { (memory::text(device, "the device")?, options::read(options)?) };
        enroll(Arc::new(mount(device, &options)?))
    })
}

/// Unmounts: writes everything back, and marks the image as clean. hs_shutdown and exit do it too, after closing what is open; a killed
/// process loses unsynced data, as in a power cut. Thread-safe.
///
/// Returns 0, or -1: EBUSY (files, directories, transactions or request queues are open on it, and it stays mounted); EBADF; EIO, ENOSPC
/// (not everything could be written; it is unmounted in any case).
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_unmount(fs: *mut NVMEDFS) -> c_int {
    ffi_guard(|| end(fs, Mount::take, Mount::finish))
}

/// Works like syncfs(2): everything done in the file system before survives any crash. Thread-safe.
///
/// Returns 0, or -1: EBADF; EIO, ENOSPC.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_sync(fs: *mut NVMEDFS) -> c_int {
    ffi_guard(|| with(fs, |mount: &Arc<Mount>| mount.run(|fs| Ok(fs.sync()?))).map(|()| 0))
}

/// Works like umask(2), for files created in this file system. Thread-safe.
///
/// Returns the previous umask, or -1 (of mode_t): EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nvmedfs_umask(fs: *mut NVMEDFS, mask: mode_t) -> mode_t {
    let before: i32 = ffi_guard(|| with(fs, |mount: &Arc<Mount>| Ok(mount.umask.swap((mask & 0o777) as u16, Ordering::Relaxed).into())));
    before.cast_unsigned()
}

/// Converts the usage to statvfs(3).
pub fn space(fs: &Fs, read_only: bool) -> statvfs {
    let told = fs.stat_fs();
    // SAFETY: integers alone, for which zeroes are values.
    let mut to: statvfs = unsafe { std::mem::zeroed() };
    (to.f_bsize, to.f_frsize) = (told.block_bytes.into(), told.block_bytes.into());
    (to.f_blocks, to.f_bfree, to.f_bavail) = (told.blocks, told.free, told.free);
    (to.f_files, to.f_ffree, to.f_favail) = (told.files, told.files_free, told.files_free);
    (to.f_fsid, to.f_namemax) = (Mount::number(fs), told.name_max.into());
    to.f_flag = if read_only { libc::ST_RDONLY } else { 0 };
    to
}

/// Works like statvfs(3), of the whole file system. Thread-safe. Returns 0, or -1: EBADF, EFAULT.
///
/// # Safety
/// `buf` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_statvfs(fs: *mut NVMEDFS, buf: *mut statvfs) -> c_int {
    ffi_guard(|| {
        let told = with(fs, |mount: &Arc<Mount>| mount.run(|fs| Ok(space(fs, mount.is(NVMEDFS_READ_ONLY)))))?;
        // SAFETY: the caller's promise.
        unsafe { memory::fill(buf, "the struct statvfs", told) }
    })
}

fn stats(mount: &Mount, fs: &Fs) -> nvmedfs_stats {
    let (counts, usage, block) = (fs.store().disk().counts(), fs.store().usage(), BLOCK_BYTES as u64);
    nvmedfs_stats {
        size: size_of::<nvmedfs_stats>(),
        device_reads: counts.reads,
        device_read_bytes: counts.read_bytes,
        device_writes: counts.writes,
        device_written_bytes: counts.written_bytes,
        device_flushes: counts.flushes,
        device_discards: counts.discards,
        data_bytes: usage.blocks * block,
        data_free_bytes: usage.blocks_free * block,
        metadata_bytes: usage.nodes * 4 * block,
        metadata_free_bytes: usage.nodes_free * 4 * block,
        log_bytes: usage.log_bytes,
        log_used_bytes: usage.log_used,
        unwritten_bytes: fs.unwritten_bytes(),
        metadata_memory_bytes: usage.memory_bytes,
        metadata_node_reads: usage.node_reads,
        files_in_use: fs.in_use() as u64,
        replayed: mount.recovery.replayed,
        unnamed_removed: mount.orphans,
        was_clean: mount.recovery.clean.into(),
        was_repaired: mount.recovery.repaired.into(),
    }
}

/// Returns counters and usage of the file system. Set `size` to sizeof(struct nvmedfs_stats) first. Thread-safe.
///
/// Returns 0, or -1: EBADF; EFAULT; EINVAL (size).
///
/// # Safety
/// `to` is NULL or has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_get_stats(fs: *mut NVMEDFS, to: *mut nvmedfs_stats) -> c_int {
    ffi_guard(|| {
        let told = with(fs, |mount: &Arc<Mount>| mount.run(|fs| Ok(stats(mount, fs))))?;
        // SAFETY: the caller's promise.
        let size = if to.is_null() { 0 } else { unsafe { (&raw const (*to).size).read() } };
        // SAFETY: the caller's promise.
        unsafe { options::write(to, size, told) }
    })
}
