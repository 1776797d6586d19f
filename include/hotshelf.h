/* libhotshelf: files through a cache, raw devices with their queues and block cache, and a file system on them, for C and C++ programs.
 *
 * Habits are POSIX's: -1 or NULL and errno, which is only changed by failures; hs_error() says the same as a sentence. Offsets and
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
 * For nvmed_handle_create: past the block cache. This is the default. (NVMeDirect: HANDLE_DIRECT_IO.)
 */
#define NVMED_DIRECT (1 << 0)

/**
 * A call returns when the device has done it. The default of direct handles; on a cached handle a write returns when its bytes
 * survive a loss of power.
 * (NVMeDirect: HANDLE_SYNC_IO.)
 */
#define NVMED_SYNC (1 << 1)

/**
 * Memory that is not from nvmed_get_buffer is refused (EFAULT) instead of copied. (NVMeDirect: HANDLE_HINT_DMEM.)
 */
#define NVMED_ZERO_COPY (1 << 2)

/**
 * Through the block cache of the device: any offset and length; writes reach the device later, nvmed_flush makes them safe.
 */
#define NVMED_CACHED (1 << 4)

/**
 * On a direct handle: nvmed_read, nvmed_write, nvmed_pread, nvmed_pwrite, nvmed_discard and nvmed_write_zeroes only submit;
 * the memory belongs to the library until nvmed_poll or nvmed_wait reports the request. On a cached handle: the default.
 */
#define NVMED_ASYNC (1 << 5)

/**
 * A write is complete only when it survives a loss of power (force unit access).
 */
#define NVMED_DURABLE (1 << 6)

/**
 * Who waits polls, and does not sleep: the lowest latency, for a whole processor.
 */
#define NVMED_POLLED (1 << 7)

/**
 * NVMeDirect's name for NVMED_DIRECT, also for nvmed_handle_feature_set.
 */
#define HANDLE_DIRECT_IO NVMED_DIRECT

/**
 * NVMeDirect's name for NVMED_SYNC.
 */
#define HANDLE_SYNC_IO NVMED_SYNC

/**
 * NVMeDirect's name for NVMED_ZERO_COPY.
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
 * For nvmed_feature_set: pages of 4096 bytes of the block cache; until its first cached handle is used.
 */
#define NVMED_CACHE_SIZE (1 << 1)

/**
 * For nvmed_feature_set: 1 (the default) takes the memory of the block cache as it is used, 0 all of it at once.
 */
#define NVMED_CACHE_LAZY_INIT (1 << 2)

/**
 * A queue of one handle, which one thread uses at a time: no lock, and a call while another is inside fails with EBUSY.
 * Without it a queue is safe for any number of handles and threads.
 */
#define NVMED_QUEUE_DEDICATED (1 << 0)

/**
 * The device is polled for completions, and sends no interrupts (io_uring: IOPOLL), where it can be.
 */
#define NVMED_QUEUE_DEVICE_POLLED (1 << 1)

/**
 * A thread of the kernel takes submissions (io_uring: SQPOLL).
 */
#define NVMED_QUEUE_KERNEL_SUBMITS (1 << 2)

/**
 * Requests go as they come.
 */
#define NVMED_SCHEDULER_NONE 0

/**
 * Neighbours are merged, in the order of their positions: for disks.
 */
#define NVMED_SCHEDULER_ELEVATOR 1

/**
 * By deadline.
 */
#define NVMED_SCHEDULER_DEADLINE 2

/**
 * By weights of priority classes.
 */
#define NVMED_SCHEDULER_CLASSES 3

/**
 * What is right for this machine: NVMED_COMPLETION_ADAPTIVE, or with fewer than 3 processors NVMED_COMPLETION_INTERRUPT.
 */
#define NVMED_COMPLETION_DEFAULT 0

/**
 * Handles of the queue poll while they wait, as with NVMED_POLLED.
 */
#define NVMED_COMPLETION_POLLING 1

/**
 * Who waits sleeps until the device signals.
 */
#define NVMED_COMPLETION_INTERRUPT 2

/**
 * Who waits sleeps as long as a request of its kind takes, then polls; decided for each request.
 */
#define NVMED_COMPLETION_ADAPTIVE 3

/**
 * The library's completion thread, one for all such queues, waits for a shared queue and wakes who waits. It calls no callbacks.
 */
#define NVMED_COMPLETION_THREAD 4

/**
 * Parameter of a handle: 1 through the block cache, 0 past it.
 */
#define NVMED_PARAM_CACHED 1

/**
 * Parameter: 1 calls return when it is done, 0 as NVMED_ASYNC says.
 */
#define NVMED_PARAM_SYNCHRONOUS 2

/**
 * Parameter: milliseconds a request may take before it fails with ETIMEDOUT; 0: for ever. 30000 at first.
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
 * Parameter: 1 as NVMED_DURABLE.
 */
#define NVMED_PARAM_FUA 6

/**
 * Parameter: NVMED_COMPLETION_... of the queue, or NVMED_COMPLETION_POLLING, which can be set and unset at any time.
 */
#define NVMED_PARAM_COMPLETION 7

/**
 * Parameter, fixed: asynchronous requests of the handle at a time; 0: as many as the queue is deep.
 */
#define NVMED_PARAM_REQUESTS_MAX 8

/**
 * Parameter, fixed: depth of the queue.
 */
#define NVMED_PARAM_QUEUE_DEPTH 9

/**
 * Parameter, fixed: NVMED_SCHEDULER_...
 */
#define NVMED_PARAM_SCHEDULER 10

/**
 * Parameter, fixed: see NVMED_QUEUE_DEVICE_POLLED.
 */
#define NVMED_PARAM_DEVICE_POLLED 11

/**
 * Parameter, fixed: see NVMED_QUEUE_KERNEL_SUBMITS.
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
 * Parameter, fixed: milliseconds for the device to cancel what is over its time.
 */
#define NVMED_PARAM_CANCEL_GRACE_MS 15

/**
 * Parameter, fixed: milliseconds for the device to give memory of timed-out requests back before the queue is reset; 0: never.
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
 * For struct nvmed_io: blocks into memory.
 */
#define NVMED_OP_READ 0

/**
 * Memory into blocks.
 */
#define NVMED_OP_WRITE 1

/**
 * What was completed before survives a loss of power.
 */
#define NVMED_OP_FLUSH 2

/**
 * The blocks' content is not needed any more.
 */
#define NVMED_OP_DISCARD 3

/**
 * The blocks read as zeroes.
 */
#define NVMED_OP_WRITE_ZEROES 4

/**
 * The request has ended, and its memory may still be read or written by the device (it timed out): memory of
 * nvmed_get_buffer must not be used again; nvmed_put_buffer it, and it is reused when the device has let go.
 */
#define NVMED_EVENT_HELD (1 << 0)

/**
 * Status of an NVMED_AIO_CTX: ended well.
 */
#define NVMED_AIO_DONE 0

/**
 * Status of an NVMED_AIO_CTX: ended with an error; `error` has the errno.
 */
#define NVMED_AIO_ERROR 1

/**
 * Status of an NVMED_AIO_CTX: not ended yet.
 */
#define NVMED_AIO_BUSY 2

/**
 * For struct uaio: as upread.
 */
#define UAIO_READ 0

/**
 * As upwrite.
 */
#define UAIO_WRITE 1

/**
 * As ufsync.
 */
#define UAIO_FSYNC 2

/**
 * As ufdatasync.
 */
#define UAIO_FDATASYNC 3

/**
 * For uaio_create_with: one thread alone will submit and reap, the first one that does. Reads of what is on the SSD then are up to a
 * third faster if they are submitted and reaped few at a time. Another thread is told EBUSY; it may destroy it when no read is under
 * way, or when the one thread has ended. If it does (or hs_shutdown) while that one lives, the SSD stays open until it has ended too.
 */
#define UAIO_ONE_THREAD (1 << 0)

/**
 * With UAIO_ONE_THREAD: uaio_reap is called to wait, with a `min` of 1 or more, when there is nothing else to do. Then a wait may look for
 * up to 20 microseconds before it sleeps, or ask for what else has ended when it is woken, where that is measured to be as fast or faster
 * for no more of the processor; and a uaio_reap that finds nothing is a system call, the wrong choice for who asks again and again.
 */
#define UAIO_WAITS (1 << 1)

/**
 * With both: a wait stays awake for up to 100 microseconds before it sleeps, whatever that costs of the processor. Hits on the SSD come
 * sooner where a processor that sleeps is slow to be woken, above all in a virtual machine.
 */
#define UAIO_POLLS (1 << 2)

/**
 * For struct nvmedfs_mkfs_options: what is there is overwritten.
 */
#define NVMEDFS_FORCE (1 << 0)

/**
 * For struct nvmedfs_options: nothing can be changed (EROFS), and other processes may read the image, too.
 */
#define NVMEDFS_READ_ONLY (1 << 0)

/**
 * For struct nvmedfs_options: every call that changes something returns when the change survives a loss of power, as if each file
 * were opened with O_SYNC.
 */
#define NVMEDFS_SYNC (1 << 1)

/**
 * For struct nvmedfs_options: reading does not change times.
 */
#define NVMEDFS_NO_ATIME (1 << 2)

/**
 * For struct nvmedfs_options: the device is not told which blocks nobody needs any more.
 */
#define NVMEDFS_NO_DISCARD (1 << 3)

/**
 * For struct nvmedfs_options: permissions are checked, as the kernel would for the process as it is when it mounts. Without it
 * whoever can open the image may do everything in it.
 */
#define NVMEDFS_CHECK (1 << 4)

/**
 * For struct nvmedfs_options: a device of nothing but zeros gets a file system first, as nvmedfs_mkfs(device, NULL) makes it.
 */
#define NVMEDFS_CREATE (1 << 5)

/**
 * For struct nvmedfs_io: as nvmedfs_pread.
 */
#define NVMEDFS_OP_PREAD 0

/**
 * As nvmedfs_pwrite, but all of it or an error.
 */
#define NVMEDFS_OP_PWRITE 1

/**
 * As nvmedfs_preadv: `buf` is an array of struct iovec, `n` their number.
 */
#define NVMEDFS_OP_PREADV 2

/**
 * As nvmedfs_pwritev, but all of it or an error.
 */
#define NVMEDFS_OP_PWRITEV 3

/**
 * As nvmedfs_fsync, of what was submitted before, too.
 */
#define NVMEDFS_OP_FSYNC 4

/**
 * As nvmedfs_fdatasync, likewise.
 */
#define NVMEDFS_OP_FDATASYNC 5

/**
 * As nvmedfs_ftruncate: to `off` bytes.
 */
#define NVMEDFS_OP_FTRUNCATE 6

/**
 * As nvmedfs_openat with `flags` and `mode` (with O_CREAT it creates): the result is the file number.
 */
#define NVMEDFS_OP_OPEN 7

/**
 * As nvmedfs_unlinkat with `flags`.
 */
#define NVMEDFS_OP_UNLINK 8

/**
 * As nvmedfs_mkdirat with `mode`.
 */
#define NVMEDFS_OP_MKDIR 9

/**
 * As nvmedfs_renameat2 from `path` below `fd` to `path2` below `fd2`, with `flags`.
 */
#define NVMEDFS_OP_RENAME 10

/**
 * As nvmedfs_commit of `tx`, which is gone when it is submitted. Commits that wait together share their flushes.
 */
#define NVMEDFS_OP_COMMIT 11

/**
 * As nvmedfs_sync.
 */
#define NVMEDFS_OP_SYNC 12

/**
 * A device that is open.
 */
typedef struct NVMED NVMED;

/**
 * A file system in use (nvmedfs_mount).
 */
typedef struct NVMEDFS NVMEDFS;

/**
 * Asynchronous requests of a file system (nvmedfs_aio_create).
 */
typedef struct NVMEDFS_AIO NVMEDFS_AIO;

/**
 * A directory of a file system that is open for reading (nvmedfs_opendir).
 */
typedef struct NVMEDFS_DIR NVMEDFS_DIR;

/**
 * Changes of many files that happen all or not at all (nvmedfs_begin).
 */
typedef struct NVMEDFS_TX NVMEDFS_TX;

/**
 * What I/O goes through: bound to a queue, or to several.
 */
typedef struct NVMED_HANDLE NVMED_HANDLE;

/**
 * A queue of a device.
 */
typedef struct NVMED_QUEUE NVMED_QUEUE;

/**
 * Asynchronous requests of the u calls (uaio_create).
 */
typedef struct UAIO UAIO;

/**
 * A directory that is open for reading (uopendir).
 */
typedef struct UDIR UDIR;

/**
 * One asynchronous request of the u calls. This struct does not change.
 */
typedef struct uaio {
    /**
     * Of which file: it may be closed once the request is submitted, and is kept open for it.
     */
    int ufd;
    /**
     * UAIO_...
     */
    uint32_t op;
    /**
     * Belongs to the library until the request is reaped.
     */
    void *buf;
    /**
     * Bytes.
     */
    size_t n;
    /**
     * Bytes from the file's begin.
     */
    off_t off;
    /**
     * Comes back as it was.
     */
    uint64_t user;
    /**
     * Of uaio_reap: what the call would have returned, or a negative errno.
     */
    int64_t result;
} uaio;

/**
 * How a device is opened. Call nvmed_device_options_init first.
 */
typedef struct nvmed_device_options {
    /**
     * sizeof(struct nvmed_device_options).
     */
    size_t size;
    /**
     * Bytes of memory that the device reaches, for nvmed_get_buffer and for copies; a multiple of 4096. 32 MiB at first.
     */
    uint64_t buffer_bytes;
    /**
     * Bytes of the block cache, taken when the first cached handle is used. 64 MiB at first.
     */
    uint64_t cache_bytes;
    /**
     * Most bytes the block cache reads ahead. 128 KiB at first.
     */
    uint64_t readahead_bytes;
} nvmed_device_options;

/**
 * What a device looks like. Set `size` to sizeof(struct nvmed_info) before the call; what a library or a program does not
 * know of is left out.
 */
typedef struct nvmed_info {
    /**
     * sizeof(struct nvmed_info).
     */
    size_t size;
    /**
     * Bytes of the device.
     */
    uint64_t bytes;
    /**
     * Bytes of a block: offsets and lengths of direct I/O are multiples of it.
     */
    uint32_t block_bytes;
    /**
     * Most bytes the device transfers at once; longer requests are cut.
     */
    uint32_t transfer_bytes_max;
    /**
     * Memory that is used without a copy begins at a multiple of this, in bytes.
     */
    uint32_t memory_align;
    /**
     * 1: a write is only safe after nvmed_flush, or with NVMED_DURABLE.
     */
    uint32_t volatile_cache;
    /**
     * 1: it cannot be written.
     */
    uint32_t read_only;
    /**
     * 1: it knows nvmed_discard.
     */
    uint32_t can_discard;
    /**
     * 1: it knows nvmed_write_zeroes.
     */
    uint32_t can_write_zeroes;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Bytes that nvmed_get_buffer and copies can still have.
     */
    uint64_t buffer_bytes_free;
} nvmed_info;

/**
 * How a queue is. Call nvmed_queue_options_init first.
 */
typedef struct nvmed_queue_options {
    /**
     * sizeof(struct nvmed_queue_options).
     */
    size_t size;
    /**
     * Most requests in flight: 1 to 4096, a power of two. 128 at first.
     */
    uint32_t depth;
    /**
     * NVMED_QUEUE_... flags.
     */
    uint32_t flags;
    /**
     * NVMED_SCHEDULER_...
     */
    uint32_t scheduler;
    /**
     * Milliseconds for the device to cancel what is over its time, before that fails with ETIMEDOUT. 1000 at first.
     */
    uint32_t cancel_grace_ms;
    /**
     * Milliseconds for the device to give memory of timed-out requests back, before the queue is reset; 0: never. 5000 at first.
     */
    uint32_t reset_after_ms;
    /**
     * NVMED_COMPLETION_...
     */
    uint32_t completion;
} nvmed_queue_options;

/**
 * How a handle is. Call nvmed_handle_options_init first.
 */
typedef struct nvmed_handle_options {
    /**
     * sizeof(struct nvmed_handle_options).
     */
    size_t size;
    /**
     * NVMED_DIRECT, NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_DURABLE, NVMED_POLLED, NVMED_ZERO_COPY.
     */
    uint32_t flags;
    /**
     * Asynchronous requests at a time, not yet reported; 0 (at first): as many as the queue is deep.
     */
    uint32_t requests_max;
    /**
     * Milliseconds a request may take before it fails with ETIMEDOUT; 0: for ever. 30000 at first.
     */
    uint32_t timeout_ms;
    /**
     * Priority class, 0 (foreground) to 255.
     */
    uint32_t priority_class;
} nvmed_handle_options;

/**
 * NVMeDirect's rule for several queues: given the handle, the NVMe opcode (0 flush, 1 write, 2 read, 8 write zeroes, 9 discard),
 * the offset and the length in bytes, it returns one of the handle's queues; for anything else the first one is taken. Called in
 * the thread that submits, which must not call functions of the handle from there, nor throw or jump out.
 */
typedef struct NVMED_QUEUE *(*nvmed_mq_get_queue)(struct NVMED_HANDLE *handle, uint8_t opcode, uint64_t offset, uint32_t length);

/**
 * One asynchronous request. Call nvmed_io_init first.
 */
typedef struct nvmed_io {
    /**
     * sizeof(struct nvmed_io).
     */
    size_t size;
    /**
     * NVMED_OP_...
     */
    uint32_t op;
    /**
     * NVMED_DURABLE for a write, or 0.
     */
    uint32_t flags;
    /**
     * Of a read or write: belongs to the library until the request is reported.
     */
    void *buf;
    /**
     * Bytes.
     */
    size_t len;
    /**
     * Bytes from the device's begin.
     */
    off_t offset;
    /**
     * Comes back in the event.
     */
    uint64_t user;
    /**
     * Milliseconds it may take; 0: as the handle says.
     */
    uint32_t timeout_ms;
    /**
     * 0.
     */
    uint32_t reserved;
} nvmed_io;

/**
 * NVMeDirect's way of one asynchronous request: nvmed_aio_read, nvmed_aio_write, then nvmed_aio_handle_complete. Call
 * nvmed_aio_ctx_init first, set `handle` to `aio_callback`, and leave it alone until the callback, or until `status` is not
 * NVMED_AIO_BUSY after a call of nvmed_aio_handle_complete. Then it can be used again.
 */
typedef struct NVMED_AIO_CTX {
    /**
     * sizeof(NVMED_AIO_CTX).
     */
    size_t size;
    /**
     * Through what.
     */
    struct NVMED_HANDLE *handle;
    /**
     * Bytes from the device's begin.
     */
    off_t offset;
    /**
     * Bytes.
     */
    size_t len;
    /**
     * Belongs to the library until the request has ended.
     */
    void *buf;
    /**
     * Goes to the callback.
     */
    void *cb_userdata;
    /**
     * Called by nvmed_aio_handle_complete, nvmed_poll or nvmed_wait, in the thread that called those; may submit more, also
     * with the same context. NULL: nothing is called. Must not throw or jump out.
     */
    void (*aio_callback)(const struct NVMED_AIO_CTX *context, void *userdata);
    /**
     * NVMED_AIO_BUSY while it is under way, then NVMED_AIO_DONE or NVMED_AIO_ERROR.
     */
    int status;
    /**
     * With NVMED_AIO_ERROR: the errno.
     */
    int error;
    /**
     * While it is under way: its number, for nvmed_cancel.
     */
    uint64_t request;
} NVMED_AIO_CTX;

/**
 * A request has ended. This struct does not change.
 */
typedef struct nvmed_event {
    /**
     * The word of struct nvmed_io.
     */
    uint64_t user;
    /**
     * The number of nvmed_submit.
     */
    uint64_t request;
    /**
     * Bytes transferred, discarded or zeroed (0 for a flush), or a negative errno.
     */
    int64_t result;
    /**
     * NVMED_OP_...
     */
    uint32_t op;
    /**
     * NVMED_EVENT_HELD or 0.
     */
    uint32_t flags;
} nvmed_event;

/**
 * How a file system is made. Call nvmedfs_mkfs_options_init first.
 */
typedef struct nvmedfs_mkfs_options {
    /**
     * sizeof(struct nvmedfs_mkfs_options).
     */
    size_t size;
    /**
     * NVMEDFS_FORCE.
     */
    uint32_t flags;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Bytes of it: a file that is not there is made so large; 0: the whole file or device that is there.
     */
    uint64_t bytes;
    /**
     * Of those, bytes for names, attributes and small files; 0: a sixteenth, at least 4 MiB.
     */
    uint64_t metadata_bytes;
    /**
     * And bytes of the log; 0: a thirty-second, 1 to 128 MiB.
     */
    uint64_t log_bytes;
} nvmedfs_mkfs_options;

/**
 * How a file system is used. Call nvmedfs_options_init first. The memory it asks the allocator for is at most `memory_bytes` less a
 * quarter, or less a sixteenth and 48 MiB if that leaves more, if `memory_bytes` is given; else the sum of its four sizes, 16 MiB, buffers
 * of 24 MiB, and up to 5 KiB for each open file. What the program's allocator takes beside is the rest with a good one; the C library's
 * takes up to as much again where many threads allocate (MALLOC_ARENA_MAX=1: less, and slower).
 */
typedef struct nvmedfs_options {
    /**
     * sizeof(struct nvmedfs_options).
     */
    size_t size;
    /**
     * NVMEDFS_READ_ONLY, NVMEDFS_SYNC, NVMEDFS_NO_ATIME, NVMEDFS_NO_DISCARD, NVMEDFS_CHECK, NVMEDFS_CREATE.
     */
    uint32_t flags;
    /**
     * Milliseconds that what was written waits in memory, at most about twice this; 0: until it is synced, or there is too much of
     * it. 5000 at first.
     */
    uint32_t write_back_ms;
    /**
     * Bytes of memory for what files have on the device. 64 MiB at first.
     */
    uint64_t cache_bytes;
    /**
     * Bytes of memory for what was written and is not on the device yet; who writes more waits until some is. 64 MiB at first.
     */
    uint64_t dirty_bytes;
    /**
     * Bytes of memory for names and attributes as they are on the device. 64 MiB at first.
     */
    uint64_t metadata_cache_bytes;
    /**
     * Bytes of memory for names and attributes that differ from the device; more of them begin a checkpoint. 64 MiB at first.
     */
    uint64_t metadata_dirty_bytes;
    /**
     * Most bytes that are read ahead of who reads in order. 512 KiB at first.
     */
    uint64_t readahead_bytes;
    /**
     * One number instead of the four sizes: bytes of memory for all of the file system, which it divides itself, open files included (one
     * too many is ENFILE). 0: the four sizes count. At least 23 MiB and 171 KiB for each GiB of the image (ENOMEM). 0 at first.
     */
    uint64_t memory_bytes;
} nvmedfs_options;

/**
 * What a file system has done and how full it is. What a library or a program does not know of is left out.
 */
typedef struct nvmedfs_stats {
    /**
     * sizeof(struct nvmedfs_stats).
     */
    size_t size;
    /**
     * Requests to the device since it was mounted.
     */
    uint64_t device_reads;
    /**
     * Their bytes.
     */
    uint64_t device_read_bytes;
    /**
     * Requests.
     */
    uint64_t device_writes;
    /**
     * Their bytes.
     */
    uint64_t device_written_bytes;
    /**
     * Requests that make what was written safe from a loss of power.
     */
    uint64_t device_flushes;
    /**
     * Requests that say what nobody needs any more.
     */
    uint64_t device_discards;
    /**
     * Bytes for the content of files.
     */
    uint64_t data_bytes;
    /**
     * Of those, free.
     */
    uint64_t data_free_bytes;
    /**
     * Bytes for names, attributes and small files.
     */
    uint64_t metadata_bytes;
    /**
     * Of those, free.
     */
    uint64_t metadata_free_bytes;
    /**
     * Bytes of the log.
     */
    uint64_t log_bytes;
    /**
     * Of those, in use until the next checkpoint.
     */
    uint64_t log_used_bytes;
    /**
     * Bytes that were written and are not on the device yet.
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
     * Changes that were taken from the log when it was mounted.
     */
    uint64_t replayed;
    /**
     * Files without a name that were removed then.
     */
    uint64_t unnamed_removed;
    /**
     * 1: it had been unmounted in order.
     */
    uint32_t was_clean;
    /**
     * 1: a superblock was damaged, and made again from its copy.
     */
    uint32_t was_repaired;
} nvmedfs_stats;

/**
 * An asynchronous request has ended. This struct does not change.
 */
typedef struct nvmedfs_event {
    /**
     * The word of struct nvmedfs_io.
     */
    uint64_t user;
    /**
     * What the call would have returned, or a negative errno.
     */
    int64_t result;
    /**
     * NVMEDFS_OP_...
     */
    uint32_t op;
    /**
     * 0.
     */
    uint32_t flags;
} nvmedfs_event;

/**
 * One asynchronous request. Call nvmedfs_io_init first; it is copied by nvmedfs_aio_submit, the paths and arrays in it, too.
 */
typedef struct nvmedfs_io {
    /**
     * sizeof(struct nvmedfs_io).
     */
    size_t size;
    /**
     * NVMEDFS_OP_...
     */
    uint32_t op;
    /**
     * Of an open, unlink or rename.
     */
    int flags;
    /**
     * The file; or the directory that `path` counts from, AT_FDCWD (at first): the root. It may be closed once the request is submitted.
     */
    int fd;
    /**
     * The directory that `path2` counts from.
     */
    int fd2;
    /**
     * Of a file or directory that is made.
     */
    uint32_t mode;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Of a read or write: belongs to the library until the request has ended.
     */
    void *buf;
    /**
     * Bytes.
     */
    size_t n;
    /**
     * Bytes from the file's begin.
     */
    off_t off;
    /**
     * A name.
     */
    const char *path;
    /**
     * The new name.
     */
    const char *path2;
    /**
     * Of a commit.
     */
    struct NVMEDFS_TX *tx;
    /**
     * Comes back in the event.
     */
    uint64_t user;
    /**
     * Called with the event and `userdata` by the thread that takes it (nvmedfs_aio_reap, nvmedfs_aio_wait), before that returns; may
     * submit more. Must not throw or jump out. NULL: nothing is called.
     */
    void (*callback)(const struct nvmedfs_event *event, void *userdata);
    /**
     * Goes to the callback.
     */
    void *userdata;
} nvmedfs_io;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Begins the use of the library. Optional: opening the first device or file does hs_init(NULL). Thread-safe.
 *
 * `config_path`: a TOML file whose table [cache] says what the u calls go through (memory, ssd, mode and more), and whose table
 * [library] has defaults of devices (buffer_bytes, and the parameters of nvmed_set_param by name). NULL: the file that
 * $HOTSHELF_CONFIG names, else built-in defaults: one cache for all programs of the user, in a quarter of the memory, at most 1 GiB,
 * and no SSD. Again with other settings: only while nothing is open.
 *
 * Returns 0, or -1: ENOENT and others of open(2); EINVAL (the file is wrong, hs_error says where); EBUSY.
 */
int hs_init(const char *config_path);

/**
 * Ends the use of the library: flushes cached handles and closes every handle, queue and device; closes every ufd and leaves the cache,
 * whose last program writes what is dirty to the files below. Runs at exit, too (not after _exit or a signal). Thread-safe; calls of
 * other threads that are under way end first or fail with EBADF.
 *
 * Returns 0, or -1 with the errno of the first flush that failed; everything is closed all the same.
 */
int hs_shutdown(void);

/**
 * What the cache has of a stranded file (one that another program changed, moved or removed while pages of it were newer in the cache:
 * calls on it answer ESTALE, `hotshelf cache status` lists it) is copied to a new file, which is durable when this returns. The file and
 * what is cached of it stay as they are. Thread-safe.
 *
 * Returns 0, or -1: ENOENT (it is not stranded); EEXIST (`to` is there); those of open(2) and write(2).
 */
int hs_export(const char *path,
              const char *to);

/**
 * Gives up what the cache has of a stranded file (see hs_export): the file as it is counts. Thread-safe.
 *
 * Returns 0, or -1: ENOENT (it is not stranded).
 */
int hs_discard(const char *path);

/**
 * Writes what the cache has of a stranded file (see hs_export) over the file: the pages that are newer in the cache, and the length that
 * it has there. Durable when this returns. Thread-safe.
 *
 * Returns 0, or -1: ENOENT (it is not stranded, or nobody can find it); those of write(2).
 */
int hs_force(const char *path);

/**
 * The last failure of this thread, as a sentence; "" if there was none. The string stays until the next failure of the same
 * thread; successes leave it alone, but for the call that opens a cache which has to go on without its SSD: it says so here.
 * Thread-safe. Never NULL.
 */
const char *hs_error(void);

/**
 * The version of the library, such as "0.1.0". Thread-safe.
 */
const char *hs_version(void);

/**
 * As open(2), through the cache: what is in memory or on the cache's SSD is read without the kernel. What cannot be cached (pipes,
 * devices, directories, /proc) is handed on to the kernel, each call as it is; so is a file whose name ends with -shm, which programs
 * map (SQLite). Thread-safe.
 *
 * The third argument is the mode of a new file (O_CREAT, O_TMPFILE). The cache is that of hs_init; without it, hs_init(NULL).
 *
 * Returns a ufd: the lowest free number, of a table of its own (0, 1 and 2 stand for the process's own streams), which exec does
 * not pass on. Or -1: those of open(2); EMFILE; those of the cache when this is the first file (hs_error says which).
 */
int uopen(const char *path,
          int flags,
          ...);

/**
 * As openat(2); see uopen. `dir` is a ufd or AT_FDCWD. Thread-safe.
 */
int uopenat(int dir, const char *path, int flags, ...);

/**
 * As creat(2); see uopen. Thread-safe.
 */
int ucreat(const char *path, mode_t mode);

/**
 * As close(2). What was written stays in the cache, for all who share it, and reaches the file below in time; ufsync makes it
 * safe. Pins end with the last duplicate (udup) of the ufd they were made through; other opens of the file do not keep them.
 * Thread-safe: calls of other threads on this ufd end first, or fail with EBADF.
 *
 * Returns 0, or -1: EBADF; an error of writing that nobody was told of (the ufd is closed all the same).
 */
int uclose(int ufd);

/**
 * As dup(2): both share the file's position and flags. Thread-safe.
 *
 * Returns the lowest free ufd, or -1: EBADF, EMFILE.
 */
int udup(int ufd);

/**
 * As dup2(2). Thread-safe.
 *
 * Returns `to`, or -1: EBADF.
 */
int udup2(int ufd, int to);

/**
 * As fcntl(2): F_DUPFD (a ufd), F_GETFD and F_SETFD (a ufd is never passed on by exec), F_GETFL, F_SETFL (O_APPEND, O_NONBLOCK and
 * the like); F_GETLK, F_SETLK and F_SETLKW: record locks as POSIX has them, among all programs of the machine, only that others are
 * told -1 as the process that has one, and that nobody looks for deadlocks; and all others on the kernel's descriptor below. Thread-safe.
 */
int ufcntl(int ufd,
           int command,
           ...);

/**
 * The kernel's descriptor below a ufd, for what is not offered here (such as ioctl). It is the library's: not to be closed, and
 * gone with the last duplicate of the ufd. What is read and written through it goes past the cache. Thread-safe.
 *
 * Returns the descriptor, or -1: EBADF.
 */
int ufileno(int ufd);

/**
 * As read(2), through the cache. Thread-safe: reads and writes at the file's position come one after the other.
 *
 * Returns the number of bytes, 0 at the end of the file, or -1: those of read(2); EFAULT (`buf` is NULL); ESTALE (the file was
 * changed from outside under changes of ours).
 */
ssize_t uread(int ufd, void *buf, size_t n);

/**
 * As write(2), through the cache: the bytes are seen by all who share it at once, and safe from a loss of power after ufsync. Thread-safe.
 *
 * Returns the number of bytes, or -1: those of write(2); EFAULT (`buf` is NULL); EROFS (the cache is read-only).
 */
ssize_t uwrite(int ufd,
               const void *buf,
               size_t n);

/**
 * As pread(2), through the cache. Thread-safe. Returns as uread; also EINVAL (a negative offset).
 */
ssize_t upread(int ufd, void *buf, size_t n, off_t off);

/**
 * As pwrite(2), through the cache; with O_APPEND at the end of the file, as Linux has it. Thread-safe. Returns as uwrite; also EINVAL.
 */
ssize_t upwrite(int ufd,
                const void *buf,
                size_t n,
                off_t off);

/**
 * As readv(2), through the cache. Thread-safe. Returns as uread; also EINVAL (a count that is negative or above 1024).
 */
ssize_t ureadv(int ufd, const struct iovec *iov, int count);

/**
 * As writev(2), through the cache. Thread-safe. Returns as uwrite; also EINVAL.
 */
ssize_t uwritev(int ufd, const struct iovec *iov, int count);

/**
 * As preadv(2), through the cache. Thread-safe. Returns as ureadv.
 */
ssize_t upreadv(int ufd, const struct iovec *iov, int count, off_t off);

/**
 * As pwritev(2), through the cache. Thread-safe. Returns as uwritev.
 */
ssize_t upwritev(int ufd, const struct iovec *iov, int count, off_t off);

/**
 * As lseek(2), SEEK_DATA and SEEK_HOLE included. Thread-safe.
 *
 * Returns the new position, or -1: those of lseek(2).
 */
off_t ulseek(int ufd, off_t off, int whence);

/**
 * As fsync(2): when it returns 0, every byte of the file that was written before survives anything. Thread-safe.
 *
 * Returns 0, or -1: those of fsync(2); each open file that could have relied on what failed is told once.
 */
int ufsync(int ufd);

/**
 * As fdatasync(2): as ufsync, without what is not needed to read the bytes again. Thread-safe. Returns as ufsync.
 */
int ufdatasync(int ufd);

/**
 * As ftruncate(2). Thread-safe. Returns 0, or -1: those of ftruncate(2).
 */
int uftruncate(int ufd, off_t len);

/**
 * As fallocate(2), with the modes 0, FALLOC_FL_KEEP_SIZE, and FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE. Thread-safe.
 *
 * Returns 0, or -1: those of fallocate(2); EOPNOTSUPP (another mode, or the file system below cannot).
 */
int ufallocate(int ufd, int mode, off_t off, off_t len);

/**
 * As fstat(2), with the size and times that what is in the cache makes. Thread-safe. Returns 0, or -1: those of fstat(2).
 */
int ufstat(int ufd, struct stat *st);

/**
 * As fchmod(2). Thread-safe.
 */
int ufchmod(int ufd, mode_t mode);

/**
 * As fchown(2). Thread-safe.
 */
int ufchown(int ufd, uid_t owner, gid_t group);

/**
 * As flock(2): locks of the open file, among all programs of the machine. A lock ends with uclose of the last duplicate. (Of a file that
 * the process could not open once more it may end a moment later, as that of a flock(2) on the descriptor of ufileno.) Thread-safe.
 */
int uflock(int ufd,
           int operation);

/**
 * As futimens(2), once what was written before is below, so that the times stay. Thread-safe.
 */
int ufutimens(int ufd, const struct timespec *times);

/**
 * Lends bytes of a file where the cache has them, without a copy: up to `n` from `off` on, at most to the end of their page of 4096
 * bytes and of the file. They stay there until uunpin, or until the last duplicate (udup) of this ufd is closed, and are only to be
 * read; what others write to the file meanwhile is seen in them. Where there is no page to lend (what is not cached) they are a copy.
 * Thread-safe.
 *
 * Returns how many bytes are at *p; 0 at the end of the file (*p is NULL, nothing is to be given back); or -1: those of upread;
 * EFAULT (p is NULL); ENOBUFS (too many pages are lent).
 */
ssize_t upin(int ufd,
             off_t off,
             size_t n,
             const void **p);

/**
 * Gives back what upin lent, of the same offset. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL (it is not lent, or not at that offset).
 */
int uunpin(int ufd, off_t off, const void *p);

/**
 * A view of a file as it is now, to be read: `n` bytes from any `off` on, in a row; behind the end of the file they are 0. It does not
 * change when the file does, stays when the file is closed, and never raises SIGBUS: it is a copy, in memory of its own. For pages of
 * the cache themselves see upin. Thread-safe.
 *
 * Returns its address, at the begin of a page, or NULL: those of upread; EINVAL (no bytes, or a negative offset); ENOMEM.
 */
const void *umap(int ufd,
                 off_t off,
                 size_t n);

/**
 * Gives back a view of umap. Thread-safe.
 *
 * Returns 0, or -1: EINVAL (there is none at this address).
 */
int uunmap(const void *p);

/**
 * As mmap(2), of a ufd (or -1): the kernel's mapping of the file below. It shows what uread would: what was written before is put below
 * first, and from then on every write to the file is below when it returns (write-through), whoever writes it through the cache. A file
 * that is mapped shared and for writing is used past the cache from then on: nobody else should be writing it at that moment. As with
 * mmap(2), a page behind the end of the file raises SIGBUS, also when another program has made the file shorter since; up to the end there
 * is none. Give it back with munmap(2). Thread-safe.
 *
 * Returns the address, or MAP_FAILED: EBADF; EROFS (to be written, and the cache is read-only); those of mmap(2) and ufsync.
 */
void *ummap(void *addr,
            size_t n,
            int prot,
            int flags,
            int ufd,
            off_t off);

/**
 * As stat(2), with the size and times that what is in the cache makes. Thread-safe. Returns 0, or -1: those of stat(2).
 */
int ustat(const char *path, struct stat *st);

/**
 * As lstat(2); see ustat. Thread-safe.
 */
int ulstat(const char *path, struct stat *st);

/**
 * As fstatat(2); see ustat. `dir` is a ufd or AT_FDCWD. Thread-safe.
 */
int ufstatat(int dir, const char *path, struct stat *st, int flags);

/**
 * As truncate(2). Thread-safe. Returns 0, or -1: those of truncate(2).
 */
int utruncate(const char *path, off_t len);

/**
 * As unlink(2). What the cache has of the file goes when nobody has it open any more. Thread-safe.
 */
int uunlink(const char *path);

/**
 * As unlinkat(2), AT_REMOVEDIR included; see uunlink. `dir` is a ufd or AT_FDCWD. Thread-safe.
 */
int uunlinkat(int dir, const char *path, int flags);

/**
 * As rename(2). Thread-safe.
 */
int urename(const char *from, const char *to);

/**
 * As renameat2(2). The directories are ufds or AT_FDCWD. Thread-safe.
 */
int urenameat2(int from_dir, const char *from, int to_dir, const char *to, uint32_t flags);

/**
 * As mkdir(2). Thread-safe.
 */
int umkdir(const char *path, mode_t mode);

/**
 * As rmdir(2). Thread-safe.
 */
int urmdir(const char *path);

/**
 * As opendir(3). Thread-safe.
 *
 * Returns the directory, or NULL: those of opendir(3); EMFILE.
 */
struct UDIR *uopendir(const char *path);

/**
 * As readdir(3). Thread-safe, but what is returned stays only until the next call for the same directory.
 *
 * Returns the next entry; or NULL: at the end, where errno stays, or EBADF and those of readdir(3).
 */
struct dirent *ureaddir(struct UDIR *dir);

/**
 * As rewinddir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int urewinddir(struct UDIR *dir);

/**
 * As closedir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int uclosedir(struct UDIR *dir);

/**
 * Makes room for asynchronous requests: `depth` of them under way or not reaped, 1 to 65536. Thread-safe.
 *
 * Returns it, or NULL: EINVAL (depth), EMFILE.
 */
struct UAIO *uaio_create(uint32_t depth);

/**
 * As uaio_create, for a program that promises more: `flags` are UAIO_ONE_THREAD, UAIO_WAITS and UAIO_POLLS, each with
 * those before it, or 0. Thread-safe.
 *
 * Returns it, or NULL: EINVAL (depth or flags), EMFILE.
 */
struct UAIO *uaio_create_with(uint32_t depth, uint32_t flags);

/**
 * Memory for reads of `aio`, at least `bytes` of it, page-aligned and zeroed. A page of 4096 bytes that is read whole, at multiples of
 * that in the file and in this memory, comes from the SSD without a copy; any other use of it is as of other memory. It is freed by
 * uaio_destroy and hs_shutdown. May be called again for more. Thread-safe.
 *
 * A drive that hangs is waited for up to 36 seconds. If it is given up then, reads into this memory fail with EIO, and the drive may still
 * write where they were to: that piece is not to be used any more.
 *
 * Returns it, or NULL: EBADF; EINVAL (no bytes); ENOMEM; EBUSY (it was promised to another thread).
 */
void *uaio_memory(struct UAIO *aio,
                  size_t bytes);

/**
 * Submits requests, which are copied: `count` of them, or as many as there is room for. They have no order among each other: who wants
 * one after the other waits for the first. Reads of what is in memory have ended when this returns, those of what is on the SSD are
 * its own work, many in one submission; the rest is done by threads of the library. Thread-safe, and cheapest if one thread alone
 * submits and reaps, above all if that was promised (UAIO_ONE_THREAD).
 *
 * The SSD hears of reads when the call that submits them returns, and one that works beside the program may have nothing to do until
 * then. Of 32 reads, calls of four at a time get a fifth to a quarter more done in a second there than one call of all. Where the
 * program's processor does the SSD's work (a loop device, a RAM disk) they get a tenth less done.
 *
 * Returns how many were taken, or -1 if none was: EBADF; EFAULT; EINVAL; EAGAIN (no room: uaio_reap first); EBUSY (it was promised to
 * another thread). One that is wrong ends the call, and those before it are taken.
 */
int uaio_submit(struct UAIO *aio,
                const struct uaio *requests,
                int count);

/**
 * Takes requests that have ended: at least `min`, unless fewer are there at all or `timeout` (NULL: none) is over, at most `max`.
 * `result` of each is what the call would have returned, or a negative errno. Thread-safe: each goes to one thread.
 *
 * Returns how many, or -1: EBADF; EFAULT; EINVAL (min, max or timeout); EBUSY (it was promised to another thread).
 */
int uaio_reap(struct UAIO *aio, struct uaio *done, int min, int max, const struct timespec *timeout);

/**
 * As uaio_submit of `count` requests, and then uaio_reap, for a program that waits when it has submitted: the device hears of the requests
 * with the wait, in one system call. All `count` are taken; one that is wrong has ended then, and its `result` says with which error. An
 * error of the call itself takes none. `requests` and `done` may be the same memory. Thread-safe, as uaio_submit.
 *
 * Returns how many have ended and are in `done`, or -1: EBADF; EFAULT; EINVAL (count, min, max or timeout); EAGAIN (no room for so many:
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
 * Waits for what is under way, and forgets it. Thread-safe. Returns 0, or -1: EBADF; EBUSY (it was promised to another thread, which
 * lives and has reads under way).
 */
int uaio_destroy(struct UAIO *aio);

/**
 * Opens a device. Thread-safe.
 *
 * `name`: the path of a file, a block device or an NVMe character device such as /dev/ng0n1; memory:SIZE such as memory:64MiB;
 * vfio-user:SOCKET or vfio-user:SOCKET/NAMESPACE, a drive in another process;
 * null; or fault:eio@FIRST-LAST:NAME, the device NAME whose blocks FIRST to LAST cannot be read or written, for tests.
 * `flags`: O_RDONLY or O_RDWR. A block device opened for writing is ours alone (O_EXCL): not one that is mounted.
 *
 * Returns the device, or NULL: ENOENT, EACCES, EBUSY and others of open(2); EINVAL (a name or flags that mean nothing, or a file
 * that cannot be a device: hs_error says why).
 */
struct NVMED *nvmed_open(const char *name, int flags);

/**
 * As nvmed_open, with options. Thread-safe.
 *
 * `options`: from nvmed_device_options_init and changed, or NULL. Returns as nvmed_open; also NULL with E2BIG (an option that
 * this version does not know) and ENOMEM.
 */
struct NVMED *nvmed_open_with(const char *name, int flags, const struct nvmed_device_options *options);

/**
 * Closes a device. Its queues have to be destroyed before. Buffers of nvmed_get_buffer stay valid until they are put back.
 * Thread-safe.
 *
 * Returns 0, or -1: EBADF; EBUSY (it has queues, and stays open).
 */
int nvmed_close(struct NVMED *device);

/**
 * What a device looks like. Thread-safe.
 *
 * Set info->size to sizeof *info before. Returns 0, or -1: EBADF, EFAULT (NULL), EINVAL (size).
 */
int nvmed_get_info(struct NVMED *device, struct nvmed_info *info);

/**
 * A feature of a device (NVMED_NO_CACHE, NVMED_CACHE_SIZE in pages of 4096 bytes, NVMED_CACHE_LAZY_INIT). Thread-safe.
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
 * Memory that the device reaches: requests over it need no copy. Zeroed, at the begin of a page. Thread-safe.
 *
 * `pages`: of 4096 bytes. A request's memory has to lie within one buffer. Any other memory works, too, at the price of a copy.
 *
 * Returns its address, or NULL: EBADF; EINVAL (no pages); ENOMEM (the device's buffer_bytes are used up: see nvmed_open_with).
 */
void *nvmed_get_buffer(struct NVMED *device, uint32_t pages);

/**
 * Gives a buffer of nvmed_get_buffer back, NULL does nothing. While requests use it, it is kept until the device has let go of it;
 * the program must not touch it any more in any case. Thread-safe.
 *
 * Returns 0, or -1: EINVAL (it is none, or was put back before).
 */
int nvmed_put_buffer(void *buffer);

/**
 * The paper's name for making a queue of a device, with options. Thread-safe.
 *
 * `options`: from nvmed_queue_options_init and changed, or NULL.
 *
 * Returns the queue, or NULL: EBADF; EINVAL (an option's value); E2BIG (an option that this version does not know); ENOTSUP and
 * others of the driver (hs_error says why); ENOMEM, EMFILE.
 */
struct NVMED_QUEUE *nvmed_create_queue(struct NVMED *device, const struct nvmed_queue_options *options);

/**
 * NVMeDirect's name for making a queue of a device, with NVMED_QUEUE_... flags. Thread-safe. Returns as nvmed_create_queue.
 */
struct NVMED_QUEUE *nvmed_queue_create(struct NVMED *device, int flags);

/**
 * Ends a queue. Its handles have to be destroyed before. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EBUSY (it has handles, and stays).
 */
int nvmed_queue_destroy(struct NVMED_QUEUE *queue);

/**
 * As nvmed_queue_destroy, named as nvmed_create_queue is.
 */
int nvmed_destroy_queue(struct NVMED_QUEUE *queue);

/**
 * The paper's name for making a handle on a queue, with options. Thread-safe.
 *
 * `options`: from nvmed_handle_options_init and changed, or NULL: direct and synchronous.
 *
 * A handle on a shared queue can be used by any threads at the same time; one on a dedicated queue by one thread at a time.
 *
 * Returns the handle, or NULL: EBADF; EINVAL (an option's value); E2BIG (an option that this version does not know); EBUSY (a
 * dedicated queue has a handle already); ENOTSUP (cached, and the device has no cache); ENOMEM.
 */
struct NVMED_HANDLE *nvmed_create_handle(struct NVMED_QUEUE *queue, const struct nvmed_handle_options *options);

/**
 * NVMeDirect's name for making a handle on a queue, with flags (NVMED_DIRECT, NVMED_CACHED, NVMED_SYNC, NVMED_ASYNC, NVMED_DURABLE,
 * NVMED_POLLED, NVMED_ZERO_COPY). Thread-safe. Returns as nvmed_create_handle.
 */
struct NVMED_HANDLE *nvmed_handle_create(struct NVMED_QUEUE *queue, int flags);

/**
 * Makes a handle on several queues of one device, all dedicated or none. Thread-safe.
 *
 * `count` queues, 1 to 256; `flags` as of nvmed_handle_create; `rule` chooses the queue of each request, NULL: one after the
 * other. Returns as nvmed_create_handle, also NULL with EFAULT (queues is NULL).
 */
struct NVMED_HANDLE *nvmed_handle_create_mq(struct NVMED_QUEUE *const *queues, int count, int flags, nvmed_mq_get_queue rule);

/**
 * Ends a handle. A cached one is flushed. What is in flight has a second to end; its memory is free then, or held until the device
 * lets go (memory of nvmed_get_buffer), and it is not reported. Thread-safe: calls of other threads end first or fail with EBADF.
 *
 * Returns 0, or -1: EBADF; or the errno of the flush: the handle is gone all the same, and what could not be written is lost.
 */
int nvmed_handle_destroy(struct NVMED_HANDLE *handle);

/**
 * As nvmed_handle_destroy, named as nvmed_create_handle is.
 */
int nvmed_destroy_handle(struct NVMED_HANDLE *handle);

/**
 * As nvmed_handle_destroy: NVMeDirect's name for handles on several queues.
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
 * Reads `n` bytes at `offset` (bytes from the device's begin) into `buf`. Thread-safe, as the handle is.
 *
 * A direct handle needs offset and n in multiples of the device's blocks; a cached one takes any. Memory of nvmed_get_buffer is
 * read into without a copy. On an asynchronous direct handle (NVMED_ASYNC) the read is only submitted.
 *
 * Returns the bytes read: fewer than n at the end of the device (0 there), or when an error came after some bytes; or -1:
 * EBADF, EFAULT, EINVAL (misaligned, negative), EIO (media error), ETIMEDOUT, ENODEV (the device is gone), ENOMEM (no room for a
 * copy), EAGAIN (asynchronous, and all requests are in use), EBUSY (another call is inside a dedicated handle).
 */
ssize_t nvmed_pread(struct NVMED_HANDLE *handle, void *buf, size_t n, off_t offset);

/**
 * Writes `n` bytes of `buf` at `offset` (bytes from the device's begin). Thread-safe, as the handle is.
 *
 * Alignment as of nvmed_pread. When it returns, the device has the bytes (direct, or NVMED_SYNC), or the cache has (cached), or the
 * request is submitted (direct and NVMED_ASYNC); they survive a loss of power after nvmed_flush, or at once with NVMED_DURABLE.
 *
 * Returns the bytes written: fewer than n at the end of the device; or -1: as nvmed_pread, also ENOSPC (behind the end) and EROFS.
 */
ssize_t nvmed_pwrite(struct NVMED_HANDLE *handle, const void *buf, size_t n, off_t offset);

/**
 * As nvmed_pread, at the handle's position, which moves on. Calls of several threads take turns. Thread-safe, as the handle is.
 */
ssize_t nvmed_read(struct NVMED_HANDLE *handle, void *buf, size_t n);

/**
 * As nvmed_pwrite, at the handle's position, which moves on. Calls of several threads take turns. Thread-safe, as the handle is.
 */
ssize_t nvmed_write(struct NVMED_HANDLE *handle, const void *buf, size_t n);

/**
 * Sets the handle's position for nvmed_read and nvmed_write: `whence` is SEEK_SET, SEEK_CUR or SEEK_END. Thread-safe.
 *
 * Returns the position in bytes from the device's begin, or -1: EBADF; EINVAL (before the begin, or no such whence).
 */
off_t nvmed_lseek(struct NVMED_HANDLE *handle, off_t offset, int whence);

/**
 * Makes safe from a loss of power what was written through this handle before: waits for what it has in flight, writes back the
 * dirty pages of the device's cache (cached handles), and has the device empty its own cache. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; the errno of the first failure (EIO, ENOSPC, ETIMEDOUT, ENODEV). A cached page that could not
 * be written, or that the device lost in a failed flush, stays dirty: each flush tries it again, and fails until it is written.
 * Each cached handle gets a failure of write-back in the background once, from its next flush. Failures of asynchronous requests are
 * reported by their events. EBUSY (another call is inside a dedicated handle).
 */
int nvmed_flush(struct NVMED_HANDLE *handle);

/**
 * Gives blocks back: their content is not needed any more, and is afterwards zeroes or what it was. Thread-safe, as the handle is.
 *
 * `offset` and `length` in bytes, multiples of the device's blocks. On an asynchronous direct handle it is only submitted.
 *
 * Returns 0, or -1: EBADF; EINVAL (misaligned, out of range); EOPNOTSUPP (the device cannot); EROFS; as nvmed_pwrite.
 */
int nvmed_discard(struct NVMED_HANDLE *handle, off_t offset, off_t length);

/**
 * Makes blocks zero, without their bytes being sent. Thread-safe, as the handle is. Arguments and results as of nvmed_discard.
 */
int nvmed_write_zeroes(struct NVMED_HANDLE *handle, off_t offset, off_t length);

/**
 * NVMeDirect's asynchronous read, of a context. The device hears of it with nvmed_aio_queue_submit, or when completions are asked
 * for. Thread-safe, as the handle is.
 *
 * Through a direct handle it is asynchronous; offset and length are multiples of the device's blocks and within the device, else
 * it ends with EINVAL. Through a cached one it is done before the call returns, and told of in the same way.
 *
 * Returns 0, or -1, and the context is not under way: EBADF; EFAULT; EINVAL; EAGAIN (all requests of the handle, or all memory for
 * copies, are in use); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_aio_read(struct NVMED_AIO_CTX *context);

/**
 * NVMeDirect's asynchronous write, of a context. As nvmed_aio_read.
 */
int nvmed_aio_write(struct NVMED_AIO_CTX *context);

/**
 * Tells the device of all that was submitted: one doorbell, one system call. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
 */
int nvmed_aio_queue_submit(struct NVMED_HANDLE *handle);

/**
 * Ends the contexts whose requests have ended, and calls their callbacks, in this thread. Does not wait. Thread-safe, as the handle
 * is: each is ended by one thread.
 *
 * Returns how many contexts were ended, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
 */
int nvmed_aio_handle_complete(struct NVMED_HANDLE *handle);

/**
 * Submits a request; its end is told by nvmed_poll or nvmed_wait as a value. The device hears of it with nvmed_aio_queue_submit, or
 * when completions are asked for. Thread-safe, as the handle is.
 *
 * `io`: from nvmed_io_init and changed; it is copied. `request` (or NULL): is given the number of the request. Requests under way
 * at the same time have no order among each other. Cached handles as with nvmed_aio_read.
 *
 * Returns 0, or -1: EBADF; EFAULT; EINVAL; E2BIG (a field that this version does not know); EAGAIN (all requests of the handle, or all
 * memory for copies, are in use); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_submit(struct NVMED_HANDLE *handle,
                 const struct nvmed_io *io,
                 uint64_t *request);

/**
 * What has ended, without waiting: at most `max` events. Contexts of NVMeDirect's calls that have ended are ended, too, with their
 * callbacks. Thread-safe, as the handle is: each event goes to one thread.
 *
 * Returns the number of events, or -1: EBADF; EFAULT; EINVAL (max); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_poll(struct NVMED_HANDLE *handle, struct nvmed_event *events, int max);

/**
 * As nvmed_poll, but waits until something has ended, nothing is in flight, or `timeout_ms` are over; negative: for ever.
 *
 * Returns as nvmed_poll: 0 also when only contexts have ended, nothing is in flight, or the time is over.
 */
int nvmed_wait(struct NVMED_HANDLE *handle, struct nvmed_event *events, int max, int timeout_ms);

/**
 * Asks for a request to be given up: of nvmed_submit, or the `request` of a context. It ends all the same, with ECANCELED, or as it
 * ended. Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; ENOENT (it has ended already); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_cancel(struct NVMED_HANDLE *handle, uint64_t request);

/**
 * Requests of the handle that have not ended. Thread-safe, as the handle is.
 *
 * Returns their number, or -1: EBADF; EBUSY (another call is inside a dedicated handle).
 */
int nvmed_in_flight(struct NVMED_HANDLE *handle);

/**
 * The parameter's number (NVMED_PARAM_...) by its name, such as "timeout_ms". Thread-safe.
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
 * The value of a parameter of a handle (NVMED_PARAM_...). Thread-safe, as the handle is.
 *
 * Returns 0, or -1: EBADF; ENOENT (no such parameter); EFAULT (value is NULL); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_get_param(struct NVMED_HANDLE *handle, uint32_t key, uint64_t *value);

/**
 * NVMeDirect's features of a handle: HANDLE_DIRECT_IO, HANDLE_SYNC_IO, HANDLE_HINT_DMEM, HANDLE_INTERRUPT. Thread-safe, as the
 * handle is.
 *
 * Returns 0 or 1, or -1: EBADF; EINVAL (no such feature); EBUSY (another call is inside a dedicated handle).
 */
int nvmed_handle_feature_get(struct NVMED_HANDLE *handle, int feature);

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
 * Sets how many queues a user may have. Quotas are kept by the broker (hotshelf queue grant); a device that a program opens by
 * itself has none. Thread-safe.
 *
 * Returns -1: EBADF; ENOTSUP (a device without quotas).
 */
int nvmed_set_user_quota(struct NVMED *device, uid_t uid, uint32_t queues, uint32_t *max, uint32_t *used);

/**
 * How many queues a user may have (`max`), and has (`used`). As nvmed_set_user_quota. Thread-safe.
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
 * Makes an empty file system in a file or on a block device; `options`: how, NULL: in what is there, if that holds nothing. Its top
 * directory belongs to the effective user and group of the process. Thread-safe.
 *
 * Returns 0, or -1: EEXIST (something is there, hs_error says what: NVMEDFS_FORCE overwrites it); EBUSY (it is in use); EINVAL
 * (sizes that do not go together, options); E2BIG; those of open(2).
 */
int nvmedfs_mkfs(const char *device, const struct nvmedfs_mkfs_options *options);

/**
 * Fills a struct nvmedfs_options with defaults. Thread-safe.
 *
 * `size` is sizeof *options. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmedfs_options_init(struct nvmedfs_options *options, size_t size);

/**
 * Mounts the file system in an image: a file or a block device by its path, an NVMe character node, or `memory:SIZE` (with
 * NVMEDFS_CREATE). What a crash left is put right first: whatever was made durable is there, of a transaction all or nothing. Any
 * number of images can be mounted at a time, each by one process. Thread-safe.
 *
 * `options`: how; NULL: nvmedfs_options_init's. A new file belongs to the effective user and group of the process as they are now;
 * its umask is taken over now (nvmedfs_umask).
 *
 * Returns it, or NULL: EBUSY (another process, or this one, has the image in use: hs_error says which); EINVAL (no file system of
 * ours, options); E2BIG (an option of a later version); EIO (damaged); ENOMEM (`memory_bytes` is too little); ENOSPC; EMFILE; those of
 * open(2).
 */
struct NVMEDFS *nvmedfs_mount(const char *device,
                              const struct nvmedfs_options *options);

/**
 * Unmounts: writes everything back, and marks the image as clean. hs_shutdown and exit do it, too, after closing what is open; a
 * process that is killed loses what was not synced, as by a loss of power. Thread-safe.
 *
 * Returns 0, or -1: EBUSY (files, directories, transactions or asynchronous requests are open on it, and it stays mounted); EBADF;
 * EIO, ENOSPC (not everything could be written; it is unmounted all the same).
 */
int nvmedfs_unmount(struct NVMEDFS *fs);

/**
 * As syncfs(2): everything that was done in the file system before survives anything. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EIO, ENOSPC.
 */
int nvmedfs_sync(struct NVMEDFS *fs);

/**
 * As umask(2), for files that are made in this file system. Thread-safe.
 *
 * Returns the umask before, or -1 (of mode_t): EBADF.
 */
mode_t nvmedfs_umask(struct NVMEDFS *fs, mode_t mask);

/**
 * As statvfs(3), of the whole file system. Thread-safe. Returns 0, or -1: EBADF, EFAULT.
 */
int nvmedfs_statvfs(struct NVMEDFS *fs, struct statvfs *buf);

/**
 * What the file system has done and how full it is. Set `size` to sizeof(struct nvmedfs_stats) first. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EFAULT; EINVAL (size).
 */
int nvmedfs_get_stats(struct NVMEDFS *fs, struct nvmedfs_stats *to);

/**
 * As open(2), of the file system's own files: O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_CREAT, O_DIRECTORY, O_DSYNC, O_EXCL, O_NOATIME,
 * O_NOFOLLOW, O_PATH, O_SYNC, O_TMPFILE, O_TRUNC and O_DIRECT; others change nothing. A path counts from the root, with a slash
 * at its begin or without. The third argument is the mode of a new file (O_CREAT, O_TMPFILE). Thread-safe.
 *
 * O_DIRECT: reads come from the device and writes are on it when the call returns, and neither takes a place in the cache. What others
 * have written through the cache is seen, and the other way round. Offset, length and memory are multiples of 512 (EINVAL); of 4096
 * nothing is read or written that was not asked for. Files of up to 3 KiB are part of the metadata, which is in memory. A write is
 * safe from a loss of power after nvmedfs_fsync, as any other.
 *
 * Returns a file number: the lowest free one from 3 on, of a table of its own. Or -1: those of open(2); ENXIO (a pipe, socket or
 * device: they have names and attributes here, and no content); EROFS.
 */
int nvmedfs_open(struct NVMEDFS *fs,
                 const char *path,
                 int flags,
                 ...);

/**
 * As openat(2); see nvmedfs_open. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_openat(int dir, const char *path, int flags, ...);

/**
 * As creat(2); see nvmedfs_open. Thread-safe.
 */
int nvmedfs_creat(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * As close(2). What was written is brought to the device in time; nvmedfs_fsync makes it safe. Calls of other threads with this
 * number that are under way go on. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EIO, ENOSPC (of earlier writes, which nobody was told of; the number is closed all the same).
 */
int nvmedfs_close(int fd);

/**
 * As dup(2): both share the file's position and flags. Thread-safe.
 *
 * Returns the lowest free number from 3 on, or -1: EBADF, EMFILE.
 */
int nvmedfs_dup(int fd);

/**
 * As dup2(2). Thread-safe.
 *
 * Returns `to`, or -1: EBADF (also: `to` is below 3).
 */
int nvmedfs_dup2(int fd, int to);

/**
 * As fcntl(2): F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD and F_SETFD (numbers are not passed on by exec), F_GETFL, F_SETFL (O_APPEND, O_DIRECT,
 * O_NONBLOCK). F_GETLK, F_SETLK and F_SETLKW: record locks of a process never meet, as one process has the image; nvmedfs_flock is
 * for threads. Thread-safe.
 *
 * Returns what fcntl(2) would, or -1: EBADF; EINVAL (another command).
 */
int nvmedfs_fcntl(int fd,
                  int command,
                  ...);

/**
 * As read(2). Thread-safe: reads and writes at the file's position come one after the other.
 *
 * Returns the number of bytes, 0 at the end of the file, or -1: those of read(2); EFAULT (`buf` is NULL); EIO (the device failed, or
 * what is on it is not what was written).
 */
ssize_t nvmedfs_read(int fd,
                     void *buf,
                     size_t n);

/**
 * As write(2): seen by all at once, and safe from a loss of power after nvmedfs_fsync. Thread-safe.
 *
 * Returns the number of bytes, or -1: those of write(2); EFAULT (`buf` is NULL).
 */
ssize_t nvmedfs_write(int fd, const void *buf, size_t n);

/**
 * As pread(2). Thread-safe. Returns as nvmedfs_read; also EINVAL (a negative offset).
 */
ssize_t nvmedfs_pread(int fd, void *buf, size_t n, off_t off);

/**
 * As pwrite(2); with O_APPEND at the end of the file, as Linux has it. Thread-safe. Returns as nvmedfs_write; also EINVAL.
 */
ssize_t nvmedfs_pwrite(int fd, const void *buf, size_t n, off_t off);

/**
 * As readv(2). Thread-safe. Returns as nvmedfs_read; also EINVAL (a count that is negative or above 1024).
 */
ssize_t nvmedfs_readv(int fd, const struct iovec *iov, int count);

/**
 * As writev(2): one write, nobody's comes in between. Thread-safe. Returns as nvmedfs_write; also EINVAL.
 */
ssize_t nvmedfs_writev(int fd, const struct iovec *iov, int count);

/**
 * As preadv(2). Thread-safe. Returns as nvmedfs_readv.
 */
ssize_t nvmedfs_preadv(int fd, const struct iovec *iov, int count, off_t off);

/**
 * As pwritev(2). Thread-safe. Returns as nvmedfs_writev.
 */
ssize_t nvmedfs_pwritev(int fd, const struct iovec *iov, int count, off_t off);

/**
 * As lseek(2), SEEK_DATA and SEEK_HOLE included. Thread-safe.
 *
 * Returns the new position, or -1: those of lseek(2).
 */
off_t nvmedfs_lseek(int fd, off_t off, int whence);

/**
 * As fsync(2): when it returns 0, the file with its name, and every byte that was written before, survives anything. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EIO, ENOSPC (what was written may be lost with the power; each open file is told once of what failed).
 */
int nvmedfs_fsync(int fd);

/**
 * As fdatasync(2), and here the same as nvmedfs_fsync: times cost nothing more. Thread-safe. Returns as nvmedfs_fsync.
 */
int nvmedfs_fdatasync(int fd);

/**
 * As syncfs(2), of the file's file system; see nvmedfs_sync. Thread-safe. Returns 0, or -1: EBADF; EIO, ENOSPC.
 */
int nvmedfs_syncfs(int fd);

/**
 * As ftruncate(2). Thread-safe. Returns 0, or -1: those of ftruncate(2).
 */
int nvmedfs_ftruncate(int fd, off_t len);

/**
 * As fallocate(2), with the modes 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE with it or without, and FALLOC_FL_PUNCH_HOLE with it.
 * Thread-safe.
 *
 * Returns 0, or -1: those of fallocate(2); EOPNOTSUPP (another mode).
 */
int nvmedfs_fallocate(int fd,
                      int mode,
                      off_t off,
                      off_t len);

/**
 * As posix_fadvise(3), but with -1 and errno: POSIX_FADV_NORMAL, _SEQUENTIAL (as much as may be is read ahead), _RANDOM (nothing is),
 * _WILLNEED (brought into the cache, up to half of it), _DONTNEED (written back, and the cache forgets it), _NOREUSE (nothing).
 * Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL; EIO.
 */
int nvmedfs_fadvise(int fd,
                    off_t off,
                    off_t len,
                    int advice);

/**
 * As copy_file_range(2), also between two file systems of the library. `flags` is 0. Thread-safe.
 *
 * Returns the number of bytes, 0 at the end of the first file, or -1: those of copy_file_range(2).
 */
ssize_t nvmedfs_copy_file_range(int fd_in, off_t *off_in, int fd_out, off_t *off_out, size_t n, uint32_t flags);

/**
 * As mkdir(2). Thread-safe. Returns 0, or -1: those of mkdir(2).
 */
int nvmedfs_mkdir(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * As mkdirat(2). `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_mkdirat(int dir, const char *path, mode_t mode);

/**
 * As mknod(2): also pipes, sockets and devices, which have names and attributes here, and cannot be opened. Thread-safe.
 *
 * Returns 0, or -1: those of mknod(2).
 */
int nvmedfs_mknod(struct NVMEDFS *fs, const char *path, mode_t mode, dev_t device);

/**
 * As mknodat(2); see nvmedfs_mknod. Thread-safe.
 */
int nvmedfs_mknodat(int dir, const char *path, mode_t mode, dev_t device);

/**
 * As mkfifo(3); see nvmedfs_mknod. Thread-safe.
 */
int nvmedfs_mkfifo(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * As mkfifoat(3); see nvmedfs_mknod. Thread-safe.
 */
int nvmedfs_mkfifoat(int dir, const char *path, mode_t mode);

/**
 * As readlink(2): no zero byte follows. Thread-safe. Returns the number of bytes, or -1: those of readlink(2).
 */
ssize_t nvmedfs_readlink(struct NVMEDFS *fs, const char *path, char *buf, size_t n);

/**
 * As readlinkat(2). Thread-safe. Returns as nvmedfs_readlink.
 */
ssize_t nvmedfs_readlinkat(int dir, const char *path, char *buf, size_t n);

/**
 * As unlink(2). What is open stays until it is closed. Thread-safe. Returns 0, or -1: those of unlink(2).
 */
int nvmedfs_unlink(struct NVMEDFS *fs, const char *path);

/**
 * As unlinkat(2), AT_REMOVEDIR included. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_unlinkat(int dir, const char *path, int flags);

/**
 * As rmdir(2). Thread-safe. Returns 0, or -1: those of rmdir(2).
 */
int nvmedfs_rmdir(struct NVMEDFS *fs, const char *path);

/**
 * As symlink(2): `path` becomes a link to `target`. Thread-safe. Returns 0, or -1: those of symlink(2).
 */
int nvmedfs_symlink(struct NVMEDFS *fs, const char *target, const char *path);

/**
 * As symlinkat(2). Thread-safe. Returns as nvmedfs_symlink.
 */
int nvmedfs_symlinkat(const char *target, int dir, const char *path);

/**
 * As rename(2); a directory of any size takes the same short time. Thread-safe. Returns 0, or -1: those of rename(2).
 */
int nvmedfs_rename(struct NVMEDFS *fs, const char *from, const char *to);

/**
 * As renameat2(2), with RENAME_NOREPLACE and RENAME_EXCHANGE. Thread-safe. Returns 0, or -1: those of renameat2(2).
 */
int nvmedfs_renameat2(int from_dir, const char *from, int to_dir, const char *to, uint32_t flags);

/**
 * As link(2). Thread-safe. Returns 0, or -1: those of link(2).
 */
int nvmedfs_link(struct NVMEDFS *fs, const char *from, const char *to);

/**
 * As linkat(2), with AT_SYMLINK_FOLLOW, and AT_EMPTY_PATH, which gives a file of O_TMPFILE (`from_dir`) its name. Thread-safe.
 *
 * Returns 0, or -1: those of linkat(2).
 */
int nvmedfs_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);

/**
 * As realpath(3), with memory for the answer as long as PATH_MAX (4096): from the file system's root. Thread-safe.
 *
 * Returns `resolved`, or NULL: those of realpath(3); EFAULT (`resolved` is NULL); ENAMETOOLONG.
 */
char *nvmedfs_realpath(struct NVMEDFS *fs, const char *path, char *resolved);

/**
 * As stat(2). Thread-safe. Returns 0, or -1: those of stat(2).
 */
int nvmedfs_stat(struct NVMEDFS *fs, const char *path, struct stat *st);

/**
 * As lstat(2). Thread-safe. Returns 0, or -1: those of lstat(2).
 */
int nvmedfs_lstat(struct NVMEDFS *fs, const char *path, struct stat *st);

/**
 * As fstatat(2), with AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_fstatat(int dir, const char *path, struct stat *st, int flags);

/**
 * As fstat(2). Thread-safe. Returns 0, or -1: EBADF, EFAULT.
 */
int nvmedfs_fstat(int fd, struct stat *st);

/**
 * As statx(2) from the root: also when a file was made, and what O_DIRECT needs. `mask` is not looked at: all is told. Thread-safe.
 *
 * Returns 0, or -1: those of statx(2).
 */
int nvmedfs_statx(struct NVMEDFS *fs, const char *path, int flags, uint32_t mask, struct statx *st);

/**
 * As fstatvfs(3), of the file's file system. Thread-safe. Returns 0, or -1: EBADF, EFAULT.
 */
int nvmedfs_fstatvfs(int fd, struct statvfs *buf);

/**
 * As access(2); without NVMEDFS_CHECK whatever is there may be used. Thread-safe. Returns 0, or -1: those of access(2).
 */
int nvmedfs_access(struct NVMEDFS *fs, const char *path, int mode);

/**
 * As faccessat(2); see nvmedfs_access. `flags`: AT_EACCESS changes nothing. Thread-safe.
 */
int nvmedfs_faccessat(int dir, const char *path, int mode, int flags);

/**
 * As chmod(2). Thread-safe. Returns 0, or -1: those of chmod(2).
 */
int nvmedfs_chmod(struct NVMEDFS *fs, const char *path, mode_t mode);

/**
 * As fchmod(2). Thread-safe. Returns 0, or -1: those of fchmod(2).
 */
int nvmedfs_fchmod(int fd, mode_t mode);

/**
 * As fchmodat(2); AT_SYMLINK_NOFOLLOW is EOPNOTSUPP for a symbolic link. Thread-safe.
 */
int nvmedfs_fchmodat(int dir, const char *path, mode_t mode, int flags);

/**
 * As chown(2). Thread-safe. Returns 0, or -1: those of chown(2).
 */
int nvmedfs_chown(struct NVMEDFS *fs, const char *path, uid_t owner, gid_t group);

/**
 * As lchown(2). Thread-safe. Returns 0, or -1: those of lchown(2).
 */
int nvmedfs_lchown(struct NVMEDFS *fs, const char *path, uid_t owner, gid_t group);

/**
 * As fchown(2). Thread-safe. Returns 0, or -1: those of fchown(2).
 */
int nvmedfs_fchown(int fd, uid_t owner, gid_t group);

/**
 * As fchownat(2), with AT_SYMLINK_NOFOLLOW. Thread-safe.
 */
int nvmedfs_fchownat(int dir, const char *path, uid_t owner, gid_t group, int flags);

/**
 * As utimensat(2) from the root, with AT_SYMLINK_NOFOLLOW. Thread-safe. Returns 0, or -1: those of utimensat(2).
 */
int nvmedfs_utimens(struct NVMEDFS *fs, const char *path, const struct timespec *times, int flags);

/**
 * As utimensat(2), with AT_SYMLINK_NOFOLLOW. `dir` is the number of an open directory. Thread-safe.
 */
int nvmedfs_utimensat(int dir, const char *path, const struct timespec *times, int flags);

/**
 * As futimens(2). Thread-safe. Returns 0, or -1: those of futimens(2).
 */
int nvmedfs_futimens(int fd, const struct timespec *times);

/**
 * As truncate(2). Thread-safe. Returns 0, or -1: those of truncate(2).
 */
int nvmedfs_truncate(struct NVMEDFS *fs, const char *path, off_t len);

/**
 * As setxattr(2), with XATTR_CREATE and XATTR_REPLACE; names begin with user., trusted. or security. Thread-safe.
 *
 * Returns 0, or -1: those of setxattr(2); ENOSPC (also: all of a file are more than 4 KiB).
 */
int nvmedfs_setxattr(struct NVMEDFS *fs, const char *path, const char *name, const void *value, size_t n, int flags);

/**
 * As lsetxattr(2); see nvmedfs_setxattr. Thread-safe.
 */
int nvmedfs_lsetxattr(struct NVMEDFS *fs, const char *path, const char *name, const void *value, size_t n, int flags);

/**
 * As fsetxattr(2); see nvmedfs_setxattr. Thread-safe.
 */
int nvmedfs_fsetxattr(int fd, const char *name, const void *value, size_t n, int flags);

/**
 * As getxattr(2) (with `n` 0 only how long it is). Thread-safe. Returns the number of bytes, or -1: those of getxattr(2).
 */
ssize_t nvmedfs_getxattr(struct NVMEDFS *fs, const char *path, const char *name, void *value, size_t n);

/**
 * As lgetxattr(2); see nvmedfs_getxattr. Thread-safe.
 */
ssize_t nvmedfs_lgetxattr(struct NVMEDFS *fs, const char *path, const char *name, void *value, size_t n);

/**
 * As fgetxattr(2); see nvmedfs_getxattr. Thread-safe.
 */
ssize_t nvmedfs_fgetxattr(int fd, const char *name, void *value, size_t n);

/**
 * As listxattr(2): each name with a zero byte behind it; with `n` 0 only how long they are. Thread-safe.
 *
 * Returns the number of bytes, or -1: those of listxattr(2).
 */
ssize_t nvmedfs_listxattr(struct NVMEDFS *fs, const char *path, char *list, size_t n);

/**
 * As llistxattr(2); see nvmedfs_listxattr. Thread-safe.
 */
ssize_t nvmedfs_llistxattr(struct NVMEDFS *fs, const char *path, char *list, size_t n);

/**
 * As flistxattr(2); see nvmedfs_listxattr. Thread-safe.
 */
ssize_t nvmedfs_flistxattr(int fd, char *list, size_t n);

/**
 * As removexattr(2). Thread-safe. Returns 0, or -1: those of removexattr(2).
 */
int nvmedfs_removexattr(struct NVMEDFS *fs, const char *path, const char *name);

/**
 * As lremovexattr(2); see nvmedfs_removexattr. Thread-safe.
 */
int nvmedfs_lremovexattr(struct NVMEDFS *fs, const char *path, const char *name);

/**
 * As fremovexattr(2); see nvmedfs_removexattr. Thread-safe.
 */
int nvmedfs_fremovexattr(int fd, const char *name);

/**
 * As opendir(3). Thread-safe. Returns the directory, or NULL: those of opendir(3); EMFILE.
 */
struct NVMEDFS_DIR *nvmedfs_opendir(struct NVMEDFS *fs, const char *path);

/**
 * As fdopendir(3), but the number stays open, with a position of its own. Thread-safe. Returns as nvmedfs_opendir.
 */
struct NVMEDFS_DIR *nvmedfs_fdopendir(int fd);

/**
 * As readdir(3): what was there all the time is told once, whatever comes and goes meanwhile. Thread-safe, but what is returned stays
 * only until the next call for the same directory.
 *
 * Returns the next entry; or NULL: at the end, where errno stays, or EBADF, ENOENT (the directory was removed), EIO.
 */
struct dirent *nvmedfs_readdir(struct NVMEDFS_DIR *dir);

/**
 * As telldir(3). Thread-safe. Returns a place for nvmedfs_seekdir, or -1: EBADF.
 */
long nvmedfs_telldir(struct NVMEDFS_DIR *dir);

/**
 * As seekdir(3), to a place that nvmedfs_telldir told of this directory. Thread-safe. Returns 0, or -1: EBADF, EINVAL.
 */
int nvmedfs_seekdir(struct NVMEDFS_DIR *dir, long place);

/**
 * As rewinddir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_rewinddir(struct NVMEDFS_DIR *dir);

/**
 * As closedir(3). Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_closedir(struct NVMEDFS_DIR *dir);

/**
 * As flock(2): LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB: locks of the open file, which duplicates of its number share, among those of
 * this process (no other one has the image). Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL; EWOULDBLOCK (LOCK_NB, and another has it).
 */
int nvmedfs_flock(int fd,
                  int operation);

/**
 * Begins a transaction: changes of any files of the file system, by nvmedfs_tx_..., that happen together or not at all, also when the
 * power goes or the process is killed in the middle. Until nvmedfs_commit they are copied and kept in memory, and nobody sees them, not
 * even reads of the same thread. Other calls on the same files are no part of it. Thread-safe, as are all calls with it.
 *
 * First the files get their content; then names and attributes are changed, in the order of the calls, each as what was before it has
 * made them. Paths count from the root. While a transaction that changes names is committed, others wait for the name space.
 *
 * Returns it, or NULL: EBADF; EROFS; EMFILE.
 */
struct NVMEDFS_TX *nvmedfs_begin(struct NVMEDFS *fs);

/**
 * As nvmedfs_pwrite, when the transaction is committed. Thread-safe.
 *
 * Returns `n`, or -1: EBADF (also: not open for writing); EFBIG; EFAULT; EINVAL; EXDEV (a file of another file system).
 */
ssize_t nvmedfs_tx_pwrite(struct NVMEDFS_TX *tx, int fd, const void *buf, size_t n, off_t off);

/**
 * Writes at the end of the file as it is when the transaction is committed. Thread-safe. Returns as nvmedfs_tx_pwrite.
 */
ssize_t nvmedfs_tx_append(struct NVMEDFS_TX *tx, int fd, const void *buf, size_t n);

/**
 * As nvmedfs_ftruncate, when the transaction is committed. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EFBIG; EINVAL; EXDEV. The commit fails with EOPNOTSUPP if it makes a file in many pieces shorter.
 */
int nvmedfs_tx_ftruncate(struct NVMEDFS_TX *tx, int fd, off_t len);

/**
 * Gives a file another name, or the first if it has none (O_TMPFILE), when the transaction is committed. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EXDEV; EFAULT. The commit tells the rest: EEXIST, ENOENT, ENOTDIR, EACCES, EMLINK, EPERM (a directory).
 */
int nvmedfs_tx_link(struct NVMEDFS_TX *tx, int fd, const char *path);

/**
 * Makes a file that gets this name when the transaction is committed, and is gone if it is not (O_TMPFILE and nvmedfs_tx_link): it is
 * written by nvmedfs_tx_pwrite or by nvmedfs_write. `flags`: O_WRONLY or O_RDWR, with others of nvmedfs_open but O_CREAT. The directory
 * may be one that the transaction makes: the file gets its group as in the nearest one that is there. Thread-safe.
 *
 * Returns a file number, or -1: those of nvmedfs_open and nvmedfs_tx_link.
 */
int nvmedfs_tx_creat(struct NVMEDFS_TX *tx,
                     const char *path,
                     int flags,
                     mode_t mode);

/**
 * Ends the transaction: when this returns 0, all of it has happened and survives anything. Each block of metadata is written once. The
 * NVMEDFS_TX is gone in any case. Thread-safe.
 *
 * Returns 0, or -1: EBADF; those of the calls in it (ENOSPC, EFBIG, EEXIST ...): nothing of it has happened; EIO (it could not be made
 * durable: it is seen, and after a loss of power all of it is there or nothing; every open file of it is told by its next fsync);
 * EINVAL (more changes than one transaction can have).
 */
int nvmedfs_commit(struct NVMEDFS_TX *tx);

/**
 * Ends the transaction without anything having happened. Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_abort(struct NVMEDFS_TX *tx);

/**
 * As nvmedfs_mkdir, when the transaction is committed. What comes behind it in the same transaction finds the directory. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EFAULT. The commit tells the rest: those of nvmedfs_mkdir.
 */
int nvmedfs_tx_mkdir(struct NVMEDFS_TX *tx,
                     const char *path,
                     mode_t mode);

/**
 * As nvmedfs_symlink, when the transaction is committed. Thread-safe. Returns as nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_symlink(struct NVMEDFS_TX *tx, const char *target, const char *path);

/**
 * As nvmedfs_unlink, when the transaction is committed. Who has the file open keeps it. Thread-safe. Returns as nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_unlink(struct NVMEDFS_TX *tx, const char *path);

/**
 * As nvmedfs_rmdir, when the transaction is committed: what is in the directory may go earlier in the same transaction. Thread-safe.
 * Returns as nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_rmdir(struct NVMEDFS_TX *tx,
                     const char *path);

/**
 * As renameat2(2) from `from` to `to`, both from the root, when the transaction is committed: also of directories of any size.
 * `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE. Thread-safe. Returns as nvmedfs_tx_mkdir.
 */
int nvmedfs_tx_rename(struct NVMEDFS_TX *tx, const char *from, const char *to, uint32_t flags);

/**
 * As nvmedfs_fchmod, when the transaction is committed; `fd` may be of a directory, too, or opened with O_PATH. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EXDEV. The commit tells the rest: EPERM; ENOENT (a directory that was removed).
 */
int nvmedfs_tx_fchmod(struct NVMEDFS_TX *tx, int fd, mode_t mode);

/**
 * As nvmedfs_fchown, when the transaction is committed. Thread-safe. Returns as nvmedfs_tx_fchmod.
 */
int nvmedfs_tx_fchown(struct NVMEDFS_TX *tx, int fd, uid_t owner, gid_t group);

/**
 * As nvmedfs_futimens, when the transaction is committed. Thread-safe. Returns as nvmedfs_tx_fchmod; also EINVAL.
 */
int nvmedfs_tx_futimens(struct NVMEDFS_TX *tx, int fd, const struct timespec *times);

/**
 * Fills a struct nvmedfs_io with its size, AT_FDCWD for directories, and zeroes. Thread-safe.
 *
 * `size` is sizeof *io. Returns 0, or -1: EFAULT (NULL), EINVAL (no such size).
 */
int nvmedfs_io_init(struct nvmedfs_io *io, size_t size);

/**
 * Makes room for asynchronous requests of a file system: `depth` of them under way or not taken, 1 to 65536. Thread-safe.
 *
 * Returns it, or NULL: EBADF; EINVAL (depth); EMFILE.
 */
struct NVMEDFS_AIO *nvmedfs_aio_create(struct NVMEDFS *fs, uint32_t depth);

/**
 * Submits requests, which are copied: `count` of them, or as many as there is room for. Reads have no order; those of what is in memory
 * have ended when this returns. All others are carried out in the order in which they were submitted, by one thread for all of the file
 * system: a write is seen by the write, sync, rename or commit behind it. What waits at the same time is brought to the device in one
 * flight and made durable by one sync, also writes of files that were opened with O_SYNC. Ends come in any order. Thread-safe.
 *
 * Returns how many were taken, or -1 if none was: EBADF; EFAULT; EINVAL; EXDEV (a file of another file system); EAGAIN (no room:
 * nvmedfs_aio_reap first). One that is wrong ends the call, and those before it are taken.
 */
int nvmedfs_aio_submit(struct NVMEDFS_AIO *aio,
                       const struct nvmedfs_io *requests,
                       int count);

/**
 * Takes requests that have ended, and calls their callbacks: at least `min`, unless fewer are there at all or `timeout` (NULL: none)
 * is over, at most `max`. With `min` 0 it only looks. Thread-safe: each goes to one thread.
 *
 * Returns how many, or -1: EBADF; EINVAL (min, max or timeout).
 */
int nvmedfs_aio_reap(struct NVMEDFS_AIO *aio,
                     struct nvmedfs_event *done,
                     int min,
                     int max,
                     const struct timespec *timeout);

/**
 * Waits until all that was submitted has ended, or `timeout` (NULL: none) is over; takes all, and calls their callbacks. As the futures
 * of NVMeDFS: one wait for many requests, which fails if one of them has failed. Thread-safe.
 *
 * Returns 0, or -1: EBADF; EINVAL (timeout); ETIMEDOUT; the errno of the first that failed since the last call, with its sentence,
 * whoever has taken it.
 */
int nvmedfs_aio_wait(struct NVMEDFS_AIO *aio,
                     const struct timespec *timeout);

/**
 * A descriptor for poll(2) and its like, readable as long as requests have ended and were not taken. It is the library's: not to be
 * read or closed, and gone with the NVMEDFS_AIO. Thread-safe.
 *
 * Returns the descriptor, or -1: EBADF.
 */
int nvmedfs_aio_fileno(struct NVMEDFS_AIO *aio);

/**
 * Waits for what is under way, and forgets it; no callbacks are called. Thread-safe. Returns 0, or -1: EBADF.
 */
int nvmedfs_aio_destroy(struct NVMEDFS_AIO *aio);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOTSHELF_H */
