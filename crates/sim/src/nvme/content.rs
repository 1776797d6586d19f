//! The blocks of a namespace.

use std::sync::Arc;

use crate::device::crash::Medium;

/// What a namespace is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceShape {
    /// A power of two, from 512 on.
    pub block_bytes: u32,
    /// Of that size.
    pub blocks: u64,
    /// Beside each block.
    pub metadata_bytes: u16,
    /// May not be written.
    pub write_protected: bool,
}

impl NamespaceShape {
    /// A plain one.
    pub fn plain(block_bytes: u32, blocks: u64) -> NamespaceShape {
        NamespaceShape { block_bytes, blocks, metadata_bytes: 0, write_protected: false }
    }
}

pub(super) struct Content {
    pub shape: NamespaceShape,
    /// As reads see it.
    pub bytes: Vec<u8>,
    pub medium: Option<Medium>,
}

/// A change that began.
pub(super) struct Change {
    at: usize,
    data: Arc<[u8]>,
    /// Its name in the books.
    id: Option<u64>,
}

impl Content {
    pub(super) fn new(shape: NamespaceShape, keeps_books: bool) -> Content {
        let bytes = vec![0; usize::try_from(shape.blocks * u64::from(shape.block_bytes)).expect("in memory")];
        let medium = keeps_books.then(|| Medium::new(bytes.clone(), shape.block_bytes.min(512) as usize));
        Content { shape, bytes, medium }
    }

    pub(super) fn replace(&mut self, bytes: Vec<u8>, keeps_books: bool) {
        assert_eq!(bytes.len(), self.bytes.len(), "the size stays");
        self.medium = keeps_books.then(|| Medium::new(bytes.clone(), self.shape.block_bytes.min(512) as usize));
        self.bytes = bytes;
    }

    /// The bytes of blocks; none: some are not there.
    pub(super) fn range(&self, lba: u64, blocks: u64) -> Option<std::ops::Range<usize>> {
        let end = lba.checked_add(blocks).filter(|end| *end <= self.shape.blocks)?;
        let size = u64::from(self.shape.block_bytes);
        Some((lba * size) as usize..(end * size) as usize)
    }

    pub(super) fn begin(&self, at: usize, data: Vec<u8>, optional: bool) -> Change {
        let data: Arc<[u8]> = data.into();
        let id = self.medium.as_ref().map(|medium| medium.begins(at, Arc::clone(&data), optional));
        Change { at, data, id }
    }

    /// `through`: it is durable now.
    pub(super) fn end(&mut self, change: &Change, through: bool) {
        self.bytes[change.at..change.at + change.data.len()].copy_from_slice(&change.data);
        if let (Some(medium), Some(id)) = (&self.medium, change.id) {
            medium.ends(id, through);
        }
    }

    /// Nobody will be told whether it was done.
    pub(super) fn give_up(&mut self, change: &Change, done: bool) {
        if done {
            self.bytes[change.at..change.at + change.data.len()].copy_from_slice(&change.data);
        }
        if let (Some(medium), Some(id)) = (&self.medium, change.id) {
            medium.given_up(id);
        }
    }
}
