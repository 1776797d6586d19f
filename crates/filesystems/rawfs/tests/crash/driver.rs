//! Random batches on a store, and what must be found after a cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rawfs::{Batch, Block, Error, Extent, FormatOptions, Lsn, QueueClass, Settings, Store, TreeId};

use super::machine::Machine;
use super::model::{Model, Step, fill};

/// All states so far, by number of the batch after which they were; and what was promised.
#[derive(Default)]
pub struct History {
    states: Mutex<Vec<Arc<Model>>>,
    synced: AtomicU64,
}

impl History {
    pub fn new(first: Model) -> Arc<History> {
        let history = History::default();
        history.states.lock().push(Arc::new(first));
        Arc::new(history)
    }

    fn state(&self, at: usize) -> Arc<Model> {
        Arc::clone(&self.states.lock()[at])
    }

    /// The first batch after which it was as found (by its number, from the begin of this history) is at or behind what was synced.
    pub fn check(&self, store: &Store, batches: u64) -> Arc<Model> {
        let synced = self.synced.load(Ordering::SeqCst);
        assert!(batches >= synced, "{batches} batches are there, {synced} were synced");
        let known = self.states.lock().len() as u64;
        assert!(batches < known, "{batches} batches are there, {known} were made");
        let state = self.state(batches as usize);
        state.compare(store);
        state
    }
}

pub const BYTES: usize = 3 << 20;
pub const UUID: [u8; 16] = *b"sixteen letters!";

pub fn settings() -> Settings {
    Settings { node_cache_bytes: 1 << 20, background: false, ..Settings::default() }
}

pub fn format_options() -> FormatOptions {
    let (metadata_bytes, log_bytes) = (Some(1 << 20), Some(128 << 10));
    FormatOptions { uuid: Some(UUID), metadata_bytes, log_bytes, ..FormatOptions::default() }
}

pub fn formatted() -> Vec<u8> {
    let machine = Machine::new(vec![0; BYTES]);
    Store::format(&machine.disk(), &format_options()).expect("formatted");
    machine.content()
}

/// A store that is used at random.
pub struct Driver {
    pub store: Store,
    pub history: Arc<History>,
    /// The store's number of the state with which the history begins.
    pub begin: Lsn,
    pub rng: fastrand::Rng,
    pub now: Model,
    /// Used last, freed last: what was used is freed soon, and what was freed is wanted.
    used: Block,
    freed: Block,
}

fn name(rng: &mut fastrand::Rng) -> Vec<u8> {
    let names: [&[u8]; 8] = [b"a", b"b", b"bb", b"home", b"src", b"a rather long name of a directory", b"x", b"y"];
    names[rng.usize(..names.len())].to_vec()
}

pub fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let depth = rng.usize(1..5);
    (0..depth).flat_map(|level| [vec![u8::from(level > 0)], name(rng)].concat()).collect()
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = match rng.u8(..10) {
        0 => rng.usize(..3000),
        1 => 0,
        _ => rng.usize(..200),
    };
    let first = rng.u8(..);
    (0..len).map(|at| first.wrapping_add(at as u8)).collect()
}

impl Driver {
    pub fn new(store: Store, first: Model, seed: u64) -> Driver {
        let begin = store.applied();
        Driver {
            store,
            history: History::new(first.clone()),
            begin,
            rng: fastrand::Rng::with_seed(seed),
            now: first,
            used: Block(0),
            freed: Block(0),
        }
    }

    fn tree(&mut self) -> TreeId {
        TreeId::ALL[usize::from(self.rng.u8(..4) == 0)]
    }

    /// One that is there, mostly.
    fn known_key(&mut self, tree: TreeId) -> Vec<u8> {
        let map = &self.now.trees[tree as usize];
        let fresh = key(&mut self.rng);
        if self.rng.u8(..8) == 0 {
            return fresh;
        }
        map.range(fresh.clone()..).next().or_else(|| map.iter().next()).map_or(fresh, |(key, _)| key.clone())
    }

    // long: one match over the random calls and their effect on the model.
    fn step(&mut self, steps: &mut Vec<Step>, allocated: &mut Vec<Extent>) -> Result<(), Error> {
        let tree = self.tree();
        let filled: usize = steps.iter().map(|step| if let Step::Fill(_, seeds, _) = step { seeds.len() } else { 0 }).sum();
        match self.rng.u8(..23) {
            0..8 => steps.push(Step::Put(tree, key(&mut self.rng), value(&mut self.rng))),
            8..10 => {
                let key = self.known_key(tree);
                let len = self.now.trees[tree as usize].get(&key).map_or(1, Vec::len);
                let at = self.rng.usize(..=len);
                let bytes = self.rng.usize(..=(len - at).min(20));
                steps.push(Step::Patch(tree, key, at, vec![self.rng.u8(..); bytes]));
            }
            10..13 => steps.push(Step::Delete(tree, self.known_key(tree))),
            13 => {
                let (from, to) = (key(&mut self.rng), key(&mut self.rng));
                steps.push(Step::Move(tree, from, to));
            }
            14..18 => {
                let goal = match self.rng.u8(..4) {
                    0 => None,
                    1 => Some(Block(self.rng.u64(..BYTES as u64 / 4096))),
                    _ => Some(self.freed),
                };
                match self.store.allocate(goal, self.rng.u32(1..12)) {
                    Ok(extent) => {
                        let seeds: Vec<u64> = (0..extent.blocks).map(|_| self.rng.u64(..)).collect();
                        if self.rng.bool() && self.store.may_fill(filled + seeds.len()) {
                            allocated.push(extent);
                            self.used = extent.start;
                            steps.push(Step::Fill(extent, seeds, true));
                            return Ok(());
                        }
                        let blocks: Vec<_> = seeds.iter().map(|seed| fill(*seed)).collect();
                        let writes: Vec<(Block, &[u8])> =
                            (0..).zip(&blocks).map(|(at, block)| (extent.start.after(at), &block[..])).collect();
                        allocated.push(extent);
                        self.used = extent.start;
                        self.store.disk().write_blocks(QueueClass::Data, &writes)?;
                        steps.push(Step::Use(extent, seeds));
                    }
                    Err(Error::NoSpace) => {}
                    Err(error) => return Err(error),
                }
            }
            20.. if self.store.may_overwrite() => {
                let from = if self.rng.bool() { self.used.0 } else { self.rng.u64(..BYTES as u64 / 4096) };
                let has = |extent: &Extent, at: &u64| (extent.start.0..extent.start.0 + u64::from(extent.blocks)).contains(at);
                let freed = |at: &u64| steps.iter().any(|step| matches!(step, Step::Free(extent) if has(extent, at)));
                let first = self.now.blocks.range(from..).map(|(at, _)| *at).find(|at| !freed(at));
                let more = |from: u64| self.now.blocks.contains_key(&(from + 1)) && !freed(&(from + 1));
                if let Some(first) = first.filter(|_| self.store.may_fill(filled + 2)) {
                    let seeds: Vec<u64> = (0..1 + u32::from(more(first))).map(|_| self.rng.u64(..)).collect();
                    steps.push(Step::Fill(Extent::new(Block(first), seeds.len() as u32), seeds, false));
                }
            }
            _ => {
                let from = if self.rng.bool() { self.used.0 } else { self.rng.u64(..BYTES as u64 / 4096) };
                let has = |extent: &Extent, at: &u64| (extent.start.0..extent.start.0 + u64::from(extent.blocks)).contains(at);
                let freed = |at: &u64| steps.iter().any(|step| matches!(step, Step::Free(extent) if has(extent, at)));
                if let Some(first) = self.now.blocks.range(from..).map(|(at, _)| *at).find(|at| !freed(at)) {
                    let most = self.rng.u64(1..10);
                    let count =
                        (1..most).take_while(|more| self.now.blocks.contains_key(&(first + more)) && !freed(&(first + more))).count();
                    self.freed = Block(first);
                    steps.push(Step::Free(Extent::new(Block(first), count as u32 + 1)));
                }
            }
        }
        Ok(())
    }

    /// A batch by chance; what the model refuses the store has to refuse.
    pub fn batch(&mut self) -> Result<(), Error> {
        let (mut steps, mut allocated) = (Vec::new(), Vec::new());
        for _ in 0..self.rng.usize(1..8) {
            self.step(&mut steps, &mut allocated)?;
        }
        let mut next = self.now.clone();
        let right = steps.iter().all(|step| next.change(step));
        let mut batch = Batch::new();
        steps.iter().for_each(|step| step.put_in(&mut batch));
        if batch.is_empty() {
            return Ok(());
        }
        if right {
            self.history.states.lock().push(Arc::new(next.clone()));
        }
        match self.store.apply(batch) {
            Ok(lsn) => {
                assert!(right, "done, though it is wrong: {steps:?}");
                self.now = next;
                assert_eq!(lsn.0, self.begin.0 + self.history.states.lock().len() as u64 - 1);
                Ok(())
            }
            Err(error @ (Error::Device(_) | Error::Failed(_) | Error::Damaged { .. })) => Err(error),
            Err(error) => {
                let full = matches!(error, Error::NoNodes);
                assert_eq!(full, right, "{error} for {steps:?}");
                if right {
                    self.history.states.lock().pop();
                }
                allocated.into_iter().for_each(|extent| self.store.abandon(extent));
                Ok(())
            }
        }
    }

    pub fn sync(&mut self) -> Result<(), Error> {
        let lsn = self.store.applied();
        self.store.sync(lsn)?;
        assert!(self.store.synced() >= lsn);
        self.history.synced.fetch_max(lsn.0 - self.begin.0, Ordering::SeqCst);
        Ok(())
    }

    pub fn checkpoint(&mut self) -> Result<(), Error> {
        let lsn = self.store.applied();
        self.store.checkpoint()?;
        self.history.synced.fetch_max(lsn.0 - self.begin.0, Ordering::SeqCst);
        Ok(())
    }

    /// Something by chance.
    pub fn turn(&mut self) -> Result<(), Error> {
        match self.rng.u8(..12) {
            0 | 1 => self.sync(),
            2 => self.checkpoint(),
            _ => self.batch(),
        }
    }
}
