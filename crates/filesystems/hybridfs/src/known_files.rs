//! Files that stay known while they are used.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::errno::Result;
use crate::names::FoundName;
use crate::number::ROOT;
use crate::pair::TieredFs;

/// Files that stay known as long as this is there. A number for which nobody has a reference means nothing any more: the kernel forgets
/// at any moment, when memory is scarce.
pub(crate) struct KnownFiles<'a> {
    fs: &'a TieredFs,
    inos: Vec<u64>,
}

impl KnownFiles<'_> {
    pub(crate) fn new(fs: &TieredFs) -> KnownFiles<'_> {
        KnownFiles { fs, inos: Vec::new() }
    }

    /// Records what was found in a directory.
    pub(crate) fn upsert(&mut self, found: &FoundName, parent: u64, name: &OsStr) {
        self.fs.nodes.get_or_insert(found.ino, parent, name, found.backing, found.kind);
        self.inos.push(found.ino);
    }

    /// Takes over a reference that the caller has.
    pub(crate) fn adopt(&mut self, ino: u64) {
        self.inos.push(ino);
    }

    /// Records what was found at a place that is newer than the known one.
    pub(crate) fn place(&mut self, found: &FoundName, parent: u64, name: &OsStr) {
        self.fs.nodes.upsert(found.ino, parent, name, found.backing, found.kind, 1);
        self.inos.push(found.ino);
    }
}

impl Drop for KnownFiles<'_> {
    fn drop(&mut self) {
        // Those below first.
        self.inos.iter().rev().for_each(|ino| self.fs.forget(*ino, 1));
    }
}

impl TieredFs {
    /// Follows a path below the mount; symbolic links are not followed. Calls `visit` for each name on the way.
    pub(crate) fn walk_along(&self, path: &[u8], visit: &mut dyn FnMut(&FoundName, u64, &OsStr)) -> Result<u64> {
        let mut at = ROOT;
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            let name = OsStr::from_bytes(part);
            let dir = self.dir(at)?;
            let found = self.find(&dir, name)?;
            visit(&found, at, name);
            at = found.ino;
        }
        Ok(at)
    }

    /// What a path names, which stays known as long as the second of what is returned.
    pub(crate) fn known_at(&self, path: &[u8]) -> Result<(u64, KnownFiles<'_>)> {
        let mut known = KnownFiles::new(self);
        let ino = self.walk_along(path, &mut |found, parent, name| known.upsert(found, parent, name))?;
        Ok((ino, known))
    }
}
