//! The table of known files: what a number names.
//!
//! A node says where a file was last seen: its directory (another node), its name, and its backing inode
//! on each side. Nodes are made by lookups, listings, creations and the scan; they go when the kernel has
//! forgotten them, nothing below them is known and no policy remembers them. A node is a hint that is
//! checked against the backing inode whenever it is used; it is never the truth about a file.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hashbrown::HashMap;
use hashbrown::hash_map;
use parking_lot::{Mutex, RwLock};

use crate::backing::Backing;
use crate::number::ROOT;
use crate::numbers::NumberEntry;
use crate::report::TierName;

/// What was known of a file's extended attributes at a moment.
#[derive(Clone, Copy, Debug)]
pub struct XattrHint(u32);

impl XattrHint {
    /// Returns whether the file certainly has no extended attributes.
    pub fn is_sure(self) -> bool {
        self.0 & 1 != 0
    }
}

/// Where a file was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// May be on both sides.
    Directory,
    /// The only kind that moves.
    Regular,
    /// Links, pipes, sockets, devices: stay where they were made.
    Special,
}

/// Why a file stays known as long as it has a name.
#[derive(Clone, Copy, Debug)]
pub enum KeptFor {
    /// A policy or the scan.
    Policy = 1,
    /// A requested move of the file.
    Move = 2,
}

/// Holds what is known about one file.
#[derive(Debug)]
pub struct Node {
    /// The directory it is in.
    pub parent: u64,
    /// Name of the file in its directory.
    pub name: Box<[u8]>,
    /// Backing inode on the SSD and on the HDD; 0: not there.
    pub backing: Backing,
    /// Type of the file, as far as moves depend on it.
    pub kind: NodeKind,
    /// The name is gone; what keeps it are open or held handles.
    pub nameless: bool,
    /// It had another name when it lost this one.
    linked: bool,
    /// A directory where it had another name, 0: none is known.
    other_parent: u64,
    /// For whom it stays known without the kernel's interest: bits of [`KeptFor`].
    kept: u8,
    /// The last move: seconds since 1970 and a packed direction and reason (0: never).
    pub last_move: (u32, u8),
    /// Mark of the data the kernel may hold in its page cache, 0: none.
    pub cache_stamp: AtomicU32,
    /// It was open for writing and did not grow: `TieredFs::may_bypass`.
    pub settled: AtomicBool,
    /// Lowest bit: it has none of the attributes that programs often read. The rest counts changes of attributes.
    xattr_hint: AtomicU32,
    /// References the kernel holds.
    lookups: AtomicU64,
    /// Number of known files in it.
    children: AtomicU32,
}

impl Node {
    fn new(parent: u64, name: &OsStr, backing: Backing, kind: NodeKind, lookups: u64) -> Node {
        Node {
            parent,
            name: name.as_bytes().into(),
            backing,
            kind,
            nameless: false,
            linked: false,
            other_parent: 0,
            kept: 0,
            last_move: (0, 0),
            cache_stamp: AtomicU32::new(0),
            settled: AtomicBool::new(false),
            xattr_hint: AtomicU32::new(0),
            lookups: AtomicU64::new(lookups),
            children: AtomicU32::new(0),
        }
    }

    /// The side a file is on (the SSD for a directory on both).
    pub fn tier(&self) -> TierName {
        if self.backing[0] != 0 { TierName::Ssd } else { TierName::Hdd }
    }

    /// Adds a reference to one that exists.
    pub fn add_reference(&self) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// Where it can be found when its number is requested again; `None`: it is gone.
    fn last_seen(&self) -> Option<NumberEntry> {
        if self.nameless && !self.linked {
            return None;
        }
        let elsewhere = self.nameless && self.other_parent != 0;
        let parent = if elsewhere { self.other_parent } else { self.parent };
        Some(NumberEntry { parent, hint: NumberEntry::hint_of(self.backing[self.tier() as usize]), linked: self.nameless })
    }

    fn is_kept(&self) -> bool {
        self.kept != 0 && !self.nameless
    }
}

/// A copy of a node's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLocation {
    /// Inode number of the file's directory.
    pub parent: u64,
    /// Name of the file in its directory.
    pub name: OsString,
    /// Backing inodes of the file on both sides.
    pub backing: Backing,
    /// Type of the file, as far as moves depend on it.
    pub kind: NodeKind,
    /// Whether the name was removed while the file is in use.
    pub nameless: bool,
}

impl NodeLocation {
    /// Returns whether both are the same place of the same file. A later lookup may have learned the births of the inodes.
    pub fn fits(&self, other: &NodeLocation) -> bool {
        let same = self.parent == other.parent && self.name == other.name && self.kind == other.kind && self.nameless == other.nameless;
        same && self.backing.fits(&other.backing)
    }

    /// The side a file is on (the SSD for a directory on both).
    pub fn tier(&self) -> TierName {
        if self.backing[0] != 0 { TierName::Ssd } else { TierName::Hdd }
    }

    /// Backing inode on a side, if it is there.
    pub fn on(&self, tier: TierName) -> Option<u64> {
        let ino = self.backing[tier as usize];
        (ino != 0).then_some(ino)
    }
}

/// Holds all known files by inode number.
#[derive(Debug)]
pub struct Nodes {
    map: RwLock<HashMap<u64, Node>>,
    /// What became of the files that are not known any more, in order, until it is taken.
    forgotten: Mutex<Vec<(u64, Option<NumberEntry>)>>,
    /// Whether anybody takes it.
    remembers: AtomicBool,
}

impl Nodes {
    /// A table that knows the root.
    pub fn new(root_backing: [u64; 2]) -> Nodes {
        let mut map = HashMap::new();
        let root = Node {
            parent: ROOT,
            name: Box::default(),
            backing: root_backing.into(),
            kind: NodeKind::Directory,
            nameless: false,
            linked: false,
            other_parent: 0,
            kept: KeptFor::Policy as u8,
            last_move: (0, 0),
            cache_stamp: AtomicU32::new(0),
            settled: AtomicBool::new(false),
            xattr_hint: AtomicU32::new(0),
            lookups: AtomicU64::new(1),
            children: AtomicU32::new(0),
        };
        map.insert(ROOT, root);
        Nodes { map: RwLock::new(map), forgotten: Mutex::default(), remembers: AtomicBool::new(false) }
    }

    /// From now on it is noted where forgotten files were.
    pub fn remember_forgotten(&self) {
        self.remembers.store(true, Ordering::Relaxed);
    }

    /// Takes what became of the files that were forgotten since this was called last.
    pub fn take_forgotten(&self) -> Vec<(u64, Option<NumberEntry>)> {
        std::mem::take(&mut *self.forgotten.lock())
    }

    /// How many of them wait to be taken.
    pub fn forgotten_len(&self) -> usize {
        self.forgotten.lock().len()
    }

    /// Where all known files are that the next mount does not find by itself.
    pub fn all_last_seen(&self) -> Vec<(u64, Option<NumberEntry>)> {
        let map = self.map.read();
        let found_by_scan = |node: &Node| node.kept & KeptFor::Policy as u8 != 0 && !node.nameless;
        map.iter().filter(|(_, node)| !found_by_scan(node)).map(|(ino, node)| (*ino, node.last_seen())).collect()
    }

    /// Returns the number of known files.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.map.read().len()
    }

    /// Where a file was last seen.
    pub fn place(&self, ino: u64) -> Option<NodeLocation> {
        self.with(ino, |node| NodeLocation {
            parent: node.parent,
            name: OsString::from_vec(node.name.to_vec()),
            backing: node.backing,
            kind: node.kind,
            nameless: node.nameless,
        })
    }

    /// Looks at a node under the table's lock.
    pub fn with<T>(&self, ino: u64, look: impl FnOnce(&Node) -> T) -> Option<T> {
        self.map.read().get(&ino).map(look)
    }

    /// What is known of a file's attributes: see [`XattrHint`].
    pub fn xattr_hint(&self, ino: u64) -> Option<XattrHint> {
        self.with(ino, |node| XattrHint(node.xattr_hint.load(Ordering::Acquire)))
    }

    /// Records that a file was seen without attributes, unless they were changed since `before` was taken.
    pub fn note_xattr_hint(&self, ino: u64, before: XattrHint) {
        let _ = self.with(ino, |node| node.xattr_hint.compare_exchange(before.0, before.0 | 1, Ordering::AcqRel, Ordering::Relaxed));
    }

    /// Records that a file's attributes were changed; after the change.
    pub fn attributes_changed(&self, ino: u64) {
        let _ = self
            .with(ino, |node| node.xattr_hint.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |old| Some((old & !1).wrapping_add(2))));
    }

    /// Changes a node under the table's lock.
    pub fn change<T>(&self, ino: u64, change: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.map.write().get_mut(&ino).map(change)
    }

    /// Records that `ino` is `name` in `parent`, adding `lookups` kernel references.
    pub fn upsert(&self, ino: u64, parent: u64, name: &OsStr, backing: impl Into<Backing>, kind: NodeKind, lookups: u64) {
        let backing = backing.into();
        {
            let map = self.map.read();
            if let Some(node) = map.get(&ino) {
                let same = node.parent == parent && *node.name == *name.as_bytes() && node.backing == backing && !node.nameless;
                if same || ino == ROOT {
                    node.lookups.fetch_add(lookups, Ordering::Relaxed);
                    return;
                }
            }
        }
        let mut map = self.map.write();
        let old_parent = match map.entry(ino) {
            hash_map::Entry::Occupied(mut entry) => {
                let node = entry.get_mut();
                node.lookups.fetch_add(lookups, Ordering::Relaxed);
                let old_parent = node.parent;
                node.parent = parent;
                if old_parent != parent {
                    node.other_parent = old_parent;
                }
                node.linked = false;
                if *node.name != *name.as_bytes() {
                    node.name = name.as_bytes().into();
                }
                node.backing = backing;
                node.kind = kind;
                node.nameless = false;
                if old_parent == parent {
                    return;
                }
                Some(old_parent)
            }
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Node::new(parent, name, backing, kind, lookups));
                None
            }
        };
        if let Some(node) = map.get(&parent) {
            node.children.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(old_parent) = old_parent {
            self.unpin(&mut map, old_parent);
        }
    }

    /// Adds a reference for one of us, who found the file by himself. Where it is known to be stays, unless that name is gone:
    /// it may have got another name since it was found, and the kernel does not look for it again.
    pub fn get_or_insert(&self, ino: u64, parent: u64, name: &OsStr, backing: impl Into<Backing>, kind: NodeKind) {
        if let Some(node) = self.map.read().get(&ino).filter(|node| !node.nameless) {
            node.lookups.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.upsert(ino, parent, name, backing, kind, 1);
    }

    /// The file has a new name.
    pub fn renamed(&self, ino: u64, parent: u64, name: &OsStr) {
        let mut map = self.map.write();
        let Some(node) = map.get_mut(&ino) else { return };
        node.name = name.as_bytes().into();
        let old_parent = std::mem::replace(&mut node.parent, parent);
        if old_parent != parent {
            if let Some(node) = map.get(&parent) {
                node.children.fetch_add(1, Ordering::Relaxed);
            }
            self.unpin(&mut map, old_parent);
        }
    }

    /// The name is gone (removed or replaced); `linked`: the file has another. Answers whether the kernel still refers to a file whose
    /// place is not known any more.
    pub fn unnamed(&self, ino: u64, parent: u64, name: &OsStr, linked: bool) -> bool {
        let mut map = self.map.write();
        let Some(node) = map.get_mut(&ino) else { return false };
        if linked && !node.nameless && (node.parent != parent || *node.name != *name.as_bytes()) {
            // It is known by another name.
            return false;
        }
        node.nameless = true;
        node.linked = linked;
        let wanted = node.lookups.load(Ordering::Relaxed) > 0;
        self.drop_if_idle(&mut map, ino);
        wanted
    }

    /// Somebody wants the file to stay known, or does not any more. Answers whether it is known and has a name.
    pub fn keep(&self, ino: u64, whom: KeptFor, on: bool) -> bool {
        let mut map = self.map.write();
        let Some(node) = map.get_mut(&ino) else { return false };
        let named = !node.nameless;
        if on && named {
            node.kept |= whom as u8;
        } else {
            node.kept &= !(whom as u8);
            self.drop_if_idle(&mut map, ino);
        }
        named
    }

    /// The kernel, or one of us, drops `count` references. Answers whether none are left.
    pub fn forget(&self, ino: u64, count: u64) -> bool {
        if ino == ROOT {
            return false;
        }
        {
            let map = self.map.read();
            let Some(node) = map.get(&ino) else { return true };
            // The kernel forgets while we do, and looks up again.
            let less = |before: u64| Some(before.saturating_sub(count)).filter(|left| *left > 0 || node.is_kept());
            if let Ok(before) = node.lookups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
                return before <= count;
            }
        }
        let mut map = self.map.write();
        let Some(node) = map.get_mut(&ino) else { return true };
        let lookups = node.lookups.get_mut();
        *lookups = lookups.saturating_sub(count);
        let gone = *lookups == 0;
        self.drop_if_idle(&mut map, ino);
        gone
    }

    /// A node goes when nobody is interested; so may its directory then.
    fn drop_if_idle(&self, map: &mut HashMap<u64, Node>, ino: u64) {
        let Some(node) = map.get_mut(&ino) else { return };
        let wanted = *node.lookups.get_mut() > 0 || *node.children.get_mut() > 0 || node.is_kept();
        if wanted || ino == ROOT {
            return;
        }
        let parent = node.parent;
        if self.remembers.load(Ordering::Relaxed) {
            self.forgotten.lock().push((ino, node.last_seen()));
        }
        map.remove(&ino);
        self.unpin(map, parent);
    }

    fn unpin(&self, map: &mut HashMap<u64, Node>, parent: u64) {
        if let Some(node) = map.get_mut(&parent) {
            let children = node.children.get_mut();
            *children = children.saturating_sub(1);
            self.drop_if_idle(map, parent);
        }
    }

    /// The path below the mount, without a leading slash.
    pub fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let map = self.map.read();
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let node = map.get(&at)?;
            parts.push(&node.name);
            at = node.parent;
            if parts.len() > 4096 {
                return None;
            }
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    /// Whether `ino` is `dir` or below it.
    pub fn is_below(&self, ino: u64, dir: u64) -> bool {
        let map = self.map.read();
        let mut at = ino;
        for _ in 0..4096 {
            if at == dir {
                return true;
            }
            if at == ROOT {
                return false;
            }
            match map.get(&at) {
                Some(node) => at = node.parent,
                None => return false,
            }
        }
        false
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn upsert(nodes: &Nodes, ino: u64, parent: u64, name: &str, lookups: u64) {
        nodes.upsert(ino, parent, OsStr::new(name), [ino, 0], NodeKind::Regular, lookups);
    }

    #[test]
    fn a_directory_stays_while_something_below_it_is_known() {
        let nodes = Nodes::new([2, 0]);
        nodes.upsert(10, ROOT, OsStr::new("d"), [10, 0], NodeKind::Directory, 1);
        upsert(&nodes, 11, 10, "f", 2);
        assert!(nodes.forget(10, 1));
        assert_eq!(nodes.path(11).as_deref(), Some(&b"d/f"[..]));
        assert!(!nodes.forget(11, 1));
        assert!(nodes.forget(11, 1));
        assert_eq!(nodes.len(), 1);
    }

    #[test]
    fn a_move_to_another_directory_lets_the_old_one_go() {
        let nodes = Nodes::new([2, 0]);
        nodes.upsert(10, ROOT, OsStr::new("a"), [10, 0], NodeKind::Directory, 0);
        nodes.upsert(20, ROOT, OsStr::new("b"), [20, 0], NodeKind::Directory, 0);
        upsert(&nodes, 11, 10, "f", 1);
        nodes.renamed(11, 20, OsStr::new("g"));
        assert_eq!(nodes.path(11).as_deref(), Some(&b"b/g"[..]));
        assert!(nodes.place(10).is_none());
        assert!(nodes.is_below(11, 20));
        assert!(!nodes.is_below(20, 11));
    }

    #[test]
    fn a_tracked_file_outlives_the_kernels_interest_but_not_its_name() {
        let nodes = Nodes::new([2, 0]);
        upsert(&nodes, 11, ROOT, "f", 1);
        assert!(nodes.keep(11, KeptFor::Policy, true));
        assert!(nodes.forget(11, 1));
        assert!(nodes.place(11).is_some());
        assert!(!nodes.unnamed(11, 10, OsStr::new("f"), false));
        assert!(nodes.place(11).is_none());
    }
    #[test]
    fn who_asked_for_a_move_and_who_remembers_a_file_do_not_undo_each_other() {
        let nodes = Nodes::new([2, 0]);
        upsert(&nodes, 11, ROOT, "f", 1);
        nodes.keep(11, KeptFor::Move, true);
        nodes.keep(11, KeptFor::Policy, true);
        assert!(nodes.forget(11, 1));
        nodes.keep(11, KeptFor::Policy, false);
        assert!(nodes.place(11).is_some());
        nodes.keep(11, KeptFor::Move, false);
        assert_eq!((nodes.len(), nodes.keep(11, KeptFor::Move, true)), (1, false));
    }

    #[test]
    fn who_finds_a_file_late_does_not_take_its_new_name_away() {
        let nodes = Nodes::new([2, 0]);
        upsert(&nodes, 11, ROOT, "old", 1);
        nodes.renamed(11, ROOT, OsStr::new("new"));
        nodes.get_or_insert(11, ROOT, OsStr::new("old"), [11, 0], NodeKind::Regular);
        assert_eq!(nodes.path(11).as_deref(), Some(&b"new"[..]));
        assert!(!nodes.forget(11, 1));
        assert!(nodes.forget(11, 1));
        assert_eq!(nodes.len(), 1);
    }

    #[test]
    fn two_who_forget_files_at_once_leave_nothing_behind() {
        const FILES: u64 = 200_000;
        let nodes = Nodes::new([2, 0]);
        (0..FILES).for_each(|n| upsert(&nodes, 10 + n, ROOT, "f", 2));
        let together = std::sync::Barrier::new(2);
        let forget_all = || {
            together.wait();
            (0..FILES).filter(|n| nodes.forget(10 + n, 1)).count() as u64
        };
        let last =
            std::thread::scope(|scope| [scope.spawn(forget_all), scope.spawn(forget_all)].map(|thread| thread.join().expect("forgot")));
        assert_eq!((last[0] + last[1], nodes.len()), (FILES, 1));
    }
}
