/* The library file system from C: as POSIX has files, and what POSIX has not: images, transactions, requests. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "sure.h"

#define MIB (1 << 20)

static const char *self;

static NVMEDFS *mounted(const char *image)
{
    NVMEDFS *fs = nvmedfs_mount(image, NULL);
    SURE(fs != NULL);
    return fs;
}

static NVMEDFS *in_memory(uint32_t flags)
{
    struct nvmedfs_options options;
    NVMEDFS *fs;
    SURE(nvmedfs_options_init(&options, sizeof options) == 0);
    options.flags = NVMEDFS_CREATE | flags;
    fs = nvmedfs_mount("memory:64MiB", &options);
    SURE(fs != NULL);
    return fs;
}

static struct nvmedfs_stats stats_of(NVMEDFS *fs)
{
    struct nvmedfs_stats stats;
    stats.size = sizeof stats;
    SURE(nvmedfs_get_stats(fs, &stats) == 0 && stats.size == sizeof stats);
    return stats;
}

static void fill(char *to, size_t n, unsigned seed)
{
    size_t at;
    for (at = 0; at < n; at++) {
        seed = seed * 1103515245 + 12345;
        to[at] = (char)(seed >> 16);
    }
}

static int has(NVMEDFS *fs, const char *path, const char *text)
{
    char buf[256];
    int fd = nvmedfs_open(fs, path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : nvmedfs_read(fd, buf, sizeof buf);
    SURE(fd < 0 || nvmedfs_close(fd) == 0);
    return n == (ssize_t)strlen(text) && memcmp(buf, text, (size_t)n) == 0;
}

static void put(NVMEDFS *fs, const char *path, const char *text)
{
    int fd = nvmedfs_creat(fs, path, 0644);
    SURE(fd >= 3 && nvmedfs_write(fd, text, strlen(text)) == (ssize_t)strlen(text) && nvmedfs_close(fd) == 0);
}

/* ---- content */

static void content(NVMEDFS *fs)
{
    static char buf[3 * MIB], back[3 * MIB];
    struct iovec parts[3];
    struct stat st;
    off_t from = 100, to = 7;
    int fd = nvmedfs_open(fs, "/file", O_RDWR | O_CREAT | O_EXCL, 0640), other, third;
    SURE(fd == 3);
    FAILS(EEXIST, nvmedfs_open(fs, "/file", O_RDWR | O_CREAT | O_EXCL, 0640));
    fill(buf, sizeof buf, 1);
    SURE(nvmedfs_write(fd, buf, sizeof buf) == (ssize_t)sizeof buf && nvmedfs_lseek(fd, 0, SEEK_CUR) == (off_t)sizeof buf);
    SURE(nvmedfs_read(fd, back, 1) == 0 && nvmedfs_lseek(fd, 5, SEEK_SET) == 5);
    SURE(nvmedfs_read(fd, back, 10) == 10 && memcmp(back, buf + 5, 10) == 0);
    SURE(nvmedfs_pread(fd, back, sizeof back, 1000) == (ssize_t)(sizeof back - 1000) &&
         memcmp(back, buf + 1000, sizeof back - 1000) == 0);
    SURE(nvmedfs_pwrite(fd, "here", 4, 4094) == 4 && nvmedfs_pread(fd, back, 6, 4093) == 6 && memcmp(back + 1, "here", 4) == 0);
    SURE(nvmedfs_fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof buf && st.st_mode == (S_IFREG | 0640) && st.st_nlink == 1);

    parts[0].iov_base = back, parts[0].iov_len = 3;
    parts[1].iov_base = NULL, parts[1].iov_len = 0;
    parts[2].iov_base = back + 10, parts[2].iov_len = 5;
    memcpy(back, "one", 3), memcpy(back + 10, "other", 5);
    SURE(nvmedfs_pwritev(fd, parts, 3, 50) == 8);
    memset(back, 0, 20);
    SURE(nvmedfs_preadv(fd, parts, 3, 50) == 8 && memcmp(back, "one", 3) == 0 && memcmp(back + 10, "other", 5) == 0);
    SURE(nvmedfs_lseek(fd, 50, SEEK_SET) == 50 && nvmedfs_readv(fd, parts, 3) == 8 && nvmedfs_lseek(fd, 0, SEEK_CUR) == 58);
    SURE(nvmedfs_writev(fd, parts, 3) == 8 && nvmedfs_lseek(fd, 0, SEEK_CUR) == 66);
    SURE(nvmedfs_preadv(fd, parts, 3, (off_t)sizeof buf - 4) == 4 && nvmedfs_readv(fd, NULL, 0) == 0);

    other = nvmedfs_dup(fd);
    SURE(other == 4 && nvmedfs_lseek(other, 0, SEEK_CUR) == 66 && nvmedfs_lseek(fd, 9, SEEK_SET) == 9);
    SURE(nvmedfs_lseek(other, 0, SEEK_CUR) == 9 && nvmedfs_dup2(fd, 20) == 20 && nvmedfs_dup2(fd, fd) == fd);
    SURE(nvmedfs_fcntl(fd, F_DUPFD, 20) == 21 && nvmedfs_close(20) == 0 && nvmedfs_close(21) == 0 && nvmedfs_close(other) == 0);
    SURE((nvmedfs_fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR && nvmedfs_fcntl(fd, F_SETFL, O_APPEND) == 0);
    SURE(nvmedfs_pwrite(fd, "end", 3, 0) == 3 && nvmedfs_fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof buf + 3);
    SURE(nvmedfs_fcntl(fd, F_SETFL, 0) == 0);

    SURE(nvmedfs_ftruncate(fd, 10 * MIB) == 0 && nvmedfs_fsync(fd) == 0);
    SURE(nvmedfs_lseek(fd, 4 * MIB, SEEK_DATA) == -1 && errno == ENXIO && nvmedfs_lseek(fd, 0, SEEK_HOLE) <= 4 * MIB);
    SURE(nvmedfs_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MIB) == 0 && nvmedfs_lseek(fd, 0, SEEK_DATA) == MIB);
    SURE(nvmedfs_fallocate(fd, 0, 9 * MIB, 2 * MIB) == 0 && nvmedfs_fstat(fd, &st) == 0 && st.st_size == 11 * MIB);
    SURE(nvmedfs_pread(fd, back, 4096, 10 * MIB) == 4096 && back[0] == 0 && back[4095] == 0);
    SURE(nvmedfs_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0 && nvmedfs_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL) == 0);
    SURE(nvmedfs_fdatasync(fd) == 0 && nvmedfs_syncfs(fd) == 0 && nvmedfs_sync(fs) == 0);

    third = nvmedfs_open(fs, "/copy", O_RDWR | O_CREAT, 0644);
    SURE(nvmedfs_pwrite(fd, "copied", 6, 100) == 6);
    SURE(nvmedfs_copy_file_range(fd, &from, third, &to, 6, 0) == 6 && from == 106 && to == 13);
    SURE(nvmedfs_pread(third, back, 20, 7) == 6 && memcmp(back, "copied", 6) == 0 && nvmedfs_lseek(third, 0, SEEK_CUR) == 0);
    SURE(nvmedfs_lseek(fd, 100, SEEK_SET) == 100 && nvmedfs_copy_file_range(fd, NULL, third, NULL, 6, 0) == 6);
    SURE(nvmedfs_lseek(third, 0, SEEK_CUR) == 6 && nvmedfs_lseek(fd, 0, SEEK_CUR) == 106);
    from = 0, to = 3;
    FAILS(EINVAL, nvmedfs_copy_file_range(third, &from, third, &to, 6, 0));
    SURE(nvmedfs_truncate(fs, "copy", 2) == 0 && has(fs, "copy", "co"));
    SURE(nvmedfs_close(third) == 0 && nvmedfs_close(fd) == 0 && nvmedfs_unlink(fs, "/file") == 0 &&
         nvmedfs_unlink(fs, "/copy") == 0);
}

/* What goes past the cache is counted by the device; and neither way misses what the other wrote. */
static void direct(NVMEDFS *fs)
{
    char *memory, *page;
    uint64_t reads, bytes;
    struct statx sx;
    int plain = nvmedfs_open(fs, "/direct", O_RDWR | O_CREAT, 0644), fd = nvmedfs_open(fs, "/direct", O_RDWR | O_DIRECT);
    SURE(plain >= 0 && fd >= 0 && posix_memalign((void **)&memory, 4096, 2 * MIB) == 0);
    page = memory + MIB;
    fill(memory, MIB, 2);
    bytes = stats_of(fs).device_written_bytes;
    SURE(nvmedfs_pwrite(fd, memory, MIB, 0) == MIB && stats_of(fs).device_written_bytes >= bytes + MIB);
    SURE(stats_of(fs).unwritten_bytes == 0);
    /* Not kept: read by the device, each time. */
    for (reads = 0; reads < 3; reads++) {
        bytes = stats_of(fs).device_read_bytes;
        SURE(nvmedfs_pread(fd, page, MIB, 0) == MIB && memcmp(memory, page, MIB) == 0);
        SURE(stats_of(fs).device_read_bytes == bytes + MIB);
    }
    /* Through the cache: once. */
    bytes = stats_of(fs).device_read_bytes;
    SURE(nvmedfs_pread(plain, page, MIB, 0) == MIB && stats_of(fs).device_read_bytes == bytes + MIB);
    SURE(nvmedfs_pread(plain, page, MIB, 0) == MIB && stats_of(fs).device_read_bytes == bytes + MIB);
    SURE(memcmp(memory, page, MIB) == 0 && nvmedfs_fadvise(plain, 0, 0, POSIX_FADV_DONTNEED) == 0);
    SURE(nvmedfs_pread(plain, page, MIB, 0) == MIB && stats_of(fs).device_read_bytes == bytes + 2 * MIB);
    /* Coherent. */
    SURE(nvmedfs_pwrite(plain, "buffered", 8, 4090) == 8 && nvmedfs_pread(fd, page, 8192, 0) == 8192 &&
         memcmp(page + 4090, "buffered", 8) == 0);
    memcpy(page, "direct", 6);
    SURE(nvmedfs_pwrite(fd, page, 512, 512) == 512 && nvmedfs_pread(plain, page, 6, 512) == 6 && memcmp(page, "direct", 6) == 0);
    SURE(nvmedfs_pread(plain, page, 8, 4090) == 8 && memcmp(page, "buffered", 8) == 0);
    SURE(nvmedfs_pread(fd, page, 512, 4608) == 512 && memcmp(page, memory + 4608, 512) == 0);
    SURE(nvmedfs_ftruncate(fd, MIB - 100) == 0 && nvmedfs_pread(fd, page, 4096, MIB - 4096) == 3996 &&
         nvmedfs_pread(fd, page, 512, MIB) == 0);
    /* Alignment. */
    FAILS(EINVAL, nvmedfs_pread(fd, page, 4096, 1));
    FAILS(EINVAL, nvmedfs_pread(fd, page + 1, 4096, 0));
    FAILS(EINVAL, nvmedfs_pwrite(fd, page, 100, 0));
    SURE(nvmedfs_statx(fs, "direct", 0, STATX_BASIC_STATS, &sx) == 0 && sx.stx_size == MIB - 100 && sx.stx_btime.tv_sec > 0);
    free(memory);
    SURE(nvmedfs_close(fd) == 0 && nvmedfs_close(plain) == 0 && nvmedfs_unlink(fs, "direct") == 0);
}

/* ---- names and attributes */

static int entries(NVMEDFS *fs, const char *path)
{
    NVMEDFS_DIR *dir = nvmedfs_opendir(fs, path);
    int count = 0;
    SURE(dir != NULL);
    errno = 0;
    while (nvmedfs_readdir(dir) != NULL)
        count++;
    SURE(errno == 0 && nvmedfs_closedir(dir) == 0);
    return count;
}

static void names(NVMEDFS *fs)
{
    char buf[PATH_MAX];
    struct stat st, st2;
    int dir, fd, n;
    SURE(nvmedfs_umask(fs, 022) != (mode_t)-1 && nvmedfs_umask(fs, 022) == 022);
    SURE(nvmedfs_mkdir(fs, "/d", 0777) == 0 && nvmedfs_stat(fs, "d", &st) == 0 &&
         st.st_mode == (S_IFDIR | 0755) && st.st_nlink == 2);
    dir = nvmedfs_open(fs, "/d", O_RDONLY | O_DIRECTORY);
    SURE(dir >= 0 && nvmedfs_mkdirat(dir, "sub", 0700) == 0);
    fd = nvmedfs_openat(dir, "f", O_CREAT | O_RDWR, 0666);
    SURE(fd >= 0 && nvmedfs_write(fd, "text", 4) == 4 && nvmedfs_fstatat(dir, "f", &st, 0) == 0 &&
         st.st_size == 4 && st.st_mode == (S_IFREG | 0644));
    SURE(nvmedfs_fstatat(fd, "", &st2, AT_EMPTY_PATH) == 0 && st2.st_ino == st.st_ino && st2.st_dev == st.st_dev);
    SURE(nvmedfs_link(fs, "/d/f", "/d/g") == 0 && nvmedfs_fstat(fd, &st) == 0 && st.st_nlink == 2);
    SURE(nvmedfs_linkat(dir, "f", dir, "h", 0) == 0 && nvmedfs_unlinkat(dir, "h", 0) == 0);
    SURE(nvmedfs_symlink(fs, "d/f", "/l") == 0 && nvmedfs_symlinkat("../l", dir, "ll") == 0 && has(fs, "/d/ll", "text"));
    SURE(nvmedfs_readlink(fs, "/l", buf, sizeof buf) == 3 && memcmp(buf, "d/f", 3) == 0 &&
         nvmedfs_readlinkat(dir, "ll", buf, 2) == 2);
    SURE(nvmedfs_lstat(fs, "/l", &st) == 0 && S_ISLNK(st.st_mode) && nvmedfs_stat(fs, "/l", &st) == 0 && S_ISREG(st.st_mode));
    SURE(nvmedfs_realpath(fs, "/d/../d/ll", buf) == buf && strcmp(buf, "/d/f") == 0 &&
         nvmedfs_realpath(fs, "..", buf) && strcmp(buf, "/") == 0);
    NONE(ENOENT, nvmedfs_realpath(fs, "/nowhere", buf));
    FAILS(ELOOP, nvmedfs_open(fs, "/l", O_RDONLY | O_NOFOLLOW));
    FAILS(EISDIR, nvmedfs_open(fs, "/d", O_RDWR));
    FAILS(ENOTDIR, nvmedfs_open(fs, "/d/f", O_RDONLY | O_DIRECTORY));
    FAILS(ENOTDIR, nvmedfs_openat(fd, "x", O_RDONLY));
    SURE(nvmedfs_rename(fs, "/d/g", "/d/sub/g") == 0 && nvmedfs_renameat2(dir, "sub/g", dir, "g", RENAME_NOREPLACE) == 0);
    FAILS(EEXIST, nvmedfs_renameat2(dir, "f", dir, "g", RENAME_NOREPLACE));
    SURE(nvmedfs_renameat2(dir, "f", dir, "sub", RENAME_EXCHANGE) == 0 && has(fs, "/d/sub", "text"));
    SURE(nvmedfs_renameat2(dir, "f", dir, "sub", RENAME_EXCHANGE) == 0);
    SURE(nvmedfs_mkfifo(fs, "/d/fifo", 0600) == 0 && nvmedfs_mknodat(dir, "dev", S_IFCHR | 0600, 259) == 0);
    SURE(nvmedfs_fstatat(dir, "dev", &st, 0) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == 259);
    FAILS(ENXIO, nvmedfs_open(fs, "/d/fifo", O_RDWR));
    FAILS(ENOTEMPTY, nvmedfs_rmdir(fs, "/d"));
    SURE(nvmedfs_access(fs, "/d/f", R_OK | W_OK) == 0 && nvmedfs_faccessat(dir, "f", F_OK, 0) == 0);
    FAILS(ENOENT, nvmedfs_access(fs, "/d/none", F_OK));
    SURE(strstr(hs_error(), "/d/none") != NULL);

    /* A file without a name gets one. */
    n = nvmedfs_open(fs, "/d", O_TMPFILE | O_RDWR, 0600);
    SURE(n >= 0 && nvmedfs_write(n, "late", 4) == 4 &&
         nvmedfs_linkat(n, "", dir, "late", AT_EMPTY_PATH) == 0 && has(fs, "d/late", "late"));
    SURE(nvmedfs_close(n) == 0 && nvmedfs_close(fd) == 0);

    /* What is removed while it is open stays until then. */
    fd = nvmedfs_open(fs, "/d/late", O_RDONLY);
    SURE(nvmedfs_unlink(fs, "/d/late") == 0 && nvmedfs_read(fd, buf, 10) == 4 && nvmedfs_fstat(fd, &st) == 0 && st.st_nlink == 0);
    SURE(nvmedfs_close(fd) == 0 && entries(fs, "/d") == 2 + 6);
    SURE(nvmedfs_unlink(fs, "/d/dev") == 0 && nvmedfs_unlink(fs, "/d/fifo") == 0 && nvmedfs_unlink(fs, "/d/ll") == 0);
    SURE(nvmedfs_unlink(fs, "/d/g") == 0 && nvmedfs_unlink(fs, "/d/f") == 0 && nvmedfs_unlinkat(dir, "sub", AT_REMOVEDIR) == 0);
    SURE(nvmedfs_close(dir) == 0 && nvmedfs_rmdir(fs, "/d") == 0 && nvmedfs_unlink(fs, "/l") == 0);
}

static void attributes(NVMEDFS *fs)
{
    struct timespec times[2] = { { 1000, 5 }, { 0, UTIME_OMIT } };
    struct statvfs space;
    struct stat st;
    char buf[64];
    int fd = nvmedfs_open(fs, "/a", O_CREAT | O_RDWR, 0644);
    SURE(fd >= 0 && nvmedfs_symlink(fs, "a", "/la") == 0);
    SURE(nvmedfs_chmod(fs, "/a", 0600) == 0 && nvmedfs_fchmod(fd, 04711) == 0 &&
         nvmedfs_stat(fs, "/la", &st) == 0 && st.st_mode == (S_IFREG | 04711));
    SURE(nvmedfs_chown(fs, "/a", 11, 12) == 0 && nvmedfs_fchown(fd, (uid_t)-1, 13) == 0 && nvmedfs_lchown(fs, "/la", 21, 22) == 0);
    SURE(nvmedfs_fstat(fd, &st) == 0 && st.st_uid == 11 && st.st_gid == 13 &&
         nvmedfs_lstat(fs, "/la", &st) == 0 && st.st_uid == 21);
    SURE(nvmedfs_utimens(fs, "/a", times, 0) == 0 && nvmedfs_stat(fs, "/a", &st) == 0 &&
         st.st_atim.tv_sec == 1000 && st.st_atim.tv_nsec == 5);
    SURE(st.st_mtim.tv_sec > 1000 && nvmedfs_futimens(fd, NULL) == 0 && nvmedfs_fstat(fd, &st) == 0 && st.st_atim.tv_sec > 1000);
    times[0].tv_nsec = 1000000000;
    FAILS(EINVAL, nvmedfs_futimens(fd, times));

    SURE(nvmedfs_setxattr(fs, "/la", "user.one", "value", 5, 0) == 0 && nvmedfs_fgetxattr(fd, "user.one", buf, sizeof buf) == 5);
    SURE(memcmp(buf, "value", 5) == 0 && nvmedfs_getxattr(fs, "/a", "user.one", NULL, 0) == 5);
    FAILS(ERANGE, nvmedfs_getxattr(fs, "/a", "user.one", buf, 4));
    FAILS(EEXIST, nvmedfs_fsetxattr(fd, "user.one", "v", 1, XATTR_CREATE));
    FAILS(ENODATA, nvmedfs_fsetxattr(fd, "user.two", "v", 1, XATTR_REPLACE));
    FAILS(EPERM, nvmedfs_lsetxattr(fs, "/la", "user.one", "v", 1, 0));
    SURE(nvmedfs_flistxattr(fd, buf, sizeof buf) == 9 && strcmp(buf, "user.one") == 0 && nvmedfs_listxattr(fs, "/a", NULL, 0) == 9);
    SURE(nvmedfs_llistxattr(fs, "/la", buf, sizeof buf) == 0 && nvmedfs_removexattr(fs, "/a", "user.one") == 0);
    FAILS(ENODATA, nvmedfs_fremovexattr(fd, "user.one"));

    SURE(nvmedfs_statvfs(fs, &space) == 0 && space.f_bsize == 4096 && space.f_bfree <= space.f_blocks && space.f_namemax == 255);
    SURE(nvmedfs_fstatvfs(fd, &space) == 0 && nvmedfs_close(fd) == 0 && nvmedfs_unlink(fs, "/a") == 0 &&
         nvmedfs_unlink(fs, "/la") == 0);
}

static void directories(NVMEDFS *fs)
{
    char name[300];
    struct dirent *entry;
    NVMEDFS_DIR *dir, *second;
    long middle = -1;
    int n, seen = 0, again = 0, fd;
    SURE(nvmedfs_mkdir(fs, "/many", 0755) == 0);
    for (n = 0; n < 300; n++) {
        snprintf(name, sizeof name, "/many/%0200d", n);
        put(fs, name, "");
    }
    dir = nvmedfs_opendir(fs, "/many");
    while ((entry = nvmedfs_readdir(dir)) != NULL) {
        SURE(entry->d_type == (seen < 2 ? DT_DIR : DT_REG) && strlen(entry->d_name) == (seen == 0 ? 1u : seen == 1 ? 2u : 200u));
        if (++seen == 150)
            middle = nvmedfs_telldir(dir), strcpy(name, entry->d_name);
    }
    SURE(seen == 302 && middle > 0 && nvmedfs_seekdir(dir, middle) == 0);
    entry = nvmedfs_readdir(dir);
    SURE(entry != NULL && strcmp(entry->d_name, name) > 0 && strtol(entry->d_name, NULL, 10) == strtol(name, NULL, 10) + 1);
    SURE(nvmedfs_rewinddir(dir) == 0 && (entry = nvmedfs_readdir(dir)) != NULL && strcmp(entry->d_name, ".") == 0);
    fd = nvmedfs_open(fs, "/many", O_RDONLY | O_DIRECTORY);
    second = nvmedfs_fdopendir(fd);
    while (nvmedfs_readdir(second) != NULL)
        again++;
    SURE(again == 302 && nvmedfs_closedir(second) == 0 && nvmedfs_close(fd) == 0 && nvmedfs_closedir(dir) == 0);
    for (n = 0; n < 300; n++) {
        snprintf(name, sizeof name, "/many/%0200d", n);
        SURE(nvmedfs_unlink(fs, name) == 0);
    }
    SURE(entries(fs, "/many") == 2 && nvmedfs_rmdir(fs, "/many") == 0);
}

static void locks(NVMEDFS *fs)
{
    struct flock lock;
    int a = nvmedfs_open(fs, "/lock", O_CREAT | O_RDWR, 0600), b = nvmedfs_open(fs, "/lock", O_RDWR), c = nvmedfs_dup(a);
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    SURE(nvmedfs_flock(a, LOCK_EX) == 0 && nvmedfs_flock(c, LOCK_EX | LOCK_NB) == 0);
    FAILS(EWOULDBLOCK, nvmedfs_flock(b, LOCK_SH | LOCK_NB));
    SURE(nvmedfs_flock(a, LOCK_SH) == 0 && nvmedfs_flock(b, LOCK_SH | LOCK_NB) == 0);
    FAILS(EWOULDBLOCK, nvmedfs_flock(b, LOCK_EX | LOCK_NB));
    SURE(nvmedfs_close(a) == 0 && nvmedfs_close(c) == 0 && nvmedfs_flock(b, LOCK_EX | LOCK_NB) == 0);
    FAILS(EINVAL, nvmedfs_flock(b, 77));
    SURE(nvmedfs_fcntl(b, F_SETLK, &lock) == 0 && nvmedfs_fcntl(b, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    SURE(nvmedfs_close(b) == 0 && nvmedfs_unlink(fs, "/lock") == 0);
}

/* ---- transactions and requests */

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
    /* Each handle is told once; what is still in memory is there to be read. */
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

/* ---- threads */

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
        /* Under the lock of an open file of its own. */
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

/* ---- what is wrong */

static void hostile(NVMEDFS *fs)
{
    struct { struct nvmedfs_options known; uint64_t more; } newer;
    struct nvmedfs_stats stats;
    struct statx sx;
    struct iovec part = { NULL, 5 };
    char buf[8], long_name[300];
    NVMEDFS_DIR *dir;
    int fd = nvmedfs_creat(fs, "/h", 0600);
    FAILS(EBADF, nvmedfs_read(-1, buf, 1));
    FAILS(EBADF, nvmedfs_read(0, buf, 1));
    FAILS(EBADF, nvmedfs_read(1 << 30, buf, 1));
    FAILS(EBADF, nvmedfs_read(fd, buf, 1));
    FAILS(EBADF, nvmedfs_dup2(fd, 2));
    FAILS(EFAULT, nvmedfs_write(fd, NULL, 5));
    FAILS(EINVAL, nvmedfs_write(fd, buf, SIZE_MAX));
    FAILS(EINVAL, nvmedfs_pwrite(fd, buf, 1, -1));
    FAILS(EFBIG, nvmedfs_pwrite(fd, buf, 1, INT64_MAX - 8));
    FAILS(EFAULT, nvmedfs_writev(fd, &part, 1));
    FAILS(EINVAL, nvmedfs_writev(fd, &part, -1));
    FAILS(EINVAL, nvmedfs_writev(fd, &part, 2000));
    FAILS(EINVAL, nvmedfs_ftruncate(fd, -1));
    FAILS(EFBIG, nvmedfs_ftruncate(fd, INT64_MAX));
    FAILS(EINVAL, nvmedfs_fallocate(fd, 0, 0, 0));
    FAILS(EOPNOTSUPP, nvmedfs_fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    FAILS(EINVAL, nvmedfs_lseek(fd, 0, 99));
    FAILS(EINVAL, nvmedfs_fadvise(fd, 0, 0, 99));
    FAILS(EINVAL, nvmedfs_fcntl(fd, 9999));
    FAILS(EFAULT, nvmedfs_fcntl(fd, F_SETLK, NULL));
    SURE(nvmedfs_close(fd) == 0);
    FAILS(EBADF, nvmedfs_close(fd));
    /* A length no file has is as good as any, where there is less to read. */
    fd = nvmedfs_open(fs, "/h", O_RDONLY);
    SURE(nvmedfs_read(fd, buf, SSIZE_MAX) == 0);
    FAILS(EBADF, nvmedfs_write(fd, buf, 1));
    FAILS(EINVAL, nvmedfs_ftruncate(fd, 1));
    FAILS(EFAULT, nvmedfs_fstat(fd, NULL));
    SURE(nvmedfs_close(fd) == 0);
    FAILS(EFAULT, nvmedfs_open(fs, NULL, O_RDONLY));
    FAILS(ENOENT, nvmedfs_open(fs, "", O_RDONLY));
    FAILS(EBADF, nvmedfs_open(NULL, "/h", O_RDONLY));
    FAILS(EBADF, nvmedfs_open((NVMEDFS *)0x5551, "/h", O_RDONLY));
    FAILS(EBADF, nvmedfs_openat(77, "h", O_RDONLY));
    FAILS(EFAULT, nvmedfs_stat(fs, "/h", NULL));
    FAILS(EFAULT, nvmedfs_rename(fs, "/h", NULL));
    FAILS(EFAULT, nvmedfs_symlink(fs, NULL, "/x"));
    FAILS(EINVAL, nvmedfs_readlink(fs, "/h", buf, sizeof buf));
    FAILS(EINVAL, nvmedfs_access(fs, "/h", 77));
    FAILS(EINVAL, nvmedfs_statx(fs, "/h", 1 << 30, 0, &sx));
    FAILS(EINVAL, nvmedfs_mknod(fs, "/x", S_IFMT, 0));
    FAILS(EPERM, nvmedfs_mknod(fs, "/x", S_IFDIR, 0));
    memset(long_name, 'n', sizeof long_name), long_name[299] = 0;
    FAILS(ENAMETOOLONG, nvmedfs_mkdir(fs, long_name, 0755));
    FAILS(ERANGE, nvmedfs_setxattr(fs, "/h", "", "v", 1, 0));
    FAILS(EOPNOTSUPP, nvmedfs_setxattr(fs, "/h", "nonsense", "v", 1, 0));
    FAILS(EFAULT, nvmedfs_setxattr(fs, "/h", NULL, "v", 1, 0));
    FAILS(EFAULT, nvmedfs_get_stats(fs, NULL));
    stats.size = 0;
    FAILS(EINVAL, nvmedfs_get_stats(fs, &stats));
    FAILS(EFAULT, nvmedfs_statvfs(fs, NULL));

    dir = nvmedfs_opendir(fs, "/");
    SURE(dir != NULL);
    FAILS(EBADF, nvmedfs_unmount((NVMEDFS *)(void *)dir));
    NONE(EBADF, nvmedfs_readdir((NVMEDFS_DIR *)(void *)fs));
    FAILS(EINVAL, nvmedfs_seekdir(dir, -1));
    FAILS(EBUSY, nvmedfs_unmount(fs));
    SURE(strstr(hs_error(), "open on it") != NULL && nvmedfs_closedir(dir) == 0);
    FAILS(EBADF, nvmedfs_closedir(dir));
    NONE(EBADF, nvmedfs_readdir(dir));
    NONE(ENOTDIR, nvmedfs_opendir(fs, "/h"));
    NONE(EINVAL, nvmedfs_aio_create(fs, 0));
    NONE(EINVAL, nvmedfs_aio_create(fs, 1 << 20));
    NONE(EBADF, nvmedfs_begin(NULL));
    FAILS(EBADF, nvmedfs_commit(NULL));
    FAILS(EBADF, nvmedfs_sync(NULL));

    NONE(EFAULT, nvmedfs_mount(NULL, NULL));
    NONE(EINVAL, nvmedfs_mount("memory:nonsense", NULL));
    NONE(ENOENT, nvmedfs_mount("/nowhere/at/all", NULL));
    NONE(EINVAL, nvmedfs_mount("memory:64MiB", NULL));
    FAILS(EINVAL, nvmedfs_mkfs("memory:64KiB", NULL));
    SURE(nvmedfs_options_init(&newer.known, sizeof newer) == 0);
    newer.known.flags = 1u << 31;
    NONE(EINVAL, nvmedfs_mount("memory:64MiB", &newer.known));
    newer.known.flags = NVMEDFS_CREATE, newer.more = 1;
    NONE(E2BIG, nvmedfs_mount("memory:64MiB", &newer.known));
    newer.known.size = 3;
    NONE(EINVAL, nvmedfs_mount("memory:64MiB", &newer.known));
    FAILS(EFAULT, nvmedfs_options_init(NULL, sizeof newer));
    SURE(nvmedfs_unlink(fs, "/h") == 0);
}

/* ---- images and processes */

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

int main(int argc, char **argv)
{
    NVMEDFS *fs;
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "hold") == 0)
        hold(argv[2]);
    if (argc == 3 && strcmp(argv[1], "commit") == 0)
        commit_for_ever(argv[2]);
    if (argc != 2)
        return 2;
    fs = in_memory(0);
    content(fs);
    direct(fs);
    names(fs);
    attributes(fs);
    directories(fs);
    locks(fs);
    transactions(fs);
    changes_of_names(fs);
    requests(fs);
    hostile(fs);
    child(fs);
    threads(fs);
    SURE(nvmedfs_unmount(fs) == 0);
    FAILS(EBADF, nvmedfs_unmount(fs));
    bad_device();
    images(argv[1]);
    puts("all is well");
    return 0;
}
