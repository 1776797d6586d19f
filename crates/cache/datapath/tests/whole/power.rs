//! What was flushed survives a loss of power at any moment, and what was not is old or new, never anything else.

use datapath::{Settings, WriteMode};
use fastrand::Rng;

use crate::device::Device;
use crate::model::Pair;

const SIZE: usize = 96 << 10;

/// A random life of writes and flushes over a cache of few frames, cut short.
fn life(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let device = Device::new(512, SIZE as u64, seed);
    let mode = if random.bool() { WriteMode::Back } else { WriteMode::Through };
    let mut pair = Pair::new(device, Settings { mode, ..Settings::new(random.u32(4..32)) }, 1, 4);
    // What each byte may be: as it was flushed, then every value since. Writes are of one value, so that this stays small.
    let mut may: Vec<Vec<u8>> = vec![vec![0]; SIZE];
    for value in 1..random.u8(2..=80) {
        let at = random.usize(..SIZE);
        let bytes = random.usize(1..=20_000.min(SIZE - at));
        match random.u32(..8) {
            0..5 => {
                pair.cache.write(&mut pair.handle, at as u64, &vec![value; bytes]).expect("nothing fails");
                may[at..at + bytes].iter_mut().for_each(|values| values.push(value));
            }
            5 => {
                let mut found = vec![0; bytes];
                pair.cache.read(&mut pair.handle, at as u64, &mut found).expect("nothing fails");
                assert!(found.iter().zip(&may[at..]).all(|(found, values)| values.last() == Some(found)));
            }
            6 => pair.cache.write_back(at as u64..(at + bytes) as u64).expect("nothing fails"),
            _ => {
                pair.cache.flush(&mut pair.handle).expect("nothing fails");
                may.iter_mut().for_each(|values| _ = values.drain(..values.len() - 1));
            }
        }
        let after = pair.device.after_power_cut(&mut random);
        let wrong = after.iter().zip(&may).position(|(found, values)| !values.contains(found));
        assert_eq!(wrong.map(|at| (at, after[at], &may[at])), None, "byte, value, and what it may be");
    }
}

#[test]
fn what_was_flushed_is_there() {
    for seed in 0..if std::env::var_os("FULL").is_some_and(|full| full == "1") { 600 } else { 8 } {
        println!("seed {seed}");
        life(seed);
    }
}
