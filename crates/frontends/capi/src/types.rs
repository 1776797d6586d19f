//! The words of the C interface: its opaque types, structs and constants.
#![expect(non_camel_case_types, reason = "C's names")]

use std::ffi::{c_int, c_void};

/// A device that is open.
pub struct NVMED {
    _opaque: (),
}

/// A queue of a device.
pub struct NVMED_QUEUE {
    _opaque: (),
}

/// What I/O goes through: bound to a queue, or to several.
pub struct NVMED_HANDLE {
    _opaque: (),
}

/// A directory that is open for reading (uopendir).
pub struct UDIR {
    _opaque: (),
}

/// Asynchronous requests of the u calls (uaio_create).
pub struct UAIO {
    _opaque: (),
}

/// For nvmed_handle_create: past the block cache. This is the default. (NVMeDirect: HANDLE_DIRECT_IO.)
pub const NVMED_DIRECT: u32 = 1 << 0;
/// A call returns when the device has done it. The default of direct handles; on a cached handle a write returns when its bytes
/// survive a loss of power.
/// (NVMeDirect: HANDLE_SYNC_IO.)
pub const NVMED_SYNC: u32 = 1 << 1;
/// Memory that is not from nvmed_get_buffer is refused (EFAULT) instead of copied. (NVMeDirect: HANDLE_HINT_DMEM.)
pub const NVMED_ZERO_COPY: u32 = 1 << 2;
/// Through the block cache of the device: any offset and length; writes reach the device later, nvmed_flush makes them safe.
pub const NVMED_CACHED: u32 = 1 << 4;
/// On a direct handle: nvmed_read, nvmed_write, nvmed_pread, nvmed_pwrite, nvmed_discard and nvmed_write_zeroes only submit;
/// the memory belongs to the library until nvmed_poll or nvmed_wait reports the request. On a cached handle: the default.
pub const NVMED_ASYNC: u32 = 1 << 5;
/// A write is complete only when it survives a loss of power (force unit access).
pub const NVMED_DURABLE: u32 = 1 << 6;
/// Who waits polls, and does not sleep: the lowest latency, for a whole processor.
pub const NVMED_POLLED: u32 = 1 << 7;

/// NVMeDirect's name for NVMED_DIRECT, also for nvmed_handle_feature_set.
pub const HANDLE_DIRECT_IO: u32 = NVMED_DIRECT;
/// NVMeDirect's name for NVMED_SYNC.
pub const HANDLE_SYNC_IO: u32 = NVMED_SYNC;
/// NVMeDirect's name for NVMED_ZERO_COPY.
pub const HANDLE_HINT_DMEM: u32 = NVMED_ZERO_COPY;
/// For nvmed_handle_feature_set: 1 sleeps for completions, 0 polls for them (NVMED_POLLED).
pub const HANDLE_INTERRUPT: u32 = 1 << 8;

/// For nvmed_feature_set: 1 refuses cached handles of this device.
pub const NVMED_NO_CACHE: u32 = 1 << 0;
/// For nvmed_feature_set: pages of 4096 bytes of the block cache; until its first cached handle is used.
pub const NVMED_CACHE_SIZE: u32 = 1 << 1;
/// For nvmed_feature_set: 1 (the default) takes the memory of the block cache as it is used, 0 all of it at once.
pub const NVMED_CACHE_LAZY_INIT: u32 = 1 << 2;

/// A queue of one handle, which one thread uses at a time: no lock, and a call while another is inside fails with EBUSY.
/// Without it a queue is safe for any number of handles and threads.
pub const NVMED_QUEUE_DEDICATED: u32 = 1 << 0;
/// The device is polled for completions, and sends no interrupts (io_uring: IOPOLL), where it can be.
pub const NVMED_QUEUE_DEVICE_POLLED: u32 = 1 << 1;
/// A thread of the kernel takes submissions (io_uring: SQPOLL).
pub const NVMED_QUEUE_KERNEL_SUBMITS: u32 = 1 << 2;

/// Requests go as they come.
pub const NVMED_SCHEDULER_NONE: u32 = 0;
/// Neighbours are merged, in the order of their positions: for disks.
pub const NVMED_SCHEDULER_ELEVATOR: u32 = 1;
/// By deadline.
pub const NVMED_SCHEDULER_DEADLINE: u32 = 2;
/// By weights of priority classes.
pub const NVMED_SCHEDULER_CLASSES: u32 = 3;

/// What is right for this machine: NVMED_COMPLETION_ADAPTIVE, or with fewer than 3 processors NVMED_COMPLETION_INTERRUPT.
pub const NVMED_COMPLETION_DEFAULT: u32 = 0;
/// Handles of the queue poll while they wait, as with NVMED_POLLED.
pub const NVMED_COMPLETION_POLLING: u32 = 1;
/// Who waits sleeps until the device signals.
pub const NVMED_COMPLETION_INTERRUPT: u32 = 2;
/// Who waits sleeps as long as a request of its kind takes, then polls; decided for each request.
pub const NVMED_COMPLETION_ADAPTIVE: u32 = 3;
/// The library's completion thread, one for all such queues, waits for a shared queue and wakes who waits. It calls no callbacks.
pub const NVMED_COMPLETION_THREAD: u32 = 4;

/// Parameter of a handle: 1 through the block cache, 0 past it.
pub const NVMED_PARAM_CACHED: u32 = 1;
/// Parameter: 1 calls return when it is done, 0 as NVMED_ASYNC says.
pub const NVMED_PARAM_SYNCHRONOUS: u32 = 2;
/// Parameter: milliseconds a request may take before it fails with ETIMEDOUT; 0: for ever. 30000 at first.
pub const NVMED_PARAM_TIMEOUT_MS: u32 = 3;
/// Parameter: priority class, 0 (foreground) to 255, for the scheduler NVMED_SCHEDULER_CLASSES.
pub const NVMED_PARAM_CLASS: u32 = 4;
/// Parameter: 0 normal, 1 urgent (a thread waits), 2 one of a batch.
pub const NVMED_PARAM_URGENCY: u32 = 5;
/// Parameter: 1 as NVMED_DURABLE.
pub const NVMED_PARAM_FUA: u32 = 6;
/// Parameter: NVMED_COMPLETION_... of the queue, or NVMED_COMPLETION_POLLING, which can be set and unset at any time.
pub const NVMED_PARAM_COMPLETION: u32 = 7;
/// Parameter, fixed: asynchronous requests of the handle at a time; 0: as many as the queue is deep.
pub const NVMED_PARAM_REQUESTS_MAX: u32 = 8;
/// Parameter, fixed: depth of the queue.
pub const NVMED_PARAM_QUEUE_DEPTH: u32 = 9;
/// Parameter, fixed: NVMED_SCHEDULER_...
pub const NVMED_PARAM_SCHEDULER: u32 = 10;
/// Parameter, fixed: see NVMED_QUEUE_DEVICE_POLLED.
pub const NVMED_PARAM_DEVICE_POLLED: u32 = 11;
/// Parameter, fixed: see NVMED_QUEUE_KERNEL_SUBMITS.
pub const NVMED_PARAM_KERNEL_SUBMITS: u32 = 12;
/// Parameter, fixed: nanoseconds, shortest sleep of adaptive completion.
pub const NVMED_PARAM_POLL_MIN_NS: u32 = 13;
/// Parameter, fixed: nanoseconds, longest sleep of adaptive completion.
pub const NVMED_PARAM_POLL_MAX_NS: u32 = 14;
/// Parameter, fixed: milliseconds for the device to cancel what is over its time.
pub const NVMED_PARAM_CANCEL_GRACE_MS: u32 = 15;
/// Parameter, fixed: milliseconds for the device to give memory of timed-out requests back before the queue is reset; 0: never.
pub const NVMED_PARAM_RESET_AFTER_MS: u32 = 16;
/// Parameter, fixed: bytes of the block cache of the device.
pub const NVMED_PARAM_CACHE_BYTES: u32 = 17;
/// Parameter: bytes the block cache of the device reads ahead; fixed once the cache is in use.
pub const NVMED_PARAM_READAHEAD_BYTES: u32 = 18;

/// For struct nvmed_io: blocks into memory.
pub const NVMED_OP_READ: u32 = 0;
/// Memory into blocks.
pub const NVMED_OP_WRITE: u32 = 1;
/// What was completed before survives a loss of power.
pub const NVMED_OP_FLUSH: u32 = 2;
/// The blocks' content is not needed any more.
pub const NVMED_OP_DISCARD: u32 = 3;
/// The blocks read as zeroes.
pub const NVMED_OP_WRITE_ZEROES: u32 = 4;

/// The request has ended, and its memory may still be read or written by the device (it timed out): memory of
/// nvmed_get_buffer must not be used again; nvmed_put_buffer it, and it is reused when the device has let go.
pub const NVMED_EVENT_HELD: u32 = 1 << 0;

/// Status of an NVMED_AIO_CTX: ended well.
pub const NVMED_AIO_DONE: i32 = 0;
/// Status of an NVMED_AIO_CTX: ended with an error; `error` has the errno.
pub const NVMED_AIO_ERROR: i32 = 1;
/// Status of an NVMED_AIO_CTX: not ended yet.
pub const NVMED_AIO_BUSY: i32 = 2;

/// What a device looks like. Set `size` to sizeof(struct nvmed_info) before the call; what a library or a program does not
/// know of is left out.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_info {
    /// sizeof(struct nvmed_info).
    pub size: usize,
    /// Bytes of the device.
    pub bytes: u64,
    /// Bytes of a block: offsets and lengths of direct I/O are multiples of it.
    pub block_bytes: u32,
    /// Most bytes the device transfers at once; longer requests are cut.
    pub transfer_bytes_max: u32,
    /// Memory that is used without a copy begins at a multiple of this, in bytes.
    pub memory_align: u32,
    /// 1: a write is only safe after nvmed_flush, or with NVMED_DURABLE.
    pub volatile_cache: u32,
    /// 1: it cannot be written.
    pub read_only: u32,
    /// 1: it knows nvmed_discard.
    pub can_discard: u32,
    /// 1: it knows nvmed_write_zeroes.
    pub can_write_zeroes: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes that nvmed_get_buffer and copies can still have.
    pub buffer_bytes_free: u64,
}

/// How a device is opened. Call nvmed_device_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_device_options {
    /// sizeof(struct nvmed_device_options).
    pub size: usize,
    /// Bytes of memory that the device reaches, for nvmed_get_buffer and for copies; a multiple of 4096. 32 MiB at first.
    pub buffer_bytes: u64,
    /// Bytes of the block cache, taken when the first cached handle is used. 64 MiB at first.
    pub cache_bytes: u64,
    /// Most bytes the block cache reads ahead. 128 KiB at first.
    pub readahead_bytes: u64,
}

/// How a queue is. Call nvmed_queue_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_queue_options {
    /// sizeof(struct nvmed_queue_options).
    pub size: usize,
    /// Most requests in flight: 1 to 4096, a power of two. 128 at first.
    pub depth: u32,
    /// NVMED_QUEUE_... flags.
    pub flags: u32,
    /// NVMED_SCHEDULER_...
    pub scheduler: u32,
    /// Milliseconds for the device to cancel what is over its time, before that fails with ETIMEDOUT. 1000 at first.
    pub cancel_grace_ms: u32,
    /// Milliseconds for the device to give memory of timed-out requests back, before the queue is reset; 0: never. 5000 at first.
    pub reset_after_ms: u32,
    /// NVMED_COMPLETION_...
    pub completion: u32,
}

/// How a handle is. Call nvmed_handle_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct nvmed_handle_options {
    /// sizeof(struct nvmed_handle_options).
    pub size: usize,
    /// NVMED_DIRECT, NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_DURABLE, NVMED_POLLED, NVMED_ZERO_COPY.
    pub flags: u32,
    /// Asynchronous requests at a time, not yet reported; 0 (at first): as many as the queue is deep.
    pub requests_max: u32,
    /// Milliseconds a request may take before it fails with ETIMEDOUT; 0: for ever. 30000 at first.
    pub timeout_ms: u32,
    /// Priority class, 0 (foreground) to 255.
    pub priority_class: u32,
}

/// One asynchronous request. Call nvmed_io_init first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmed_io {
    /// sizeof(struct nvmed_io).
    pub size: usize,
    /// NVMED_OP_...
    pub op: u32,
    /// NVMED_DURABLE for a write, or 0.
    pub flags: u32,
    /// Of a read or write: belongs to the library until the request is reported.
    pub buf: *mut c_void,
    /// Bytes.
    pub len: usize,
    /// Bytes from the device's begin.
    pub offset: libc::off_t,
    /// Comes back in the event.
    pub user: u64,
    /// Milliseconds it may take; 0: as the handle says.
    pub timeout_ms: u32,
    /// 0.
    pub reserved: u32,
}

impl Default for nvmed_io {
    fn default() -> Self {
        let buf = std::ptr::null_mut();
        nvmed_io { size: 0, op: 0, flags: 0, buf, len: 0, offset: 0, user: 0, timeout_ms: 0, reserved: 0 }
    }
}

/// A request has ended. This struct does not change.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmed_event {
    /// The word of struct nvmed_io.
    pub user: u64,
    /// The number of nvmed_submit.
    pub request: u64,
    /// Bytes transferred, discarded or zeroed (0 for a flush), or a negative errno.
    pub result: i64,
    /// NVMED_OP_...
    pub op: u32,
    /// NVMED_EVENT_HELD or 0.
    pub flags: u32,
}

/// NVMeDirect's way of one asynchronous request: nvmed_aio_read, nvmed_aio_write, then nvmed_aio_handle_complete. Call
/// nvmed_aio_ctx_init first, set `handle` to `aio_callback`, and leave it alone until the callback, or until `status` is not
/// NVMED_AIO_BUSY after a call of nvmed_aio_handle_complete. Then it can be used again.
#[repr(C)]
pub struct NVMED_AIO_CTX {
    /// sizeof(NVMED_AIO_CTX).
    pub size: usize,
    /// Through what.
    pub handle: *mut NVMED_HANDLE,
    /// Bytes from the device's begin.
    pub offset: libc::off_t,
    /// Bytes.
    pub len: usize,
    /// Belongs to the library until the request has ended.
    pub buf: *mut c_void,
    /// Goes to the callback.
    pub cb_userdata: *mut c_void,
    /// Called by nvmed_aio_handle_complete, nvmed_poll or nvmed_wait, in the thread that called those; may submit more, also
    /// with the same context. NULL: nothing is called. Must not throw or jump out.
    pub aio_callback: Option<unsafe extern "C" fn(context: *const NVMED_AIO_CTX, userdata: *mut c_void)>,
    /// NVMED_AIO_BUSY while it is under way, then NVMED_AIO_DONE or NVMED_AIO_ERROR.
    pub status: c_int,
    /// With NVMED_AIO_ERROR: the errno.
    pub error: c_int,
    /// While it is under way: its number, for nvmed_cancel.
    pub request: u64,
}

/// NVMeDirect's rule for several queues: given the handle, the NVMe opcode (0 flush, 1 write, 2 read, 8 write zeroes, 9 discard),
/// the offset and the length in bytes, it returns one of the handle's queues; for anything else the first one is taken. Called in
/// the thread that submits, which must not call functions of the handle from there, nor throw or jump out.
pub type nvmed_mq_get_queue =
    Option<unsafe extern "C" fn(handle: *mut NVMED_HANDLE, opcode: u8, offset: u64, length: u32) -> *mut NVMED_QUEUE>;

/// For struct uaio: as upread.
pub const UAIO_READ: u32 = 0;
/// As upwrite.
pub const UAIO_WRITE: u32 = 1;
/// As ufsync.
pub const UAIO_FSYNC: u32 = 2;
/// As ufdatasync.
pub const UAIO_FDATASYNC: u32 = 3;

/// For uaio_create_with: one thread alone will submit and reap, the first one that does. Reads of what is on the SSD then are up to a
/// third faster if they are submitted and reaped few at a time. Another thread is told EBUSY; it may destroy it when no read is under
/// way, or when the one thread has ended. If it does (or hs_shutdown) while that one lives, the SSD stays open until it has ended too.
pub const UAIO_ONE_THREAD: u32 = 1 << 0;
/// With UAIO_ONE_THREAD: uaio_reap is called to wait, with a `min` of 1 or more, when there is nothing else to do. Then a wait may look for
/// up to 20 microseconds before it sleeps, or ask for what else has ended when it is woken, where that is measured to be as fast or faster
/// for no more of the processor; and a uaio_reap that finds nothing is a system call, the wrong choice for who asks again and again.
pub const UAIO_WAITS: u32 = 1 << 1;
/// With both: a wait stays awake for up to 100 microseconds before it sleeps, whatever that costs of the processor. Hits on the SSD come
/// sooner where a processor that sleeps is slow to be woken, above all in a virtual machine.
pub const UAIO_POLLS: u32 = 1 << 2;

/// One asynchronous request of the u calls. This struct does not change.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uaio {
    /// Of which file: it may be closed once the request is submitted, and is kept open for it.
    pub ufd: c_int,
    /// UAIO_...
    pub op: u32,
    /// Belongs to the library until the request is reaped.
    pub buf: *mut c_void,
    /// Bytes.
    pub n: usize,
    /// Bytes from the file's begin.
    pub off: libc::off_t,
    /// Comes back as it was.
    pub user: u64,
    /// Of uaio_reap: what the call would have returned, or a negative errno.
    pub result: i64,
}
