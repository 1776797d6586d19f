/* What a call costs on pages that are in memory: the library's, the kernel's on a file in its page cache, and memcpy alone.

     page-cache calls CONFIG DIR MIB ROUNDS    one thread, all calls by turns; nanoseconds for each, medians of the rounds
     page-cache plain CONFIG DIR MIB ROUNDS    the same of the calls that have an equal in the kernel, with their ratio
     page-cache scale CONFIG DIR MIB ROUNDS    reads a second of one thread; how many times that of two, and of two processes, each
                                               on a separate CPU
     page-cache tail CONFIG DIR MIB SECONDS    p50, p99, p99.9 of single reads alone, and while another process makes the
                                               library (the kernel) write 64 MiB at a time to where they last
     page-cache count CONFIG DIR MIB CALL N    the call N times and nothing else, for callgrind

   DIR gets two files of MIB, for the kernel is not to write into what our cache has; their pages are in the caches before anything is
   measured. In `plain`, where it has nothing, the kernel's calls and the library's have each of them for half of a round. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <hotshelf.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_ROUNDS = 101 };

static char path[4096], their_path[4096]; /* ours, the kernel's */
static size_t pages;

static void die(const char *what) {
    int because = errno;
    const char *ours = hs_error();
    fprintf(stderr, "page-cache: %s: %s%s%s\n", what, strerror(because), ours && *ours ? ": " : "", ours ? ours : "");
    exit(1);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* One who calls: its file in both ways, its buffer, its random numbers. */
struct caller {
    int fd, ufd;
    char *memory; /* the set for memcpy, or NULL */
    char *buffer;
    uint64_t seed;
};

static inline uint64_t next(struct caller *c) {
    c->seed ^= c->seed << 13;
    c->seed ^= c->seed >> 7;
    c->seed ^= c->seed << 17;
    return c->seed;
}

/* Without a division: the upper half of a product. */
static inline off_t any_page(struct caller *c) { return (off_t)((unsigned __int128)next(c) * pages >> 64) * PAGE; }
static inline off_t any_64(struct caller *c) { return any_page(c) + (off_t)(c->seed & 63) * 64; }

static inline void good(ssize_t done, ssize_t wanted, const char *what) {
    if (__builtin_expect(done != wanted, 0))
        die(what);
}

/* What is measured. The compiler must not drop the copies. */
#define KEEP(c) __asm__ volatile("" : : "r"((c)->buffer) : "memory")
#define CALL(name, body)                            \
    static void name(struct caller *c, long n) {    \
        while (n-- > 0)                             \
            body;                                   \
    }

CALL(nothing, { any_page(c); KEEP(c); })
CALL(memcpy_4k, { memcpy(c->buffer, c->memory + any_page(c), PAGE); KEEP(c); })
CALL(memcpy_64, { memcpy(c->buffer, c->memory + any_64(c), 64); KEEP(c); })
CALL(memput_4k, { memcpy(c->memory + any_page(c), c->buffer, PAGE); KEEP(c); })
CALL(pread_4k, good(pread(c->fd, c->buffer, PAGE, any_page(c)), PAGE, "pread"))
CALL(pread_64, good(pread(c->fd, c->buffer, 64, any_64(c)), 64, "pread"))
CALL(pwrite_4k, good(pwrite(c->fd, c->buffer, PAGE, any_page(c)), PAGE, "pwrite"))
CALL(upread_4k, good(upread(c->ufd, c->buffer, PAGE, any_page(c)), PAGE, "upread"))
CALL(upread_64, good(upread(c->ufd, c->buffer, 64, any_64(c)), 64, "upread"))
CALL(upwrite_4k, good(upwrite(c->ufd, c->buffer, PAGE, any_page(c)), PAGE, "upwrite"))
CALL(pin_4k, {
    const void *at;
    off_t page = any_page(c);
    good(upin(c->ufd, page, PAGE, &at), PAGE, "upin");
    __asm__ volatile("" : : "r"(*(const char *)at) : "memory"); /* a byte of it is looked at */
    good(uunpin(c->ufd, page, at), 0, "uunpin");
})

/* Those with a position: a random place first, then a stretch of 16 pages, so that most calls are plain ones. */
static void read_4k(struct caller *c, long n) {
    for (long i = 0; i < n; i++) {
        if (i % 16 == 0 && lseek(c->fd, any_page(c), SEEK_SET) < 0)
            die("lseek");
        if (read(c->fd, c->buffer, PAGE) != PAGE && lseek(c->fd, 0, SEEK_SET) < 0)
            die("read");
    }
}

static void uread_4k(struct caller *c, long n) {
    for (long i = 0; i < n; i++) {
        if (i % 16 == 0 && ulseek(c->ufd, any_page(c), SEEK_SET) < 0)
            die("ulseek");
        if (uread(c->ufd, c->buffer, PAGE) != PAGE && ulseek(c->ufd, 0, SEEK_SET) < 0)
            die("uread");
    }
}

struct call {
    const char *name;
    void (*run)(struct caller *, long);
    const char *against; /* the ratio is to this one */
    double goal;         /* at most */
    int plain;           /* for `plain`, too */
};

/* Reads before writes, those with few accesses of memory last: neighbours in a round share the machine's mood. */
static struct call calls[] = {
    {"memcpy_4k", memcpy_4k, "pread_4k", 0, 0}, {"pread_4k", pread_4k, NULL, 0, 1},
    {"upread_4k", upread_4k, "pread_4k", 0, 1}, {"read_4k", read_4k, NULL, 0, 1},
    {"uread_4k", uread_4k, "read_4k", 0, 1},    {"pin_4k", pin_4k, "pread_4k", 0.20, 0},
    {"memcpy_64", memcpy_64, "pread_64", 0, 0}, {"pread_64", pread_64, NULL, 0, 1},
    {"upread_64", upread_64, "pread_64", 0.30, 1}, {"memput_4k", memput_4k, "pwrite_4k", 0, 0},
    {"pwrite_4k", pwrite_4k, NULL, 0, 1},      {"upwrite_4k", upwrite_4k, "pwrite_4k", 0.30, 1},
};
enum { CALLS = sizeof calls / sizeof *calls };

/* The page's number is in its first bytes: a wrong page is seen. */
static void make_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        die(path);
    static uint64_t page[PAGE / 8];
    for (size_t n = 0; n < pages; n++) {
        for (int i = 0; i < PAGE / 8; i++)
            page[i] = n;
        good(pwrite(fd, page, PAGE, (off_t)n * PAGE), PAGE, path);
    }
    if (fsync(fd) != 0 || close(fd) != 0)
        die(path);
}

static void open_kernel(struct caller *c) {
    c->fd = open(their_path, O_RDWR);
    if (c->fd < 0)
        die(their_path);
}

static void make_buffer(struct caller *c) {
    c->buffer = aligned_alloc(PAGE, PAGE);
    if (!c->buffer)
        die("memory");
    memset(c->buffer, 7, PAGE);
    c->seed = 0x9E3779B97F4A7C15u ^ ((uint64_t)(uintptr_t)c << 1);
}

static void open_ours(struct caller *c) {
    c->ufd = uopen(path, O_RDWR);
    if (c->ufd < 0)
        die(path);
}

/* The two files change places. */
static void swap_files(struct caller *c) {
    char ours[sizeof path];
    if (uclose(c->ufd) != 0 || close(c->fd) != 0)
        die("closing");
    memcpy(ours, path, sizeof ours);
    memcpy(path, their_path, sizeof path);
    memcpy(their_path, ours, sizeof their_path);
    open_kernel(c);
    open_ours(c);
}

/* Every page is looked at twice in both caches, ours for the right bytes. With ORDER=scattered the pages come to memory in another
   order than the file's. */
static void warm(struct caller *c) {
    const char *order = getenv("ORDER");
    size_t step = order && strcmp(order, "scattered") == 0 ? 2654435761u : 1; /* a prime: every page once */
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < pages; i++) {
            size_t n = i * step % pages;
            uint64_t wanted = n;
            good(pread(c->fd, c->buffer, PAGE, (off_t)n * PAGE), PAGE, "pread");
            good(upread(c->ufd, c->buffer, PAGE, (off_t)n * PAGE), PAGE, "upread");
            if (memcmp(c->buffer, &wanted, 8) != 0) {
                fprintf(stderr, "page-cache: page %zu of %s has other bytes\n", n, path);
                exit(1);
            }
        }
}

/* As much memory as the set, taken in small pages or large ones as the machine does it for everybody. */
static char *memory_set(void) {
    char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    memset(memory, 1, pages * PAGE);
    return memory;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int call_named(const char *name) {
    for (int i = 0; i < CALLS; i++)
        if (strcmp(calls[i].name, name) == 0)
            return i;
    fprintf(stderr, "page-cache: no call %s\n", name);
    exit(2);
}

/* Of this process, those that read or write: for what a call that should find its page did instead. */
static long system_calls(void) {
    long reads = 0, writes = 0;
    FILE *io = fopen("/proc/self/io", "r");
    char line[128];
    while (io && fgets(line, sizeof line, io))
        if (sscanf(line, "syscr: %ld", &reads) != 1 && sscanf(line, "syscw: %ld", &writes) == 1)
            break;
    if (io)
        fclose(io);
    return reads + writes;
}

static double took[CALLS][MAX_ROUNDS], ratios[CALLS][MAX_ROUNDS], missed[CALLS];

static double goal_of(const struct call *call, int plain) {
    if (plain)
        return 1.05;
    if (strcmp(call->name, "upread_4k") == 0 || strcmp(call->name, "uread_4k") == 0)
        return pages <= 16 * 256 ? 0.65 : 0.80;
    return call->goal;
}

/* Makes each call n times, of `whole` in a round. Measures wall-clock time; with CPU_TIME=1 the CPU time of this thread, for machines
   whose CPUs other programs use, too. */
static void each_call(struct caller *c, int round, int plain, long n, long whole) {
    clockid_t clock = getenv("CPU_TIME") ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    for (int i = 0; i < CALLS; i++) {
        int of = (i + round) % CALLS; /* each call follows another one in the end */
        if (plain && !calls[of].plain)
            continue;
        calls[of].run(c, plain ? n : n / 10); /* what the kernel keeps of each page is near for both, whatever was called before */
        long before = system_calls();
        uint64_t begin = clock_ns(clock);
        calls[of].run(c, n);
        took[of][round] += (double)(clock_ns(clock) - begin) / (double)whole;
        missed[of] += (double)(system_calls() - before - 1) / (double)whole;
    }
}

/* Where the pages of a file lie in the machine's memory is chance, and a tenth of the kernel's time: pass-through has each of the two
   files for half of a round. */
static void one_round(struct caller *c, int round, int plain, long n) {
    each_call(c, round, plain, plain ? n / 2 : n, n);
    if (plain) {
        swap_files(c);
        each_call(c, round, plain, n / 2, n);
    }
    for (int i = 0; i < CALLS; i++)
        if (calls[i].against && took[i][round] > 0)
            ratios[i][round] = took[i][round] / took[call_named(calls[i].against)][round];
}

static void measure_calls(struct caller *c, int rounds, int plain) {
    long n = getenv("CALLS") ? atol(getenv("CALLS")) : 40000;
    for (int round = 0; round < rounds; round++)
        one_round(c, round, plain, n);
    for (int i = 0; i < CALLS; i++) {
        if (plain && !calls[i].plain)
            continue;
        double goal = goal_of(&calls[i], plain), ns = median(took[i], rounds);
        printf("call=%s mib=%zu ns=%.0f", calls[i].name, pages / 256, ns);
        if (calls[i].against && !(plain && calls[i].name[0] != 'u'))
            printf(" ratio=%.3f against=%s", median(ratios[i], rounds), calls[i].against);
        if (calls[i].name[0] == 'u' || calls[i].name[0] == 'p' * (calls[i].name[1] == 'i'))
            printf(" goal=%.2f system_calls=%.3f", goal, missed[i] / rounds);
        printf("\n");
    }
}

/* A step of `scale`: the workers that take part, and their call. Shared with the processes. */
struct step {
    pthread_barrier_t begin, end;
    int call;     /* -1: it is over */
    int who;      /* a bit for each worker */
    uint64_t until_ns;
    long done[3];
    double took_ns[3]; /* CPU time of the worker */
};

/* Aligned to separate cache lines, because its random numbers change with each call. */
struct worker {
    _Alignas(128) struct step *step;
    int number, cpu;
    struct caller caller;
};

/* A number from the kernel's topology of a CPU; -1: the kernel does not report it. */
static int topology(int cpu, const char *what) {
    char name[96];
    int number = -1;
    snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
    FILE *file = fopen(name, "r");
    if (file && fscanf(file, "%d", &number) != 1)
        number = -1;
    if (file)
        fclose(file);
    return number;
}

/* The first CPU that this process may use, or the first of another core; -1: there is none. */
static int cpu(int second) {
    cpu_set_t may;
    int first = -1, any = -1;
    if (sched_getaffinity(getpid(), sizeof may, &may) != 0)
        die("sched_getaffinity");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &may))
            continue;
        if (first < 0)
            first = cpu;
        else if (any < 0)
            any = cpu;
        if (second && cpu != first &&
            (topology(cpu, "core_id") != topology(first, "core_id") ||
             topology(cpu, "physical_package_id") != topology(first, "physical_package_id")))
            return cpu;
    }
    return second ? any : first;
}

static void *work(void *of) {
    struct worker *w = of;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(w->cpu, &mine);
    if (sched_setaffinity(0, sizeof mine, &mine) != 0)
        die("sched_setaffinity");
    for (;;) {
        pthread_barrier_wait(&w->step->begin);
        if (w->step->call < 0)
            return NULL;
        if (w->step->who >> w->number & 1) {
            long done = 0;
            uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
            while (now_ns() < w->step->until_ns) {
                calls[w->step->call].run(&w->caller, 500);
                done += 500;
            }
            w->step->done[w->number] = done;
            w->step->took_ns[w->number] = (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin);
        }
        pthread_barrier_wait(&w->step->end);
    }
}

static void make_worker(struct worker *w, struct step *step, int number, char *memory) {
    w->step = step;
    w->number = number;
    w->cpu = cpu(number != 0);
    if (w->cpu < 0) {
        errno = ENODEV;
        die("there is one cpu only");
    }
    make_buffer(&w->caller);
    open_kernel(&w->caller);
    open_ours(&w->caller);
    w->caller.memory = memory;
    w->caller.seed += (uint64_t)number * 0x1234567u;
}

/* A process with `threads` workers, numbered from `first`. */
static pid_t worker_process(struct step *step, int first, int threads, const char *config) {
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    static struct worker workers[2];
    pthread_t thread;
    if (hs_init(config) != 0)
        die(config);
    char *memory = memory_set();
    for (int i = 0; i < threads; i++)
        make_worker(&workers[i], step, first + i, memory);
    warm(&workers[0].caller);
    if (threads == 2 && pthread_create(&thread, NULL, work, &workers[1]) != 0)
        die("pthread_create");
    work(&workers[0]);
    if (threads == 2)
        pthread_join(thread, NULL);
    exit(0);
}

/* Calls a second: by wall-clock time; and by CPU time, as if no other program used the CPUs. */
struct rate {
    double clock, cpu;
};

static struct rate rate(struct step *step, int call, int who) {
    double ns = 150e6;
    struct rate sum = {0, 0};
    memset(step->done, 0, sizeof step->done);
    step->call = call;
    step->who = who;
    step->until_ns = now_ns() + (uint64_t)ns;
    pthread_barrier_wait(&step->begin);
    pthread_barrier_wait(&step->end);
    for (int i = 0; i < 3; i++)
        if (step->done[i] > 0) {
            sum.clock += (double)step->done[i] / ns * 1e9;
            sum.cpu += (double)step->done[i] / step->took_ns[i] * 1e9;
        }
    return sum;
}

static void measure_scale(const char *config, int rounds) {
    static const char *names[] = {"memcpy_4k", "pread_4k", "upread_4k", "pread_64", "upread_64", "pin_4k"};
    struct step *step = mmap(NULL, sizeof *step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&step->begin, &shared, 4);
    pthread_barrier_init(&step->end, &shared, 4);
    pid_t first = worker_process(step, 0, 2, config), second = worker_process(step, 2, 1, config);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static double one[MAX_ROUNDS], threads[2][MAX_ROUNDS], processes[2][MAX_ROUNDS];
        int call = call_named(names[i]);
        for (int round = 0; round < rounds; round++) {
            /* Processors of a virtual machine are not equally fast: one alone is what each of the two does alone, in the mean. */
            struct rate first = rate(step, call, 1), two = rate(step, call, 1 | 2), second = rate(step, call, 2);
            struct rate both = rate(step, call, 1 | 4), other = rate(step, call, 4);
            one[round] = (first.clock + second.clock) / 2;
            threads[0][round] = two.clock * 2 / (first.clock + second.clock);
            threads[1][round] = two.cpu * 2 / (first.cpu + second.cpu);
            processes[0][round] = both.clock * 2 / (first.clock + other.clock);
            processes[1][round] = both.cpu * 2 / (first.cpu + other.cpu);
        }
        printf("call=%s mib=%zu one=%.0f two_threads=%.2f two_processes=%.2f by_processor_time=%.2f,%.2f%s\n", names[i], pages / 256,
               median(one, rounds), median(threads[0], rounds), median(processes[0], rounds), median(threads[1], rounds),
               median(processes[1], rounds), names[i][0] == 'u' ? " goal=1.80" : "");
        fflush(stdout);
    }
    step->call = -1;
    pthread_barrier_wait(&step->begin);
    int status, worst = 0;
    if (waitpid(first, &status, 0) == first)
        worst |= status;
    if (waitpid(second, &status, 0) == second)
        worst |= status;
    if (worst != 0)
        exit(1);
}

/* Latencies in steps of 1/16 of their size. */
enum { BUCKETS = 64 * 16 };

static int bucket(uint64_t ns) {
    if (ns < 16)
        return (int)ns;
    int log = 63 - __builtin_clzll(ns);
    return (log - 3) * 16 + (int)(ns >> (log - 4) & 15);
}

static uint64_t of_bucket(int at) {
    int log = at / 16 + 3;
    return at < 16 ? (uint64_t)at : (uint64_t)(16 + at % 16) << (log - 4);
}

struct tail {
    double p50, p99, p999, worst;
};

static struct tail percentiles(const uint64_t *counts, uint64_t all) {
    struct tail t = {0, 0, 0, 0};
    uint64_t seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        if (counts[i] == 0)
            continue;
        seen += counts[i];
        double ns = (double)of_bucket(i);
        if (t.p50 == 0 && seen >= all / 2)
            t.p50 = ns;
        if (t.p99 == 0 && seen >= all - all / 100)
            t.p99 = ns;
        if (t.p999 == 0 && seen >= all - all / 1000)
            t.p999 = ns;
        t.worst = ns;
    }
    return t;
}

static struct tail tail_of(struct caller *c, int call, double seconds) {
    static uint64_t counts[BUCKETS];
    uint64_t all = 0, end = now_ns() + (uint64_t)(seconds * 1e9), before = now_ns();
    memset(counts, 0, sizeof counts);
    while (before < end) {
        calls[call].run(c, 1);
        uint64_t after = now_ns();
        counts[bucket(after - before)]++;
        all++;
        before = after;
    }
    return percentiles(counts, all);
}

/* Writes 64 MiB and syncs it, again and again: one thread of it is busy, or that which writes for it, not both. */
static pid_t disturber(const char *config, const char *dir, int ours) {
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    static char page[PAGE], other[4200];
    snprintf(other, sizeof other, "%s/disturbed", dir);
    if (ours && hs_init(config) != 0)
        die(config);
    int fd = ours ? uopen(other, O_RDWR | O_CREAT, 0600) : open(other, O_RDWR | O_CREAT, 0600);
    if (fd < 0)
        die(other);
    for (uint64_t round = 1;; round++) {
        memset(page, (int)round, sizeof page);
        for (off_t n = 0; n < 16384; n++) {
            /* Scattered, so that there is something to sort. */
            off_t at = n * 40503 % 16384 * PAGE;
            good(ours ? upwrite(fd, page, PAGE, at) : pwrite(fd, page, PAGE, at), PAGE, "write");
        }
        if ((ours ? ufsync(fd) : fsync(fd)) != 0)
            die("sync");
    }
}

static void show_tail(const char *call, const char *how, struct tail t, double ratio) {
    printf("call=%s mib=%zu migration=%s p50_ns=%.0f p99_ns=%.0f p999_ns=%.0f max_us=%.0f", call, pages / 256, how, t.p50, t.p99, t.p999,
           t.worst / 1000);
    if (ratio > 0)
        printf(" p999_ratio=%.2f%s", ratio, call[0] == 'u' ? " goal=3.00" : "");
    printf("\n");
    fflush(stdout);
}

static void measure_tail(struct caller *c, const char *config, const char *dir, double seconds) {
    static const char *names[] = {"pread_4k", "upread_4k"};
    for (int ours = 0; ours < 2; ours++) {
        int call = call_named(names[ours]);
        struct tail alone[3], busy[3];
        double ratios_of[3];
        for (int round = 0; round < 3; round++) {
            alone[round] = tail_of(c, call, seconds / 3);
            pid_t pid = disturber(config, dir, ours);
            usleep(300000); /* until it is at it: nothing depends on it */
            busy[round] = tail_of(c, call, seconds / 3);
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            ratios_of[round] = busy[round].p999 / alone[round].p999;
        }
        show_tail(names[ours], "no", alone[1], 0);
        show_tail(names[ours], "yes", busy[1], median(ratios_of, 3));
    }
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "see the head of page-cache.c\n");
        return 2;
    }
    const char *mode = argv[1], *config = argv[2], *dir = argv[3];
    pages = (size_t)atol(argv[4]) * 256;
    int rounds = atoi(argv[5]) < MAX_ROUNDS ? atoi(argv[5]) : MAX_ROUNDS;
    snprintf(path, sizeof path, "%s/ours-%zu", dir, pages);
    snprintf(their_path, sizeof their_path, "%s/theirs-%zu", dir, pages);
    make_file(path);
    make_file(their_path);
    if (strcmp(mode, "scale") == 0) {
        measure_scale(config, rounds);
        return 0;
    }
    struct caller caller = {0};
    if (hs_init(config) != 0)
        die(config);
    make_buffer(&caller);
    open_kernel(&caller);
    open_ours(&caller);
    warm(&caller);
    if (strcmp(mode, "calls") == 0 || strcmp(mode, "plain") == 0) {
        caller.memory = memory_set();
        measure_calls(&caller, rounds, mode[0] == 'p');
    } else if (strcmp(mode, "tail") == 0) {
        measure_tail(&caller, config, dir, atof(argv[5]));
    } else if (strcmp(mode, "count") == 0 && argc == 7) {
        caller.memory = memory_set();
        if (strcmp(argv[5], "nothing") == 0)
            nothing(&caller, atol(argv[6]));
        else
            calls[call_named(argv[5])].run(&caller, atol(argv[6]));
    } else {
        return 2;
    }
    if (uclose(caller.ufd) != 0)
        die("uclose");
    if (hs_shutdown() != 0)
        die("hs_shutdown");
    return 0;
}
