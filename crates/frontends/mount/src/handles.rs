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
    /// The open file of the tiered file system.
    pub handle: FileHandle,
    /// Whether reads and writes bypass the daemon.
    pub bypass: bool,
    /// What the kernel may have cached of it.
    pub cached: Arc<KernelCacheState>,
}

/// Maps the handle numbers that the kernel knows to open objects.
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
    /// Stores an open object and returns its new handle number.
    pub fn add(&self, what: T) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.map.write().insert(number, Arc::new(what));
        number
    }

    /// Stores an object under a number that the kernel knows already.
    pub fn insert(&self, number: u64, what: T) {
        self.next.fetch_max(number + 1, Ordering::Relaxed);
        self.map.write().insert(number, Arc::new(what));
    }

    /// Returns all objects with their numbers.
    pub fn all(&self) -> Vec<(u64, Arc<T>)> {
        self.map.read().iter().map(|(number, what)| (*number, Arc::clone(what))).collect()
    }

    /// Returns the numbers of all handles.
    pub fn numbers(&self) -> Vec<u64> {
        self.map.read().keys().copied().collect()
    }

    /// Returns the object of a handle number.
    pub fn get(&self, number: u64) -> Result<Arc<T>, Errno> {
        self.map.read().get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Removes all handles and drops their objects.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.map.write());
        drop(all);
    }

    /// Removes a handle and returns its object.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.map.write().remove(&number)
    }
}

/// The tables of open files and directories.
#[derive(Debug, Default)]
pub struct Handles {
    /// The open files of the mount.
    pub files: HandleTable<OpenFile>,
    /// The open directories of the mount.
    pub dirs: HandleTable<Listing>,
}
