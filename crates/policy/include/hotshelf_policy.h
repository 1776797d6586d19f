/* A policy of your own for `hotshelf mount --policy FILE.so`.
 *
 * A policy decides which file leaves the SSD next. It keeps books only: hotshelf tells it what happens
 * and asks it for a victim; it must not do I/O on the mount or block. All calls for one policy come one at a
 * time, from any thread. Files are named by a number that does not change; sizes are bytes, times seconds since 1970.
 *
 * Export one function, `hotshelf_policy_v1`, that returns a table that stays valid for the life of the process.
 * Build with:  cc -shared -fPIC -O2 -o mine.so mine.c
 */
#ifndef HOTSHELF_POLICY_H
#define HOTSHELF_POLICY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; goes into `abi`. A table with another value is refused. */
#define HOTSHELF_POLICY_ABI 1u

struct hotshelf_policy_v1_table {
    uint32_t abi;                 /* HOTSHELF_POLICY_ABI */
    uint32_t table_bytes;         /* sizeof(struct hotshelf_policy_v1_table) */
    const char *name;             /* shown by `hotshelf status`; ASCII, ends with a zero byte */

    /* A new, empty policy; NULL when there is no memory. */
    void *(*create)(void);
    void (*destroy)(void *policy);

    /* `file` is on the SSD now. Called once for a file until `remove`. */
    void (*insert)(void *policy, uint64_t file, uint64_t size, uint32_t last_open_s, uint16_t opens);
    /* `file` was opened. */
    void (*touch)(void *policy, uint64_t file, uint32_t now_s);
    /* `file` has another size. */
    void (*resize)(void *policy, uint64_t file, uint64_t size);
    /* `file` left the SSD. */
    void (*remove)(void *policy, uint64_t file);

    /* The `nth` file (from 0) in the order in which files should leave, into `*file`. Returns 1, or 0 when there
     * are not so many. hotshelf asks for 0, 1, 2, ... until it finds one that can be moved now. A file that was
     * never inserted ends the search. */
    int (*victim)(void *policy, uint64_t nth, uint64_t *file);
};

/* The entry point. */
const struct hotshelf_policy_v1_table *hotshelf_policy_v1(void);

#ifdef __cplusplus
}
#endif

#endif
