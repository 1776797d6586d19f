//! Opening what is damaged: all that can be read is there, all that cannot is reported.
//!
//! 1. Bitmap pages that cannot be read count as empty: the use of nodes and blocks is derived anew from the trees.
//! 2. The trees are walked; nodes that cannot be read, and keys in wrong places, are taken out of them in memory.
//! 3. Nodes that only a lost node had led to are found by looking at all that are in use; their entries are put under keys of a
//!    kind of their own ([`found_key`]), for who knows what they mean.
//! 4. The log is done again as far as it fits.
//! 5. What the trees hold is what is in use.
//!
//! Then a checkpoint writes all that to nodes that were used by nothing, and one superblock makes it count. Before that moment
//! the image is as it was: whatever ends a repair, it can begin again.

use std::collections::HashSet;

use super::batch::{self, Change, ChangeReader};
use super::checkpoint::CheckpointMark;
use super::inner::{StoreCore, StoreState};
use super::open::{LoadedState, assemble, bitmaps, copies, search, usable};
use super::settings::{Recovery, Settings};
use crate::disk::{Disk, QueueClass};
use crate::error::Error;
use crate::layout::superblock::{COPIES, Superblock};
use crate::layout::{NODE_BYTES, u32_at};
use crate::log::group;
use crate::log::read::{LogSearch, LogTail};
use crate::space::bits::Bitmap;
use crate::space::blocks::BlockAllocator;
use crate::space::nodes::NodeAllocator;
use crate::tree::node::Node;
use crate::tree::salvage::{LostNode, SalvageObserver};
use crate::tree::{NodeAt, Tree};
use crate::units::{Block, Extent, Lsn};

/// Findings of one kind that are reported one by one; the others are counted.
const REPORTED_MAX: usize = 1000;

/// Something that is wrong with the store itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Damage {
    /// One of the superblocks; the other one counts.
    Superblock {
        /// Which.
        at: Block,
        /// What is wrong.
        why: Error,
    },
    /// A page of a bitmap, in both its slots.
    Bitmap {
        /// Where it is.
        at: Block,
    },
    /// A node, and all that only it leads to.
    Node {
        /// Of which tree.
        tree: batch::TreeId,
        /// Leaves are 0.
        level: u8,
        /// Where it is.
        at: Block,
        /// What is wrong.
        why: Error,
        /// Keys from here on,
        from: Vec<u8>,
        /// up to here; `None`: to the end.
        to: Option<Vec<u8>>,
        /// Not all of the node: so many of its keys lie in the wrong place.
        entries: usize,
    },
    /// Entries of nodes that only a lost node had led to. They are under [`found_key`]s.
    Found {
        /// Of which tree.
        tree: batch::TreeId,
        /// How many.
        entries: u64,
    },
    /// A batch in the log that does not fit what is there, or a log that cannot be read.
    Log {
        /// The batch.
        lsn: Lsn,
        /// Why not.
        why: Error,
        /// It and all behind it are left out; else only what of it does not fit.
        ends: bool,
    },
    /// Nodes that the bitmap has in use and nothing leads to: space is lost.
    NodesLeaked(u64),
    /// Nodes in use that the bitmap has as free: they may be overwritten.
    NodesFree(u64),
    /// Data blocks that the bitmap has in use and no file has: space is lost.
    Leaked(Extent),
    /// Data blocks of files that the bitmap has as free: they may be given to others.
    Free(Extent),
    /// More of the last two kinds: so many rows.
    More(usize),
}

/// Tells the blocks that an entry owns.
pub type Owns<'a> = &'a dyn Fn(batch::TreeId, &[u8], &[u8], &mut dyn FnMut(Extent));

/// The key under which an entry is found whose whole key nobody knows: the node it was in, and the end of its key.
pub fn found_key(tree: batch::TreeId, slot: u32, end: &[u8]) -> Vec<u8> {
    let mut key = mark(tree).to_vec();
    key.extend_from_slice(&slot.to_be_bytes());
    key.extend_from_slice(&end[end.len().saturating_sub(batch::KEY_BYTES_MAX - key.len())..]);
    key
}

/// Node and end of such a key.
pub fn found_parts(tree: batch::TreeId, key: &[u8]) -> Option<(u32, &[u8])> {
    let (slot, end) = key.strip_prefix(mark(tree))?.split_first_chunk()?;
    Some((u32::from_be_bytes(*slot), end))
}

/// No key of a file system begins so, or is so long.
fn mark(tree: batch::TreeId) -> &'static [u8] {
    match tree {
        batch::TreeId::Names => &[4],
        batch::TreeId::Files => &[0xfe; 14],
    }
}

/// Opens a damaged store. Nothing is written if the settings say so.
pub fn open(disk: Disk, settings: &Settings, owns: Owns<'_>) -> Result<(StoreCore, Recovery, Vec<Damage>), Error> {
    let (superblock, repaired) = usable(&disk, settings)?;
    let mut damages = Vec::new();
    for (at, copy) in COPIES.into_iter().zip(copies(&disk)?) {
        if let Err(why) = copy {
            damages.push(Damage::Superblock { at, why });
        }
    }
    let (mut slots, mut unread) = (Vec::new(), Vec::new());
    let [nodes, used] = bitmaps(&disk, &superblock, &mut slots, Some(&mut unread))?;
    damages.extend(unread.iter().map(|page| Damage::Bitmap { at: superblock.shape.page_at(*page) }));
    // A root too high is a root that is lost.
    let trees = superblock.roots.map(|root| Tree::at(root.at, root.level).unwrap_or_default());
    let inner = assemble(disk, settings, &superblock, LoadedState { trees, nodes, used, slots });
    let of_nodes = unread.iter().any(|page| *page < superblock.shape.node_pages());
    let recovery = Recovery { repaired, ..Recovery::default() };
    let mut salvage = Salvager { superblock, inner, damages, unread: of_nodes, recovery };
    salvage.recovery.clean = superblock.clean;
    salvage.recovery.lsn = superblock.lsn;
    salvage.trees()?;
    let end = if superblock.clean { superblock.log_position } else { salvage.log()? };
    salvage.data(owns)?;
    let Salvager { superblock, inner, damages, recovery, .. } = salvage;
    if settings.read_only {
        inner.log.fail(Error::Device(block::Error::ReadOnly));
        return Ok((inner, recovery, damages));
    }
    let inner = inner.begin(superblock, recovery.lsn, end)?;
    write_again(&inner, &unread)?;
    Ok((inner, recovery, damages))
}

/// Pages of which neither slot could be used: one is right now. The other may say that it is of a checkpoint to come, and would
/// count when that number is reached.
fn write_again(inner: &StoreCore, pages: &[u64]) -> Result<(), Error> {
    if pages.is_empty() {
        return Ok(());
    }
    let of_nodes = inner.shape.node_pages();
    for page in pages {
        match page.checked_sub(of_nodes) {
            None => inner.nodes.lock().bits().touch(*page as usize),
            Some(page) => inner.state.write().used.touch(page as usize),
        }
    }
    let mut last = inner.last.lock();
    let mark = CheckpointMark { clean: false, life: last.superblock.life, log: None, always: true };
    inner.checkpoint_as(&mut last, mark)
}

/// Key and value of an entry that was found.
type OrphanEntry = (Vec<u8>, Vec<u8>);

struct Salvager {
    superblock: Superblock,
    inner: StoreCore,
    damages: Vec<Damage>,
    /// A page of the nodes' bitmap could not be read: which of them are in use is not known.
    unread: bool,
    recovery: Recovery,
}

/// Whether this is damage; else the device is gone, or there is no memory.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. } | Error::Device(block::Error::Media | block::Error::OutOfRange))
}

#[derive(Default)]
struct SalvageWalk {
    seen: HashSet<u32>,
    replaced: Vec<u32>,
    lost: Vec<LostNode<Error>>,
    /// All that is seen is given up.
    gives_up: bool,
}

impl SalvageObserver<Error> for SalvageWalk {
    fn used(&mut self, slot: u32) -> bool {
        let new = self.seen.insert(slot);
        if self.gives_up && new {
            self.replaced.push(slot);
        }
        new
    }
    fn replaced(&mut self, slot: u32) {
        self.replaced.push(slot);
    }
    fn lost(&mut self, lost: LostNode<Error>) -> Result<(), Error> {
        if !is_damage(&lost.why) {
            return Err(lost.why);
        }
        self.lost.push(lost);
        Ok(())
    }
}

impl Salvager {
    /// Steps 2 and 3, and the allocator of nodes.
    fn trees(&mut self) -> Result<(), Error> {
        let mut walk = SalvageWalk::default();
        let mut found = Vec::new();
        let mut trees = self.inner.state.get_mut().trees.clone();
        for tree in batch::TreeId::ALL {
            let before = walk.lost.len();
            trees[tree as usize].prune(&self.inner.loader(tree), &mut walk)?;
            self.tell(tree, &walk.lost[before..]);
            let has_lost_nodes = walk.lost[before..].iter().any(|lost| lost.level > 0);
            found.push((tree, has_lost_nodes));
        }
        let reached = walk.seen.len() as u64;
        let adopted = found
            .into_iter()
            .filter(|(_, has_lost_nodes)| *has_lost_nodes)
            .map(|(tree, _)| self.unreached(tree, &mut walk).map(|found| (tree, found)));
        let adopted = adopted.collect::<Result<Vec<_>, Error>>()?;
        let state = self.inner.state.get_mut();
        state.trees = trees;
        self.record_used_space(walk, reached);
        for (tree, entries) in adopted {
            if !entries.is_empty() {
                self.damages.push(Damage::Found { tree, entries: entries.len() as u64 });
            }
            for (key, value) in entries {
                self.insert(tree, &key, &value)?;
            }
        }
        Ok(())
    }

    fn insert(&self, tree: batch::TreeId, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut state = self.inner.state.write();
        let StoreState { trees, left, .. } = &mut *state;
        trees[tree as usize].insert(&self.inner.loader(tree), left, key, value).map(drop)
    }

    fn tell(&mut self, tree: batch::TreeId, lost: &[LostNode<Error>]) {
        let shape = self.superblock.shape;
        self.damages.extend(lost.iter().map(|lost| Damage::Node {
            tree,
            level: lost.level,
            at: shape.node_at(lost.slot).unwrap_or(Block(u64::from(lost.slot))),
            why: lost.why,
            from: lost.from.clone(),
            to: lost.to.clone(),
            entries: lost.entries,
        }));
    }

    /// Entries of nodes in use that nothing leads to any more; what is below each goes with it.
    fn unreached(&self, tree: batch::TreeId, walk: &mut SalvageWalk) -> Result<Vec<OrphanEntry>, Error> {
        let mut waiting = Vec::new();
        for slot in 0..u32::try_from(self.superblock.shape.nodes).unwrap_or(u32::MAX) {
            let bit = u64::from(slot)..u64::from(slot) + 1;
            let in_use = self.unread || self.inner.nodes.lock().used_bits().all(bit, true);
            if in_use && !walk.seen.contains(&slot) {
                waiting.extend(self.look_at(tree, slot)?);
            }
        }
        waiting.sort_by_key(|(level, at)| (std::cmp::Reverse(*level), at.slot));
        let mut entries = Vec::new();
        walk.gives_up = true;
        for (level, at) in waiting {
            if walk.seen.contains(&at.slot) {
                continue;
            }
            let mut part = Tree::at(at, level)?;
            let before = walk.lost.len();
            part.prune(&self.inner.loader(tree), walk)?;
            walk.lost.truncate(before);
            part.scan(&self.inner.loader(tree), &[], None, |key, value| {
                entries.push((found_key(tree, at.slot, key), value.to_vec()));
                crate::tree::ScanStep::Go
            })?;
        }
        walk.gives_up = false;
        Ok(entries)
    }

    /// The node in a slot, if it is whole and of this tree.
    fn look_at(&self, tree: batch::TreeId, slot: u32) -> Result<Option<(u8, NodeAt)>, Error> {
        let Some(block) = self.superblock.shape.node_at(slot) else { return Ok(None) };
        let mut page = vec![0; NODE_BYTES].into_boxed_slice();
        match self.inner.disk.read_blocks(QueueClass::Metadata, block, &mut page) {
            Ok(()) => {}
            Err(error) if is_damage(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let (at, level) = (NodeAt { slot, sum: u32_at(&page, 0) }, page[24]);
        Ok(Node::parse(page, at, self.inner.stamp(tree)).is_ok().then_some((level, at)))
    }

    /// In use is what the walk has seen; what it could not read is left alone until the checkpoint.
    fn record_used_space(&mut self, walk: SalvageWalk, reached: u64) {
        let shape = self.superblock.shape;
        let mut bits = Bitmap::new(shape.nodes);
        for slot in walk.seen.iter().filter(|slot| u64::from(**slot) < shape.nodes) {
            bits.put(u64::from(*slot)..u64::from(*slot) + 1, true);
        }
        let nodes = self.inner.nodes.get_mut();
        let count = |rows: Vec<std::ops::Range<u64>>| rows.into_iter().map(|row| row.end - row.start).sum::<u64>();
        if !self.unread {
            let lost: u64 = walk.lost.iter().filter(|lost| lost.entries == 0).count() as u64;
            let (leaked, free) = (count(nodes.used_bits().minus(&bits)), count(bits.minus(nodes.used_bits())));
            // A node that is lost is in use, and told of already; what it led to may be lost with it.
            let whole = lost == 0 && reached == walk.seen.len() as u64;
            if leaked > lost && whole {
                self.damages.push(Damage::NodesLeaked(leaked));
            }
            if free > 0 {
                self.damages.push(Damage::NodesFree(free));
            }
        }
        let mut left: HashSet<u32> = walk.replaced.into_iter().collect();
        for lost in walk.lost.iter().filter(|lost| lost.entries == 0 && u64::from(lost.slot) < shape.nodes) {
            let bit = u64::from(lost.slot)..u64::from(lost.slot) + 1;
            if bits.all(bit.clone(), false) {
                bits.put(bit, true);
                left.insert(lost.slot);
            }
        }
        (0..shape.node_pages()).for_each(|page| bits.touch(page as usize));
        left.retain(|slot| u64::from(*slot) < shape.nodes);
        *nodes = NodeAllocator::new(bits);
        self.inner.state.get_mut().left = left.into_iter().collect();
    }

    /// Step 4; says where the log ends.
    fn log(&mut self) -> Result<u64, Error> {
        let search = search(&self.inner, &self.superblock);
        let found = match search.run(&self.inner.disk) {
            Ok(found) => found,
            Err(why) if is_damage(&why) => {
                self.damages.push(Damage::Log { lsn: Lsn(self.superblock.lsn.0 + 1), why, ends: true });
                return Ok(self.superblock.log_position);
            }
            Err(error) => return Err(error),
        };
        self.replay(&search, &found)?;
        Ok(found.end)
    }

    fn replay(&mut self, search: &LogSearch, found: &LogTail) -> Result<(), Error> {
        let (mut position, mut bytes) = (search.position, Vec::new());
        for header in &found.groups {
            search.read(&self.inner.disk, position, header.blocks(), &mut bytes)?;
            let damaged = Error::Damaged { what: "a group of the log", at: search.place.start.after(position % search.place.blocks) };
            let Some(records) = group::records(header, &bytes) else {
                self.damages.push(Damage::Log { lsn: header.first, why: damaged, ends: true });
                return Ok(());
            };
            for (index, record) in records.into_iter().enumerate() {
                let lsn = Lsn(header.first.0 + index as u64);
                if lsn <= self.recovery.lsn {
                    continue;
                }
                let saved = lsn <= found.durable
                    || match self.inner.is_saved(record, &mut self.recovery.verified) {
                        Ok(saved) => saved,
                        Err(Error::Blocks(_)) => true,
                        Err(error) if is_damage(&error) => false,
                        Err(error) => return Err(error),
                    };
                if !saved {
                    self.recovery.dropped = found.groups.last().map_or(0, |last| last.last().0.saturating_sub(self.recovery.lsn.0));
                    return Ok(());
                }
                self.redo(lsn, record)?;
                self.recovery.lsn = lsn;
                self.recovery.replayed += 1;
            }
            position += header.blocks();
        }
        Ok(())
    }

    /// One batch, as far as it fits.
    fn redo(&mut self, lsn: Lsn, record: &[u8]) -> Result<(), Error> {
        let mut wrong = None;
        for change in ChangeReader::of(record) {
            let Ok(change) = change else {
                wrong = Some(Error::Damaged { what: "a batch of the log", at: self.inner.log.place().start });
                break;
            };
            self.redo_bits(change);
            self.redo_fill(lsn, change);
            // As it was, if a node turns out to be wrong in the middle.
            let mut state = self.inner.state.write();
            let (before, left) = (state.trees.clone(), state.left.len());
            let StoreState { trees, left: slots, .. } = &mut *state;
            match self.inner.change_tree(trees, slots, change) {
                Ok(_) => {}
                Err(error @ Error::Device(_)) if !is_damage(&error) => return Err(error),
                Err(error) => {
                    state.trees = before;
                    state.left.truncate(left);
                    wrong.get_or_insert(error);
                }
            }
        }
        if let Some(why) = wrong {
            self.damages.push(Damage::Log { lsn, why, ends: false });
        }
        Ok(())
    }

    /// Data that the log has. What belongs to nothing in the end is left out then.
    fn redo_fill(&mut self, lsn: Lsn, change: Change<'_>) {
        match change {
            Change::Fill(extent, bytes) if self.superblock.shape.data_range(extent).is_some() => {
                self.inner.filled.put(lsn, extent.start, bytes);
            }
            Change::Free(extent) => drop(self.inner.filled.forget(extent)),
            _ => {}
        }
    }

    /// The bitmap as it should be by its own account, to be compared with the trees.
    fn redo_bits(&mut self, change: Change<'_>) {
        let (extent, used) = match change {
            Change::Use(extent, _) => (extent, true),
            Change::Free(extent) => (extent, false),
            _ => return,
        };
        if let Some(range) = self.superblock.shape.data_range(extent) {
            self.inner.state.get_mut().used.put(range, used);
        }
    }

    /// Step 5.
    fn data(&mut self, owns: Owns<'_>) -> Result<(), Error> {
        let shape = self.superblock.shape;
        let mut bits = Bitmap::new(shape.data_blocks);
        for tree in batch::TreeId::ALL {
            let map = self.inner.state.get_mut().trees[tree as usize].clone();
            map.scan(&self.inner.loader(tree), &[], None, |key, value| {
                owns(tree, key, value, &mut |extent| {
                    if let Some(range) = shape.data_range(extent) {
                        bits.put(range, true);
                    }
                });
                crate::tree::ScanStep::Go
            })?;
        }
        let extent = |row: std::ops::Range<u64>| {
            Extent::new(shape.data_start().after(row.start), u32::try_from(row.end - row.start).unwrap_or(u32::MAX))
        };
        let used = &self.inner.state.get_mut().used;
        let (leaked, free) = (used.minus(&bits), bits.minus(used));
        let more = (leaked.len() + free.len()).saturating_sub(REPORTED_MAX);
        let rows = free.into_iter().map(|row| Damage::Free(extent(row))).chain(leaked.into_iter().map(|row| Damage::Leaked(extent(row))));
        // With a page of the bitmap all this was to be expected.
        if !self.damages.iter().any(|damage| matches!(damage, Damage::Bitmap { .. })) {
            self.damages.extend(rows.take(REPORTED_MAX));
            self.damages.extend((more > 0).then_some(Damage::More(more)));
        }
        (0..shape.data_pages()).for_each(|page| bits.touch(page as usize));
        let in_use = |at: Block| shape.data_range(Extent::new(at, 1)).is_some_and(|range| bits.all(range, true));
        self.inner.filled.retain(in_use);
        self.inner.blocks = BlockAllocator::new(&bits);
        self.inner.state.get_mut().used = bits;
        Ok(())
    }
}
