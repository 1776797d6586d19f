//! Directories that paths led to of late: a program that creates a thousand files in one looks it up once.
//!
//! What is remembered is true as long as no directory got another key ([`super::name::moves`]) and this one was not removed: a path of
//! plain names leads where it led.

use std::sync::Arc;

use parking_lot::Mutex;

use super::name::{self, Name};

const SLOTS: usize = 1024;

struct RecentSlot {
    moves: u64,
    path: Box<[u8]>,
    dir: Arc<Name>,
}

/// The recent directories by path. Paths begin at the top.
pub struct RecentDirs {
    slots: Vec<Mutex<Option<RecentSlot>>>,
}

impl Default for RecentDirs {
    fn default() -> Self {
        RecentDirs { slots: (0..SLOTS).map(|_| Mutex::default()).collect() }
    }
}

impl RecentDirs {
    fn slot(&self, path: &[u8]) -> &Mutex<Option<RecentSlot>> {
        &self.slots[crc32c::crc32c(path) as usize % SLOTS]
    }

    /// The directory of a path.
    pub fn get(&self, path: &[u8]) -> Option<Arc<Name>> {
        let slot = self.slot(path).lock();
        let known = slot.as_ref().filter(|slot| slot.moves == name::moves() && *slot.path == *path && !slot.dir.is_gone())?;
        Some(Arc::clone(&known.dir))
    }

    /// A path led there; `moves` is of before it was looked for.
    pub fn put(&self, path: &[u8], dir: &Arc<Name>, moves: u64) {
        let new = RecentSlot { moves, path: path.into(), dir: Arc::clone(dir) };
        // The last to hold a name lets go of it behind the lock.
        let old = self.slot(path).lock().replace(new);
        drop(old);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_directory_is_remembered_until_it_moves_or_goes() {
        let (root, recent) = (Name::root(), RecentDirs::default());
        let (dir, other) = (root.child(b"a", None).child(b"b", None), root.child(b"x", None));
        recent.put(b"/a/b", &dir, name::moves());
        // Other tests move names too.
        let found = recent.get(b"/a/b");
        assert!(found.is_none_or(|found| Arc::ptr_eq(&found, &dir)) && recent.get(b"/a").is_none());
        root.child(b"a", None).rename(&root, b"c");
        assert!(recent.get(b"/a/b").is_none());
        recent.put(b"/x", &other, name::moves());
        other.remove();
        assert!(recent.get(b"/x").is_none());
    }
}
