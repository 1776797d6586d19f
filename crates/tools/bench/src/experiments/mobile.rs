//! Databases of mobile applications, as SQLite statements, on ext4 and on an image through the SQLite extension.
//!
//! The paper replayed traces of real phones, which are not public. These workloads do what such applications do (messenger, social news,
//! mail); both sides get the same statements, determined by the seed.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::result_table::{Metric, ResultTable, TIME};
use crate::experiment::Need;
use crate::experiment::{Context, Experiment};
use crate::lab::{Counters, Disk, Lab};
use crate::outcome::Outcome;
use crate::programs;

const NAME: &str = "mobile-sqlite";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "SQLite does what a messenger, a news feed and a mail reader do: its database on a rawfs image, and on ext4",
    source: "NVMeDFS, Fig. 9 and Table II",
    paper: "up to 20 % less time than on ext4; 24 %, 9 % and 21 % fewer write requests",
    peers: "ext4, made anew on the same device before each run",
    devices: "a loop device over a file in --dir, with direct I/O where its file system can",
    needs: &[Need::Root, Need::Loop, Need::Program("sqlite3", "sqlite3"), Need::Program("mkfs.ext4", "e2fsprogs")],
    room_mib: (200, 600),
    takes: (10, 300),
    run,
};

const WRITES: Metric = ("write_requests", "");
/// The paper's Table II: NVMeDFS divided by ext4.
const WORKLOADS: [(&str, f64, f64); 3] =
    [("messenger", 0.8, 18_492.0 / 22_987.0), ("social news", 0.8, 12_549.0 / 13_666.0), ("mail", 0.8, 121_419.0 / 147_263.0)];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let Some(extension) = extension(&context.program) else {
        return Ok(Outcome::not_measured(
            "all of it",
            "libhotshelf_sqlite.so is not beside this program nor in ../lib: make build, or make install",
        ));
    };
    let mut lab = Lab::new(context)?;
    let disk = lab.loop_device("device", context.pick(128, 512))?;
    let operations = context.pick(150, 4_000);
    let journals: &[&str] = context.pick(&["delete"], &["delete", "wal"]);
    let mut table = ResultTable::new(NAME);
    context.progress.set_length((WORKLOADS.len() * journals.len() * 2) as u64 * u64::from(context.runs));
    for (workload, ..) in WORKLOADS {
        for journal in journals {
            let case = format!("{workload}, journal {journal}");
            context.progress.set_message(case.clone());
            let mut answers = Vec::new();
            context.interleave(2, |run, side| {
                let script = statements(workload, operations, context.seed + u64::from(run));
                let (who, done) = match side {
                    0 => ("hotshelf", ours(&lab, &disk, &extension, journal, &script)?),
                    _ => ("ext4", theirs(&mut lab, &disk, journal, &script)?),
                };
                table.add(who, &case, TIME, done.seconds);
                table.add(who, &case, WRITES, done.counted.writes as f64);
                answers.push((run, done.answer));
                Ok(())
            })?;
            answers.sort();
            ensure!(answers.chunks(2).all(|pair| pair[0] == pair[1]), "{case}: the databases are not the same on both sides");
        }
    }
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    for (workload, time, writes) in WORKLOADS {
        for journal in journals {
            let case = format!("{workload}, journal {journal}");
            let why = "made-up statements: the paper's traces are not public; its \"up to 20 %\" is taken for each";
            outcome.claims.extend(table.claim(&case, TIME, "hotshelf", "ext4").map(|claim| claim.paper(time).why(why)));
            outcome
                .claims
                .extend(table.claim(&case, WRITES, "hotshelf", "ext4").map(|claim| claim.paper(writes).why("write requests with data")));
        }
    }
    outcome.notes.push(format!("{operations} operations of each application, synchronous=FULL; flushes are not counted as requests"));
    Ok(outcome)
}

fn extension(program: &Path) -> Option<PathBuf> {
    let dir = program.parent()?;
    ["", "../lib", "../lib64"].iter().map(|below| dir.join(below).join("libhotshelf_sqlite.so")).find(|path| path.is_file())
}

struct ScriptRun {
    seconds: f64,
    counted: Counters,
    /// A checksum of the final database content.
    answer: String,
}

fn theirs(lab: &mut Lab<'_>, disk: &Disk, journal: &str, script: &str) -> anyhow::Result<ScriptRun> {
    lab.ext4(disk)?;
    let open = format!(".open {}\n", disk.dir.join("db").display());
    let before = disk.counters()?;
    let (seconds, answer) = sqlite(lab, &open, journal, script)?;
    lab.unmount(&disk.dir)?;
    Ok(ScriptRun { seconds, counted: disk.counters()?.since(&before), answer })
}

fn ours(lab: &Lab<'_>, disk: &Disk, extension: &Path, journal: &str, script: &str) -> anyhow::Result<ScriptRun> {
    let context = lab.context();
    let words = ["fs".as_ref(), "mkfs".as_ref(), disk.device.as_os_str(), "--force".as_ref()];
    programs::run_path(context, &context.program, &words)?;
    let open = format!(".load {}\n.open file:/db?vfs=hotshelf&image={}\n", extension.display(), disk.device.display());
    let before = disk.counters()?;
    let (seconds, answer) = sqlite(lab, &open, journal, script)?;
    Ok(ScriptRun { seconds, counted: disk.counters()?.since(&before), answer })
}

fn sqlite(lab: &Lab<'_>, open: &str, journal: &str, script: &str) -> anyhow::Result<(f64, String)> {
    let file = lab.dir().join("statements.sql");
    std::fs::write(&file, format!(".bail on\n{open}PRAGMA journal_mode={journal};\nPRAGMA synchronous=full;\n{script}"))?;
    let mut command = Command::new(crate::programs::find("sqlite3").context("sqlite3")?);
    command.arg("-batch");
    let begun = Instant::now();
    let said = programs::finish(lab.context(), command, Some(std::fs::File::open(&file)?))?;
    let seconds = begun.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(said.lines().any(|line| line.starts_with("sum|")), "sqlite3 did not come to the end of its statements");
    let answer = said.lines().filter(|line| line.starts_with("sum|")).collect::<Vec<_>>().join("\n");
    Ok((seconds, answer))
}

/// Generates the SQL of an application.
struct SqlWriter {
    sql: String,
    random: fastrand::Rng,
    /// Rows created in the main table.
    made: u32,
    more: u32,
}

fn statements(workload: &str, operations: u32, seed: u64) -> String {
    let mut writer = SqlWriter { sql: String::new(), random: fastrand::Rng::with_seed(seed), made: 0, more: 0 };
    let (schema, step, tables): (&str, fn(&mut SqlWriter, u32), &[&str]) = match workload {
        "messenger" => (MESSENGER, SqlWriter::messenger, &["messages", "chats"]),
        "social news" => (NEWS, SqlWriter::news, &["posts", "comments"]),
        _ => (MAIL, SqlWriter::mail, &["mails", "bodies", "words"]),
    };
    writer.sql.push_str(schema);
    for _ in 0..operations {
        let which = writer.random.u32(..100);
        step(&mut writer, which);
    }
    for table in tables {
        let _ = writeln!(writer.sql, "SELECT 'sum', '{table}', count(*), total(rowid) FROM {table};");
    }
    writer.sql
}

const MESSENGER: &str = "\
    CREATE TABLE messages(id INTEGER PRIMARY KEY, chat INTEGER, sender INTEGER, body TEXT, at INTEGER, state INTEGER);\n\
    CREATE INDEX of_chat ON messages(chat, id);\n\
    CREATE TABLE chats(id INTEGER PRIMARY KEY, last INTEGER, unread INTEGER);\n\
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60) INSERT INTO chats SELECT i, 0, 0 FROM n;\n";
const NEWS: &str = "CREATE TABLE posts(id INTEGER PRIMARY KEY, author INTEGER, body TEXT, at INTEGER, likes INTEGER, comments INTEGER);\n\
    CREATE INDEX by_author ON posts(author, at);\n\
    CREATE TABLE comments(id INTEGER PRIMARY KEY, post INTEGER, author INTEGER, body TEXT);\n\
    CREATE INDEX of_post ON comments(post, id);\n";
const MAIL: &str = "CREATE TABLE mails(id INTEGER PRIMARY KEY, folder INTEGER, sender INTEGER, subject TEXT, at INTEGER, flags INTEGER);\n\
    CREATE INDEX of_folder ON mails(folder, at);\n\
    CREATE TABLE bodies(id INTEGER PRIMARY KEY, body TEXT);\n\
    CREATE TABLE words(word INTEGER, mail INTEGER);\n\
    CREATE INDEX by_word ON words(word, mail);\n";

impl SqlWriter {
    fn text(&mut self, least: u32, most: u32) -> String {
        let letters = b"etaoinshrdlu cmfwypv bgkjqxz 0123456789.";
        (0..self.random.u32(least..most)).map(|_| char::from(letters[self.random.usize(..letters.len())])).collect()
    }

    /// Draws a number; small ones are much more frequent.
    fn often(&mut self, below: u32) -> u32 {
        let mut three = [(); 3].map(|()| self.random.u32(..below.max(1)));
        three.sort_unstable();
        three[0]
    }

    fn say(&mut self, line: &str) {
        self.sql.push_str(line);
        self.sql.push('\n');
    }

    /// 45 % new message, 20 % delete, 20 % open a chat, 15 % list the chats.
    fn messenger(&mut self, which: u32) {
        let chat = 1 + self.often(60);
        match which {
            0..65 => {
                self.made += 1;
                let (id, sender, body, sent) = (self.made, self.random.u32(..200), self.text(20, 200), u32::from(which >= 45));
                self.say(&format!(
                    "BEGIN IMMEDIATE; INSERT INTO messages VALUES({id}, {chat}, {sender}, '{body}', {}, {sent}); \
                     UPDATE chats SET last = {id}, unread = unread + {} WHERE id = {chat}; COMMIT;",
                    1_700_000_000 + id * 7,
                    1 - sent
                ));
                if sent == 1 {
                    self.say(&format!("UPDATE messages SET state = 2 WHERE id = {id};"));
                }
            }
            65..85 => self.say(&format!(
                "SELECT id, sender, body, at, state FROM messages WHERE chat = {chat} ORDER BY id DESC LIMIT 30; BEGIN IMMEDIATE; \
                 UPDATE messages SET state = 3 WHERE id IN (SELECT id FROM messages WHERE chat = {chat} AND state = 0 ORDER BY id DESC \
                 LIMIT 30); UPDATE chats SET unread = 0 WHERE id = {chat}; COMMIT;"
            )),
            _ => {
                self.say("SELECT c.id, c.unread, m.body FROM chats c LEFT JOIN messages m ON m.id = c.last ORDER BY c.last DESC LIMIT 20;")
            }
        }
    }

    /// 25 % refresh with 5 to 15 posts, 45 % read a page, 15 % write a comment, 15 % like a post.
    fn news(&mut self, which: u32) {
        let post = self.made.saturating_sub(self.often(100));
        match which {
            _ if which < 25 || self.made == 0 => {
                self.say("BEGIN IMMEDIATE;");
                for _ in 0..self.random.u32(5..16) {
                    self.made += 1;
                    let (id, author, body) = (self.made, 1 + self.often(300), self.text(200, 1000));
                    self.say(&format!("INSERT INTO posts VALUES({id}, {author}, '{body}', {}, 0, 0);", 1_700_000_000 + id));
                }
                let oldest = self.made.saturating_sub(1500);
                self.say(&format!("DELETE FROM comments WHERE post <= {oldest}; DELETE FROM posts WHERE id <= {oldest}; COMMIT;"));
            }
            25..70 => self.say(&format!(
                "SELECT id, author, body, likes, comments FROM posts WHERE id <= {post} ORDER BY id DESC LIMIT 20; \
                 SELECT body FROM comments WHERE post BETWEEN {} AND {post} ORDER BY id LIMIT 30;",
                post.saturating_sub(20)
            )),
            70..85 => {
                self.more += 1;
                let (id, author, body) = (self.more, 1 + self.often(300), self.text(20, 220));
                self.say(&format!(
                    "BEGIN IMMEDIATE; INSERT INTO comments VALUES({id}, {post}, {author}, '{body}'); \
                     UPDATE posts SET comments = comments + 1 WHERE id = {post}; COMMIT;"
                ));
            }
            _ => self.say(&format!("UPDATE posts SET likes = likes + 1 WHERE id = {post};")),
        }
    }

    /// 40 % mail arrives or is deleted, 20 % read one, 25 % list a folder, 10 % search, 5 % empty the trash.
    fn mail(&mut self, which: u32) {
        match which {
            _ if which < 40 || self.made == 0 => {
                self.made += 1;
                let (id, sender, subject) = (self.made, 1 + self.often(500), self.text(20, 80));
                let body = self.text(1024, 9 * 1024);
                self.say(&format!(
                    "BEGIN IMMEDIATE; INSERT INTO mails VALUES({id}, 1, {sender}, '{subject}', {}, 0); \
                     INSERT INTO bodies VALUES({id}, '{body}');",
                    1_700_000_000 + id * 60
                ));
                for _ in 0..8 {
                    let word = self.often(2000);
                    self.say(&format!("INSERT INTO words VALUES({word}, {id});"));
                }
                self.say("COMMIT;");
            }
            40..60 => {
                let id = self.made.saturating_sub(self.often(100));
                self.say(&format!("SELECT body FROM bodies WHERE id = {id}; UPDATE mails SET flags = flags | 1 WHERE id = {id};"));
            }
            60..85 => self.say("SELECT id, sender, subject, at, flags FROM mails WHERE folder = 1 ORDER BY at DESC LIMIT 25;"),
            85..95 => {
                let word = self.often(2000);
                self.say(&format!(
                    "SELECT m.id, m.subject FROM words w JOIN mails m ON m.id = w.mail WHERE w.word = {word} ORDER BY m.at DESC LIMIT 20;"
                ));
            }
            _ => {
                let (from, to) = (self.more + 1, (self.more + 10).min(self.made));
                self.more = to;
                self.say(&format!(
                    "BEGIN IMMEDIATE; DELETE FROM bodies WHERE id BETWEEN {from} AND {to}; \
                     DELETE FROM words WHERE mail BETWEEN {from} AND {to}; \
                     DELETE FROM mails WHERE id BETWEEN {from} AND {to}; COMMIT;"
                ));
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_seed_means_the_same_statements() {
        for (workload, ..) in WORKLOADS {
            let sql = statements(workload, 200, 7);
            assert_eq!(sql, statements(workload, 200, 7));
            assert_ne!(sql, statements(workload, 200, 8));
            assert_eq!(sql.matches("BEGIN").count(), sql.matches("COMMIT").count());
            assert!(sql.matches('\'').count().is_multiple_of(2) && sql.lines().count() > 200);
        }
    }
}
