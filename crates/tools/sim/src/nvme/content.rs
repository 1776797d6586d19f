//! The blocks of a namespace.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crate::device::crash::Medium;

/// What a namespace is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceConfig {
    /// A power of two, from 512 on.
    pub block_bytes: u32,
    /// Of that size.
    pub blocks: u64,
    /// Beside each block.
    pub metadata_bytes: u16,
    /// May not be written.
    pub write_protected: bool,
}

impl NamespaceConfig {
    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.blocks * u64::from(self.block_bytes)).expect("in memory")
    }

    /// A plain one.
    pub fn plain(block_bytes: u32, blocks: u64) -> NamespaceConfig {
        NamespaceConfig { block_bytes, blocks, metadata_bytes: 0, write_protected: false }
    }
}

/// Where the blocks are.
pub(super) enum BlockStore {
    Memory(Vec<u8>),
    /// As long as the namespace.
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

    /// What was written survives a crash of the machine.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            BlockStore::Memory(_) => Ok(()),
            BlockStore::File(file) => file.sync_data(),
        }
    }
}

pub(super) struct NamespaceContent {
    pub shape: NamespaceConfig,
    /// As reads see it.
    pub store: BlockStore,
    pub medium: Option<Medium>,
}

/// The bytes of a change.
enum ChangeData {
    /// The books have them, too.
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

/// A change that began.
pub(super) struct BlockChange {
    at: usize,
    data: ChangeData,
    /// Its name in the books.
    id: Option<u64>,
}

impl NamespaceContent {
    pub(super) fn new(shape: NamespaceConfig, tracks_durability: bool) -> NamespaceContent {
        let bytes = vec![0; shape.bytes()];
        let medium = tracks_durability.then(|| Medium::new(bytes.clone(), shape.block_bytes.min(512) as usize));
        NamespaceContent { shape, store: BlockStore::Memory(bytes), medium }
    }

    /// From now on in a file, which is as long as the namespace. What is in it counts as durable.
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

    /// As a loss of power may leave it.
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

    /// The bytes of blocks; none: some are not there.
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

    /// The bytes themselves, to be changed in place; none: there are books of them, or they are in a file.
    pub(super) fn in_place(&mut self) -> Option<&mut [u8]> {
        match &mut self.store {
            BlockStore::Memory(bytes) if self.medium.is_none() => Some(bytes),
            _ => None,
        }
    }

    /// `through`: it is durable now.
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

    /// Its memory, to be used again.
    pub(super) fn memory_of(change: BlockChange) -> Option<Vec<u8>> {
        match change.data {
            ChangeData::Own(bytes) => Some(bytes),
            ChangeData::Kept(_) => None,
        }
    }

    /// Nobody will be told whether it was done.
    pub(super) fn give_up(&mut self, change: &BlockChange, done: bool) {
        if done {
            // Nobody is told: it is as if it had not been done.
            let _ = self.store.write(change.at, &change.data);
        }
        if let (Some(medium), Some(id)) = (&self.medium, change.id) {
            medium.abandon_write(id);
        }
    }
}
