//! The store under loss of power: at any write, flush or discard the power goes; what is found is what was applied up to some
//! batch, at least up to what was synced. Also when it goes again while that is put right.
//!
//! FULL=1 tries much more. A failure prints its seed: SEED=n runs that one alone.

mod damage;
mod driver;
mod faults;
mod machine;
mod model;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use driver::{Driver, History, formatted, settings};
use machine::Machine;
use model::Model;
use rawfs::{Error, Recovery, Store};

/// What was looked at, for the test's own sake.
#[derive(Default)]
struct Tally {
    cuts: AtomicU64,
    again: AtomicU64,
    replayed: AtomicU64,
    dropped: AtomicU64,
    verified: AtomicU64,
}

fn is_full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}

fn seeds(few: u64, many: u64) -> Vec<u64> {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..if is_full() { many } else { few }).collect(),
    }
}

/// Prints the seed of what panics.
struct Named(&'static str, u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: SEED={}", self.0, self.1);
        }
    }
}

fn open(machine: &Arc<Machine>) -> Result<(Store, Recovery), Error> {
    Store::open(machine.disk(), &settings())
}

/// Opens what a cut left, compares, and lets the power go again meanwhile: `deep` times one in the other.
fn check_cut(history: &Arc<History>, begin: u64, content: Vec<u8>, seed: u64, deep: u32, tally: &Arc<Tally>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let machine = Machine::new(content);
    if deep > 0 {
        let (history, medium, tally, mut rng) = (Arc::clone(history), machine.medium.clone(), Arc::clone(tally), rng.fork());
        machine.set_moment(Some(Box::new(move || {
            if rng.u8(..4) == 0 {
                tally.again.fetch_add(1, Ordering::Relaxed);
                check_cut(&history, begin, medium.power_cut(rng.u64(..)), rng.u64(..), deep - 1, &tally);
            }
        })));
    }
    let (store, recovery) = open(&machine).expect("opens after a cut");
    machine.set_moment(None);
    assert!(!recovery.clean || recovery.replayed == 0);
    let found = history.check(&store, recovery.lsn.0.checked_sub(begin).expect("not older than this life"));
    tally.cuts.fetch_add(1, Ordering::Relaxed);
    tally.replayed.fetch_add(recovery.replayed, Ordering::Relaxed);
    tally.dropped.fetch_add(recovery.dropped, Ordering::Relaxed);
    tally.verified.fetch_add(recovery.verified, Ordering::Relaxed);
    if rng.u8(..4) == 0 {
        go_on(store, &machine, (*found).clone(), rng.u64(..));
    }
}

/// What was found can be used, and found again.
fn go_on(store: Store, machine: &Arc<Machine>, found: Model, seed: u64) {
    let mut driver = Driver::new(store, found, seed);
    for _ in 0..10 {
        driver.turn().expect("a healthy device");
    }
    driver.sync().expect("a healthy device");
    let content = machine.medium.power_cut(seed);
    let machine = Machine::new(content);
    let (store, recovery) = open(&machine).expect("opens after a cut");
    driver.history.check(&store, recovery.lsn.0 - driver.begin.0);
    store.close().expect("closed");
    let (store, recovery) = open(&machine).expect("opens again");
    assert!(recovery.clean);
    driver.history.check(&store, recovery.lsn.0 - driver.begin.0);
}

/// One life after the other, with cuts at some moments of each.
fn lives(seed: u64, turns: usize, one_in: u8, tally: &Arc<Tally>) {
    let _named = Named("lives", seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut content, mut model) = (formatted(), Model::default());
    for _ in 0..3 {
        let machine = Machine::new(content);
        let (store, _) = open(&machine).expect("opened");
        let mut driver = Driver::new(store, model, rng.u64(..));
        let (history, begin, medium, mut chance) = (Arc::clone(&driver.history), driver.begin.0, machine.medium.clone(), rng.fork());
        let of_moment = Arc::clone(tally);
        machine.set_moment(Some(Box::new(move || {
            if chance.u8(..one_in) == 0 {
                check_cut(&history, begin, medium.power_cut(chance.u64(..)), chance.u64(..), 1, &of_moment);
            }
        })));
        for _ in 0..turns {
            driver.turn().expect("a healthy device");
        }
        machine.set_moment(None);
        driver.now.compare(&driver.store);
        content = machine.medium.power_cut(rng.u64(..));
        let after = Machine::new(content.clone());
        let (store, recovery) = open(&after).expect("opens after a cut");
        model = (*driver.history.check(&store, recovery.lsn.0 - driver.begin.0)).clone();
        drop(store);
    }
}

#[test]
fn what_is_found_after_a_cut_is_what_was_applied_up_to_some_batch() {
    let tally = Arc::new(Tally::default());
    for seed in seeds(2, 400) {
        lives(seed, 60, 8, &tally);
    }
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} cuts, {} of them in recovery; {} batches replayed, {} dropped, {} blocks verified",
        of(&tally.cuts),
        of(&tally.again),
        of(&tally.replayed),
        of(&tally.dropped),
        of(&tally.verified)
    );
    assert!(of(&tally.again) > 0 && of(&tally.replayed) > 0 && of(&tally.verified) > 0, "the test looks at what it should");
}
