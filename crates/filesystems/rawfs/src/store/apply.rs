//! One batch after the other.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::batch::{self, Batch, Change, ChangeReader, KEY_BYTES_MAX};
use super::inner::{StoreCore, StoreState};
use crate::error::Error;
use crate::layout::NODE_BYTES;
use crate::tree::{MoveError, ScanStep, Tree};
use crate::units::Lsn;

/// Nodes that a move writes anew, for each level of the tree: the edges of what is taken out, and of where it goes.
const MOVE_NODES: u64 = 8;
/// Keys of a range that a move may lengthen.
const LENGTHENED_KEYS_MAX: u32 = 1024;
/// Bytes that a range of any size may be lengthened by. A file system does that to a key once, and keeps its keys far below the bound.
const LENGTHENED_BY: usize = 8;
/// What a batch that takes names away may add elsewhere.
const REMOVING_BYTES: i64 = 128;
/// How often room is looked for before it is said that there is none.
const TRIES: u32 = 16;

/// What a batch may need.
struct BatchNeeds {
    nodes: u64,
    /// It takes more than it gives back, as far as can be said cheaply.
    bytes: i64,
}

impl StoreCore {
    pub(super) fn apply(&self, batch: &Batch) -> Result<Lsn, Error> {
        batch.check()?;
        if batch.is_empty() {
            return Ok(self.log.last());
        }
        if batch.bytes() > self.log.place().batch_bytes_max() {
            return Err(Error::TooLarge("a batch of more than a quarter of the log"));
        }
        for tried in 0..TRIES {
            let mut state = self.state.write();
            state.check()?;
            if self.finds_room(&state, batch, tried)? {
                let (lsn, much) = self.append(&mut state, batch)?;
                let (due, late) = (self.is_due(&state), state.dirty() * NODE_BYTES as u64 > 2 * self.settings.dirty_bytes as u64);
                let dirty = state.dirty();
                drop(state);
                self.tell_budget(dirty);
                // The batch is done. A failure from here on is reported by all later calls, and by the sync that waits for it.
                if much {
                    let _ = self.sync(lsn);
                }
                if due && self.settings.background && !late {
                    self.bell.ring();
                } else if due {
                    let _ = self.checkpoint();
                }
                return Ok(lsn);
            }
            drop(state);
            self.checkpoint()?;
        }
        Err(Error::NoNodes)
    }

    fn append(&self, state: &mut StoreState, batch: &Batch) -> Result<(Lsn, bool), Error> {
        self.change(state, batch.changes())?;
        let (lsn, much) = self.log.append(batch.encoded(), is_written(batch));
        for change in batch.changes().flatten() {
            match change {
                Change::Free(extent) => {
                    let held = self.filled.forget(extent);
                    self.freed.lock().push(lsn, self.shape.data_range(extent).expect("it was just freed"), held);
                }
                Change::Fill(extent, bytes) => self.filled.put(lsn, extent.start, bytes),
                Change::Use(_, sums) if !sums.is_empty() => self.written.store(lsn.0, Ordering::Release),
                _ => {}
            }
        }
        Ok((lsn, much))
    }

    /// Whether log and metadata region have room now; if not, a checkpoint may make it.
    fn finds_room(&self, state: &StoreState, batch: &Batch, tried: u32) -> Result<bool, Error> {
        if !self.log.has_room(batch.bytes())? {
            return Ok(false);
        }
        let needs = self.needs(state, batch);
        let mut nodes = self.nodes.lock();
        nodes.settle();
        let (free, all, dirty) = (nodes.free(), nodes.len(), state.dirty());
        drop(nodes);
        let reserve = reserve(all);
        if dirty + needs.nodes + reserve <= free {
            return Ok(true);
        }
        if tried == 0 && (dirty > 0 || !state.left.is_empty()) {
            return Ok(false);
        }
        // What only takes away may have the reserve.
        let adds = needs.bytes > 0 && self.grows(state, batch)?;
        if !adds && dirty + needs.nodes <= free {
            return Ok(true);
        }
        Err(Error::NoNodes)
    }

    fn needs(&self, state: &StoreState, batch: &Batch) -> BatchNeeds {
        let mut needs = BatchNeeds { nodes: 0, bytes: 0 };
        let levels = |tree: batch::TreeId| u64::from(state.trees[tree as usize].level()) + 1;
        for change in batch.changes().flatten() {
            match change {
                Change::Put(tree, key, value) => {
                    needs.nodes += levels(tree) + 2;
                    needs.bytes += (key.len() + value.len()) as i64;
                }
                Change::Patch(tree, ..) | Change::Delete(tree, _) => needs.nodes += levels(tree),
                Change::Move(tree, from, to) => {
                    needs.nodes += MOVE_NODES * (levels(tree) + 1);
                    needs.bytes += (to.len() as i64 - from.len() as i64).max(0);
                }
                Change::Use(..) | Change::Free(_) | Change::Fill(..) => {}
            }
        }
        // However many changes: each node is written once, and what is added is not more than its bytes in half-full nodes.
        let known = self.nodes.lock().used() + state.dirty();
        needs.nodes = needs.nodes.min(known + 4 + 3 * needs.bytes.max(0) as u64 / NODE_BYTES as u64);
        needs
    }

    /// Whether a batch adds more bytes than it takes away: the slow way.
    fn grows(&self, state: &StoreState, batch: &Batch) -> Result<bool, Error> {
        let mut grown: i64 = 0;
        let (mut removes, mut names) = (false, false);
        let bytes = |tree: batch::TreeId, key: &[u8]| -> Result<i64, Error> {
            let value = state.trees[tree as usize].get(&self.loader(tree), key, <[u8]>::len)?;
            Ok(value.map_or(0, |value| (key.len() + value) as i64))
        };
        for change in batch.changes().flatten() {
            match change {
                Change::Put(tree, key, value) => {
                    grown += (key.len() + value.len()) as i64 - bytes(tree, key)?;
                    names |= tree == batch::TreeId::Names;
                }
                Change::Delete(tree, key) => {
                    grown -= bytes(tree, key)?;
                    removes |= tree == batch::TreeId::Names;
                }
                _ => {}
            }
        }
        // Who removes the name of a file in use keeps its record until it is let go of, and a mark.
        let more = if removes && !names { REMOVING_BYTES } else { 0 };
        Ok(grown > more)
    }

    /// Whether a checkpoint should begin.
    pub(super) fn is_due(&self, state: &StoreState) -> bool {
        let (log_bytes, log_used) = self.log.usage();
        let dirty = state.dirty();
        let nodes = self.nodes.lock();
        let close = dirty > 8 && dirty * 2 + reserve(nodes.len()) > nodes.free();
        let waits = self.filled.len() * 2 > self.fill_max();
        waits || log_used * 2 > log_bytes || dirty * NODE_BYTES as u64 > self.settings.dirty_bytes as u64 || close
    }

    /// Does what a batch says, to state alone. An error: nothing was done, or the store is broken.
    pub(super) fn change(&self, state: &mut StoreState, changes: ChangeReader<'_>) -> Result<(), Error> {
        self.check_patches(state, changes.clone())?;
        self.change_bits(state, changes.clone())?;
        let before = moves_ranges(&changes).then(|| (state.trees.clone(), state.left.len()));
        let mut done = false;
        for change in changes.clone() {
            let Ok(change) = change else { return Err(nonsense()) };
            match self.change_tree(&mut state.trees, &mut state.left, change) {
                Ok(tree) => done |= tree,
                Err(error) => {
                    if let Some((trees, left)) = before {
                        state.trees = trees;
                        state.left.truncate(left);
                    } else if done {
                        state.broken = Some(error);
                        self.log.fail(error);
                    }
                    undo_bits(self, state, changes);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Patches can be wrong, which has to be known before anything is done. What can be undone may fail later.
    fn check_patches(&self, state: &StoreState, changes: ChangeReader<'_>) -> Result<(), Error> {
        if moves_ranges(&changes) {
            return Ok(());
        }
        let (mut before, mut patches) = (0, false);
        for change in changes.clone() {
            // The first change of a tree can fail: nothing is to be undone.
            patches |= matches!(change.map_err(|_| nonsense())?, Change::Patch(..)) && before > 0;
            before += u32::from(matches!(change, Ok(Change::Patch(..) | Change::Put(..) | Change::Delete(..))));
        }
        if !patches {
            return Ok(());
        }
        // How long the values are that this batch itself puts.
        let mut put: HashMap<(batch::TreeId, &[u8]), Option<usize>, foldhash::fast::RandomState> = HashMap::default();
        for change in changes.flatten() {
            match change {
                Change::Put(tree, key, value) => drop(put.insert((tree, key), Some(value.len()))),
                Change::Delete(tree, key) => drop(put.insert((tree, key), None)),
                Change::Patch(tree, key, at, bytes) => {
                    let len = match put.get(&(tree, key)) {
                        Some(len) => *len,
                        None => state.trees[tree as usize].get(&self.loader(tree), key, <[u8]>::len)?,
                    };
                    if len.is_none_or(|len| usize::from(at) + bytes.len() > len) {
                        return Err(Error::Missing);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Blocks used and freed, in order; all or nothing.
    fn change_bits(&self, state: &mut StoreState, changes: ChangeReader<'_>) -> Result<(), Error> {
        for (done, change) in changes.clone().flatten().enumerate() {
            let (extent, used) = match change {
                Change::Use(extent, _) => (extent, true),
                Change::Free(extent) => (extent, false),
                Change::Fill(extent, _) => {
                    if self.shape.data_range(extent).is_none_or(|range| !state.used.all(range, true)) {
                        undo_first(self, state, changes, done);
                        return Err(Error::Blocks(extent.start));
                    }
                    continue;
                }
                _ => continue,
            };
            let range = self.shape.data_range(extent);
            let fits = |range: &std::ops::Range<u64>| state.used.all(range.clone(), !used) && self.blocks.all_taken(range.clone());
            let Some(range) = range.filter(fits) else {
                undo_first(self, state, changes, done);
                return Err(Error::Blocks(extent.start));
            };
            state.used.set(range, used);
        }
        Ok(())
    }

    /// True: a tree was changed.
    pub(super) fn change_tree(&self, trees: &mut [Tree; 2], left: &mut Vec<u32>, change: Change<'_>) -> Result<bool, Error> {
        match change {
            Change::Put(tree, key, value) => {
                trees[tree as usize].insert(&self.loader(tree), left, key, value)?;
            }
            Change::Patch(tree, key, at, bytes) => {
                let at = usize::from(at);
                let patch = |value: &mut [u8]| value.get_mut(at..at + bytes.len()).map(|value| value.copy_from_slice(bytes));
                let patched = trees[tree as usize].update(&self.loader(tree), left, key, patch)?;
                patched.flatten().ok_or(Error::Missing)?;
            }
            Change::Delete(tree, key) => {
                trees[tree as usize].remove(&self.loader(tree), left, key)?;
            }
            Change::Move(tree, from, to) => {
                self.check_lengths(&trees[tree as usize], tree, from, to)?;
                self.move_range(&mut trees[tree as usize], tree, left, from, to)?;
            }
            Change::Use(..) | Change::Free(_) | Change::Fill(..) => return Ok(false),
        }
        Ok(true)
    }

    /// Keys that a move makes longer must not become too long. Only a range of few keys is looked over for that; one of more can be
    /// moved to a prefix that is as good as not longer: a directory that becomes a zone.
    fn check_lengths(&self, map: &Tree, tree: batch::TreeId, from: &[u8], to: &[u8]) -> Result<(), Error> {
        let more = to.len().saturating_sub(from.len());
        if more <= LENGTHENED_BY {
            return Ok(());
        }
        let (mut seen, mut fits) = (0, true);
        map.scan(&self.loader(tree), from, None, |key, _| {
            if !key.starts_with(from) {
                return ScanStep::Stop;
            }
            seen += 1;
            fits = seen <= LENGTHENED_KEYS_MAX && key.len() + more <= KEY_BYTES_MAX;
            if fits { ScanStep::Go } else { ScanStep::Stop }
        })?;
        if fits { Ok(()) } else { Err(Error::TooLarge("a range whose keys would become longer")) }
    }

    fn move_range(&self, map: &mut Tree, tree: batch::TreeId, left: &mut Vec<u32>, from: &[u8], to: &[u8]) -> Result<(), Error> {
        match map.move_range(&self.loader(tree), left, from, to) {
            Ok(_) => Ok(()),
            Err(MoveError::Taken | MoveError::Within) => Err(Error::Occupied),
            Err(MoveError::Node(error)) => Err(error),
        }
    }
}

/// Whether the trees are kept as they were until all of a batch is done: each of their nodes that it changes is copied then.
fn moves_ranges(changes: &ChangeReader<'_>) -> bool {
    changes.clone().flatten().any(|change| matches!(change, Change::Move(..)))
}

/// Kept for what takes away, and for the tree's own needs: the least is what removing the name of a file in use may want.
fn reserve(nodes: u64) -> u64 {
    (nodes / 16).max(16)
}

/// Whether it names data blocks that somebody has written to their place.
fn is_written(batch: &Batch) -> bool {
    let (mut used, mut sums, mut filled) = (false, false, false);
    for change in batch.changes().flatten() {
        match change {
            Change::Use(_, of) => (used, sums) = (true, sums || !of.is_empty()),
            Change::Fill(..) => filled = true,
            _ => {}
        }
    }
    sums || used && !filled
}

fn nonsense() -> Error {
    Error::Damaged { what: "a batch of the log", at: crate::units::Block(0) }
}

fn undo_bits(inner: &StoreCore, state: &mut StoreState, changes: ChangeReader<'_>) {
    let all = changes.clone().count();
    undo_first(inner, state, changes, all);
}

/// Undoes what the first so many changes did to the bits, last one first.
fn undo_first(inner: &StoreCore, state: &mut StoreState, changes: ChangeReader<'_>, count: usize) {
    let done: Vec<Change<'_>> = changes.flatten().take(count).collect();
    for change in done.into_iter().rev() {
        let (extent, used) = match change {
            Change::Use(extent, _) => (extent, true),
            Change::Free(extent) => (extent, false),
            _ => continue,
        };
        if let Some(range) = inner.shape.data_range(extent) {
            state.used.set(range, !used);
        }
    }
}
