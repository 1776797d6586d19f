//! Many threads, with a thread that makes checkpoints: a cut at any moment leaves for each thread what the batches up to one number
//! had made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rawfs::{Batch, Block, Extent, Lsn, QueueClass, Settings, Store, TreeId};

use super::driver::{formatted, settings};
use super::machine::Machine;
use super::model::fill;
use super::{Named, open, seeds};

const THREADS: u64 = 4;
const CUTS: usize = 12;

/// A device as a cut left it, and what had been synced before.
struct Cut {
    content: Vec<u8>,
    synced: u64,
}

/// What each batch had made: the thread, its round and the block.
type Made = Mutex<BTreeMap<Lsn, (u64, u64, Block)>>;

fn seed_of(thread: u64, round: u64) -> u64 {
    thread << 32 | round
}

/// Writes a block, puts its place under the thread's key and frees the block before.
fn rounds(store: &Store, thread: u64, count: u64, made: &Made, synced: &AtomicU64) {
    let mut before: Option<Extent> = None;
    let mut rng = fastrand::Rng::with_seed(thread);
    for round in 0..count {
        let extent = store.allocate(before.map(|before| before.start), 1).expect("free");
        let block = fill(seed_of(thread, round));
        store.disk().write_blocks(QueueClass::Data, &[(extent.start, &block)]).expect("written");
        let mut batch = Batch::new();
        batch.use_blocks(extent, &[crc32c::crc32c(&block)]);
        before.replace(extent).into_iter().for_each(|before| batch.free_blocks(before));
        batch.put(TreeId::Names, &thread.to_le_bytes(), &[round.to_le_bytes(), extent.start.0.to_le_bytes()].concat());
        (0..4).for_each(|_| batch.put(TreeId::Files, &rng.u16(..300).to_le_bytes(), &[rng.u8(..); 200]));
        let lsn = store.apply(batch).expect("applied");
        made.lock().insert(lsn, (thread, round, extent.start));
        if rng.u8(..3) == 0 {
            store.sync(lsn).expect("synced");
            synced.fetch_max(lsn.0, Ordering::SeqCst);
        }
    }
}

fn check(cut: Cut, made: &BTreeMap<Lsn, (u64, u64, Block)>) {
    let machine = Machine::new(cut.content);
    let (store, recovery) = open(&machine).expect("opens after a cut");
    assert!(recovery.lsn.0 >= cut.synced, "{} of {} that were synced", recovery.lsn.0, cut.synced);
    let mut wanted = BTreeMap::new();
    made.range(..=recovery.lsn).for_each(|(_, (thread, round, block))| {
        wanted.insert(*thread, (*round, *block));
    });
    let mut used = Vec::new();
    store.each_used(|extent| used.extend(extent.start.0..extent.start.0 + u64::from(extent.blocks)));
    let mut blocks: Vec<u64> = wanted.values().map(|(_, block)| block.0).collect();
    blocks.sort_unstable();
    assert_eq!(used, blocks);
    let mut value = Vec::new();
    for thread in 0..THREADS {
        let there = store.get(TreeId::Names, &thread.to_le_bytes(), &mut value).expect("read");
        assert_eq!(there, wanted.contains_key(&thread));
        let Some((round, block)) = wanted.get(&thread) else { continue };
        assert_eq!(value, [round.to_le_bytes(), block.0.to_le_bytes()].concat());
        let mut bytes = fill(0);
        store.disk().read_blocks(QueueClass::Data, *block, &mut bytes).expect("read");
        assert!(bytes == fill(seed_of(thread, *round)), "thread {thread}, round {round}: another block");
    }
    let checked = store.check().expect("checked");
    assert!(checked.leaked.is_empty() && checked.wrong.is_empty(), "{checked:?}");
}

#[test]
fn threads_find_what_all_of_them_had_done_up_to_one_batch() {
    for seed in seeds(3, 300) {
        let _named = Named("threads", seed);
        let machine = Machine::new(formatted());
        let (store, _) = Store::open(machine.disk(), &Settings { background: true, ..settings() }).expect("opened");
        let (cuts, synced) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
        let (of_moment, promised, medium) = (Arc::clone(&cuts), Arc::clone(&synced), machine.medium.clone());
        let mut rng = fastrand::Rng::with_seed(seed);
        machine.set_moment(Some(Box::new(move || {
            if rng.u8(..40) == 0 && of_moment.lock().len() < CUTS {
                let synced = promised.load(Ordering::SeqCst);
                of_moment.lock().push(Cut { content: medium.power_cut(rng.u64(..)), synced });
            }
        })));
        let made = Made::default();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, made, synced) = (&store, &made, &synced);
                scope.spawn(move || rounds(store, thread, 60, made, synced));
            }
        });
        drop(store);
        machine.set_moment(None);
        let (cuts, made) = (std::mem::take(&mut *cuts.lock()), made.into_inner());
        assert!(!cuts.is_empty());
        cuts.into_iter().for_each(|cut| check(cut, &made));
    }
}
