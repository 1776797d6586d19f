//! SQLite on a device that loses what was not flushed: after a cut at any write or flush the image is clean, the database whole, every
//! acknowledged transaction there, and the one under way all or nothing. FULL=1 tries much more; SEED=n runs one alone.

#[path = "../../../../filesystems/rawfs/tests/crash/machine.rs"]
mod machine;
mod sqlite;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use machine::Machine;
use rawfs::fs::{Fs, FsSettings, Timestamp};
use rawfs::{FormatOptions, Settings, Store};
use sqlite::{Connection, sqlite};

const BYTES: usize = 12 << 20;

fn seeds(few: u64, many: u64) -> Vec<u64> {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..if std::env::var_os("FULL").is_some_and(|full| full == "1") { many } else { few }).collect(),
    }
}

fn open(machine: &Arc<Machine>) -> Fs {
    let settings = Settings { node_cache_bytes: 1 << 20, background: false, ..Settings::default() };
    let (store, _) = Store::open(machine.disk(), &settings).expect("opens");
    let files = FsSettings { write_back: Duration::ZERO, ..FsSettings::default() };
    Fs::open(store, files).expect("opens").0
}

fn formatted() -> Arc<Machine> {
    let machine = Machine::new(vec![0; BYTES]);
    let options = FormatOptions { metadata_bytes: Some(1 << 20), log_bytes: Some(512 << 10), ..FormatOptions::default() };
    Store::format(&machine.disk(), &options).expect("formatted");
    let (store, _) = Store::open(machine.disk(), &Settings::default()).expect("opens");
    Fs::format(&store, Timestamp::default()).expect("made");
    store.close().expect("closed");
    machine
}

/// What every transaction keeps: the accounts' sum, and a row of `done` for each transaction with its number.
const SCHEMA: &str = "create table accounts(id integer primary key, has integer, more blob);
    create table done(n integer primary key); create index by_has on accounts(has);
    with recursive i(i) as (select 1 union all select i + 1 from i where i < 40) insert into accounts select i, 100, randomblob(9) from i";

fn transaction(rng: &mut fastrand::Rng, n: u64) -> String {
    let mut sql = format!("begin immediate; insert into done values({n});");
    for _ in 0..rng.u32(1..4) {
        let (from, to, much) = (rng.u32(1..41), rng.u32(1..41), rng.u32(1..9));
        let bytes = if rng.u8(..6) == 0 { 30_000 } else { 300 };
        sql += &format!("update accounts set has = has - {much}, more = randomblob({bytes}) where id = {from};");
        sql += &format!("update accounts set has = has + {much} where id = {to};");
    }
    sql + "commit"
}

/// The image as a cut left it.
fn after_cut(content: Vec<u8>, name: &str, acknowledged: u64) {
    let machine = Machine::new(content);
    let fs = open(&machine);
    let report = rawfs::fs::check::check(fs.store()).expect("read");
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
    hotshelf_sqlite::image::mount(Path::new(name), fs).expect("mounted");
    let db = Connection::open(&format!("file:/db?vfs=hotshelf&image={name}")).expect("opens");
    assert_eq!(db.run("pragma integrity_check").expect("read"), ["ok"]);
    let (count, last) = (db.number("select count(*) from done"), db.number("select coalesce(max(n), 0) from done"));
    let all = acknowledged..=acknowledged + 1;
    assert!(count == last && all.contains(&(last as u64)), "{count} transactions up to {last}; {acknowledged} acknowledged");
    assert_eq!(db.number("select sum(has) from accounts"), 4000, "half a transaction");
    drop(db);
    let fs = hotshelf_sqlite::image::unmount(Path::new(name)).expect("unused");
    fs.close().expect("closed");
}

fn life(seed: u64, journal: &str, steps: u64, one_in: u8, cuts: &Arc<AtomicU64>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let machine = formatted();
    let name = format!("/life-{journal}-{seed}");
    hotshelf_sqlite::image::mount(Path::new(&name), open(&machine)).expect("mounted");
    let uri = format!("file:/db?vfs=hotshelf&image={name}");
    let db = Connection::open(&uri).expect("opens");
    db.run(&format!("pragma journal_mode = {journal}; pragma synchronous = full; pragma wal_autocheckpoint = 20")).expect("set");
    // So little that pages are written before the commit.
    db.run("pragma cache_size = 5").expect("set");
    db.run(SCHEMA).expect("made");
    let acknowledged = Arc::new(AtomicU64::new(0));
    let (medium, mut chance, told) = (machine.medium.clone(), rng.fork(), Arc::clone(&acknowledged));
    let (cut_name, cuts) = (format!("{name}-cut"), Arc::clone(cuts));
    machine.set_moment(Some(Box::new(move || {
        if chance.u8(..one_in) == 0 {
            cuts.fetch_add(1, Ordering::Relaxed);
            after_cut(medium.power_cut(chance.u64(..)), &cut_name, told.load(Ordering::SeqCst));
        }
    })));
    for n in 1..=steps {
        db.run(&transaction(&mut rng, n)).expect("a healthy device");
        acknowledged.store(n, Ordering::SeqCst);
    }
    machine.set_moment(None);
    after_cut(machine.medium.power_cut(rng.u64(..)), &format!("{name}-cut"), steps);
    drop(db);
    let fs = hotshelf_sqlite::image::unmount(Path::new(&name)).expect("unused");
    fs.close().expect("closed");
    after_cut(machine.content(), &format!("{name}-cut"), steps);
}

/// Prints the seed of what panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SEED={}", self.0);
        }
    }
}

#[test]
fn every_acknowledged_transaction_is_there_and_none_half() {
    let _ = sqlite();
    for journal in ["delete", "truncate", "persist", "memory", "wal"] {
        let cuts = Arc::new(AtomicU64::new(0));
        for seed in seeds(1, 200) {
            let _named = Named(seed);
            life(seed, journal, 25, 6, &cuts);
        }
        println!("{journal}: {} cuts", cuts.load(Ordering::Relaxed));
        assert!(cuts.load(Ordering::Relaxed) > 5 || std::env::var_os("SEED").is_some());
    }
}

#[test]
fn transactions_of_two_databases_are_one() {
    let _ = sqlite();
    let cuts = Arc::new(AtomicU64::new(0));
    for seed in seeds(1, 100) {
        let _named = Named(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let machine = formatted();
        let name = format!("/two-{seed}");
        hotshelf_sqlite::image::mount(Path::new(&name), open(&machine)).expect("mounted");
        let uri = |name: &str, db: &str| format!("file:/{db}?vfs=hotshelf&image={name}");
        let db = Connection::open(&uri(&name, "a")).expect("opens");
        db.run(&format!("create table t(n); insert into t values(0); attach '{}' as b; create table b.t(n);", uri(&name, "b")))
            .expect("made");
        db.run("insert into b.t values(0)").expect("made");
        let (medium, mut chance, counted, told) = (machine.medium.clone(), rng.fork(), Arc::clone(&cuts), Arc::new(AtomicU64::new(0)));
        let acknowledged = Arc::clone(&told);
        machine.set_moment(Some(Box::new(move || {
            if chance.u8(..2) > 0 {
                return;
            }
            counted.fetch_add(1, Ordering::Relaxed);
            let cut = Machine::new(medium.power_cut(chance.u64(..)));
            let there = format!("/two-{seed}-cut");
            hotshelf_sqlite::image::mount(Path::new(&there), open(&cut)).expect("mounted");
            let (a, b) = (Connection::open(&uri(&there, "a")).expect("opens"), Connection::open(&uri(&there, "b")).expect("opens"));
            let (n, other) = (a.number("select n from t"), b.number("select n from t"));
            let told = acknowledged.load(Ordering::SeqCst) as i64;
            assert!(n == other && (told..=told + 1).contains(&n), "{n} and {other}; {told} acknowledged");
            drop((a, b));
            hotshelf_sqlite::image::unmount(Path::new(&there)).expect("unused").close().expect("closed");
        })));
        for n in 1..=24 {
            db.run(&format!("begin; update t set n = {n}; update b.t set n = {n}; commit")).expect("a healthy device");
            told.store(n, Ordering::SeqCst);
        }
        machine.set_moment(None);
        drop(db);
        hotshelf_sqlite::image::unmount(Path::new(&name)).expect("unused").close().expect("closed");
    }
    assert!(cuts.load(Ordering::Relaxed) > 5 || std::env::var_os("SEED").is_some());
}

#[test]
fn connections_of_several_threads_lose_no_update() {
    let _ = sqlite();
    for journal in ["delete", "persist", "wal"] {
        let machine = formatted();
        let name = format!("/threads-{journal}");
        hotshelf_sqlite::image::mount(Path::new(&name), open(&machine)).expect("mounted");
        let uri = format!("file:/db?vfs=hotshelf&image={name}");
        let first = Connection::open(&uri).expect("opens");
        first.run(&format!("pragma journal_mode = {journal}; create table n(i); insert into n values(0)")).expect("made");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let db = Connection::open(&uri).expect("opens");
                    db.run("pragma busy_timeout = 60000").expect("set");
                    for _ in 0..20 {
                        db.run("begin immediate; update n set i = i + 1; commit").expect("done");
                        assert_eq!(db.run("pragma quick_check").expect("read"), ["ok"]);
                    }
                });
            }
        });
        assert_eq!(first.number("select i from n"), 60, "{journal}");
        drop(first);
        hotshelf_sqlite::image::unmount(Path::new(&name)).expect("unused").close().expect("closed");
    }
}
