//! The block cache on the NVMe driver, over a controller with a volatile write cache: flushed data survives a power cut at any moment,
//! unflushed data is old or new.

use std::sync::Arc;

use block::{Params, QueueOptions, Tracked};
use datapath::{DeviceCache, DeviceCacheOptions, DeviceFile};
use nvme::{Controller, Options};
use sim::device::clock::VirtualClock;
use sim::nvme::{CommandTiming, ControllerConfig, NamespaceConfig, SoftController};

const SIZE: usize = 96 << 10;
const SECTOR: usize = 512;

/// A random sequence of writes and flushes over a cache of few frames, with a power cut after each. Returns the number of cuts.
// long: one random life of a cache on a device, from its opening to the check of every byte.
fn life(seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let clock = VirtualClock::default();
    let shape = ControllerConfig {
        namespaces: vec![NamespaceConfig::plain(SECTOR as u32, (SIZE / SECTOR) as u64)],
        tracks_durability: true,
        transfer_pages_shift: random.u8(1..5),
        doorbell_buffer: random.bool(),
        volatile_cache: random.u8(..4) > 0,
        timing: CommandTiming::Between(1_000, 200_000),
        ..ControllerConfig::default()
    };
    let device = SoftController::new(shape, &clock, seed);
    let options = Options { records: 0, ..Options::default() };
    let controller = Controller::open_with(device.function(), options, Arc::new(clock.clone())).expect("ready");
    let namespace = controller.namespace(1).expect("one");
    let queue = || {
        let queue = namespace.open_queue(&QueueOptions { depth: 4, ..QueueOptions::default() }).expect("a queue");
        Tracked::with_clock(queue, Params::default().timeouts(), clock.clone())
    };
    let file = DeviceFile::new(queue(), queue(), &Params::default()).expect("fits");
    let writes_through = random.bool();
    let cache = DeviceCache::open(Arc::new(file), &DeviceCacheOptions::new(random.u32(16..32))).expect("opened");
    let handle = cache.handle().expect("a handle");
    // Legal values of each byte: the flushed one, then every value since.
    let mut may: Vec<Vec<u8>> = vec![vec![0]; SIZE];
    let mut cuts = 0;
    for value in 1..random.u8(2..=60) {
        let at = random.usize(..SIZE);
        let bytes = random.usize(1..=20_000.min(SIZE - at));
        match random.u32(..8) {
            0..5 => {
                may[at..at + bytes].iter_mut().for_each(|values| values.push(value));
                cache.write(&handle, at as u64, &vec![value; bytes]).expect("nothing fails");
                if writes_through {
                    cache.write_back(at as u64..(at + bytes) as u64).expect("nothing fails");
                }
            }
            5 => {
                let mut found = vec![0; bytes];
                cache.read(&handle, at as u64, &mut found).expect("nothing fails");
                assert!(found.iter().zip(&may[at..]).all(|(found, values)| values.last() == Some(found)));
            }
            6 => cache.write_back(at as u64..(at + bytes) as u64).expect("nothing fails"),
            _ => {
                cache.flush(&handle).expect("nothing fails");
                may.iter_mut().for_each(|values| _ = values.drain(..values.len() - 1));
            }
        }
        let medium = device.medium(1).expect("durability is tracked");
        for _ in 0..3 {
            cuts += 1;
            let after = medium.power_cut(random.u64(..));
            let wrong = after.iter().zip(&may).position(|(found, values)| !values.contains(found));
            assert_eq!(wrong.map(|at| (at, after[at], &may[at])), None, "byte, value, and what it may be");
        }
    }
    drop(handle);
    drop(cache);
    assert_eq!(device.violations(), Vec::<String>::new());
    cuts
}

#[test]
fn what_was_flushed_through_the_block_cache_is_there_after_a_cut() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    let seeds = match std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..if full { 2_000 } else { 12 },
    };
    let mut cuts = 0;
    for seed in seeds {
        println!("seed {seed}");
        cuts += life(seed);
    }
    println!("{cuts} power cuts of the block cache");
}
