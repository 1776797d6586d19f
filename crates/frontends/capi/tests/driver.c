/* A program that uses a file through the cache as standard input says, one command in a line, each with a reply:
 *
 *   open NAME | close | write OFF TEXT | append TEXT | read OFF N | pin OFF N | size | cut N | sync | hits OFF N COUNT
 *
 * An answer is what was read (zeroes as dots), a number, "ok", or "errno NUMBER: sentence". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hotshelf.h>

static char data[1 << 20];
static int ufd = -1;

static void reply(long done)
{
    if (done < 0)
        printf("errno %d: %s\n", errno, hs_error());
    else
        printf("%s\n", "ok");
}

static void bytes(const char *from, ssize_t n)
{
    if (n < 0) {
        reply(-1);
        return;
    }
    for (ssize_t i = 0; i < n; i++)
        putchar(((const char *)from)[i] == '\0' ? '.' : ((const char *)from)[i]);
    putchar('\n');
}

int main(void)
{
    char line[8192], word[16], text[8192];
    const void *page;
    struct stat st;
    long at, n, count;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        text[0] = '\0';
        if (sscanf(line, "%15s", word) != 1)
            continue;
        if (strcmp(word, "open") == 0 && sscanf(line, "%*s %8191s", text) == 1) {
            ufd = uopen(text, O_RDWR | O_CREAT, 0600);
            reply(ufd);
        } else if (strcmp(word, "close") == 0) {
            reply(uclose(ufd));
        } else if (strcmp(word, "write") == 0 && sscanf(line, "%*s %ld %8191[^\n]", &at, text) == 2) {
            n = upwrite(ufd, text, strlen(text), at);
            reply(n == (long)strlen(text) ? n : -1);
        } else if (strcmp(word, "append") == 0 && sscanf(line, "%*s %8191[^\n]", text) == 1) {
            n = ufcntl(ufd, F_SETFL, O_APPEND) == 0 ? uwrite(ufd, text, strlen(text)) : -1;
            ufcntl(ufd, F_SETFL, 0);
            reply(n);
        } else if (strcmp(word, "read") == 0 && sscanf(line, "%*s %ld %ld", &at, &n) == 2 && n <= (long)sizeof data) {
            bytes(data, upread(ufd, data, (size_t)n, at));
        } else if (strcmp(word, "pin") == 0 && sscanf(line, "%*s %ld %ld", &at, &n) == 2) {
            n = upin(ufd, at, (size_t)n, &page);
            bytes(page, n);
            if (n > 0 && uunpin(ufd, at, page) != 0)
                reply(-1);
        } else if (strcmp(word, "size") == 0) {
            if (ufstat(ufd, &st) == 0)
                printf("%lld\n", (long long)st.st_size);
            else
                reply(-1);
        } else if (strcmp(word, "cut") == 0 && sscanf(line, "%*s %ld", &n) == 1) {
            reply(uftruncate(ufd, n));
        } else if (strcmp(word, "sync") == 0) {
            reply(ufsync(ufd));
        } else if (strcmp(word, "hits") == 0 && sscanf(line, "%*s %ld %ld %ld", &at, &n, &count) == 3 && n <= (long)sizeof data) {
            long done = 0;
            for (long i = 0; i < count && done >= 0; i++)
                done = upread(ufd, data, (size_t)n, at);
            reply(done);
        } else {
            printf("what is `%s`?\n", line);
        }
    }
    return 0;
}
