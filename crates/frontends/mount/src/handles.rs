//! What the kernel's file handles stand for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hybridfs::{FileHandle, Listing};
use parking_lot::RwLock;
use rustix::io::Errno;
use std::collections::HashMap;

use crate::direct_writes::KernelCacheState;

/// An open file as the kernel knows it.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub handle: FileHandle,
    /// Its data bypasses us.
    pub bypass: bool,
    /// What the kernel may have cached of it.
    pub cached: Arc<KernelCacheState>,
}

/// Numbered open things.
#[derive(Debug)]
pub struct HandleTable<T> {
    map: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        HandleTable { map: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> HandleTable<T> {
    /// A number for something.
    pub fn add(&self, what: T) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.map.write().insert(number, Arc::new(what));
        number
    }

    /// What a number stands for.
    pub fn get(&self, number: u64) -> Result<Arc<T>, Errno> {
        self.map.read().get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Gives all numbers back.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.map.write());
        drop(all);
    }

    /// Gives a number back.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.map.write().remove(&number)
    }
}

/// All open files and directories.
#[derive(Debug, Default)]
pub struct Handles {
    /// Files.
    pub files: HandleTable<OpenFile>,
    /// Directories.
    pub dirs: HandleTable<Listing>,
}
