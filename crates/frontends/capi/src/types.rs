//! The types of the C interface: opaque types, structs and constants.
#![expect(non_camel_case_types, reason = "C's names")]

use std::ffi::{c_int, c_void};

/// An open device; nvmed_open returns it.
pub struct NVMED {
    _opaque: (),
}

/// A queue of a device (nvmed_create_queue).
pub struct NVMED_QUEUE {
    _opaque: (),
}

/// A handle for I/O, bound to one or several queues.
pub struct NVMED_HANDLE {
    _opaque: (),
}

/// An open directory stream (uopendir).
pub struct UDIR {
    _opaque: (),
}

/// A queue of asynchronous requests of the u calls (uaio_create).
pub struct UAIO {
    _opaque: (),
}

/// For nvmed_handle_create: bypasses the block cache. This is the default. (NVMeDirect: HANDLE_DIRECT_IO.)
pub const NVMED_DIRECT: u32 = 1 << 0;
/// A call returns when the device has completed it. The default of direct handles; on a cached handle a write returns when it is durable.
/// (NVMeDirect: HANDLE_SYNC_IO.)
pub const NVMED_SYNC: u32 = 1 << 1;
/// Memory that is not from nvmed_get_buffer is refused (EFAULT) instead of copied. (NVMeDirect: HANDLE_HINT_DMEM.)
pub const NVMED_ZERO_COPY: u32 = 1 << 2;
/// Uses the block cache of the device: any offset and length; writes reach the device later, nvmed_flush makes them durable.
pub const NVMED_CACHED: u32 = 1 << 4;
/// On a direct handle: nvmed_read, nvmed_write, nvmed_pread, nvmed_pwrite, nvmed_discard and nvmed_write_zeroes only submit;
/// the memory belongs to the library until nvmed_poll or nvmed_wait reports the request. On a cached handle: the default.
pub const NVMED_ASYNC: u32 = 1 << 5;
/// A write completes only when it survives a power cut (force unit access).
pub const NVMED_DURABLE: u32 = 1 << 6;
/// A waiting thread polls instead of sleeping: the lowest latency, at the cost of a whole CPU.
pub const NVMED_POLLED: u32 = 1 << 7;

/// NVMeDirect's name for NVMED_DIRECT, also for nvmed_handle_feature_set.
pub const HANDLE_DIRECT_IO: u32 = NVMED_DIRECT;
/// NVMeDirect's name for the flag NVMED_SYNC.
pub const HANDLE_SYNC_IO: u32 = NVMED_SYNC;
/// NVMeDirect's name for the flag NVMED_ZERO_COPY.
pub const HANDLE_HINT_DMEM: u32 = NVMED_ZERO_COPY;
/// For nvmed_handle_feature_set: 1 sleeps for completions, 0 polls for them (NVMED_POLLED).
pub const HANDLE_INTERRUPT: u32 = 1 << 8;

/// For nvmed_feature_set: 1 refuses cached handles of this device.
pub const NVMED_NO_CACHE: u32 = 1 << 0;
/// For nvmed_feature_set: size of the block cache in pages of 4096 bytes; can be changed until the first cached handle is used.
pub const NVMED_CACHE_SIZE: u32 = 1 << 1;
/// For nvmed_feature_set: 1 (the default) allocates the block cache on demand, 0 all of it at once.
pub const NVMED_CACHE_LAZY_INIT: u32 = 1 << 2;

/// A queue of one handle, used by one thread at a time: no lock, and a concurrent call fails with EBUSY. Without it a queue is safe for
/// any number of handles and threads.
pub const NVMED_QUEUE_DEDICATED: u32 = 1 << 0;
/// The device is polled for completions and sends no interrupts (io_uring: IOPOLL), where supported.
pub const NVMED_QUEUE_DEVICE_POLLED: u32 = 1 << 1;
/// A kernel thread takes submissions (io_uring: SQPOLL).
pub const NVMED_QUEUE_KERNEL_SUBMITS: u32 = 1 << 2;

/// No scheduler: requests keep their order of arrival.
pub const NVMED_SCHEDULER_NONE: u32 = 0;
/// Schedules requests by weights of priority classes.
pub const NVMED_SCHEDULER_CLASSES: u32 = 3;

/// The default for this machine: NVMED_COMPLETION_ADAPTIVE, or NVMED_COMPLETION_INTERRUPT with fewer than 3 CPUs.
pub const NVMED_COMPLETION_DEFAULT: u32 = 0;
/// Handles of the queue poll while they wait, as with NVMED_POLLED.
pub const NVMED_COMPLETION_POLLING: u32 = 1;
/// A waiting thread sleeps until the device signals.
pub const NVMED_COMPLETION_INTERRUPT: u32 = 2;
/// A waiting thread sleeps for the expected time of its request, then polls; decided for each request.
pub const NVMED_COMPLETION_ADAPTIVE: u32 = 3;
/// The library's completion thread, one for all such queues, waits for a shared queue and wakes waiting threads. It calls no callbacks.
pub const NVMED_COMPLETION_THREAD: u32 = 4;

/// Parameter of a handle: 1 through the block cache, 0 past it.
pub const NVMED_PARAM_CACHED: u32 = 1;
/// Parameter: 1 calls are synchronous, 0 as with NVMED_ASYNC.
pub const NVMED_PARAM_SYNCHRONOUS: u32 = 2;
/// Parameter: timeout of a request in milliseconds (ETIMEDOUT); 0: none. Default: 30000.
pub const NVMED_PARAM_TIMEOUT_MS: u32 = 3;
/// Parameter: priority class, 0 (foreground) to 255, for the scheduler NVMED_SCHEDULER_CLASSES.
pub const NVMED_PARAM_CLASS: u32 = 4;
/// Parameter: 0 normal, 1 urgent (a thread waits), 2 one of a batch.
pub const NVMED_PARAM_URGENCY: u32 = 5;
/// Parameter: 1 makes each write durable (NVMED_DURABLE).
pub const NVMED_PARAM_FUA: u32 = 6;
/// Parameter: NVMED_COMPLETION_... of the queue, or NVMED_COMPLETION_POLLING, which can be set and unset at any time.
pub const NVMED_PARAM_COMPLETION: u32 = 7;
/// Parameter, fixed: maximum asynchronous requests of the handle; 0: the depth of the queue.
pub const NVMED_PARAM_REQUESTS_MAX: u32 = 8;
/// Parameter, fixed: depth of the queue.
pub const NVMED_PARAM_QUEUE_DEPTH: u32 = 9;
/// Parameter, fixed: scheduler of the queue, one of NVMED_SCHEDULER_...
pub const NVMED_PARAM_SCHEDULER: u32 = 10;
/// Parameter, fixed: 1 if the queue was created with NVMED_QUEUE_DEVICE_POLLED.
pub const NVMED_PARAM_DEVICE_POLLED: u32 = 11;
/// Parameter, fixed: 1 if the queue was created with NVMED_QUEUE_KERNEL_SUBMITS.
pub const NVMED_PARAM_KERNEL_SUBMITS: u32 = 12;
/// Parameter, fixed: nanoseconds, shortest sleep of adaptive completion.
pub const NVMED_PARAM_POLL_MIN_NS: u32 = 13;
/// Parameter, fixed: nanoseconds, longest sleep of adaptive completion.
pub const NVMED_PARAM_POLL_MAX_NS: u32 = 14;
/// Parameter, fixed: milliseconds for the device to cancel a timed-out request.
pub const NVMED_PARAM_CANCEL_GRACE_MS: u32 = 15;
/// Parameter, fixed: milliseconds for the device to release the memory of timed-out requests before the queue is reset; 0: never.
pub const NVMED_PARAM_RESET_AFTER_MS: u32 = 16;
/// Parameter, fixed: bytes of the block cache of the device.
pub const NVMED_PARAM_CACHE_BYTES: u32 = 17;
/// Parameter: bytes the block cache of the device reads ahead; fixed once the cache is in use.
pub const NVMED_PARAM_READAHEAD_BYTES: u32 = 18;

/// For struct nvmed_io: reads blocks into memory.
pub const NVMED_OP_READ: u32 = 0;
/// For struct nvmed_io: writes memory to blocks.
pub const NVMED_OP_WRITE: u32 = 1;
/// For struct nvmed_io: makes completed writes durable.
pub const NVMED_OP_FLUSH: u32 = 2;
/// For struct nvmed_io: discards the content of blocks.
pub const NVMED_OP_DISCARD: u32 = 3;
/// For struct nvmed_io: zeroes blocks.
pub const NVMED_OP_WRITE_ZEROES: u32 = 4;

/// The request has completed, but the device may still access its memory (it timed out): memory of nvmed_get_buffer must not be used
/// again; pass it to nvmed_put_buffer, and it is reused when the device has released it.
pub const NVMED_EVENT_HELD: u32 = 1 << 0;

/// Status of an NVMED_AIO_CTX: completed successfully.
pub const NVMED_AIO_DONE: i32 = 0;
/// Status of an NVMED_AIO_CTX: failed; `error` has the errno.
pub const NVMED_AIO_ERROR: i32 = 1;
/// Status of an NVMED_AIO_CTX: in flight.
pub const NVMED_AIO_BUSY: i32 = 2;

/// Properties of a device. Set `size` to sizeof(struct nvmed_info) before the call; fields that the library or the program does not know
/// are skipped.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_info {
    /// Set to the value of sizeof(struct nvmed_info).
    pub size: usize,
    /// Size of the device in bytes.
    pub bytes: u64,
    /// Block size in bytes: direct I/O needs multiples of it.
    pub block_bytes: u32,
    /// Maximum transfer size of the device, bytes; longer requests are split.
    pub transfer_bytes_max: u32,
    /// Alignment of memory that is used without a copy, in bytes.
    pub memory_align: u32,
    /// 1: a write is durable only after nvmed_flush, or with NVMED_DURABLE.
    pub volatile_cache: u32,
    /// 1: the device is read-only.
    pub read_only: u32,
    /// 1: the device supports nvmed_discard.
    pub can_discard: u32,
    /// 1: the device supports nvmed_write_zeroes.
    pub can_write_zeroes: u32,
    /// Reserved for later versions; it is 0.
    pub reserved: u32,
    /// Free bytes for nvmed_get_buffer and copies.
    pub buffer_bytes_free: u64,
}

/// Options of nvmed_open_with. Call nvmed_device_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_device_options {
    /// Set to the value of sizeof(struct nvmed_device_options).
    pub size: usize,
    /// Bytes of device-accessible memory for nvmed_get_buffer and copies; a multiple of 4096. Default: 32 MiB.
    pub buffer_bytes: u64,
    /// Size of the block cache in bytes, allocated when the first cached handle is used. Default: 64 MiB.
    pub cache_bytes: u64,
    /// Maximum read-ahead of the block cache, bytes. Default: 128 KiB.
    pub readahead_bytes: u64,
}

/// Options of nvmed_create_queue. Call nvmed_queue_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_queue_options {
    /// Set to the value of sizeof(struct nvmed_queue_options).
    pub size: usize,
    /// Maximum requests in flight: 1 to 4096, a power of two. Default: 128.
    pub depth: u32,
    /// Flags of the queue, NVMED_QUEUE_...
    pub flags: u32,
    /// The scheduler, one of NVMED_SCHEDULER_...
    pub scheduler: u32,
    /// Milliseconds for the device to cancel a timed-out request before it fails with ETIMEDOUT. Default: 1000.
    pub cancel_grace_ms: u32,
    /// Milliseconds for the device to release the memory of timed-out requests before the queue is reset; 0: never. Default: 5000.
    pub reset_after_ms: u32,
    /// The completion mode, one of NVMED_COMPLETION_...
    pub completion: u32,
}

/// Options of nvmed_create_handle. Call nvmed_handle_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_handle_options {
    /// Set to the value of sizeof(struct nvmed_handle_options).
    pub size: usize,
    /// NVMED_DIRECT, NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_DURABLE, NVMED_POLLED, NVMED_ZERO_COPY.
    pub flags: u32,
    /// Maximum unreported asynchronous requests; 0 (the default): the depth of the queue.
    pub requests_max: u32,
    /// Timeout of a request in milliseconds (ETIMEDOUT); 0: none. Default: 30000.
    pub timeout_ms: u32,
    /// Priority class, 0 (foreground) to 255.
    pub priority_class: u32,
}

/// One asynchronous request. Call nvmed_io_init first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmed_io {
    /// Set to the value of sizeof(struct nvmed_io).
    pub size: usize,
    /// The operation, one of NVMED_OP_...
    pub op: u32,
    /// NVMED_DURABLE for a write, or 0.
    pub flags: u32,
    /// Buffer of a read or write: belongs to the library until completion.
    pub buf: *mut c_void,
    /// Length of the buffer in bytes.
    pub len: usize,
    /// Offset on the device, in bytes.
    pub offset: libc::off_t,
    /// Returned unchanged in the event.
    pub user: u64,
    /// Timeout in milliseconds; 0: that of the handle.
    pub timeout_ms: u32,
    /// Reserved for later versions; must be 0.
    pub reserved: u32,
}

impl Default for nvmed_io {
    fn default() -> Self {
        let buf = std::ptr::null_mut();
        nvmed_io { size: 0, op: 0, flags: 0, buf, len: 0, offset: 0, user: 0, timeout_ms: 0, reserved: 0 }
    }
}

/// The completion of a request. This struct does not change.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmed_event {
    /// The `user` field of struct nvmed_io.
    pub user: u64,
    /// The request number of nvmed_submit.
    pub request: u64,
    /// Bytes transferred, discarded or zeroed (0 for a flush), or a negative errno.
    pub result: i64,
    /// The operation, one of NVMED_OP_...
    pub op: u32,
    /// Flags of the completion: NVMED_EVENT_HELD, or 0.
    pub flags: u32,
}

/// One asynchronous request of NVMeDirect: nvmed_aio_read or nvmed_aio_write, then nvmed_aio_handle_complete. Call nvmed_aio_ctx_init
/// first, set `handle` to `aio_callback`, and do not touch it until the callback, or until `status` is not NVMED_AIO_BUSY after a call of
/// nvmed_aio_handle_complete. Then it can be reused.
#[repr(C)]
pub struct NVMED_AIO_CTX {
    /// Set to the value of sizeof(NVMED_AIO_CTX).
    pub size: usize,
    /// The handle of the request.
    pub handle: *mut NVMED_HANDLE,
    /// Offset on the device, in bytes.
    pub offset: libc::off_t,
    /// Length of the buffer in bytes.
    pub len: usize,
    /// Buffer; belongs to the library until completion.
    pub buf: *mut c_void,
    /// Passed to the callback unchanged.
    pub cb_userdata: *mut c_void,
    /// Called by nvmed_aio_handle_complete, nvmed_poll or nvmed_wait, in the calling thread; may submit more, also with the same context.
    /// NULL: no callback. Must not throw or jump out.
    pub aio_callback: Option<unsafe extern "C" fn(context: *const NVMED_AIO_CTX, userdata: *mut c_void)>,
    /// NVMED_AIO_BUSY while in flight, then NVMED_AIO_DONE or NVMED_AIO_ERROR.
    pub status: c_int,
    /// The errno if `status` is NVMED_AIO_ERROR.
    pub error: c_int,
    /// Request number while in flight, for nvmed_cancel.
    pub request: u64,
}

/// A queue-selection callback of NVMeDirect: given the handle, the NVMe opcode (0 flush, 1 write, 2 read, 8 write zeroes, 9 discard), the
/// offset and the length in bytes, it returns one of the handle's queues; for any other value the first one is used. Called in the
/// submitting thread; it must not call functions of the handle, nor throw or jump out.
pub type nvmed_mq_get_queue =
    Option<unsafe extern "C" fn(handle: *mut NVMED_HANDLE, opcode: u8, offset: u64, length: u32) -> *mut NVMED_QUEUE>;

/// For struct uaio: a read, as upread.
pub const UAIO_READ: u32 = 0;
/// For struct uaio: a write, as upwrite.
pub const UAIO_WRITE: u32 = 1;
/// For struct uaio: a sync, as ufsync.
pub const UAIO_FSYNC: u32 = 2;
/// For struct uaio: a data sync, as ufdatasync.
pub const UAIO_FDATASYNC: u32 = 3;

/// For uaio_create_with: only one thread submits and reaps, the first one that does. Reads from the SSD are faster then if they are
/// submitted and reaped a few at a time. Other threads get EBUSY; they may destroy it when no read is in flight, or when the one thread
/// has ended. If they do (or hs_shutdown) while it lives, the SSD stays open until it has ended too.
pub const UAIO_ONE_THREAD: u32 = 1 << 0;
/// With UAIO_ONE_THREAD: uaio_reap is called only to wait, with a `min` of 1 or more. Completions then cost less CPU time, because the
/// kernel does not flag them in memory. A uaio_reap that finds nothing is a system call, so the flag is wrong for programs that poll.
pub const UAIO_WAITS: u32 = 1 << 1;
/// With both: a waiting thread polls for up to 100 microseconds before it sleeps, at the cost of CPU time. Hits on the SSD complete sooner
/// where waking a CPU is slow, above all in a virtual machine.
pub const UAIO_POLLS: u32 = 1 << 2;

/// One asynchronous request of the u calls. This struct does not change.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uaio {
    /// The file; it may be closed after submission, and is kept open for the request.
    pub ufd: c_int,
    /// The operation, one of UAIO_...
    pub op: u32,
    /// Buffer; belongs to the library until the request is reaped.
    pub buf: *mut c_void,
    /// Length of the buffer in bytes.
    pub n: usize,
    /// Offset in the file, in bytes.
    pub off: libc::off_t,
    /// Returned unchanged with the result.
    pub user: u64,
    /// Set by uaio_reap: the return value of the call, or a negative errno.
    pub result: i64,
}
