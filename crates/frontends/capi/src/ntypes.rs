//! The words of the library file system: its opaque types, structs and constants.
#![expect(non_camel_case_types, reason = "C's names")]

use std::ffi::{c_char, c_int, c_void};

/// A file system in use (nvmedfs_mount).
pub struct NVMEDFS {
    _opaque: (),
}

/// A directory of a file system that is open for reading (nvmedfs_opendir).
pub struct NVMEDFS_DIR {
    _opaque: (),
}

/// Changes of many files that happen all or not at all (nvmedfs_begin).
pub struct NVMEDFS_TX {
    _opaque: (),
}

/// Asynchronous requests of a file system (nvmedfs_aio_create).
pub struct NVMEDFS_AIO {
    _opaque: (),
}

/// For struct nvmedfs_mkfs_options: what is there is overwritten.
pub const NVMEDFS_FORCE: u32 = 1 << 0;

/// For struct nvmedfs_options: nothing can be changed (EROFS), and other processes may read the image, too.
pub const NVMEDFS_READ_ONLY: u32 = 1 << 0;
/// For struct nvmedfs_options: every call that changes something returns when the change survives a loss of power, as if each file
/// were opened with O_SYNC.
pub const NVMEDFS_SYNC: u32 = 1 << 1;
/// For struct nvmedfs_options: reading does not change times.
pub const NVMEDFS_NO_ATIME: u32 = 1 << 2;
/// For struct nvmedfs_options: the device is not told which blocks nobody needs any more.
pub const NVMEDFS_NO_DISCARD: u32 = 1 << 3;
/// For struct nvmedfs_options: permissions are checked, as the kernel would for the process as it is when it mounts. Without it
/// whoever can open the image may do everything in it.
pub const NVMEDFS_CHECK: u32 = 1 << 4;
/// For struct nvmedfs_options: a device of nothing but zeros gets a file system first, as nvmedfs_mkfs(device, NULL) makes it.
pub const NVMEDFS_CREATE: u32 = 1 << 5;

/// How a file system is made. Call nvmedfs_mkfs_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmedfs_mkfs_options {
    /// sizeof(struct nvmedfs_mkfs_options).
    pub size: usize,
    /// NVMEDFS_FORCE.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of it: a file that is not there is made so large; 0: the whole file or device that is there.
    pub bytes: u64,
    /// Of those, bytes for names, attributes and small files; 0: a sixteenth, at least 4 MiB.
    pub metadata_bytes: u64,
    /// And bytes of the log; 0: a thirty-second, 1 to 128 MiB.
    pub log_bytes: u64,
}

/// How a file system is used. Call nvmedfs_options_init first. The memory it asks the allocator for is at most `memory_bytes` less a
/// quarter, or less a sixteenth and 48 MiB if that leaves more, if `memory_bytes` is given; else the sum of its four sizes, 16 MiB, buffers
/// of 24 MiB, and up to 5 KiB for each open file. What the program's allocator takes beside is the rest with a good one; the C library's
/// takes up to as much again where many threads allocate (MALLOC_ARENA_MAX=1: less, and slower).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmedfs_options {
    /// sizeof(struct nvmedfs_options).
    pub size: usize,
    /// NVMEDFS_READ_ONLY, NVMEDFS_SYNC, NVMEDFS_NO_ATIME, NVMEDFS_NO_DISCARD, NVMEDFS_CHECK, NVMEDFS_CREATE.
    pub flags: u32,
    /// Milliseconds that what was written waits in memory, at most about twice this; 0: until it is synced, or there is too much of
    /// it. 5000 at first.
    pub write_back_ms: u32,
    /// Bytes of memory for what files have on the device. 64 MiB at first.
    pub cache_bytes: u64,
    /// Bytes of memory for what was written and is not on the device yet; who writes more waits until some is. 64 MiB at first.
    pub dirty_bytes: u64,
    /// Bytes of memory for names and attributes as they are on the device. 64 MiB at first.
    pub metadata_cache_bytes: u64,
    /// Bytes of memory for names and attributes that differ from the device; more of them begin a checkpoint. 64 MiB at first.
    pub metadata_dirty_bytes: u64,
    /// Most bytes that are read ahead of who reads in order. 512 KiB at first.
    pub readahead_bytes: u64,
    /// One number instead of the four sizes: bytes of memory for all of the file system, which it divides itself, open files included (one
    /// too many is ENFILE). 0: the four sizes count. At least 23 MiB and 171 KiB for each GiB of the image (ENOMEM). 0 at first.
    pub memory_bytes: u64,
}

/// What a file system has done and how full it is. What a library or a program does not know of is left out.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmedfs_stats {
    /// sizeof(struct nvmedfs_stats).
    pub size: usize,
    /// Requests to the device since it was mounted.
    pub device_reads: u64,
    /// Their bytes.
    pub device_read_bytes: u64,
    /// Requests.
    pub device_writes: u64,
    /// Their bytes.
    pub device_written_bytes: u64,
    /// Requests that make what was written safe from a loss of power.
    pub device_flushes: u64,
    /// Requests that say what nobody needs any more.
    pub device_discards: u64,
    /// Bytes for the content of files.
    pub data_bytes: u64,
    /// Of those, free.
    pub data_free_bytes: u64,
    /// Bytes for names, attributes and small files.
    pub metadata_bytes: u64,
    /// Of those, free.
    pub metadata_free_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Of those, in use until the next checkpoint.
    pub log_used_bytes: u64,
    /// Bytes that were written and are not on the device yet.
    pub unwritten_bytes: u64,
    /// Bytes of memory in use for names and attributes.
    pub metadata_memory_bytes: u64,
    /// Nodes of names and attributes (16 KiB) read from the device.
    pub metadata_node_reads: u64,
    /// Files in memory: open, or still to be written.
    pub files_in_use: u64,
    /// Changes that were taken from the log when it was mounted.
    pub replayed: u64,
    /// Files without a name that were removed then.
    pub unnamed_removed: u64,
    /// 1: it had been unmounted in order.
    pub was_clean: u32,
    /// 1: a superblock was damaged, and made again from its copy.
    pub was_repaired: u32,
}

/// For struct nvmedfs_io: as nvmedfs_pread.
pub const NVMEDFS_OP_PREAD: u32 = 0;
/// As nvmedfs_pwrite, but all of it or an error.
pub const NVMEDFS_OP_PWRITE: u32 = 1;
/// As nvmedfs_preadv: `buf` is an array of struct iovec, `n` their number.
pub const NVMEDFS_OP_PREADV: u32 = 2;
/// As nvmedfs_pwritev, but all of it or an error.
pub const NVMEDFS_OP_PWRITEV: u32 = 3;
/// As nvmedfs_fsync, of what was submitted before, too.
pub const NVMEDFS_OP_FSYNC: u32 = 4;
/// As nvmedfs_fdatasync, likewise.
pub const NVMEDFS_OP_FDATASYNC: u32 = 5;
/// As nvmedfs_ftruncate: to `off` bytes.
pub const NVMEDFS_OP_FTRUNCATE: u32 = 6;
/// As nvmedfs_openat with `flags` and `mode` (with O_CREAT it creates): the result is the file number.
pub const NVMEDFS_OP_OPEN: u32 = 7;
/// As nvmedfs_unlinkat with `flags`.
pub const NVMEDFS_OP_UNLINK: u32 = 8;
/// As nvmedfs_mkdirat with `mode`.
pub const NVMEDFS_OP_MKDIR: u32 = 9;
/// As nvmedfs_renameat2 from `path` below `fd` to `path2` below `fd2`, with `flags`.
pub const NVMEDFS_OP_RENAME: u32 = 10;
/// As nvmedfs_commit of `tx`, which is gone when it is submitted. Commits that wait together share their flushes.
pub const NVMEDFS_OP_COMMIT: u32 = 11;
/// As nvmedfs_sync.
pub const NVMEDFS_OP_SYNC: u32 = 12;

/// An asynchronous request has ended. This struct does not change.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmedfs_event {
    /// The word of struct nvmedfs_io.
    pub user: u64,
    /// What the call would have returned, or a negative errno.
    pub result: i64,
    /// NVMEDFS_OP_...
    pub op: u32,
    /// 0.
    pub flags: u32,
}

/// One asynchronous request. Call nvmedfs_io_init first; it is copied by nvmedfs_aio_submit, the paths and arrays in it, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmedfs_io {
    /// sizeof(struct nvmedfs_io).
    pub size: usize,
    /// NVMEDFS_OP_...
    pub op: u32,
    /// Of an open, unlink or rename.
    pub flags: c_int,
    /// The file; or the directory that `path` counts from, AT_FDCWD (at first): the root. It may be closed once the request is submitted.
    pub fd: c_int,
    /// The directory that `path2` counts from.
    pub fd2: c_int,
    /// Of a file or directory that is made.
    pub mode: u32,
    /// 0.
    pub reserved: u32,
    /// Of a read or write: belongs to the library until the request has ended.
    pub buf: *mut c_void,
    /// Bytes.
    pub n: usize,
    /// Bytes from the file's begin.
    pub off: libc::off_t,
    /// A name.
    pub path: *const c_char,
    /// The new name.
    pub path2: *const c_char,
    /// Of a commit.
    pub tx: *mut NVMEDFS_TX,
    /// Comes back in the event.
    pub user: u64,
    /// Called with the event and `userdata` by the thread that takes it (nvmedfs_aio_reap, nvmedfs_aio_wait), before that returns; may
    /// submit more. Must not throw or jump out. NULL: nothing is called.
    pub callback: Option<unsafe extern "C" fn(event: *const nvmedfs_event, userdata: *mut c_void)>,
    /// Goes to the callback.
    pub userdata: *mut c_void,
}

impl Default for nvmedfs_io {
    fn default() -> Self {
        nvmedfs_io {
            size: size_of::<Self>(),
            op: 0,
            flags: 0,
            fd: libc::AT_FDCWD,
            fd2: libc::AT_FDCWD,
            mode: 0,
            reserved: 0,
            buf: std::ptr::null_mut(),
            n: 0,
            off: 0,
            path: std::ptr::null(),
            path2: std::ptr::null(),
            tx: std::ptr::null_mut(),
            user: 0,
            callback: None,
            userdata: std::ptr::null_mut(),
        }
    }
}
