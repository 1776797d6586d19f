#!/bin/bash
# TIMEOUT_FULL: 600
# Lookups concurrent with changes leave no stale entry: afterwards the kernel's cached attributes and data are the current ones.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need cc
needs_fuse

cat >"$SCRATCH/beside.c" <<'C'
// beside DIR ROUNDS CHANGE: how often the kernel had something else than the file system when a change beside a look was over.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *names[] = {"one", "two"};
static atomic_int asked, looked;

static void *look(void *unused) {
    struct stat st;
    for (int last = 0, now;; last = now) {
        while ((now = atomic_load(&asked)) == last) sched_yield();
        if (now < 0) return NULL;
        stat(names[0], &st);
        stat(names[1], &st);
        atomic_store(&looked, now);
    }
}

static void must(int outcome, const char *what) {
    if (outcome < 0) { perror(what); exit(1); }
}

static void change(const char *how, int round, int at) {
    if (!strcmp(how, "rename")) return must(rename(names[at], names[!at]), "rename");
    if (!strcmp(how, "exchange")) return must(renameat2(AT_FDCWD, names[at], AT_FDCWD, names[!at], RENAME_EXCHANGE), "exchange");
    if (!strcmp(how, "chmod")) return must(chmod(names[at], round % 2 ? 0600 : 0644), "chmod");
    if (!strcmp(how, "setxattr")) return must(setxattr(names[at], "user.changed", &round, sizeof round, 0), "setxattr");
    if (!strcmp(how, "removexattr")) return must(removexattr(names[at], "user.round"), "removexattr");
    int file = open(names[at], O_WRONLY);
    must(file, "open");
    must(fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 4096 * (1 + round % 16)), "fallocate");
    close(file);
}

int main(int argc, char **argv) {
    int rounds = atoi(argv[2]), at = 0, stale = 0;
    must(chdir(argv[1]), "chdir");
    unlink(names[1]);
    must(close(creat(names[0], 0644)), "creat");
    if (!strcmp(argv[3], "exchange")) must(close(creat(names[1], 0644)), "creat");
    pthread_t looking;
    pthread_create(&looking, NULL, look, NULL);
    for (int round = 1; round <= rounds; round++) {
        // From now on the kernel knows nothing of the file's times.
        must(setxattr(names[at], "user.round", &round, sizeof round, 0), "setxattr");
        atomic_store(&asked, round);
        for (volatile int spun = 0; spun < round * 7919 % 20000; spun++) {}
        change(argv[3], round, at);
        at = strcmp(argv[3], "rename") ? at : !at;
        while (atomic_load(&looked) != round) sched_yield();
        struct statx known, there;
        must(statx(AT_FDCWD, names[at], AT_STATX_SYNC_AS_STAT, STATX_BASIC_STATS, &known), "statx");
        must(statx(AT_FDCWD, names[at], AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &there), "statx");
        stale += memcmp(&known.stx_ctime, &there.stx_ctime, sizeof known.stx_ctime) || known.stx_blocks != there.stx_blocks;
    }
    atomic_store(&asked, -1);
    pthread_join(looking, NULL);
    if (stale) printf("%s: %d of %d looks were old\n", argv[3], stale, rounds);
    return stale != 0;
}
C
cc -O2 -pthread -o "$SCRATCH/beside" "$SCRATCH/beside.c"
rounds=500
[[ $FULL == 0 ]] || rounds=20000
beside() {
    local change
    mkdir "$MNT/dir"
    for change in rename exchange chmod setxattr removexattr fallocate; do
        "$SCRATCH/beside" "$MNT/dir" "$rounds" "$change" || fail "$change, $1"
    done
}

mount_pair
beside "a pair"
unmount_pair
rm -r "$SSD/dir"
mount_pair --uring=off
beside "a pair by the device"
unmount_pair
"$HOTSHELF" fs mkfs "$SCRATCH/image" --size 256MiB >/dev/null
"$HOTSHELF" fs mount "$SCRATCH/image" "$MNT"
beside "an image"
"$HOTSHELF" unmount "$MNT"
