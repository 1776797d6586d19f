/* replay CONFIG PAGES FILE [COMMAND]: reads pages of 4 KiB of FILE in the order of a list of page numbers (one a line) by upread.

   Prints one line for all requests, in nanoseconds. COMMAND is run by the shell afterwards, before the library is left: what the cache
   says of itself. Each page must have its own number in its first 8 bytes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <hotshelf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void die(const char *what) {
    fprintf(stderr, "replay: %s: %s\n", what, hs_error());
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint64_t *read_list(const char *path, size_t *count) {
    FILE *list = fopen(path, "r");
    size_t room = 0;
    uint64_t *pages = NULL;
    unsigned long long page;
    if (!list)
        die(path);
    for (*count = 0; fscanf(list, "%llu", &page) == 1; pages[(*count)++] = page) {
        if (*count == room) {
            room = room ? room * 2 : 65536;
            pages = realloc(pages, room * sizeof *pages);
            if (!pages)
                die("memory");
        }
    }
    fclose(list);
    if (*count == 0)
        die("there are no pages in the list");
    return pages;
}

int main(int argc, char **argv) {
    static uint64_t page[512];
    size_t count;
    if (argc < 4)
        return 2;
    uint64_t *pages = read_list(argv[2], &count);
    uint32_t *took = calloc(count, sizeof *took);
    if (!took || hs_init(argv[1]) != 0)
        die(argv[1]);
    int ufd = uopen(argv[3], O_RDONLY);
    if (ufd < 0)
        die(argv[3]);
    uint64_t sum = 0, all = now_ns();
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = now_ns();
        if (upread(ufd, page, sizeof page, (off_t)pages[i] * 4096) != sizeof page)
            die(argv[3]);
        uint64_t ns = now_ns() - begin;
        took[i] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
        sum += ns;
        if (page[0] != pages[i]) {
            fprintf(stderr, "replay: page %llu has other bytes\n", (unsigned long long)pages[i]);
            return 1;
        }
    }
    double seconds = (double)(now_ns() - all) / 1e9;
    qsort(took, count, sizeof *took, ascending);
    printf("side=hotshelf found=all requests=%zu per_second=%.0f mean_ns=%.0f p50_ns=%u p99_ns=%u p999_ns=%u\n", count,
           (double)count / seconds, (double)sum / (double)count, took[count / 2], took[count - 1 - count / 100],
           took[count - 1 - count / 1000]);
    fflush(stdout);
    if (argc > 4 && system(argv[4]) != 0)
        return 1;
    if (uclose(ufd) != 0 || hs_shutdown() != 0)
        die("at the end");
    return 0;
}
