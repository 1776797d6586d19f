/* The largest file is evicted first: frees the most space with the fewest moves.
 * Build:  cc -shared -fPIC -O2 -I../include -o largest_first.so largest_first.c
 */
#include <stdlib.h>
#include "hotshelf_policy.h"

struct entry { uint64_t file, size; };
struct state { struct entry *entries; size_t len, room; int sorted; };

static void *create(void) { return calloc(1, sizeof(struct state)); }

static void destroy(void *policy) {
    struct state *state = policy;
    free(state->entries);
    free(state);
}

static struct entry *find(struct state *state, uint64_t file) {
    for (size_t i = 0; i < state->len; i++)
        if (state->entries[i].file == file)
            return &state->entries[i];
    return NULL;
}

static void insert(void *policy, uint64_t file, uint64_t size, uint32_t last_open_s, uint16_t opens) {
    struct state *state = policy;
    (void)last_open_s;
    (void)opens;
    if (state->len == state->room) {
        size_t room = state->room ? state->room * 2 : 64;
        struct entry *grown = realloc(state->entries, room * sizeof *grown);
        if (!grown)
            return;
        state->entries = grown;
        state->room = room;
    }
    state->entries[state->len++] = (struct entry){file, size};
    state->sorted = 0;
}

static void touch(void *policy, uint64_t file, uint32_t now_s) { (void)policy; (void)file; (void)now_s; }

static void resize(void *policy, uint64_t file, uint64_t size) {
    struct entry *entry = find(policy, file);
    if (entry)
        entry->size = size;
    ((struct state *)policy)->sorted = 0;
}

static void forget(void *policy, uint64_t file) {
    struct state *state = policy;
    struct entry *entry = find(state, file);
    if (entry) {
        *entry = state->entries[--state->len];
        state->sorted = 0;
    }
}

static int larger(const void *a, const void *b) {
    uint64_t x = ((const struct entry *)a)->size, y = ((const struct entry *)b)->size;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int victim(void *policy, uint64_t nth, uint64_t *file) {
    struct state *state = policy;
    if (!state->sorted) {
        qsort(state->entries, state->len, sizeof *state->entries, larger);
        state->sorted = 1;
    }
    if (nth >= state->len)
        return 0;
    *file = state->entries[nth].file;
    return 1;
}

static const struct hotshelf_policy_v1_table table = {
    HOTSHELF_POLICY_ABI, sizeof table, "largest-first",
    create, destroy, insert, touch, resize, forget, victim,
};

const struct hotshelf_policy_v1_table *hotshelf_policy_v1(void) { return &table; }
