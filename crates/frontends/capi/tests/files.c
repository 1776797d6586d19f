/* The u calls, as a program in C sees them: files through the cache, in the directory that is given. Exits 0, or says the line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sure.h"

#define PAGE 4096

static void wrong_calls(void)
{
    char own[16];
    struct stat st;
    struct iovec iov = {NULL, 16};
    struct uaio request = {0};
    const void *p;
    UAIO *aio;
    int none[] = {-1, 3, 1000, 65535, 65536, 0x7fffffff, -0x7fffffff - 1};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        int ufd = none[i];
        FAILS(EBADF, uread(ufd, own, 1));
        FAILS(EBADF, upwrite(ufd, own, 1, 0));
        FAILS(EBADF, ulseek(ufd, 0, SEEK_SET));
        FAILS(EBADF, ufsync(ufd));
        FAILS(EBADF, uftruncate(ufd, 0));
        FAILS(EBADF, ufstat(ufd, &st));
        FAILS(EBADF, upin(ufd, 0, 1, &p));
        FAILS(EBADF, uunpin(ufd, 0, own));
        FAILS(EBADF, udup(ufd));
        FAILS(EBADF, udup2(ufd, 5));
        FAILS(EBADF, ufcntl(ufd, F_GETFL));
        FAILS(EBADF, ufileno(ufd));
        FAILS(EBADF, uclose(ufd));
        /* Before anything is said of the other arguments, but where the kernel looks at those first. */
        FAILS(EBADF, uread(ufd, NULL, 1));
        FAILS(EBADF, uwrite(ufd, NULL, 1));
        FAILS(EBADF, ureadv(ufd, NULL, 1));
        FAILS(EBADF, uwritev(ufd, NULL, -1));
        FAILS(EBADF, ulseek(ufd, 0, 99));
        FAILS(EBADF, ufstat(ufd, NULL));
        FAILS(EBADF, ufallocate(ufd, 0, -1, 0));
        FAILS(EBADF, ufallocate(ufd, 0x4000, 0, 1));
        FAILS(EBADF, ufcntl(ufd, F_DUPFD, -1));
        FAILS(EINVAL, upread(ufd, own, 1, -1));
        FAILS(EINVAL, upwrite(ufd, own, 1, -1));
        FAILS(EINVAL, uftruncate(ufd, -1));
    }
    FAILS(EBADF, uopenat(77, "x", O_RDONLY));
    FAILS(EFAULT, uopen(NULL, O_RDONLY));
    FAILS(ENOENT, uopen("not/there", O_RDONLY));
    FAILS(ENOENT, uopen("", O_RDONLY));
    FAILS(EFAULT, uunlink(NULL));
    FAILS(EFAULT, urename("a", NULL));
    FAILS(ENOENT, uunlink("not there"));
    FAILS(ENOENT, ustat("not there", &st));
    NONE(EFAULT, uopendir(NULL));
    NONE(ENOENT, uopendir("not there"));
    NONE(EBADF, ureaddir(NULL));
    FAILS(EBADF, uclosedir((UDIR *)(void *)own));
    NONE(EINVAL, uaio_create(0));
    FAILS(EBADF, uaio_submit(NULL, &request, 1));
    FAILS(EINVAL, uunmap(own));

    int ufd = uopen("wrong", O_RDWR | O_CREAT, 0600);
    SURE(ufd == 3);
    FAILS(EEXIST, uopen("wrong", O_RDWR | O_CREAT | O_EXCL, 0600));
    FAILS(EFAULT, uread(ufd, NULL, 1));
    FAILS(EFAULT, uwrite(ufd, NULL, 1));
    FAILS(EINVAL, upread(ufd, own, 1, -1));
    FAILS(EINVAL, upwrite(ufd, own, 1, -1));
    FAILS(EINVAL, ulseek(ufd, -1, SEEK_SET));
    FAILS(EINVAL, ulseek(ufd, 0, 99));
    FAILS(EFAULT, ureadv(ufd, &iov, 1));
    FAILS(EFAULT, ureadv(ufd, NULL, 1));
    FAILS(EINVAL, uwritev(ufd, &iov, -1));
    FAILS(EINVAL, uwritev(ufd, &iov, 1025));
    FAILS(EFAULT, ufstat(ufd, NULL));
    FAILS(EINVAL, uftruncate(ufd, -1));
    FAILS(EINVAL, ufallocate(ufd, 0, 0, 0));
    FAILS(EOPNOTSUPP, ufallocate(ufd, 0x40, 0, 1));
    FAILS(EFAULT, upin(ufd, 0, 1, NULL));
    FAILS(EINVAL, uunpin(ufd, 0, own));
    NONE(EINVAL, (void *)umap(ufd, 0, 0));
    FAILS(EBADF, udup2(ufd, -1));
    FAILS(EINVAL, ufcntl(ufd, F_DUPFD, -1));
    FAILS(EINVAL, ufcntl(ufd, 9999));
    SURE((aio = uaio_create(1)) != NULL);
    request.ufd = 99;
    FAILS(EFAULT, uaio_submit(aio, NULL, 1));
    FAILS(EFAULT, uaio_submit(aio, &(struct uaio){.ufd = ufd, .n = 1}, 1));
    FAILS(EINVAL, uaio_submit(aio, &(struct uaio){.ufd = ufd, .op = 9}, 1));
    request.buf = own;
    FAILS(EBADF, uaio_submit(aio, &request, 1));
    FAILS(EINVAL, uaio_reap(aio, &request, 2, 1, NULL));
    FAILS(EFAULT, uaio_reap(aio, NULL, 0, 1, NULL));
    SURE(uaio_destroy(aio) == 0);
    FAILS(EBADF, uaio_destroy(aio));
    SURE(uclose(ufd) == 0);
    int reading = uopen("wrong", O_RDONLY), writing = uopen("wrong", O_WRONLY);
    FAILS(EBADF, uwrite(reading, own, 1));
    FAILS(EBADF, upwrite(reading, own, 1, 0));
    FAILS(EBADF, uread(writing, own, 1));
    FAILS(EBADF, upread(writing, own, 1, 0));
    SURE(uclose(reading) == 0 && uclose(writing) == 0 && uunlink("wrong") == 0);
}

static void plain_use(void)
{
    char own[3 * PAGE];
    struct stat st;
    int ufd = uopen("plain", O_RDWR | O_CREAT | O_TRUNC, 0640);
    SURE(ufd == 3);
    errno = 77;
    SURE(uwrite(ufd, "hello, world", 12) == 12);
    SURE(ulseek(ufd, 0, SEEK_CUR) == 12 && ulseek(ufd, -5, SEEK_END) == 7);
    SURE(uread(ufd, own, sizeof own) == 5 && memcmp(own, "world", 5) == 0);
    SURE(uread(ufd, own, sizeof own) == 0);
    SURE(errno == 77);
    SURE(upwrite(ufd, "far", 3, 2 * PAGE + 1) == 3);
    SURE(upread(ufd, own, sizeof own, 10) == 2 * PAGE - 6);
    SURE(memcmp(own, "ld\0\0", 4) == 0 && memcmp(own + 2 * PAGE - 9, "far", 3) == 0);
    SURE(ulseek(ufd, 0, SEEK_CUR) == 12);
    SURE(ufstat(ufd, &st) == 0 && st.st_size == 2 * PAGE + 4 && S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0640);
    SURE(ustat("plain", &st) == 0 && st.st_size == 2 * PAGE + 4);
    SURE(uftruncate(ufd, 5) == 0 && ufstat(ufd, &st) == 0 && st.st_size == 5);
    SURE(uftruncate(ufd, 20) == 0 && upread(ufd, own, 20, 0) == 20);
    SURE(memcmp(own, "hello\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20) == 0);
    SURE(utruncate("plain", 3) == 0 && upread(ufd, own, 20, 0) == 3);
    SURE(ufsync(ufd) == 0 && ufdatasync(ufd) == 0);

    struct iovec out[3] = {{"ab", 2}, {NULL, 0}, {"cde", 3}};
    struct iovec in[2] = {{own, 1}, {own + 100, 10}};
    SURE(upwritev(ufd, out, 3, 1) == 5 && upreadv(ufd, in, 2, 1) == 5 && own[0] == 'a' && memcmp(own + 100, "bcde", 4) == 0);
    struct iovec many[40];
    for (int i = 0; i < 40; i++)
        many[i] = (struct iovec){own + i, 1};
    SURE(ulseek(ufd, 0, SEEK_SET) == 0 && uwritev(ufd, many, 40) == 40 && ulseek(ufd, 0, SEEK_CUR) == 40);
    SURE(ulseek(ufd, 0, SEEK_SET) == 0 && ureadv(ufd, many, 40) == 40 && ureadv(ufd, many, 0) == 0);

    /* What the kernel sees is what was flushed. */
    SURE(upwrite(ufd, "below", 5, 0) == 5 && ufsync(ufd) == 0);
    int fd = open("plain", O_RDONLY);
    SURE(fd >= 0 && pread(fd, own, 5, 0) == 5 && memcmp(own, "below", 5) == 0 && close(fd) == 0);
    SURE(fcntl(ufileno(ufd), F_GETFD) == FD_CLOEXEC);
    SURE(uclose(ufd) == 0);
    FAILS(EBADF, uclose(ufd));
    SURE(urename("plain", "renamed") == 0 && ustat("renamed", &st) == 0 && st.st_size == 40);
    FAILS(ENOENT, uopen("plain", O_RDONLY));
    SURE((ufd = uopen("renamed", O_RDONLY)) == 3 && upread(ufd, own, 5, 0) == 5 && memcmp(own, "below", 5) == 0);
    SURE(uunlink("renamed") == 0 && upread(ufd, own, 5, 0) == 5 && ufstat(ufd, &st) == 0 && st.st_nlink == 0 && uclose(ufd) == 0);
    SURE((ufd = ucreat("created", 0600)) == 3 && uclose(ufd) == 0 && uunlink("created") == 0);
}

static void duplicates(void)
{
    char own[8];
    int ufd = uopen("dup", O_RDWR | O_CREAT | O_TRUNC, 0600);
    int other = udup(ufd);
    SURE(ufd == 3 && other == 4 && uwrite(ufd, "abcd", 4) == 4 && ulseek(other, 0, SEEK_CUR) == 4);
    SURE(ulseek(other, 1, SEEK_SET) == 1 && uread(ufd, own, 1) == 1 && own[0] == 'b');
    SURE(uclose(ufd) == 0 && uread(other, own, 8) == 2);
    SURE(udup2(other, 10) == 10 && udup2(other, other) == other && udup(other) == 3);
    SURE(ufcntl(other, F_DUPFD, 10) == 11 && ufcntl(other, F_DUPFD_CLOEXEC, 0) == 5);
    int second = uopen("dup", O_RDONLY);
    SURE(second == 6 && uread(second, own, 2) == 2 && udup2(second, 10) == 10 && ulseek(10, 0, SEEK_CUR) == 2);
    SURE(ufcntl(10, F_GETFD) == FD_CLOEXEC && (ufcntl(10, F_GETFL) & O_ACCMODE) == O_RDONLY);
    for (int i = 3; i < 12; i++)
        if (i < 7 || i > 9)
            SURE(uclose(i) == 0);
    SURE(uunlink("dup") == 0);
}

static void appending(void)
{
    char own[8];
    int first = uopen("log", O_WRONLY | O_CREAT | O_APPEND, 0600);
    int second = uopen("log", O_RDWR);
    SURE(first == 3 && second == 4 && uwrite(first, "a", 1) == 1 && uwrite(second, "b", 1) == 1 && uwrite(first, "c", 1) == 1);
    SURE((ufcntl(first, F_GETFL) & O_APPEND) != 0 && (ufcntl(second, F_GETFL) & O_APPEND) == 0);
    SURE(ufcntl(second, F_SETFL, O_APPEND) == 0 && ulseek(second, 0, SEEK_SET) == 0 && uwrite(second, "d", 1) == 1);
    SURE((ufcntl(second, F_GETFL) & O_APPEND) != 0 && ulseek(second, 0, SEEK_CUR) == 3);
    SURE(ufcntl(second, F_SETFL, 0) == 0 && upwrite(second, "e", 1, 1) == 1);
    SURE(ufcntl(second, F_SETFL, O_NONBLOCK) == 0 && (ufcntl(second, F_GETFL) & O_NONBLOCK) != 0);
    SURE(ufcntl(second, F_SETFL, 0) == 0 && (ufcntl(second, F_GETFL) & O_NONBLOCK) == 0);
    SURE(upread(second, own, 8, 0) == 3 && memcmp(own, "bed", 3) == 0);
    SURE(uclose(first) == 0 && uclose(second) == 0 && uunlink("log") == 0);
}

static void holes(void)
{
    char own[2 * PAGE];
    int ufd = uopen("holes", O_RDWR | O_CREAT | O_TRUNC, 0600);
    struct stat st;
    memset(own, 7, sizeof own);
    SURE(upwrite(ufd, own, sizeof own, 0) == sizeof own && ufallocate(ufd, 3, 100, PAGE) == 0);
    SURE(upread(ufd, own, sizeof own, 0) == sizeof own);
    for (int i = 0; i < 2 * PAGE; i++)
        SURE(own[i] == (i >= 100 && i < PAGE + 100 ? 0 : 7));
    SURE(ufallocate(ufd, 1, 0, 10 * PAGE) == 0 && ufstat(ufd, &st) == 0 && st.st_size == 2 * PAGE);
    SURE(ufallocate(ufd, 0, 0, 10 * PAGE) == 0 && ufstat(ufd, &st) == 0 && st.st_size == 10 * PAGE);
    SURE(uftruncate(ufd, 0) == 0 && upwrite(ufd, "x", 1, 64 * PAGE) == 1 && ufsync(ufd) == 0);
    SURE(ulseek(ufd, 0, SEEK_DATA) > 0 && ulseek(ufd, 0, SEEK_HOLE) == 0);
    FAILS(ENXIO, ulseek(ufd, 65 * PAGE, SEEK_DATA));
    SURE(uclose(ufd) == 0 && uunlink("holes") == 0);
}

static void pins_and_views(void)
{
    char own[3 * PAGE];
    const void *p, *q, *view;
    int ufd = uopen("pins", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 3 * PAGE; i++)
        own[i] = (char)(i / 7);
    SURE(uwrite(ufd, own, sizeof own - 100) == (ssize_t)sizeof own - 100);
    SURE(upin(ufd, 10, 20, &p) == 20 && memcmp(p, own + 10, 20) == 0);
    SURE(upin(ufd, 10, 20, &q) == 20 && memcmp(q, own + 10, 20) == 0);
    FAILS(EINVAL, uunpin(ufd, 11, p));
    SURE(uunpin(ufd, 10, p) == 0 && uunpin(ufd, 10, q) == 0);
    FAILS(EINVAL, uunpin(ufd, 10, p));
    SURE(upin(ufd, PAGE - 5, 100, &p) == 5 && memcmp(p, own + PAGE - 5, 5) == 0 && uunpin(ufd, PAGE - 5, p) == 0);
    SURE(upin(ufd, 2 * PAGE, PAGE, &p) == PAGE - 100 && uunpin(ufd, 2 * PAGE, p) == 0);
    SURE(upin(ufd, 3 * PAGE, 1, &p) == 0 && p == NULL);
    SURE((view = umap(ufd, 5, 2 * PAGE)) != NULL && memcmp(view, own + 5, 2 * PAGE) == 0);
    SURE((q = umap(ufd, 2 * PAGE, 2 * PAGE)) != NULL && memcmp(q, own + 2 * PAGE, PAGE - 100) == 0);
    for (int i = PAGE - 100; i < 2 * PAGE; i++)
        SURE(((const char *)q)[i] == 0);
    SURE(upwrite(ufd, "changed", 7, 5) == 7 && memcmp(view, own + 5, 7) == 0);
    char *map = ummap(NULL, PAGE, PROT_READ, MAP_SHARED, ufd, 0);
    SURE(map != MAP_FAILED && memcmp(map + 5, "changed", 7) == 0 && munmap(map, PAGE) == 0);
    SURE(ummap(NULL, PAGE, PROT_READ, MAP_SHARED, 99, 0) == MAP_FAILED && errno == EBADF);
    map = ummap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SURE(map != MAP_FAILED && munmap(map, PAGE) == 0);
    map = ummap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ufd, 0);
    SURE(map != MAP_FAILED);
    memcpy(map, "mapped", 6);
    SURE(upread(ufd, own, 6, 0) == 6 && memcmp(own, "mapped", 6) == 0 && munmap(map, PAGE) == 0);
    /* Pins that are left end with the file; views do not. */
    SURE(upin(ufd, 0, 1, &p) == 1 && uclose(ufd) == 0 && uunlink("pins") == 0);
    SURE(((const char *)view)[0] == (char)(5 / 7) && uunmap(view) == 0 && uunmap(q) == 0);
    FAILS(EINVAL, uunmap(view));
}

enum { MANY = 64 };
static const void *lent[2][MANY];
static int lender;

static void *give_back(void *of)
{
    const void **pages = of;
    for (int i = 0; i < MANY; i++)
        SURE(uunpin(lender, i * PAGE + 1, pages[i]) == 0);
    return NULL;
}

/* More than a thread has quick places for; some are given back by another thread, all in any order. */
static void many_pins(void)
{
    char page[PAGE];
    pthread_t other;
    lender = uopen("pins", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < MANY; i++) {
        memset(page, i, sizeof page);
        SURE(upwrite(lender, page, PAGE, i * PAGE) == PAGE);
    }
    for (int n = 0; n < 2 * MANY; n++) {
        const void **p = &lent[n / MANY][n % MANY];
        SURE(upin(lender, n % MANY * PAGE + 1, PAGE, p) == PAGE - 1 && *(const char *)*p == n % MANY);
    }
    SURE(pthread_create(&other, NULL, give_back, lent[0]) == 0);
    for (int i = MANY - 1; i >= 0; i--) {
        FAILS(EINVAL, uunpin(lender, i * PAGE, lent[1][i]));
        SURE(uunpin(lender, i * PAGE + 1, lent[1][i]) == 0);
    }
    SURE(pthread_join(other, NULL) == 0);
    for (int i = 0; i < MANY; i++)
        FAILS(EINVAL, uunpin(lender, i * PAGE + 1, lent[0][i]));
    for (uintptr_t wrong = 0; wrong < 3; wrong++)
        FAILS(EINVAL, uunpin(lender, 0, (const void *)wrong));
    for (int i = 0; i < MANY; i++)
        SURE(upin(lender, i * PAGE + 1, 1, &lent[0][i]) == 1);
    SURE(uclose(lender) == 0 && uunlink("pins") == 0);
}

static int hits_ufd;
static volatile sig_atomic_t interrupted;

/* In the middle of whatever the thread does. The page is nobody else's. */
static void on_alarm(int unused)
{
    char byte;
    const void *page;
    int before = errno;
    (void)unused;
    SURE(upread(hits_ufd, &byte, 1, 9) == 1 && byte == 'a');
    SURE(upin(hits_ufd, 7, 2, &page) == 2 && *(const char *)page == 'a' && uunpin(hits_ufd, 7, page) == 0);
    SURE(errno == before);
    interrupted++;
}

/* Calls that take the short way, compared with a copy of the file, while a signal interrupts them at any instruction. */
static void hits(void)
{
    enum { PAGES = 64, CALLS = 300000 };
    static unsigned char file[PAGES * PAGE], piece[PAGE];
    uint64_t seed = 88172645463325252u;
    hits_ufd = uopen("hits", O_RDWR | O_CREAT | O_TRUNC, 0600);
    memset(file, 'a', sizeof file);
    SURE(uwrite(hits_ufd, file, sizeof file) == sizeof file);
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    SURE(sigaction(SIGALRM, &action, NULL) == 0);
    errno = 77;
    SURE(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < CALLS || interrupted < 100; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        off_t at = PAGE + (off_t)(seed % ((PAGES - 1) * PAGE));
        size_t n = 1 + (seed >> 32) % 300, left = PAGE - (size_t)at % PAGE;
        const void *page;
        if (n > left)
            n = left;
        switch (i % 3) {
        case 0:
            SURE(upread(hits_ufd, piece, n, at) == (ssize_t)n && memcmp(piece, file + at, n) == 0);
            break;
        case 1:
            memset(file + at, (int)(seed >> 48), n);
            SURE(upwrite(hits_ufd, file + at, n, at) == (ssize_t)n);
            break;
        default:
            SURE(upin(hits_ufd, at, n, &page) == (ssize_t)n && memcmp(page, file + at, n) == 0 && uunpin(hits_ufd, at, page) == 0);
        }
        SURE(errno == 77);
    }
    /* One may be on its way still. */
    SURE(setitimer(ITIMER_REAL, &never, NULL) == 0 && signal(SIGALRM, SIG_IGN) != SIG_ERR);
    for (int i = 0; i < PAGES; i++)
        SURE(upread(hits_ufd, piece, PAGE, (off_t)i * PAGE) == PAGE && memcmp(piece, file + i * PAGE, PAGE) == 0);
    SURE(uclose(hits_ufd) == 0 && uunlink("hits") == 0);
}

static void names(void)
{
    struct dirent *entry;
    struct stat st;
    UDIR *dir;
    int seen = 0;
    SURE(umkdir("dir", 0700) == 0);
    FAILS(EEXIST, umkdir("dir", 0700));
    int at = uopen("dir", O_RDONLY | O_DIRECTORY);
    int in = uopenat(at, "file", O_RDWR | O_CREAT, 0600);
    SURE(at == 3 && in == 4 && uwrite(in, "x", 1) == 1 && ufstatat(at, "file", &st, 0) == 0 && st.st_size == 1);
    SURE(symlink("file", "dir/link") == 0 && ulstat("dir/link", &st) == 0 && S_ISLNK(st.st_mode));
    SURE((dir = uopendir("dir")) != NULL);
    for (int round = 0; round < 2; round++) {
        errno = 0;
        while ((entry = ureaddir(dir)) != NULL)
            seen += strcmp(entry->d_name, "file") == 0 || strcmp(entry->d_name, "link") == 0;
        SURE(errno == 0 && urewinddir(dir) == 0);
    }
    SURE(seen == 4 && uclosedir(dir) == 0);
    FAILS(EBADF, uclosedir(dir));
    NONE(EBADF, ureaddir(dir));
    FAILS(ENOTEMPTY, urmdir("dir"));
    FAILS(EEXIST, urenameat2(at, "file", at, "link", 1));
    SURE(urenameat2(at, "file", AT_FDCWD, "moved", 0) == 0 && uunlinkat(at, "link", 0) == 0 && uunlink("moved") == 0);
    SURE(uclose(at) == 0 && uclose(in) == 0 && urmdir("dir") == 0);
}

/* What cannot be cached is the kernel's. */
static void handed_on(void)
{
    char own[8];
    struct stat st;
    int ufd = uopen("/proc/self/stat", O_RDONLY);
    SURE(ufd == 3 && uread(ufd, own, 3) == 3 && uclose(ufd) == 0);
    SURE((ufd = uopen("/dev/zero", O_RDWR)) == 3 && uread(ufd, own, 8) == 8 && own[7] == 0 && uwrite(ufd, own, 8) == 8 && uclose(ufd) == 0);
    SURE(mkfifo("pipe", 0600) == 0);
    SURE((ufd = uopen("pipe", O_RDWR | O_NONBLOCK)) == 3 && uwrite(ufd, "pipe", 4) == 4 && uread(ufd, own, 8) == 4);
    FAILS(EAGAIN, uread(ufd, own, 8));
    FAILS(ESPIPE, ulseek(ufd, 0, SEEK_SET));
    SURE(uclose(ufd) == 0 && unlink("pipe") == 0);
    SURE(ufstat(1, &st) == 0 && ufileno(2) == 2 && uwrite(1, "", 0) == 0);
    FAILS(ESPIPE, upin(1, 0, 1, &(const void *){NULL}));
}

/* Whether another process would not get a write lock on a byte. */
static int is_locked(const char *name, off_t at)
{
    int status;
    pid_t child = fork();
    SURE(child >= 0);
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
        /* Asked, not taken: a directory cannot be opened for writing. */
        _exit(fcntl(open(name, O_RDONLY), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK ? 0 : 1);
    }
    SURE(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void locks(void)
{
    int ufd = uopen("locked", O_RDWR | O_CREAT, 0600), other = uopen("locked", O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1};
    SURE(ufcntl(ufd, F_SETLK, &lock) == 0 && is_locked("locked", 5) && !is_locked("locked", 6));
    /* One process, one owner; and nobody else's open and close ends what it has. */
    SURE(ufcntl(other, F_SETLK, &lock) == 0 && ufcntl(other, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    struct stat st;
    SURE(ustat("locked", &st) == 0 && utruncate("locked", 10) == 0 && is_locked("locked", 5));
    SURE(urename("locked", "locked2") == 0 && urename("locked2", "locked") == 0 && is_locked("locked", 5));
    lock.l_type = F_UNLCK;
    SURE(ufcntl(other, F_SETLK, &lock) == 0 && !is_locked("locked", 5));
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_CUR, .l_start = 2, .l_len = 1};
    SURE(ulseek(ufd, 5, SEEK_SET) == 5 && ufcntl(ufd, F_SETLK, &lock) == 0 && is_locked("locked", 7));
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -1, .l_len = 1};
    SURE(ufcntl(ufd, F_SETLKW, &lock) == 0 && is_locked("locked", 9));
    int reading = uopen("locked", O_RDONLY);
    FAILS(EBADF, ufcntl(reading, F_SETLK, &lock));
    FAILS(EFAULT, ufcntl(ufd, F_SETLK, NULL));
    lock.l_whence = 9;
    FAILS(EINVAL, ufcntl(ufd, F_SETLK, &lock));
    /* As POSIX has it, closing any of them ends all. */
    SURE(uclose(reading) == 0 && !is_locked("locked", 7) && !is_locked("locked", 9));
    /* A stream of a directory has a descriptor, too. */
    SURE(umkdir("locked.d", 0700) == 0);
    int dir = uopen("locked.d", O_RDONLY | O_DIRECTORY);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1};
    SURE(dir >= 0 && ufcntl(dir, F_SETLK, &lock) == 0 && is_locked("locked.d", 5));
    UDIR *stream = uopendir("locked.d");
    SURE(stream != NULL && ureaddir(stream) != NULL && is_locked("locked.d", 5));
    SURE(uclosedir(stream) == 0 && !is_locked("locked.d", 5));
    SURE(uclose(dir) == 0 && urmdir("locked.d") == 0);

    SURE(uflock(ufd, LOCK_EX | LOCK_NB) == 0);
    FAILS(EWOULDBLOCK, uflock(other, LOCK_EX | LOCK_NB));
    SURE(ufchmod(ufd, 0644) == 0 && ufchown(ufd, -1, -1) == 0);
    struct timespec times[2] = {{1000, 0}, {2000, 0}};
    SURE(uwrite(ufd, "x", 1) == 1 && ufutimens(ufd, times) == 0 && ufstat(ufd, &st) == 0);
    SURE(st.st_mtime == 2000 && (st.st_mode & 0777) == 0644);
    SURE(uclose(ufd) == 0 && uclose(other) == 0 && uunlink("locked") == 0);
}

static void asynchronous(void)
{
    enum { COUNT = 64 };
    static char pages[COUNT][PAGE], back[COUNT][PAGE];
    struct uaio requests[COUNT], done[COUNT];
    struct timespec none = {0, 0}, soon = {0, 1000000};
    int ufd = uopen("aio", O_RDWR | O_CREAT | O_TRUNC, 0600);
    UAIO *aio = uaio_create(COUNT);
    SURE(ufd == 3 && aio != NULL && uaio_reap(aio, done, 1, 1, NULL) == 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++) {
            memset(pages[i], i + 1, PAGE);
            requests[i] = (struct uaio){ufd, round ? UAIO_READ : UAIO_WRITE, round ? back[i] : pages[i], PAGE, (off_t)i * PAGE, i, 0};
        }
        SURE(uaio_submit(aio, requests, COUNT) == COUNT);
        FAILS(EAGAIN, uaio_submit(aio, requests, 1));
        int got = 0;
        unsigned long long seen = 0;
        while (got < COUNT) {
            int now = uaio_reap(aio, done, 1, COUNT, NULL);
            SURE(now > 0);
            for (int i = 0; i < now; i++, got++) {
                SURE(done[i].result == PAGE && done[i].ufd == ufd);
                seen |= 1ULL << done[i].user;
            }
        }
        SURE(seen == ~0ULL);
    }
    SURE(memcmp(pages, back, sizeof pages) == 0);
    requests[0].off = (off_t)COUNT * PAGE;
    requests[1] = (struct uaio){.ufd = ufd, .op = UAIO_FSYNC, .user = 7};
    requests[2].ufd = 99;
    SURE(uaio_submit(aio, requests, 3) == 2 && uaio_reap(aio, done, 2, 9 < COUNT ? 9 : COUNT, NULL) == 2);
    SURE(done[0].result == 0 && done[1].result == 0);
    SURE(uaio_reap(aio, done, 0, 1, &none) == 0 && uaio_reap(aio, done, 1, 1, &soon) == 0);
    /* A request keeps its file, whoever closes it. */
    SURE(uaio_submit(aio, requests + 1, 1) == 1 && uclose(ufd) == 0 && uaio_reap(aio, done, 1, 1, NULL) == 1 && done[0].result == 0);
    SURE(uaio_destroy(aio) == 0 && uunlink("aio") == 0);
}

static int shared_ufd;

/* Each takes its own bytes of the file's one position. */
static void *reads_on(void *sum)
{
    unsigned char byte;
    while (uread(shared_ufd, &byte, 1) == 1)
        *(long *)sum += byte;
    return NULL;
}

static void *opens_and_closes(void *unused)
{
    char own[8];
    for (int i = 0; i < 500; i++) {
        int ufd = uopen("threads", O_RDWR);
        SURE(ufd >= 3);
        SURE(upread(ufd, own, 8, 0) == 8);
        /* Numbers of others may be closed at any moment: an error or bytes, and no crash. */
        ssize_t n = upread(ufd + 1, own, 8, 0);
        SURE(n == 8 || (n == -1 && errno == EBADF));
        SURE(uclose(ufd) == 0);
    }
    return unused;
}

static void threads(void)
{
    pthread_t all[4];
    long sums[4] = {0};
    unsigned char own[20000];
    memset(own, 1, sizeof own);
    shared_ufd = uopen("threads", O_RDWR | O_CREAT, 0600);
    SURE(uwrite(shared_ufd, own, sizeof own) == sizeof own && ulseek(shared_ufd, 0, SEEK_SET) == 0);
    for (int i = 0; i < 4; i++)
        SURE(pthread_create(&all[i], NULL, reads_on, &sums[i]) == 0);
    for (int i = 0; i < 4; i++)
        SURE(pthread_join(all[i], NULL) == 0);
    SURE(sums[0] + sums[1] + sums[2] + sums[3] == sizeof own);
    SURE(uclose(shared_ufd) == 0);
    for (int i = 0; i < 4; i++)
        SURE(pthread_create(&all[i], NULL, opens_and_closes, NULL) == 0);
    for (int i = 0; i < 4; i++)
        SURE(pthread_join(all[i], NULL) == 0);
    SURE(uunlink("threads") == 0);
}

/* A child goes on by itself; what both wrote is seen by both. */
static void forked(void)
{
    char own[8];
    int ufd = uopen("forked", O_RDWR | O_CREAT, 0600), status;
    UAIO *aio = uaio_create(1);
    SURE(uwrite(ufd, "parent", 6) == 6);
    pid_t child = fork();
    SURE(child >= 0);
    if (child == 0) {
        SURE(upread(ufd, own, 8, 0) == 6 && memcmp(own, "parent", 6) == 0);
        SURE(upwrite(ufd, "child ", 6, 0) == 6);
        int other = uopen("forked too", O_RDWR | O_CREAT, 0600);
        SURE(other == 4 && uwrite(other, "x", 1) == 1 && uclose(other) == 0 && uclose(ufd) == 0);
        FAILS(EPERM, uaio_reap(aio, NULL, 0, 0, NULL));
        FAILS(EPERM, uaio_destroy(aio));
        exit(0);
    }
    SURE(waitpid(child, &status, 0) == child && status == 0);
    SURE(upread(ufd, own, 8, 0) == 6 && memcmp(own, "child ", 6) == 0 && uaio_destroy(aio) == 0);
    SURE(uclose(ufd) == 0 && uunlink("forked") == 0 && uunlink("forked too") == 0);
}

static void beginnings_and_ends(const char *config)
{
    char own[8];
    int ufd = uopen("kept", O_RDWR | O_CREAT, 0600);
    FAILS(EBUSY, hs_init("/dev/null"));
    SURE(hs_init(config) == 0);
    SURE(uwrite(ufd, "kept", 4) == 4);
    SURE(hs_shutdown() == 0);
    FAILS(EBADF, uread(ufd, own, 1));
    FAILS(ENOENT, hs_init("no/such/file"));
    SURE(hs_init(config) == 0);
    SURE((ufd = uopen("kept", O_RDONLY)) == 3 && uread(ufd, own, 8) == 4 && memcmp(own, "kept", 4) == 0);
    int fd = open("kept", O_RDONLY);
    SURE(fd >= 0 && read(fd, own, 8) == 4 && close(fd) == 0);
    SURE(unlink("kept") == 0);
}

int main(int argc, char **argv)
{
    char config[4096], line[4096];
    SURE(argc == 2 && chdir(argv[1]) == 0 && getcwd(config, sizeof config - 20) != NULL);
    FILE *file = fopen("cache.toml", "w");
    snprintf(line, sizeof line, "[cache]\nmemory = \"8MiB\"\nruntime_dir = \"%.3000s\"\n", config);
    SURE(file != NULL && fputs(line, file) >= 0 && fclose(file) == 0);
    strcat(config, "/cache.toml");
    SURE(hs_init(config) == 0);
    wrong_calls();
    plain_use();
    duplicates();
    appending();
    holes();
    pins_and_views();
    many_pins();
    hits();
    names();
    handed_on();
    locks();
    asynchronous();
    threads();
    forked();
    beginnings_and_ends(config);
    SURE(hs_shutdown() == 0);
    puts("all is well");
    return 0;
}
