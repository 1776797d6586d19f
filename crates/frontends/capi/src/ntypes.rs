//! The types of the library file system: opaque types, structs and constants.
#![expect(non_camel_case_types, reason = "C's names")]

use std::ffi::{c_char, c_int, c_void};

/// A mounted file system (nvmedfs_mount).
pub struct NVMEDFS {
    _opaque: (),
}

/// An open directory stream of a file system (nvmedfs_opendir).
pub struct NVMEDFS_DIR {
    _opaque: (),
}

/// A transaction: atomic changes of many files (nvmedfs_begin).
pub struct NVMEDFS_TX {
    _opaque: (),
}

/// A queue of asynchronous requests of a file system (nvmedfs_aio_create).
pub struct NVMEDFS_AIO {
    _opaque: (),
}

/// For struct nvmedfs_mkfs_options: overwrites existing content.
pub const NVMEDFS_FORCE: u32 = 1 << 0;

/// For struct nvmedfs_options: nothing can be changed (EROFS), and other processes may read the image too.
pub const NVMEDFS_READ_ONLY: u32 = 1 << 0;
/// For struct nvmedfs_options: every call that changes something returns when the change survives a power cut, as if each file were opened
/// with O_SYNC.
pub const NVMEDFS_SYNC: u32 = 1 << 1;
/// For struct nvmedfs_options: reads do not update access times.
pub const NVMEDFS_NO_ATIME: u32 = 1 << 2;
/// For struct nvmedfs_options: unused blocks are not discarded on the device.
pub const NVMEDFS_NO_DISCARD: u32 = 1 << 3;
/// For struct nvmedfs_options: permissions are checked, with the credentials of the process at the mount. Without it, any process that can
/// open the image may do everything in it.
pub const NVMEDFS_CHECK: u32 = 1 << 4;
/// For struct nvmedfs_options: a device of only zeros is formatted first, as by nvmedfs_mkfs(device, NULL).
pub const NVMEDFS_CREATE: u32 = 1 << 5;

/// Options of nvmedfs_mkfs. Call nvmedfs_mkfs_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmedfs_mkfs_options {
    /// Set to the value of sizeof(struct nvmedfs_mkfs_options).
    pub size: usize,
    /// Flags of the call: NVMEDFS_FORCE, or 0.
    pub flags: u32,
    /// Reserved for later versions; must be 0.
    pub reserved: u32,
    /// Size of the file system in bytes: a missing file is created with it; 0: the whole existing file or device.
    pub bytes: u64,
    /// Bytes for names, attributes and small files, part of `bytes`; 0: a sixteenth, at least 4 MiB.
    pub metadata_bytes: u64,
    /// Bytes for the log, part of `bytes`; 0: a thirty-second, 1 to 128 MiB.
    pub log_bytes: u64,
}

/// Options of nvmedfs_mount. Call nvmedfs_options_init first. If `memory_bytes` is set, the file system allocates at most `memory_bytes`
/// less a quarter, or less a sixteenth and 48 MiB if that leaves more; the rest is for the overhead of a good allocator. Otherwise it
/// allocates the sum of its four sizes, 16 MiB, buffers of 24 MiB, and up to 5 KiB for each open file. The C library's allocator has an
/// overhead of up to as much again if many threads allocate (MALLOC_ARENA_MAX=1: less, and slower).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmedfs_options {
    /// Set to the value of sizeof(struct nvmedfs_options).
    pub size: usize,
    /// NVMEDFS_READ_ONLY, NVMEDFS_SYNC, NVMEDFS_NO_ATIME, NVMEDFS_NO_DISCARD, NVMEDFS_CHECK, NVMEDFS_CREATE.
    pub flags: u32,
    /// Age in milliseconds at which dirty data is written back, at most about twice this; 0: only at a sync, or if there is too much.
    /// Default: 5000.
    pub write_back_ms: u32,
    /// Bytes of memory for the cache of file content. Default: 64 MiB.
    pub cache_bytes: u64,
    /// Bytes of memory for dirty file content; beyond it writers wait. Default: 64 MiB.
    pub dirty_bytes: u64,
    /// Bytes of memory for the cache of names and attributes. Default: 64 MiB.
    pub metadata_cache_bytes: u64,
    /// Bytes of memory for dirty names and attributes; beyond it a checkpoint starts. Default: 64 MiB.
    pub metadata_dirty_bytes: u64,
    /// Maximum read-ahead of a sequential reader, bytes. Default: 512 KiB.
    pub readahead_bytes: u64,
    /// One limit instead of the four sizes: bytes of memory of the whole file system, open files included (one too many is ENFILE). 0: the
    /// four sizes apply. At least 23 MiB and 171 KiB for each GiB of the image (ENOMEM). Default: 0.
    pub memory_bytes: u64,
}

/// Counters and usage of a file system. Fields that the library or the program does not know are skipped.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmedfs_stats {
    /// Set to the value of sizeof(struct nvmedfs_stats).
    pub size: usize,
    /// Read requests to the device since the mount.
    pub device_reads: u64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Write requests to the device since the mount.
    pub device_writes: u64,
    /// Bytes written to the device.
    pub device_written_bytes: u64,
    /// Flush requests to the device since the mount.
    pub device_flushes: u64,
    /// Discard requests to the device since the mount.
    pub device_discards: u64,
    /// Bytes for file content, used and free.
    pub data_bytes: u64,
    /// Free bytes for file content.
    pub data_free_bytes: u64,
    /// Bytes for names, attributes and small files.
    pub metadata_bytes: u64,
    /// Free bytes for names, attributes and small files.
    pub metadata_free_bytes: u64,
    /// Size of the log in bytes.
    pub log_bytes: u64,
    /// Bytes of the log in use until the next checkpoint.
    pub log_used_bytes: u64,
    /// Bytes of file content not written back yet.
    pub unwritten_bytes: u64,
    /// Bytes of memory in use for names and attributes.
    pub metadata_memory_bytes: u64,
    /// Nodes of names and attributes (16 KiB) read from the device.
    pub metadata_node_reads: u64,
    /// Files in memory: open, or still to be written.
    pub files_in_use: u64,
    /// Changes replayed from the log at the mount.
    pub replayed: u64,
    /// Files without a name removed at the mount.
    pub unnamed_removed: u64,
    /// 1: it had been unmounted cleanly.
    pub was_clean: u32,
    /// 1: a damaged superblock was restored from its copy.
    pub was_repaired: u32,
}

/// For struct nvmedfs_io: as nvmedfs_pread.
pub const NVMEDFS_OP_PREAD: u32 = 0;
/// Works like nvmedfs_pwrite, but completely or with an error.
pub const NVMEDFS_OP_PWRITE: u32 = 1;
/// Works like nvmedfs_preadv: `buf` is an array of struct iovec, `n` their number.
pub const NVMEDFS_OP_PREADV: u32 = 2;
/// Works like nvmedfs_pwritev, but completely or with an error.
pub const NVMEDFS_OP_PWRITEV: u32 = 3;
/// Works like nvmedfs_fsync, including earlier submitted requests.
pub const NVMEDFS_OP_FSYNC: u32 = 4;
/// Works like nvmedfs_fdatasync, including earlier submitted requests.
pub const NVMEDFS_OP_FDATASYNC: u32 = 5;
/// Works like nvmedfs_ftruncate: to `off` bytes.
pub const NVMEDFS_OP_FTRUNCATE: u32 = 6;
/// Works like nvmedfs_openat with `flags` and `mode` (with O_CREAT it creates): the result is the file number.
pub const NVMEDFS_OP_OPEN: u32 = 7;
/// Works like nvmedfs_unlinkat with `flags`.
pub const NVMEDFS_OP_UNLINK: u32 = 8;
/// Works like nvmedfs_mkdirat with `mode`.
pub const NVMEDFS_OP_MKDIR: u32 = 9;
/// Works like nvmedfs_renameat2 from `path` below `fd` to `path2` below `fd2`, with `flags`.
pub const NVMEDFS_OP_RENAME: u32 = 10;
/// Works like nvmedfs_commit of `tx`, which is freed at submission. Waiting commits share their flushes.
pub const NVMEDFS_OP_COMMIT: u32 = 11;
/// Works like nvmedfs_sync, on the whole file system.
pub const NVMEDFS_OP_SYNC: u32 = 12;

/// The completion of an asynchronous request. This struct does not change.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmedfs_event {
    /// The `user` field of struct nvmedfs_io.
    pub user: u64,
    /// The return value of the call, or a negative errno.
    pub result: i64,
    /// The operation, one of NVMEDFS_OP_...
    pub op: u32,
    /// Reserved for later versions; it is 0.
    pub flags: u32,
}

/// One asynchronous request. Call nvmedfs_io_init first; nvmedfs_aio_submit copies it with its paths and arrays.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmedfs_io {
    /// Set to the value of sizeof(struct nvmedfs_io).
    pub size: usize,
    /// The operation, one of NVMEDFS_OP_...
    pub op: u32,
    /// Flags of an open, unlink or rename.
    pub flags: c_int,
    /// The file; or the base directory of `path`, AT_FDCWD (the default): the root. It may be closed after submission.
    pub fd: c_int,
    /// The base directory of `path2` in a rename.
    pub fd2: c_int,
    /// Mode of a new file or directory.
    pub mode: u32,
    /// Reserved for later versions; must be 0.
    pub reserved: u32,
    /// Buffer of a read or write: belongs to the library until completion.
    pub buf: *mut c_void,
    /// Length of the buffer in bytes, or the number of its parts.
    pub n: usize,
    /// Offset in the file, in bytes.
    pub off: libc::off_t,
    /// The path of the operation.
    pub path: *const c_char,
    /// The new path of a rename.
    pub path2: *const c_char,
    /// The transaction of a commit.
    pub tx: *mut NVMEDFS_TX,
    /// Returned unchanged in the event.
    pub user: u64,
    /// Called with the event and `userdata` by the thread that reaps it (nvmedfs_aio_reap, nvmedfs_aio_wait); may submit more. Must not
    /// throw or jump out. NULL: no callback.
    pub callback: Option<unsafe extern "C" fn(event: *const nvmedfs_event, userdata: *mut c_void)>,
    /// Passed to the callback unchanged.
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
