//! A block's bytes in memory, shared by its readers.

use std::ops::Deref;
use std::sync::Arc;

use crate::BLOCK_BYTES;

/// Bytes of a block, as a device has them.
pub type Bytes = [u8; BLOCK_BYTES];

/// A block's bytes in memory, shared by all its readers.
#[derive(Clone)]
#[expect(clippy::redundant_allocation, reason = "with the count beside the bytes an allocator gives a quarter more than they take")]
pub struct Page(Arc<Box<Bytes>>);

impl Page {
    /// Makes a page with these bytes.
    pub fn new(bytes: &Bytes) -> Page {
        Page::of(bytes.to_vec())
    }

    /// Makes a page of zeros.
    pub fn zero() -> Page {
        Page::of(vec![0; BLOCK_BYTES])
    }

    fn of(bytes: Vec<u8>) -> Page {
        Page(Arc::new(bytes.try_into().expect("as many as a block has")))
    }

    /// To be changed: a copy if somebody else has it.
    pub fn make_mut(&mut self) -> &mut Bytes {
        &mut *Arc::make_mut(&mut self.0)
    }

    /// To be changed, if nobody else has it.
    pub fn get_mut(&mut self) -> Option<&mut Bytes> {
        Arc::get_mut(&mut self.0).map(|bytes| &mut **bytes)
    }
}

impl Deref for Page {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.0
    }
}
