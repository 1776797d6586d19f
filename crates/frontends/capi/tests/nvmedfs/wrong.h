/* What is wrong is an error, and does no harm. */
#pragma once

#include "begin.h"

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
