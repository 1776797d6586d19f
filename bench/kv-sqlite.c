/* kv-sqlite DATABASE STAT KEYS SECONDS GETTERS PUTTERS CACHE_MIB JOURNAL SEED [EXTENSION]: the key-value workload of kv.sh with SQLite as
 * the store. One table of keys of 32 bytes and values of 512, filled first; then threads that get and threads that put, each with a
 * separate connection, keys by Zipf's law (theta 0.99); a put is a transaction, durable when it returns (synchronous=FULL).
 * Prints NAME=VALUE as `fs-bench kv` does; STAT is the device's file of counters.
 */
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* FINE: steps in which a power of two nanoseconds is counted. */
enum { KEY = 32, VALUE = 512, FILLED = 10000, LOOK_US = 50, LOOKS = 200000, FINE = 64, STEPS = 40 * FINE };
static const double THETA = 0.99;

static const char *database, *journal;
static long keys;
static int cache_kib;
static double *below; /* of each number: the share of draws that give it or a smaller one */
static atomic_int over;

struct worker {
    pthread_t thread;
    int puts;
    uint64_t state;
    uint64_t taken[STEPS]; /* how many took so long */
};

static void check(sqlite3 *db, int code, const char *what) {
    if (code != SQLITE_OK && code != SQLITE_ROW && code != SQLITE_DONE) {
        fprintf(stderr, "%s: %s\n", what, db ? sqlite3_errmsg(db) : sqlite3_errstr(code));
        exit(1);
    }
}

/* xorshift64*, so that a seed means the same everywhere. */
static uint64_t chance(uint64_t *state) {
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * 2685821657736338717ULL;
}

static uint64_t now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void zipf_begin(void) {
    double sum = 0;
    below = malloc((size_t)keys * sizeof *below);
    for (long n = 0; n < keys; n++)
        below[n] = sum += 1 / pow((double)(n + 1), THETA);
    for (long n = 0; n < keys; n++)
        below[n] /= sum;
}

static long zipf(uint64_t *state) {
    double at = (double)(chance(state) >> 11) / 9007199254740992.0;
    long low = 0, high = keys - 1;
    while (low < high) {
        long middle = (low + high) / 2;
        if (below[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Those that are often used do not lie side by side. */
static void key(long number, unsigned char *out) {
    uint64_t mixed = (uint64_t)number * 0x9e3779b97f4a7c15ULL;
    memset(out, 'k', KEY);
    for (int n = 0; n < 8; n++)
        out[n] = (unsigned char)(mixed >> (56 - 8 * n));
    memcpy(out + KEY - sizeof number, &number, sizeof number);
}

static void value(long number, uint64_t *state, unsigned char *out) {
    for (int n = 0; n < VALUE; n += 8) {
        uint64_t random = chance(state);
        memcpy(out + n, &random, 8);
    }
    memcpy(out, &number, sizeof number);
}

static void sql(sqlite3 *db, const char *text) { check(db, sqlite3_exec(db, text, NULL, NULL, NULL), text); }

/* Somebody else has the lock. SQLite's own way sleeps for up to 100 ms, which would be all that is measured. */
static int look_again(void *nothing, int times) {
    struct timespec pause = {.tv_nsec = LOOK_US * 1000L};
    (void)nothing;
    nanosleep(&pause, NULL);
    return times < LOOKS;
}

static sqlite3 *connection(void) {
    sqlite3 *db;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX;
    char pragma[160];
    check(NULL, sqlite3_open_v2(database, &db, flags, NULL), database);
    sqlite3_busy_handler(db, look_again, NULL);
    snprintf(pragma, sizeof pragma, "pragma journal_mode = %s; pragma synchronous = full; pragma cache_size = -%d", journal, cache_kib);
    sql(db, pragma);
    return db;
}

static sqlite3_stmt *prepared(sqlite3 *db, const char *text) {
    sqlite3_stmt *statement;
    check(db, sqlite3_prepare_v3(db, text, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL), text);
    return statement;
}

static void put(sqlite3 *db, sqlite3_stmt *statement, long number, uint64_t *state) {
    unsigned char k[KEY], v[VALUE];
    key(number, k), value(number, state, v);
    sqlite3_bind_blob(statement, 1, k, KEY, SQLITE_STATIC);
    sqlite3_bind_blob(statement, 2, v, VALUE, SQLITE_STATIC);
    check(db, sqlite3_step(statement), "put");
    sqlite3_reset(statement);
}

static void get(sqlite3 *db, sqlite3_stmt *statement, long number) {
    unsigned char k[KEY];
    key(number, k);
    sqlite3_bind_blob(statement, 1, k, KEY, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    check(db, code, "get");
    if (code != SQLITE_ROW || sqlite3_column_bytes(statement, 0) != VALUE
        || memcmp(sqlite3_column_blob(statement, 0), &number, sizeof number) != 0) {
        fprintf(stderr, "key %ld has a wrong value\n", number);
        exit(1);
    }
    sqlite3_reset(statement);
}

// A table with its rows' numbers: SQLite advises against WITHOUT ROWID for rows above a twentieth of a page, as these are
// (https://www.sqlite.org/withoutrowid.html, section 4), and a value that is there is put in its place.
static const char PUT[] = "insert into t(k, v) values(?, ?) on conflict(k) do update set v = excluded.v",
                  GET[] = "select v from t where k = ?";

static void fill(uint64_t state) {
    sqlite3 *db = connection();
    sql(db, "create table t(k blob primary key, v blob)");
    sqlite3_stmt *statement = prepared(db, PUT);
    for (long from = 0; from < keys; from += FILLED) {
        sql(db, "begin immediate");
        for (long number = from; number < keys && number < from + FILLED; number++)
            put(db, statement, number, &state);
        sql(db, "commit");
    }
    sqlite3_finalize(statement);
    check(db, sqlite3_close(db), "close");
}

/* Under FINE nanoseconds one step each, above that FINE to a power of two. */
static int step(uint64_t nanoseconds) {
    int power = 0;
    while (nanoseconds >> power >= 2 * FINE)
        power++;
    int at = nanoseconds < FINE ? (int)nanoseconds : power * FINE + (int)(nanoseconds >> power);
    return at < STEPS ? at : STEPS - 1;
}

static double of_step(int at) { return at < 2 * FINE ? at : (double)(FINE + at % FINE) * (double)(1ULL << (at / FINE - 1)); }

static void *work(void *given) {
    struct worker *worker = given;
    sqlite3 *db = connection();
    sqlite3_stmt *statement = prepared(db, worker->puts ? PUT : GET);
    while (!over) {
        long number = zipf(&worker->state);
        uint64_t begin = now(CLOCK_MONOTONIC);
        if (worker->puts)
            put(db, statement, number, &worker->state);
        else
            get(db, statement, number);
        worker->taken[step(now(CLOCK_MONOTONIC) - begin)]++;
    }
    sqlite3_finalize(statement);
    check(db, sqlite3_close(db), "close");
    return NULL;
}

static void say(const char *name, const struct worker *workers, int count, int puts, double seconds) {
    static const int percents[] = {90, 95, 99};
    uint64_t taken[STEPS] = {0}, all = 0;
    for (int n = 0; n < count; n++) {
        for (int at = 0; workers[n].puts == puts && at < STEPS; at++)
            taken[at] += workers[n].taken[at], all += workers[n].taken[at];
    }
    printf("%s_ops=%.0f\n", name, (double)all / seconds);
    for (int n = 0; n < 3; n++) {
        uint64_t passed = 0;
        int at = 0;
        while (at < STEPS - 1 && (passed += taken[at]) * 100 < all * (uint64_t)percents[n])
            at++;
        printf("%s_p%d_us=%.1f\n", name, percents[n], of_step(at) / 1e3);
    }
}

/* What the kernel has counted of the device: requests, sectors, flushes. */
static void counted(const char *stat, unsigned long *to) {
    unsigned long all[17] = {0};
    FILE *file = fopen(stat, "r");
    for (int n = 0; file && n < 17 && fscanf(file, "%lu", &all[n]) == 1; n++) {}
    if (file)
        fclose(file);
    to[0] = all[4], to[1] = all[6], to[2] = all[15];
}

static void extend(const char *extension) {
    sqlite3 *db;
    char *why = NULL;
    check(NULL, sqlite3_open(":memory:", &db), "memory");
    sqlite3_enable_load_extension(db, 1);
    if (sqlite3_load_extension(db, extension, NULL, &why) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", extension, why);
        exit(1);
    }
    sqlite3_close(db);
}

int main(int argc, char **argv) {
    if (argc < 10)
        return 2;
    database = argv[1], keys = atol(argv[3]), journal = argv[8];
    int seconds = atoi(argv[4]), getters = atoi(argv[5]), putters = atoi(argv[6]), count = getters + putters;
    uint64_t seed = strtoull(argv[9], NULL, 10) * 2 + 88172645463325252ULL;
    cache_kib = atoi(argv[7]) * 1024 / (count + 1); /* and one that keeps the database open, and what is in memory of it */
    if (argc > 10)
        extend(argv[10]);
    zipf_begin();
    sqlite3 *held = connection();
    fill(seed);
    struct worker *workers = calloc((size_t)count, sizeof *workers);
    unsigned long before[3];
    counted(argv[2], before);
    uint64_t cpu = now(CLOCK_PROCESS_CPUTIME_ID), begin = now(CLOCK_MONOTONIC);
    for (int n = 0; n < count; n++) {
        workers[n].puts = n >= getters;
        workers[n].state = seed * 31 + (uint64_t)n * 7919 + 1;
        pthread_create(&workers[n].thread, NULL, work, &workers[n]);
    }
    struct timespec length = {.tv_sec = seconds};
    nanosleep(&length, NULL);
    over = 1;
    for (int n = 0; n < count; n++)
        pthread_join(workers[n].thread, NULL);
    double passed = (double)(now(CLOCK_MONOTONIC) - begin) / 1e9;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    check(held, sqlite3_close(held), "close");
    say("get", workers, count, 0, passed);
    say("put", workers, count, 1, passed);
    printf("cpu_s=%.2f\nrequests0=%lu\nsectors0=%lu\nflushes0=%lu\n", (double)cpu / 1e9, before[0], before[1], before[2]);
    return 0;
}
