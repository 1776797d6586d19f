/* Reads 4 KiB at random from a file through the u calls: what block's example `load` does on a raw device, both into memory that the
   queue knows.

   ssd-load FILE DEPTH SECONDS BATCH: upread at depth 1, else uaio_*, BATCH requests in one submission (0: all that take the place
   of what has ended, with the wait for the next). $HOTSHELF_CONFIG says which cache. Prints `iops=... cpu_us=...`; cpu_us is user and
   system time of the process for each request. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <hotshelf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAGE = 4096, DEPTH_MAX = 1024 };

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "ssd-load: %s: %s\n", what, hs_error());
    exit(1);
}

static off_t next_place(uint64_t pages)
{
    static uint64_t state;
    if (!state)
        state = (uint64_t)(now(CLOCK_REALTIME) * 1e9) | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (off_t)(uint64_t)((unsigned __int128)state * pages >> 64) * PAGE;
}

static uint64_t one_by_one(int ufd, char *memory, uint64_t pages, double end)
{
    uint64_t count = 0;
    /* The clock once for each, as the other side does. */
    for (; now(CLOCK_MONOTONIC) < end; count++)
        if (upread(ufd, memory, PAGE, next_place(pages)) != PAGE)
            fail("upread");
    return count;
}

static void submit(UAIO *aio, struct uaio *requests, int count, int batch)
{
    for (int done = 0; done < count;) {
        int some = batch > 0 && batch < count - done ? batch : count - done;
        if (uaio_submit(aio, requests + done, some) != some)
            fail("uaio_submit");
        done += some;
    }
}

static uint64_t many(int ufd, uint64_t pages, double end, int depth, int batch)
{
    static struct uaio requests[DEPTH_MAX];
    UAIO *aio = uaio_create_with((uint32_t)depth, UAIO_ONE_THREAD | UAIO_WAITS);
    if (!aio)
        fail("uaio_create_with");
    char *memory = uaio_memory(aio, (size_t)depth * PAGE);
    if (!memory)
        fail("uaio_memory");
    uint64_t count = 0;
    for (int i = 0; i < depth; i++)
        requests[i] = (struct uaio){.ufd = ufd, .op = UAIO_READ, .buf = memory + (size_t)i * PAGE, .n = PAGE, .off = next_place(pages)};
    submit(aio, requests, depth, batch);
    for (int left = depth, fresh = 0; left > 0;) {
        int got = uaio_submit_and_reap(aio, requests, fresh, requests, 1, depth, NULL);
        if (got < 0)
            fail("uaio_submit_and_reap");
        fresh = 0;
        for (int i = 0; i < got; i++) {
            if (requests[i].result != PAGE)
                fail("a read");
            requests[i].off = next_place(pages);
        }
        if (now(CLOCK_MONOTONIC) < end) {
            count += (uint64_t)got;
            if (batch > 0)
                submit(aio, requests, got, batch);
            else
                fresh = got;
        } else {
            left -= got;
        }
    }
    uaio_destroy(aio);
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int depth = atoi(argv[2]), batch = atoi(argv[4]);
    double seconds = atof(argv[3]);
    struct stat st;
    char *memory = depth > 0 && depth <= DEPTH_MAX ? aligned_alloc(PAGE, PAGE) : NULL;
    int ufd = uopen(argv[1], O_RDONLY);
    if (!memory || ufd < 0 || ufstat(ufd, &st) != 0 || st.st_size < PAGE)
        fail(argv[1]);
    uint64_t pages = (uint64_t)st.st_size / PAGE;
    double cpu = now(CLOCK_PROCESS_CPUTIME_ID), end = now(CLOCK_MONOTONIC) + seconds;
    uint64_t count = depth == 1 ? one_by_one(ufd, memory, pages, end) : many(ufd, pages, end, depth, batch);
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("iops=%.0f cpu_us=%.3f\n", (double)count / seconds, cpu * 1e6 / (double)(count ? count : 1));
    uclose(ufd);
    return 0;
}
