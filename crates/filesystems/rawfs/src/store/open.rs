//! Opening: the superblock that counts, the bitmaps, the log behind the checkpoint, and a checkpoint of what came of it.
//!
//! A log group is valid if its checksum is right. The records in it up to what the log itself calls durable are: everything they
//! name was flushed. Those behind it may name data blocks that the cut took: each block is read, and the first that is not what
//! its record says ends the log there. So what is found is what was applied up to some batch, at or behind the last that was
//! synced. Data that the log itself has needs no such look, and is written to its place. Nothing else that the log or the last
//! checkpoint needs is overwritten before the checkpoint at the end counts, so all of this may be interrupted and begins again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use parking_lot::{Mutex, RwLock};

use super::batch::{self, Change, ChangeReader};
use super::cache::NodeCache;
use super::checkpoint::CheckpointMark;
use super::checkpoint_signal::CheckpointSignal;
use super::format::tag;
use super::inner::{LastCheckpoint, StoreCore, StoreState};
use super::logged_data::LoggedData;
use super::settings::{Recovery, Settings};
use crate::budget::Budget;
use crate::disk::{Disk, QueueClass};
use crate::error::Error;
use crate::layout::superblock::{COPIES, Superblock};
use crate::layout::{NODE_BYTES, Shape, bitmap};
use crate::log::group;
use crate::log::read::{LogSearch, LogTail};
use crate::log::ring::RingRegion;
use crate::log::{Log, LogStart};
use crate::space::bits::Bitmap;
use crate::space::blocks::{BlockAllocator, GROUP_BLOCKS};
use crate::space::freed::FreedBlocks;
use crate::space::nodes::NodeAllocator;
use crate::tree::Tree;
use crate::units::{BLOCK_BYTES, Block, Lsn};

/// Pages of the bitmaps, or data blocks, read in one go.
const BLOCKS_AT_ONCE: usize = 64;

/// Opens a store and replays its log.
pub fn open(disk: Disk, settings: &Settings) -> Result<(StoreCore, Recovery), Error> {
    let (superblock, repaired) = usable(&disk, settings)?;
    let mut slots = Vec::new();
    let [nodes, used] = bitmaps(&disk, &superblock, &mut slots, None)?;
    let inner = assemble(disk, settings, &superblock, LoadedState { trees: trees(&superblock)?, nodes, used, slots });
    let search = search(&inner, &superblock);
    let mut recovery = Recovery { clean: superblock.clean, lsn: superblock.lsn, repaired, ..Recovery::default() };
    let mut end = superblock.log_position;
    if !superblock.clean {
        let found = search.run(&inner.disk)?;
        inner.replay(&search, &found, &mut recovery)?;
        end = found.end;
    }
    if settings.read_only {
        inner.log.fail(Error::Device(block::Error::ReadOnly));
        return Ok((inner, recovery));
    }
    let inner = inner.begin(superblock, recovery.lsn, end)?;
    inner.load_roots();
    Ok((inner, recovery))
}

/// What both copies say.
pub(super) fn copies(disk: &Disk) -> Result<[Result<Superblock, Error>; 2], Error> {
    if disk.blocks() < COPIES.len() as u64 {
        return Err(Error::NoImage);
    }
    Ok(COPIES.map(|at: Block| {
        let mut block = vec![0; BLOCK_BYTES];
        disk.read_blocks(QueueClass::Control, at, &mut block)?;
        Superblock::decode(&block, at)
    }))
}

/// The newer of the copies that can be used, and whether one cannot.
pub(super) fn superblock(disk: &Disk) -> Result<(Superblock, bool), Error> {
    match copies(disk)? {
        [Ok(one), Ok(other)] => Ok((if other.generation > one.generation { other } else { one }, false)),
        // A copy of a later version was not left by an accident.
        [Err(error @ Error::Later { .. }), _] | [_, Err(error @ Error::Later { .. })] => Err(error),
        [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok((one, true)),
        [Err(Error::NoImage), Err(error)] | [Err(error), Err(_)] => Err(error),
    }
}

/// The superblock of an image that can be opened so.
pub(super) fn usable(disk: &Disk, settings: &Settings) -> Result<(Superblock, bool), Error> {
    let (superblock, repaired) = superblock(disk)?;
    if settings.uuid.is_some_and(|uuid| uuid != superblock.uuid) {
        return Err(Error::Uuid);
    }
    if superblock.shape.blocks > disk.blocks() {
        return Err(Error::Truncated { image: superblock.shape.blocks, device: disk.blocks() });
    }
    if disk.geometry().read_only && !settings.read_only {
        return Err(Error::ReadOnly);
    }
    Ok((superblock, repaired))
}

/// Where the log goes on behind a checkpoint.
pub(super) fn search(inner: &StoreCore, superblock: &Superblock) -> LogSearch {
    let Superblock { log_position: position, life, lsn, .. } = *superblock;
    LogSearch { place: inner.log.place(), position, life, image: superblock.image(), lsn }
}

fn trees(superblock: &Superblock) -> Result<[Tree; 2], Error> {
    let [names, files] = superblock.roots.map(|root| Tree::at(root.at, root.level).map_err(Error::from));
    Ok([names?, files?])
}

/// What was read from the device of a store that is being opened.
pub(super) struct LoadedState {
    /// The roots of names and of files.
    pub(super) trees: [Tree; 2],
    /// The nodes in use.
    pub(super) nodes: Bitmap,
    /// The data blocks in use.
    pub(super) used: Bitmap,
    /// For each page of the bitmaps the one of its two slots that counts.
    pub(super) slots: Vec<u8>,
}

pub(super) fn assemble(disk: Disk, settings: &Settings, superblock: &Superblock, loaded: LoadedState) -> StoreCore {
    let LoadedState { trees, nodes, used, slots } = loaded;
    let shape = superblock.shape;
    let state = StoreState { trees, left: Vec::new(), used, reader: Arc::new(()), broken: None };
    let budget = settings.budget.map(|all| Arc::new(Budget::new(all.bytes, all.blocks_bytes)));
    let cache = Arc::new(NodeCache::new(settings.node_cache_bytes, budget.clone()));
    if let Some(budget) = &budget {
        let nodes = Arc::downgrade(&cache);
        budget.on_growth(move || {
            if let Some(nodes) = nodes.upgrade() {
                nodes.release_memory();
            }
        });
    }
    StoreCore {
        shape,
        uuid: superblock.uuid,
        tag: tag(&superblock.uuid),
        settings: settings.clone(),
        log: Log::new(superblock.image(), start(shape, superblock, superblock.lsn, superblock.log_position)),
        blocks: BlockAllocator::new(&state.used),
        freed: Mutex::new(FreedBlocks::default()),
        filled: LoggedData::default(),
        written: AtomicU64::new(0),
        saved: AtomicU64::new(superblock.lsn.0),
        nodes: Mutex::new(NodeAllocator::new(nodes)),
        cache,
        budget,
        writing: AtomicU64::new(0),
        last: Mutex::new(LastCheckpoint { superblock: *superblock, slots }),
        generation: AtomicU64::new(superblock.generation),
        bell: CheckpointSignal::default(),
        waiting: AtomicUsize::new(1),
        state: RwLock::new(state),
        disk,
    }
}

fn start(shape: Shape, superblock: &Superblock, lsn: Lsn, position: u64) -> LogStart {
    LogStart { place: RingRegion { start: shape.log_start(), blocks: shape.log_blocks }, position, life: superblock.life, lsn }
}

/// Pages that cannot be read, for who can do without: all their bits are clear then.
pub(super) type Unread<'a> = Option<&'a mut Vec<u64>>;

/// The bitmaps of nodes and of data blocks, and which slot of each page counts.
pub(super) fn bitmaps(disk: &Disk, superblock: &Superblock, slots: &mut Vec<u8>, mut unread: Unread<'_>) -> Result<[Bitmap; 2], Error> {
    let shape = superblock.shape;
    let (of_nodes, all) = (shape.node_pages(), shape.node_pages() + shape.data_pages());
    let nodes = bits(disk, superblock, 0..of_nodes, shape.nodes, slots, &mut unread)?;
    Ok([nodes, bits(disk, superblock, of_nodes..all, shape.data_blocks, slots, &mut unread)?])
}

fn bits(
    disk: &Disk,
    superblock: &Superblock,
    pages: std::ops::Range<u64>,
    bits: u64,
    slots: &mut Vec<u8>,
    unread: &mut Unread<'_>,
) -> Result<Bitmap, Error> {
    let first = pages.start;
    let mut all = Bitmap::new(bits);
    let mut bytes = vec![0; 2 * BLOCKS_AT_ONCE * BLOCK_BYTES];
    for from in pages.clone().step_by(BLOCKS_AT_ONCE) {
        let to = pages.end.min(from + BLOCKS_AT_ONCE as u64);
        let bytes = &mut bytes[..(to - from) as usize * 2 * BLOCK_BYTES];
        let read = disk.read_blocks(QueueClass::Metadata, superblock.shape.page_at(from), bytes);
        for (page, both) in (from..to).zip(bytes.chunks_mut(2 * BLOCK_BYTES)) {
            // One that cannot be read takes those beside it along, so each alone.
            let read = read.or_else(|error| match unread {
                Some(_) => disk.read_blocks(QueueClass::Metadata, superblock.shape.page_at(page), both),
                None => Err(error),
            });
            let took = read.and_then(|()| take_page(superblock, page, both, &mut all, (page - first) as usize));
            slots.push(match (took, &mut *unread) {
                (Ok(slot), _) => slot,
                (Err(Error::Damaged { .. } | Error::Device(block::Error::Media)), Some(unread)) => {
                    all.clear_page((page - first) as usize);
                    unread.push(page);
                    0
                }
                (Err(error), _) => return Err(error),
            });
        }
    }
    Ok(all)
}

/// Takes up a page from its two slots; says which counts.
fn take_page(superblock: &Superblock, page: u64, both: &[u8], all: &mut Bitmap, index: usize) -> Result<u8, Error> {
    let at = superblock.shape.page_at(page);
    let generation = |slot: usize| {
        let slot_bytes = &both[slot * BLOCK_BYTES..][..BLOCK_BYTES];
        bitmap::generation(slot_bytes, at.after(slot as u64), superblock.image())
    };
    let counts = |slot: usize| generation(slot).filter(|generation| *generation <= superblock.generation);
    let damaged = Error::Damaged { what: "a page of a bitmap", at };
    let slot = (0..2).filter(|slot| counts(*slot).is_some()).max_by_key(|slot| counts(*slot)).ok_or(damaged)?;
    if !all.load(index, bitmap::words(&both[slot * BLOCK_BYTES..][..BLOCK_BYTES])) {
        return Err(damaged);
    }
    // Of a checkpoint that was cut off: the next one has the same number, and would bring it to life.
    if (0..2).any(|slot| generation(slot).is_some_and(|generation| generation > superblock.generation)) {
        all.touch(index);
    }
    Ok(slot as u8)
}

impl StoreCore {
    /// So that no lookup has to wait for them. A caller that needs an unreadable one gets the error.
    fn load_roots(&self) {
        let state = self.state.read();
        for tree in batch::TreeId::ALL {
            let _ = state.trees[tree as usize].load_root(&self.loader(tree));
        }
    }

    /// Does what the log says.
    fn replay(&self, search: &LogSearch, found: &LogTail, recovery: &mut Recovery) -> Result<(), Error> {
        let all = found.groups.last().map_or(search.lsn, |last| last.last().max(search.lsn));
        let mut position = search.position;
        let mut bytes = Vec::new();
        for header in &found.groups {
            self.make_room(recovery.lsn, position)?;
            search.read(&self.disk, position, header.blocks(), &mut bytes)?;
            let damaged = Error::Damaged { what: "a group of the log", at: search.place.start.after(position % search.place.blocks) };
            let records = group::records(header, &bytes).ok_or(damaged)?;
            for (index, record) in records.into_iter().enumerate() {
                let lsn = Lsn(header.first.0 + index as u64);
                if lsn <= recovery.lsn {
                    continue;
                }
                if lsn > found.durable && !self.is_saved(record, &mut recovery.verified)? {
                    recovery.dropped = all.0 - recovery.lsn.0;
                    return Ok(());
                }
                self.redo(lsn, record)?;
                recovery.lsn = lsn;
                recovery.replayed += 1;
            }
            position += header.blocks();
        }
        Ok(())
    }

    /// One batch. In the log each is right: one that does not fit what is there is damage.
    fn redo(&self, lsn: Lsn, record: &[u8]) -> Result<(), Error> {
        let mut state = self.state.write();
        let changes = ChangeReader::of(record);
        for change in changes.clone() {
            if let Ok(Change::Use(extent, _)) = change {
                let range = self.shape.data_range(extent).ok_or(Error::Blocks(extent.start))?;
                for part in parts(range) {
                    if !self.blocks.claim(part) {
                        return Err(Error::Blocks(extent.start));
                    }
                }
            }
        }
        self.change(&mut state, changes.clone())?;
        for change in changes.flatten() {
            match change {
                Change::Free(extent) => {
                    let range = self.shape.data_range(extent).ok_or(Error::Blocks(extent.start))?;
                    self.filled.forget(extent);
                    self.blocks.give(range);
                }
                Change::Fill(extent, bytes) => self.filled.put(lsn, extent.start, bytes),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether all data blocks that a record names are what it says. A record that means nothing is for [`StoreCore::redo`] to refuse.
    pub(super) fn is_saved(&self, record: &[u8], verified: &mut u64) -> Result<bool, Error> {
        let mut bytes = vec![0; BLOCKS_AT_ONCE * BLOCK_BYTES];
        for change in ChangeReader::of(record).flatten() {
            let Change::Use(extent, sums) = change else { continue };
            if sums.is_empty() {
                continue;
            }
            if self.shape.data_range(extent).is_none() {
                return Err(Error::Blocks(extent.start));
            }
            let mut at = extent.start;
            for sums in sums.chunks(4 * BLOCKS_AT_ONCE) {
                let bytes = &mut bytes[..sums.len() / 4 * BLOCK_BYTES];
                self.disk.read_blocks(QueueClass::Data, at, bytes)?;
                let right = bytes.chunks(BLOCK_BYTES).zip(sums.chunks(4)).all(|(block, sum)| crc32c::crc32c(block).to_le_bytes() == sum);
                if !right {
                    return Ok(false);
                }
                *verified += (sums.len() / 4) as u64;
                at = at.after((sums.len() / 4) as u64);
            }
        }
        Ok(true)
    }

    /// A long log changes more than may be in memory, or than there are free nodes for: a checkpoint on the way, with the log going
    /// on behind it.
    fn make_room(&self, lsn: Lsn, position: u64) -> Result<(), Error> {
        let dirty = self.state.read().dirty();
        let free = self.nodes.lock().free();
        let fits = dirty * NODE_BYTES as u64 <= self.settings.dirty_bytes as u64 && dirty * 2 <= free;
        if fits || self.settings.read_only {
            return Ok(());
        }
        let mut last = self.last.lock();
        let mark = CheckpointMark { clean: false, life: last.superblock.life, log: Some((lsn, position)), always: false };
        self.checkpoint_as(&mut last, mark)
    }

    /// Begins a new life: the log goes on behind all that was found, and no group of it is taken for one of this life.
    pub(super) fn begin(mut self, superblock: Superblock, lsn: Lsn, end: u64) -> Result<StoreCore, Error> {
        let mark = CheckpointMark { clean: false, life: superblock.life + 1, log: Some((lsn, end)), always: true };
        let mut last = self.last.lock();
        self.checkpoint_as(&mut last, mark)?;
        let superblock = last.superblock;
        drop(last);
        self.log = Log::new(superblock.image(), start(self.shape, &superblock, lsn, end));
        Ok(self)
    }
}

/// A range in pieces that lie each within a group of the allocator.
fn parts(range: std::ops::Range<u64>) -> impl Iterator<Item = std::ops::Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let to = range.end.min((at / GROUP_BLOCKS + 1) * GROUP_BLOCKS);
        let part = at..to;
        at = to;
        (part.start < part.end).then_some(part)
    })
}
