// Reads or writes a file of 1 MiB by one of the ways Linux has for it, 64 KiB at a time, and checks what it reads.
//
//   calls CALL read|write|copy FILE [TO]
//   calls cost ROUNDS FILE       what a pread of 4 KiB takes that finds its data in memory: each round's 200, in ns, a line each
//
// Exit 0 done; 1 the data was not what `write` writes, or a call failed; 2 no such call. Tests of kernel/nofscache run it.
#define _GNU_SOURCE
#include <aio.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 1 << 20, BLOCK = 64 << 10 };

static char block[BLOCK];
static int pipes[2], memory;
static bool writes;

static char byte_at(size_t offset) { return (char)(offset * 7 + offset / 4096); }

static void fill(size_t offset)
{
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = writes ? byte_at(offset + i) : 0;
}

static void check(size_t offset)
{
    for (size_t i = 0; i < BLOCK; i++)
        if (block[i] != byte_at(offset + i))
            errx(1, "wrong data at %zu", offset + i);
}

static ssize_t by_read(int fd, size_t at)
{
    (void)at;
    return writes ? write(fd, block, BLOCK) : read(fd, block, BLOCK);
}

static ssize_t by_pread(int fd, size_t at) { return writes ? pwrite(fd, block, BLOCK, at) : pread(fd, block, BLOCK, at); }

static struct iovec halves[2] = {{block, BLOCK / 2}, {block + BLOCK / 2, BLOCK / 2}};

static ssize_t by_readv(int fd, size_t at)
{
    (void)at;
    return writes ? writev(fd, halves, 2) : readv(fd, halves, 2);
}

static ssize_t by_preadv(int fd, size_t at) { return writes ? pwritev(fd, halves, 2, at) : preadv(fd, halves, 2, at); }

static ssize_t by_preadv2(int fd, size_t at)
{
    return writes ? pwritev2(fd, halves, 2, at, 0) : preadv2(fd, halves, 2, at, 0);
}

static ssize_t by_sendfile(int fd, size_t at)
{
    off_t from = writes ? 0 : (off_t)at;

    if (!writes)
        lseek(memory, 0, SEEK_SET);
    else if (pwrite(memory, block, BLOCK, 0) != BLOCK)
        err(1, "memory");
    ssize_t done = writes ? sendfile(fd, memory, &from, BLOCK) : sendfile(memory, fd, &from, BLOCK);
    if (!writes && pread(memory, block, BLOCK, 0) != BLOCK)
        err(1, "memory");
    return done;
}

static ssize_t by_splice(int fd, size_t at)
{
    loff_t offset = at;
    ssize_t sum = 0;

    if (writes && write(pipes[1], block, BLOCK) != BLOCK)
        err(1, "pipe");
    while (sum < BLOCK) {
        ssize_t done = writes ? splice(pipes[0], 0, fd, &offset, BLOCK - sum, 0) : splice(fd, &offset, pipes[1], 0, BLOCK - sum, 0);
        if (done <= 0)
            return done;
        if (!writes && read(pipes[0], block + sum, done) != done)
            err(1, "pipe");
        sum += done;
    }
    return sum;
}

static ssize_t by_posixaio(int fd, size_t at)
{
    struct aiocb request = {.aio_fildes = fd, .aio_buf = block, .aio_nbytes = BLOCK, .aio_offset = at};
    const struct aiocb *list[] = {&request};

    if (writes ? aio_write(&request) : aio_read(&request))
        return -1;
    while (aio_error(&request) == EINPROGRESS)
        aio_suspend(list, 1, 0);
    return aio_return(&request);
}

static ssize_t by_libaio(int fd, size_t at)
{
    static aio_context_t context;
    struct iocb request = {
        .aio_fildes = fd, .aio_lio_opcode = writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD,
        .aio_buf = (uintptr_t)block, .aio_nbytes = BLOCK, .aio_offset = at,
    };
    struct iocb *list[] = {&request};
    struct io_event event;

    if (!context && syscall(SYS_io_setup, 1, &context))
        return -1;
    if (syscall(SYS_io_submit, context, 1, list) != 1 || syscall(SYS_io_getevents, context, 1, 1, &event, 0) != 1)
        return -1;
    return event.res;
}

static ssize_t by_io_uring(int fd, size_t at)
{
    static struct io_uring_params params;
    static char *rings;
    static struct io_uring_sqe *sqe;
    static int ring = -1;

    if (ring < 0) {
        ring = syscall(SYS_io_uring_setup, 1, &params);
        if (ring < 0)
            err(1, "io_uring_setup");
        rings = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
        sqe = mmap(0, sizeof *sqe, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
        if (rings == MAP_FAILED || (void *)sqe == MAP_FAILED)
            err(1, "mmap");
    }
    *sqe = (struct io_uring_sqe){
        .opcode = writes ? IORING_OP_WRITE : IORING_OP_READ, .fd = fd, .addr = (uintptr_t)block, .len = BLOCK, .off = at,
    };
    *(unsigned *)(rings + params.sq_off.array) = 0;
    __atomic_add_fetch((unsigned *)(rings + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1)
        return -1;
    unsigned *head = (unsigned *)(rings + params.cq_off.head);
    struct io_uring_cqe *cqes = (void *)(rings + params.cq_off.cqes);
    ssize_t done = cqes[*head & *(unsigned *)(rings + params.cq_off.ring_mask)].res;
    __atomic_add_fetch(head, 1, __ATOMIC_RELEASE);
    return done;
}

static ssize_t by_mmap(int fd, size_t at)
{
    if (writes && ftruncate(fd, SIZE))
        return -1;
    char *map = mmap(0, BLOCK, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, at);

    if (map == MAP_FAILED)
        return -1;
    memcpy(writes ? map : block, writes ? block : map, BLOCK);
    munmap(map, BLOCK);
    return BLOCK;
}

static const struct {
    const char *name;
    ssize_t (*run)(int fd, size_t at);
} calls[] = {
    {"read", by_read}, {"pread", by_pread}, {"readv", by_readv}, {"preadv", by_preadv}, {"preadv2", by_preadv2},
    {"sendfile", by_sendfile}, {"splice", by_splice}, {"io_uring", by_io_uring}, {"libaio", by_libaio}, {"posixaio", by_posixaio},
    {"mmap", by_mmap},
};

static void copy(const char *from, const char *to)
{
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    for (size_t at = 0; at < SIZE; at += BLOCK)
        if (copy_file_range(in, 0, out, 0, BLOCK, 0) != BLOCK)
            err(1, "copy_file_range at %zu", at);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

// The first rounds, which an emulator translates, are not told.
static void cost(long rounds, const char *path)
{
    enum { READS = 200, UNTOLD = 5 };
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        err(1, "%s", path);
    for (long round = -UNTOLD; round < rounds; round++) {
        uint64_t begin = now();
        for (int i = 0; i < READS; i++)
            if (pread(fd, block, 4096, i * 4096) != 4096)
                err(1, "%s at %d", path, i * 4096);
        if (round >= 0)
            printf("%lu\n", (unsigned long)((now() - begin) / READS));
    }
}

int main(int count, char **words)
{
    if (count == 4 && !strcmp(words[1], "cost"))
        return cost(atol(words[2]), words[3]), 0;
    if (count == 5 && !strcmp(words[2], "copy"))
        return copy(words[3], words[4]), 0;
    if (count != 4)
        errx(2, "usage: calls CALL read|write|copy FILE [TO]; calls cost ROUNDS FILE");
    writes = !strcmp(words[2], "write");
    int fd = open(words[3], writes ? O_RDWR | O_CREAT : O_RDONLY, 0600);
    if (fd < 0 || pipe(pipes) || (memory = memfd_create("calls", 0)) < 0 || fcntl(pipes[1], F_SETPIPE_SZ, BLOCK) < 0)
        err(1, "%s", words[3]);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(calls[i].name, words[1]))
            continue;
        for (size_t at = 0; at < SIZE; at += BLOCK) {
            fill(at);
            ssize_t done = calls[i].run(fd, at);
            if (done != BLOCK)
                err(1, "%s at %zu: %zd", words[1], at, done);
            check(at);
        }
        return 0;
    }
    errx(2, "no call %s", words[1]);
}
