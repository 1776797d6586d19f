/* Raw device I/O with hotshelf.h alone: two queues, three handles; cached, direct, synchronous and asynchronous I/O; flush and
 * discard; and what a device with bad blocks says.
 *
 *   raw_device DEVICE      everything from its byte 1 MiB to 2 MiB is overwritten
 *
 * The name of a device with bad blocks is made from the same one: fault:eio@LBA-LBA:DEVICE. Prints "all is well" and exits 0. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hotshelf.h>

#define FIRST (1 << 20) /* byte where our part of the device begins */
#define CHUNK 65536
#define CHUNKS 16

static void die(const char *what)
{
    fprintf(stderr, "%s: %s (%s)\n", what, hs_error(), strerror(errno));
    exit(1);
}

static void check(int good, const char *what)
{
    if (!good)
        die(what);
}

static void fill(unsigned char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(seed * 31 + i * 7 + i / 4096);
}

static int is_filled(const unsigned char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (unsigned char)(seed * 31 + i * 7 + i / 4096))
            return 0;
    return 1;
}

/* Direct and synchronous, with device memory and with our own memory. */
static void synchronous(NVMED *device, NVMED_HANDLE *handle)
{
    unsigned char *lent = (unsigned char *)nvmed_get_buffer(device, CHUNK / 4096);
    unsigned char *own = (unsigned char *)malloc(CHUNK);
    check(lent != NULL && own != NULL, "memory");
    fill(lent, CHUNK, 1);
    check(nvmed_pwrite(handle, lent, CHUNK, FIRST) == CHUNK, "write without a copy");
    check(nvmed_pread(handle, own, CHUNK, FIRST) == CHUNK, "read with a copy");
    check(is_filled(own, CHUNK, 1), "the bytes that were read are those that were written");
    check(nvmed_lseek(handle, FIRST, SEEK_SET) == FIRST, "seek");
    check(nvmed_read(handle, lent, 4096) == 4096 && nvmed_lseek(handle, 0, SEEK_CUR) == FIRST + 4096, "read at the position");
    check(nvmed_flush(handle) == 0, "flush");
    check(nvmed_put_buffer(lent) == 0, "put the buffer back");
    free(own);
}

/* Direct and asynchronous: all chunks at once, ends as values. */
static void asynchronous(NVMED *device, NVMED_HANDLE *handle)
{
    unsigned char *lent = (unsigned char *)nvmed_get_buffer(device, CHUNKS * (CHUNK / 4096));
    nvmed_event events[CHUNKS];
    int ended;

    check(lent != NULL, "memory");
    for (unsigned op = NVMED_OP_WRITE + 1; op-- > NVMED_OP_READ;) {
        for (unsigned i = 0; i < CHUNKS; i++) {
            struct nvmed_io io;
            check(nvmed_io_init(&io, sizeof io) == 0, "nvmed_io_init");
            io.op = op;
            io.buf = lent + (size_t)i * CHUNK;
            io.len = CHUNK;
            io.offset = FIRST + (off_t)i * CHUNK;
            io.user = i;
            if (op == NVMED_OP_WRITE)
                fill((unsigned char *)io.buf, CHUNK, i);
            else
                memset(io.buf, 0xff, CHUNK);
            check(nvmed_submit(handle, &io, NULL) == 0, "submit");
        }
        check(nvmed_aio_queue_submit(handle) == 0, "ring");
        for (ended = 0; ended < CHUNKS;) {
            int count = nvmed_wait(handle, events, CHUNKS, 30000);
            check(count > 0, "wait");
            for (int i = 0; i < count; i++)
                check(events[i].result == CHUNK && events[i].op == op, "a request ended well");
            ended += count;
        }
    }
    for (unsigned i = 0; i < CHUNKS; i++)
        check(is_filled(lent + (size_t)i * CHUNK, CHUNK, i), "the bytes that were read are those that were written");
    check(nvmed_in_flight(handle) == 0, "nothing is in flight");
    check(nvmed_put_buffer(lent) == 0, "put the buffer back");
}

static void count_it(const NVMED_AIO_CTX *context, void *userdata)
{
    if (context->status == NVMED_AIO_DONE)
        ++*(int *)userdata;
}

/* The same with contexts and callbacks, which are called from nvmed_aio_handle_complete. */
static void with_callbacks(NVMED *device, NVMED_HANDLE *handle)
{
    unsigned char *lent = (unsigned char *)nvmed_get_buffer(device, 2);
    NVMED_AIO_CTX contexts[2];
    int called = 0;

    check(lent != NULL, "memory");
    for (int i = 0; i < 2; i++) {
        check(nvmed_aio_ctx_init(&contexts[i], sizeof contexts[i]) == 0, "nvmed_aio_ctx_init");
        contexts[i].handle = handle;
        contexts[i].offset = FIRST + (off_t)i * 4096;
        contexts[i].len = 4096;
        contexts[i].buf = lent + (size_t)i * 4096;
        contexts[i].aio_callback = count_it;
        contexts[i].cb_userdata = &called;
        check(nvmed_aio_read(&contexts[i]) == 0, "nvmed_aio_read");
    }
    check(nvmed_aio_queue_submit(handle) == 0, "ring");
    while (called < 2)
        check(nvmed_aio_handle_complete(handle) >= 0, "nvmed_aio_handle_complete");
    check(nvmed_put_buffer(lent) == 0, "put the buffer back");
}

/* Cached: any place and length, seen by direct handles, safe after the flush. */
static void cached(NVMED_HANDLE *handle, NVMED_HANDLE *direct, unsigned block)
{
    char text[] = "any place and any length", back[sizeof text];
    unsigned char *blocks = (unsigned char *)malloc(block);
    off_t odd = FIRST + 3 * block - 5;

    check(blocks != NULL, "memory");
    check(nvmed_pwrite(handle, text, sizeof text, odd) == (ssize_t)sizeof text, "cached write");
    check(nvmed_pread(handle, back, sizeof back, odd) == (ssize_t)sizeof back && memcmp(text, back, sizeof text) == 0, "cached read");
    check(nvmed_pread(direct, blocks, block, FIRST + 2 * block) == (ssize_t)block, "direct read of what was cached");
    check(memcmp(blocks + block - 5, text, 5) == 0, "a direct read sees what was written through the cache");
    check(nvmed_flush(handle) == 0, "flush");
    free(blocks);
}

/* Blocks that are not needed any more; a device that cannot says so. */
static void discard(NVMED *device, NVMED_HANDLE *handle)
{
    struct nvmed_info info;
    info.size = sizeof info;
    check(nvmed_get_info(device, &info) == 0, "nvmed_get_info");
    if (info.can_discard)
        check(nvmed_discard(handle, FIRST, CHUNK) == 0, "discard");
    else
        check(nvmed_discard(handle, FIRST, CHUNK) == -1 && errno == EOPNOTSUPP, "a discard that the device does not know");
}

/* A bad block is EIO: at once, in the end of an asynchronous request, and in a flush. */
static void media_errors(const char *name, unsigned block)
{
    char bad[4096];
    unsigned char own[4096];
    nvmed_event event;
    struct nvmed_io io;
    unsigned first = FIRST / block, last = first + 4096 / block - 1;

    snprintf(bad, sizeof bad, "fault:eio@%u-%u:%s", first, last, name);
    NVMED *device = nvmed_open(bad, O_RDWR);
    check(device != NULL, "open the device with bad blocks");
    NVMED_QUEUE *queue = nvmed_queue_create(device, 0);
    NVMED_HANDLE *direct = nvmed_handle_create(queue, NVMED_DIRECT);
    NVMED_HANDLE *through_cache = nvmed_handle_create(queue, NVMED_CACHED);
    check(direct != NULL && through_cache != NULL, "handles of the device with bad blocks");

    errno = 0;
    check(nvmed_pread(direct, own, sizeof own, FIRST) == -1 && errno == EIO, "a bad block is EIO");
    printf("a bad block: %s\n", hs_error());
    check(nvmed_pread(direct, own, sizeof own, FIRST + 4096) == sizeof own, "its neighbour is good");
    check(nvmed_io_init(&io, sizeof io) == 0, "nvmed_io_init");
    io.op = NVMED_OP_WRITE;
    io.buf = own;
    io.len = sizeof own;
    io.offset = FIRST;
    check(nvmed_submit(direct, &io, NULL) == 0, "submit");
    check(nvmed_wait(direct, &event, 1, 30000) == 1 && event.result == -EIO, "an asynchronous write to a bad block is EIO");
    memset(own, 1, sizeof own);
    check(nvmed_pwrite(through_cache, own, sizeof own, FIRST) == sizeof own, "the cache takes it");
    errno = 0;
    check(nvmed_flush(through_cache) == -1 && errno == EIO, "the flush tells that it cannot be written");
    errno = 0;
    check(nvmed_handle_destroy(through_cache) == -1 && errno == EIO, "and so does the end of the handle");
    check(nvmed_handle_destroy(direct) == 0 && nvmed_queue_destroy(queue) == 0 && nvmed_close(device) == 0, "close");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s DEVICE\n", argv[0]);
        return 2;
    }
    NVMED *device = nvmed_open(argv[1], O_RDWR);
    check(device != NULL, argv[1]);
    struct nvmed_info info;
    info.size = sizeof info;
    check(nvmed_get_info(device, &info) == 0, "nvmed_get_info");
    printf("%s: %llu bytes in blocks of %u\n", argv[1], (unsigned long long)info.bytes, info.block_bytes);

    /* One queue for this thread alone, and one that two handles share. */
    struct nvmed_queue_options options;
    check(nvmed_queue_options_init(&options, sizeof options) == 0, "nvmed_queue_options_init");
    options.depth = 32;
    options.flags = NVMED_QUEUE_DEDICATED;
    NVMED_QUEUE *mine = nvmed_create_queue(device, &options);
    NVMED_QUEUE *ours = nvmed_queue_create(device, 0);
    check(mine != NULL && ours != NULL, "queues");
    NVMED_HANDLE *fast = nvmed_create_handle(mine, NULL);
    NVMED_HANDLE *plain = nvmed_handle_create(ours, NVMED_DIRECT | NVMED_SYNC);
    NVMED_HANDLE *through_cache = nvmed_handle_create(ours, NVMED_CACHED);
    check(fast != NULL && plain != NULL && through_cache != NULL, "handles");
    check(nvmed_set_param(fast, NVMED_PARAM_TIMEOUT_MS, 60000) == 0, "nvmed_set_param");

    synchronous(device, plain);
    asynchronous(device, fast);
    with_callbacks(device, fast);
    cached(through_cache, plain, info.block_bytes);
    discard(device, plain);

    check(nvmed_close(device) == -1 && errno == EBUSY, "a device in use is not closed");
    check(nvmed_handle_destroy(through_cache) == 0, "close the cached handle");
    check(nvmed_handle_destroy(plain) == 0 && nvmed_handle_destroy(fast) == 0, "close the handles");
    check(nvmed_queue_destroy(ours) == 0 && nvmed_queue_destroy(mine) == 0, "close the queues");
    check(nvmed_close(device) == 0, "close the device");

    media_errors(argv[1], info.block_bytes);
    check(hs_shutdown() == 0, "hs_shutdown");
    puts("all is well");
    return 0;
}
