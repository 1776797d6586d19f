/* A policy of your own for `hotshelf mount --policy ./mine.so` (version 1 of the interface).
 *
 * A policy decides the order in which files are evicted from the SSD. It keeps metadata only: hotshelf reports what happens to files,
 * requests the next victim from it, and moves the file.
 *
 * BUILD   cc -shared -fPIC -O2 -Wall -I DIRECTORY_OF_THIS_HEADER -o mine.so mine.c
 *         The example: examples/largest_first.c. Every function must be found when the object is loaded: name the
 *         libraries you use (-lm).
 *
 * INSTALL Give a path with a slash in it or one that ends in `.so`. The object must be a regular file. It and every
 *         directory above it must belong to you (the user hotshelf runs as) or root, and nobody but the owner may
 *         be able to write there (chmod go-w; a sticky directory such as /tmp is fine). It runs with hotshelf's
 *         rights and in its memory: a crash of it ends the mount. Changes take effect at the next mount.
 *
 * UNITS   A file is a number of 64 bits. It stays the same when the file is renamed or moved, and across mounts;
 *         after `remove` the same number may come back, as a new file or the old one. Sizes are bytes. Times are
 *         seconds since 1970 by the wall clock, which may go back. `opens` counts opens, at least 1 as a rule, and
 *         stops at 65535.
 *
 * THREADS Calls for one policy come one at a time, but from any thread: no locks are needed, nothing may depend on
 *         the thread. Two policies made by `create` may be called at the same time: keep what belongs to one in what
 *         `create` gave, not in globals. Opening files waits while a call runs: answer in microseconds, do no I/O,
 *         do not block, and never touch the mount. Leave no thread running after `destroy`.
 *
 * ERRORS  Only `create` can fail. The others have to manage: a policy that has no memory for a file may forget it,
 *         and that file is then never its victim. Do not throw, longjmp or exit through a call.
 *
 * OWNERS  The table and the name are yours, constant, and valid as long as the object is loaded. The policy is yours,
 *         from `create` to `destroy`; hotshelf only hands the pointer back. `*file` in `victim` is hotshelf's, and
 *         valid during the call. hotshelf keeps separate records of every file (size, last open, opens), saves
 *         them, and gives them back by `insert` at the next mount, the longest not opened first: a policy has nothing
 *         to save.
 */
#ifndef HOTSHELF_POLICY_H
#define HOTSHELF_POLICY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; goes into `abi`. A table with another value is refused. */
#define HOTSHELF_POLICY_ABI 1u

/* All places must be filled but `name`: a table with a null function is refused. `policy` is never null. */
struct hotshelf_policy_v1_table {
    uint32_t abi;                 /* HOTSHELF_POLICY_ABI */
    uint32_t table_bytes;         /* sizeof(struct hotshelf_policy_v1_table); a smaller table is refused */
    const char *name;             /* shown by `hotshelf status`: UTF-8, ends with a zero byte, the first 64
                                   * characters without control characters; NULL: the path is shown */

    /* A new, empty policy. NULL: it failed, and the mount is refused. */
    void *(*create)(void);
    /* Frees the policy, whatever it still holds. Called once; the object is unloaded after it. */
    void (*destroy)(void *policy);

    /* `file` is on the SSD: made, moved there, or found at mount. Not called again for this file before `remove`. */
    void (*insert)(void *policy, uint64_t file, uint64_t size, uint32_t last_open_s, uint16_t opens);
    /* `file` was opened. Only for files that were inserted, as the two below. */
    void (*touch)(void *policy, uint64_t file, uint32_t now_s);
    /* `file` has another size; it may be the same one. */
    void (*resize)(void *policy, uint64_t file, uint64_t size);
    /* `file` left the SSD or is gone. A victim comes here when it has moved, not when it was named. */
    void (*remove)(void *policy, uint64_t file);

    /* Stores the file to evict as number `nth`, from 0, in `*file`. Returns 1, or 0 when there are not so many;
     * anything else counts as 0.
     *
     * hotshelf requests 0, 1, 2, ... until it gets a file that can be moved now (not in use, not pinned, not moving
     * already), and begins at 0 again at the next search, also to answer `hotshelf why`. It requests no more than there
     * are files, and 4096 at most. So name each file once, keep the order the same while nothing else was called, and
     * make `nth` cheap: sort once, not at each question. A file that is not inserted ends the search as 0 does. */
    int (*victim)(void *policy, uint64_t nth, uint64_t *file);
};

/* The one function to export. Called once for a mount; NULL is refused. */
const struct hotshelf_policy_v1_table *hotshelf_policy_v1(void);

#ifdef __cplusplus
}
#endif

#endif
