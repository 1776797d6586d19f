/* libhotshelf: files through a cache, raw devices with their queues and block cache, and a file system on them, for C and C++ programs.
 *
 * Calls follow POSIX conventions: -1 or NULL and errno, which only failures change; hs_error() says the same as a sentence. Offsets and
 * lengths are in bytes. Every call is thread-safe; where that has a limit, the call says so. A pointer that was closed, is NULL or of
 * another kind is EBADF, not a crash. No call starts a thread that calls back, touches signals, or prints.
 *
 * Memory: a request over a buffer of nvmed_get_buffer needs no copy; over any other memory it costs one.
 *
 * A child of fork() goes on with its parent's files (uopen), and opens others: only positions are its own from then on. Devices, queues,
 * file systems (nvmedfs_), directories and asynchronous requests are the parent's alone (EPERM): exec, or use them after the fork.
 * Nothing here is for signal handlers.
 *
 * Link with: cc program.c $(pkg-config --cflags --libs hotshelf)
 */

#ifndef HOTSHELF_H
#define HOTSHELF_H

/* Made from crates/frontends/capi/src by `cargo xtask header`: change it there. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#ifndef __LP64__
#error "hotshelf needs a 64-bit system"
#endif

struct dirent;
struct iovec;
struct stat;
struct statvfs;
struct statx;
struct timespec;

/**
 * For nvmed_handle_create: bypasses the block cache. This is the default. (NVMeDirect: HANDLE_DIRECT_IO.)
 */
#define NVMED_DIRECT (1 << 0)

/**
 * A call returns when the device has completed it. The default of direct handles; on a cached handle a write returns when it is durable.
 * (NVMeDirect: HANDLE_SYNC_IO.)
 */
#define NVMED_SYNC (1 << 1)

/**
 * Memory that is not from nvmed_get_buffer is refused (EFAULT) instead of copied. (NVMeDirect: HANDLE_HINT_DMEM.)
 */
#define NVMED_ZERO_COPY (1 << 2)

/**
 * Uses the block cache of the device: any offset and length; writes reach the device later, nvmed_flush makes them durable.
 */
#define NVMED_CACHED (1 << 4)

/**
 * On a direct handle: nvmed_read, nvmed_write, nvmed_pread, nvmed_pwrite, nvmed_discard and nvmed_write_zeroes only submit;
 * the memory belongs to the library until nvmed_poll or nvmed_wait reports the request. On a cached handle: the default.
 */
#define NVMED_ASYNC (1 << 5)

/**
 * A write completes only when it survives a power cut (force unit access).
 */
#define NVMED_DURABLE (1 << 6)

/**
 * A waiting thread polls instead of sleeping: the lowest latency, at the cost of a whole CPU.
 */
#define NVMED_POLLED (1 << 7)

/**
 * NVMeDirect's name for NVMED_DIRECT, also for nvmed_handle_feature_set.
 */
#define HANDLE_DIRECT_IO NVMED_DIRECT

/**
 * NVMeDirect's name for the flag NVMED_SYNC.
 */
#define HANDLE_SYNC_IO NVMED_SYNC

/**
 * NVMeDirect's name for the flag NVMED_ZERO_COPY.
 */
#define HANDLE_HINT_DMEM NVMED_ZERO_COPY

/**
 * For nvmed_handle_feature_set: 1 sleeps for completions, 0 polls for them (NVMED_POLLED).
 */
#define HANDLE_INTERRUPT (1 << 8)

/**
 * For nvmed_feature_set: 1 refuses cached handles of this device.
 */
#define NVMED_NO_CACHE (1 << 0)

/**
 * For nvmed_feature_set: size of the block cache in pages of 4096 bytes; can be changed until the first cached handle is used.
 */
#define NVMED_CACHE_SIZE (1 << 1)

/**
 * For nvmed_feature_set: 1 (the default) allocates the block cache on demand, 0 all of it at once.
 */
#define NVMED_CACHE_LAZY_INIT (1 << 2)

/**
 * A queue of one handle, used by one thread at a time: no lock, and a concurrent call fails with EBUSY. Without it a queue is safe for
 * any number of handles and threads.
 */
#define NVMED_QUEUE_DEDICATED (1 << 0)

/**
 * The device is polled for completions and sends no interrupts (io_uring: IOPOLL), where supported.
 */
#define NVMED_QUEUE_DEVICE_POLLED (1 << 1)

/**
 * A kernel thread takes submissions (io_uring: SQPOLL).
 */
#define NVMED_QUEUE_KERNEL_SUBMITS (1 << 2)

/**
 * No scheduler: requests keep their order of arrival.
 */
#define NVMED_SCHEDULER_NONE 0

/**
 * Schedules requests by weights of priority classes.
 */
#define NVMED_SCHEDULER_CLASSES 3

/**
 * The default for this machine: NVMED_COMPLETION_ADAPTIVE, or NVMED_COMPLETION_INTERRUPT with fewer than 3 CPUs.
 */
#define NVMED_COMPLETION_DEFAULT 0

/**
 * Handles of the queue poll while they wait, as with NVMED_POLLED.
 */
#define NVMED_COMPLETION_POLLING 1

/**
 * A waiting thread sleeps until the device signals.
 */
#define NVMED_COMPLETION_INTERRUPT 2

/**
 * A waiting thread sleeps for the expected time of its request, then polls; decided for each request.
 */
#define NVMED_COMPLETION_ADAPTIVE 3

/**
 * The library's completion thread, one for all such queues, waits for a shared queue and wakes waiting threads. It calls no callbacks.
 */
#define NVMED_COMPLETION_THREAD 4

/**
 * Parameter of a handle: 1 through the block cache, 0 past it.
 */
#define NVMED_PARAM_CACHED 1

/**
 * Parameter: 1 calls are synchronous, 0 as with NVMED_ASYNC.
 */
#define NVMED_PARAM_SYNCHRONOUS 2

/**
 * Parameter: timeout of a request in milliseconds (ETIMEDOUT); 0: none. Default: 30000.
 */
#define NVMED_PARAM_TIMEOUT_MS 3

/**
 * Parameter: priority class, 0 (foreground) to 255, for the scheduler NVMED_SCHEDULER_CLASSES.
 */
#define NVMED_PARAM_CLASS 4

/**
 * Parameter: 0 normal, 1 urgent (a thread waits), 2 one of a batch.
 */
#define NVMED_PARAM_URGENCY 5

/**
 * Parameter: 1 makes each write durable (NVMED_DURABLE).
 */
#define NVMED_PARAM_FUA 6

/**
 * Parameter: NVMED_COMPLETION_... of the queue, or NVMED_COMPLETION_POLLING, which can be set and unset at any time.
 */
#define NVMED_PARAM_COMPLETION 7

/**
 * Parameter, fixed: maximum asynchronous requests of the handle; 0: the depth of the queue.
 */
#define NVMED_PARAM_REQUESTS_MAX 8

/**
 * Parameter, fixed: depth of the queue.
 */
#define NVMED_PARAM_QUEUE_DEPTH 9

/**
 * Parameter, fixed: scheduler of the queue, one of NVMED_SCHEDULER_...
 */
#define NVMED_PARAM_SCHEDULER 10

/**
 * Parameter, fixed: 1 if the queue was created with NVMED_QUEUE_DEVICE_POLLED.
 */
#define NVMED_PARAM_DEVICE_POLLED 11

/**
 * Parameter, fixed: 1 if the queue was created with NVMED_QUEUE_KERNEL_SUBMITS.
 */
#define NVMED_PARAM_KERNEL_SUBMITS 12

/**
 * Parameter, fixed: nanoseconds, shortest sleep of adaptive completion.
 */
#define NVMED_PARAM_POLL_MIN_NS 13

/**
 * Parameter, fixed: nanoseconds, longest sleep of adaptive completion.
 */
#define NVMED_PARAM_POLL_MAX_NS 14

/**
 * Parameter, fixed: milliseconds for the device to cancel a timed-out request.
 */
#define NVMED_PARAM_CANCEL_GRACE_MS 15

/**
 * Parameter, fixed: milliseconds for the device to release the memory of timed-out requests before the queue is reset; 0: never.
 */
#define NVMED_PARAM_RESET_AFTER_MS 16

/**
 * Parameter, fixed: bytes of the block cache of the device.
 */
#define NVMED_PARAM_CACHE_BYTES 17

/**
 * Parameter: bytes the block cache of the device reads ahead; fixed once the cache is in use.
 */
#define NVMED_PARAM_READAHEAD_BYTES 18

/**
 * For struct nvmed_io: reads blocks into memory.
 */
#define NVMED_OP_READ 0

/**
 * For struct nvmed_io: writes memory to blocks.
 */
#define NVMED_OP_WRITE 1

/**
 * For struct nvmed_io: makes completed writes durable.
 */
#define NVMED_OP_FLUSH 2

/**
 * For struct nvmed_io: discards the content of blocks.
 */
#define NVMED_OP_DISCARD 3

/**
 * For struct nvmed_io: zeroes blocks.
 */
#define NVMED_OP_WRITE_ZEROES 4

/**
 * The request has completed, but the device may still access its memory (it timed out): memory of nvmed_get_buffer must not be used
 * again; pass it to nvmed_put_buffer, and it is reused when the device has released it.
 */
#define NVMED_EVENT_HELD (1 << 0)

/**
 * Status of an NVMED_AIO_CTX: completed successfully.
 */
#define NVMED_AIO_DONE 0

/**
 * Status of an NVMED_AIO_CTX: failed; `error` has the errno.
 */
#define NVMED_AIO_ERROR 1

/**
 * Status of an NVMED_AIO_CTX: in flight.
 */
#define NVMED_AIO_BUSY 2

/**
 * For struct uaio: a read, as upread.
 */
#define UAIO_READ 0

/**
 * For struct uaio: a write, as upwrite.
 */
#define UAIO_WRITE 1

/**
 * For struct uaio: a sync, as ufsync.
 */
#define UAIO_FSYNC 2

/**
 * For struct uaio: a data sync, as ufdatasync.
 */
#define UAIO_FDATASYNC 3

/**
 * For uaio_create_with: only one thread submits and reaps, the first one that does. Reads from the SSD are faster then if they are
 * submitted and reaped a few at a time. Other threads get EBUSY; they may destroy it when no read is in flight, or when the one thread
 * has ended. If they do (or hs_shutdown) while it lives, the SSD stays open until it has ended too.
 */
#define UAIO_ONE_THREAD (1 << 0)

/**
 * With UAIO_ONE_THREAD: uaio_reap is called only to wait, with a `min` of 1 or more. Completions then cost less CPU time, because the
 * kernel does not flag them in memory. A uaio_reap that finds nothing is a system call, so the flag is wrong for programs that poll.
 */
#define UAIO_WAITS (1 << 1)

/**
 * With both: a waiting thread polls for up to 100 microseconds before it sleeps, at the cost of CPU time. Hits on the SSD complete sooner
 * where waking a CPU is slow, above all in a virtual machine.
 */
#define UAIO_POLLS (1 << 2)

/**
 * For struct nvmedfs_mkfs_options: overwrites existing content.
 */
#define NVMEDFS_FORCE (1 << 0)

/**
 * For struct nvmedfs_options: nothing can be changed (EROFS), and other processes may read the image too.
 */
#define NVMEDFS_READ_ONLY (1 << 0)

/**
 * For struct nvmedfs_options: every call that changes something returns when the change survives a power cut, as if each file were opened
 * with O_SYNC.
 */
#define NVMEDFS_SYNC (1 << 1)

/**
 * For struct nvmedfs_options: reads do not update access times.
 */
#define NVMEDFS_NO_ATIME (1 << 2)

/**
 * For struct nvmedfs_options: unused blocks are not discarded on the device.
 */
#define NVMEDFS_NO_DISCARD (1 << 3)

/**
 * For struct nvmedfs_options: permissions are checked, with the credentials of the process at the mount. Without it, any process that can
 * open the image may do everything in it.
 */
#define NVMEDFS_CHECK (1 << 4)

/**
 * For struct nvmedfs_options: a device of only zeros is formatted first, as by nvmedfs_mkfs(device, NULL).
 */
#define NVMEDFS_CREATE (1 << 5)

/**
 * For struct nvmedfs_io: as nvmedfs_pread.
 */
#define NVMEDFS_OP_PREAD 0

/**
 * Works like nvmedfs_pwrite, but completely or with an error.
 */
#define NVMEDFS_OP_PWRITE 1

/**
 * Works like nvmedfs_preadv: `buf` is an array of struct iovec, `n` their number.
 */
#define NVMEDFS_OP_PREADV 2

/**
 * Works like nvmedfs_pwritev, but completely or with an error.
 */
#define NVMEDFS_OP_PWRITEV 3

/**
 * Works like nvmedfs_fsync, including earlier submitted requests.
 */
#define NVMEDFS_OP_FSYNC 4

/**
 * Works like nvmedfs_fdatasync, including earlier submitted requests.
 */
#define NVMEDFS_OP_FDATASYNC 5

/**
 * Works like nvmedfs_ftruncate: to `off` bytes.
 */
#define NVMEDFS_OP_FTRUNCATE 6

/**
 * Works like nvmedfs_openat with `flags` and `mode` (with O_CREAT it creates): the result is the file number.
 */
#define NVMEDFS_OP_OPEN 7

/**
 * Works like nvmedfs_unlinkat with `flags`.
 */
#define NVMEDFS_OP_UNLINK 8

/**
 * Works like nvmedfs_mkdirat with `mode`.
 */
#define NVMEDFS_OP_MKDIR 9

/**
 * Works like nvmedfs_renameat2 from `path` below `fd` to `path2` below `fd2`, with `flags`.
 */
#define NVMEDFS_OP_RENAME 10

/**
 * Works like nvmedfs_commit of `tx`, which is freed at submission. Waiting commits share their flushes.
 */
#define NVMEDFS_OP_COMMIT 11

/**
 * Works like nvmedfs_sync, on the whole file system.
 */
#define NVMEDFS_OP_SYNC 12

/**
 * An open device; nvmed_open returns it.
 */
typedef struct NVMED NVMED;

/**
 * A mounted file system (nvmedfs_mount).
 */
typedef struct NVMEDFS NVMEDFS;

/**
 * A queue of asynchronous requests of a file system (nvmedfs_aio_create).
 */
typedef struct NVMEDFS_AIO NVMEDFS_AIO;

/**
 * An open directory stream of a file system (nvmedfs_opendir).
 */
typedef struct NVMEDFS_DIR NVMEDFS_DIR;

/**
 * A transaction: atomic changes of many files (nvmedfs_begin).
 */
typedef struct NVMEDFS_TX NVMEDFS_TX;

/**
 * A handle for I/O, bound to one or several queues.
 */
typedef struct NVMED_HANDLE NVMED_HANDLE;

/**
 * A queue of a device (nvmed_create_queue).
 */
typedef struct NVMED_QUEUE NVMED_QUEUE;

/**
 * A queue of asynchronous requests of the u calls (uaio_create).
 */
typedef struct UAIO UAIO;

/**
 * An open directory stream (uopendir).
 */
typedef struct UDIR UDIR;

/**
 * One asynchronous request of the u calls. This struct does not change.
 */
typedef struct uaio {
    /**
     * The file; it may be closed after submission, and is kept open for the request.
     */
    int ufd;
    /**
     * The operation, one of UAIO_...
     */
    uint32_t op;
    /**
     * Buffer; belongs to the library until the request is reaped.
     */
    void *buf;
    /**
     * Length of the buffer in bytes.
     */
    size_t n;
    /**
     * Offset in the file, in bytes.
     */
    off_t off;
    /**
     * Returned unchanged with the result.
     */
    uint64_t user;
    /**
     * Set by uaio_reap: the return value of the call, or a negative errno.
     */
    int64_t result;
} uaio;

/**
 * Options of nvmed_open_with. Call nvmed_device_options_init first.
 */
typedef struct nvmed_device_options {
    /**
     * Set to the value of sizeof(struct nvmed_device_options).
     */
    size_t size;
    /**
     * Bytes of device-accessible memory for nvmed_get_buffer and copies; a multiple of 4096. Default: 32 MiB.
     */
    uint64_t buffer_bytes;
    /**
     * Size of the block cache in bytes, allocated when the first cached handle is used. Default: 64 MiB.
     */
    uint64_t cache_bytes;
    /**
     * Maximum read-ahead of the block cache, bytes. Default: 128 KiB.
     */
    uint64_t readahead_bytes;
} nvmed_device_options;

/**
 * Properties of a device. Set `size` to sizeof(struct nvmed_info) before the call; fields that the library or the program does not know
 * are skipped.
 */
typedef struct nvmed_info {
    /**
     * Set to the value of sizeof(struct nvmed_info).
     */
    size_t size;
    /**
     * Size of the device in bytes.
     */
    uint64_t bytes;
    /**
     * Block size in bytes: direct I/O needs multiples of it.
     */
    uint32_t block_bytes;
    /**
     * Maximum transfer size of the device, bytes; longer requests are split.
     */
    uint32_t transfer_bytes_max;
    /**
     * Alignment of memory that is used without a copy, in bytes.
     */
    uint32_t memory_align;
    /**
     * 1: a write is durable only after nvmed_flush, or with NVMED_DURABLE.
     */
    uint32_t volatile_cache;
    /**
     * 1: the device is read-only.
     */
    uint32_t read_only;
    /**
     * 1: the device supports nvmed_discard.
     */
    uint32_t can_discard;
    /**
     * 1: the device supports nvmed_write_zeroes.
     */
    uint32_t can_write_zeroes;
    /**
     * Reserved for later versions; it is 0.
     */
    uint32_t reserved;
    /**
     * Free bytes for nvmed_get_buffer and copies.
     */
    uint64_t buffer_bytes_free;
} nvmed_info;

/**
 * Options of nvmed_create_queue. Call nvmed_queue_options_init first.
 */
typedef struct nvmed_queue_options {
    /**
     * Set to the value of sizeof(struct nvmed_queue_options).
     */
    size_t size;
    /**
     * Maximum requests in flight: 1 to 4096, a power of two. Default: 128.
     */
    uint32_t depth;
    /**
     * Flags of the queue, NVMED_QUEUE_...
     */
    uint32_t flags;
    /**
     * The scheduler, one of NVMED_SCHEDULER_...
     */
    uint32_t scheduler;
    /**
     * Milliseconds for the device to cancel a timed-out request before it fails with ETIMEDOUT. Default: 1000.
     */
    uint32_t cancel_grace_ms;
    /**
     * Milliseconds for the device to release the memory of timed-out requests before the queue is reset; 0: never. Default: 5000.
     */
    uint32_t reset_after_ms;
    /**
     * The completion mode, one of NVMED_COMPLETION_...
     */
    uint32_t completion;
} nvmed_queue_options;

/**
 * Options of nvmed_create_handle. Call nvmed_handle_options_init first.
 */
typedef struct nvmed_handle_options {
    /**
     * Set to the value of sizeof(struct nvmed_handle_options).
     */
    size_t size;
    /**
     * NVMED_DIRECT, NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_DURABLE, NVMED_POLLED, NVMED_ZERO_COPY.
     */
    uint32_t flags;
    /**
     * Maximum unreported asynchronous requests; 0 (the default): the depth of the queue.
     */
    uint32_t requests_max;
    /**
     * Timeout of a request in milliseconds (ETIMEDOUT); 0: none. Default: 30000.
     */
    uint32_t timeout_ms;
    /**
     * Priority class, 0 (foreground) to 255.
     */
    uint32_t priority_class;
} nvmed_handle_options;

/**
 * A queue-selection callback of NVMeDirect: given the handle, the NVMe opcode (0 flush, 1 write, 2 read, 8 write zeroes, 9 discard), the
 * offset and the length in bytes, it returns one of the handle's queues; for any other value the first one is used. Called in the
 * submitting thread; it must not call functions of the handle, nor throw or jump out.
 */
typedef struct NVMED_QUEUE *(*nvmed_mq_get_queue)(struct NVMED_HANDLE *handle, uint8_t opcode, uint64_t offset, uint32_t length);

/**
 * One asynchronous request. Call nvmed_io_init first.
 */
typedef struct nvmed_io {
    /**
     * Set to the value of sizeof(struct nvmed_io).
     */
    size_t size;
    /**
     * The operation, one of NVMED_OP_...
     */
    uint32_t op;
    /**
     * NVMED_DURABLE for a write, or 0.
     */
    uint32_t flags;
    /**
     * Buffer of a read or write: belongs to the library until completion.
     */
    void *buf;
    /**
     * Length of the buffer in bytes.
     */
    size_t len;
    /**
     * Offset on the device, in bytes.
     */
    off_t offset;
    /**
     * Returned unchanged in the event.
     */
    uint64_t user;
    /**
     * Timeout in milliseconds; 0: that of the handle.
     */
    uint32_t timeout_ms;
    /**
     * Reserved for later versions; must be 0.
     */
    uint32_t reserved;
} nvmed_io;

/**
 * One asynchronous request of NVMeDirect: nvmed_aio_read or nvmed_aio_write, then nvmed_aio_handle_complete. Call nvmed_aio_ctx_init
 * first, set `handle` to `aio_callback`, and do not touch it until the callback, or until `status` is not NVMED_AIO_BUSY after a call of
 * nvmed_aio_handle_complete. Then it can be reused.
 */
typedef struct NVMED_AIO_CTX {
    /**
     * Set to the value of sizeof(NVMED_AIO_CTX).
     */
    size_t size;
    /**
     * The handle of the request.
     */
    struct NVMED_HANDLE *handle;
    /**
     * Offset on the device, in bytes.
     */
    off_t offset;
    /**
     * Length of the buffer in bytes.
     */
    size_t len;
    /**
     * Buffer; belongs to the library until completion.
     */
    void *buf;
    /**
     * Passed to the callback unchanged.
     */
    void *cb_userdata;
    /**
     * Called by nvmed_aio_handle_complete, nvmed_poll or nvmed_wait, in the calling thread; may submit more, also with the same context.
     * NULL: no callback. Must not throw or jump out.
     */
    void (*aio_callback)(const struct NVMED_AIO_CTX *context, void *userdata);
    /**
     * NVMED_AIO_BUSY while in flight, then NVMED_AIO_DONE or NVMED_AIO_ERROR.
     */
    int status;
    /**
     * The errno if `status` is NVMED_AIO_ERROR.
     */
    int error;
    /**
     * Request number while in flight, for nvmed_cancel.
     */
    uint64_t request;
} NVMED_AIO_CTX;

/**
 * The completion of a request. This struct does not change.
 */
typedef struct nvmed_event {
    /**
     * The `user` field of struct nvmed_io.
     */
    uint64_t user;
    /**
     * The request number of nvmed_submit.
     */
    uint64_t request;
    /**
     * Bytes transferred, discarded or zeroed (0 for a flush), or a negative errno.
     */
    int64_t result;
    /**
     * The operation, one of NVMED_OP_...
     */
    uint32_t op;
    /**
     * Flags of the completion: NVMED_EVENT_HELD, or 0.
     */
    uint32_t flags;
} nvmed_event;

/**
 * Options of nvmedfs_mkfs. Call nvmedfs_mkfs_options_init first.
 */
typedef struct nvmedfs_mkfs_options {
    /**
     * Set to the value of sizeof(struct nvmedfs_mkfs_options).
     */
    size_t size;
    /**
     * Flags of the call: NVMEDFS_FORCE, or 0.
     */
    uint32_t flags;
    /**
     * Reserved for later versions; must be 0.
     */
    uint32_t reserved;
    /**
     * Size of the file system in bytes: a missing file is created with it; 0: the whole existing file or device.
     */
    uint64_t bytes;
    /**
     * Bytes for names, attributes and small files, part of `bytes`; 0: a sixteenth, at least 4 MiB.
     */
    uint64_t metadata_bytes;
    /**
     * Bytes for the log, part of `bytes`; 0: a thirty-second, 1 to 128 MiB.
     */
    uint64_t log_bytes;
} nvmedfs_mkfs_options;

/**
 * Options of nvmedfs_mount. Call nvmedfs_options_init first. If `memory_bytes` is set, the file system allocates at most `memory_bytes`
 * less a quarter, or less a sixteenth and 48 MiB if that leaves more; the rest is for the overhead of a good allocator. Otherwise it
 * allocates the sum of its four sizes, 16 MiB, buffers of 24 MiB, and up to 5 KiB for each open file. The C library's allocator has an
 * overhead of up to as much again if many threads allocate (MALLOC_ARENA_MAX=1: less, and slower).
 */
typedef struct nvmedfs_options {
    /**
     * Set to the value of sizeof(struct nvmedfs_options).
     */
    size_t size;
    /**
     * NVMEDFS_READ_ONLY, NVMEDFS_SYNC, NVMEDFS_NO_ATIME, NVMEDFS_NO_DISCARD, NVMEDFS_CHECK, NVMEDFS_CREATE.
     */
    uint32_t flags;
    /**
     * Age in milliseconds at which dirty data is written back, at most about twice this; 0: only at a sync, or if there is too much.
     * Default: 5000.
     */
    uint32_t write_back_ms;
    /**
     * Bytes of memory for the cache of file content. Default: 64 MiB.
     */
    uint64_t cache_bytes;
    /**
     * Bytes of memory for dirty file content; beyond it writers wait. Default: 64 MiB.
     */
    uint64_t dirty_bytes;
    /**
     * Bytes of memory for the cache of names and attributes. Default: 64 MiB.
     */
    uint64_t metadata_cache_bytes;
    /**
     * Bytes of memory for dirty names and attributes; beyond it a checkpoint starts. Default: 64 MiB.
     */
    uint64_t metadata_dirty_bytes;
    /**
     * Maximum read-ahead of a sequential reader, bytes. Default: 512 KiB.
     */
    uint64_t readahead_bytes;
    /**
     * One limit instead of the four sizes: bytes of memory of the whole file system, open files included (one too many is ENFILE). 0: the
     * four sizes apply. At least 23 MiB and 171 KiB for each GiB of the image (ENOMEM). Default: 0.
     */
    uint64_t memory_bytes;
} nvmedfs_options;

/**
 * Counters and usage of a file system. Fields that the library or the program does not know are skipped.
 */
typedef struct nvmedfs_stats {
    /**
     * Set to the value of sizeof(struct nvmedfs_stats).
     */
    size_t size;
    /**
     * Read requests to the device since the mount.
     */
    uint64_t device_reads;
    /**
     * Bytes read from the device.
     */
    uint64_t device_read_bytes;
    /**
     * Write requests to the device since the mount.
     */
    uint64_t device_writes;
    /**
     * Bytes written to the device.
     */
    uint64_t device_written_bytes;
    /**
     * Flush requests to the device since the mount.
     */
    uint64_t device_flushes;
    /**
     * Discard requests to the device since the mount.
     */
    uint64_t device_discards;
    /**
     * Bytes for file content, used and free.
     */
    uint64_t data_bytes;
    /**
     * Free bytes for file content.
     */
    uint64_t data_free_bytes;
    /**
     * Bytes for names, attributes and small files.
     */
    uint64_t metadata_bytes;
    /**
     * Free bytes for names, attributes and small files.
     */
    uint64_t metadata_free_bytes;
    /**
     * Size of the log in bytes.
     */
    uint64_t log_bytes;
    /**
     * Bytes of the log in use until the next checkpoint.
     */
    uint64_t log_used_bytes;
    /**
     * Bytes of file content not written back yet.
     */
    uint64_t unwritten_bytes;
    /**
     * Bytes of memory in use for names and attributes.
     */
    uint64_t metadata_memory_bytes;
    /**
     * Nodes of names and attributes (16 KiB) read from the device.
     */
    uint64_t metadata_node_reads;
    /**
     * Files in memory: open, or still to be written.
     */
    uint64_t files_in_use;
    /**
     * Changes replayed from the log at the mount.
     */
    uint64_t replayed;
    /**
     * Files without a name removed at the mount.
     */
    uint64_t unnamed_removed;
    /**
     * 1: it had been unmounted cleanly.
     */
    uint32_t was_clean;
    /**
     * 1: a damaged superblock was restored from its copy.
     */
    uint32_t was_repaired;
} nvmedfs_stats;

/**
 * The completion of an asynchronous request. This struct does not change.
 */
typedef struct nvmedfs_event {
    /**
     * The `user` field of struct nvmedfs_io.
     */
    uint64_t user;
    /**
     * The return value of the call, or a negative errno.
     */
    int64_t result;
    /**
     * The operation, one of NVMEDFS_OP_...
     */
    uint32_t op;
    /**
     * Reserved for later versions; it is 0.
     */
    uint32_t flags;
} nvmedfs_event;

/**
 * One asynchronous request. Call nvmedfs_io_init first; nvmedfs_aio_submit copies it with its paths and arrays.
 */
typedef struct nvmedfs_io {
    /**
     * Set to the value of sizeof(struct nvmedfs_io).
     */
    size_t size;
    /**
     * The operation, one of NVMEDFS_OP_...
     */
    uint32_t op;
    /**
     * Flags of an open, unlink or rename.
     */
    int flags;
    /**
     * The file; or the base directory of `path`, AT_FDCWD (the default): the root. It may be closed after submission.
     */
    int fd;
    /**
     * The base directory of `path2` in a rename.
     */
    int fd2;
    /**
     * Mode of a new file or directory.
     */
    uint32_t mode;
    /**
     * Reserved for later versions; must be 0.
     */
    uint32_t reserved;
    /**
     * Buffer of a read or write: belongs to the library until completion.
     */
    void *buf;
    /**
     * Length of the buffer in bytes, or the number of its parts.
     */
    size_t n;
    /**
     * Offset in the file, in bytes.
     */
    off_t off;
    /**
     * The path of the operation.
     */
    const char *path;
    /**
     * The new path of a rename.
     */
    const char *path2;
    /**
     * The transaction of a commit.
     */
    struct NVMEDFS_TX *tx;
    /**
     * Returned unchanged in the event.
     */
    uint64_t user;
    /**
     * Called with the event and `userdata` by the thread that reaps it (nvmedfs_aio_reap, nvmedfs_aio_wait); may submit more. Must not
     * throw or jump out. NULL: no callback.
     */
    void (*callback)(const struct nvmedfs_event *event, void *userdata);
    /**
     * Passed to the callback unchanged.
     */
    void *userdata;
} nvmedfs_io;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Initialises the library. Optional: opening the first device or file calls hs_init(NULL). Thread-safe.
 *
 * `config_path`: a TOML file. Its table [cache] configures the cache of the u calls (memory, ssd, mode and more), and its table [library]
 * the defaults of devices (buffer_bytes, and the parameters of nvmed_set_param by name). NULL: the file that $HOTSHELF_CONFIG names,
 * otherwise built-in defaults: one cache for all programs of the user, in a quarter of the memory, at most 1 GiB, without an SSD. Can be
 * called again with other settings only while nothing is open.
 *
 * Returns 0, or -1: ENOENT and other errors of open(2); EINVAL (the file is invalid, hs_error says where); EBUSY.
 */
int hs_init(const char *config_path);

/**
 * Shuts the library down: flushes cached handles and closes every handle, queue and device; closes every ufd and detaches from the cache
 * (the last program writes dirty data to the backing files). Also runs at exit (not after _exit or a signal). Thread-safe; calls of other
 * threads complete first or fail with EBADF.
 *
 * Returns 0, or -1 with the errno of the first flush that failed; everything is closed in any case.
 */
int hs_shutdown(void);

/**
 * Copies the cached version of a stranded file to a new file, which is durable on return. A file is stranded if another program changed,
 * moved or removed it while the cache had newer pages of it: calls on it fail with ESTALE, and `hotshelf cache status` lists it. The file
 * and its cached pages do not change. Thread-safe.
 *
 * Returns 0, or -1: ENOENT (it is not stranded); EEXIST (`to` exists); errors of open(2) and write(2).
 */
int hs_export(const char *path,
              const char *to);

/**
 * Discards the cached version of a stranded file (see hs_export): the file's own content is valid. Thread-safe.
 *
 * Returns 0, or -1: ENOENT (it is not stranded).
 */
int hs_discard(const char *path);

/**
 * Writes the cached version of a stranded file (see hs_export) over the file: the newer pages and the length. Durable on return.
 * Thread-safe.
 *
 * Returns 0, or -1: ENOENT (it is not stranded, or the file cannot be found); errors of write(2).
 */
int hs_force(const char *path);

/**
 * Returns the message of this thread's last error; "" if there was none. The string is valid until the next error of the same thread;
 * successful calls do not change it, with one exception: the call that opens a cache without its SSD, because the SSD failed, says so
 * here. Thread-safe. Never NULL.
 */
const char *hs_error(void);

/**
 * Returns the version of the library, such as "0.1.0". Thread-safe.
 */
const char *hs_version(void);

/**
 * Works like open(2), through the cache: data in memory or on the cache's SSD is read without the kernel. Calls on files that cannot be
 * cached (pipes, devices, directories, /proc) are forwarded to the kernel, and so are those on a file whose name ends with -shm, which
 * programs map (SQLite). Thread-safe.
 *
 * The third argument is the mode of a new file (O_CREAT, O_TMPFILE). The cache is that of hs_init; without it, hs_init(NULL).
 *
 * Returns a ufd: the lowest free number, of a separate table (0, 1 and 2 are the process's standard streams), which does not survive
 * exec. Or -1: any error of open(2); EMFILE; errors of the cache if this is the first file (hs_error says which).
 */
int uopen(const char *path,
          int flags,
          ...);

/**
 * Works like openat(2); see uopen. `dir` is a ufd or AT_FDCWD. Thread-safe.
 */
int uopenat(int dir, const char *path, int flags, ...);

/**
 * Works like creat(2); see uopen. Thread-safe.
 */
int ucreat(const char *path, mode_t mode);

/**
 * Works like close(2). Written data stays in the cache, visible to all its users, and reaches the backing file in time; ufsync makes it
 * durable. Pins end with the last duplicate (udup) of the ufd they were made through; other opens of the file do not keep them.
 * Thread-safe: calls of other threads on this ufd complete first, or fail with EBADF.
 *
 * Returns 0, or -1: EBADF; a write error that was not reported before (the ufd is closed in any case).
 */
int uclose(int ufd);

/**
 * Works like dup(2): both share the file's position and flags. Thread-safe.
 *
 * Returns the lowest free ufd, or -1: EBADF, EMFILE.
 */
int udup(int ufd);

/**
 * Works like dup2(2). Thread-safe.
 *
 * Returns `to`, or -1: EBADF.
 */
int udup2(int ufd, int to);

/**
 * Works like fcntl(2): F_DUPFD (a ufd), F_GETFD and F_SETFD (a ufd never survives exec), F_GETFL, F_SETFL (O_APPEND, O_NONBLOCK and the
 * like). F_GETLK, F_SETLK and F_SETLKW: POSIX record locks between all programs of the machine, except that F_GETLK in other programs
 * returns -1 as the owner, and that there is no deadlock detection. Other commands go to the kernel's descriptor. Thread-safe.
 */
int ufcntl(int ufd,
           int command,
           ...);

/**
 * Returns the kernel's descriptor of a ufd, for calls not offered here (such as ioctl). It belongs to the library: it must not be closed,
 * and is closed with the last duplicate of the ufd. Reads and writes through it bypass the cache. Thread-safe.
 *
 * Returns the descriptor, or -1: EBADF.
 */
int ufileno(int ufd);

/**
 * Works like read(2), through the cache. Thread-safe: reads and writes at the file position are serialised.
 *
 * Returns the number of bytes, 0 at the end of the file, or -1: any error of read(2); EFAULT (`buf` is NULL); ESTALE (another program
 * changed the file while the cache had newer data).
 */
ssize_t uread(int ufd,
              void *buf,
              size_t n);

/**
 * Works like write(2), through the cache: the bytes are visible to all users of the cache at once, and durable after ufsync. Thread-safe.
 *
 * Returns the number of bytes, or -1: any error of write(2); EFAULT (`buf` is NULL); EROFS (the cache is read-only).
 */
ssize_t uwrite(int ufd,
               const void *buf,
               size_t n);

/**
 * Works like pread(2), through the cache. Thread-safe. Returns as uread; also EINVAL (a negative offset).
 */
ssize_t upread(int ufd, void *buf, size_t n, off_t off);

/**
 * Works like pwrite(2), through the cache; with O_APPEND at the end of the file, as Linux has it. Thread-safe. Returns as uwrite; also
 * EINVAL.
 */
ssize_t upwrite(int ufd,
                const void *buf,
                size_t n,
                off_t off);

/**
 * Works like readv(2), through the cache. Thread-safe. Returns as uread; also EINVAL (a count that is negative or above 1024).
 */
ssize_t ureadv(int ufd, const struct iovec *iov, int count);

/**
 * Works like writev(2), through the cache. Thread-safe. Returns as uwrite; also EINVAL.
 */
ssize_t uwritev(int ufd, const struct iovec *iov, int count);

/**
 * Works like preadv(2), through the cache. Thread-safe. Returns as ureadv.
 */
ssize_t upreadv(int ufd, const struct iovec *iov, int count, off_t off);

/**
 * Works like pwritev(2), through the cache. Thread-safe. Returns as uwritev.
 */
ssize_t upwritev(int ufd, const struct iovec *iov, int count, off_t off);

/**
 * Works like lseek(2), SEEK_DATA and SEEK_HOLE included. Thread-safe.
 *
 * Returns the new position, or -1: any error of lseek(2).
 */
off_t ulseek(int ufd, off_t off, int whence);

/**
 * Works like fsync(2): when it returns 0, every byte of the file written before survives any crash. Thread-safe.
 *
 * Returns 0, or -1: any error of fsync(2); each affected open file gets a failure once.
 */
int ufsync(int ufd);

/**
 * Works like fdatasync(2): as ufsync, without metadata that is not needed to read the bytes. Thread-safe. Returns as ufsync.
 */
int ufdatasync(int ufd);

/**
 * Works like ftruncate(2). Thread-safe. Returns 0, or -1: any error of ftruncate(2).
 */
int uftruncate(int ufd, off_t len);

/**
 * Works like fallocate(2), with the modes 0, FALLOC_FL_KEEP_SIZE, and FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE. Thread-safe.
 *
 * Returns 0, or -1: any error of fallocate(2); EOPNOTSUPP (another mode, or the underlying file system does not support it).
 */
int ufallocate(int ufd, int mode, off_t off, off_t len);

/**
 * Works like fstat(2), with the size and times of the cached data. Thread-safe. Returns 0, or -1: any error of fstat(2).
 */
int ufstat(int ufd, struct stat *st);

/**
 * Works like fchmod(2), for a ufd. Thread-safe.
 */
int ufchmod(int ufd, mode_t mode);

/**
 * Works like fchown(2), for a ufd. Thread-safe.
 */
int ufchown(int ufd, uid_t owner, gid_t group);

/**
 * Works like flock(2): locks of the open file, between all programs of the machine. A lock ends with uclose of the last duplicate. (If
 * the process could not reopen the file, it may end a moment later, like that of a flock(2) on the descriptor of ufileno.) Thread-safe.
 */
int uflock(int ufd,
           int operation);

/**
 * Works like futimens(2), after dirty data was written back, so that the times stay. Thread-safe.
 */
int ufutimens(int ufd, const struct timespec *times);

/**
 * Pins bytes of a file in the cache, without a copy: up to `n` from `off` on, at most to the end of their page of 4096 bytes and of the
 * file. They stay until uunpin, or until the last duplicate (udup) of this ufd is closed, and are read-only; writes to the file are
 * visible in them. Uncached data is copied. Thread-safe.
 *
 * Returns the number of bytes at *p; 0 at the end of the file (*p is NULL, nothing is pinned); or -1: any error of upread; EFAULT (p is
 * NULL); ENOBUFS (too many pages are pinned).
 */
ssize_t upin(int ufd,
             off_t off,
             size_t n,
             const void **p);

/**
 * Releases a pin of upin, with the same offset. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL (not pinned, or not at that offset).
 */
int uunpin(int ufd, off_t off, const void *p);

/**
 * Returns a read-only copy of `n` bytes of a file from any `off` on; bytes beyond the end of the file are 0. It does not change with the
 * file, stays valid when the file is closed, and never raises SIGBUS. For pages of the cache without a copy see upin. Thread-safe.
 *
 * Returns its page-aligned address, or NULL: any error of upread; EINVAL (no bytes, or a negative offset); ENOMEM.
 */
const void *umap(int ufd,
                 off_t off,
                 size_t n);

/**
 * Frees a view of umap. Thread-safe.
 *
 * Returns 0, or -1: EINVAL (there is none at this address).
 */
int uunmap(const void *p);

/**
 * Works like mmap(2), for a ufd (or -1): the kernel's mapping of the backing file. It shows the same data as uread: earlier writes are
 * written back first, and from then on every write to the file through the cache is write-through. A file that is mapped shared and
 * writable bypasses the cache from then on: no other program should be writing it at that moment. As with mmap(2), a page beyond the end
 * of the file raises SIGBUS, also after another program truncated the file; up to the end there is none. Unmap it with munmap(2).
 * Thread-safe.
 *
 * Returns the address, or MAP_FAILED: EBADF; EROFS (writable, and the cache is read-only); any error of mmap(2) and ufsync.
 */
void *ummap(void *addr,
            size_t n,
            int prot,
            int flags,
            int ufd,
            off_t off);

/**
 * Works like stat(2), with the size and times of the cached data. Thread-safe. Returns 0, or -1: any error of stat(2).
 */
int ustat(const char *path, struct stat *st);

/**
 * Works like lstat(2); see ustat. Thread-safe.
 */
int ulstat(const char *path, struct stat *st);

/**
 * Works like fstatat(2); see ustat. `dir` is a ufd or AT_FDCWD. Thread-safe.
 */
int ufstatat(int dir, const char *path, struct stat *st, int flags);

/**
 * Works like truncate(2). Thread-safe. Returns 0, or -1: any error of truncate(2).
 */
int utruncate(const char *path, off_t len);

/**
 * Works like unlink(2). The cached data is dropped at the last close. Thread-safe.
 */
int uunlink(const char *path);

/**
 * Works like unlinkat(2), AT_REMOVEDIR included; see uunlink. `dir` is a ufd or AT_FDCWD. Thread-safe.
 */
int uunlinkat(int dir, const char *path, int flags);

/**
 * Works like rename(2). Thread-safe.
 */
int urename(const char *from, const char *to);

/**
 * Works like renameat2(2). The directories are ufds or AT_FDCWD. Thread-safe.
 */
int urenameat2(int from_dir, const char *from, int to_dir, const char *to, uint32_t flags);

/**
 * Works like mkdir(2). Thread-safe.
 */
int umkdir(const char *path, mode_t mode);

/**
 * Works like rmdir(2). Thread-safe.
 */
int urmdir(const char *path);

/**
 * Works like opendir(3). Thread-safe.
 *
 * Returns the directory, or NULL: any error of opendir(3); EMFILE.
 */
struct UDIR *uopendir(const char *path);

/**
 * Works like readdir(3). Thread-safe, but the result is valid only until the next call for the same directory.
 *
 * Returns the next entry; or NULL: at the end (errno is unchanged), or EBADF and any error of readdir(3).
 */
struct dirent *ureaddir(struct UDIR *dir);

/**
 * Works like rewinddir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int urewinddir(struct UDIR *dir);

/**
 * Works like closedir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int uclosedir(struct UDIR *dir);

/**
 * Creates a queue for asynchronous requests: `depth` unreaped requests, 1 to 65536. Thread-safe.
 *
 * Returns it, or NULL: EINVAL (depth), EMFILE.
 */
struct UAIO *uaio_create(uint32_t depth);

/**
 * Creates a queue for asynchronous requests, for a program that promises more: `flags` are UAIO_ONE_THREAD, UAIO_WAITS and UAIO_POLLS,
 * each with those before it, or 0. See uaio_create. Thread-safe.
 *
 * Returns it, or NULL: EINVAL (depth or flags), EMFILE.
 */
struct UAIO *uaio_create_with(uint32_t depth,
                              uint32_t flags);

/**
 * Allocates memory for reads of `aio`, at least `bytes`, page-aligned and zeroed. A whole page of 4096 bytes, aligned in the file and in
 * this memory, is read from the SSD without a copy; otherwise it is like other memory. uaio_destroy and hs_shutdown free it. May be
 * called again for more. Thread-safe.
 *
 * A hanging drive is given up to 36 seconds. After that, reads into this memory fail with EIO, and the drive may still write to their
 * buffers, which must not be used any more.
 *
 * Returns it, or NULL: EBADF; EINVAL (no bytes); ENOMEM; EBUSY (it was promised to another thread).
 */
void *uaio_memory(struct UAIO *aio,
                  size_t bytes);

/**
 * Submits requests, which are copied: `count` of them, or as many as fit. They have no order: to run one after another, wait for the
 * first. Reads from memory have completed on return; reads from the SSD run in the device, many in one submission; threads of the
 * library do the rest. Thread-safe, and fastest if only one thread submits and reaps, above all with UAIO_ONE_THREAD.
 *
 * The SSD sees the reads when the call returns. An SSD that works in parallel with the program is busier with several calls of a few
 * reads each; where the program's CPU does the work (a loop device, a RAM disk) one call for all is faster.
 *
 * Returns the number of submitted requests, or -1 if none was: EBADF; EFAULT; EINVAL; EAGAIN (the queue is full: call uaio_reap first);
 * EBUSY (it was promised to another thread). An invalid request ends the call; those before it are submitted.
 */
int uaio_submit(struct UAIO *aio,
                const struct uaio *requests,
                int count);

/**
 * Reaps completed requests: at least `min`, unless fewer are outstanding or `timeout` (NULL: none) passes, at most `max`. `result` of
 * each is the return value of the call, or a negative errno. Thread-safe: each completion goes to one thread.
 *
 * Returns the number, or -1: EBADF; EFAULT; EINVAL (min, max or timeout); EBUSY (it was promised to another thread).
 */
int uaio_reap(struct UAIO *aio,
              struct uaio *done,
              int min,
              int max,
              const struct timespec *timeout);

/**
 * Submits `count` requests as uaio_submit, then reaps as uaio_reap, for a program that waits after submitting: the device sees the
 * requests with the wait, in one system call. All `count` are submitted; an invalid one completes with its error in `result`. An error of
 * the call itself submits none. `requests` and `done` may be the same memory. Thread-safe, as uaio_submit.
 *
 * Returns the number of completions in `done`, or -1: EBADF; EFAULT; EINVAL (count, min, max or timeout); EAGAIN (not enough room: call
 * uaio_reap first); EBUSY (it was promised to another thread).
 */
int uaio_submit_and_reap(struct UAIO *aio,
                         const struct uaio *requests,
                         int count,
                         struct uaio *done,
                         int min,
                         int max,
                         const struct timespec *timeout);

/**
 * Waits for requests in flight and discards their completions. Thread-safe. Returns 0, or -1: EBADF; EBUSY (it was promised to another
 * thread, which lives and has reads in flight).
 */
int uaio_destroy(struct UAIO *aio);

/**
 * Opens a device. Thread-safe.
 *
 * `name`: the path of a file, a block device or an NVMe character device such as /dev/ng0n1; memory:SIZE such as memory:64MiB;
 * vfio-user:SOCKET or vfio-user:SOCKET/NAMESPACE, a drive in another process; null; or fault:eio@FIRST-LAST:NAME, the device NAME whose
 * blocks FIRST to LAST fail, for tests. `flags`: O_RDONLY or O_RDWR. A block device is opened for writing exclusively (O_EXCL), so it
 * must not be mounted.
 *
 * Returns the device, or NULL: ENOENT, EACCES, EBUSY and other errors of open(2); EINVAL (an invalid name or flags, or a file that cannot
 * be a device: hs_error says why).
 */
struct NVMED *nvmed_open(const char *name,
                         int flags);

/**
 * Opens a device with options. Thread-safe.
 *
 * `options`: from nvmed_device_options_init and changed, or NULL. Returns as nvmed_open; also NULL with E2BIG (an option that this
 * version does not support) and ENOMEM.
 */
struct NVMED *nvmed_open_with(const char *name, int flags, const struct nvmed_device_options *options);

/**
 * Closes a device. Its queues must be destroyed before. Buffers of nvmed_get_buffer stay valid until they are put back. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EBUSY (it has queues, and stays open).
 */
int nvmed_close(struct NVMED *device);

/**
 * Returns the properties of a device. Thread-safe.
 *
 * Set info->size to sizeof *info before. Returns 0, or -1: EBADF, EFAULT (NULL), EINVAL (size).
 */
int nvmed_get_info(struct NVMED *device, struct nvmed_info *info);

/**
 * Returns a feature of a device (NVMED_NO_CACHE, NVMED_CACHE_SIZE in pages of 4096 bytes, NVMED_CACHE_LAZY_INIT). Thread-safe.
 *
 * Returns its value, or -1: EBADF, EINVAL (no such feature).
 */
int nvmed_feature_get(struct NVMED *device, int feature);

/**
 * Sets a feature of a device, before its cache is in use. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL (no such feature or value); EBUSY (the cache is in use).
 */
int nvmed_feature_set(struct NVMED *device, int feature, int value);

/**
 * Allocates memory that the device can access directly: requests with it need no copy. It is zeroed and page-aligned. Thread-safe.
 *
 * `pages`: number of pages of 4096 bytes. The memory of a request must lie within one buffer. Any other memory works too, at the cost of
 * a copy.
 *
 * Returns its address, or NULL: EBADF; EINVAL (no pages); ENOMEM (the device's buffer_bytes are used up: see nvmed_open_with).
 */
void *nvmed_get_buffer(struct NVMED *device,
                       uint32_t pages);

/**
 * Frees a buffer of nvmed_get_buffer; NULL is ignored. If requests use it, it is kept until the device has released it; the program must
 * not access it any more in any case. Thread-safe.
 *
 * Returns 0, or -1: EINVAL (not a buffer, or already freed).
 */
int nvmed_put_buffer(void *buffer);

/**
 * Creates a queue of a device, with options (the paper's name). Thread-safe.
 *
 * `options`: from nvmed_queue_options_init and changed, or NULL.
 *
 * Returns the queue, or NULL: EBADF; EINVAL (an option's value); E2BIG (an option that this version does not support); ENOTSUP and other
 * errors of the driver (hs_error says why); ENOMEM, EMFILE.
 */
struct NVMED_QUEUE *nvmed_create_queue(struct NVMED *device,
                                       const struct nvmed_queue_options *options);

/**
 * Creates a queue of a device, with NVMED_QUEUE_... flags (NVMeDirect's name). Thread-safe. Returns as nvmed_create_queue.
 */
struct NVMED_QUEUE *nvmed_queue_create(struct NVMED *device, int flags);

/**
 * Destroys a queue. Its handles must be destroyed before. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EBUSY (it has handles, and stays).
 */
int nvmed_queue_destroy(struct NVMED_QUEUE *queue);

/**
 * Destroys a queue; another name of nvmed_queue_destroy.
 */
int nvmed_destroy_queue(struct NVMED_QUEUE *queue);

/**
 * Creates a handle on a queue, with options (the paper's name). Thread-safe.
 *
 * `options`: from nvmed_handle_options_init and changed, or NULL: direct and synchronous.
 *
 * A handle on a shared queue can be used by any number of threads at the same time; one on a dedicated queue by one thread at a time.
 *
 * Returns the handle, or NULL: EBADF; EINVAL (an option's value); E2BIG (an option that this version does not support); EBUSY (a
 * dedicated queue has a handle already); ENOTSUP (cached, and the device has no cache); ENOMEM.
 */
struct NVMED_HANDLE *nvmed_create_handle(struct NVMED_QUEUE *queue,
                                         const struct nvmed_handle_options *options);

/**
 * Creates a handle on a queue, with flags (NVMeDirect's name): NVMED_DIRECT, NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_DURABLE,
 * NVMED_POLLED, NVMED_ZERO_COPY. Thread-safe. Returns as nvmed_create_handle.
 */
struct NVMED_HANDLE *nvmed_handle_create(struct NVMED_QUEUE *queue, int flags);

/**
 * Creates a handle on several queues of one device, all dedicated or all shared. Thread-safe.
 *
 * `count` queues, 1 to 256; `flags` as of nvmed_handle_create; `rule` chooses the queue of each request, NULL: round robin. Returns as
 * nvmed_create_handle, also NULL with EFAULT (queues is NULL).
 */
struct NVMED_HANDLE *nvmed_handle_create_mq(struct NVMED_QUEUE *const *queues,
                                            int count,
                                            int flags,
                                            nvmed_mq_get_queue rule);

/**
 * Destroys a handle. A cached one is flushed. Requests in flight have one second to complete; their memory is free then, or held until
 * the device releases it (memory of nvmed_get_buffer), and they are not reported. Thread-safe: calls of other threads complete first or
 * fail with EBADF.
 *
 * Returns 0, or -1: EBADF; or the errno of the flush: the handle is destroyed in any case, and data that could not be written is lost.
 */
int nvmed_handle_destroy(struct NVMED_HANDLE *handle);

/**
 * Destroys a handle; another name of nvmed_handle_destroy.
 */
int nvmed_destroy_handle(struct NVMED_HANDLE *handle);

/**
 * Destroys a handle on several queues; NVMeDirect's name of nvmed_handle_destroy.
 */
int nvmed_handle_destroy_mq(struct NVMED_HANDLE *handle);

/**
 * Fills a struct nvmed_device_options with defaults. Thread-safe.
 *
 * `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmed_device_options_init(struct nvmed_device_options *options, size_t size);

/**
 * Fills a struct nvmed_queue_options with defaults. Thread-safe.
 *
 * `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmed_queue_options_init(struct nvmed_queue_options *options, size_t size);

/**
 * Fills a struct nvmed_handle_options with defaults. Thread-safe.
 *
 * `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmed_handle_options_init(struct nvmed_handle_options *options, size_t size);

/**
 * Fills a struct nvmed_io with zeroes and its size. Thread-safe.
 *
 * `size` is sizeof *io. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmed_io_init(struct nvmed_io *io, size_t size);

/**
 * Fills an NVMED_AIO_CTX with zeroes and its size. Thread-safe.
 *
 * `size` is sizeof *context. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmed_aio_ctx_init(struct NVMED_AIO_CTX *context, size_t size);

/**
 * Reads `n` bytes at `offset` (bytes from the start of the device) into `buf`. Thread-safe, as the handle is.
 *
 * A direct handle needs offset and n as multiples of the device's block size; a cached one takes any. Memory of nvmed_get_buffer is
 * read into without a copy. On an asynchronous direct handle (NVMED_ASYNC) the read is only submitted.
 *
 * Returns the bytes read: fewer than n at the end of the device (0 there), or when an error came after some bytes; or -1:
 * EBADF, EFAULT, EINVAL (misaligned, negative), EIO (media error), ETIMEDOUT, ENODEV (the device was removed), ENOMEM (no room for a
 * copy), EAGAIN (asynchronous, and all requests are in use), EBUSY (another call is inside a dedicated handle).
 */
ssize_t nvmed_pread(struct NVMED_HANDLE *handle,
                    void *buf,
                    size_t n,
                    off_t offset);

/**
 * Writes `n` bytes of `buf` at `offset` (bytes from the start of the device). Thread-safe, as the handle is.
 *
 * Alignment as of nvmed_pread. When it returns, the device has the bytes (direct, or NVMED_SYNC), or the cache has (cached), or the
 * request is submitted (direct and NVMED_ASYNC); they survive a power cut after nvmed_flush, or at once with NVMED_DURABLE.
 *
 * Returns the bytes written: fewer than n at the end of the device; or -1: as nvmed_pread, also ENOSPC (behind the end) and EROFS.
 */
ssize_t nvmed_pwrite(struct NVMED_HANDLE *handle, const void *buf, size_t n, off_t offset);

/**
 * Works like nvmed_pread, at the handle's position, which moves on. Calls of several threads take turns. Thread-safe, as the handle is.
 */
ssize_t nvmed_read(struct NVMED_HANDLE *handle,
                   void *buf,
                   size_t n);

/**
 * Works like nvmed_pwrite, at the handle's position, which moves on. Calls of several threads take turns. Thread-safe, as the handle is.
 */
ssize_t nvmed_write(struct NVMED_HANDLE *handle,
                    const void *buf,
                    size_t n);

/**
 * Sets the handle's position for nvmed_read and nvmed_write: `whence` is SEEK_SET, SEEK_CUR or SEEK_END. Thread-safe.
 *
 * Returns the position in bytes from the start of the device, or -1: EBADF; EINVAL (before the begin, or no such whence).
 */
off_t nvmed_lseek(struct NVMED_HANDLE *handle, off_t offset, int whence);

/**
 * Makes earlier writes through this handle durable: waits for its requests in flight, writes back the dirty pages of the device's cache
 * (cached handles), and flushes the device's own cache. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; the errno of the first failure (EIO, ENOSPC, ETIMEDOUT, ENODEV). A cached page that could not be written, or
 * that the device lost in a failed flush, stays dirty: each flush retries it, and fails until it is written. Each cached handle gets a
 * failure of background write-back once, from its next flush. Failures of asynchronous requests are reported by their events. EBUSY
 * (another call is inside a dedicated handle).
 */
int nvmed_flush(struct NVMED_HANDLE *handle);

/**
 * Discards blocks: their content is no longer needed, and reads as zeroes or unchanged. Thread-safe, as the handle is.
 *
 * `offset` and `length` in bytes, multiples of the device's block size. On an asynchronous direct handle it is only submitted.
 *
 * Returns 0, or -1: EBADF; EINVAL (misaligned, out of range); EOPNOTSUPP (the device cannot); EROFS; as nvmed_pwrite.
 */
int nvmed_discard(struct NVMED_HANDLE *handle, off_t offset, off_t length);

/**
 * Zeroes blocks without transferring data. Thread-safe, as the handle is. Arguments and results as of nvmed_discard.
 */
int nvmed_write_zeroes(struct NVMED_HANDLE *handle, off_t offset, off_t length);

/**
 * Starts an asynchronous read for a context (NVMeDirect). The device sees it at nvmed_aio_queue_submit, or when completions are polled.
 * Thread-safe, as the handle is.
 *
 * On a direct handle it is asynchronous; offset and length must be multiples of the device's block size and within the device, otherwise
 * it completes with EINVAL. On a cached handle it is done before the call returns, and completes in the same way.
 *
 * Returns 0, or -1 (the context is then not in flight): EBADF; EFAULT; EINVAL; EAGAIN (all requests of the handle, or all copy buffers,
 * are in use); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_aio_read(struct NVMED_AIO_CTX *context);

/**
 * Starts an asynchronous write for a context (NVMeDirect). See nvmed_aio_read.
 */
int nvmed_aio_write(struct NVMED_AIO_CTX *context);

/**
 * Notifies the device of all submitted requests: one doorbell, one system call. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
 */
int nvmed_aio_queue_submit(struct NVMED_HANDLE *handle);

/**
 * Completes the contexts whose requests are done, and calls their callbacks in this thread. Does not wait. Thread-safe, as the handle is:
 * each context is completed by one thread.
 *
 * Returns the number of completed contexts, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
 */
int nvmed_aio_handle_complete(struct NVMED_HANDLE *handle);

/**
 * Submits a request; nvmed_poll or nvmed_wait returns its completion. The device sees it at nvmed_aio_queue_submit, or when completions
 * are polled. Thread-safe, as the handle is.
 *
 * `io`: initialised with nvmed_io_init; it is copied. `request` (or NULL) receives the number of the request. Requests in flight have no
 * order. For cached handles see nvmed_aio_read.
 *
 * Returns 0, or -1: EBADF; EFAULT; EINVAL; E2BIG (a field that this version does not support); EAGAIN (all requests of the handle, or all
 * copy buffers, are in use); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_submit(struct NVMED_HANDLE *handle,
                 const struct nvmed_io *io,
                 uint64_t *request);

/**
 * Returns completions without waiting, at most `max`. Contexts of NVMeDirect's calls are completed too, with their callbacks.
 * Thread-safe, as the handle is: each completion goes to one thread.
 *
 * Returns the number of events, or -1: EBADF; EFAULT; EINVAL (max); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_poll(struct NVMED_HANDLE *handle, struct nvmed_event *events, int max);

/**
 * Waits for completions until one is available, nothing is in flight, or `timeout_ms` have passed (negative: no timeout), then works like
 * nvmed_poll.
 *
 * Returns as nvmed_poll; 0 also if only contexts completed, nothing is in flight, or the timeout passed.
 */
int nvmed_wait(struct NVMED_HANDLE *handle,
               struct nvmed_event *events,
               int max,
               int timeout_ms);

/**
 * Requests the cancellation of a request of nvmed_submit, or of the `request` of a context. The request completes in any case, with
 * ECANCELED or its own result. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; ENOENT (it has completed already); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_cancel(struct NVMED_HANDLE *handle, uint64_t request);

/**
 * Returns the number of requests of the handle in flight. Thread-safe, as the handle is.
 *
 * Returns the number, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
 */
int nvmed_in_flight(struct NVMED_HANDLE *handle);

/**
 * Returns the number of a parameter (NVMED_PARAM_...) by its name, such as "timeout_ms". Thread-safe.
 *
 * Returns the number, or -1: ENOENT (no such parameter), EFAULT (NULL).
 */
int nvmed_param_by_name(const char *name);

/**
 * Sets a parameter of a handle (NVMED_PARAM_...), for requests submitted from now on. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; ENOENT (no such parameter); EINVAL (no such value); EBUSY (fixed once the queue is open, or the cache
 * in use; or another call is inside a dedicated handle); ENOTSUP (cached, and the device has no cache).
 */
int nvmed_set_param(struct NVMED_HANDLE *handle, uint32_t key, uint64_t value);

/**
 * Returns the value of a parameter of a handle (NVMED_PARAM_...). Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; ENOENT (no such parameter); EFAULT (value is NULL); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_get_param(struct NVMED_HANDLE *handle, uint32_t key, uint64_t *value);

/**
 * Returns a feature of a handle (NVMeDirect): HANDLE_DIRECT_IO, HANDLE_SYNC_IO, HANDLE_HINT_DMEM, HANDLE_INTERRUPT. Thread-safe, as the
 * handle is.
 *
 * Returns 0 or 1, or -1: EBADF; EINVAL (no such feature); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_handle_feature_get(struct NVMED_HANDLE *handle,
                             int feature);

/**
 * Sets one of NVMeDirect's features of a handle to 0 or 1, for requests submitted from now on. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; EINVAL (no such feature or value); EBUSY (another call is inside a dedicated handle); ENOTSUP (cached, and
 * the device has no cache).
 */
int nvmed_handle_feature_set(struct NVMED_HANDLE *handle,
                             int feature,
                             int value);

/**
 * Sets how many queues a user may have. The broker enforces quotas (hotshelf queue grant); a device that a program opens by itself has
 * none. Thread-safe.
 *
 * Returns -1: EBADF; ENOTSUP (a device without quotas).
 */
int nvmed_set_user_quota(struct NVMED *device,
                         uid_t uid,
                         uint32_t queues,
                         uint32_t *max,
                         uint32_t *used);

/**
 * Returns how many queues a user may have (`max`) and has (`used`). See nvmed_set_user_quota. Thread-safe.
 *
 * Returns -1: EBADF; ENOTSUP (a device without quotas).
 */
int nvmed_get_user_quota(struct NVMED *device, uid_t uid, uint32_t *max, uint32_t *used);

/**
 * Fills a struct nvmedfs_mkfs_options with defaults. Thread-safe.
 *
 * `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmedfs_mkfs_options_init(struct nvmedfs_mkfs_options *options, size_t size);

/**
 * Creates an empty file system in a file or on a block device; `options` NULL: in an existing one that is blank. Its root directory
 * belongs to the effective user and group of the process. Thread-safe.
 *
 * Returns 0, or -1: EEXIST (it is not blank, hs_error says what it contains: NVMEDFS_FORCE overwrites it); EBUSY (it is in use); EINVAL
 * (inconsistent sizes, invalid options); E2BIG; any error of open(2).
 */
int nvmedfs_mkfs(const char *device,
                 const struct nvmedfs_mkfs_options *options);

/**
 * Fills a struct nvmedfs_options with defaults. Thread-safe.
 *
 * `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmedfs_options_init(struct nvmedfs_options *options, size_t size);

/**
 * Mounts the file system in an image: a file or a block device by its path, an NVMe character device, or `memory:SIZE` (with
 * NVMEDFS_CREATE). After a crash it is recovered first: everything durable is present, transactions completely or not at all. Any number
 * of images can be mounted at a time, each by one process. Thread-safe.
 *
 * `options` NULL: the defaults of nvmedfs_options_init. New files belong to the current effective user and group of the process, with its
 * current umask (see nvmedfs_umask).
 *
 * Returns it, or NULL: EBUSY (another process, or this one, has the image open: hs_error says which); EINVAL (no hotshelf file system, or
 * invalid options); E2BIG (an option of a later version); EIO (damaged); ENOMEM (`memory_bytes` is too small); ENOSPC; EMFILE; any error
 * of open(2).
 */
struct NVMEDFS *nvmedfs_mount(const char *device,
                              const struct nvmedfs_options *options);

/**
 * Unmounts: writes everything back, and marks the image as clean. hs_shutdown and exit do it too, after closing what is open; a killed
 * process loses unsynced data, as in a power cut. Thread-safe.
 *
 * Returns 0, or -1: EBUSY (files, directories, transactions or request queues are open on it, and it stays mounted); EBADF; EIO, ENOSPC
 * (not everything could be written; it is unmounted in any case).
 */
int nvmedfs_unmount(struct NVMEDFS *fs);

/**
 * Works like syncfs(2): everything done in the file system before survives any crash. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EIO, ENOSPC.
 */
int nvmedfs_sync(struct NVMEDFS *fs);

/**
 * Works like umask(2), for files created in this file system. Thread-safe.
 *
 * Returns the previous umask, or -1 (of mode_t): EBADF.
 */
mode_t nvmedfs_umask(struct NVMEDFS *fs, mode_t mask);

/**
 * Works like statvfs(3), of the whole file system. Thread-safe. Returns 0, or -1: EBADF, EFAULT.
 */
int nvmedfs_statvfs(struct NVMEDFS *fs, struct statvfs *buf);

/**
 * Returns counters and usage of the file system. Set `size` to sizeof(struct nvmedfs_stats) first. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EFAULT; EINVAL (size).
 */
int nvmedfs_get_stats(struct NVMEDFS *fs, struct nvmedfs_stats *to);

/**
 * Works like open(2), for the file system's own files: O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_CREAT, O_DIRECTORY, O_DSYNC, O_EXCL,
 * O_NOATIME, O_NOFOLLOW, O_PATH, O_SYNC, O_TMPFILE, O_TRUNC and O_DIRECT; other flags are ignored. A path is relative to the root, with
 * or without a leading slash. The third argument is the mode of a new file (O_CREAT, O_TMPFILE). Thread-safe.
 *
 * O_DIRECT: reads come from the device and writes are on it when the call returns, and neither uses the cache. It is coherent with access
 * through the cache. Offset, length and memory must be multiples of 512 (EINVAL); multiples of 4096 avoid extra I/O. Files of up to 3 KiB
 * are part of the metadata, which is in memory. A write is durable after nvmedfs_fsync, as any other.
 *
 * Returns a file number: the lowest free one from 3 on, of a separate table. Or -1: any error of open(2); ENXIO (a pipe, socket or
 * device: these have names and attributes here, but no content); EROFS.
 */
int nvmedfs_open(struct NVMEDFS *fs,
                 const char *path,
                 int flags,
                 ...);

/**
 * Works like openat(2); see nvmedfs_open. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_openat(int dir, const char *path, int flags, ...);

/**
 * Works like creat(2); see nvmedfs_open. Thread-safe.
 */
int nvmedfs_creat(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * Works like close(2). Written data reaches the device in time; nvmedfs_fsync makes it durable. Calls of other threads with this number
 * continue. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EIO, ENOSPC (of earlier writes, not reported before; the number is closed in any case).
 */
int nvmedfs_close(int fd);

/**
 * Works like dup(2): both share the file's position and flags. Thread-safe.
 *
 * Returns the lowest free number from 3 on, or -1: EBADF, EMFILE.
 */
int nvmedfs_dup(int fd);

/**
 * Works like dup2(2). Thread-safe.
 *
 * Returns `to`, or -1: EBADF (also: `to` is below 3).
 */
int nvmedfs_dup2(int fd, int to);

/**
 * Works like fcntl(2): F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD and F_SETFD (numbers do not survive exec), F_GETFL, F_SETFL (O_APPEND, O_DIRECT,
 * O_NONBLOCK). F_GETLK, F_SETLK and F_SETLKW: record locks of a process never conflict, because only one process has the image open; use
 * nvmedfs_flock between threads. Thread-safe.
 *
 * Returns what fcntl(2) would, or -1: EBADF; EINVAL (another command).
 */
int nvmedfs_fcntl(int fd,
                  int command,
                  ...);

/**
 * Works like read(2). Thread-safe: reads and writes at the file's position come one after the other.
 *
 * Returns the number of bytes, 0 at the end of the file, or -1: any error of read(2); EFAULT (`buf` is NULL); EIO (the device failed, or
 * what is on it is not what was written).
 */
ssize_t nvmedfs_read(int fd,
                     void *buf,
                     size_t n);

/**
 * Works like write(2): visible to all at once, and durable after nvmedfs_fsync. Thread-safe.
 *
 * Returns the number of bytes, or -1: any error of write(2); EFAULT (`buf` is NULL).
 */
ssize_t nvmedfs_write(int fd, const void *buf, size_t n);

/**
 * Works like pread(2). Thread-safe. Returns as nvmedfs_read; also EINVAL (a negative offset).
 */
ssize_t nvmedfs_pread(int fd, void *buf, size_t n, off_t off);

/**
 * Works like pwrite(2); with O_APPEND at the end of the file, as Linux has it. Thread-safe. Returns as nvmedfs_write; also EINVAL.
 */
ssize_t nvmedfs_pwrite(int fd, const void *buf, size_t n, off_t off);

/**
 * Works like readv(2). Thread-safe. Returns as nvmedfs_read; also EINVAL (a count that is negative or above 1024).
 */
ssize_t nvmedfs_readv(int fd, const struct iovec *iov, int count);

/**
 * Works like writev(2), as one atomic write. Thread-safe. Returns as nvmedfs_write; also EINVAL.
 */
ssize_t nvmedfs_writev(int fd, const struct iovec *iov, int count);

/**
 * Works like preadv(2). Thread-safe. Returns as nvmedfs_readv.
 */
ssize_t nvmedfs_preadv(int fd, const struct iovec *iov, int count, off_t off);

/**
 * Works like pwritev(2). Thread-safe. Returns as nvmedfs_writev.
 */
ssize_t nvmedfs_pwritev(int fd, const struct iovec *iov, int count, off_t off);

/**
 * Works like lseek(2), SEEK_DATA and SEEK_HOLE included. Thread-safe.
 *
 * Returns the new position, or -1: any error of lseek(2).
 */
off_t nvmedfs_lseek(int fd, off_t off, int whence);

/**
 * Works like fsync(2): when it returns 0, the file with its name, and every byte written before, survives any crash. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EIO, ENOSPC (written data may be lost at a power cut; each open file gets a failure once).
 */
int nvmedfs_fsync(int fd);

/**
 * Works like fdatasync(2), and is the same as nvmedfs_fsync here: times cost nothing extra. Thread-safe. Returns as nvmedfs_fsync.
 */
int nvmedfs_fdatasync(int fd);

/**
 * Works like syncfs(2), of the file's file system; see nvmedfs_sync. Thread-safe. Returns 0, or -1: EBADF; EIO, ENOSPC.
 */
int nvmedfs_syncfs(int fd);

/**
 * Works like ftruncate(2). Thread-safe. Returns 0, or -1: any error of ftruncate(2).
 */
int nvmedfs_ftruncate(int fd, off_t len);

/**
 * Works like fallocate(2), with the modes 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE with it or without, and FALLOC_FL_PUNCH_HOLE with
 * it. Thread-safe.
 *
 * Returns 0, or -1: any error of fallocate(2); EOPNOTSUPP (another mode).
 */
int nvmedfs_fallocate(int fd,
                      int mode,
                      off_t off,
                      off_t len);

/**
 * Works like posix_fadvise(3), but with -1 and errno: POSIX_FADV_NORMAL, _SEQUENTIAL (maximum read-ahead), _RANDOM (no read-ahead),
 * _WILLNEED (read into the cache, up to half of it), _DONTNEED (write back and evict), _NOREUSE (ignored). Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL; EIO.
 */
int nvmedfs_fadvise(int fd, off_t off, off_t len, int advice);

/**
 * Works like copy_file_range(2), also between two file systems of the library. `flags` is 0. Thread-safe.
 *
 * Returns the number of bytes, 0 at the end of the first file, or -1: any error of copy_file_range(2).
 */
ssize_t nvmedfs_copy_file_range(int fd_in, off_t *off_in, int fd_out, off_t *off_out, size_t n, uint32_t flags);

/**
 * Works like mkdir(2). Thread-safe. Returns 0, or -1: any error of mkdir(2).
 */
int nvmedfs_mkdir(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * Works like mkdirat(2). `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_mkdirat(int dir, const char *path, mode_t mode);

/**
 * Works like mknod(2): also pipes, sockets and devices, which have names and attributes here, and cannot be opened. Thread-safe.
 *
 * Returns 0, or -1: any error of mknod(2).
 */
int nvmedfs_mknod(struct NVMEDFS *fs, const char *path, mode_t mode, dev_t device);

/**
 * Works like mknodat(2); see nvmedfs_mknod. Thread-safe.
 */
int nvmedfs_mknodat(int dir, const char *path, mode_t mode, dev_t device);

/**
 * Works like mkfifo(3); see nvmedfs_mknod. Thread-safe.
 */
int nvmedfs_mkfifo(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * Works like mkfifoat(3); see nvmedfs_mknod. Thread-safe.
 */
int nvmedfs_mkfifoat(int dir, const char *path, mode_t mode);

/**
 * Works like readlink(2): no zero byte follows. Thread-safe. Returns the number of bytes, or -1: any error of readlink(2).
 */
ssize_t nvmedfs_readlink(struct NVMEDFS *fs, const char *path, char *buf, size_t n);

/**
 * Works like readlinkat(2). Thread-safe. Returns as nvmedfs_readlink.
 */
ssize_t nvmedfs_readlinkat(int dir, const char *path, char *buf, size_t n);

/**
 * Works like unlink(2). An open file lives until it is closed. Thread-safe. Returns 0, or -1: any error of unlink(2).
 */
int nvmedfs_unlink(struct NVMEDFS *fs, const char *path);

/**
 * Works like unlinkat(2), AT_REMOVEDIR included. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_unlinkat(int dir, const char *path, int flags);

/**
 * Works like rmdir(2). Thread-safe. Returns 0, or -1: any error of rmdir(2).
 */
int nvmedfs_rmdir(struct NVMEDFS *fs, const char *path);

/**
 * Works like symlink(2): `path` becomes a link to `target`. Thread-safe. Returns 0, or -1: any error of symlink(2).
 */
int nvmedfs_symlink(struct NVMEDFS *fs, const char *target, const char *path);

/**
 * Works like symlinkat(2). Thread-safe. Returns as nvmedfs_symlink.
 */
int nvmedfs_symlinkat(const char *target, int dir, const char *path);

/**
 * Works like rename(2); renaming a directory takes constant time. Thread-safe. Returns 0, or -1: any error of rename(2).
 */
int nvmedfs_rename(struct NVMEDFS *fs, const char *from, const char *to);

/**
 * Works like renameat2(2), with RENAME_NOREPLACE and RENAME_EXCHANGE. Thread-safe. Returns 0, or -1: any error of renameat2(2).
 */
int nvmedfs_renameat2(int from_dir, const char *from, int to_dir, const char *to, uint32_t flags);

/**
 * Works like link(2). Thread-safe. Returns 0, or -1: any error of link(2).
 */
int nvmedfs_link(struct NVMEDFS *fs, const char *from, const char *to);

/**
 * Works like linkat(2), with AT_SYMLINK_FOLLOW, and with AT_EMPTY_PATH, which gives an O_TMPFILE file (`from_dir`) its name. Thread-safe.
 *
 * Returns 0, or -1: any error of linkat(2).
 */
int nvmedfs_linkat(int from_dir,
                   const char *from,
                   int to_dir,
                   const char *to,
                   int flags);

/**
 * Works like realpath(3), from the file system's root; the result needs PATH_MAX (4096) bytes. Thread-safe.
 *
 * Returns `resolved`, or NULL: any error of realpath(3); EFAULT (`resolved` is NULL); ENAMETOOLONG.
 */
char *nvmedfs_realpath(struct NVMEDFS *fs, const char *path, char *resolved);

/**
 * Works like stat(2). Thread-safe. Returns 0, or -1: any error of stat(2).
 */
int nvmedfs_stat(struct NVMEDFS *fs, const char *path, struct stat *st);

/**
 * Works like lstat(2). Thread-safe. Returns 0, or -1: any error of lstat(2).
 */
int nvmedfs_lstat(struct NVMEDFS *fs, const char *path, struct stat *st);

/**
 * Works like fstatat(2), with AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_fstatat(int dir, const char *path, struct stat *st, int flags);

/**
 * Works like fstat(2). Thread-safe. Returns 0, or -1: EBADF, EFAULT.
 */
int nvmedfs_fstat(int fd, struct stat *st);

/**
 * Works like statx(2) from the root: including the birth time and the alignment for O_DIRECT. `mask` is ignored: all fields are set.
 * Thread-safe.
 *
 * Returns 0, or -1: any error of statx(2).
 */
int nvmedfs_statx(struct NVMEDFS *fs,
                  const char *path,
                  int flags,
                  uint32_t mask,
                  struct statx *st);

/**
 * Works like fstatvfs(3), of the file's file system. Thread-safe. Returns 0, or -1: EBADF, EFAULT.
 */
int nvmedfs_fstatvfs(int fd, struct statvfs *buf);

/**
 * Works like access(2); without NVMEDFS_CHECK whatever is there may be used. Thread-safe. Returns 0, or -1: any error of access(2).
 */
int nvmedfs_access(struct NVMEDFS *fs, const char *path, int mode);

/**
 * Works like faccessat(2); see nvmedfs_access. `flags`: AT_EACCESS changes nothing. Thread-safe.
 */
int nvmedfs_faccessat(int dir, const char *path, int mode, int flags);

/**
 * Works like chmod(2). Thread-safe. Returns 0, or -1: any error of chmod(2).
 */
int nvmedfs_chmod(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * Works like fchmod(2). Thread-safe. Returns 0, or -1: any error of fchmod(2).
 */
int nvmedfs_fchmod(int fd, mode_t mode);

/**
 * Works like fchmodat(2); AT_SYMLINK_NOFOLLOW is EOPNOTSUPP for a symbolic link. Thread-safe.
 */
int nvmedfs_fchmodat(int dir, const char *path, mode_t mode, int flags);

/**
 * Works like chown(2). Thread-safe. Returns 0, or -1: any error of chown(2).
 */
int nvmedfs_chown(struct NVMEDFS *fs, const char *path, uid_t owner, gid_t group);

/**
 * Works like lchown(2). Thread-safe. Returns 0, or -1: any error of lchown(2).
 */
int nvmedfs_lchown(struct NVMEDFS *fs, const char *path, uid_t owner, gid_t group);

/**
 * Works like fchown(2). Thread-safe. Returns 0, or -1: any error of fchown(2).
 */
int nvmedfs_fchown(int fd, uid_t owner, gid_t group);

/**
 * Works like fchownat(2), with AT_SYMLINK_NOFOLLOW. Thread-safe.
 */
int nvmedfs_fchownat(int dir, const char *path, uid_t owner, gid_t group, int flags);

/**
 * Works like utimensat(2) from the root, with AT_SYMLINK_NOFOLLOW. Thread-safe. Returns 0, or -1: any error of utimensat(2).
 */
int nvmedfs_utimens(struct NVMEDFS *fs, const char *path, const struct timespec *times, int flags);

/**
 * Works like utimensat(2), with AT_SYMLINK_NOFOLLOW. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_utimensat(int dir, const char *path, const struct timespec *times, int flags);

/**
 * Works like futimens(2). Thread-safe. Returns 0, or -1: any error of futimens(2).
 */
int nvmedfs_futimens(int fd, const struct timespec *times);

/**
 * Works like truncate(2). Thread-safe. Returns 0, or -1: any error of truncate(2).
 */
int nvmedfs_truncate(struct NVMEDFS *fs, const char *path, off_t len);

/**
 * Works like setxattr(2), with XATTR_CREATE and XATTR_REPLACE; names begin with user., trusted. or security. Thread-safe.
 *
 * Returns 0, or -1: any error of setxattr(2); ENOSPC (also: all of a file are more than 4 KiB).
 */
int nvmedfs_setxattr(struct NVMEDFS *fs, const char *path, const char *name, const void *value, size_t n, int flags);

/**
 * Works like lsetxattr(2); see nvmedfs_setxattr. Thread-safe.
 */
int nvmedfs_lsetxattr(struct NVMEDFS *fs, const char *path, const char *name, const void *value, size_t n, int flags);

/**
 * Works like fsetxattr(2); see nvmedfs_setxattr. Thread-safe.
 */
int nvmedfs_fsetxattr(int fd, const char *name, const void *value, size_t n, int flags);

/**
 * Works like getxattr(2) (with `n` 0 only how long it is). Thread-safe. Returns the number of bytes, or -1: any error of getxattr(2).
 */
ssize_t nvmedfs_getxattr(struct NVMEDFS *fs,
                         const char *path,
                         const char *name,
                         void *value,
                         size_t n);

/**
 * Works like lgetxattr(2); see nvmedfs_getxattr. Thread-safe.
 */
ssize_t nvmedfs_lgetxattr(struct NVMEDFS *fs, const char *path, const char *name, void *value, size_t n);

/**
 * Works like fgetxattr(2); see nvmedfs_getxattr. Thread-safe.
 */
ssize_t nvmedfs_fgetxattr(int fd, const char *name, void *value, size_t n);

/**
 * Works like listxattr(2): each name with a zero byte behind it; with `n` 0 only how long they are. Thread-safe.
 *
 * Returns the number of bytes, or -1: any error of listxattr(2).
 */
ssize_t nvmedfs_listxattr(struct NVMEDFS *fs, const char *path, char *list, size_t n);

/**
 * Works like llistxattr(2); see nvmedfs_listxattr. Thread-safe.
 */
ssize_t nvmedfs_llistxattr(struct NVMEDFS *fs, const char *path, char *list, size_t n);

/**
 * Works like flistxattr(2); see nvmedfs_listxattr. Thread-safe.
 */
ssize_t nvmedfs_flistxattr(int fd, char *list, size_t n);

/**
 * Works like removexattr(2). Thread-safe. Returns 0, or -1: any error of removexattr(2).
 */
int nvmedfs_removexattr(struct NVMEDFS *fs, const char *path, const char *name);

/**
 * Works like lremovexattr(2); see nvmedfs_removexattr. Thread-safe.
 */
int nvmedfs_lremovexattr(struct NVMEDFS *fs, const char *path, const char *name);

/**
 * Works like fremovexattr(2); see nvmedfs_removexattr. Thread-safe.
 */
int nvmedfs_fremovexattr(int fd, const char *name);

/**
 * Works like opendir(3). Thread-safe. Returns the directory, or NULL: any error of opendir(3); EMFILE.
 */
struct NVMEDFS_DIR *nvmedfs_opendir(struct NVMEDFS *fs, const char *path);

/**
 * Works like fdopendir(3), but the file number stays open with its own position. Thread-safe. Returns as nvmedfs_opendir.
 */
struct NVMEDFS_DIR *nvmedfs_fdopendir(int fd);

/**
 * Works like readdir(3): entries that exist all the time are returned once, whatever changes meanwhile. Thread-safe, but the result is
 * valid only until the next call for the same directory.
 *
 * Returns the next entry; or NULL: at the end (errno is unchanged), or EBADF, ENOENT (the directory was removed), EIO.
 */
struct dirent *nvmedfs_readdir(struct NVMEDFS_DIR *dir);

/**
 * Works like telldir(3). Thread-safe. Returns a position for nvmedfs_seekdir, or -1: EBADF.
 */
long nvmedfs_telldir(struct NVMEDFS_DIR *dir);

/**
 * Works like seekdir(3), to a position of nvmedfs_telldir for this directory. Thread-safe. Returns 0, or -1: EBADF, EINVAL.
 */
int nvmedfs_seekdir(struct NVMEDFS_DIR *dir, long place);

/**
 * Works like rewinddir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_rewinddir(struct NVMEDFS_DIR *dir);

/**
 * Works like closedir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_closedir(struct NVMEDFS_DIR *dir);

/**
 * Works like flock(2): LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB: locks of the open file, shared by duplicates of its number, between
 * threads of this process (no other process has the image open). Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL; EWOULDBLOCK (LOCK_NB, and another open file holds it).
 */
int nvmedfs_flock(int fd, int operation);

/**
 * Starts a transaction: changes of any files of the file system, by nvmedfs_tx_..., that happen together or not at all, also across a
 * power cut or a kill. Until nvmedfs_commit they are copied and kept in memory, invisible even to the same thread. Other calls on the
 * same files are not part of it. Thread-safe, as are all calls with it.
 *
 * At commit, file content is written first; then names and attributes change in the order of the calls, each seeing the earlier ones.
 * Paths are relative to the root. While a transaction with name changes is committed, other name changes wait.
 *
 * Returns it, or NULL: EBADF; EROFS; EMFILE.
 */
struct NVMEDFS_TX *nvmedfs_begin(struct NVMEDFS *fs);

/**
 * Works like nvmedfs_pwrite, at the commit. Thread-safe.
 *
 * Returns `n`, or -1: EBADF (also: not open for writing); EFBIG; EFAULT; EINVAL; EXDEV (a file of another file system).
 */
ssize_t nvmedfs_tx_pwrite(struct NVMEDFS_TX *tx, int fd, const void *buf, size_t n, off_t off);

/**
 * Appends to the end of the file, at the commit. Thread-safe. Returns as nvmedfs_tx_pwrite.
 */
ssize_t nvmedfs_tx_append(struct NVMEDFS_TX *tx, int fd, const void *buf, size_t n);

/**
 * Works like nvmedfs_ftruncate, at the commit. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EFBIG; EINVAL; EXDEV. The commit fails with EOPNOTSUPP if it truncates a file with many extents.
 */
int nvmedfs_tx_ftruncate(struct NVMEDFS_TX *tx, int fd, off_t len);

/**
 * Gives a file another name, or the first name of an O_TMPFILE file, at the commit. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EXDEV; EFAULT. The commit reports the rest: EEXIST, ENOENT, ENOTDIR, EACCES, EMLINK, EPERM (a directory).
 */
int nvmedfs_tx_link(struct NVMEDFS_TX *tx,
                    int fd,
                    const char *path);

/**
 * Creates a file that gets this name at the commit, and is removed if there is none (O_TMPFILE and nvmedfs_tx_link). Write it with
 * nvmedfs_tx_pwrite or nvmedfs_write. `flags`: O_WRONLY or O_RDWR, with others of nvmedfs_open except O_CREAT. The directory may be one
 * that the transaction creates: the file gets its group as in the nearest existing one. Thread-safe.
 *
 * Returns a file number, or -1: any error of nvmedfs_open and nvmedfs_tx_link.
 */
int nvmedfs_tx_creat(struct NVMEDFS_TX *tx,
                     const char *path,
                     int flags,
                     mode_t mode);

/**
 * Commits the transaction: when this returns 0, all of it has happened and survives any crash. Each block of metadata is written once.
 * The NVMEDFS_TX is freed in any case. Thread-safe.
 *
 * Returns 0, or -1: EBADF; errors of its calls (ENOSPC, EFBIG, EEXIST ...): nothing of it has happened; EIO (it could not be made
 * durable: it is visible, and after a power cut present completely or not at all; every open file of it gets the error from its next
 * fsync); EINVAL (too many changes for one transaction).
 */
int nvmedfs_commit(struct NVMEDFS_TX *tx);

/**
 * Aborts the transaction without effect. Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_abort(struct NVMEDFS_TX *tx);

/**
 * Works like nvmedfs_mkdir, at the commit. Later calls of the same transaction find the directory. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EFAULT. The commit reports the rest: any error of nvmedfs_mkdir.
 */
int nvmedfs_tx_mkdir(struct NVMEDFS_TX *tx, const char *path, mode_t mode);

/**
 * Works like nvmedfs_symlink, at the commit. Thread-safe. Returns as nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_symlink(struct NVMEDFS_TX *tx, const char *target, const char *path);

/**
 * Works like nvmedfs_unlink, at the commit. An open file lives until it is closed. Thread-safe. Returns as nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_unlink(struct NVMEDFS_TX *tx, const char *path);

/**
 * Works like nvmedfs_rmdir, at the commit: its entries may be removed earlier in the same transaction. Thread-safe. Returns as
 * nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_rmdir(struct NVMEDFS_TX *tx, const char *path);

/**
 * Works like renameat2(2) from `from` to `to`, both from the root, at the commit: also of directories of any size.
 * `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE. Thread-safe. Returns as nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_rename(struct NVMEDFS_TX *tx, const char *from, const char *to, uint32_t flags);

/**
 * Works like nvmedfs_fchmod, at the commit; `fd` may also be a directory, or opened with O_PATH. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EXDEV. The commit reports the rest: EPERM; ENOENT (a removed directory).
 */
int nvmedfs_tx_fchmod(struct NVMEDFS_TX *tx, int fd, mode_t mode);

/**
 * Works like nvmedfs_fchown, at the commit. Thread-safe. Returns as nvmedfs_tx_fchmod.
 */
int nvmedfs_tx_fchown(struct NVMEDFS_TX *tx, int fd, uid_t owner, gid_t group);

/**
 * Works like nvmedfs_futimens, at the commit. Thread-safe. Returns as nvmedfs_tx_fchmod; also EINVAL.
 */
int nvmedfs_tx_futimens(struct NVMEDFS_TX *tx, int fd, const struct timespec *times);

/**
 * Fills a struct nvmedfs_io with its size, AT_FDCWD for directories, and zeroes. Thread-safe.
 *
 * `size` is sizeof *io. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmedfs_io_init(struct nvmedfs_io *io, size_t size);

/**
 * Creates a queue for asynchronous requests of a file system: `depth` unreaped requests, 1 to 65536. Thread-safe.
 *
 * Returns it, or NULL: EBADF; EINVAL (depth); EMFILE.
 */
struct NVMEDFS_AIO *nvmedfs_aio_create(struct NVMEDFS *fs, uint32_t depth);

/**
 * Submits requests, which are copied: `count` of them, or as many as fit. Reads have no order; reads from memory have completed on
 * return. All other requests are executed in order of submission, by one thread for the whole file system: a write is seen by later
 * writes, syncs, renames and commits. Waiting requests are written to the device together and made durable by one sync, including writes
 * of files opened with O_SYNC. Completions come in any order. Thread-safe.
 *
 * Returns the number of submitted requests, or -1 if none was: EBADF; EFAULT; EINVAL; EXDEV (a file of another file system); EAGAIN (the
 * queue is full: call nvmedfs_aio_reap first). An invalid request ends the call; those before it are submitted.
 */
int nvmedfs_aio_submit(struct NVMEDFS_AIO *aio,
                       const struct nvmedfs_io *requests,
                       int count);

/**
 * Reaps completed requests and calls their callbacks: at least `min`, unless fewer are outstanding or `timeout` (NULL: none) passes, at
 * most `max`. With `min` 0 it does not wait. Thread-safe: each completion goes to one thread.
 *
 * Returns the number, or -1: EBADF; EINVAL (min, max or timeout).
 */
int nvmedfs_aio_reap(struct NVMEDFS_AIO *aio,
                     struct nvmedfs_event *done,
                     int min,
                     int max,
                     const struct timespec *timeout);

/**
 * Waits until all submitted requests have completed, or `timeout` (NULL: none) passes; reaps all and calls their callbacks. Like the
 * futures of NVMeDFS: one wait for many requests, which fails if one of them failed. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL (timeout); ETIMEDOUT; the errno of the first failure since the last call, with its message, whichever
 * thread reaped it.
 */
int nvmedfs_aio_wait(struct NVMEDFS_AIO *aio,
                     const struct timespec *timeout);

/**
 * Returns a descriptor for poll(2), readable while completed requests wait to be reaped. It belongs to the library: it must not be read
 * or closed, and is closed with the NVMEDFS_AIO. Thread-safe.
 *
 * Returns the descriptor, or -1: EBADF.
 */
int nvmedfs_aio_fileno(struct NVMEDFS_AIO *aio);

/**
 * Waits for requests in flight and discards their completions; no callbacks are called. Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_aio_destroy(struct NVMEDFS_AIO *aio);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOTSHELF_H */
