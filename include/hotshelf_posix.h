/* Lets a program's own open, read, write and so on go through the cache, with no change but this:
 *
 *     cc -include hotshelf_posix.h program.c $(pkg-config --cflags --libs hotshelf)
 *
 * The calls keep their names and types; they are bound to the u calls of hotshelf.h when the program is linked (so structs, fields
 * and variables of such names are left alone, and pointers to the functions work). It has to come before every other include, for
 * GCC and Clang on Linux. What is compiled with it and what is not have different numbers for open files: numbers 0, 1 and 2 are the
 * same in both, others must not be mixed. Names whose calls do not look at a file's bytes (access, chmod, readlink) stay the kernel's.
 *
 * Not covered: stdio (fopen, fdopen), poll and select, isatty, ioctl, posix_fadvise, sendfile and the like on hotshelf's numbers:
 * use ufileno().
 * After fork() the child cannot use what its parent opened (EPERM). */
#ifndef HOTSHELF_POSIX_H
#define HOTSHELF_POSIX_H

/* Both bind the same names to other functions; 64-bit systems need neither. */
#undef _FILE_OFFSET_BITS
#undef _FORTIFY_SOURCE
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <hotshelf.h>

#if !defined __linux__ || !defined __GNUC__
#error "hotshelf_posix.h needs Linux, and GCC or Clang"
#endif

#define HOTSHELF_AS_(name, symbol) extern __typeof__(name) name __asm__(#symbol)

#ifdef __cplusplus
extern "C" {
#endif

HOTSHELF_AS_(close, uclose);
HOTSHELF_AS_(creat, ucreat);
HOTSHELF_AS_(dup, udup);
HOTSHELF_AS_(dup2, udup2);
HOTSHELF_AS_(fallocate, ufallocate);
HOTSHELF_AS_(fchmod, ufchmod);
HOTSHELF_AS_(fchown, ufchown);
HOTSHELF_AS_(fcntl, ufcntl);
HOTSHELF_AS_(fdatasync, ufdatasync);
HOTSHELF_AS_(flock, uflock);
HOTSHELF_AS_(fstat, ufstat);
HOTSHELF_AS_(fstatat, ufstatat);
HOTSHELF_AS_(fsync, ufsync);
HOTSHELF_AS_(ftruncate, uftruncate);
HOTSHELF_AS_(futimens, ufutimens);
HOTSHELF_AS_(lseek, ulseek);
HOTSHELF_AS_(lstat, ulstat);
HOTSHELF_AS_(mkdir, umkdir);
HOTSHELF_AS_(mmap, ummap);
HOTSHELF_AS_(open, uopen);
HOTSHELF_AS_(openat, uopenat);
HOTSHELF_AS_(pread, upread);
HOTSHELF_AS_(preadv, upreadv);
HOTSHELF_AS_(pwrite, upwrite);
HOTSHELF_AS_(pwritev, upwritev);
HOTSHELF_AS_(read, uread);
HOTSHELF_AS_(readv, ureadv);
HOTSHELF_AS_(rename, urename);
HOTSHELF_AS_(rmdir, urmdir);
HOTSHELF_AS_(stat, ustat);
HOTSHELF_AS_(truncate, utruncate);
HOTSHELF_AS_(unlink, uunlink);
HOTSHELF_AS_(unlinkat, uunlinkat);
HOTSHELF_AS_(write, uwrite);
HOTSHELF_AS_(writev, uwritev);

#ifdef __cplusplus
}
#endif

/* The large-file names are the same calls. */
#define creat64 creat
#define fallocate64 fallocate
#define fstat64 fstat
#define fstatat64 fstatat
#define ftruncate64 ftruncate
#define lseek64 lseek
#define lstat64 lstat
#define mmap64 mmap
#define open64 open
#define openat64 openat
#define pread64 pread
#define preadv64 preadv
#define pwrite64 pwrite
#define pwritev64 pwritev
#define stat64 stat
#define truncate64 truncate

/* What C's library does through its own names. */
#define posix_fallocate hotshelf_posix_fallocate_
static inline int hotshelf_posix_fallocate_(int ufd, off_t off, off_t len)
{
    int before = errno, failed;
    errno = 0;
    failed = ufallocate(ufd, 0, off, len) == 0 ? 0 : errno;
    errno = before;
    return failed;
}

#endif
