//! A policy against a slow, obvious model of it: the same calls to both, the same answers wanted.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{FileId, Policy, Record};

/// Files are 0..FILES; enough for the tenth of S3-FIFO to be several.
const FILES: u64 = 40;

/// Describes one call of a policy.
#[derive(Clone, Debug)]
pub enum Op {
    /// `insert`, of a known or a new file.
    Insert(Record),
    /// `touch`, `times` in a row.
    Touch { file: u64, later_s: u32, times: u32 },
    /// `resize`.
    Resize { file: u64, size: u64 },
    /// `remove`.
    Remove(u64),
    /// `victim`; a file is usable when its bit is set. `leave`: it is removed.
    Victim { limit: usize, usable: u64, leave: bool },
}

impl Op {
    /// A file that was just made.
    pub fn insert(file: u64) -> Op {
        Op::Insert(Record { file: FileId(file), size: 1, last_open_s: 0, opens: 1 })
    }

    /// One open, a second later.
    pub fn touch(file: u64) -> Op {
        Op::Touch { file, later_s: 1, times: 1 }
    }
}

/// Sequences of calls that fill, open and empty a policy.
pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let file = || 0..FILES;
    let opens = prop_oneof![6 => 0..3u16, 1 => 250..260u16, 1 => Just(u16::MAX)];
    let record = (file(), 0..100u64, 0..100u32, opens).prop_map(|(file, size, last_open_s, opens)| Record {
        file: FileId(file),
        size,
        last_open_s,
        opens,
    });
    // The last is enough for LFU to halve; seldom, for it takes long.
    let times = prop_oneof![200 => Just(1u32), 20 => 2..5u32, 5 => 200..300u32, 1 => Just(11_000u32)];
    let usable = prop_oneof![Just(u64::MAX), any::<u64>(), Just(0)];
    let limit = prop_oneof![0..5usize, Just(4096), Just(usize::MAX)];
    let op = prop_oneof![
        8 => record.prop_map(Op::Insert),
        8 => (file(), 0..50u32, times).prop_map(|(file, later_s, times)| Op::Touch { file, later_s, times }),
        1 => (file(), any::<u64>()).prop_map(|(file, size)| Op::Resize { file, size }),
        2 => file().prop_map(Op::Remove),
        4 => (limit, usable, any::<bool>()).prop_map(|(limit, usable, leave)| Op::Victim { limit, usable, leave }),
    ];
    proptest::collection::vec(op, 0..200)
}

/// The model. It gets valid calls only: `insert` for new files, the others for known files.
pub trait Oracle {
    fn insert(&mut self, record: Record);
    fn touch(&mut self, file: FileId, now_s: u32);
    fn records(&mut self) -> Vec<&mut Record>;
    fn remove(&mut self, file: FileId);
    /// Returns all files in the order of their eviction if nothing more were opened.
    fn order(&self) -> Vec<Record>;
    /// The answer, and the files asked about.
    fn victim(&mut self, limit: usize, usable: u64) -> (Option<FileId>, Vec<FileId>) {
        let order: Vec<FileId> = self.order().iter().map(|record| record.file).take(limit).collect();
        match order.iter().position(|file| is_usable(usable, *file)) {
            Some(at) => (Some(order[at]), order[..=at].to_vec()),
            None => (None, order),
        }
    }
    /// Whether the records say all there is to know of the order.
    fn determined_by_records(&self) -> bool {
        true
    }
}

/// Returns whether the file may be evicted according to the bit mask `usable`.
pub fn is_usable(usable: u64, file: FileId) -> bool {
    usable >> file.0 & 1 == 1
}

/// Runs the calls on both and compares all there is to see; then takes one victim after the other.
pub fn check<P: Policy>(ops: &[Op], empty: fn() -> P, mut model: impl Oracle) {
    let mut policy = run(ops, empty, &mut model);
    ranks(&policy, &model);
    let order: Vec<FileId> = model.order().iter().map(|record| record.file).collect();
    let mut restored = empty();
    policy.export(&mut |record| restored.insert(record));
    assert_eq!(drain(&mut policy), order);
    match model.determined_by_records() {
        true => assert_eq!(drain(&mut restored), order, "order after a restart"),
        false => assert_eq!(drain(&mut restored).len(), order.len()),
    }
}

/// Runs the calls on the policy and the model, compares them after each call, and returns the policy.
pub fn run<P: Policy>(ops: &[Op], empty: fn() -> P, model: &mut impl Oracle) -> P {
    let mut policy = empty();
    let mut now_s = 100;
    let mut known: BTreeMap<u64, Record> = BTreeMap::new();
    for op in ops {
        match *op {
            Op::Insert(record) => {
                policy.insert(record);
                match known.contains_key(&record.file.0) {
                    true => resize(model, record.file, record.size),
                    false => model.insert(record),
                }
            }
            Op::Touch { file, later_s, times } => {
                now_s += later_s;
                for _ in 0..times {
                    policy.touch(FileId(file), now_s);
                    if known.contains_key(&file) {
                        model.touch(FileId(file), now_s);
                    }
                }
            }
            Op::Resize { file, size } => {
                policy.resize(FileId(file), size);
                resize(model, FileId(file), size);
            }
            Op::Remove(file) => {
                policy.remove(FileId(file));
                model.remove(FileId(file));
            }
            Op::Victim { limit, usable, leave } => {
                let mut candidates = Vec::new();
                let victim = policy.victim(limit, &mut |file| {
                    candidates.push(file);
                    is_usable(usable, file)
                });
                assert_eq!((victim, candidates), model.victim(limit, usable), "victim");
                if let Some(victim) = victim {
                    assert!(known.contains_key(&victim.0) && is_usable(usable, victim));
                    if leave {
                        policy.remove(victim);
                        model.remove(victim);
                    }
                }
            }
        }
        known = model.order().iter().map(|record| (record.file.0, *record)).collect();
        compare(&policy, model, &known);
    }
    policy
}

fn resize(model: &mut impl Oracle, file: FileId, size: u64) {
    for record in model.records() {
        if record.file == file {
            record.size = size;
        }
    }
}

fn exported(policy: &impl Policy) -> Vec<Record> {
    let mut records = Vec::new();
    policy.export(&mut |record| records.push(record));
    records
}

fn compare(policy: &impl Policy, model: &impl Oracle, known: &BTreeMap<u64, Record>) {
    assert_eq!(policy.len(), known.len());
    assert_eq!(policy.is_empty(), known.is_empty());
    for file in 0..FILES {
        assert_eq!(policy.record(FileId(file)).as_ref(), known.get(&file));
    }
    assert_eq!(exported(policy), model.order(), "export");
}

fn ranks(policy: &impl Policy, model: &impl Oracle) {
    let next = model.order().first().map(|record| policy.rank(record.file).expect("the next one is known"));
    for file in (0..FILES).map(FileId) {
        let rank = policy.rank(file);
        assert_eq!(rank.is_some(), policy.record(file).is_some());
        if let Some(rank) = rank {
            assert!((0.0..=1.0).contains(&rank), "{rank}");
            assert!(next.is_some_and(|next| next <= rank), "{rank} is below the next one's {next:?}");
        }
    }
}

fn drain(policy: &mut impl Policy) -> Vec<FileId> {
    let mut left = Vec::new();
    while let Some(file) = policy.victim(1, &mut |_| true) {
        policy.remove(file);
        left.push(file);
    }
    assert!(policy.is_empty());
    left
}
