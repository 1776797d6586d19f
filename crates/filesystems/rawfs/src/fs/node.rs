//! Held files, and the names at which paths begin.

use std::sync::Arc;

use super::attrs::Stat;
use super::core::FsCore;
use super::error::Result;
use super::name::Name;
use super::record::FileKind;
use super::table::Inode;

/// A file that is held: it exists until this is dropped, whatever happens to its names.
pub struct Node {
    pub(super) core: Arc<FsCore>,
    pub(super) inode: Arc<Inode>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.core.release(&self.inode);
    }
}

impl Clone for Node {
    fn clone(&self) -> Node {
        self.core.table.hold_again(&self.inode);
        Node { core: Arc::clone(&self.core), inode: Arc::clone(&self.inode) }
    }
}

impl Node {
    /// Returns the inode number of the file.
    pub fn ino(&self) -> u64 {
        self.inode.ino
    }

    /// Returns the type of the file.
    pub fn kind(&self) -> FileKind {
        self.inode.state.read().record.kind
    }

    /// Its attributes.
    ///
    /// # Errors
    /// Metadata that cannot be read.
    pub fn stat(&self) -> Result<Stat> {
        self.core.stat(&self.inode)
    }
}

impl FsCore {
    /// Returns the name at which a path begins.
    pub fn base(&self, at: &Node, path: &[u8]) -> Result<Arc<Name>> {
        if path.first() == Some(&b'/') { Ok(Arc::clone(&self.root)) } else { self.dir_of(&at.inode) }
    }
}
