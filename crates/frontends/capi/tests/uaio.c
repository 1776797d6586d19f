/* Asynchronous requests on files whose pages are on an SSD: by one thread, which may have promised to be alone, by several at once, and
   by threads that end before what they have submitted. Each page bears its number and a version; a page that is read is whole and of a
   version that was there. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sure.h"

enum { PAGE = 4096, PAGES = 1200, DEPTH = 32, ROUNDS = 60, THREADS = 4 };

static int ufd;
static unsigned int versions[PAGES];

static void stamp(unsigned int *words, unsigned int page, unsigned int version)
{
    for (int i = 0; i < PAGE / 8; i++) {
        words[2 * i] = page;
        words[2 * i + 1] = version;
    }
}

/* No writer is at it. */
static void check(const unsigned int *words, unsigned int page)
{
    for (int i = 0; i < PAGE / 8; i++)
        SURE(words[2 * i] == page && words[2 * i + 1] == versions[page]);
}

static void fill(void)
{
    static unsigned int words[PAGE / 4];
    for (unsigned int page = 0; page < PAGES; page++) {
        stamp(words, page, ++versions[page]);
        SURE(upwrite(ufd, words, PAGE, (off_t)page * PAGE) == PAGE);
    }
    SURE(ufsync(ufd) == 0);
}

static void single_issuer(unsigned int flags, int is_lent)
{
    static unsigned int own[DEPTH][PAGE / 4];
    struct uaio requests[DEPTH], done[DEPTH];
    unsigned int pages[DEPTH], seed = 1;
    UAIO *aio = uaio_create_with(DEPTH, flags);
    SURE(aio != NULL);
    unsigned int(*memory)[PAGE / 4] = is_lent ? uaio_memory(aio, sizeof own) : own;
    SURE(memory != NULL);
    for (int round = 0; round < ROUNDS; round++) {
        for (unsigned int i = 0; i < DEPTH; i++) {
            pages[i] = (seed = seed * 1103515245 + 12345) / 65536 % PAGES;
            requests[i] = (struct uaio){ufd, UAIO_READ, memory[i], PAGE, (off_t)pages[i] * PAGE, i, 0};
        }
        SURE(uaio_submit(aio, requests, DEPTH / 2) == DEPTH / 2);
        SURE(uaio_submit(aio, requests + DEPTH / 2, DEPTH / 2) == DEPTH / 2);
        FAILS(EAGAIN, uaio_submit(aio, requests, 1));
        for (int got = 0, now; got < DEPTH; got += now) {
            SURE((now = uaio_reap(aio, done, round % 2 ? DEPTH - got : 1, DEPTH, NULL)) > 0);
            for (int i = 0; i < now; i++) {
                SURE(done[i].result == PAGE);
                check(memory[done[i].user], pages[done[i].user]);
            }
        }
        SURE(uaio_reap(aio, done, 1, 1, NULL) == 0);
        /* Without waiting, and not for long. */
        SURE(uaio_submit(aio, requests, DEPTH) == DEPTH);
        for (int got = 0, now; got < DEPTH; got += now) {
            struct timespec time = {0, round % 3 * 1000};
            SURE((now = uaio_reap(aio, done, round % 3 > 0, 7, round % 3 ? &time : NULL)) >= 0);
            for (int i = 0; i < now; i++)
                SURE(done[i].result == PAGE);
        }
    }
    /* A writer among them, and the end of the file. */
    requests[0].op = UAIO_FSYNC;
    requests[1].off = (off_t)PAGES * PAGE - 8;
    requests[2].off = (off_t)PAGES * PAGE;
    SURE(uaio_submit(aio, requests, 3) == 3 && uaio_reap(aio, done, 3, 3, NULL) == 3);
    for (int i = 0; i < 3; i++)
        SURE(done[i].result == (done[i].user == 1 ? 8 : 0));
    /* Destroyed with reads under way: their memory is left alone afterwards. */
    for (int i = 0; i < DEPTH; i++)
        requests[i] = (struct uaio){ufd, UAIO_READ, memory[i], PAGE, (off_t)(i * 37 % PAGES) * PAGE, 0, 0};
    SURE(uaio_submit(aio, requests, DEPTH) == DEPTH && uaio_destroy(aio) == 0);
}

/* Requests that are submitted with the wait for some of them, and reaped into the memory that they came from; some of the pages are in
   memory by then, and some requests are wrong. */
static void submitted_with_the_wait(unsigned int flags, int is_lent)
{
    static unsigned int own[DEPTH][PAGE / 4];
    struct uaio both[DEPTH + 1] = {0};
    unsigned int busy = 0, seed = 2;
    UAIO *aio = uaio_create_with(DEPTH, flags);
    SURE(aio != NULL);
    unsigned int(*memory)[PAGE / 4] = is_lent ? uaio_memory(aio, sizeof own) : own;
    SURE(memory != NULL);
    for (int round = 0, under_way = 0; round < ROUNDS * 4 || under_way > 0; round++) {
        int fresh = round < ROUNDS * 4 ? (round * 7 + 1) % (DEPTH - under_way + 1) : 0, max = round % 5 ? DEPTH : 3;
        for (int i = 0; i < fresh; i++) {
            unsigned int page = (seed = seed * 1103515245 + 12345) / 65536 % PAGES, place = 0;
            for (; busy >> place & 1; place++)
                ;
            busy |= 1u << place;
            both[i] = (struct uaio){i == 5 ? -1 : ufd, UAIO_READ, memory[place], PAGE, (off_t)page * PAGE, page, 0};
        }
        int now = uaio_submit_and_reap(aio, both, fresh, both, round % 3, max, NULL);
        SURE(now >= 0 && now <= max && now <= under_way + fresh);
        SURE(now >= round % 3 || now == under_way + fresh);
        for (int i = 0; i < now; i++) {
            SURE(both[i].result == (both[i].ufd == ufd ? PAGE : -EBADF));
            if (both[i].ufd == ufd)
                check(both[i].buf, (unsigned int)both[i].user);
            busy &= ~(1u << (((char *)both[i].buf - (char *)memory) / PAGE));
        }
        under_way += fresh - now;
    }
    FAILS(EAGAIN, uaio_submit_and_reap(aio, both, DEPTH + 1, both, 0, DEPTH, NULL));
    FAILS(EINVAL, uaio_submit_and_reap(aio, both, -1, both, 0, DEPTH, NULL));
    FAILS(EINVAL, uaio_submit_and_reap(aio, both, 1, both, 2, 1, NULL));
    FAILS(EFAULT, uaio_submit_and_reap(aio, NULL, 1, both, 0, DEPTH, NULL));
    FAILS(EFAULT, uaio_submit_and_reap(aio, both, 1, NULL, 0, DEPTH, NULL));
    SURE(uaio_reap(aio, both, 0, DEPTH, NULL) == 0 && uaio_destroy(aio) == 0);
}

/* Memory that reads may come into without a copy: also pieces of pages, many pages, and what lies on no boundary. */
static void lent_memory(void)
{
    enum { MANY = 16 };
    UAIO *aio = uaio_create_with(DEPTH, UAIO_ONE_THREAD);
    SURE(aio != NULL && uaio_memory(aio, 0) == NULL && errno == EINVAL);
    SURE(uaio_memory(aio, (size_t)-1) == NULL && errno == EINVAL);
    char *first = uaio_memory(aio, 1);
    SURE(first != NULL && (size_t)first % PAGE == 0 && first[0] == 0 && first[PAGE - 1] == 0);
    for (unsigned int round = 0; round < ROUNDS * 10; round++) {
        unsigned int page = round * 61 % (PAGES - MANY), later = round % 3 * 100;
        struct uaio requests[3], done[3];
        static char *memory;
        /* The first is reported to a queue that does not exist yet, this one to an existing one. */
        SURE(round != 1 || (memory = uaio_memory(aio, (2 * MANY + 1) * PAGE)) != NULL);
        char *many = round ? memory + later : first, *piece = memory + (MANY + 1) * PAGE;
        int count = round ? 3 : 1;
        requests[0] = (struct uaio){ufd, UAIO_READ, many, (round ? MANY : 1) * PAGE, (off_t)page * PAGE, 0, 0};
        requests[1] = (struct uaio){ufd, UAIO_READ, piece, PAGE - 8, (off_t)page * PAGE + 8, 1, 0};
        requests[2] = (struct uaio){ufd, UAIO_READ, piece + PAGE, 2 * PAGE, (off_t)PAGES * PAGE - PAGE - 16, 2, 0};
        SURE(uaio_submit(aio, requests, count) == count && uaio_reap(aio, done, count, count, NULL) == count);
        for (int i = 0; i < count; i++)
            SURE(done[i].result == (done[i].user == 0 ? (int64_t)requests[0].n : done[i].user == 1 ? PAGE - 8 : PAGE + 16));
        for (unsigned int i = 0; i < requests[0].n / PAGE; i++) {
            unsigned int words[PAGE / 4];
            memcpy(words, many + (size_t)i * PAGE, PAGE);
            check(words, page + i);
        }
        for (size_t i = 0; round && i < PAGE / 8 - 1; i++)
            SURE(((unsigned int *)piece)[2 * i] == page && ((unsigned int *)(piece + PAGE))[2 * i + 4] == PAGES - 1);
    }
    SURE(uaio_destroy(aio) == 0);
}

/* Promised to one thread: the errors of another one. */
static void *is_another(void *argument)
{
    UAIO *aio = argument;
    static unsigned int memory[PAGE / 4];
    struct uaio request = {ufd, UAIO_READ, memory, PAGE, 0, 0, 0};
    FAILS(EBUSY, uaio_submit(aio, &request, 1));
    SURE(strstr(hs_error(), "UAIO_ONE_THREAD") != NULL);
    FAILS(EBUSY, uaio_reap(aio, &request, 0, 1, NULL));
    FAILS(EBUSY, uaio_submit_and_reap(aio, &request, 0, &request, 0, 1, NULL));
    FAILS(EBUSY, uaio_destroy(aio));
    SURE(strstr(hs_error(), "UAIO_ONE_THREAD") != NULL);
    return NULL;
}

static void *destroys(void *argument)
{
    UAIO *aio = argument;
    struct uaio request;
    FAILS(EBUSY, uaio_reap(aio, &request, 0, 1, NULL));
    SURE(uaio_destroy(aio) == 0);
    FAILS(EBADF, uaio_destroy(aio));
    return NULL;
}

static void *submits_and_ends(void *argument);

struct batch {
    UAIO *aio;
    struct uaio *requests;
    int begun; /* is notified while reads are in flight */
};

static void in_a_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    SURE(pthread_create(&thread, NULL, run, argument) == 0 && pthread_join(thread, NULL) == 0);
}

static void promised(void)
{
    static unsigned int memory[DEPTH][PAGE / 4];
    struct uaio requests[DEPTH], done[DEPTH];
    struct batch batch = {NULL, requests, -1};
    for (int flags = UAIO_ONE_THREAD; flags <= (UAIO_ONE_THREAD | UAIO_WAITS | UAIO_POLLS); flags = 2 * flags + 1)
        for (int round = 0; round < 4; round++) {
            for (unsigned int i = 0; i < DEPTH; i++)
                requests[i] = (struct uaio){ufd, UAIO_READ, memory[i], PAGE, (off_t)((unsigned)round * 31 + i * 17) % PAGES * PAGE, i, 0};
            /* One thread makes it, another one uses it, and a third is refused. */
            UAIO *aio = uaio_create_with(DEPTH, (uint32_t)flags);
            SURE(aio != NULL && uaio_submit(aio, requests, DEPTH) == DEPTH);
            in_a_thread(is_another, aio);
            SURE(uaio_reap(aio, done, DEPTH, DEPTH, NULL) == DEPTH);
            for (int i = 0; i < DEPTH; i++)
                check(memory[done[i].user], (unsigned int)(done[i].off / PAGE));
            in_a_thread(destroys, aio);
            /* The one thread has ended with reads under way. */
            batch.aio = uaio_create_with(DEPTH, (uint32_t)flags);
            SURE(batch.aio != NULL);
            in_a_thread(submits_and_ends, &batch);
            FAILS(EBUSY, uaio_reap(batch.aio, done, 1, 1, NULL));
            SURE(uaio_destroy(batch.aio) == 0);
        }
    static const uint32_t wrong[] = {8, UAIO_WAITS, UAIO_POLLS, UAIO_ONE_THREAD | UAIO_POLLS, UAIO_WAITS | UAIO_POLLS};
    for (unsigned int i = 0; i < sizeof wrong / sizeof *wrong; i++)
        SURE(uaio_create_with(DEPTH, wrong[i]) == NULL && errno == EINVAL);
}

/* The parent's alone; and its end takes nothing along. */
static void forked(void)
{
    static unsigned int memory[PAGE / 4];
    struct uaio request = {ufd, UAIO_READ, memory, PAGE, 77 * PAGE, 0, 0};
    int status;
    UAIO *aio = uaio_create_with(DEPTH, UAIO_ONE_THREAD | UAIO_WAITS);
    SURE(aio != NULL && uaio_submit(aio, &request, 1) == 1);
    pid_t child = fork();
    SURE(child >= 0);
    if (child == 0) {
        FAILS(EPERM, uaio_reap(aio, &request, 1, 1, NULL));
        FAILS(EPERM, uaio_destroy(aio));
        exit(0);
    }
    SURE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    SURE(uaio_reap(aio, &request, 1, 1, NULL) == 1 && request.result == PAGE);
    check(memory, 77);
    SURE(uaio_destroy(aio) == 0);
}

/* Goes on while the process ends. */
static void *never_ends(void *argument)
{
    struct batch *batch = argument;
    for (int round = 0;; round++) {
        /* Until the library has ended. */
        if (uaio_submit(batch->aio, batch->requests, DEPTH) != DEPTH)
            return NULL;
        if (round == 0)
            SURE(write(batch->begun, "x", 1) == 1);
        if (uaio_reap(batch->aio, batch->requests, DEPTH, DEPTH, NULL) != DEPTH)
            return NULL;
    }
}

static void *sleeps_with_reads(void *argument)
{
    struct batch *batch = argument;
    SURE(uaio_submit(batch->aio, batch->requests, DEPTH) == DEPTH);
    SURE(write(batch->begun, "x", 1) == 1);
    for (;;)
        pause();
}

/* A process that ends while another thread has reads under way, asleep or at it, ends all the same. */
static void ends_in_the_middle(const char *how)
{
    static unsigned int memory[DEPTH][PAGE / 4];
    static struct uaio requests[DEPTH];
    static struct batch batch;
    int ends[2];
    char byte;
    pthread_t thread;
    SURE(hs_init("cache.toml") == 0 && (ufd = uopen("file", O_RDONLY)) >= 0);
    for (unsigned int i = 0; i < DEPTH; i++)
        requests[i] = (struct uaio){ufd, UAIO_READ, memory[i], PAGE, (off_t)(i * 37 % PAGES) * PAGE, i, 0};
    SURE(pipe(ends) == 0);
    batch = (struct batch){uaio_create_with(DEPTH, UAIO_ONE_THREAD | UAIO_WAITS), requests, ends[1]};
    SURE(batch.aio != NULL);
    SURE(pthread_create(&thread, NULL, strcmp(how, "asleep") == 0 ? sleeps_with_reads : never_ends, &batch) == 0);
    SURE(read(ends[0], &byte, 1) == 1);
    exit(0);
}

struct shared {
    UAIO *aio;
    pthread_mutex_t lock;
    int left;
};

/* Each takes what has ended, whoever submitted it; `user` says which page and where it is. */
struct note {
    unsigned int page;
    unsigned int *memory;
};

static void *reaps(void *argument)
{
    struct shared *shared = argument;
    struct uaio done[5];
    for (;;) {
        pthread_mutex_lock(&shared->lock);
        int left = shared->left;
        pthread_mutex_unlock(&shared->lock);
        if (left == 0)
            return NULL;
        int got = uaio_reap(shared->aio, done, 1, 5, NULL);
        SURE(got >= 0);
        for (int i = 0; i < got; i++) {
            struct note *note = (struct note *)(size_t)done[i].user;
            SURE(done[i].result == PAGE);
            check(note->memory, note->page);
            free(note->memory);
            free(note);
        }
        pthread_mutex_lock(&shared->lock);
        shared->left -= got;
        pthread_mutex_unlock(&shared->lock);
    }
}

static void *submits(void *argument)
{
    struct shared *shared = argument;
    unsigned int seed = (unsigned int)(size_t)&seed;
    for (int n = 0; n < ROUNDS * 4; n++) {
        struct note *note = malloc(sizeof *note);
        SURE(note != NULL && (note->memory = malloc(PAGE)) != NULL);
        note->page = (seed = seed * 1103515245 + 12345) / 65536 % PAGES;
        struct uaio request = {ufd, UAIO_READ, note->memory, PAGE, (off_t)note->page * PAGE, (size_t)note, 0};
        int taken;
        while ((taken = uaio_submit(shared->aio, &request, 1)) == -1 && errno == EAGAIN)
            sched_yield();
        SURE(taken == 1);
    }
    /* And ends: the kernel gives up what is under way for it, and somebody reads it again. */
    return NULL;
}

static void several_threads(void)
{
    struct shared shared = {uaio_create(DEPTH), PTHREAD_MUTEX_INITIALIZER, THREADS * ROUNDS * 4};
    pthread_t threads[2 * THREADS];
    SURE(shared.aio != NULL);
    for (int i = 0; i < 2 * THREADS; i++)
        SURE(pthread_create(&threads[i], NULL, i % 2 ? reaps : submits, &shared) == 0);
    for (int i = 0; i < 2 * THREADS; i++)
        SURE(pthread_join(threads[i], NULL) == 0);
    SURE(shared.left == 0 && uaio_destroy(shared.aio) == 0);
}

/* Submitted by a thread that has ended when another one reaps them. */
static void *submits_and_ends(void *argument)
{
    struct batch *batch = argument;
    SURE(uaio_submit(batch->aio, batch->requests, DEPTH) == DEPTH);
    return NULL;
}

static void of_threads_that_ended(void)
{
    static unsigned int memory[DEPTH][PAGE / 4];
    struct uaio requests[DEPTH];
    UAIO *aio = uaio_create(DEPTH);
    for (int round = 0; round < ROUNDS / 2; round++) {
        struct batch batch = {aio, requests, -1};
        for (unsigned int i = 0; i < DEPTH; i++)
            requests[i] = (struct uaio){ufd, UAIO_READ, memory[i], PAGE, (off_t)((unsigned int)round * 71 + i * 13) % PAGES * PAGE, i, 0};
        in_a_thread(submits_and_ends, &batch);
        SURE(uaio_reap(aio, requests, DEPTH, DEPTH, NULL) == DEPTH);
        for (int i = 0; i < DEPTH; i++) {
            SURE(requests[i].result == PAGE);
            check(memory[requests[i].user], (unsigned int)(requests[i].off / PAGE));
        }
    }
    SURE(uaio_destroy(aio) == 0);
}

int main(int argc, char **argv)
{
    char dir[3000], line[12000];
    SURE(argc >= 2 && chdir(argv[1]) == 0 && getcwd(dir, sizeof dir) != NULL);
    if (argc == 3)
        ends_in_the_middle(argv[2]);
    FILE *file = fopen("cache.toml", "w");
    snprintf(line, sizeof line, "[cache]\nmemory = \"256KiB\"\nruntime_dir = \"%s\"\nssd = \"%s/ssd\"\nssd_size = \"24MiB\"\n", dir, dir);
    SURE(file != NULL && fputs(line, file) >= 0 && fclose(file) == 0);
    SURE(hs_init("cache.toml") == 0);
    SURE((ufd = uopen("file", O_RDWR | O_CREAT, 0600)) == 3);
    for (int i = 0; i < 2; i++) {
        fill();
        for (int is_lent = 0; is_lent < 2; is_lent++) {
            single_issuer(0, is_lent);
            submitted_with_the_wait(0, is_lent);
            single_issuer(UAIO_ONE_THREAD, is_lent);
            submitted_with_the_wait(UAIO_ONE_THREAD, is_lent);
            single_issuer(UAIO_ONE_THREAD | UAIO_WAITS, is_lent);
            submitted_with_the_wait(UAIO_ONE_THREAD | UAIO_WAITS, is_lent);
        }
        lent_memory();
        promised();
        forked();
        several_threads();
        of_threads_that_ended();
    }
    SURE(uclose(ufd) == 0 && hs_shutdown() == 0);
    puts("all is well");
    return 0;
}
