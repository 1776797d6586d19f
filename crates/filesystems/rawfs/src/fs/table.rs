//! The files in use, by number.
//!
//! A file is here as long as somebody holds it: a handle, a node, a call that is under way, or the list of what is to be written
//! back. All changes of a file's record go through what is here, so what was read from the store while it is not here is true
//! until the epoch changes: see [`InodeTable::epoch`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};

use super::error::Error;
use super::name::Name;
use super::record::Record;
use crate::Lsn;
use crate::page::Page;

/// A file in use, with its lock.
pub struct Inode {
    /// The inode number of the file.
    pub ino: u64,
    /// The state of the file behind its lock.
    pub state: RwLock<InodeState>,
}

/// What is known of a file in use.
pub struct InodeState {
    /// Newer than the store's if `changed`. Of a directory only kind and number count: the rest is in the store.
    pub record: Record,
    /// `None` until it was read.
    pub at: Option<RecordLocation>,
    /// Blocks that are not written yet, by their place in the file.
    pub pages: BTreeMap<u64, Page>,
    /// The record is newer than the store's.
    pub changed: bool,
    /// In the list of what is to be written back.
    pub listed: bool,
    /// Memory it is counted with there, beside its pages, in bytes.
    pub weight: u64,
    /// Blocks that are promised to this file beside its pages ([`super::file::File::reserve`]).
    pub reserved: u64,
    /// Made without a name, and may be given one.
    pub linkable: bool,
    /// What a sync of this file has to wait for.
    pub lsn: Lsn,
    /// How often writing back failed, and how it did the last time.
    pub errors: u64,
    /// Of those, how many a handle has reported.
    pub reported: u64,
    /// The last error of a write-back.
    pub error: Option<Error>,
}

/// Where the record of a file is stored.
#[derive(Clone)]
pub enum RecordLocation {
    /// With its only name.
    Name(Arc<Name>),
    /// In Files: it has several names or none.
    Files,
}

impl InodeState {
    fn new(record: Record, at: Option<RecordLocation>) -> InodeState {
        let pages = BTreeMap::new();
        InodeState {
            record,
            at,
            pages,
            changed: false,
            listed: false,
            weight: 0,
            reserved: 0,
            linkable: false,
            lsn: Lsn(0),
            errors: 0,
            reported: 0,
            error: None,
        }
    }

    /// Whether the store has the same record.
    pub fn is_clean(&self) -> bool {
        !self.changed && self.pages.is_empty()
    }

    /// The errors that a new handle need not report.
    pub fn seen_at_open(&self) -> u64 {
        if self.reported < self.errors { self.errors - 1 } else { self.errors }
    }
}

struct InodeSlot {
    inode: Arc<Inode>,
    holds: u64,
}

const SHARDS: usize = 64;

/// The table of files in use, by inode number.
pub struct InodeTable {
    shards: Vec<Mutex<HashMap<u64, InodeSlot>>>,
    epoch: AtomicU64,
}

impl Default for InodeTable {
    fn default() -> Self {
        InodeTable { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), epoch: AtomicU64::new(0) }
    }
}

impl InodeTable {
    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, InodeSlot>> {
        &self.shards[(ino % SHARDS as u64) as usize]
    }

    /// Changes when a file leaves: while it stays, a record read from the store is that of a file that is not here.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Holds a file that is here.
    pub fn hold(&self, ino: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        let slot = shard.get_mut(&ino)?;
        slot.holds += 1;
        Some(Arc::clone(&slot.inode))
    }

    /// Holds a file, put here if it is not yet. `at` is `None` if its record is to be read once more.
    pub fn enter(&self, record: &Record, at: Option<&RecordLocation>) -> Arc<Inode> {
        let ino = record.ino;
        let new = || Arc::new(Inode { ino, state: RwLock::new(InodeState::new(record.clone(), at.cloned())) });
        let mut shard = self.shard(ino).lock();
        let slot = shard.entry(ino).or_insert_with(|| InodeSlot { inode: new(), holds: 0 });
        slot.holds += 1;
        Arc::clone(&slot.inode)
    }

    /// Adds one more reference to a held inode.
    pub fn hold_again(&self, inode: &Inode) {
        self.shard(inode.ino).lock().get_mut(&inode.ino).expect("held").holds += 1;
    }

    /// Lets go; returns how often it is held now. When it is no more, it has left.
    pub fn release(&self, inode: &Inode) -> u64 {
        let mut shard = self.shard(inode.ino).lock();
        let slot = shard.get_mut(&inode.ino).expect("held");
        slot.holds -= 1;
        let left = slot.holds;
        if left == 0 {
            self.epoch.fetch_add(1, Ordering::SeqCst);
            shard.remove(&inode.ino);
        }
        left
    }

    /// How often a file is held.
    pub fn holds(&self, inode: &Inode) -> u64 {
        self.shard(inode.ino).lock().get(&inode.ino).map_or(0, |slot| slot.holds)
    }

    /// Whether a file with this number is here.
    pub fn is_used(&self, ino: u64) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Returns the number of inodes in the table.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
