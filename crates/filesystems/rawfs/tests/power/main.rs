//! The file system under loss of power, at any write, flush or discard: it opens, the check finds nothing, what was synced is
//! there, transactions are whole, removed files are gone, and no block is lost.
//!
//! FULL=1 tries much more. A failure prints its seed: SEED=n runs that one alone, SEEDS=a..b those of a range.

#[path = "../crash/machine.rs"]
mod machine;
mod sequences;
mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::Op;
use machine::{Machine, MachineKind};
use rawfs::fs::{Fs, FsSettings, Timestamp};
use rawfs::{FormatOptions, Settings, Store};
use sim::device::fault::{Fault, FaultRule, FaultTrigger};
use workload::{Ledger, Workload, verify};

const BYTES: usize = 6 << 20;

fn is_full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}

fn seeds(few: u64, many: u64) -> Vec<u64> {
    let number = |text: &str| text.parse().expect("SEEDS=a..b");
    if let Ok(range) = std::env::var("SEEDS") {
        let (from, to) = range.split_once("..").expect("SEEDS=a..b");
        return (number(from)..number(to)).collect();
    }
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..if is_full() { many } else { few }).collect(),
    }
}

fn settings() -> Settings {
    Settings { node_cache_bytes: 1 << 20, background: false, ..Settings::default() }
}

fn fs_settings() -> FsSettings {
    // So little that write-back happens by itself.
    FsSettings { cache_bytes: 256 << 10, dirty_bytes: 64 << 10, write_back: Duration::ZERO, ..FsSettings::default() }
}

fn formatted() -> Vec<u8> {
    formatted_of(BYTES, 1 << 20, 256 << 10)
}

fn formatted_of(bytes: usize, metadata: u64, log: u64) -> Vec<u8> {
    let machine = Machine::new(vec![0; bytes]);
    let options = FormatOptions { metadata_bytes: Some(metadata), log_bytes: Some(log), ..FormatOptions::default() };
    Store::format(&machine.disk(), &options).expect("formatted");
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    Fs::format(&store, Timestamp::default()).expect("made");
    store.close().expect("closed");
    machine.content()
}

fn clean(store: &Store, when: &str) -> u64 {
    let report = rawfs::fs::check::check(store).expect("read");
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{when}: {findings:#?}");
    report.orphans
}

/// What was tried and found.
#[derive(Default)]
struct Counts {
    cuts: AtomicU64,
    orphans: AtomicU64,
}

/// Opens what a cut left, and looks at it. Once, the power may go again meanwhile.
fn after_cut(kind: MachineKind, content: Vec<u8>, ledger: &Ledger, counts: &Arc<Counts>, again: Option<fastrand::Rng>) {
    counts.cuts.fetch_add(1, Ordering::Relaxed);
    let machine = Machine::of(kind, content);
    if let Some(mut rng) = again {
        let (medium, ledger, counts) = (machine.medium.clone(), ledger.clone(), Arc::clone(counts));
        machine.set_moment(Some(Box::new(move || {
            if rng.u8(..8) == 0 {
                after_cut(kind, medium.power_cut(rng.u64(..)), &ledger, &counts, None);
            }
        })));
    }
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opens after a cut");
    counts.orphans.fetch_add(clean(&store, "before removed files are freed"), Ordering::Relaxed);
    let (fs, _) = Fs::open(store, fs_settings()).expect("opens after a cut");
    assert_eq!(clean(fs.store(), "after a cut"), 0);
    machine.set_moment(None);
    verify(&fs, ledger);
    fs.close().expect("closed");
}

fn life(kind: MachineKind, seed: u64, steps: usize, one_in: u8, counts: &Arc<Counts>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let machine = Machine::of(kind, formatted());
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    let mut work = Workload::new(fs, rng.u64(..));
    let (ledger, medium, mut chance) = (Arc::clone(&work.ledger), machine.medium.clone(), rng.fork());
    let meanwhile = Arc::clone(counts);
    machine.set_moment(Some(Box::new(move || {
        if chance.u8(..one_in) == 0 {
            after_cut(kind, medium.power_cut(chance.u64(..)), &ledger.lock(), &meanwhile, Some(chance.fork()));
        }
    })));
    for _ in 0..steps {
        work.step().expect("a healthy device");
    }
    machine.set_moment(None);
    let ledger = work.ledger.lock().clone();
    after_cut(kind, machine.medium.power_cut(rng.u64(..)), &ledger, counts, Some(rng.fork()));
    work.end().expect("closed");
    let (store, recovery) = Store::open(machine.disk(), &settings()).expect("opened");
    assert!(recovery.clean);
    assert_eq!(clean(&store, "after a good end"), 0);
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
fn what_was_synced_is_there_and_transactions_are_whole() {
    lives(MachineKind::Memory, &seeds(3, 2200));
}

#[test]
fn so_they_are_over_the_nvme_driver() {
    lives(MachineKind::Nvme, &seeds(1, 200));
}

fn lives(kind: MachineKind, seeds: &[u64]) {
    let counts = Arc::default();
    for seed in seeds.iter().copied() {
        let _named = Named(seed);
        life(kind, seed, 150, 10, &counts);
    }
    let (cuts, orphans) = (counts.cuts.load(Ordering::Relaxed), counts.orphans.load(Ordering::Relaxed));
    println!("{cuts} cuts, {orphans} removed files found");
    assert!(cuts > 0 && orphans > 0, "the test looks at what it should");
}

/// Uses a file system on a device that fails once; returns whether an error was reported.
fn life_with(kind: MachineKind, rule: FaultRule, seed: u64) -> bool {
    let machine = Machine::of(kind, formatted());
    let (store, _) = Store::open(machine.disk(), &settings()).expect("opened");
    let (fs, _) = Fs::open(store, fs_settings()).expect("opened");
    let mut work = Workload::new(fs, seed);
    machine.faults.add(rule);
    let mut has_failed = false;
    for _ in 0..60 {
        has_failed |= work.step().is_err();
    }
    machine.faults.clear();
    let ledger = work.ledger.lock().clone();
    let counts = Arc::default();
    after_cut(kind, machine.medium.power_cut(seed), &ledger, &counts, None);
    has_failed |= work.end().is_err();
    after_cut(kind, machine.content(), &ledger, &counts, None);
    has_failed
}

#[test]
fn an_error_of_any_request_is_reported_and_nothing_promised_is_lost() {
    errors(MachineKind::Memory, &seeds(10, 500));
}

#[test]
fn so_it_is_over_the_nvme_driver() {
    errors(MachineKind::Nvme, &seeds(2, 100));
}

fn errors(kind: MachineKind, seeds: &[u64]) {
    let mut has_failed = 0;
    for seed in seeds {
        let _named = Named(*seed);
        let media = Fault::Fail(block::Error::Media);
        has_failed += u32::from(life_with(kind, FaultRule::new(FaultTrigger::Nth(1 + seed * 7 % 150), media).on(&[Op::Write]), *seed));
        has_failed += u32::from(life_with(kind, FaultRule::new(FaultTrigger::Nth(1 + seed % 20), media).on(&[Op::Flush]), *seed));
        has_failed += u32::from(life_with(kind, FaultRule::new(FaultTrigger::Nth(1 + seed % 5), media).on(&[Op::Read]), *seed));
    }
    println!("{has_failed} of {} lives had an error", 3 * seeds.len());
    assert!(has_failed as usize >= seeds.len(), "the test looks at what it should");
}
