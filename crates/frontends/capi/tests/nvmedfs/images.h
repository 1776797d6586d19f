/* Images, and processes that have them and are killed. */
#pragma once

#include "begin.h"
#include "names.h"

static pid_t spawn(const char *mode, const char *image, int *out)
{
    int pipes[2];
    pid_t pid;
    SURE(pipe(pipes) == 0);
    pid = fork();
    SURE(pid >= 0);
    if (pid == 0) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        close(pipes[1]);
        execl(self, self, mode, image, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    *out = pipes[0];
    return pid;
}

static void kill_now(pid_t pid, int out)
{
    int status;
    SURE(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    close(out);
}

/* Has the image, with something synced and something not. */
static void hold(const char *image)
{
    NVMEDFS *fs = mounted(image);
    int fd = nvmedfs_open(fs, "/synced", O_CREAT | O_RDWR, 0644);
    SURE(nvmedfs_write(fd, "synced", 6) == 6 && nvmedfs_fsync(fd) == 0);
    put(fs, "/not-synced", "lost");
    nvmedfs_unlink(fs, "/x"); /* of an earlier one */
    SURE(nvmedfs_unlink(fs, "/synced") == 0 && nvmedfs_link(fs, "/not-synced", "/x") == 0);
    put(fs, "/synced", "synced");
    SURE(nvmedfs_sync(fs) == 0 && write(1, "r", 1) == 1);
    for (;;)
        pause();
}

#define FILES 3
#define SPAN (24 * 1024)

/* Transactions over several files, one after the other, for ever; says each number that was committed. */
static void commit_for_ever(const char *image)
{
    static uint64_t data[SPAN / 8];
    NVMEDFS *fs = mounted(image);
    uint64_t round = 0, n;
    int fds[FILES], file;
    char path[16];
    for (file = 0; file < FILES; file++) {
        snprintf(path, sizeof path, "/tx%d", file);
        fds[file] = nvmedfs_open(fs, path, O_CREAT | O_RDWR, 0644);
        SURE(fds[file] >= 0);
    }
    SURE(nvmedfs_pread(fds[0], &round, 8, 0) >= 0);
    for (;;) {
        NVMEDFS_TX *tx = nvmedfs_begin(fs);
        round++;
        for (n = 0; n < SPAN / 8; n++)
            data[n] = round;
        for (file = 0; file < FILES; file++) {
            snprintf(path, sizeof path, "/made%d-%d", (int)(round % 1000), file);
            SURE(nvmedfs_tx_pwrite(tx, fds[file], data, SPAN, 0) == SPAN);
            nvmedfs_unlink(fs, path);
            SURE(nvmedfs_close(nvmedfs_tx_creat(tx, path, O_RDWR, 0600)) == 0);
        }
        SURE(nvmedfs_commit(tx) == 0 && write(1, &round, sizeof round) == sizeof round);
    }
}

/* All or nothing; returns the number. */
static uint64_t committed(const char *image)
{
    static uint64_t data[SPAN / 8];
    NVMEDFS *fs = mounted(image);
    uint64_t round = 0, n, next;
    char path[32];
    int file, fd, there = 0;
    for (file = 0; file < FILES; file++) {
        snprintf(path, sizeof path, "/tx%d", file);
        fd = nvmedfs_open(fs, path, O_RDONLY);
        SURE(fd >= 0 && nvmedfs_read(fd, data, SPAN) == SPAN && nvmedfs_close(fd) == 0);
        round = file == 0 ? data[0] : round;
        for (n = 0; n < SPAN / 8; n++)
            SURE(data[n] == round);
    }
    for (next = 0; next < 2; next++)
        for (file = 0; file < FILES; file++) {
            snprintf(path, sizeof path, "/made%d-%d", (int)((round + next) % 1000), file);
            there += nvmedfs_access(fs, path, F_OK) == 0;
        }
    SURE(there == FILES && nvmedfs_unmount(fs) == 0);
    return round;
}

static void killed(const char *image)
{
    uint64_t last = 0, told;
    struct nvmedfs_options options;
    NVMEDFS *fs;
    char byte;
    int out, cycle, n;
    pid_t pid = spawn("hold", image, &out);
    SURE(read(out, &byte, 1) == 1);
    NONE(EBUSY, nvmedfs_mount(image, NULL));
    SURE(strstr(hs_error(), "in use") != NULL);
    SURE(nvmedfs_options_init(&options, sizeof options) == 0);
    options.flags = NVMEDFS_READ_ONLY;
    NONE(EBUSY, nvmedfs_mount(image, &options));
    FAILS(EBUSY, nvmedfs_mkfs(image, NULL));
    kill_now(pid, out);
    fs = mounted(image);
    SURE(stats_of(fs).was_clean == 0 && has(fs, "/synced", "synced") && has(fs, "/x", "lost"));
    SURE(nvmedfs_unmount(fs) == 0);

    for (cycle = 0; cycle < 4; cycle++) {
        pid = spawn("commit", image, &out);
        for (n = 0; n < 3 + 5 * cycle; n++)
            SURE(read(out, &told, sizeof told) == sizeof told && told > last);
        kill_now(pid, out);
        last = committed(image);
        SURE(last >= told);
    }
}

static void images(const char *dir)
{
    char image[PATH_MAX], second[PATH_MAX];
    struct nvmedfs_mkfs_options how;
    struct nvmedfs_options options;
    NVMEDFS *fs, *other;
    struct stat st;
    int fd, far;
    snprintf(image, sizeof image, "%s/image", dir);
    snprintf(second, sizeof second, "%s/second", dir);
    SURE(nvmedfs_mkfs_options_init(&how, sizeof how) == 0);
    FAILS(ENOENT, nvmedfs_mkfs(image, NULL));
    how.bytes = 32 * MIB;
    SURE(nvmedfs_mkfs(image, &how) == 0 && stat(image, &st) == 0 && st.st_size == 32 * MIB && nvmedfs_mkfs(second, &how) == 0);
    FAILS(EEXIST, nvmedfs_mkfs(image, &how));
    SURE(strstr(hs_error(), "hotshelf file system") != NULL);
    how.flags = NVMEDFS_FORCE;
    SURE(nvmedfs_mkfs(image, &how) == 0);
    how.bytes = 64 * MIB;
    FAILS(EINVAL, nvmedfs_mkfs(image, &how));
    snprintf(second, sizeof second, "%s/small", dir);
    how.bytes = 8192, how.flags = 0;
    FAILS(EINVAL, nvmedfs_mkfs(second, &how));
    SURE(stat(second, &st) == -1);
    snprintf(second, sizeof second, "%s/second", dir);

    /* Two at a time, each with its own files; and what is mounted is ours alone. */
    fs = mounted(image), other = mounted(second);
    SURE(stats_of(fs).was_clean == 1 && nvmedfs_stat(fs, "/", &st) == 0 && st.st_uid == geteuid());
    NONE(EBUSY, nvmedfs_mount(image, NULL));
    put(fs, "/here", "here"), put(other, "/there", "there");
    SURE(has(fs, "/here", "here") && has(other, "/there", "there"));
    FAILS(ENOENT, nvmedfs_access(fs, "/there", F_OK));
    fd = nvmedfs_open(fs, "/", O_RDONLY | O_DIRECTORY), far = nvmedfs_open(other, "/", O_RDONLY | O_DIRECTORY);
    FAILS(EXDEV, nvmedfs_renameat2(fd, "here", far, "here", 0));
    FAILS(EXDEV, nvmedfs_linkat(fd, "here", far, "here", 0));
    SURE(nvmedfs_close(fd) == 0 && nvmedfs_close(far) == 0);
    fd = nvmedfs_open(fs, "/here", O_RDONLY), far = nvmedfs_open(other, "/copied", O_CREAT | O_WRONLY, 0600);
    SURE(nvmedfs_copy_file_range(fd, NULL, far, NULL, 100, 0) == 4 && has(other, "/copied", "here"));
    SURE(nvmedfs_close(fd) == 0 && nvmedfs_close(far) == 0);
    SURE(nvmedfs_unmount(fs) == 0 && nvmedfs_unmount(other) == 0);
    FAILS(EBADF, nvmedfs_open(fs, "/here", O_RDONLY));

    /* Read-only: for several, and not while one writes. */
    SURE(nvmedfs_options_init(&options, sizeof options) == 0);
    options.flags = NVMEDFS_READ_ONLY;
    fs = nvmedfs_mount(image, &options), other = nvmedfs_mount(image, &options);
    SURE(fs != NULL && other != NULL && has(fs, "/here", "here") && entries(other, "/") == 3 && nvmedfs_sync(fs) == 0);
    NONE(EBUSY, nvmedfs_mount(image, NULL));
    FAILS(EROFS, nvmedfs_open(fs, "/here", O_RDWR));
    FAILS(EROFS, nvmedfs_open(fs, "/new", O_CREAT | O_RDONLY, 0600));
    FAILS(EROFS, nvmedfs_open(fs, "/", O_TMPFILE | O_RDWR, 0600));
    FAILS(EROFS, nvmedfs_truncate(fs, "/here", 0));
    FAILS(EROFS, nvmedfs_chmod(fs, "/here", 0));
    FAILS(EROFS, nvmedfs_unlink(fs, "/here"));
    FAILS(EROFS, nvmedfs_rename(fs, "/here", "/gone"));
    FAILS(EROFS, nvmedfs_mkdir(fs, "/gone", 0700));
    FAILS(EROFS, nvmedfs_setxattr(fs, "/here", "user.a", "", 0, 0));
    FAILS(EROFS, nvmedfs_access(fs, "/here", W_OK));
    NONE(EROFS, nvmedfs_begin(fs));
    SURE(has(fs, "/here", "here") && nvmedfs_unmount(fs) == 0 && nvmedfs_unmount(other) == 0);

    killed(image);

    /* Every change is safe when its call returns; what is open at the end of the library is closed. */
    options.flags = NVMEDFS_SYNC;
    fs = nvmedfs_mount(image, &options);
    put(fs, "/sync", "safe");
    fd = nvmedfs_open(fs, "/sync", O_RDWR);
    SURE(fd >= 0 && stats_of(fs).unwritten_bytes == 0 && nvmedfs_opendir(fs, "/") != NULL && nvmedfs_begin(fs) != NULL);
    SURE(nvmedfs_aio_create(fs, 2) != NULL && nvmedfs_pwrite(fd, "SAFE", 4, 0) == 4);
    SURE(hs_shutdown() == 0);
    FAILS(EBADF, nvmedfs_close(fd));
    fs = mounted(image);
    SURE(stats_of(fs).was_clean == 1 && has(fs, "/sync", "SAFE") && nvmedfs_unmount(fs) == 0);
}

/* A child of fork has nothing of it. */
static void child(NVMEDFS *fs)
{
    int status;
    pid_t pid = fork();
    SURE(pid >= 0);
    if (pid == 0) {
        FAILS(EPERM, nvmedfs_sync(fs));
        FAILS(EPERM, nvmedfs_open(fs, "/", O_RDONLY));
        exit(0);
    }
    SURE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
