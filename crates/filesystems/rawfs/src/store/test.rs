use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use block::driver::MemoryDevice;

use super::*;
use crate::disk::DiskSettings;

fn device(bytes: u64) -> MemoryDevice {
    MemoryDevice::new(512, bytes).expect("memory")
}

fn disk(device: &MemoryDevice) -> Disk {
    Disk::open(device, &DiskSettings { buffer_bytes: 1 << 20, ..DiskSettings::default() }).expect("queues")
}

fn settings() -> Settings {
    Settings { background: false, ..Settings::default() }
}

fn open(device: &MemoryDevice, settings: &Settings) -> (Store, Recovery) {
    Store::open(disk(device), settings).expect("opened")
}

fn made(bytes: u64, options: &FormatOptions, settings: &Settings) -> (MemoryDevice, Store) {
    let device = device(bytes);
    Store::format(&disk(&device), options).expect("formatted");
    let (store, recovery) = open(&device, settings);
    assert!(recovery.clean);
    (device, store)
}

fn put(store: &Store, key: &[u8], value: &[u8]) -> Result<Lsn, Error> {
    let mut batch = Batch::new();
    batch.put(TreeId::Names, key, value);
    store.apply(batch)
}

fn all(store: &Store, tree: TreeId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut take = |key: &[u8], value: &[u8]| {
        all.insert(key.to_vec(), value.to_vec());
        ScanStep::Go
    };
    store.scan(tree, &[], &[0xff; 9], &mut take).expect("scanned");
    all
}

#[test]
fn many_keys_in_little_memory_are_a_map_and_are_there_again() {
    let mut rng = crate::testing::rng();
    let little = Settings { node_cache_bytes: 0, dirty_bytes: 256 << 10, ..settings() };
    let (device, mut store) = made(32 << 20, &FormatOptions { log_bytes: Some(256 << 10), ..FormatOptions::default() }, &little);
    let mut oracle = BTreeMap::new();
    for round in 0..6 {
        for _ in 0..1500 {
            let key = format!("{}/{:05}", ["a", "b", "a long name"][rng.usize(..3)], rng.u32(..20_000)).into_bytes();
            let mut batch = Batch::new();
            if rng.u8(..4) == 0 {
                batch.delete(TreeId::Names, &key);
                oracle.remove(&key);
            } else {
                let value = vec![rng.u8(..); rng.usize(..300)];
                batch.put(TreeId::Names, &key, &value);
                oracle.insert(key, value);
            }
            store.apply(batch).expect("applied");
        }
        let usage = store.usage();
        assert!(usage.nodes_dirty < 60 && usage.memory_bytes < 2 << 20, "{usage:?}");
        if round % 2 == 0 {
            store.close().expect("closed");
        } else {
            // As a process that ends; the device keeps what was written.
            store.sync(store.applied()).expect("synced");
            drop(store);
        }
        let recovery;
        (store, recovery) = open(&device, &little);
        assert_eq!(recovery.clean, round % 2 == 0);
        assert!(all(&store, TreeId::Names) == oracle);
        let checked = store.check().expect("checked");
        assert!(checked.leaked.is_empty() && checked.wrong.is_empty());
    }
}

#[test]
fn a_lookup_in_a_cold_tree_of_three_levels_reads_no_more_than_its_height() {
    let (device, store) = made(64 << 20, &FormatOptions { metadata_bytes: Some(32 << 20), ..FormatOptions::default() }, &settings());
    for first in 0..200_u32 {
        let mut batch = Batch::new();
        for second in 0..100_u32 {
            batch.put(TreeId::Names, format!("directory {first}/file {second}").as_bytes(), &[7; 120]);
        }
        store.apply(batch).expect("applied");
    }
    store.close().expect("closed");
    let (store, _) = open(&device, &settings());
    let mut value = Vec::new();
    assert!(store.get(TreeId::Names, b"directory 1/file 1", &mut value).expect("read") && value == [7; 120]);
    let first = store.usage().node_reads;
    assert!(first <= 3, "{first}");
    for number in 2..50 {
        assert!(store.get(TreeId::Names, format!("directory {number}/file 9").as_bytes(), &mut value).expect("read"));
    }
    assert!(store.usage().node_reads - first <= 49 + 4, "the nodes above stay");
}

#[test]
fn what_does_not_fit_is_refused_whole() {
    let (_device, store) = made(8 << 20, &FormatOptions::default(), &settings());
    put(&store, b"a", b"12345").expect("applied");
    let extent = store.allocate(None, 4).expect("free");
    let refused = |change: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        batch.put(TreeId::Names, b"b", b"");
        change(&mut batch);
        let error = store.apply(batch).expect_err("wrong");
        assert!(all(&store, TreeId::Names).len() == 1 && store.applied() == Lsn(1), "{error}");
        error
    };
    assert_eq!(refused(&|batch| batch.patch(TreeId::Names, b"a", 3, b"xyz")), Error::Missing);
    assert_eq!(refused(&|batch| batch.patch(TreeId::Names, b"c", 0, b"")), Error::Missing);
    assert_eq!(refused(&|batch| batch.move_range(TreeId::Names, b"a", b"b")), Error::Occupied);
    assert_eq!(refused(&|batch| batch.move_range(TreeId::Names, b"a", b"ab")), Error::Occupied);
    assert!(matches!(refused(&|batch| batch.put(TreeId::Names, &[0; 3000], b"")), Error::TooLarge(_)));
    assert!(matches!(refused(&|batch| batch.put(TreeId::Names, b"d", &[0; 4000])), Error::TooLarge(_)));
    assert!(matches!(refused(&|batch| (0..1000).for_each(|_| batch.put(TreeId::Names, b"d", &[0; 3000]))), Error::TooLarge(_)));
    let lengthened = |batch: &mut Batch| {
        batch.put(TreeId::Names, &[b'k'; 2000], b"");
        batch.move_range(TreeId::Names, b"k", &[b'l'; 50]);
    };
    assert!(matches!(refused(&lengthened), Error::TooLarge(_)));
    let sums = [0; 4];
    assert_eq!(refused(&|batch| batch.free_blocks(extent)), Error::Blocks(extent.start));
    assert_eq!(refused(&|batch| batch.use_blocks(Extent::new(Block(0), 4), &sums)), Error::Blocks(Block(0)));
    let twice = |batch: &mut Batch| (0..2).for_each(|_| batch.use_blocks(extent, &sums));
    assert_eq!(refused(&twice), Error::Blocks(extent.start));
    assert_eq!(refused(&|batch| batch.use_blocks(Extent::new(extent.start, 5), &[0; 5])), Error::Blocks(extent.start));
    let free = store.usage().blocks_free;
    store.abandon(extent);
    assert_eq!(store.usage().blocks_free, free + 4);
}

#[test]
fn a_full_device_is_reported_and_what_is_freed_can_be_had_again() {
    let (_device, store) = made(8 << 20, &FormatOptions::default(), &settings());
    let mut held = Vec::new();
    let full = loop {
        match store.allocate(None, 64) {
            Ok(extent) => {
                let mut batch = Batch::new();
                batch.use_blocks(extent, &[]);
                store.apply(batch).expect("applied");
                held.push(extent);
            }
            Err(error) => break error,
        }
    };
    assert_eq!((full, full.errno(), store.usage().blocks_free), (Error::NoSpace, block::Error::NoSpace.errno(), 0));
    for round in 0..3 {
        let extent = held.swap_remove(round);
        let mut batch = Batch::new();
        batch.free_blocks(extent);
        store.apply(batch).expect("applied");
        assert_eq!(store.usage().blocks_free, u64::from(extent.blocks));
        let again = store.allocate(None, extent.blocks).expect("freed, and durably so");
        assert_eq!(again, extent);
        let mut batch = Batch::new();
        batch.use_blocks(again, &[]);
        store.apply(batch).expect("applied");
        held.push(again);
    }
}

#[test]
fn a_full_metadata_region_refuses_what_adds_and_takes_what_removes() {
    let options = FormatOptions { metadata_bytes: Some(1 << 20), ..FormatOptions::default() };
    let (device, store) = made(8 << 20, &options, &settings());
    let key = |number: u32| format!("a file {number:06}").into_bytes();
    let mut count = 0;
    let full = loop {
        match put(&store, &key(count), &[1; 400]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, Error::NoNodes);
    let filled = u64::from(count) * 430 * 100 / (1 << 20);
    assert!(filled > 40, "{filled} % of the region were used");
    // In place, and away, at any time.
    put(&store, &key(3), &[2; 400]).expect("no more than before");
    for number in 0..count {
        let mut batch = Batch::new();
        batch.delete(TreeId::Names, &key(number));
        store.apply(batch).unwrap_or_else(|error| panic!("{number} of {count}: {error}"));
    }
    put(&store, b"again", &[1; 400]).expect("there is room");
    store.close().expect("closed");
    let (store, _) = open(&device, &settings());
    assert_eq!(all(&store, TreeId::Names).len(), 1);
}

/// A reader stops in the middle until so many checkpoints were made that every node it has not seen yet would be used anew, or
/// until there is no node for the next one because it looks at them still.
#[test]
fn a_reader_sees_one_state_while_writers_and_checkpoints_go_on() {
    const KEYS: u8 = 200;
    let options = FormatOptions { metadata_bytes: Some(4 << 20), log_bytes: Some(4 << 20), ..FormatOptions::default() };
    let little = Settings { node_cache_bytes: 0, ..settings() };
    let (_device, store) = made(32 << 20, &options, &little);
    let write = |round: u8| {
        let mut batch = Batch::new();
        (0..KEYS).for_each(|key| batch.put(TreeId::Names, &[key], &[round; 3000]));
        store.apply(batch).and_then(|_| store.checkpoint())
    };
    write(0).expect("written");
    for scan in 1..6 {
        let (mut seen, mut full) = (Vec::new(), false);
        let mut look = |_: &[u8], value: &[u8]| {
            seen.push(value[0]);
            if seen.len() == 100 {
                full = (0..20).any(|_| write(scan) == Err(Error::NoNodes));
            }
            ScanStep::Go
        };
        store.scan(TreeId::Names, &[], &[0xff], &mut look).expect("scanned");
        assert!(full, "20 versions do not fit beside one that is looked at");
        assert!(seen.len() == usize::from(KEYS) && seen.iter().all(|value| *value == seen[0]), "one state: {seen:?}");
        write(scan).expect("the reader is gone, its nodes are free");
    }
    let checked = store.check().expect("checked");
    assert!(checked.leaked.is_empty() && checked.wrong.is_empty());
}

#[test]
fn many_who_sync_share_writes_and_flushes() {
    let device = Gated { memory: device(8 << 20), gate: Arc::default() };
    let disk = Disk::open(&device, &DiskSettings::default()).expect("queues");
    Store::format(&disk, &FormatOptions::default()).expect("formatted");
    let (store, _) = Store::open(disk, &settings()).expect("opened");
    let before = store.disk().counts();
    device.gate.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for thread in 0..10_u8 {
            let (store, gate) = (&store, &device.gate);
            scope.spawn(move || {
                let lsn = put(store, &[thread], b"value").expect("applied");
                // The first flush ends when all have something to be flushed.
                if lsn == Lsn(10) {
                    gate.store(false, Ordering::SeqCst);
                }
                store.sync(lsn).expect("synced");
                assert!(store.synced() >= lsn);
            });
        }
    });
    let after = store.disk().counts();
    assert!(after.flushes - before.flushes <= 3 && after.writes - before.writes <= 3, "{before:?} {after:?}");
}

/// Flushes wait while the gate is closed.
struct Gated {
    memory: MemoryDevice,
    gate: Arc<AtomicBool>,
}

impl block::Device for Gated {
    fn geometry(&self) -> &block::Geometry {
        self.memory.geometry()
    }

    fn queue(&self, options: &block::QueueOptions) -> Result<Box<dyn block::Queue>, block::OpenError> {
        Ok(Box::new(GatedQueue { queue: self.memory.queue(options)?, gate: Arc::clone(&self.gate) }))
    }
}

struct GatedQueue {
    queue: Box<dyn block::Queue>,
    gate: Arc<AtomicBool>,
}

impl block::QueueWrapper for GatedQueue {
    type Inner = dyn block::Queue;
    const CHANGES_POLLING: bool = false;

    fn inner(&self) -> &Self::Inner {
        &*self.queue
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        &mut *self.queue
    }

    fn submit(&mut self, request: &block::Request, data: &[block::Span]) -> block::Submit {
        while (request.op == block::Op::Flush || request.fua) && self.gate.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.inner_mut().submit(request, data)
    }
}
