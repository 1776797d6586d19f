//! SQLite on an image that is full, or whose device fails: a statement that failed has not happened, reading works, and the database
//! is whole after each failure and after opening it again. FULL=1 tries more; MODE=wal that
//! journal alone.

#[path = "../../../../filesystems/rawfs/tests/crash/machine.rs"]
#[allow(dead_code, reason = "not all of it is in every program of tests")]
mod machine;
mod refused;
#[path = "../power/sqlite.rs"]
#[allow(dead_code, reason = "not all of it is in every program of tests")]
mod sqlite;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use block::Op;
use machine::Machine;
use rawfs::fs::{Fs, FsSettings, Timestamp};
use rawfs::{FormatOptions, Settings, Store};
use sim::device::fault::{Fault, FaultKind, FaultRule, FaultTrigger};
use sqlite::Connection;

const FULL: i32 = 13;
const IOERR: i32 = 10;

/// How a database is used.
#[derive(Clone, Copy, Debug)]
struct Mode {
    journal: &'static str,
    synchronous: &'static str,
    locking: &'static str,
    auto_vacuum: &'static str,
    /// Transactions are larger than memory, so that pages of them reach the device, and a journal there undoes them. While no write
    /// succeeds it cannot: then SQLite refuses to read rather than to show half of a transaction.
    spills: bool,
}

impl Mode {
    fn pragmas(self) -> String {
        let Mode { journal, synchronous, locking, auto_vacuum, .. } = self;
        // A cache of few pages: pages are written before the commit.
        format!(
            "pragma locking_mode = {locking}; pragma auto_vacuum = {auto_vacuum}; pragma journal_mode = {journal};
             pragma synchronous = {synchronous}; pragma cache_size = 10; pragma wal_autocheckpoint = 30;
             pragma secure_delete = off"
        )
    }

    /// Without a journal SQLite cannot undo what it has written: a statement that fails leaves the database as it may be.
    fn undoes(self) -> bool {
        self.journal != "off"
    }
}

fn modes() -> Vec<Mode> {
    let mode = |journal, synchronous, locking, auto_vacuum| Mode { journal, synchronous, locking, auto_vacuum, spills: false };
    let mut all = Vec::new();
    let only = std::env::var("MODE").ok();
    for journal in ["delete", "truncate", "persist", "memory", "off", "wal"]
        .into_iter()
        .filter(|journal| only.as_deref().is_none_or(|only| only == *journal))
    {
        for (synchronous, locking, auto_vacuum) in
            [("full", "normal", "none"), ("off", "normal", "full"), ("normal", "exclusive", "incremental"), ("extra", "exclusive", "full")]
        {
            all.push(mode(journal, synchronous, locking, auto_vacuum));
        }
    }
    all
}

fn open(machine: &Arc<Machine>) -> Fs {
    let settings = Settings { node_cache_bytes: 1 << 20, background: false, ..Settings::default() };
    let (store, _) = Store::open(machine.disk(), &settings).expect("opens");
    let files = FsSettings { write_back: Duration::ZERO, ..FsSettings::default() };
    Fs::open(store, files).expect("opens").0
}

fn formatted(bytes: usize) -> Arc<Machine> {
    let machine = Machine::new(vec![0; bytes]);
    let options = FormatOptions { metadata_bytes: Some(1 << 20), log_bytes: Some(512 << 10), ..FormatOptions::default() };
    Store::format(&machine.disk(), &options).expect("formatted");
    let (store, _) = Store::open(machine.disk(), &Settings::default()).expect("opens");
    Fs::format(&store, Timestamp::default()).expect("made");
    store.close().expect("closed");
    machine
}

fn is_clean(fs: &Fs) {
    let report = rawfs::fs::check::check(fs.store()).expect("read");
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

fn mount(machine: &Arc<Machine>, name: &str) {
    hotshelf_sqlite::image::mount(Path::new(name), open(machine)).expect("mounted");
}

fn unmount(name: &str) -> Fs {
    hotshelf_sqlite::image::unmount(Path::new(name)).expect("unused")
}

fn connect(name: &str) -> Connection {
    Connection::open(&format!("file:/db?vfs=hotshelf&image={name}")).expect("opens")
}

/// Rows by table: the number of rows, and the sum of their keys.
type Rows = [(i64, i64); 2];

fn rows(db: &Connection) -> Result<Rows, i32> {
    let one = |table: &str| -> Result<(i64, i64), i32> {
        let text = db.run(&format!("select count(*) || ' ' || coalesce(sum(a), 0) from {table}"))?;
        let (count, sum) = text[0].split_once(' ').expect("two numbers");
        Ok((count.parse().expect("a number"), sum.parse().expect("a number")))
    };
    Ok([one("t")?, one("u")?])
}

fn is_whole(db: &Connection, when: &str) {
    assert_eq!(db.run("pragma integrity_check").as_deref(), Ok(&["ok".to_owned()][..]), "{when}");
}

/// A statement, and what it makes of the rows if it succeeds.
struct Step {
    sql: String,
    then: Box<dyn Fn(&mut Rows)>,
}

fn step(sql: impl Into<String>, then: impl Fn(&mut Rows) + 'static) -> Step {
    Step { sql: sql.into(), then: Box::new(then) }
}

const SCHEMA: &str = "create table t(a integer primary key, b blob); create table u(a integer primary key, b blob);
    create index t_b on t(substr(b, 1, 8))";

fn insert(table: usize, key: i64, bytes: usize) -> Step {
    step(format!("insert into {} values({key}, randomblob({bytes}))", ["t", "u"][table]), move |rows| {
        rows[table].0 += 1;
        rows[table].1 += key;
    })
}

/// Runs a statement; what was said of it is true at once.
fn run(db: &Connection, step: &Step, acknowledged_rows: &mut Rows, mode: Mode, failures_seen: &mut Vec<i32>) {
    match db.run(&step.sql) {
        Ok(_) => (step.then)(acknowledged_rows),
        Err(code) => {
            failures_seen.push(code);
            // After some failures SQLite leaves a transaction open, for its program to end.
            let _ = db.run("rollback");
        }
    }
    if mode.undoes() || failures_seen.is_empty() {
        // As a new connection would see it: pages that are in the cache are read again.
        let seen = rows(db);
        if mode.spills && seen.is_err() {
            return;
        }
        let seen = seen.unwrap_or_else(|code| panic!("{mode:?}: reading fails with {code} after `{}` ({failures_seen:?})", step.sql));
        assert_eq!(seen, *acknowledged_rows, "{mode:?}: after `{}` ({failures_seen:?})", step.sql);
    }
}

// long: one scenario: the image is filled, emptied, and filled again.
#[test]
fn on_a_full_image_a_failed_statement_has_not_happened() {
    for mode in modes() {
        let machine = formatted(8 << 20);
        let name = format!("/full-{}-{}", mode.journal, mode.synchronous);
        mount(&machine, &name);
        let mut acknowledged_rows = Rows::default();
        let mut db = connect(&name);
        db.run(&mode.pragmas()).expect("set");
        db.run(SCHEMA).expect("made");
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut key, mut failures) = (0, 0);
        for turn in 0..3 {
            // Until nothing fits any more, in rows of all sizes.
            for bytes in [60_000, 9000, 900, 60] {
                let mut failures_seen = Vec::new();
                for _ in 0..2000 {
                    key += 1;
                    let table = rng.usize(..2);
                    run(&db, &insert(table, key, bytes), &mut acknowledged_rows, mode, &mut failures_seen);
                    assert!(failures_seen.iter().all(|code| *code == FULL), "{mode:?}: {failures_seen:?}");
                    if failures_seen.len() > 2 {
                        break;
                    }
                }
                assert!(failures_seen.len() > 2, "{mode:?}: it never is full");
                failures += failures_seen.len();
                if !mode.undoes() {
                    break;
                }
            }
            if !mode.undoes() {
                break;
            }
            is_whole(&db, "while it is full");
            // There is room again when rows are removed, by a table or by rows.
            let mut failures_seen = Vec::new();
            if mode.auto_vacuum == "full" {
                // Each page behind what is removed moves: that takes as many blocks as it moves, as a journal would. So little is removed.
                let last = db.run("select max(a) from t").expect("read")[0].parse::<i64>().expect("a number");
                let remove = step(format!("delete from t where a = {last}"), move |rows| rows[0] = (rows[0].0 - 1, rows[0].1 - last));
                run(&db, &remove, &mut acknowledged_rows, mode, &mut failures_seen);
                assert!(failures_seen.is_empty(), "{mode:?}: {failures_seen:?}: no room can be made");
                continue;
            }
            if turn % 2 == 0 {
                run(&db, &step("delete from u", |rows| rows[1] = (0, 0)), &mut acknowledged_rows, mode, &mut failures_seen);
                let drop_it = step("begin; drop table u; create table u(a integer primary key, b blob); commit", |_| {});
                run(&db, &drop_it, &mut acknowledged_rows, mode, &mut failures_seen);
            } else {
                run(&db, &step("delete from t", |rows| rows[0] = (0, 0)), &mut acknowledged_rows, mode, &mut failures_seen);
            }
            assert!(failures_seen.is_empty(), "{mode:?}: {failures_seen:?}: no room can be made");
            run(&db, &insert(0, -turn - 1, 20_000), &mut acknowledged_rows, mode, &mut failures_seen);
            assert!(failures_seen.is_empty(), "{mode:?}: {failures_seen:?}: there is no room after a removal");
            if turn == 1 {
                drop(db);
                let fs = unmount(&name);
                is_clean(&fs);
                fs.close().expect("closed");
                mount(&machine, &name);
                db = connect(&name);
                db.run(&mode.pragmas()).expect("set");
                assert_eq!(rows(&db), Ok(acknowledged_rows), "{mode:?}: after opening again");
            }
        }
        assert!(failures > 2);
        drop(db);
        let fs = unmount(&name);
        is_clean(&fs);
        fs.close().expect("closed");
        if mode.undoes() {
            mount(&machine, &name);
            let db = connect(&name);
            is_whole(&db, "after opening again");
            assert_eq!(rows(&db), Ok(acknowledged_rows), "{mode:?}: after opening again");
            drop(db);
            unmount(&name).close().expect("closed");
        }
    }
}

/// What is done while the device fails: small and large transactions, growth, removal, a checkpoint.
fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for key in 1..6 {
        steps.push(insert(usize::from(key % 2 == 0), key, 3000));
    }
    steps.push(step("update t set b = randomblob(5000)", |_| {}));
    steps.push(step("begin; insert into t values(100, randomblob(30000)); insert into u values(100, randomblob(90000)); commit", |rows| {
        for rows in rows {
            *rows = (rows.0 + 1, rows.1 + 100);
        }
    }));
    steps.push(step("pragma wal_checkpoint", |_| {}));
    steps.push(step("delete from u", |rows| rows[1] = (0, 0)));
    steps.push(insert(0, 7, 100));
    // What a failed removal has left goes with the table.
    steps.push(step("begin; drop table u; create table u(a integer primary key, b blob); commit", |rows| rows[1] = (0, 0)));
    steps.push(insert(1, 8, 100));
    steps
}

/// The fault is gone: the same connection reads, and it writes unless the store has ended, which it does when its log could not be
/// flushed. False: it does not write.
fn goes_on(db: &Connection, mode: Mode, acknowledged_rows: &mut Rows, failures_seen: &[i32], possible: &mut Vec<Rows>) -> bool {
    if failures_seen.is_empty() || !mode.undoes() {
        return true;
    }
    let seen = rows(db);
    if mode.spills && seen.is_err() {
        return false;
    }
    assert_eq!(seen, Ok(*acknowledged_rows), "{mode:?}: reading after the fault ({failures_seen:?})");
    let mut again = Vec::new();
    for key in [1000, 1001] {
        run(db, &insert(0, key, 40_000), acknowledged_rows, mode, &mut again);
        possible.push(*acknowledged_rows);
    }
    again.is_empty()
}

/// One life with the n-th request failing, and perhaps all that follow; false: nothing failed.
fn life(mode: Mode, steps: &[Step], content: &[u8], rule: FaultRule, n: u64) -> bool {
    let machine = Machine::new(content.to_vec());
    let name = format!("/faults-{}-{}-{}", mode.journal, mode.synchronous, steps.len());
    mount(&machine, &name);
    let db = connect(&name);
    db.run(&mode.pragmas()).expect("set");
    let mut acknowledged_rows = rows(&db).expect("read");
    let mut failures_seen = Vec::new();
    let mut possible = vec![acknowledged_rows];
    machine.faults.add(rule);
    for step in steps {
        let before = (acknowledged_rows, failures_seen.len());
        run(&db, step, &mut acknowledged_rows, mode, &mut failures_seen);
        if failures_seen.len() > before.1 {
            // The device may have it if it has failed permanently: what was written is not known.
            let mut also = before.0;
            (step.then)(&mut also);
            possible.push(also);
        } else if failures_seen.is_empty() {
            possible = vec![acknowledged_rows];
        } else {
            possible.push(acknowledged_rows);
        }
    }
    let failed = machine.faults.injected(FaultKind::Fail) > 0;
    machine.faults.clear();
    assert!(!mode.undoes() || failures_seen.iter().all(|code| [FULL, IOERR].contains(&(code & 0xff))), "{mode:?}: {failures_seen:?}");
    let goes_on = goes_on(&db, mode, &mut acknowledged_rows, &failures_seen, &mut possible);
    drop(db);
    let fs = unmount(&name);
    let broken = fs.sync().is_err();
    assert!(goes_on || broken, "{mode:?}, {n}: the connection does not write after the fault ({failures_seen:?})");
    let _ = fs.close();
    // As a process that ends, or as a loss of power.
    for content in [machine.content(), machine.medium.power_cut(n)] {
        if !mode.undoes() && !failures_seen.is_empty() {
            continue;
        }
        let machine = Machine::new(content);
        let fs = open(&machine);
        is_clean(&fs);
        hotshelf_sqlite::image::mount(Path::new(&name), fs).expect("mounted");
        let db = connect(&name);
        is_whole(&db, "after opening again");
        let seen = rows(&db).expect("read");
        if broken {
            let durable = mode.synchronous == "full" || mode.synchronous == "extra";
            assert!(!durable || possible.contains(&seen), "{mode:?}, {n}: {seen:?} is none of {possible:?}; {failures_seen:?}");
        } else {
            assert_eq!(seen, acknowledged_rows, "{mode:?}, {n}: after opening again; {failures_seen:?}");
        }
        drop(db);
        unmount(&name).close().expect("closed");
    }
    failed
}

#[test]
fn whatever_request_fails_a_failed_statement_has_not_happened() {
    // Each request, or some of them.
    let few = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 1 } else { 40 };
    let mut rng = fastrand::Rng::with_seed(38);
    for mode in modes() {
        let machine = formatted(12 << 20);
        mount(&machine, "/faults-begin");
        let db = connect("/faults-begin");
        db.run(&mode.pragmas()).expect("set");
        db.run(SCHEMA).expect("made");
        db.run("insert into t values(50, randomblob(20000)); insert into u values(50, randomblob(70000))").expect("made");
        drop(db);
        unmount("/faults-begin").close().expect("closed");
        let content = machine.content();
        for error in [block::Error::Media, block::Error::NoSpace] {
            for op in [Op::Write, Op::Flush] {
                for persistent in [false, true] {
                    for n in (1 + rng.u64(..few)..).step_by(few as usize) {
                        let when = if persistent { FaultTrigger::From(n) } else { FaultTrigger::Nth(n) };
                        if !life(mode, &steps(), &content, FaultRule::new(when, Fault::Fail(error)).on(&[op]), n) {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// From some write on none succeeds, and then one does: the same connection writes at once.
#[test]
fn a_connection_writes_as_soon_as_the_device_does() {
    for mode in modes().into_iter().filter(|mode| mode.journal == "wal") {
        let machine = formatted(12 << 20);
        mount(&machine, "/again-begin");
        let db = connect("/again-begin");
        db.run(&mode.pragmas()).expect("set");
        db.run(SCHEMA).expect("made");
        drop(db);
        unmount("/again-begin").close().expect("closed");
        let content = machine.content();
        for n in (1..40).step_by(3) {
            let rule = FaultRule::new(FaultTrigger::From(n), Fault::Fail(block::Error::Media)).on(&[Op::Write]);
            if !life(mode, &steps(), &content, rule, n) {
                break;
            }
        }
    }
}

/// A transaction that is too large for memory, committed or rolled back, whose requests fail: its journal is on the device, or in memory,
/// and undoes it whatever SQLite does to end it.
#[test]
fn whatever_request_fails_a_large_statement_that_failed_has_not_happened() {
    let few = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 1 } else { 300 };
    let mut rng = fastrand::Rng::with_seed(39);
    let update = "insert into u values(1, zeroblob(100)); update t set b = randomblob(9000000)";
    for (journal, locking) in [
        ("delete", "normal"),
        ("truncate", "normal"),
        ("persist", "exclusive"),
        ("memory", "normal"),
        ("wal", "normal"),
        ("wal", "exclusive"),
    ] {
        let mode = Mode { journal, synchronous: "full", locking, auto_vacuum: "none", spills: true };
        let machine = formatted(64 << 20);
        mount(&machine, "/large-begin");
        let db = connect("/large-begin");
        db.run(&mode.pragmas()).expect("set");
        db.run(SCHEMA).expect("made");
        db.run("insert into t values(50, zeroblob(9000000))").expect("made");
        drop(db);
        unmount("/large-begin").close().expect("closed");
        let content = machine.content();
        let commit = [step(format!("begin; {update}; commit"), |rows| rows[1] = (rows[1].0 + 1, rows[1].1 + 1))];
        let rollback = [step(format!("begin; {update}; rollback"), |_| {})];
        let mut failing = |steps: &[Step], op: Op, error: block::Error, few: u64| {
            let mut tried = 0;
            for n in (1 + rng.u64(..few)..).step_by(few as usize) {
                let when = if op == Op::Flush || rng.bool() { FaultTrigger::From(n) } else { FaultTrigger::Nth(n) };
                if !life(mode, steps, &content, FaultRule::new(when, Fault::Fail(error)).on(&[op]), n) {
                    break;
                }
                tried += 1;
            }
            tried
        };
        let flushes = failing(&commit, Op::Flush, block::Error::Media, 1);
        // A commit in memory, or one that is appended to the log, needs fewer.
        assert!(flushes > if matches!(journal, "memory" | "wal") { 0 } else { 2 }, "{mode:?}: {flushes} flushes");
        for (steps, error) in [(&commit, block::Error::NoSpace), (&rollback, block::Error::Media), (&rollback, block::Error::NoSpace)] {
            failing(steps, Op::Write, error, few);
        }
        failing(&rollback, Op::Flush, block::Error::Media, 1);
        failing(&rollback, Op::Read, block::Error::Media, few);
    }
}
