/* mobile WORKLOAD OPERATIONS SEED JOURNAL DATABASE [EXTENSION]: what an application of a phone does to its database, as in the
 * experiment of paper 001 (section IV.D), whose traces are not public. One connection, prepared statements, synchronous=FULL.
 * Prints: seconds, transactions, a checksum over everything read and the final contents (the same on every file system).
 *
 * messenger  many chats, short texts, a transaction for each thing that happens:
 *            45 % a message arrives (insert; the chat's last message and unread count), 20 % one is sent (insert and update; then its
 *            state when the server has it), 20 % a chat is opened (its last 30 messages are read; marked as read), 15 % the list of
 *            chats is looked at.
 * sns        a news feed: 25 % a refresh brings 5 to 15 posts of 200 to 1000 bytes in one transaction, and drops the oldest beyond
 *            1500; 45 % a page of 20 posts is read with its authors and comments; 15 % a comment is written (insert; the post's
 *            count); 15 % a post is liked (update).
 * mail       30 % a mail arrives (header, body of 1 to 16 KiB, 8 words for the search), 10 % one is written (draft, changed once,
 *            sent), 20 % one is read (body; flagged as seen), 25 % a folder is listed, 10 % a word is searched, 5 % the trash is
 *            emptied, with bodies and words, and the 10 oldest mails are moved there.
 */
#include <sqlite3.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static sqlite3 *db;
static uint64_t state, sum;
static long transactions;

static void check(int code, const char *what) {
    if (code != SQLITE_OK && code != SQLITE_ROW && code != SQLITE_DONE) {
        fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(db));
        exit(1);
    }
}

/* xorshift64*, so that a seed means the same everywhere. */
static uint64_t chance(uint64_t below) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (state * 2685821657736338717ULL >> 11) % below;
}

/* A random number below `below`; small ones come much more often than large ones. */
static long often(long below) {
    long a = chance(below), b = chance(below), c = chance(below);
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

static const char *text(int bytes) {
    static char buffer[1 << 16];
    for (int i = 0; i < bytes; i++)
        buffer[i] = "etaoinshrdlu cmfwypv bgkjqxz 0123456789."[chance(40)];
    buffer[bytes] = 0;
    return buffer;
}

static void add(const void *bytes, int len) {
    for (int i = 0; i < len; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * 1099511628211ULL;
}

/* A statement is prepared once; `types` of its values: i (long), t (text). Rows go into the checksum. */
static void run(const char *sql, const char *types, ...) {
    static struct { const char *sql; sqlite3_stmt *statement; } known[64];
    int n = 0;
    while (known[n].sql && known[n].sql != sql)
        n++;
    if (!known[n].sql) {
        check(sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &known[n].statement, NULL), sql);
        known[n].sql = sql;
    }
    sqlite3_stmt *statement = known[n].statement;
    va_list values;
    va_start(values, types);
    for (int i = 0; types[i]; i++) {
        if (types[i] == 'i')
            check(sqlite3_bind_int64(statement, i + 1, va_arg(values, long)), sql);
        else
            check(sqlite3_bind_text(statement, i + 1, va_arg(values, const char *), -1, SQLITE_TRANSIENT), sql);
    }
    va_end(values);
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(statement); i++) {
            const void *value = sqlite3_column_blob(statement, i);
            add(value, sqlite3_column_bytes(statement, i));
        }
    }
    check(code, sql);
    sqlite3_reset(statement);
}

static void begin(void) { run("begin immediate", ""); }
static void commit(void) { run("commit", ""), transactions++; }

static void schema(const char *sql) { check(sqlite3_exec(db, sql, NULL, NULL, NULL), sql); }

/* ---- messenger */

enum { CHATS = 60 };
static long messages;

static void message(long chat, long state_) {
    begin();
    messages++;
    run("insert into messages(id, chat, sender, body, at, state) values(?, ?, ?, ?, ?, ?)", "iiitii", messages, chat, (long)chance(200),
        text(20 + chance(180)), 1700000000L + messages * 7, state_);
    run("update chats set last = ?, unread = unread + ? where id = ?", "iii", messages, state_ ? 0L : 1L, chat);
    commit();
}

static void messenger(int op) {
    long chat = 1 + often(CHATS);
    if (op < 45) {
        message(chat, 0);
    } else if (op < 65) {
        message(chat, 1);
        begin();
        run("update messages set state = 2 where id = ?", "i", messages);
        commit();
    } else if (op < 85) {
        run("select id, sender, body, at, state from messages where chat = ? order by id desc limit 30", "i", chat);
        begin();
        run("update messages set state = 3 where id in (select id from messages where chat = ? and state = 0 order by id desc limit 30)",
            "i", chat);
        run("update chats set unread = 0 where id = ?", "i", chat);
        commit();
    } else {
        run("select c.id, c.unread, m.body from chats c left join messages m on m.id = c.last order by c.last desc limit 20", "");
    }
}

static void messenger_begin(void) {
    schema("create table messages(id integer primary key, chat integer, sender integer, body text, at integer, state integer);"
           "create index of_chat on messages(chat, id);"
           "create table chats(id integer primary key, name text, last integer, unread integer)");
    begin();
    for (long chat = 1; chat <= CHATS; chat++)
        run("insert into chats values(?, ?, 0, 0)", "it", chat, text(12));
    commit();
}

/* ---- sns */

static long posts, comments;

static void sns(int op) {
    if (op < 25) {
        begin();
        for (int n = 5 + chance(11); n > 0; n--) {
            posts++;
            run("insert into posts values(?, ?, ?, ?, 0, 0)", "iiti", posts, 1 + often(300), text(200 + chance(800)), 1700000000L + posts);
        }
        run("delete from comments where post <= ?", "i", posts - 1500);
        run("delete from posts where id <= ?", "i", posts - 1500);
        commit();
    } else if (op < 70) {
        long from = posts - often(200);
        run("select p.id, a.name, p.body, p.likes, p.comments from posts p join authors a on a.id = p.author where p.id <= ?"
            " order by p.id desc limit 20", "i", from);
        run("select body from comments where post between ? and ? order by id limit 30", "ii", from - 20, from);
    } else if (op < 85) {
        long post = posts - often(100);
        comments++;
        begin();
        run("insert into comments values(?, ?, ?, ?)", "iiit", comments, post, 1 + often(300), text(20 + chance(200)));
        run("update posts set comments = comments + 1 where id = ?", "i", post);
        commit();
    } else {
        begin();
        run("update posts set likes = likes + 1 where id = ?", "i", posts - often(100));
        commit();
    }
}

static void sns_begin(void) {
    schema("create table posts(id integer primary key, author integer, body text, at integer, likes integer, comments integer);"
           "create index by_author on posts(author, at);"
           "create table comments(id integer primary key, post integer, author integer, body text);"
           "create index of_post on comments(post, id);"
           "create table authors(id integer primary key, name text, picture text)");
    begin();
    for (long author = 1; author <= 300; author++)
        run("insert into authors values(?, ?, ?)", "itt", author, text(14), text(40));
    commit();
    for (int n = 0; n < 20; n++)
        sns(0);
}

/* ---- mail */

static long mails, oldest = 1;

static void mail_header(long folder) {
    mails++;
    run("insert into mails(id, folder, sender, subject, at, flags, bytes) values(?, ?, ?, ?, ?, 0, 0)", "iiiti", mails, folder,
        1 + often(500), text(20 + chance(60)), 1700000000L + mails * 60);
}

static void mail_body(long id, int bytes) {
    run("insert or replace into bodies(id, body) values(?, ?)", "it", id, text(bytes));
    run("update mails set bytes = ? where id = ?", "ii", (long)bytes, id);
}

static void mail(int op) {
    if (op < 30) {
        begin();
        mail_header(1);
        mail_body(mails, 1024 + often(15 * 1024));
        for (int n = 0; n < 8; n++)
            run("insert into words(word, mail) values(?, ?)", "ii", often(2000), mails);
        commit();
    } else if (op < 40) {
        begin();
        mail_header(2);
        mail_body(mails, 100 + chance(1000));
        commit();
        begin();
        mail_body(mails, 200 + chance(3000));
        commit();
        begin();
        run("update mails set folder = 3 where id = ?", "i", mails);
        commit();
    } else if (op < 60) {
        long id = mails - often(100);
        run("select subject, sender, at from mails where id = ?", "i", id);
        run("select body from bodies where id = ?", "i", id);
        begin();
        run("update mails set flags = flags | 1 where id = ?", "i", id);
        commit();
    } else if (op < 85) {
        run("select id, sender, subject, at, flags from mails where folder = ? order by at desc limit 25", "i", 1 + often(4));
    } else if (op < 95) {
        run("select m.id, m.subject from words w join mails m on m.id = w.mail where w.word = ? order by m.at desc limit 20", "i",
            often(2000));
    } else {
        long to = oldest + 10 < mails ? oldest + 10 : mails;
        begin();
        run("delete from bodies where id in (select id from mails where folder = 4)", "");
        run("delete from words where mail in (select id from mails where folder = 4)", "");
        run("delete from mails where folder = 4", "");
        run("update mails set folder = 4 where id between ? and ?", "ii", oldest, to);
        oldest = to + 1;
        commit();
    }
}

static void mail_begin(void) {
    schema("create table mails(id integer primary key, folder integer, sender integer, subject text, at integer, flags integer,"
           "  bytes integer);"
           "create index of_folder on mails(folder, at);"
           "create table bodies(id integer primary key, body text);"
           "create table words(word integer, mail integer);"
           "create index by_word on words(word, mail); create index of_mail on words(mail)");
    for (int n = 0; n < 30; n++)
        mail(0);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*begin)(void), (*step)(int); } workloads[] = {
        {"messenger", messenger_begin, messenger}, {"sns", sns_begin, sns}, {"mail", mail_begin, mail}};
    if (argc < 6)
        return 2;
    unsigned which = 0;
    while (which < 3 && strcmp(workloads[which].name, argv[1]))
        which++;
    if (which == 3)
        return 2;
    state = strtoull(argv[3], NULL, 10) * 2 + 88172645463325252ULL;
    if (argc > 6) {
        char *why = NULL;
        check(sqlite3_open(":memory:", &db), "memory");
        sqlite3_enable_load_extension(db, 1);
        if (sqlite3_load_extension(db, argv[6], NULL, &why) != SQLITE_OK) {
            fprintf(stderr, "%s: %s\n", argv[6], why);
            return 1;
        }
        sqlite3_close(db);
    }
    double start = now();
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
    check(sqlite3_open_v2(argv[5], &db, flags, NULL), argv[5]);
    char pragma[100];
    snprintf(pragma, sizeof pragma, "pragma journal_mode = %s; pragma synchronous = full", argv[4]);
    schema(pragma);
    workloads[which].begin();
    for (long n = atol(argv[2]); n > 0; n--)
        workloads[which].step(chance(100));
    double seconds = now() - start;
    run("pragma integrity_check", "");
    run("select count(*), total(rootpage) from sqlite_schema", "");
    sqlite3_stmt *statement = NULL;
    while ((statement = sqlite3_next_stmt(db, statement)))
        sqlite3_reset(statement);
    start = now();
    while ((statement = sqlite3_next_stmt(db, NULL)))
        sqlite3_finalize(statement);
    check(sqlite3_close(db), "close");
    printf("%.4f %ld %016llx\n", seconds + now() - start, transactions, (unsigned long long)sum);
    return 0;
}
