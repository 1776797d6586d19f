/* What the calls do, and what they do about programs that are wrong. On memory:... devices; exits 0, or says the line. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sure.h"

#define PAGE 4096

static NVMED *device;
static NVMED_QUEUE *queue;
static NVMED_HANDLE *direct;

static void begin(const char *name)
{
    SURE((device = nvmed_open(name, O_RDWR)) != NULL);
    SURE((queue = nvmed_queue_create(device, 0)) != NULL);
    SURE((direct = nvmed_handle_create(queue, NVMED_DIRECT)) != NULL);
}

static void end(void)
{
    SURE(nvmed_handle_destroy(direct) == 0 && nvmed_queue_destroy(queue) == 0 && nvmed_close(device) == 0);
}

static void wrong_pointers(void)
{
    char own[512];
    nvmed_event event;
    uint64_t value;
    begin("memory:1MiB");
    FAILS(EBADF, nvmed_pread(NULL, own, sizeof own, 0));
    FAILS(EBADF, nvmed_close(NULL));
    FAILS(EBADF, nvmed_pread((NVMED_HANDLE *)(void *)device, own, sizeof own, 0));
    FAILS(EBADF, nvmed_pread((NVMED_HANDLE *)(void *)own, own, sizeof own, 0));
    FAILS(EBADF, nvmed_close((NVMED *)(void *)queue));
    NONE(EBADF, nvmed_handle_create((NVMED_QUEUE *)(void *)direct, 0));
    NONE(EBADF, nvmed_get_buffer(NULL, 1));
    FAILS(EBUSY, nvmed_close(device));
    FAILS(EBUSY, nvmed_queue_destroy(queue));
    FAILS(EFAULT, nvmed_pread(direct, NULL, 512, 0));
    FAILS(EFAULT, nvmed_submit(direct, NULL, NULL));
    FAILS(EFAULT, nvmed_poll(direct, NULL, 1));
    FAILS(EINVAL, nvmed_poll(direct, &event, 0));
    FAILS(EFAULT, nvmed_get_param(direct, 1, NULL));
    FAILS(EFAULT, nvmed_aio_read(NULL));
    FAILS(EFAULT, nvmed_get_info(device, NULL));
    FAILS(EFAULT, nvmed_queue_options_init(NULL, sizeof(nvmed_queue_options)));
    NONE(EFAULT, nvmed_open(NULL, O_RDWR));
    NONE(EFAULT, nvmed_handle_create_mq(NULL, 1, 0, NULL));
    SURE(nvmed_handle_destroy(direct) == 0);
    FAILS(EBADF, nvmed_handle_destroy(direct));
    FAILS(EBADF, nvmed_pread(direct, own, sizeof own, 0));
    FAILS(EBADF, nvmed_get_param(direct, 1, &value));
    SURE(nvmed_queue_destroy(queue) == 0 && nvmed_close(device) == 0);
    FAILS(EBADF, nvmed_close(device));
    FAILS(EBADF, nvmed_queue_destroy(queue));
}

static void wrong_names(void)
{
    NONE(EINVAL, nvmed_open("", O_RDWR));
    NONE(EINVAL, nvmed_open("memory:much", O_RDWR));
    NONE(EINVAL, nvmed_open("memory:1MiB", O_WRONLY));
    NONE(EINVAL, nvmed_open("memory:1MiB", O_RDWR | O_APPEND));
    NONE(ENOENT, nvmed_open("/no/such/device", O_RDWR));
    NONE(EINVAL, nvmed_open("fault:eio@9-8:null", O_RDWR));
    NONE(EINVAL, nvmed_open("\xff\xfe", O_RDWR));
}

static void like_a_file(void)
{
    unsigned char own[2048], back[2048];
    begin("memory:1MiB");
    memset(own, 7, sizeof own);
    SURE(nvmed_lseek(direct, -1024, SEEK_END) == (1 << 20) - 1024);
    SURE(nvmed_write(direct, own, sizeof own) == 1024);
    FAILS(ENOSPC, nvmed_write(direct, own, sizeof own));
    SURE(nvmed_read(direct, back, sizeof back) == 0);
    SURE(nvmed_lseek(direct, -1024, SEEK_CUR) == (1 << 20) - 1024);
    SURE(nvmed_read(direct, back, sizeof back) == 1024 && memcmp(own, back, 1024) == 0);
    FAILS(EINVAL, nvmed_lseek(direct, -1, SEEK_SET));
    FAILS(EINVAL, nvmed_lseek(direct, 0, 99));
    FAILS(EINVAL, nvmed_pread(direct, back, 512, -512));
    FAILS(EINVAL, nvmed_pread(direct, back, 100, 0));
    FAILS(EINVAL, nvmed_pread(direct, back, 512, 100));
    SURE(nvmed_pread(direct, NULL, 0, 0) == 0);
    errno = 77;
    SURE(nvmed_pwrite(direct, own, 512, 0) == 512 && nvmed_flush(direct) == 0 && errno == 77);
    SURE(nvmed_write_zeroes(direct, 0, 512) == 0 && nvmed_pread(direct, back, 512, 0) == 512 && back[0] == 0);
    FAILS(EINVAL, nvmed_discard(direct, 1, 512));
    FAILS(EINVAL, nvmed_discard(direct, 0, 2 << 20));
    end();
    SURE((device = nvmed_open("memory:1MiB", O_RDONLY)) != NULL);
    queue = nvmed_queue_create(device, 0);
    SURE((direct = nvmed_handle_create(queue, 0)) != NULL);
    FAILS(EROFS, nvmed_pwrite(direct, own, 512, 0));
    SURE(nvmed_pread(direct, own, 512, 0) == 512);
    end();
}

static void memory(void)
{
    unsigned char own[PAGE];
    begin("memory:1MiB");
    NVMED_HANDLE *strict = nvmed_handle_create(queue, NVMED_ZERO_COPY);
    unsigned char *lent = nvmed_get_buffer(device, 2), *next = nvmed_get_buffer(device, 1);
    SURE(strict != NULL && lent != NULL && next != NULL && lent[0] == 0 && (uintptr_t)lent % PAGE == 0);
    lent[PAGE] = 3;
    SURE(nvmed_pwrite(strict, lent + PAGE, 512, 0) == 512 && nvmed_pread(direct, own, 512, 0) == 512 && own[0] == 3);
    FAILS(EFAULT, nvmed_pread(strict, own, 512, 0));
    FAILS(EFAULT, nvmed_pread(direct, lent + PAGE, 2 * PAGE, 0));
    /* Not as the device wants its memory: copied, or refused. */
    SURE(nvmed_pread(direct, lent + 1, 512, 0) == 512 && lent[1] == 3);
    FAILS(EFAULT, nvmed_pread(strict, lent + 1, 512, 0));
    FAILS(EINVAL, nvmed_put_buffer(lent + PAGE));
    FAILS(EINVAL, nvmed_put_buffer(own));
    SURE(nvmed_put_buffer(NULL) == 0 && nvmed_put_buffer(lent) == 0);
    FAILS(EINVAL, nvmed_put_buffer(lent));
    FAILS(EFAULT, nvmed_pread(direct, lent, 512, 0));
    NONE(EINVAL, nvmed_get_buffer(device, 0));
    NONE(ENOMEM, nvmed_get_buffer(device, 1 << 20));
    SURE(nvmed_handle_destroy(strict) == 0);
    end();
    /* A buffer outlives its device. */
    next[0] = 1;
    SURE(nvmed_put_buffer(next) == 0);
    /* More than the device's memory goes through it in pieces. */
    nvmed_device_options options;
    SURE(nvmed_device_options_init(&options, sizeof options) == 0);
    options.buffer_bytes = 2 * PAGE;
    SURE((device = nvmed_open_with("memory:1MiB", O_RDWR, &options)) != NULL);
    queue = nvmed_queue_create(device, 0);
    SURE((direct = nvmed_handle_create(queue, 0)) != NULL);
    unsigned char *much = malloc(1 << 20), *back = malloc(1 << 20);
    for (int i = 0; i < 1 << 20; i++)
        much[i] = (unsigned char)(i / 512);
    SURE(nvmed_pwrite(direct, much, 1 << 20, 0) == 1 << 20 && nvmed_pread(direct, back, 1 << 20, 0) == 1 << 20);
    SURE(memcmp(much, back, 1 << 20) == 0);
    SURE((lent = nvmed_get_buffer(device, 2)) != NULL);
    FAILS(ENOMEM, nvmed_pread(direct, back, 512, 0));
    SURE(nvmed_put_buffer(lent) == 0);
    free(much);
    free(back);
    end();
}

static void parameters(void)
{
    uint64_t value = 0;
    begin("memory:1MiB");
    SURE(nvmed_set_param(direct, NVMED_PARAM_TIMEOUT_MS, 5) == 0);
    SURE(nvmed_get_param(direct, NVMED_PARAM_TIMEOUT_MS, &value) == 0 && value == 5);
    SURE(nvmed_param_by_name("timeout_ms") == NVMED_PARAM_TIMEOUT_MS);
    FAILS(ENOENT, nvmed_param_by_name("colour"));
    FAILS(ENOENT, nvmed_set_param(direct, 999, 1));
    FAILS(EINVAL, nvmed_set_param(direct, NVMED_PARAM_CACHED, 2));
    FAILS(EBUSY, nvmed_set_param(direct, NVMED_PARAM_QUEUE_DEPTH, 64));
    SURE(nvmed_get_param(direct, NVMED_PARAM_QUEUE_DEPTH, &value) == 0 && value == 128);
    SURE(nvmed_handle_feature_get(direct, HANDLE_DIRECT_IO) == 1 && nvmed_handle_feature_get(direct, HANDLE_SYNC_IO) == 1);
    SURE(nvmed_feature_set(device, NVMED_CACHE_SIZE, 64) == 0 && nvmed_feature_get(device, NVMED_CACHE_SIZE) == 64);
    SURE(nvmed_get_param(direct, NVMED_PARAM_CACHE_BYTES, &value) == 0 && value == 64 * PAGE);
    SURE(nvmed_handle_feature_set(direct, HANDLE_DIRECT_IO, 0) == 0 && nvmed_handle_feature_get(direct, HANDLE_DIRECT_IO) == 0);
    SURE(nvmed_pwrite(direct, "any", 3, 11) == 3);
    FAILS(EBUSY, nvmed_feature_set(device, NVMED_CACHE_SIZE, 32));
    SURE(nvmed_handle_feature_set(direct, HANDLE_INTERRUPT, 0) == 0 && nvmed_get_param(direct, NVMED_PARAM_COMPLETION, &value) == 0);
    SURE(value == 1 && nvmed_handle_feature_get(direct, HANDLE_INTERRUPT) == 0);
    FAILS(EINVAL, nvmed_handle_feature_set(direct, 1 << 20, 1));
    FAILS(EINVAL, nvmed_feature_get(device, 77));
    FAILS(ENOTSUP, nvmed_set_user_quota(device, 0, 1, NULL, NULL));
    FAILS(ENOTSUP, nvmed_get_user_quota(device, 0, NULL, NULL));
    NONE(EINVAL, nvmed_handle_create(queue, NVMED_DIRECT | NVMED_CACHED));
    NONE(EINVAL, nvmed_handle_create(queue, 1 << 20));
    NONE(EINVAL, nvmed_queue_create(device, 1 << 20));
    end();
    begin("memory:1MiB");
    SURE(nvmed_feature_set(device, NVMED_NO_CACHE, 1) == 0);
    NONE(ENOTSUP, nvmed_handle_create(queue, NVMED_CACHED));
    end();
}

static void versions(void)
{
    struct {
        nvmed_queue_options options;
        uint64_t newer;
    } larger;
    NVMED_QUEUE *other;
    begin("memory:1MiB");
    SURE(nvmed_queue_options_init(&larger.options, sizeof larger) == 0 && larger.newer == 0 && larger.options.depth == 128);
    larger.options.depth = 8;
    SURE((other = nvmed_create_queue(device, &larger.options)) != NULL && nvmed_queue_destroy(other) == 0);
    larger.newer = 1;
    NONE(E2BIG, nvmed_create_queue(device, &larger.options));
    larger.options.size = 0;
    NONE(EINVAL, nvmed_create_queue(device, &larger.options));
    larger.options.size = 12;
    larger.options.scheduler = 99;
    SURE((other = nvmed_create_queue(device, &larger.options)) != NULL && nvmed_queue_destroy(other) == 0);
    larger.options.size = sizeof larger.options;
    NONE(EINVAL, nvmed_create_queue(device, &larger.options));
    end();
}

static void only_values(void)
{
    unsigned char own[512] = {1};
    nvmed_event events[4];
    struct nvmed_io io;
    uint64_t request = 0;
    begin("memory:1MiB");
    SURE(nvmed_wait(direct, events, 4, -1) == 0);
    SURE(nvmed_io_init(&io, sizeof io) == 0);
    io.op = NVMED_OP_WRITE;
    io.buf = own;
    io.len = sizeof own;
    io.user = 42;
    SURE(nvmed_submit(direct, &io, &request) == 0 && request != 0 && nvmed_in_flight(direct) == 1);
    io.op = NVMED_OP_FLUSH;
    SURE(nvmed_submit(direct, &io, NULL) == 0);
    io.op = NVMED_OP_READ;
    io.offset = 2 << 20;
    SURE(nvmed_submit(direct, &io, NULL) == 0);
    SURE(nvmed_wait(direct, events, 4, -1) == 3);
    for (int i = 0; i < 3; i++) {
        SURE(events[i].user == 42 && events[i].flags == 0 && (events[i].request == request) == (events[i].op == NVMED_OP_WRITE));
        SURE(events[i].result == (events[i].op == NVMED_OP_WRITE ? 512 : events[i].op == NVMED_OP_READ ? -EINVAL : 0));
    }
    FAILS(ENOENT, nvmed_cancel(direct, request));
    FAILS(ENOENT, nvmed_cancel(direct, 0));
    io.op = 77;
    FAILS(EINVAL, nvmed_submit(direct, &io, NULL));
    io.op = NVMED_OP_READ;
    io.flags = 1;
    FAILS(EINVAL, nvmed_submit(direct, &io, NULL));
    io.flags = 0;
    io.offset = -1;
    FAILS(EINVAL, nvmed_submit(direct, &io, NULL));
    /* As many as there may be, then EAGAIN, then again. */
    io.offset = 0;
    struct nvmed_handle_options options;
    SURE(nvmed_handle_options_init(&options, sizeof options) == 0);
    options.requests_max = 2;
    NVMED_HANDLE *small = nvmed_create_handle(queue, &options);
    SURE(small != NULL && nvmed_submit(small, &io, NULL) == 0 && nvmed_submit(small, &io, NULL) == 0);
    FAILS(EAGAIN, nvmed_submit(small, &io, NULL));
    SURE(nvmed_wait(small, events, 1, -1) == 1 && nvmed_submit(small, &io, NULL) == 0 && nvmed_wait(small, events, 4, -1) > 0);
    SURE(nvmed_handle_destroy(small) == 0);
    /* An asynchronous handle only submits. */
    NVMED_HANDLE *later = nvmed_handle_create(queue, NVMED_ASYNC);
    SURE(later != NULL && nvmed_pread(later, own, 512, 0) == 512 && nvmed_discard(later, 0, 512) == 0);
    for (int ended = 0; ended < 2;) {
        int count = nvmed_wait(later, events, 4, -1);
        SURE(count > 0);
        for (int i = 0; i < count; i++)
            SURE(events[i].result == 512);
        ended += count;
    }
    SURE(own[0] == 1 && nvmed_handle_destroy(later) == 0);
    end();
}

struct again {
    int left;
    NVMED_HANDLE *handle;
    pthread_t thread;
};

/* Submits its own context again, from within. */
static void once_more(const NVMED_AIO_CTX *context, void *userdata)
{
    struct again *again = userdata;
    SURE(context->status == NVMED_AIO_DONE && context->error == 0 && pthread_equal(again->thread, pthread_self()));
    if (--again->left > 0)
        SURE(nvmed_aio_read((NVMED_AIO_CTX *)context) == 0);
}

static void callbacks(NVMED_HANDLE *handle)
{
    unsigned char own[512];
    struct again again = {100, handle, pthread_self()};
    NVMED_AIO_CTX context, plain;
    nvmed_event event;
    struct nvmed_io io;
    SURE(nvmed_aio_ctx_init(&context, sizeof context) == 0 && nvmed_aio_ctx_init(&plain, sizeof plain) == 0);
    FAILS(EBADF, nvmed_aio_read(&context));
    context.handle = plain.handle = handle;
    context.buf = plain.buf = own;
    context.len = plain.len = sizeof own;
    context.aio_callback = once_more;
    context.cb_userdata = &again;
    SURE(nvmed_aio_read(&context) == 0 && context.status == NVMED_AIO_BUSY && context.request != 0);
    while (again.left > 0)
        SURE(nvmed_aio_handle_complete(handle) >= 0);
    /* Contexts and values on one handle: each is reported in its own way. */
    SURE(nvmed_io_init(&io, sizeof io) == 0);
    io.buf = own;
    io.len = sizeof own;
    SURE(nvmed_submit(handle, &io, NULL) == 0 && nvmed_aio_write(&plain) == 0);
    while (plain.status == NVMED_AIO_BUSY)
        SURE(nvmed_aio_handle_complete(handle) >= 0);
    SURE(plain.status == NVMED_AIO_DONE && nvmed_wait(handle, &event, 1, -1) == 1 && event.result == 512);
    plain.offset = 4 << 20;
    SURE(nvmed_aio_read(&plain) == 0 || (plain.status != NVMED_AIO_BUSY));
    while (plain.status == NVMED_AIO_BUSY)
        SURE(nvmed_aio_handle_complete(handle) >= 0);
    SURE(plain.error == EINVAL || plain.status == NVMED_AIO_DONE);
}

static void callbacks_of_each_kind(void)
{
    begin("memory:1MiB");
    callbacks(direct);
    NVMED_HANDLE *cached = nvmed_handle_create(queue, NVMED_CACHED);
    NVMED_QUEUE *mine = nvmed_queue_create(device, NVMED_QUEUE_DEDICATED);
    NVMED_HANDLE *own = nvmed_handle_create(mine, 0);
    SURE(cached != NULL && own != NULL);
    callbacks(cached);
    callbacks(own);
    NONE(EBUSY, nvmed_handle_create(mine, 0));
    SURE(nvmed_handle_destroy(own) == 0 && (own = nvmed_handle_create(mine, 0)) != NULL);
    SURE(nvmed_handle_destroy(own) == 0 && nvmed_queue_destroy(mine) == 0 && nvmed_handle_destroy(cached) == 0);
    end();
}

static void timeouts(void)
{
    /* A lent buffer that is given back while a request is under way is free again when that has ended. */
    struct nvmed_info info;
    struct nvmed_io io;
    nvmed_event event;
    uint64_t before;
    begin("memory:1MiB");
    info.size = sizeof info;
    SURE(nvmed_get_info(device, &info) == 0);
    before = info.buffer_bytes_free;
    void *lent = nvmed_get_buffer(device, 1);
    SURE(lent != NULL && nvmed_io_init(&io, sizeof io) == 0);
    io.buf = lent;
    io.len = PAGE;
    SURE(nvmed_submit(direct, &io, NULL) == 0 && nvmed_put_buffer(lent) == 0);
    SURE(nvmed_get_info(device, &info) == 0 && info.buffer_bytes_free == before - PAGE);
    SURE(nvmed_wait(direct, &event, 1, -1) == 1);
    SURE(nvmed_get_info(device, &info) == 0 && info.buffer_bytes_free == before);
    end();
}

static NVMED_QUEUE *chosen[3];
static unsigned long counts[3];

static NVMED_QUEUE *by_kind(NVMED_HANDLE *handle, uint8_t opcode, uint64_t offset, uint32_t length)
{
    int at = opcode == 2 ? 0 : opcode == 1 ? 1 : 2;
    SURE(handle != NULL && offset % 512 == 0 && (length == 512 || at == 2));
    counts[at]++;
    return chosen[at];
}

static void several_queues(void)
{
    unsigned char own[512];
    begin("memory:1MiB");
    for (int i = 0; i < 3; i++)
        SURE((chosen[i] = nvmed_queue_create(device, 0)) != NULL);
    NVMED_HANDLE *all = nvmed_handle_create_mq(chosen, 3, 0, by_kind);
    SURE(all != NULL && nvmed_pwrite(all, own, 512, 512) == 512 && nvmed_pread(all, own, 512, 0) == 512 && nvmed_flush(all) == 0);
    SURE(counts[0] == 1 && counts[1] == 1 && counts[2] == 1);
    FAILS(EBUSY, nvmed_queue_destroy(chosen[1]));
    SURE(nvmed_handle_destroy_mq(all) == 0);
    SURE((all = nvmed_handle_create_mq(chosen, 3, NVMED_POLLED, NULL)) != NULL);
    for (int i = 0; i < 5; i++)
        SURE(nvmed_pread(all, own, 512, 0) == 512);
    SURE(nvmed_handle_destroy(all) == 0);
    NVMED_QUEUE *mine = nvmed_queue_create(device, NVMED_QUEUE_DEDICATED), *mixed[2] = {mine, chosen[0]};
    NONE(EINVAL, nvmed_handle_create_mq(mixed, 2, 0, NULL));
    NONE(EINVAL, nvmed_handle_create_mq(mixed, 0, 0, NULL));
    SURE(nvmed_queue_destroy(mine) == 0);
    for (int i = 0; i < 3; i++)
        SURE(nvmed_queue_destroy(chosen[i]) == 0);
    end();
}

/* An event goes to whatever thread asks: the memory of asynchronous requests outlives each of them. */
static unsigned char shared[4][PAGE];

static void *work(void *argument)
{
    unsigned char own[PAGE], back[PAGE];
    off_t at = (off_t)(size_t)argument * PAGE;
    nvmed_event event;
    for (int i = 0; i < 500; i++) {
        memset(own, i, sizeof own);
        SURE(nvmed_pwrite(direct, own, PAGE, at) == PAGE && nvmed_pread(direct, back, PAGE, at) == PAGE);
        SURE(memcmp(own, back, PAGE) == 0);
        struct nvmed_io io;
        SURE(nvmed_io_init(&io, sizeof io) == 0);
        io.buf = shared[(size_t)argument];
        io.len = PAGE;
        io.offset = at;
        SURE(nvmed_submit(direct, &io, NULL) == 0);
        while (nvmed_poll(direct, &event, 1) == 0 && nvmed_in_flight(direct) > 0)
            ;
    }
    return NULL;
}

static void threads(void)
{
    pthread_t thread[4];
    begin("memory:1MiB");
    for (size_t i = 0; i < 4; i++)
        SURE(pthread_create(&thread[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < 4; i++)
        SURE(pthread_join(thread[i], NULL) == 0);
    end();
}

static NVMED_HANDLE *dedicated;
static volatile int stop;

static void *intrude(void *argument)
{
    unsigned char own[512];
    while (!stop) {
        ssize_t got = nvmed_pread(dedicated, own, sizeof own, 0);
        SURE(got == 512 || (got == -1 && errno == EBUSY));
    }
    return argument;
}

/* Every way to wait and every scheduler, on a shared queue and on a dedicated one. */
static void ways_to_wait(void)
{
    unsigned char own[512];
    struct nvmed_queue_options options;
    uint64_t value;
    begin("memory:1MiB");
    SURE(nvmed_queue_options_init(&options, sizeof options) == 0);
    for (unsigned kind = 0; kind < 2 * 2 * 5; kind++) {
        options.flags = kind % 2 ? NVMED_QUEUE_DEDICATED : 0;
        options.scheduler = kind / 2 % 2 ? NVMED_SCHEDULER_CLASSES : NVMED_SCHEDULER_NONE;
        options.completion = kind / 4;
        if (options.flags && options.completion == NVMED_COMPLETION_THREAD) {
            NONE(EINVAL, nvmed_create_queue(device, &options));
            continue;
        }
        NVMED_QUEUE *mine = nvmed_create_queue(device, &options);
        NVMED_HANDLE *handle = nvmed_create_handle(mine, NULL);
        SURE(handle != NULL && nvmed_get_param(handle, NVMED_PARAM_COMPLETION, &value) == 0 && value == options.completion);
        for (int i = 0; i < 10; i++)
            SURE(nvmed_pwrite(handle, own, 512, 512 * i) == 512 && nvmed_flush(handle) == 0);
        SURE(nvmed_handle_destroy(handle) == 0 && nvmed_queue_destroy(mine) == 0);
    }
    options.completion = 99;
    NONE(EINVAL, nvmed_create_queue(device, &options));
    options.completion = NVMED_COMPLETION_DEFAULT;
    options.scheduler = 1; /* a scheduler that was removed */
    NONE(EINVAL, nvmed_create_queue(device, &options));
    end();
}

/* A handle of one thread, used by two: errors, no crash. */
static void intruders(void)
{
    pthread_t thread[2];
    begin("memory:1MiB");
    NVMED_QUEUE *mine = nvmed_queue_create(device, NVMED_QUEUE_DEDICATED);
    SURE((dedicated = nvmed_handle_create(mine, 0)) != NULL);
    for (int i = 0; i < 2; i++)
        SURE(pthread_create(&thread[i], NULL, intrude, NULL) == 0);
    for (int i = 0; i < 2000; i++) {
        unsigned char own[512];
        ssize_t got = nvmed_pread(dedicated, own, sizeof own, 0);
        SURE(got == 512 || (got == -1 && errno == EBUSY));
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        SURE(pthread_join(thread[i], NULL) == 0);
    SURE(nvmed_handle_destroy(dedicated) == 0 && nvmed_queue_destroy(mine) == 0);
    end();
}

static void *until_closed(void *argument)
{
    unsigned char own[512];
    while (nvmed_pread(direct, own, sizeof own, 0) == 512)
        ;
    SURE(errno == EBADF);
    return argument;
}

static void closed_under_others(void)
{
    pthread_t thread[2];
    for (int round = 0; round < 20; round++) {
        begin("memory:1MiB");
        for (int i = 0; i < 2; i++)
            SURE(pthread_create(&thread[i], NULL, until_closed, NULL) == 0);
        SURE(nvmed_handle_destroy(direct) == 0);
        for (int i = 0; i < 2; i++)
            SURE(pthread_join(thread[i], NULL) == 0);
        SURE(nvmed_queue_destroy(queue) == 0 && nvmed_close(device) == 0);
    }
}

static void forks(void)
{
    unsigned char own[512];
    int status = 1;
    begin("memory:1MiB");
    pid_t child = fork();
    if (child == 0) {
        FAILS(EPERM, nvmed_pread(direct, own, 512, 0));
        NONE(EPERM, nvmed_open("null", O_RDWR));
        exit(0);
    }
    SURE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    SURE(nvmed_pread(direct, own, 512, 0) == 512);
    end();
}

static void configuration(const char *directory)
{
    char path[4096];
    uint64_t value;
    FILE *file;
    FAILS(ENOENT, hs_init("/no/such/file"));
    snprintf(path, sizeof path, "%s/config.toml", directory);
    SURE((file = fopen(path, "w")) != NULL && fputs("[library]\nqueue_depth = 16\n", file) >= 0 && fclose(file) == 0);
    SURE(hs_shutdown() == 0 && hs_init(path) == 0);
    begin("null");
    SURE(nvmed_get_param(direct, NVMED_PARAM_QUEUE_DEPTH, &value) == 0 && value == 16);
    FAILS(EBUSY, hs_init(NULL));
    end();
    SURE((file = fopen(path, "w")) != NULL && fputs("[library]\ncolour = 16\n", file) >= 0 && fclose(file) == 0);
    FAILS(EINVAL, hs_init(path));
    SURE(strstr(hs_error(), "colour") != NULL && hs_init(NULL) == 0);
}

static void the_end(void)
{
    begin("memory:1MiB");
    NVMED_HANDLE *cached = nvmed_handle_create(queue, NVMED_CACHED);
    SURE(cached != NULL && nvmed_pwrite(cached, "any", 3, 11) == 3);
    SURE(hs_shutdown() == 0);
    FAILS(EBADF, nvmed_pread(cached, NULL, 0, 0));
    FAILS(EBADF, nvmed_close(device));
    /* At exit what is open is closed, and a flush that fails is no crash. */
    begin("fault:eio@0-7:memory:1MiB");
    cached = nvmed_handle_create(queue, NVMED_CACHED);
    SURE(cached != NULL && nvmed_pwrite(cached, "any", 3, 8192) == 3);
}

int main(int argc, char **argv)
{
    SURE(argc == 2 && hs_error()[0] == '\0' && hs_version()[0] == '0');
    wrong_pointers();
    wrong_names();
    like_a_file();
    memory();
    forks(); /* before there is a completion thread, whose memory a child would have without the thread */
    parameters();
    versions();
    only_values();
    callbacks_of_each_kind();
    timeouts();
    several_queues();
    threads();
    ways_to_wait();
    intruders();
    closed_under_others();
    configuration(argv[1]);
    the_end();
    puts("all is well");
    return 0;
}
