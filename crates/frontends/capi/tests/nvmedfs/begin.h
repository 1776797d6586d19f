/* What all parts of nvmedfs.c need. */
#pragma once

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

#include "../sure.h"

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
