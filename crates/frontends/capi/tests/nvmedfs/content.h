/* What is read is what was written. */
#pragma once

#include "begin.h"

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
