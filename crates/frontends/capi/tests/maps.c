/* Mappings of files that are cached (ummap), with an SSD and without: each shows at each moment what uread would, and what plain mmap(2)
   does where a file became shorter. The directory is given. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sure.h"

enum { PAGE = 4096, PAGES = 40 };

static sigjmp_buf fault;

static void on_fault(int number)
{
    siglongjmp(fault, number);
}

/* The signal that a look at this byte raises; 0: none. */
static int raises(const char *at)
{
    struct sigaction handler = {0}, before;
    int number;
    handler.sa_handler = on_fault;
    SURE(sigaction(SIGBUS, &handler, &before) == 0);
    number = sigsetjmp(fault, 1);
    if (number == 0)
        (void)*(volatile const char *)at;
    SURE(sigaction(SIGBUS, &before, NULL) == 0);
    return number;
}

/* The mapping shows what is read. */
static void agrees(int ufd, const char *map, size_t n)
{
    static char bytes[PAGES * PAGE];
    SURE(upread(ufd, bytes, n, 0) == (ssize_t)n);
    SURE(memcmp(map, bytes, n) == 0);
}

static void fill(int ufd, int byte, off_t at, size_t n)
{
    static char bytes[PAGES * PAGE];
    memset(bytes, byte, n);
    SURE(upwrite(ufd, bytes, n, at) == (ssize_t)n);
}

static void shows_what_is_read(const char *path)
{
    const size_t n = (size_t)PAGES * PAGE;
    int ufd = uopen(path, O_RDWR | O_CREAT | O_TRUNC, 0644), again;
    const char *map, *other;
    SURE(ufd >= 0);
    /* Some of it on the SSD (or below), some in memory alone. */
    fill(ufd, 1, 0, n / 2);
    SURE(ufsync(ufd) == 0);
    fill(ufd, 2, (off_t)n / 2 - 100, n / 2 + 100);
    map = ummap(NULL, n, PROT_READ, MAP_SHARED, ufd, 0);
    SURE(map != MAP_FAILED);
    agrees(ufd, map, n);
    for (int round = 3; round < 60; round++) {
        fill(ufd, round, round * 1000, 5000);
        agrees(ufd, map, n);
        if (round % 7 == 0)
            SURE(ufsync(ufd) == 0);
        if (round % 9 == 0)
            SURE(ufallocate(ufd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, round * 700, 9000) == 0);
        agrees(ufd, map, n);
    }
    /* One more, through another open, and what is written past the cache through a mapping. */
    SURE((again = uopen(path, O_RDWR)) >= 0);
    other = ummap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
    SURE(other != MAP_FAILED);
    for (int round = 0; round < 20; round++) {
        memset((char *)other + round * 2000, round, 3000);
        agrees(ufd, map, n);
        fill(again, 100 + round, round * 3000, 2000);
        agrees(ufd, other, n);
    }
    SURE(munmap((void *)other, n) == 0 && uclose(again) == 0);
    /* It stays when the file is closed. */
    SURE(uclose(ufd) == 0);
    SURE((ufd = uopen(path, O_RDWR)) >= 0);
    fill(ufd, 77, 0, n);
    agrees(ufd, map, n);
    SURE(munmap((void *)map, n) == 0 && uclose(ufd) == 0);
}

/* Another program makes the file shorter, and longer again. */
static void faults_where_mmap_does(const char *path, const char *plain)
{
    const size_t n = (size_t)PAGES * PAGE;
    int ufd = uopen(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    int fd = open(plain, O_RDWR | O_CREAT | O_TRUNC, 0644);
    const char *maps[2];
    off_t lengths[] = {(off_t)n, 3 * PAGE + 5, 2 * PAGE, 0, 7 * PAGE + 1, (off_t)n};
    SURE(ufd >= 0 && fd >= 0);
    fill(ufd, 9, 0, n);
    SURE(ufsync(ufd) == 0);
    fill(ufd, 8, 5 * PAGE, PAGE);
    for (size_t at = 0; at < n; at += PAGE) {
        static char page[PAGE];
        SURE(upread(ufd, page, PAGE, (off_t)at) == PAGE && pwrite(fd, page, PAGE, (off_t)at) == PAGE);
    }
    maps[0] = ummap(NULL, n, PROT_READ, MAP_SHARED, ufd, 0);
    maps[1] = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
    SURE(maps[0] != MAP_FAILED && maps[1] != MAP_FAILED);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct stat st;
        SURE(truncate(path, lengths[i]) == 0 && ftruncate(fd, lengths[i]) == 0);
        SURE(ufsync(ufd) == 0);
        SURE(ufstat(ufd, &st) == 0 && st.st_size == lengths[i]);
        for (size_t page = 0; page < PAGES; page++) {
            int expected = (off_t)(page * PAGE) < lengths[i] ? 0 : SIGBUS;
            SURE(raises(maps[1] + page * PAGE) == expected);
            SURE(raises(maps[0] + page * PAGE) == expected);
            if (expected == 0)
                SURE(memcmp(maps[0] + page * PAGE, maps[1] + page * PAGE, PAGE) == 0);
        }
        agrees(ufd, maps[0], (size_t)lengths[i]);
    }
    SURE(munmap((void *)maps[0], n) == 0 && munmap((void *)maps[1], n) == 0);
    SURE(uclose(ufd) == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
    char config[4200], path[4200], plain[4200];
    FILE *file;
    int has_ssd;
    if (argc < 3)
        return 2;
    has_ssd = strcmp(argv[2], "ssd") == 0;
    snprintf(config, sizeof config, "%s/config.toml", argv[1]);
    snprintf(path, sizeof path, "%s/file", argv[1]);
    snprintf(plain, sizeof plain, "%s/plain", argv[1]);
    SURE((file = fopen(config, "w")) != NULL);
    fprintf(file, "[cache]\nmemory = \"512KiB\"\ndirty_age = \"1h\"\nruntime_dir = \"%s\"\n", argv[1]);
    if (has_ssd)
        fprintf(file, "ssd = \"%s/ssd\"\nssd_size = \"4MiB\"\n", argv[1]);
    SURE(fclose(file) == 0);
    SURE(hs_init(config) == 0);
    shows_what_is_read(path);
    faults_where_mmap_does(path, plain);
    SURE(hs_shutdown() == 0);
    printf("all is well\n");
    return 0;
}
