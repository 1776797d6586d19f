/* Files that another program changed while pages of them were newer in the cache, and their three ways out: hs_export, hs_discard and
   hs_force. The directory is given, and whether there is an SSD. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sure.h"

enum { LENGTH = 20000, PAGE = 4096 };

static char bytes[65536];

static void put(const char *path, int flags, int byte, size_t n)
{
    int fd = open(path, flags, 0644);
    SURE(fd >= 0);
    memset(bytes, byte, n);
    SURE(write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
}

/* The file has this byte in this range. */
static void has(const char *path, int byte, size_t from, size_t to, size_t length)
{
    int fd = open(path, O_RDONLY);
    SURE(fd >= 0 && read(fd, bytes, sizeof bytes) == (ssize_t)length && close(fd) == 0);
    for (size_t at = from; at < to; at++)
        SURE(bytes[at] == byte);
}

/* The second page is newer in the cache; its length and all other bytes another program has changed. */
static void strand(const char *path)
{
    int ufd;
    put(path, O_WRONLY | O_CREAT | O_TRUNC, 1, LENGTH);
    SURE((ufd = uopen(path, O_RDWR)) >= 0);
    memset(bytes, 2, PAGE);
    SURE(upwrite(ufd, bytes, PAGE, PAGE) == PAGE);
    put(path, O_WRONLY, 3, LENGTH + 5000);
    FAILS(ESTALE, ufsync(ufd));
    SURE(strstr(hs_error(), path) != NULL && strstr(hs_error(), "hotshelf cache export") != NULL);
    FAILS(ESTALE, uopen(path, O_RDONLY));
    SURE(uclose(ufd) == 0 || errno == ESTALE);
}

int main(int argc, char **argv)
{
    char config[4200], path[4200], again[4200], other[4200], copy[4200];
    FILE *file;
    int ufd;
    struct stat st;
    if (argc < 3)
        return 2;
    snprintf(config, sizeof config, "%s/config.toml", argv[1]);
    snprintf(path, sizeof path, "%s/file", argv[1]);
    snprintf(again, sizeof again, "%s/again", argv[1]);
    snprintf(other, sizeof other, "%s/other", argv[1]);
    snprintf(copy, sizeof copy, "%s/copy", argv[1]);
    SURE((file = fopen(config, "w")) != NULL);
    fprintf(file, "[cache]\nmemory = \"512KiB\"\ndirty_age = \"1h\"\nruntime_dir = \"%s\"\n", argv[1]);
    if (strcmp(argv[2], "ssd") == 0)
        fprintf(file, "ssd = \"%s/ssd\"\nssd_size = \"4MiB\"\n", argv[1]);
    SURE(fclose(file) == 0);
    SURE(hs_init(config) == 0);

    /* Nothing to decide. */
    put(path, O_WRONLY | O_CREAT | O_TRUNC, 1, LENGTH);
    FAILS(ENOENT, hs_export(path, copy));
    FAILS(ENOENT, hs_discard(path));
    FAILS(ENOENT, hs_force(path));
    FAILS(EFAULT, hs_export(NULL, copy));
    FAILS(EFAULT, hs_export(path, NULL));
    FAILS(EFAULT, hs_discard(NULL));
    FAILS(EFAULT, hs_force(NULL));

    strand(path);
    /* No other file suffers. */
    SURE((ufd = uopen(other, O_RDWR | O_CREAT, 0644)) >= 0);
    memset(bytes, 7, sizeof bytes);
    for (int i = 0; i < 32; i++)
        SURE(uwrite(ufd, bytes, sizeof bytes) == sizeof bytes);
    SURE(ufsync(ufd) == 0 && uclose(ufd) == 0);
    SURE(hs_export(path, copy) == 0);
    has(copy, 2, PAGE, 2 * PAGE, LENGTH);
    has(copy, 3, 0, PAGE, LENGTH);
    has(path, 3, 0, LENGTH + 5000, LENGTH + 5000);
    SURE(stat(copy, &st) == 0 && (st.st_mode & 0777) == 0600);
    FAILS(EEXIST, hs_export(path, copy));
    SURE(hs_discard(path) == 0);
    SURE((ufd = uopen(path, O_RDWR)) >= 0 && uread(ufd, bytes, sizeof bytes) == LENGTH + 5000);
    for (int at = 0; at < LENGTH + 5000; at++)
        SURE(bytes[at] == 3);
    SURE(upwrite(ufd, "on", 2, 0) == 2 && ufsync(ufd) == 0 && uclose(ufd) == 0);
    FAILS(ENOENT, hs_discard(path));

    strand(again);
    SURE(hs_force(again) == 0);
    has(again, 2, PAGE, 2 * PAGE, LENGTH);
    has(again, 3, 0, PAGE, LENGTH);
    FAILS(ENOENT, hs_force(again));

    /* Given up by opening it to be cut: no. What is in conflict stays until somebody decides. */
    strand(again);
    FAILS(ESTALE, uopen(again, O_RDWR | O_TRUNC));
    has(again, 3, 0, LENGTH + 5000, LENGTH + 5000);
    SURE(hs_discard(again) == 0);
    SURE(hs_shutdown() == 0);
    printf("all is well\n");
    return 0;
}
