/* Does every call that libhotshelf_nocache takes over, on a file below the directory it is given, and looks after each whether pages
 * of the file are in memory. A page that was written and is gone is on the device: the kernel drops no dirty page.
 *
 *   calls DIR [CALL]     all calls, or those whose name begins so; prints the names of those that failed; exit 1 if any did
 *
 * The looking is done by system calls that the library does not take over. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, SIZE = 8 << 20, AT = 5 << 20, SOME = 64 << 10 };

static char path[4096], other[4096];
static char data[SIZE];
static int fd, failed, step;
static const char *now;

static void bad(const char *what, long number)
{
    printf("%s: %s (%ld, step %d)\n", now, what, number, step);
    failed++;
}

static void ok(long got, long wanted, const char *what)
{
    if (got != wanted)
        bad(what, got);
}

/* Pages of the file in memory, between two offsets. */
static long pages(const char *name, long from, long to)
{
    static unsigned char in[SIZE / PAGE];
    int own = open(name, O_RDONLY | O_CLOEXEC);
    long length = to - from, count = 0;
    void *at = (void *)syscall(SYS_mmap, 0, length, PROT_READ, MAP_SHARED, own, from);
    if (at == MAP_FAILED || mincore(at, length, in) != 0)
        bad("cannot look", errno);
    for (long n = 0; n < length / PAGE; n++)
        count += in[n] & 1;
    syscall(SYS_munmap, at, length);
    syscall(SYS_close, own);
    return count;
}

static void gone(const char *name, long from, long to)
{
    long count = pages(name, from, to);
    step++;
    if (count != 0)
        bad("pages are in memory", count);
}

/* Waits for all that is being read ahead, and empties the cache. */
static void quiet(const char *name)
{
    int own = open(name, O_RDONLY);
    void *at = (void *)syscall(SYS_mmap, 0, SIZE, PROT_READ, MAP_SHARED | MAP_POPULATE, own, 0);
    syscall(SYS_munmap, at, SIZE);
    syscall(SYS_fadvise64, own, 0, 0, POSIX_FADV_DONTNEED);
    syscall(SYS_close, own);
}

/* The same when nothing ran last that waits: what was being read ahead at a close goes with the next open's first access, what was
 * mapped goes when the library's thread comes by. */
static void gone_soon(const char *name, long from, long to)
{
    char byte;
    step++;
    for (int tries = 0; pages(name, from, to) != 0; tries++) {
        if (tries == 400) {
            bad("pages stay in memory", pages(name, from, to));
            break;
        }
        usleep(25000);
        int own = open(name, O_RDONLY);
        ok(pread(own, &byte, 1, 0), 1, "looking again");
        close(own);
    }
    quiet(name);
}

static void all_gone(void) { gone(path, 0, SIZE); }

/* Others read or write the file, by calls that are not seen. */
static void warm(const char *name)
{
    static char some[SIZE];
    pid_t child = fork();
    if (child == 0) {
        int own = open(name, O_RDONLY);
        void *at = (void *)syscall(SYS_mmap, 0, SIZE, PROT_READ, MAP_SHARED | MAP_POPULATE, own, 0);
        memcpy(some, at, SIZE);
        syscall(SYS_exit_group, 0);
    }
    waitpid(child, NULL, 0);
}

static void same(const void *got, long offset, long length)
{
    if (memcmp(got, data + offset, length) != 0)
        bad("wrong data", offset);
}

static struct iovec parts[2];
static char buffer[SIZE];
static void split(void *at, long length)
{
    parts[0].iov_base = at;
    parts[0].iov_len = length / 2;
    parts[1].iov_base = (char *)at + length / 2;
    parts[1].iov_len = length - length / 2;
}

#define READS(call)                                                                                                                    \
    memset(buffer, 0, SOME);                                                                                                           \
    split(buffer, SOME);                                                                                                               \
    lseek(fd, AT, SEEK_SET);                                                                                                           \
    errno = 77;                                                                                                                        \
    ok(call, SOME, #call);                                                                                                             \
    ok(errno, 77, "errno changed");                                                                                                    \
    same(buffer, AT, SOME);                                                                                                            \
    all_gone();                                                                                                                        \
    warm(path);                                                                                                                        \
    lseek(fd, AT, SEEK_SET);                                                                                                           \
    ok(call, SOME, #call);                                                                                                             \
    gone(path, AT, AT + SOME);                                                                                                         \
    quiet(path);

static void do_read(void) { READS(read(fd, buffer, SOME)) }
static void do_readv(void) { READS(readv(fd, parts, 2)) }
static void do_pread(void) { READS(pread(fd, buffer, SOME, AT)) }
static void do_preadv(void) { READS(preadv(fd, parts, 2, AT)) }
static void do_preadv2(void) { READS(preadv2(fd, parts, 2, AT, 0)) READS(preadv2(fd, parts, 2, -1, 0)) }
static void do_syscall(void)
{
    READS(syscall(SYS_pread64, fd, buffer, SOME, AT))
    READS(syscall(SYS_read, fd, buffer, SOME))
}

#define WRITES(call)                                                                                                                   \
    for (long n = 0; n < SOME; n++)                                                                                                    \
        data[AT + n] = (char)(n * 7 + step);                                                                                           \
    split(data + AT, SOME);                                                                                                            \
    lseek(fd, AT, SEEK_SET);                                                                                                           \
    errno = 77;                                                                                                                        \
    ok(call, SOME, #call);                                                                                                             \
    ok(errno, 77, "errno changed");                                                                                                    \
    all_gone();                                                                                                                        \
    ok(pread(fd, buffer, SOME, AT), SOME, "reading back");                                                                             \
    same(buffer, AT, SOME);

static void do_write(void) { WRITES(write(fd, data + AT, SOME)) }
static void do_writev(void) { WRITES(writev(fd, parts, 2)) }
static void do_pwrite(void) { WRITES(pwrite(fd, data + AT, SOME, AT)) }
static void do_pwritev(void) { WRITES(pwritev(fd, parts, 2, AT)) }
static void do_pwritev2(void) { WRITES(pwritev2(fd, parts, 2, AT, 0)) WRITES(pwritev2(fd, parts, 2, -1, 0)) }
static void do_wsyscall(void) { WRITES(syscall(SYS_pwrite64, fd, data + AT, SOME, AT)) }

/* Small accesses: a page that is not yet through stays, and goes with the first access elsewhere. */
static void do_small(void)
{
    int random = fd;
    fd = open(path, O_RDWR | O_CLOEXEC);
    lseek(fd, 0, SEEK_SET);
    for (int n = 0; n < 1000; n++) {
        ok(read(fd, buffer, 100), 100, "small read");
        same(buffer, n * 100, 100);
    }
    gone(path, 0, 100000 / PAGE * PAGE);
    ok(pread(fd, buffer, 10, AT + 5), 10, "elsewhere");
    gone(path, AT, AT + PAGE);
    gone_soon(path, 0, SIZE);
    ok(pread(fd, buffer, 10, 0), 10, "again");
    ok(pread(fd, buffer, 10, 0), 10, "again");
    all_gone();
    lseek(fd, 0, SEEK_SET);
    while (read(fd, buffer, 3000) > 0)
        ;
    gone_soon(path, 0, SIZE);
    lseek(fd, AT + 100, SEEK_SET);
    for (int n = 0; n < 100; n++)
        ok(write(fd, data + AT + 100 + n * 50, 50), 50, "small write");
    gone(path, AT, AT + PAGE);
    lseek(fd, 0, SEEK_SET);
    ok(read(fd, buffer, PAGE), PAGE, "elsewhere");
    gone(path, AT, AT + PAGE);
    close(fd);
    fd = random;
    quiet(path);
}

static void do_append(void)
{
    int own = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    for (int n = 0; n < 20; n++)
        ok(write(own, data, 1000), 1000, "append");
    gone(other, 0, 4 * PAGE);
    ok(pwrite(own, data, 1000, 0), 1000, "append at an offset");
    close(own);
    gone(other, 0, 6 * PAGE);
}

static void do_sendfile(void)
{
    int own = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
    off_t at = AT;
    ok(sendfile(own, fd, &at, SOME), SOME, "sendfile");
    ok(at, AT + SOME, "its offset");
    all_gone();
    gone(other, 0, SOME);
    ok(pread(own, buffer, SOME, 0), SOME, "reading back");
    same(buffer, AT, SOME);
    close(own);
}

static void do_splice(void)
{
    int ends[2], own = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
    off_t at = AT, to = PAGE;
    ok(pipe(ends), 0, "pipe");
    ok(splice(fd, &at, ends[1], NULL, SOME / 2, 0), SOME / 2, "splice out");
    ok(splice(ends[0], NULL, own, &to, SOME / 2, 0), SOME / 2, "splice in");
    gone(other, 0, SOME / 2);
    ok(pread(own, buffer, SOME / 2, PAGE), SOME / 2, "reading back");
    same(buffer, AT, SOME / 2);
    /* The pipe held the pages: the next call on the file drops them. */
    ok(pread(fd, buffer, PAGE, AT + SOME), PAGE, "next");
    all_gone();
    close(ends[0]), close(ends[1]), close(own);
}

static void do_copy_file_range(void)
{
    int own = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
    off_t at = AT, to = 0;
    ok(copy_file_range(fd, &at, own, &to, SOME, 0), SOME, "copy_file_range");
    all_gone();
    gone(other, 0, SOME);
    lseek(fd, AT, SEEK_SET);
    ok(copy_file_range(fd, NULL, own, NULL, SOME, 0), SOME, "copy_file_range");
    all_gone();
    gone(other, 0, SOME);
    close(own);
}

static void do_stdio_read(void)
{
    FILE *stream = fopen(path, "r");
    ok(fread(buffer, 1, SOME, stream), SOME, "fread");
    same(buffer, 0, SOME);
    gone(path, 0, SOME);
    ok(fseek(stream, AT + 10, SEEK_SET), 0, "fseek");
    for (int n = 0; n < 20000; n++)
        ok(getc(stream) & 255, data[AT + 10 + n] & 255, "getc");
    gone(path, AT, AT + 16384);
    rewind(stream);
    ok(fgets(buffer, 50, stream) != NULL, 1, "fgets");
    char *line = NULL;
    size_t room = 0;
    for (int n = 0; n < 100; n++)
        ok(getline(&line, &room, stream) > 0, 1, "getline");
    free(line);
    gone(path, 0, ftell(stream) / PAGE * PAGE);
    ok(fclose(stream), 0, "fclose");
    gone_soon(path, 0, SIZE);
    ok(freopen(path, "r", stdin) != NULL, 1, "freopen");
    ok(scanf("%1000c", buffer), 1, "scanf");
    same(buffer, 0, 1000);
    for (int n = 0; n < 2 * PAGE; n++)
        getchar();
    gone(path, 0, 2 * PAGE);
    ok(freopen("/dev/null", "r", stdin) != NULL, 1, "freopen");
    gone_soon(path, 0, SIZE);
}

static void do_stdio_write(void)
{
    FILE *stream = fopen(other, "w+");
    ok(fwrite(data, 1, 4 * PAGE, stream), 4 * PAGE, "fwrite");
    fflush(stream);
    gone(other, 0, 4 * PAGE);
    long begin = ftell(stream);
    for (int n = 0; n < 3000; n++)
        ok(fprintf(stream, "%5d %s %.3f %c\n", n, "abc", n / 2.0, 'x') > 0, 1, "fprintf");
    gone(other, 0, (ftell(stream) / PAGE - 2) * PAGE);
    for (int n = 0; n < 3 * PAGE; n++)
        fputc('a' + n % 26, stream), putc_unlocked('b', stream);
    fputs("the end\n", stream);
    fflush(stream);
    gone(other, 0, ftell(stream) / PAGE * PAGE);
    fseek(stream, begin, SEEK_SET);
    for (int n = 0; n < 3000; n++) {
        int number;
        float half;
        char word[8], last;
        ok(fscanf(stream, "%d %7s %f %c", &number, word, &half, &last), 4, "fscanf");
        if (number != n || strcmp(word, "abc") || half != n / 2.0f || last != 'x')
            bad("fscanf is wrong", n);
    }
    gone(other, 0, begin + 8 * PAGE);
    ok(fclose(stream), 0, "fclose");
    gone_soon(other, 0, 20 * PAGE);
    /* What is only in the stream's memory when it is closed, and what a full device says. */
    stream = fopen(other, "w");
    fwrite(data, 1, 100, stream);
    ok(fclose(stream), 0, "fclose");
    gone(other, 0, PAGE);
    stream = fopen("/dev/full", "w");
    fputs("x", stream);
    errno = 0;
    ok(fclose(stream), EOF, "fclose of a full device");
    ok(errno, ENOSPC, "its errno");
}

static void do_mmap(void)
{
    for (int shared = 0; shared < 2; shared++) {
        char *at = mmap(NULL, SIZE, PROT_READ, shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
        long sum = 0;
        for (long n = 0; n < SIZE; n += PAGE)
            sum += at[n];
        same(at + AT, AT, SOME);
        gone_soon(path, 0, SIZE);
        same(at + AT, AT, SOME);
        munmap(at, SIZE);
        gone_soon(path, 0, SIZE);
        if (sum == 1)
            puts("");
    }
}

static void do_mmap_write(void)
{
    char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(at + AT, 'm', SOME), memset(data + AT, 'm', SOME);
    ok(msync(at + AT, SOME, MS_ASYNC), 0, "msync");
    gone(path, AT, AT + SOME);
    same(at + AT, AT, SOME);
    memset(at + AT, 'n', SOME), memset(data + AT, 'n', SOME);
    gone_soon(path, 0, SIZE);
    munmap(at, SIZE);
    ok(pread(fd, buffer, SOME, AT), SOME, "reading back");
    same(buffer, AT, SOME);
    /* What a private mapping holds is the program's memory. */
    at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    memset(at + AT, 'p', SOME);
    usleep(250000);
    for (long n = 0; n < SOME; n++)
        if (at[AT + n] != 'p') {
            bad("private memory is lost", n);
            break;
        }
    pid_t child = fork();
    if (child == 0)
        exit(at[AT] == 'p' && at[0] == data[0] ? 0 : 1);
    int how;
    waitpid(child, &how, 0);
    ok(how, 0, "a child of a process with mappings");
    munmap(at, SIZE);
    gone_soon(path, 0, SIZE);
}

static void do_aio(void)
{
    struct aiocb one = {.aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = SOME, .aio_offset = AT};
    const struct aiocb *list[] = {&one};
    ok(aio_read(&one), 0, "aio_read");
    while (aio_error(&one) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    all_gone();
    ok(aio_return(&one), SOME, "aio_return");
    same(buffer, AT, SOME);
    memset(data + AT, 'q', SOME);
    memset(&one, 0, sizeof(one));
    one = (struct aiocb){.aio_fildes = fd, .aio_buf = data + AT, .aio_nbytes = SOME, .aio_offset = AT};
    ok(aio_write(&one), 0, "aio_write");
    aio_suspend(list, 1, NULL);
    ok(aio_return(&one), SOME, "aio_return");
    all_gone();
}

static void do_descriptors(void)
{
    int copy = dup(fd), third = open(other, O_RDONLY | O_CREAT, 0600);
    ok(pread(copy, buffer, SOME, AT), SOME, "through a copy");
    all_gone();
    ok(dup2(fd, third), third, "dup2");
    ok(pread(third, buffer, SOME, AT), SOME, "through another number");
    all_gone();
    ok(ftruncate(fd, SIZE - 100), 0, "ftruncate");
    all_gone();
    ok(ftruncate(fd, SIZE), 0, "ftruncate");
    memset(data + SIZE - 100, 0, 100);
    close(copy), close(third);
    /* A pipe after a file with the same number. */
    int ends[2];
    ok(pipe(ends), 0, "pipe");
    ok(write(ends[1], "x", 1), 1, "write to a pipe");
    ok(read(ends[0], buffer, 1), 1, "read from a pipe");
    close(ends[0]), close(ends[1]);
    /* Direct I/O leaves alone what others have cached. */
    int direct = open(path, O_RDONLY | O_DIRECT);
    void *aligned = NULL;
    if (direct >= 0 && posix_memalign(&aligned, PAGE, PAGE) == 0) {
        warm(path);
        long before = pages(path, 0, SIZE);
        ok(pread(direct, aligned, PAGE, AT), PAGE, "direct");
        ok(pages(path, 0, SIZE), before, "direct I/O dropped pages");
        ok(fcntl(direct, F_SETFL, O_RDONLY), 0, "direct no more");
        ok(pread(direct, aligned, PAGE, AT), PAGE, "no longer direct");
        all_gone();
        close(direct);
    }
    free(aligned);
}

static void *reader(void *seed)
{
    static __thread char own[PAGE];
    unsigned next = (unsigned)(long)seed;
    for (int n = 0; n < 500; n++) {
        long page = (next = next * 1103515245 + 12345) / 65536 % (SIZE / PAGE);
        if (pread(fd, own, PAGE, page * PAGE) != PAGE || memcmp(own, data + page * PAGE, PAGE) != 0)
            return (void *)1;
    }
    return NULL;
}

static void on_alarm(int number)
{
    char byte;
    (void)number;
    if (pread(fd, &byte, 1, 0) != 1 || byte != data[0])
        failed++;
}

static void *waits(void *end)
{
    char byte;
    /* A point of cancellation inside of the call behind ours. */
    read((int)(long)end, &byte, 1);
    return NULL;
}

static void do_threads(void)
{
    pthread_t some[4];
    void *wrong;
    signal(SIGUSR1, on_alarm);
    for (long n = 0; n < 4; n++)
        pthread_create(&some[n], NULL, reader, (void *)(n + 1));
    for (int n = 0; n < 50; n++)
        pthread_kill(pthread_self(), SIGUSR1);
    for (int n = 0; n < 4; n++) {
        pthread_join(some[n], &wrong);
        ok((long)wrong, 0, "a thread read wrongly");
    }
    ok(pread(fd, buffer, PAGE, AT), PAGE, "pread");
    all_gone();
    int ends[2];
    ok(pipe(ends), 0, "pipe");
    pthread_create(&some[0], NULL, waits, (void *)(long)ends[0]);
    usleep(1000);
    pthread_cancel(some[0]);
    pthread_join(some[0], &wrong);
    ok((long)wrong, (long)PTHREAD_CANCELED, "not cancelled");
    close(ends[0]), close(ends[1]);
    pid_t child = fork();
    if (child == 0) {
        if (pread(fd, buffer, SOME, AT) != SOME)
            _exit(1);
        all_gone();
        fflush(stdout);
        _exit(failed != 0);
    }
    int how;
    waitpid(child, &how, 0);
    ok(how, 0, "a child");
}

/* A child whose environment is empty has the library all the same. */
static void do_exec(void)
{
    char *words[] = {"/proc/self/exe", "--env", NULL}, *none[] = {NULL};
    pid_t child = fork();
    int how;
    if (child == 0) {
        execve("/proc/self/exe", words, none);
        _exit(9);
    }
    waitpid(child, &how, 0);
    ok(WEXITSTATUS(how), 0, "execve lost the library");
    child = vfork();
    if (child == 0) {
        execve("/proc/self/exe", words, none);
        _exit(9);
    }
    waitpid(child, &how, 0);
    ok(WEXITSTATUS(how), 0, "execve after vfork lost the library");
    ok(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, none), 0, "posix_spawn");
    waitpid(child, &how, 0);
    ok(WEXITSTATUS(how), 0, "posix_spawn lost the library");
}

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {
    {"read", do_read},           {"readv", do_readv},       {"pread", do_pread},         {"preadv", do_preadv},
    {"preadv2", do_preadv2},     {"syscall", do_syscall},   {"write", do_write},         {"writev", do_writev},
    {"pwrite", do_pwrite},       {"pwritev", do_pwritev},   {"pwritev2", do_pwritev2},   {"wsyscall", do_wsyscall},
    {"small", do_small},         {"append", do_append},     {"sendfile", do_sendfile},   {"splice", do_splice},
    {"copy", do_copy_file_range}, {"stdio_read", do_stdio_read}, {"stdio_write", do_stdio_write}, {"mmap_read", do_mmap},
    {"mmap_write", do_mmap_write}, {"aio", do_aio},         {"descriptors", do_descriptors}, {"threads", do_threads},
    {"exec", do_exec},
};

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(words[1], "--env") == 0)
        return getenv("LD_PRELOAD") == NULL || getenv("HOTSHELF_NOCACHE") == NULL;
    snprintf(path, sizeof path, "%s/calls.data", words[1]);
    snprintf(other, sizeof other, "%s/calls.other", words[1]);
    for (long n = 0; n < SIZE; n++)
        data[n] = n % 61 == 60 ? '\n' : (char)('a' + (n * 31 + n / 4099) % 26);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ok(write(fd, data, SIZE), SIZE, "writing");
    all_gone();
    /* Without it the kernel reads ahead, and what is on its way cannot be dropped. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    for (unsigned n = 0; n < sizeof calls / sizeof *calls; n++)
        if (count < 3 || strncmp(calls[n].name, words[2], strlen(words[2])) == 0) {
            now = calls[n].name, step = 0;
            quiet(path);
            calls[n].call();
        }
    unlink(path), unlink(other);
    return failed != 0;
}
