/* Transactions, requests, threads. */
#pragma once

#include "begin.h"
#include "names.h"

static void transactions(NVMEDFS *fs)
{
    int a = nvmedfs_open(fs, "/a", O_CREAT | O_RDWR, 0644), b = nvmedfs_open(fs, "/b", O_CREAT | O_RDWR, 0644), made;
    NVMEDFS_TX *tx = nvmedfs_begin(fs);
    SURE(tx != NULL && nvmedfs_tx_pwrite(tx, a, "first", 5, 0) == 5 && nvmedfs_tx_append(tx, b, "second", 6) == 6);
    made = nvmedfs_tx_creat(tx, "/made", O_RDWR, 0600);
    SURE(made >= 0 && nvmedfs_tx_pwrite(tx, made, "third", 5, 0) == 5 && has(fs, "/a", "") && has(fs, "/b", ""));
    FAILS(ENOENT, nvmedfs_access(fs, "/made", F_OK));
    FAILS(EBUSY, nvmedfs_unmount(fs));
    SURE(nvmedfs_commit(tx) == 0 && has(fs, "/a", "first") && has(fs, "/b", "second") && has(fs, "/made", "third"));
    FAILS(EBADF, nvmedfs_commit(tx));
    FAILS(EBADF, nvmedfs_tx_pwrite(tx, a, "x", 1, 0));

    tx = nvmedfs_begin(fs);
    SURE(nvmedfs_tx_pwrite(tx, a, "other", 5, 0) == 5 && nvmedfs_tx_ftruncate(tx, b, 1) == 0 && nvmedfs_abort(tx) == 0);
    FAILS(EBADF, nvmedfs_abort(tx));
    SURE(has(fs, "/a", "first") && has(fs, "/b", "second"));
    /* What fails leaves everything as it was. */
    tx = nvmedfs_begin(fs);
    SURE(nvmedfs_tx_pwrite(tx, a, "other", 5, 0) == 5 && nvmedfs_tx_link(tx, made, "/b") == 0);
    FAILS(EEXIST, nvmedfs_commit(tx));
    SURE(has(fs, "/a", "first") && has(fs, "/b", "second"));
    tx = nvmedfs_begin(fs);
    SURE(nvmedfs_tx_ftruncate(tx, b, 3) == 0 && nvmedfs_tx_append(tx, b, "!", 1) == 1 &&
         nvmedfs_commit(tx) == 0 && has(fs, "/b", "sec!"));
    SURE(nvmedfs_close(a) == 0 && nvmedfs_close(b) == 0 && nvmedfs_close(made) == 0);
    SURE(nvmedfs_unlink(fs, "/a") == 0 && nvmedfs_unlink(fs, "/b") == 0 && nvmedfs_unlink(fs, "/made") == 0);
}

/* Names and attributes: a directory with a file comes in place of another. */
static void changes_of_names(NVMEDFS *fs)
{
    struct stat st;
    struct timespec times[2] = {{1, 0}, {2, 0}};
    char target[8];
    int old, made;
    NVMEDFS_TX *tx;
    SURE(nvmedfs_mkdir(fs, "/t", 0755) == 0 && (old = nvmedfs_open(fs, "/t/old", O_CREAT | O_RDWR, 0600)) >= 0);
    SURE(nvmedfs_write(old, "old", 3) == 3);
    tx = nvmedfs_begin(fs);
    SURE(nvmedfs_tx_mkdir(tx, "/t.new", 0750) == 0 && nvmedfs_tx_mkdir(tx, "t.new/in", 0700) == 0);
    made = nvmedfs_tx_creat(tx, "/t.new/in/made", O_RDWR, 0600);
    SURE(made >= 0 && nvmedfs_tx_pwrite(tx, made, "made", 4, 0) == 4);
    SURE(nvmedfs_tx_symlink(tx, "in/made", "/t.new/s") == 0 && nvmedfs_tx_link(tx, old, "/t.new/again") == 0);
    SURE(nvmedfs_tx_rename(tx, "/t.new", "/t", RENAME_EXCHANGE) == 0 && nvmedfs_tx_unlink(tx, "/t.new/old") == 0);
    SURE(nvmedfs_tx_rmdir(tx, "/t.new") == 0 && nvmedfs_tx_fchmod(tx, made, 0640) == 0);
    SURE(nvmedfs_tx_fchown(tx, made, (uid_t)-1, (gid_t)-1) == 0 && nvmedfs_tx_futimens(tx, old, times) == 0);
    FAILS(EFAULT, nvmedfs_tx_unlink(tx, NULL));
    SURE(has(fs, "/t/old", "old") && nvmedfs_access(fs, "/t.new", F_OK) == -1);
    SURE(nvmedfs_commit(tx) == 0 && has(fs, "/t/in/made", "made") && has(fs, "/t/again", "old"));
    FAILS(ENOENT, nvmedfs_access(fs, "/t.new", F_OK));
    SURE(nvmedfs_readlink(fs, "/t/s", target, sizeof target) == 7 && memcmp(target, "in/made", 7) == 0);
    SURE(nvmedfs_fstat(old, &st) == 0 && st.st_nlink == 1 && st.st_mtime == 2 && nvmedfs_fstat(made, &st) == 0);
    SURE((st.st_mode & 0777) == 0640);
    FAILS(EBADF, nvmedfs_tx_unlink(tx, "/t/s"));
    /* What fails in the middle has changed nothing. */
    tx = nvmedfs_begin(fs);
    SURE(nvmedfs_tx_unlink(tx, "/t/s") == 0 && nvmedfs_tx_rmdir(tx, "/t") == 0);
    FAILS(ENOTEMPTY, nvmedfs_commit(tx));
    tx = nvmedfs_begin(fs);
    SURE(nvmedfs_tx_unlink(tx, "/t/s") == 0 && nvmedfs_tx_unlink(tx, "/t/again") == 0 && nvmedfs_tx_unlink(tx, "/t/in/made") == 0);
    SURE(nvmedfs_tx_rmdir(tx, "/t/in") == 0 && nvmedfs_tx_rmdir(tx, "/t") == 0 && nvmedfs_commit(tx) == 0);
    FAILS(ENOENT, nvmedfs_access(fs, "/t", F_OK));
    SURE(nvmedfs_close(old) == 0 && nvmedfs_close(made) == 0);
}

static struct nvmedfs_io request(uint32_t op, int fd)
{
    struct nvmedfs_io io;
    SURE(nvmedfs_io_init(&io, sizeof io) == 0 && io.fd == AT_FDCWD);
    io.op = op;
    if (fd >= 0)
        io.fd = fd;
    return io;
}

static void count_up(const struct nvmedfs_event *event, void *to)
{
    if (event->result >= 0)
        *(int *)to += (int)event->user;
}

static void requests(NVMEDFS *fs)
{
    static char data[64][4096], back[64][4096];
    struct nvmedfs_event events[64];
    struct nvmedfs_io io[64];
    struct pollfd event;
    struct timespec none = { 0, 0 };
    struct iovec parts[2];
    NVMEDFS_AIO *aio = nvmedfs_aio_create(fs, 64);
    NVMEDFS_TX *tx;
    int n, sum = 0, fd, opened = -1;
    char path[16] = "/late";
    SURE(aio != NULL && nvmedfs_mkdir(fs, "/dir", 0755) == 0);
    event.fd = nvmedfs_aio_fileno(aio), event.events = POLLIN;
    SURE(poll(&event, 1, 0) == 0 && nvmedfs_aio_reap(aio, events, 0, 64, NULL) == 0 && nvmedfs_aio_wait(aio, NULL) == 0);

    /* Opened by a request, whose path need not stay. */
    io[0] = request(NVMEDFS_OP_OPEN, -1);
    io[0].flags = O_CREAT | O_RDWR, io[0].mode = 0644, io[0].path = path, io[0].user = 7;
    SURE(nvmedfs_aio_submit(aio, io, 1) == 1);
    memset(path, 'x', 5);
    SURE(poll(&event, 1, -1) == 1 && nvmedfs_aio_reap(aio, events, 1, 64, NULL) == 1 && poll(&event, 1, 0) == 0);
    fd = (int)events[0].result;
    SURE(fd >= 3 && events[0].user == 7 && events[0].op == NVMEDFS_OP_OPEN && nvmedfs_access(fs, "/late", F_OK) == 0);

    /* Many writes and one sync behind them. */
    for (n = 0; n < 63; n++) {
        fill(data[n], 4096, (unsigned)n);
        io[n] = request(NVMEDFS_OP_PWRITE, fd);
        io[n].buf = data[n], io[n].n = 4096, io[n].off = n * 4096, io[n].user = 1, io[n].callback = count_up, io[n].userdata = &sum;
    }
    io[63] = request(NVMEDFS_OP_FSYNC, fd);
    SURE(nvmedfs_aio_submit(aio, io, 64) == 64);
    FAILS(EAGAIN, nvmedfs_aio_submit(aio, io, 1));
    SURE(nvmedfs_aio_wait(aio, NULL) == 0 && sum == 63);
    for (n = 0; n < 63; n++)
        io[n].op = NVMEDFS_OP_PREAD, io[n].buf = back[n], io[n].callback = NULL, io[n].user = (uint64_t)n;
    SURE(nvmedfs_aio_submit(aio, io, 63) == 63 && nvmedfs_aio_reap(aio, events, 63, 64, NULL) == 63);
    for (n = 0; n < 63; n++)
        SURE(events[n].result == 4096 && memcmp(data[events[n].user], back[events[n].user], 4096) == 0);

    /* In order: what is behind sees what was before. */
    parts[0].iov_base = data[0], parts[0].iov_len = 10;
    parts[1].iov_base = data[1], parts[1].iov_len = 10;
    io[0] = request(NVMEDFS_OP_MKDIR, -1), io[0].path = "/dir/new", io[0].mode = 0700;
    io[1] = request(NVMEDFS_OP_RENAME, -1), io[1].path = "/dir/new", io[1].path2 = "/dir/newer";
    io[2] = request(NVMEDFS_OP_UNLINK, -1), io[2].path = "/dir/newer", io[2].flags = AT_REMOVEDIR;
    io[3] = request(NVMEDFS_OP_FTRUNCATE, fd), io[3].off = 0;
    io[4] = request(NVMEDFS_OP_PWRITEV, fd), io[4].buf = parts, io[4].n = 2;
    io[5] = request(NVMEDFS_OP_SYNC, -1);
    SURE(nvmedfs_aio_submit(aio, io, 6) == 6 && nvmedfs_aio_wait(aio, NULL) == 0 && entries(fs, "/dir") == 2);
    io[0] = request(NVMEDFS_OP_PREADV, fd), io[0].buf = parts, io[0].n = 2;
    parts[0].iov_base = back[0], parts[1].iov_base = back[1], parts[1].iov_len = 100;
    SURE(nvmedfs_aio_submit(aio, io, 1) == 1 && nvmedfs_aio_reap(aio, events, 1, 1, NULL) == 1 && events[0].result == 20);
    SURE(memcmp(back[0], data[0], 10) == 0 && memcmp(back[1], data[1], 10) == 0);

    /* One that fails, fails the wait once, and says why. */
    io[0] = request(NVMEDFS_OP_UNLINK, -1), io[0].path = "/dir/none";
    io[1] = request(NVMEDFS_OP_FDATASYNC, fd);
    SURE(nvmedfs_aio_submit(aio, io, 2) == 2);
    FAILS(ENOENT, nvmedfs_aio_wait(aio, NULL));
    SURE(strstr(hs_error(), "/dir/none") != NULL && nvmedfs_aio_wait(aio, NULL) == 0);
    /* What is wrong ends the call, and those before it are taken. */
    io[0] = request(NVMEDFS_OP_SYNC, -1), io[1] = request(99, fd);
    SURE(nvmedfs_aio_submit(aio, io, 2) == 1 && nvmedfs_aio_wait(aio, NULL) == 0);
    FAILS(EINVAL, nvmedfs_aio_submit(aio, io + 1, 1));
    io[0] = request(NVMEDFS_OP_PREAD, 1000);
    FAILS(EBADF, nvmedfs_aio_submit(aio, io, 1));
    io[0] = request(NVMEDFS_OP_OPEN, -1);
    FAILS(EFAULT, nvmedfs_aio_submit(aio, io, 1));
    FAILS(EINVAL, nvmedfs_aio_reap(aio, events, 2, 1, &none));
    SURE(nvmedfs_aio_reap(aio, events, 1, 1, &none) == 0);

    /* Commits. */
    for (n = 0; n < 8; n++) {
        tx = nvmedfs_begin(fs);
        SURE(nvmedfs_tx_pwrite(tx, fd, data[n], 4096, n * 4096) == 4096);
        io[n] = request(NVMEDFS_OP_COMMIT, -1), io[n].tx = tx;
    }
    SURE(nvmedfs_aio_submit(aio, io, 8) == 8 && nvmedfs_aio_wait(aio, NULL) == 0);
    FAILS(EBADF, nvmedfs_aio_submit(aio, io, 1));
    SURE(nvmedfs_aio_wait(aio, NULL) == 0);
    for (n = 0; n < 8; n++)
        SURE(nvmedfs_pread(fd, back[0], 4096, n * 4096) == 4096 && memcmp(back[0], data[n], 4096) == 0);

    /* Closed at once: what was submitted keeps its file. */
    io[0] = request(NVMEDFS_OP_PWRITE, fd), io[0].buf = data[9], io[0].n = 5;
    SURE(nvmedfs_aio_submit(aio, io, 1) == 1 && nvmedfs_close(fd) == 0);
    FAILS(EBUSY, nvmedfs_unmount(fs));
    SURE(nvmedfs_aio_destroy(aio) == 0);
    FAILS(EBADF, nvmedfs_aio_wait(aio, NULL));
    opened = nvmedfs_open(fs, "/late", O_RDONLY);
    SURE(nvmedfs_read(opened, back[0], 5) == 5 && memcmp(back[0], data[9], 5) == 0 && nvmedfs_close(opened) == 0);
    SURE(nvmedfs_unlink(fs, "/late") == 0 && nvmedfs_rmdir(fs, "/dir") == 0);
}

/* A device with bad blocks: what cannot be written fails the sync, the request, the commit. */
static void bad_device(void)
{
    static char data[MIB];
    struct nvmedfs_options options;
    struct nvmedfs_io io = request(NVMEDFS_OP_PWRITE, -1);
    NVMEDFS_AIO *aio;
    NVMEDFS_TX *tx;
    NVMEDFS *fs;
    int fd, other, n, failed = 0;
    SURE(nvmedfs_options_init(&options, sizeof options) == 0);
    options.flags = NVMEDFS_CREATE;
    fs = nvmedfs_mount("fault:eio@65536-130000:memory:64MiB", &options);
    SURE(fs != NULL);
    fd = nvmedfs_open(fs, "/big", O_CREAT | O_RDWR, 0644);
    for (n = 0; n < 40 && !failed; n++) {
        SURE(nvmedfs_write(fd, data, MIB) == MIB);
        failed = nvmedfs_fsync(fd) == -1;
    }
    SURE(failed && errno == EIO);
    /* Each handle gets the error once; data still in memory can be read. */
    other = nvmedfs_open(fs, "/big", O_RDWR | O_SYNC);
    SURE(nvmedfs_pread(fd, data, MIB, (off_t)(n - 1) * MIB) == MIB);
    aio = nvmedfs_aio_create(fs, 4);
    io.fd = other, io.buf = data, io.n = 4096;
    SURE(nvmedfs_aio_submit(aio, &io, 1) == 1);
    FAILS(EIO, nvmedfs_aio_wait(aio, NULL));
    tx = nvmedfs_begin(fs);
    SURE(nvmedfs_tx_append(tx, fd, data, MIB) == MIB);
    FAILS(EIO, nvmedfs_commit(tx));
    SURE(nvmedfs_aio_destroy(aio) == 0);
    nvmedfs_close(fd);
    nvmedfs_close(other);
    FAILS(EIO, nvmedfs_unmount(fs));
    FAILS(EBADF, nvmedfs_unmount(fs));
}

static NVMEDFS *shared_fs;
static int shared_fd;
static unsigned long long total;

static void *hammer(void *arg)
{
    long me = (long)arg;
    char dir[32], from[64], to[64], data[5000], back[5000];
    int n, fd;
    snprintf(dir, sizeof dir, "/t%ld", me);
    SURE(nvmedfs_mkdir(shared_fs, dir, 0755) == 0);
    for (n = 0; n < 60; n++) {
        snprintf(from, sizeof from, "%s/f%d", dir, n % 7);
        snprintf(to, sizeof to, "/t%ld-%d", me, n % 3);
        fill(data, sizeof data, (unsigned)(me * 1000 + n));
        fd = nvmedfs_open(shared_fs, from, O_CREAT | O_RDWR | O_TRUNC, 0644);
        SURE(fd >= 0 && nvmedfs_write(fd, data, sizeof data) == (ssize_t)sizeof data);
        SURE(n % 10 != 0 || nvmedfs_fsync(fd) == 0);
        SURE(nvmedfs_rename(shared_fs, from, to) == 0 && nvmedfs_pread(fd, back, sizeof back, 0) == (ssize_t)sizeof back);
        SURE(memcmp(data, back, sizeof data) == 0 && nvmedfs_close(fd) == 0);
        SURE(nvmedfs_pwrite(shared_fd, data, 512, me * 512) == 512 && nvmedfs_pread(shared_fd, back, 512, me * 512) == 512);
        SURE(memcmp(data, back, 512) == 0);
        /* Under the lock of a separate open file. */
        fd = nvmedfs_open(shared_fs, "/shared", O_RDWR);
        SURE(nvmedfs_flock(fd, LOCK_EX) == 0);
        total = total + 1;
        SURE(nvmedfs_close(fd) == 0);
    }
    return NULL;
}

static void threads(NVMEDFS *fs)
{
    pthread_t all[4];
    long n;
    shared_fs = fs;
    shared_fd = nvmedfs_open(fs, "/shared", O_CREAT | O_RDWR, 0644);
    for (n = 0; n < 4; n++)
        SURE(pthread_create(&all[n], NULL, hammer, (void *)n) == 0);
    for (n = 0; n < 4; n++)
        pthread_join(all[n], NULL);
    SURE(total == 240 && entries(fs, "/") == 2 + 1 + 4 + 12 && nvmedfs_close(shared_fd) == 0);
}
