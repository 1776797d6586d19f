//! Directories of the image.

use anyhow::Context;
use rustix::fs::OFlags;
use stack::rawfs::fs::{DirEntry, FileKind, Node};

use super::session::Session;
use super::shown;

/// Directories in each other, at most: the length of the longest path.
const DEEPEST: usize = 2048;

/// Hears of a path, what it is, and how deep.
pub type Visit<'v> = dyn FnMut(&[u8], FileKind, usize) -> anyhow::Result<()> + 'v;

/// A path below a directory.
pub fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last name of a path.
pub fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

impl Session {
    /// What a path leads to.
    pub fn node(&self, path: &[u8], follow: bool) -> anyhow::Result<Node> {
        let fs = self.fs()?;
        fs.lookup(fs.root(), path, follow, &self.creds).with_context(|| shown(path))
    }

    /// Whether it is a directory, or leads to one.
    pub fn is_dir(&self, path: &[u8]) -> bool {
        self.node(path, true).is_ok_and(|node| node.kind() == FileKind::Dir)
    }

    /// What is in a directory, in order, without the dots. An image may hold anything: a name that is none is an error.
    pub fn entries(&self, path: &[u8]) -> anyhow::Result<Vec<DirEntry>> {
        let fs = self.fs()?;
        let read = || {
            let dir = fs.open_at(fs.root(), path, OFlags::RDONLY | OFlags::DIRECTORY, 0, &self.creds)?;
            let mut entries = Vec::new();
            dir.read_dir(&mut |entry, _| {
                entries.push(entry.clone());
                true
            })?;
            Ok::<_, stack::rawfs::fs::Error>(entries)
        };
        let mut entries: Vec<DirEntry> = read().with_context(|| shown(path))?;
        entries.retain(|entry| entry.name != b"." && entry.name != b"..");
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let is_name = |entry: &DirEntry| !entry.name.is_empty() && !entry.name.iter().any(|byte| matches!(byte, b'/' | 0));
        match entries.iter().find(|entry| !is_name(entry)) {
            Some(entry) => anyhow::bail!("{}: holds `{}`, which is no name: run `checkfs`", shown(path), shown(&entry.name)),
            None => Ok(entries),
        }
    }

    /// Every path from this one down, directories before what they hold, with what it is and how deep.
    pub fn walk(&self, path: &[u8], each: &mut Visit<'_>) -> anyhow::Result<()> {
        // One directory after the other, not one call in the other: paths may be deep.
        let kind = self.node(path, false)?.kind();
        let mut waiting = vec![(path.to_vec(), kind, 0)];
        while let Some((path, kind, depth)) = waiting.pop() {
            self.go_on()?;
            each(&path, kind, depth)?;
            if kind == FileKind::Dir {
                anyhow::ensure!(depth < DEEPEST, "{}: too deep", shown(&path));
                let entries = self.entries(&path)?;
                waiting.extend(entries.into_iter().rev().map(|entry| (below(&path, &entry.name), entry.kind, depth + 1)));
            }
        }
        Ok(())
    }
}
