/* Asynchronous requests on files whose pages are on an SSD: by one thread, by several at once, and by threads that end before what
   they have submitted. Each page bears its number and a version; a page that is read is whole and of a version that was there. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
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

static void one_thread(void)
{
    static unsigned int memory[DEPTH][PAGE / 4];
    struct uaio requests[DEPTH], done[DEPTH];
    unsigned int pages[DEPTH], seed = 1;
    UAIO *aio = uaio_create(DEPTH);
    SURE(aio != NULL);
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

/* Submitted by a thread that is gone when another one asks for them. */
struct batch {
    UAIO *aio;
    struct uaio *requests;
};

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
        pthread_t thread;
        struct batch batch = {aio, requests};
        for (unsigned int i = 0; i < DEPTH; i++)
            requests[i] = (struct uaio){ufd, UAIO_READ, memory[i], PAGE, (off_t)((unsigned int)round * 71 + i * 13) % PAGES * PAGE, i, 0};
        SURE(pthread_create(&thread, NULL, submits_and_ends, &batch) == 0 && pthread_join(thread, NULL) == 0);
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
    SURE(argc == 2 && chdir(argv[1]) == 0 && getcwd(dir, sizeof dir) != NULL);
    FILE *file = fopen("cache.toml", "w");
    snprintf(line, sizeof line, "[cache]\nmemory = \"256KiB\"\nruntime_dir = \"%s\"\nssd = \"%s/ssd\"\nssd_size = \"24MiB\"\n", dir, dir);
    SURE(file != NULL && fputs(line, file) >= 0 && fclose(file) == 0);
    SURE(hs_init("cache.toml") == 0);
    SURE((ufd = uopen("file", O_RDWR | O_CREAT, 0600)) == 3);
    for (int i = 0; i < 2; i++) {
        fill();
        one_thread();
        several_threads();
        of_threads_that_ended();
    }
    SURE(uclose(ufd) == 0 && hs_shutdown() == 0);
    puts("all is well");
    return 0;
}
