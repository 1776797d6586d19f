//! What the store should hold: maps, and what lies in which block.

use std::collections::BTreeMap;

use rawfs::{BLOCK_BYTES, Batch, Block, Extent, ScanStep, Store, TreeId};

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A state after some batch.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Model {
    pub trees: [Map; 2],
    /// What each used block was filled with.
    pub blocks: BTreeMap<u64, u64>,
}

/// A block's content.
pub fn fill(seed: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut random = fastrand::Rng::with_seed(seed);
    for word in block.chunks_exact_mut(8) {
        word.copy_from_slice(&random.u64(..).to_le_bytes());
    }
    block
}

/// A change, for the store and for the model.
#[derive(Clone, Debug)]
pub enum Step {
    Put(TreeId, Vec<u8>, Vec<u8>),
    Patch(TreeId, Vec<u8>, usize, Vec<u8>),
    Delete(TreeId, Vec<u8>),
    Move(TreeId, Vec<u8>, Vec<u8>),
    Use(Extent, Vec<u64>),
    Free(Extent),
    /// Bytes in the log, for blocks that are used so (true) or were before.
    Fill(Extent, Vec<u64>, bool),
}

impl Step {
    pub fn put_in(&self, batch: &mut Batch) {
        match self {
            Step::Put(tree, key, value) => batch.put(*tree, key, value),
            Step::Patch(tree, key, at, bytes) => batch.patch(*tree, key, *at as u16, bytes),
            Step::Delete(tree, key) => batch.delete(*tree, key),
            Step::Move(tree, from, to) => batch.move_range(*tree, from, to),
            Step::Use(extent, seeds) => {
                let sums: Vec<u32> = seeds.iter().map(|seed| crc32c::crc32c(&fill(*seed))).collect();
                batch.use_blocks(*extent, &sums);
            }
            Step::Free(extent) => batch.free_blocks(*extent),
            Step::Fill(extent, seeds, new) => {
                if *new {
                    batch.use_blocks(*extent, &[]);
                }
                let pages: Vec<[u8; BLOCK_BYTES]> = seeds.iter().map(|seed| fill(*seed)).collect();
                batch.fill_blocks(extent.start, &pages.iter().map(|page| &page[..]).collect::<Vec<_>>());
            }
        }
    }
}

impl Model {
    /// False: it cannot be done so, and the store should say so too.
    pub fn change(&mut self, step: &Step) -> bool {
        match step {
            Step::Put(tree, key, value) => {
                self.trees[*tree as usize].insert(key.clone(), value.clone());
            }
            Step::Patch(tree, key, at, bytes) => {
                let value = self.trees[*tree as usize].get_mut(key).and_then(|value| value.get_mut(*at..*at + bytes.len()));
                let Some(value) = value else { return false };
                value.copy_from_slice(bytes);
            }
            Step::Delete(tree, key) => {
                self.trees[*tree as usize].remove(key);
            }
            Step::Move(tree, from, to) => return move_range(&mut self.trees[*tree as usize], from, to),
            Step::Use(extent, seeds) | Step::Fill(extent, seeds, _) => self.blocks.extend((extent.start.0..).zip(seeds.iter().copied())),
            Step::Free(extent) => self.blocks.retain(|at, _| !(extent.start.0..extent.start.0 + u64::from(extent.blocks)).contains(at)),
        }
        true
    }

    /// # Panics
    /// If the store holds anything else.
    pub fn compare(&self, store: &Store) {
        for tree in TreeId::ALL {
            let mut found = Map::new();
            let mut last: Option<Vec<u8>> = None;
            store
                .scan(tree, &[], &[0xff; 16], &mut |key, value| {
                    assert!(last.as_deref().is_none_or(|last| last < key), "keys ascend");
                    last = Some(key.to_vec());
                    found.insert(key.to_vec(), value.to_vec());
                    ScanStep::Go
                })
                .expect("scanned");
            assert!(found == self.trees[tree as usize], "{tree:?}: {}", difference(&found, &self.trees[tree as usize]));
        }
        let mut used = Vec::new();
        store.each_used(|extent| used.extend(extent.start.0..extent.start.0 + u64::from(extent.blocks)));
        assert_eq!(used, self.blocks.keys().copied().collect::<Vec<_>>(), "blocks in use");
        self.compare_blocks(store);
        let checked = store.check().expect("checked");
        assert!(checked.leaked.is_empty() && checked.wrong.is_empty(), "nodes: {checked:?}");
        for tree in TreeId::ALL {
            assert_eq!(checked.trees[tree as usize].entries, self.trees[tree as usize].len() as u64);
        }
    }

    fn compare_blocks(&self, store: &Store) {
        let mut block = [0; BLOCK_BYTES];
        for (at, seed) in &self.blocks {
            store.read_data(&mut [(Block(*at), &mut block)]).expect("read");
            assert!(block == fill(*seed), "block {at} does not hold what it should");
        }
    }
}

fn difference(found: &Map, wanted: &Map) -> String {
    let missing: Vec<_> = wanted.iter().filter(|(key, value)| found.get(*key) != Some(value)).take(3).collect();
    let more: Vec<_> = found.keys().filter(|key| !wanted.contains_key(*key)).take(3).collect();
    format!("missing or other: {missing:?}; too many: {more:?}")
}

fn below(map: &Map, prefix: &[u8]) -> Vec<Vec<u8>> {
    map.range(prefix.to_vec()..).map(|(key, _)| key).take_while(|key| key.starts_with(prefix)).cloned().collect()
}

fn move_range(map: &mut Map, from: &[u8], to: &[u8]) -> bool {
    if from.starts_with(to) || to.starts_with(from) || !below(map, to).is_empty() {
        return false;
    }
    for key in below(map, from) {
        let value = map.remove(&key).expect("just seen");
        map.insert([to, &key[from.len()..]].concat(), value);
    }
    true
}
