//! A device that fails now and then: what is reported is true, and after opening again it is as after a cut.

use block::Op;
use rawfs::Error;
use sim::device::fault::{Fault, FaultRule, FaultTrigger};

use super::driver::{Driver, formatted};
use super::machine::Machine;
use super::model::Model;
use super::{Named, open, seeds};

/// Uses a store on a device with this fault until it fails or has had so many turns, then opens what the power leaves.
fn life_with(rule: FaultRule, seed: u64, turns: usize) -> bool {
    let _named = Named("faults", seed);
    let machine = Machine::new(formatted());
    let (store, _) = open(&machine).expect("opened");
    let mut driver = Driver::new(store, Model::default(), seed);
    for _ in 0..10 {
        driver.turn().expect("a healthy device");
    }
    machine.faults.add(rule);
    let failed = (0..turns).find_map(|_| driver.turn().err());
    machine.faults.clear();
    if let Some(error) = failed {
        is_remembered(&driver, error);
    }
    let history = driver.history.clone();
    let begin = driver.begin.0;
    // As a process that ends: what was written is there, flushed or not; and as a cut of power.
    for content in [machine.content(), machine.medium.power_cut(seed)] {
        let machine = Machine::new(content);
        let (store, recovery) = open(&machine).expect("opens after a failure");
        history.check(&store, recovery.lsn.0 - begin);
    }
    failed.is_some()
}

/// Nothing is taken any more after a write that failed, though the device would take it.
fn is_remembered(driver: &Driver, error: Error) {
    if !matches!(error, Error::Failed(_)) {
        return;
    }
    let mut batch = rawfs::Batch::new();
    batch.put(rawfs::TreeId::Names, b"more", b"");
    assert!(matches!(driver.store.apply(batch), Err(Error::Failed(_))));
    assert!(matches!(driver.store.checkpoint(), Err(Error::Failed(_))));
    let applied = driver.store.applied();
    let synced = driver.store.sync(applied);
    assert!(driver.store.synced() >= applied || matches!(synced, Err(Error::Failed(_))));
}

#[test]
fn an_error_of_any_request_is_reported_and_nothing_promised_is_lost() {
    let mut failed = 0;
    let seeds = seeds(12, 600);
    for seed in seeds.iter().copied() {
        let media = Fault::Fail(block::Error::Media);
        let n = 1 + seed % 23;
        failed += u32::from(life_with(FaultRule::new(FaultTrigger::Nth(n), media), seed, 60));
        failed += u32::from(life_with(FaultRule::new(FaultTrigger::Nth(1 + n / 3), media).on(&[Op::Flush]), seed, 60));
        failed += u32::from(life_with(FaultRule::new(FaultTrigger::Every(n), media).on(&[Op::Write]), seed, 60));
        failed += u32::from(life_with(FaultRule::new(FaultTrigger::From(n), Fault::Gone), seed, 60));
    }
    assert!(failed >= 2 * seeds.len() as u32, "{failed} failures were seen");
}

#[test]
fn an_error_while_opening_is_reported_and_opening_again_is_as_if_it_had_not_been() {
    for seed in seeds(4, 200) {
        let _named = Named("opening", seed);
        let machine = Machine::new(formatted());
        let (store, _) = open(&machine).expect("opened");
        let mut driver = Driver::new(store, Model::default(), seed);
        for _ in 0..40 {
            driver.turn().expect("a healthy device");
        }
        let content = machine.medium.power_cut(seed);
        for n in 1.. {
            let machine = Machine::new(content.clone());
            machine.faults.add(FaultRule::new(FaultTrigger::Nth(n), Fault::Fail(block::Error::Media)));
            let tried = open(&machine);
            machine.faults.clear();
            let left = match &tried {
                Ok(_) => machine.content(),
                Err(_) => machine.medium.power_cut(n),
            };
            let is_last = sim_quiet(&machine);
            drop(tried);
            let machine = Machine::new(left);
            let (store, recovery) = open(&machine).expect("opens after a failure");
            driver.history.check(&store, recovery.lsn.0 - driver.begin.0);
            if is_last {
                break;
            }
        }
    }
}

/// Whether no fault was injected: there were fewer requests.
fn sim_quiet(machine: &Machine) -> bool {
    machine.faults.injected(sim::device::fault::FaultKind::Fail) == 0
}
