/* metadata DIR FILES: creates, looks at, renames and removes small files; prints operations per second. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int files = atoi(argv[2]);
    char path[4096], other[4096];
    double begin = now();
    for (int n = 0; n < files; n++) {
        if (n % 1000 == 0) {
            snprintf(path, sizeof path, "%s/d%d", argv[1], n / 1000);
            check(mkdir(path, 0755), path);
        }
        snprintf(path, sizeof path, "%s/d%d/f%d", argv[1], n / 1000, n);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
        check(fd < 0, path);
        check(write(fd, "small file\n", 11) != 11, path);
        check(close(fd), path);
    }
    printf("create %.0f\n", files / (now() - begin));
    begin = now();
    struct stat st;
    for (int n = 0; n < files; n++) {
        snprintf(path, sizeof path, "%s/d%d/f%d", argv[1], n / 1000, n);
        check(stat(path, &st), path);
    }
    printf("stat %.0f\n", files / (now() - begin));
    begin = now();
    snprintf(path, sizeof path, "ls -lR '%s' >/dev/null", argv[1]);
    check(system(path), path);
    printf("list %.0f\n", files / (now() - begin));
    begin = now();
    for (int n = 0; n < files; n++) {
        snprintf(path, sizeof path, "%s/d%d/f%d", argv[1], n / 1000, n);
        check(stat(path, &st), path);
    }
    printf("again %.0f\n", files / (now() - begin));
    begin = now();
    for (int n = 0; n < files; n++) {
        snprintf(path, sizeof path, "%s/d%d/f%d", argv[1], n / 1000, n);
        snprintf(other, sizeof other, "%s/d%d/g%d", argv[1], n / 1000, n);
        check(rename(path, other), path);
    }
    printf("rename %.0f\n", files / (now() - begin));
    begin = now();
    for (int n = 0; n < files; n++) {
        snprintf(path, sizeof path, "%s/d%d/g%d", argv[1], n / 1000, n);
        check(unlink(path), path);
    }
    printf("unlink %.0f\n", files / (now() - begin));
    for (int n = 0; n < files; n += 1000) {
        snprintf(path, sizeof path, "%s/d%d", argv[1], n / 1000);
        check(rmdir(path), path);
    }
    return 0;
}
