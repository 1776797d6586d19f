//! Random parameters of an episode.

use std::time::Duration;

use block::Error;
use block::driver::MemoryDevice;
use block::tracked::Timeouts;
use sim::device::fault::{Fault, FaultRule, FaultTrigger, Faults, HangKind, TornPart};
use sim::device::model::fixed::Reservations;
use sim::device::model::presets::{NYTRO_5000_400GB, ST500DM002};
use sim::device::model::{DeviceModel, FixedLatency, HddModel, SsdModel};

use crate::{BAD, EPISODE};

pub fn model(random: &mut fastrand::Rng, device: &MemoryDevice, depth: u32) -> Box<dyn DeviceModel> {
    use block::Device;
    let fixed = Duration::from_micros(random.u64(1..200));
    match random.u8(..8) {
        0 => Box::new(HddModel::new(ST500DM002.params, device.geometry(), depth)),
        1..4 => Box::new(Reservations::new(SsdModel::new(NYTRO_5000_400GB.params, device.geometry()), depth)),
        _ => Box::new(Reservations::new(FixedLatency(fixed), depth)),
    }
}

pub fn timeouts(random: &mut fastrand::Rng) -> Timeouts {
    let us = |random: &mut fastrand::Rng, most| Duration::from_micros(random.u64(1..most));
    Timeouts {
        // Without a timeout a hang would last forever.
        timeout: Some(us(random, 5000)),
        cancel_grace: us(random, 1000),
        reset_after: random.bool().then(|| us(random, 20_000)),
    }
}

pub fn add_rules(faults: &Faults, random: &mut fastrand::Rng) {
    faults.add(FaultRule::new(FaultTrigger::Always, Fault::Fail(Error::Media)).within(BAD));
    let slow = Duration::from_micros(random.u64(1..20_000));
    let others = random.u32(1..20);
    let possible = [
        (0.02, Fault::Fail(Error::Media)),
        (0.01, Fault::Hang(HangKind::UntilCancel)),
        (0.01, Fault::Hang(HangKind::UntilReset)),
        (0.02, Fault::Slow(slow)),
        (0.05, Fault::Late(others)),
        (0.02, Fault::Torn(TornPart::AnyPrefix, Err(Error::Media))),
        (0.02, Fault::Torn(TornPart::Any, Err(Error::Media))),
        (0.05, Fault::Twice),
        (0.05, Fault::Stray),
    ];
    for (most, fault) in possible {
        if random.bool() {
            faults.add(FaultRule::new(FaultTrigger::Chance(random.f64() * most), fault));
        }
    }
    let end = random.u64(1000..2 * EPISODE);
    match random.u8(..16) {
        0 => _ = faults.add(FaultRule::new(FaultTrigger::Nth(end), Fault::Gone)),
        1 => _ = faults.add(FaultRule::new(FaultTrigger::Nth(end), Fault::Hang(HangKind::ForEver))),
        2 => faults.fail_resets(1),
        _ => {}
    }
}
