//! The tree against a map of the standard library, with checkpoints, snapshots and moved ranges.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::*;

const STAMP: NodeStamp = NodeStamp { tag: 7, generation: 1 << 40, tree: 0 };

/// A device of nodes, and the cache (none: every load parses).
#[derive(Default)]
struct Device {
    pages: RefCell<HashMap<u32, Box<[u8]>>>,
    /// Loads until one fails.
    writes_left: RefCell<Option<u32>>,
}

impl Nodes for Device {
    type Error = DamagedNodeError;

    fn load(&self, at: NodeAt) -> Result<Arc<Node>, DamagedNodeError> {
        if let Some(left) = &mut *self.writes_left.borrow_mut() {
            *left = left.checked_sub(1).ok_or(DamagedNodeError("the test's device fails"))?;
        }
        let page = self.pages.borrow().get(&at.slot).cloned().ok_or(DamagedNodeError("nothing was written there"))?;
        Node::parse(page, at, STAMP).map(Arc::new)
    }
}

/// A tree, the map it should be, and the slots that are not free.
struct Pair {
    device: Device,
    tree: Tree,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    freed: Vec<u32>,
    free: BTreeSet<u32>,
    next: u32,
    /// Of each range, how many.
    moved: Vec<usize>,
}

impl Pair {
    fn new() -> Pair {
        let (device, tree) = (Device::default(), Tree::default());
        Pair { device, tree, map: BTreeMap::new(), freed: Vec::new(), free: BTreeSet::new(), next: 0, moved: Vec::new() }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        let was_there = self.tree.insert(&self.device, &mut self.freed, key, value).expect("a sound device");
        assert_eq!(was_there, self.map.insert(key.to_vec(), value.to_vec()).is_some());
    }

    fn remove(&mut self, key: &[u8]) {
        let was_there = self.tree.remove(&self.device, &mut self.freed, key).expect("a sound device");
        assert_eq!(was_there, self.map.remove(key).is_some());
    }

    fn move_range(&mut self, from: &[u8], to: &[u8]) {
        let taken = self.map.range(to.to_vec()..).next().is_some_and(|(key, _)| key.starts_with(to));
        let moved = self.tree.move_range(&self.device, &mut self.freed, from, to);
        if from.starts_with(to) || to.starts_with(from) {
            return assert_eq!(moved, Err(MoveError::Within));
        }
        if taken {
            return assert_eq!(moved, Err(MoveError::Taken));
        }
        let keys: Vec<Vec<u8>> =
            self.map.range(from.to_vec()..).map(|(key, _)| key.clone()).take_while(|key| key.starts_with(from)).collect();
        assert_eq!(moved, Ok(!keys.is_empty()));
        self.moved.push(keys.len());
        for key in keys {
            let value = self.map.remove(&key).expect("it was there");
            self.map.insert([to, &key[from.len()..]].concat(), value);
        }
    }

    /// A checkpoint, and whether no node is lost or used twice.
    fn checkpoint(&mut self) {
        let mut slots = Vec::new();
        for _ in 0..self.tree.homeless() {
            slots.push(self.free.pop_first().unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            }));
        }
        let released = std::mem::take(&mut self.freed);
        let frozen = self.tree.freeze(slots);
        let write = |slot, page| {
            self.device.pages.borrow_mut().insert(slot, page);
            Ok::<(), DamagedNodeError>(())
        };
        let root = frozen.write_out(STAMP, write).expect("it can be written");
        drop(frozen);
        for slot in released {
            assert!(self.free.insert(slot), "slot {slot} was freed twice");
            assert!(self.device.pages.borrow_mut().remove(&slot).is_some(), "slot {slot} was free");
        }
        let again = Tree::at(root, self.tree.level()).expect("the level is right");
        let mut used = BTreeSet::new();
        again.check(&self.device, |slot| assert!(used.insert(slot), "slot {slot} is used twice")).expect("it is sound");
        let kept: BTreeSet<u32> = self.device.pages.borrow().keys().copied().collect();
        assert_eq!(used, kept, "nodes are lost");
        if fastrand::bool() { self.tree = again } else { self.tree.settle(|_, _| ()) }
    }

    fn check(&self) {
        let counts = self.tree.check(&self.device, |_| ()).expect("it is sound");
        assert_eq!(counts.entries, self.map.len() as u64);
        let mut all = Vec::new();
        let each = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            ScanStep::Go
        };
        self.tree.scan(&self.device, b"", None, each).expect("a sound device");
        assert!(all.iter().map(|(key, value)| (key, value)).eq(&self.map), "the contents differ");
    }

    fn probe(&self, random: &mut fastrand::Rng, key: &[u8]) {
        let floor = self.tree.floor(&self.device, key, |key, value| (key.to_vec(), value.to_vec())).expect("a sound device");
        assert_eq!(floor, self.map.range(..=key.to_vec()).next_back().map(|(key, value)| (key.clone(), value.clone())));
        let found = self.tree.get(&self.device, key, <[u8]>::to_vec).expect("a sound device");
        assert_eq!(found.as_ref(), self.map.get(key));
        let to = (random.bool()).then(|| some_key(random));
        let (mut seen, mut budget) = (Vec::new(), random.usize(1..50));
        let mut seeks = Vec::new();
        let each = |key: &[u8], _: &[u8]| {
            seen.push(key.to_vec());
            budget -= 1;
            if budget == 0 {
                ScanStep::Stop
            } else if random.u8(..8) == 0 {
                let next = [key, b"\x01"].concat();
                seeks.push(next.clone());
                ScanStep::Seek(next)
            } else {
                ScanStep::Go
            }
        };
        self.tree.scan(&self.device, key, to.as_deref(), each).expect("a sound device");
        let mut expected: Vec<Vec<u8>> = Vec::new();
        let mut from = key.to_vec();
        let mut seeks = seeks.into_iter().peekable();
        while expected.len() < seen.len() + 1 {
            let within = |key: &&Vec<u8>| to.as_ref().is_none_or(|to| *key < to);
            let Some(key) = self.map.range(from.clone()..).map(|(key, _)| key).next().filter(within) else { break };
            expected.push(key.clone());
            from = seeks.next_if(|seek| seek.starts_with(key) && seek.len() == key.len() + 1).unwrap_or([key, &b"\0"[..]].concat());
        }
        if budget == 0 {
            expected.truncate(seen.len());
        }
        assert_eq!(seen, expected);
    }
}

/// Bytes that some names have before their differences: with long separators a node has few children, and a small tree is high.
const LONG: usize = 450;

/// Paths over few names, so that much is shared.
fn some_key(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut key = Vec::new();
    for _ in 0..random.usize(0..4) {
        key.push(1);
        key.extend(name(random));
    }
    key.push(0);
    key.extend(name(random));
    key
}

fn name(random: &mut fastrand::Rng) -> Vec<u8> {
    let long = match random.u8(..16) {
        0 => random.usize(..200),
        1..8 => LONG,
        _ => random.usize(..3),
    };
    let mut name = vec![b'a' + random.u8(..4)];
    name.extend(std::iter::repeat_n(b'x', long));
    if random.bool() {
        name.push(b'0' + random.u8(..10));
        name.push(b'0' + random.u8(..10));
    }
    name
}

fn some_prefix(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut prefix = Vec::new();
    for _ in 0..random.usize(1..4) {
        prefix.push(1);
        prefix.extend(name(random));
    }
    prefix.push(random.u8(..2));
    prefix
}

fn some_value(random: &mut fastrand::Rng) -> Vec<u8> {
    let long = match random.u8(..10) {
        0 => random.usize(..=VALUE_MAX),
        1..4 => random.usize(..600),
        _ => random.usize(..100),
    };
    vec![random.u8(..); long]
}

fn run(seed: u64, steps: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    fastrand::seed(seed);
    let mut pair = Pair::new();
    let grows = random.u8(5..9);
    for _ in 0..if seed.is_multiple_of(2) { 0 } else { steps / 2 } {
        let value = vec![1; random.usize(2000..VALUE_MAX)];
        pair.insert(&some_key(&mut random), &value);
    }
    for step in 0..steps {
        let key = some_key(&mut random);
        match random.u8(..100) {
            0..70 if random.u8(..10) < grows => pair.insert(&key, &some_value(&mut random)),
            0..70 => {
                let near = pair.map.range(key.clone()..).next().map_or(key, |(key, _)| key.clone());
                pair.remove(&near);
            }
            70..85 => pair.probe(&mut random, &key),
            85..95 => pair.move_range(&some_prefix(&mut random), &some_prefix(&mut random)),
            95 => {
                let changed =
                    pair.tree.update(&pair.device, &mut pair.freed, &key, |value| value.fill(step as u8)).expect("a sound device");
                assert_eq!(changed.is_some(), pair.map.get_mut(&key).map(|value| value.fill(step as u8)).is_some());
            }
            96 => pair.check(),
            _ if random.u8(..8) == 0 => pair.checkpoint(),
            _ => {}
        }
    }
    pair.checkpoint();
    pair.check();
    let (ranges, most) = (pair.moved.iter().filter(|moved| **moved > 0).count(), pair.moved.iter().max());
    println!(
        "    {} entries, {} nodes, level {}, {ranges} ranges moved, of {most:?} at most",
        pair.map.len(),
        pair.next,
        pair.tree.level()
    );
}

#[test]
fn the_tree_is_a_map() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    for seed in 0..if full { 2000 } else { 8 } {
        println!("seed {seed}");
        run(seed, 3000);
    }
}

/// A directory of a hundred thousand entries moves by a few nodes, and its entries are all there.
#[test]
fn a_range_of_any_size_moves_by_its_edges() {
    let mut pair = Pair::new();
    let key = |directory: &str, number: u32| [&[1], directory.as_bytes(), &[0], format!("file{number:06}").as_bytes()].concat();
    for number in 0..100_000 {
        for directory in ["before", "big", "zebra"] {
            let (key, value) = (key(directory, number), [0; 40]);
            if directory == "big" || number % 100 == 0 {
                pair.tree.insert(&pair.device, &mut pair.freed, &key, &value).expect("a sound device");
            }
        }
    }
    pair.checkpoint();
    let nodes = pair.tree.check(&pair.device, |_| ()).expect("it is sound").nodes;
    assert!((300..900).contains(&nodes), "{nodes} nodes for 102,000 short entries");
    for (from, to) in [("big", "yet another place"), ("yet another place", "a"), ("a", "zzz")] {
        let (from, to) = ([&[1], from.as_bytes(), &[0]].concat(), [&[1], to.as_bytes(), &[0]].concat());
        assert_eq!(pair.tree.move_range(&pair.device, &mut pair.freed, &from, &to), Ok(true));
        assert!(pair.tree.homeless() < 16, "{} nodes of {nodes} are new", pair.tree.homeless());
        pair.tree.check(&pair.device, |_| ()).expect("it is sound");
        pair.checkpoint();
    }
    for number in (0..100_000).step_by(997) {
        assert_eq!(pair.tree.get(&pair.device, &key("zzz", number), <[u8]>::len), Ok(Some(40)));
        assert_eq!(pair.tree.get(&pair.device, &key("big", number), <[u8]>::len), Ok(None));
    }
}

/// Loading fails at every point of every kind of change: the tree stays what it was.
#[test]
fn a_tree_moved_again_and_again_stays_low() {
    for count in [1, 3, 2000] {
        let mut pair = Pair::new();
        (0..count).for_each(|number: u32| pair.insert(format!("one/{number}").as_bytes(), &[7; 40]));
        let before = pair.tree.level();
        for _ in 0..20 {
            pair.move_range(b"one", b"another");
            pair.move_range(b"another", b"one");
        }
        assert!(pair.tree.level() <= before + 1, "{count}: {} after {before}", pair.tree.level());
    }
}

#[test]
fn a_change_that_fails_changes_nothing() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut pair = Pair::new();
    for _ in 0..2000 {
        pair.insert(&some_key(&mut random), &some_value(&mut random));
    }
    for round in 0..200 {
        pair.checkpoint();
        pair.device.writes_left.replace(Some(round % 12));
        let (key, to) = (some_key(&mut random), some_prefix(&mut random));
        let value = some_value(&mut random);
        match round % 3 {
            0 => {
                if pair.tree.insert(&pair.device, &mut pair.freed, &key, &value).is_ok() {
                    pair.map.insert(key, value);
                }
            }
            1 => {
                if pair.tree.remove(&pair.device, &mut pair.freed, &key).is_ok() {
                    pair.map.remove(&key);
                }
            }
            _ => {
                let from = some_prefix(&mut random);
                let tree = pair.tree.clone();
                if pair.tree.move_range(&pair.device, &mut pair.freed, &from, &to).is_ok() {
                    // What it does when it succeeds is another test's.
                    pair.tree = tree;
                    pair.freed.clear();
                }
            }
        }
        pair.device.writes_left.replace(None);
        pair.check();
    }
}

/// Bytes are changed and the checksums corrected: reading gives answers or errors, and ends.
#[test]
fn damaged_nodes_are_refused_or_harmless() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut pair = Pair::new();
    for _ in 0..3000 {
        pair.insert(&some_key(&mut random), &some_value(&mut random));
    }
    pair.checkpoint();
    let pages: Vec<Box<[u8]>> = pair.device.pages.borrow().values().cloned().collect();
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut page = pages[random.usize(..pages.len())].clone();
        for _ in 0..random.usize(1..6) {
            let at = if random.bool() { random.usize(24..200) } else { random.usize(4..NODE_BYTES) };
            page[at] = if random.bool() { random.u8(..) } else { page[at] ^ (1 << random.u8(..8)) };
        }
        let sum = crc32c::crc32c(&page[4..]);
        page[..4].copy_from_slice(&sum.to_le_bytes());
        let slot = u32::from_le_bytes([page[8], page[9], page[10], page[11]]);
        let Ok(node) = Node::parse(page, NodeAt { slot, sum }, STAMP) else { continue };
        accepted += 1;
        // It becomes the root of a tree whose other nodes are whole.
        let level = if matches!(node.content, Content::Leaf(_)) { 0 } else { pair.tree.level() };
        let mut tree = Tree { root: Link::Memory(Arc::new(node)), level, dirty: 0 };
        let (key, mut freed) = (some_key(&mut random), Vec::new());
        let _ = tree.get(&pair.device, &key, <[u8]>::len);
        let _ = tree.scan(&pair.device, &key, None, |_, _| ScanStep::Go);
        let _ = tree.check(&pair.device, |_| ());
        let _ = tree.insert(&pair.device, &mut freed, &key, b"value");
        let _ = tree.move_range(&pair.device, &mut freed, &some_prefix(&mut random), &some_prefix(&mut random));
        let _ = tree.remove(&pair.device, &mut freed, &key);
    }
    assert!(accepted > 1000, "{accepted} damaged nodes were tried");
}

#[test]
fn keys_compare_as_their_bytes_do() {
    let mut rng = crate::testing::rng();
    let mut key = || (0..rng.usize(..20)).map(|_| [0, 0, 1, 0xff][rng.usize(..4)]).collect::<Vec<u8>>();
    for _ in 0..100_000 {
        let (one, mut other) = (key(), key());
        other.splice(..0, one[..one.len() / 2].iter().copied());
        assert_eq!(SearchKey::new(&one).order_of(&other), other.cmp(&one), "{other:?} to {one:?}");
        assert!(SearchKey::new(&one).order_of(&one).is_eq());
    }
}
