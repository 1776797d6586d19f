//! Figures of the store alone, on a device in memory: a million keys, opened again after a clean end and after a crash, a directory
//! of all of them renamed. `cargo run --release -p rawfs --example million [KEYS]`

use std::time::{Duration, Instant};

use block::driver::MemoryDevice;
use rawfs::{Batch, Disk, DiskSettings, FormatOptions, Settings, Store, TreeId};

const BYTES: u64 = 4 << 30;
const BATCH: u64 = 4;

fn took<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let value = run();
    println!("{what:<40} {:>10.3} ms", begin.elapsed().as_secs_f64() * 1e3);
    value
}

fn each(count: u64, time: Duration) -> String {
    format!("{:.0} ns each, {:.0} /s", time.as_nanos() as f64 / count as f64, count as f64 / time.as_secs_f64())
}

fn key(directory: &str, number: u64) -> Vec<u8> {
    format!("{directory}\0file {number:07}").into_bytes()
}

fn main() {
    let keys: u64 = std::env::args().nth(1).and_then(|keys| keys.parse().ok()).unwrap_or(1_000_000);
    let device = MemoryDevice::new(512, BYTES).expect("memory");
    let disk = || Disk::open(&device, &DiskSettings::default()).expect("queues");
    took("format", || Store::format(&disk(), &FormatOptions::default()).expect("formatted"));
    let open = || Store::open(disk(), &Settings::default()).expect("opened");
    let (store, _) = open();
    let mut rng = fastrand::Rng::with_seed(1);
    let begin = Instant::now();
    for first in (0..keys).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        (first..keys.min(first + BATCH)).for_each(|number| batch.put(TreeId::Names, &key("a", number), &[7; 100]));
        store.apply(batch).expect("applied");
    }
    println!("put, {BATCH} a batch: {}", each(keys, begin.elapsed()));
    let begin = Instant::now();
    for _ in 0..keys {
        let number = rng.u64(..keys);
        assert!(store.get_with(TreeId::Names, &key("a", number), |_| ()).expect("read").is_some());
    }
    println!("get at random: {}", each(keys, begin.elapsed()));
    let begin = Instant::now();
    let syncs = keys / 20;
    for _ in 0..syncs {
        let mut batch = Batch::new();
        batch.patch(TreeId::Names, &key("a", rng.u64(..keys)), 8, &[1; 16]);
        let lsn = store.apply(batch).expect("applied");
        store.sync(lsn).expect("synced");
    }
    println!("patch at random and sync: {}", each(syncs, begin.elapsed()));
    println!("{:?}", store.usage());
    println!("{:?}", store.disk().counts());
    took("close", || store.close().expect("closed"));
    let (store, recovery) = took("open after a clean end", open);
    println!("{recovery:?}");
    let mut batch = Batch::new();
    batch.move_range(TreeId::Names, b"a\0", b"b\0");
    let lsn = took("rename of all", || store.apply(batch).expect("applied"));
    took("sync of it", || store.sync(lsn).expect("synced"));
    took("checkpoint of it", || store.checkpoint().expect("written"));
    for number in 0..keys.min(200_000) {
        let mut batch = Batch::new();
        batch.patch(TreeId::Names, &key("b", number * 7919 % keys), 8, &[2; 16]);
        store.apply(batch).expect("applied");
    }
    store.sync(store.applied()).expect("synced");
    drop(store);
    let (store, recovery) = took("open after a crash", open);
    println!("{recovery:?}");
    let cold = store.usage().node_reads;
    assert!(store.get_with(TreeId::Names, &key("b", keys / 3), |_| ()).expect("read").is_some());
    println!("a cold lookup read {} nodes", store.usage().node_reads - cold);
    let checked = took("check", || store.check().expect("checked"));
    println!("{:?}, {} leaked", checked.trees[0], checked.leaked.len());
}
