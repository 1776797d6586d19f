//! The cost of an uncontended owned lock and of a notification without sleepers, in nanoseconds.
//!
//! `cargo run --release -p shm --example lock_cost`

use std::sync::Arc;
use std::time::Instant;

use shm::{Notifier, OwnedLock, PageSize, ProcessSlots, Region};

const TIMES: u32 = 20_000_000;

fn main() {
    let region = Arc::new(Region::private(4096, PageSize::Small).expect("memory"));
    let processes = ProcessSlots::in_process(region.clone(), 0);
    let me = processes.attach().expect("a process slot");
    let begin = Instant::now();
    for _ in 0..TIMES {
        let held = OwnedLock::new(&region, 2048, &processes, me).lock();
        assert!(!held.was_abandoned());
    }
    println!("lock and unlock: {:.1}", begin.elapsed().as_nanos() as f64 / f64::from(TIMES));
    let notifier = Notifier::new(&region, 2052);
    let begin = Instant::now();
    (0..TIMES).for_each(|_| notifier.notify());
    println!("ring: {:.1}", begin.elapsed().as_nanos() as f64 / f64::from(TIMES));
}
