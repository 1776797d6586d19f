/* The largest file leaves first: frees the most space with the fewest moves.
 * Build:  cc -shared -fPIC -O2 -I../include -o largest_first.so largest_first.c
 */
#include <stdlib.h>
#include "hotshelf_policy.h"

struct entry { uint64_t file, size; };
struct books { struct entry *entries; size_t len, room; int sorted; };

static void *create(void) { return calloc(1, sizeof(struct books)); }

static void destroy(void *policy) {
    struct books *books = policy;
    free(books->entries);
    free(books);
}

static struct entry *find(struct books *books, uint64_t file) {
    for (size_t i = 0; i < books->len; i++)
        if (books->entries[i].file == file)
            return &books->entries[i];
    return NULL;
}

static void insert(void *policy, uint64_t file, uint64_t size, uint32_t last_open_s, uint16_t opens) {
    struct books *books = policy;
    (void)last_open_s;
    (void)opens;
    if (books->len == books->room) {
        size_t room = books->room ? books->room * 2 : 64;
        struct entry *grown = realloc(books->entries, room * sizeof *grown);
        if (!grown)
            return;
        books->entries = grown;
        books->room = room;
    }
    books->entries[books->len++] = (struct entry){file, size};
    books->sorted = 0;
}

static void touch(void *policy, uint64_t file, uint32_t now_s) { (void)policy; (void)file; (void)now_s; }

static void resize(void *policy, uint64_t file, uint64_t size) {
    struct entry *entry = find(policy, file);
    if (entry)
        entry->size = size;
    ((struct books *)policy)->sorted = 0;
}

static void forget(void *policy, uint64_t file) {
    struct books *books = policy;
    struct entry *entry = find(books, file);
    if (entry) {
        *entry = books->entries[--books->len];
        books->sorted = 0;
    }
}

static int larger(const void *a, const void *b) {
    uint64_t x = ((const struct entry *)a)->size, y = ((const struct entry *)b)->size;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int victim(void *policy, uint64_t nth, uint64_t *file) {
    struct books *books = policy;
    if (!books->sorted) {
        qsort(books->entries, books->len, sizeof *books->entries, larger);
        books->sorted = 1;
    }
    if (nth >= books->len)
        return 0;
    *file = books->entries[nth].file;
    return 1;
}

static const struct hotshelf_policy_v1_table table = {
    HOTSHELF_POLICY_ABI, sizeof table, "largest-first",
    create, destroy, insert, touch, resize, forget, victim,
};

const struct hotshelf_policy_v1_table *hotshelf_policy_v1(void) { return &table; }
