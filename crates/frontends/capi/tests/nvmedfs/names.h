/* Names, attributes, directories, locks. */
#pragma once

#include "begin.h"

static int entries(NVMEDFS *fs, const char *path)
{
    NVMEDFS_DIR *dir = nvmedfs_opendir(fs, path);
    int count = 0;
    SURE(dir != NULL);
    errno = 0;
    while (nvmedfs_readdir(dir) != NULL)
        count++;
    SURE(errno == 0 && nvmedfs_closedir(dir) == 0);
    return count;
}

static void names(NVMEDFS *fs)
{
    char buf[PATH_MAX];
    struct stat st, st2;
    int dir, fd, n;
    SURE(nvmedfs_umask(fs, 022) != (mode_t)-1 && nvmedfs_umask(fs, 022) == 022);
    SURE(nvmedfs_mkdir(fs, "/d", 0777) == 0 && nvmedfs_stat(fs, "d", &st) == 0 &&
         st.st_mode == (S_IFDIR | 0755) && st.st_nlink == 2);
    dir = nvmedfs_open(fs, "/d", O_RDONLY | O_DIRECTORY);
    SURE(dir >= 0 && nvmedfs_mkdirat(dir, "sub", 0700) == 0);
    fd = nvmedfs_openat(dir, "f", O_CREAT | O_RDWR, 0666);
    SURE(fd >= 0 && nvmedfs_write(fd, "text", 4) == 4 && nvmedfs_fstatat(dir, "f", &st, 0) == 0 &&
         st.st_size == 4 && st.st_mode == (S_IFREG | 0644));
    SURE(nvmedfs_fstatat(fd, "", &st2, AT_EMPTY_PATH) == 0 && st2.st_ino == st.st_ino && st2.st_dev == st.st_dev);
    SURE(nvmedfs_link(fs, "/d/f", "/d/g") == 0 && nvmedfs_fstat(fd, &st) == 0 && st.st_nlink == 2);
    SURE(nvmedfs_linkat(dir, "f", dir, "h", 0) == 0 && nvmedfs_unlinkat(dir, "h", 0) == 0);
    SURE(nvmedfs_symlink(fs, "d/f", "/l") == 0 && nvmedfs_symlinkat("../l", dir, "ll") == 0 && has(fs, "/d/ll", "text"));
    SURE(nvmedfs_readlink(fs, "/l", buf, sizeof buf) == 3 && memcmp(buf, "d/f", 3) == 0 &&
         nvmedfs_readlinkat(dir, "ll", buf, 2) == 2);
    SURE(nvmedfs_lstat(fs, "/l", &st) == 0 && S_ISLNK(st.st_mode) && nvmedfs_stat(fs, "/l", &st) == 0 && S_ISREG(st.st_mode));
    SURE(nvmedfs_realpath(fs, "/d/../d/ll", buf) == buf && strcmp(buf, "/d/f") == 0 &&
         nvmedfs_realpath(fs, "..", buf) && strcmp(buf, "/") == 0);
    NONE(ENOENT, nvmedfs_realpath(fs, "/nowhere", buf));
    FAILS(ELOOP, nvmedfs_open(fs, "/l", O_RDONLY | O_NOFOLLOW));
    FAILS(EISDIR, nvmedfs_open(fs, "/d", O_RDWR));
    FAILS(ENOTDIR, nvmedfs_open(fs, "/d/f", O_RDONLY | O_DIRECTORY));
    FAILS(ENOTDIR, nvmedfs_openat(fd, "x", O_RDONLY));
    SURE(nvmedfs_rename(fs, "/d/g", "/d/sub/g") == 0 && nvmedfs_renameat2(dir, "sub/g", dir, "g", RENAME_NOREPLACE) == 0);
    FAILS(EEXIST, nvmedfs_renameat2(dir, "f", dir, "g", RENAME_NOREPLACE));
    SURE(nvmedfs_renameat2(dir, "f", dir, "sub", RENAME_EXCHANGE) == 0 && has(fs, "/d/sub", "text"));
    SURE(nvmedfs_renameat2(dir, "f", dir, "sub", RENAME_EXCHANGE) == 0);
    SURE(nvmedfs_mkfifo(fs, "/d/fifo", 0600) == 0 && nvmedfs_mknodat(dir, "dev", S_IFCHR | 0600, 259) == 0);
    SURE(nvmedfs_fstatat(dir, "dev", &st, 0) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == 259);
    FAILS(ENXIO, nvmedfs_open(fs, "/d/fifo", O_RDWR));
    FAILS(ENOTEMPTY, nvmedfs_rmdir(fs, "/d"));
    SURE(nvmedfs_access(fs, "/d/f", R_OK | W_OK) == 0 && nvmedfs_faccessat(dir, "f", F_OK, 0) == 0);
    FAILS(ENOENT, nvmedfs_access(fs, "/d/none", F_OK));
    SURE(strstr(hs_error(), "/d/none") != NULL);

    /* A file without a name gets one. */
    n = nvmedfs_open(fs, "/d", O_TMPFILE | O_RDWR, 0600);
    SURE(n >= 0 && nvmedfs_write(n, "late", 4) == 4 &&
         nvmedfs_linkat(n, "", dir, "late", AT_EMPTY_PATH) == 0 && has(fs, "d/late", "late"));
    SURE(nvmedfs_close(n) == 0 && nvmedfs_close(fd) == 0);

    /* What is removed while it is open stays until then. */
    fd = nvmedfs_open(fs, "/d/late", O_RDONLY);
    SURE(nvmedfs_unlink(fs, "/d/late") == 0 && nvmedfs_read(fd, buf, 10) == 4 && nvmedfs_fstat(fd, &st) == 0 && st.st_nlink == 0);
    SURE(nvmedfs_close(fd) == 0 && entries(fs, "/d") == 2 + 6);
    SURE(nvmedfs_unlink(fs, "/d/dev") == 0 && nvmedfs_unlink(fs, "/d/fifo") == 0 && nvmedfs_unlink(fs, "/d/ll") == 0);
    SURE(nvmedfs_unlink(fs, "/d/g") == 0 && nvmedfs_unlink(fs, "/d/f") == 0 && nvmedfs_unlinkat(dir, "sub", AT_REMOVEDIR) == 0);
    SURE(nvmedfs_close(dir) == 0 && nvmedfs_rmdir(fs, "/d") == 0 && nvmedfs_unlink(fs, "/l") == 0);
}

static void attributes(NVMEDFS *fs)
{
    struct timespec times[2] = { { 1000, 5 }, { 0, UTIME_OMIT } };
    struct statvfs space;
    struct stat st;
    char buf[64];
    int fd = nvmedfs_open(fs, "/a", O_CREAT | O_RDWR, 0644);
    SURE(fd >= 0 && nvmedfs_symlink(fs, "a", "/la") == 0);
    SURE(nvmedfs_chmod(fs, "/a", 0600) == 0 && nvmedfs_fchmod(fd, 04711) == 0 &&
         nvmedfs_stat(fs, "/la", &st) == 0 && st.st_mode == (S_IFREG | 04711));
    SURE(nvmedfs_chown(fs, "/a", 11, 12) == 0 && nvmedfs_fchown(fd, (uid_t)-1, 13) == 0 && nvmedfs_lchown(fs, "/la", 21, 22) == 0);
    SURE(nvmedfs_fstat(fd, &st) == 0 && st.st_uid == 11 && st.st_gid == 13 &&
         nvmedfs_lstat(fs, "/la", &st) == 0 && st.st_uid == 21);
    SURE(nvmedfs_utimens(fs, "/a", times, 0) == 0 && nvmedfs_stat(fs, "/a", &st) == 0 &&
         st.st_atim.tv_sec == 1000 && st.st_atim.tv_nsec == 5);
    SURE(st.st_mtim.tv_sec > 1000 && nvmedfs_futimens(fd, NULL) == 0 && nvmedfs_fstat(fd, &st) == 0 && st.st_atim.tv_sec > 1000);
    times[0].tv_nsec = 1000000000;
    FAILS(EINVAL, nvmedfs_futimens(fd, times));

    SURE(nvmedfs_setxattr(fs, "/la", "user.one", "value", 5, 0) == 0 && nvmedfs_fgetxattr(fd, "user.one", buf, sizeof buf) == 5);
    SURE(memcmp(buf, "value", 5) == 0 && nvmedfs_getxattr(fs, "/a", "user.one", NULL, 0) == 5);
    FAILS(ERANGE, nvmedfs_getxattr(fs, "/a", "user.one", buf, 4));
    FAILS(EEXIST, nvmedfs_fsetxattr(fd, "user.one", "v", 1, XATTR_CREATE));
    FAILS(ENODATA, nvmedfs_fsetxattr(fd, "user.two", "v", 1, XATTR_REPLACE));
    FAILS(EPERM, nvmedfs_lsetxattr(fs, "/la", "user.one", "v", 1, 0));
    SURE(nvmedfs_flistxattr(fd, buf, sizeof buf) == 9 && strcmp(buf, "user.one") == 0 && nvmedfs_listxattr(fs, "/a", NULL, 0) == 9);
    SURE(nvmedfs_llistxattr(fs, "/la", buf, sizeof buf) == 0 && nvmedfs_removexattr(fs, "/a", "user.one") == 0);
    FAILS(ENODATA, nvmedfs_fremovexattr(fd, "user.one"));

    SURE(nvmedfs_statvfs(fs, &space) == 0 && space.f_bsize == 4096 && space.f_bfree <= space.f_blocks && space.f_namemax == 255);
    SURE(nvmedfs_fstatvfs(fd, &space) == 0 && nvmedfs_close(fd) == 0 && nvmedfs_unlink(fs, "/a") == 0 &&
         nvmedfs_unlink(fs, "/la") == 0);
}

static void directories(NVMEDFS *fs)
{
    char name[300];
    struct dirent *entry;
    NVMEDFS_DIR *dir, *second;
    long middle = -1;
    int n, seen = 0, again = 0, fd;
    SURE(nvmedfs_mkdir(fs, "/many", 0755) == 0);
    for (n = 0; n < 300; n++) {
        snprintf(name, sizeof name, "/many/%0200d", n);
        put(fs, name, "");
    }
    dir = nvmedfs_opendir(fs, "/many");
    while ((entry = nvmedfs_readdir(dir)) != NULL) {
        SURE(entry->d_type == (seen < 2 ? DT_DIR : DT_REG) && strlen(entry->d_name) == (seen == 0 ? 1u : seen == 1 ? 2u : 200u));
        if (++seen == 150)
            middle = nvmedfs_telldir(dir);
        if (seen == 151)
            strcpy(name, entry->d_name);
    }
    SURE(seen == 302 && middle > 0 && nvmedfs_seekdir(dir, middle) == 0);
    entry = nvmedfs_readdir(dir);
    SURE(entry != NULL && strcmp(entry->d_name, name) == 0);
    SURE(nvmedfs_rewinddir(dir) == 0 && (entry = nvmedfs_readdir(dir)) != NULL && strcmp(entry->d_name, ".") == 0);
    fd = nvmedfs_open(fs, "/many", O_RDONLY | O_DIRECTORY);
    second = nvmedfs_fdopendir(fd);
    while (nvmedfs_readdir(second) != NULL)
        again++;
    SURE(again == 302 && nvmedfs_closedir(second) == 0 && nvmedfs_close(fd) == 0 && nvmedfs_closedir(dir) == 0);
    for (n = 0; n < 300; n++) {
        snprintf(name, sizeof name, "/many/%0200d", n);
        SURE(nvmedfs_unlink(fs, name) == 0);
    }
    SURE(entries(fs, "/many") == 2 && nvmedfs_rmdir(fs, "/many") == 0);
}

static void locks(NVMEDFS *fs)
{
    struct flock lock;
    int a = nvmedfs_open(fs, "/lock", O_CREAT | O_RDWR, 0600), b = nvmedfs_open(fs, "/lock", O_RDWR), c = nvmedfs_dup(a);
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    SURE(nvmedfs_flock(a, LOCK_EX) == 0 && nvmedfs_flock(c, LOCK_EX | LOCK_NB) == 0);
    FAILS(EWOULDBLOCK, nvmedfs_flock(b, LOCK_SH | LOCK_NB));
    SURE(nvmedfs_flock(a, LOCK_SH) == 0 && nvmedfs_flock(b, LOCK_SH | LOCK_NB) == 0);
    FAILS(EWOULDBLOCK, nvmedfs_flock(b, LOCK_EX | LOCK_NB));
    SURE(nvmedfs_close(a) == 0 && nvmedfs_close(c) == 0 && nvmedfs_flock(b, LOCK_EX | LOCK_NB) == 0);
    FAILS(EINVAL, nvmedfs_flock(b, 77));
    SURE(nvmedfs_fcntl(b, F_SETLK, &lock) == 0 && nvmedfs_fcntl(b, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    SURE(nvmedfs_close(b) == 0 && nvmedfs_unlink(fs, "/lock") == 0);
}
