//! The blocks of a namespace.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crate::device::crash::Medium;

/// The configuration of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceConfig {
    /// Block size, a power of two from 512.
    pub block_bytes: u32,
    /// Number of blocks of that size.
    pub blocks: u64,
    /// Metadata bytes of each block.
    pub metadata_bytes: u16,
    /// Writes fail with a write-protected status.
    pub write_protected: bool,
}

impl NamespaceConfig {
    /// Returns the size of all blocks, in bytes.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.blocks * u64::from(self.block_bytes)).expect("in memory")
    }

    /// Returns a configuration without metadata or write protection.
    pub fn plain(block_bytes: u32, blocks: u64) -> NamespaceConfig {
        NamespaceConfig { block_bytes, blocks, metadata_bytes: 0, write_protected: false }
    }
}

/// The storage of the blocks.
pub(super) enum BlockStore {
    Memory(Vec<u8>),
    /// A file as large as the namespace.
    File(File),
}

impl BlockStore {
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> io::Result<()> {
        match self {
            BlockStore::Memory(bytes) => to.copy_from_slice(&bytes[at..at + to.len()]),
            BlockStore::File(file) => file.read_exact_at(to, at as u64)?,
        }
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<()> {
        match self {
            BlockStore::Memory(bytes) => bytes[at..at + from.len()].copy_from_slice(from),
            BlockStore::File(file) => file.write_all_at(from, at as u64)?,
        }
        Ok(())
    }

    /// Makes written data durable across a crash of the machine.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            BlockStore::Memory(_) => Ok(()),
            BlockStore::File(file) => file.sync_data(),
        }
    }
}

pub(super) struct NamespaceContent {
    /// The configuration of the namespace.
    pub shape: NamespaceConfig,
    /// The content that reads return.
    pub store: BlockStore,
    /// The durability state, if it is tracked.
    pub medium: Option<Medium>,
}

/// The bytes of a change.
enum ChangeData {
    /// Shared with the durability state.
    Kept(Arc<[u8]>),
    Own(Vec<u8>),
}

impl std::ops::Deref for ChangeData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            ChangeData::Kept(bytes) => bytes,
            ChangeData::Own(bytes) => bytes,
        }
    }
}

/// A change in progress.
pub(super) struct BlockChange {
    at: usize,
    data: ChangeData,
    /// Its id in the durability state.
    id: Option<u64>,
}

impl NamespaceContent {
    pub(super) fn new(shape: NamespaceConfig, tracks_durability: bool) -> NamespaceContent {
        let bytes = vec![0; shape.bytes()];
        let medium = tracks_durability.then(|| Medium::new(bytes.clone(), shape.block_bytes.min(512) as usize));
        NamespaceContent { shape, store: BlockStore::Memory(bytes), medium }
    }

    /// Moves the blocks into a file as large as the namespace. Its content counts as durable.
    pub(super) fn put_into(&mut self, file: File, tracks_durability: bool) -> io::Result<()> {
        self.store = BlockStore::File(file);
        if tracks_durability {
            self.medium = Some(Medium::new(self.whole()?, self.shape.block_bytes.min(512) as usize));
        }
        Ok(())
    }

    pub(super) fn whole(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.shape.bytes()];
        self.store.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the content as a power cut may leave it.
    pub(super) fn cut_power(&mut self, seed: u64) -> io::Result<()> {
        if let Some(bytes) = self.medium.as_ref().map(|medium| medium.power_cut(seed)) {
            self.replace(bytes, true)?;
        }
        self.store.sync()
    }

    pub(super) fn replace(&mut self, bytes: Vec<u8>, tracks_durability: bool) -> io::Result<()> {
        assert_eq!(bytes.len(), self.shape.bytes(), "the size stays");
        self.store.write(0, &bytes)?;
        self.medium = tracks_durability.then(|| Medium::new(bytes, self.shape.block_bytes.min(512) as usize));
        Ok(())
    }

    /// Returns the byte range of blocks. `None`: out of range.
    pub(super) fn range(&self, lba: u64, blocks: u64) -> Option<std::ops::Range<usize>> {
        let end = lba.checked_add(blocks).filter(|end| *end <= self.shape.blocks)?;
        let size = u64::from(self.shape.block_bytes);
        Some((lba * size) as usize..(end * size) as usize)
    }

    pub(super) fn begin(&self, at: usize, data: Vec<u8>, optional: bool) -> BlockChange {
        let Some(medium) = &self.medium else { return BlockChange { at, data: ChangeData::Own(data), id: None } };
        let data: Arc<[u8]> = data.into();
        let id = Some(medium.begin_write(at, Arc::clone(&data), optional));
        BlockChange { at, data: ChangeData::Kept(data), id }
    }

    /// Returns the bytes for direct changes. `None`: durability is tracked, or they are in a file.
    pub(super) fn in_place(&mut self) -> Option<&mut [u8]> {
        match &mut self.store {
            BlockStore::Memory(bytes) if self.medium.is_none() => Some(bytes),
            _ => None,
        }
    }

    /// Completes a change. `through`: it is durable now.
    pub(super) fn end(&mut self, change: &BlockChange, through: bool) -> io::Result<()> {
        self.store.write(change.at, &change.data)?;
        if through {
            self.store.sync()?;
        }
        if let (Some(medium), Some(id)) = (&self.medium, change.id) {
            medium.complete_write(id, through);
        }
        Ok(())
    }

    /// Returns the buffer of a change, for reuse.
    pub(super) fn memory_of(change: BlockChange) -> Option<Vec<u8>> {
        match change.data {
            ChangeData::Own(bytes) => Some(bytes),
            ChangeData::Kept(_) => None,
        }
    }

    /// Abandons a change whose completion is never reported.
    pub(super) fn give_up(&mut self, change: &BlockChange, done: bool) {
        if done {
            // The error cannot be reported: the change is lost.
            let _ = self.store.write(change.at, &change.data);
        }
        if let (Some(medium), Some(id)) = (&self.medium, change.id) {
            medium.abandon_write(id);
        }
    }
}
