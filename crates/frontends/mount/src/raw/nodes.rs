//! What the kernel knows by number: held as long as it does.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::RwLock;
use rawfs::fs::Node;
use rustix::io::Errno;

use crate::direct_writes::KernelCacheState;

/// The top's number in the protocol. Its own number in the file system is its, too.
pub const ROOT: u64 = 1;

struct KnownInode {
    node: Node,
    /// Number of lookups that the kernel has not forgotten.
    lookups: u64,
    cached: Arc<KernelCacheState>,
}

/// Maps the inode numbers that the kernel knows to nodes of the image.
#[derive(Default)]
pub struct Nodes {
    map: RwLock<HashMap<u64, KnownInode>>,
}

impl Nodes {
    /// The node of a number; ESTALE for one the kernel was not told of.
    pub fn get(&self, ino: u64) -> Result<Node, Errno> {
        self.map.read().get(&ino).map(|known| known.node.clone()).ok_or(Errno::STALE)
    }

    /// What the kernel may have cached of a node that it knows.
    pub fn cached(&self, ino: u64) -> Option<Arc<KernelCacheState>> {
        self.map.read().get(&ino).map(|known| Arc::clone(&known.cached))
    }

    /// Adds one lookup by the kernel.
    pub fn remember(&self, ino: u64, node: Node, cached: impl FnOnce() -> Arc<KernelCacheState>) {
        match self.map.write().entry(ino) {
            Entry::Occupied(mut known) => known.get_mut().lookups += 1,
            Entry::Vacant(vacant) => drop(vacant.insert(KnownInode { node, lookups: 1, cached: cached() })),
        }
    }

    /// The kernel has forgotten it so often.
    pub fn forget(&self, ino: u64, times: u64) {
        let mut map = self.map.write();
        let Entry::Occupied(mut known) = map.entry(ino) else { return };
        known.get_mut().lookups = known.get().lookups.saturating_sub(times);
        let gone = (known.get().lookups == 0).then(|| known.remove());
        // Letting go of a file without a name frees its blocks: not under the lock.
        drop(map);
        drop(gone);
    }

    /// Drops all nodes when the mount ends.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.map.write());
        drop(all);
    }
}
