//! The tree of names that are in use: what is open, and the directories above it.
//!
//! A name knows its parent, so the key of an open file is found by walking up, and stays right when a directory above is renamed:
//! only that directory's name moves. Names are here as long as somebody holds them; their number is bounded by what is open.
//!
//! Who moves or removes a name holds the locks of [`super::locks`] that keep others from looking it up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use foldhash::HashMap;
use parking_lot::Mutex;

use super::key::KeyPrefix;
use super::record::Record;

/// A name in use, with a link to its parent.
pub struct Name {
    place: Mutex<NamePosition>,
    children: Mutex<HashMap<Box<[u8]>, Weak<Name>>>,
}

/// Names from the top, each with its zone, if it is one.
pub type Trail = Vec<(Box<[u8]>, Option<u64>)>;

/// Counted up when a directory gets another key, in any tree of names: what is remembered of keys is true until then.
static MOVES: AtomicU64 = AtomicU64::new(0);

/// Returns how many directories have been moved so far.
pub fn moves() -> u64 {
    MOVES.load(Ordering::SeqCst)
}

struct NamePosition {
    /// What is below it begins so, and when that was so.
    enc: Option<(u64, KeyPrefix)>,
    /// `None`: the root.
    parent: Option<Arc<Name>>,
    name: Box<[u8]>,
    /// The number of a directory whose entries are found by it.
    zone: Option<u64>,
    /// Removed, while somebody still holds it.
    gone: bool,
    /// Of a removed directory, the last that was known.
    last: Option<Box<Record>>,
}

impl Name {
    fn new(parent: Option<Arc<Name>>, name: &[u8], zone: Option<u64>) -> Arc<Name> {
        let place = NamePosition { enc: None, parent, name: name.into(), zone, gone: false, last: None };
        Arc::new(Name { place: Mutex::new(place), children: Mutex::default() })
    }

    /// The top of a tree.
    pub fn root() -> Arc<Name> {
        Name::new(None, b"", None)
    }

    /// The name below a directory; made if it is not in use yet.
    pub fn child(self: &Arc<Name>, name: &[u8], zone: Option<u64>) -> Arc<Name> {
        let mut children = self.children.lock();
        if let Some(child) = children.get(name).and_then(Weak::upgrade) {
            return child;
        }
        let child = Name::new(Some(Arc::clone(self)), name, zone);
        children.insert(name.into(), Arc::downgrade(&child));
        child
    }

    /// The name below a directory, if it is in use.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Name>> {
        self.children.lock().get(name)?.upgrade()
    }

    /// Of what is below it.
    pub fn enc(&self) -> KeyPrefix {
        let moves = moves();
        if let Some((known, enc)) = &self.place.lock().enc
            && *known == moves
        {
            return enc.clone();
        }
        let enc = self.walk_up();
        self.place.lock().enc = Some((moves, enc.clone()));
        enc
    }

    /// The key of an entry.
    pub fn entry(&self, name: &[u8]) -> Vec<u8> {
        let moves = moves();
        if let Some((known, enc)) = &self.place.lock().enc
            && *known == moves
        {
            return enc.entry(name);
        }
        self.enc().entry(name)
    }

    /// Of its key, for who spreads directories over something.
    pub fn stripe(&self) -> u32 {
        let moves = moves();
        if let Some((known, enc)) = &self.place.lock().enc
            && *known == moves
        {
            return crc32c::crc32c(enc.bytes());
        }
        crc32c::crc32c(self.enc().bytes())
    }

    fn walk_up(&self) -> KeyPrefix {
        // Up to the root or a zone, then down again.
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut above = match self.step_up(&mut names) {
            Ok(enc) => return enc,
            Err(parent) => parent,
        };
        let mut enc = loop {
            match above.step_up(&mut names) {
                Ok(enc) => break enc,
                Err(parent) => above = parent,
            }
        };
        names.iter().rev().for_each(|name| enc.push_below(name));
        enc
    }

    fn step_up(&self, names: &mut Vec<Box<[u8]>>) -> Result<KeyPrefix, Arc<Name>> {
        let place = self.place.lock();
        if let Some(ino) = place.zone {
            return Ok(KeyPrefix::zone(ino));
        }
        let Some(parent) = &place.parent else { return Ok(KeyPrefix::root()) };
        names.push(place.name.clone());
        Err(Arc::clone(parent))
    }

    /// Its own key in Names; `None` for the root.
    pub fn key(&self) -> Option<Vec<u8>> {
        let (parent, name) = {
            let place = self.place.lock();
            (Arc::clone(place.parent.as_ref()?), place.name.clone())
        };
        Some(parent.entry(&name))
    }

    /// The directory it is in; the root is in itself.
    pub fn parent(self: &Arc<Name>) -> Arc<Name> {
        self.place.lock().parent.as_ref().map_or_else(|| Arc::clone(self), Arc::clone)
    }

    /// From the root, with slashes.
    pub fn path(self: &Arc<Name>) -> Vec<u8> {
        let (mut names, mut at) = (Vec::new(), Arc::clone(self));
        while !at.is_root() {
            names.push(at.place.lock().name.clone());
            at = at.parent();
        }
        if names.is_empty() {
            return b"/".to_vec();
        }
        names.iter().rev().flat_map(|name| [b"/", &**name].concat()).collect()
    }

    /// From the top, each with the number of its zone.
    pub fn trail(&self) -> Trail {
        let mut trail = Trail::new();
        let mut above = self.push_step(&mut trail);
        while let Some(name) = above {
            above = name.push_step(&mut trail);
        }
        trail.reverse();
        trail
    }

    fn push_step(&self, trail: &mut Trail) -> Option<Arc<Name>> {
        let place = self.place.lock();
        let parent = place.parent.clone()?;
        trail.push((place.name.clone(), place.zone));
        Some(parent)
    }

    /// The name at the end of a trail that begins at this one, which is the top.
    pub fn at_end_of(self: &Arc<Name>, trail: &Trail) -> Arc<Name> {
        trail.iter().fold(Arc::clone(self), |dir, (name, zone)| dir.child(name, *zone))
    }

    /// Whether it is the top.
    pub fn is_root(&self) -> bool {
        self.place.lock().parent.is_none()
    }

    /// Reports whether the name was removed.
    pub fn is_gone(&self) -> bool {
        self.place.lock().gone
    }

    /// Whether it is the other, or below it.
    pub fn is_within(self: &Arc<Name>, other: &Arc<Name>) -> bool {
        let mut name = Arc::clone(self);
        while !Arc::ptr_eq(&name, other) {
            if name.is_root() {
                return false;
            }
            name = name.parent();
        }
        true
    }

    /// From now on entries are found by this number.
    pub fn set_zone(&self, ino: u64) {
        self.place.lock().zone = Some(ino);
        MOVES.fetch_add(1, Ordering::SeqCst);
    }

    /// What it was, if it is a removed directory.
    pub fn last(&self) -> Option<Record> {
        self.place.lock().last.as_deref().cloned()
    }

    /// Records that the directory was removed.
    pub fn remove_dir(&self, last: Record) {
        self.set_last(last);
        self.remove();
    }

    /// What a removed directory is now.
    pub fn set_last(&self, last: Record) {
        self.place.lock().last = Some(Box::new(last));
    }

    /// Records that the file's name was removed.
    pub fn remove(&self) {
        let mut place = self.place.lock();
        place.gone = true;
        if let Some(parent) = &place.parent {
            parent.children.lock().remove(&place.name);
        }
    }

    /// Its name was changed. What had the new name was removed before.
    pub fn rename(self: &Arc<Name>, dir: &Arc<Name>, name: &[u8]) {
        self.rename_over(dir, name, false);
    }

    /// Its name was changed; `taken`: its old one belongs to another already.
    pub fn rename_over(self: &Arc<Name>, dir: &Arc<Name>, name: &[u8], taken: bool) {
        let mut place = self.place.lock();
        if let Some(old) = place.parent.as_ref().filter(|_| !taken) {
            old.children.lock().remove(&place.name);
        }
        dir.children.lock().insert(name.into(), Arc::downgrade(self));
        // The old parent is let go of behind the lock.
        let old = place.parent.replace(Arc::clone(dir));
        place.name = name.into();
        drop(place);
        MOVES.fetch_add(1, Ordering::SeqCst);
        drop(old);
    }

    /// Removes the entry of a name that nobody holds any more.
    fn forget(&self, name: &[u8]) {
        let mut children = self.children.lock();
        if children.get(name).is_some_and(|child| child.strong_count() == 0) {
            children.remove(name);
        }
    }
}

impl Drop for Name {
    /// In a loop: names may be nested deeper than the stack.
    fn drop(&mut self) {
        let place = self.place.get_mut();
        let mut above = place.parent.take().map(|parent| (parent, std::mem::take(&mut place.name)));
        while let Some((parent, name)) = above {
            parent.forget(&name);
            above = Arc::into_inner(parent).and_then(|mut last| {
                let place = last.place.get_mut();
                place.parent.take().map(|parent| (parent, std::mem::take(&mut place.name)))
            });
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn keys_follow_a_directory_that_is_renamed() {
        let root = Name::root();
        let file = root.child(b"a", None).child(b"b", None).child(b"f", None);
        assert_eq!(file.key(), Some(KeyPrefix::root().below(b"a").below(b"b").entry(b"f")));
        let (dir, a) = (file.parent(), root.child(b"a", None));
        dir.rename(&root, b"new");
        assert_eq!(file.key(), Some(KeyPrefix::root().below(b"new").entry(b"f")));
        assert_eq!((dir.path(), root.path(), dir.child(b"x", None).path()), (b"/new".to_vec(), b"/".to_vec(), b"/new/x".to_vec()));
        assert!(a.find(b"b").is_none() && Arc::ptr_eq(&root.find(b"new").expect("in use"), &dir));
        dir.set_zone(7);
        assert_eq!(file.key(), Some(KeyPrefix::zone(7).entry(b"f")));
        assert_eq!(dir.key(), Some(KeyPrefix::root().entry(b"new")));
        assert!(file.is_within(&dir) && !a.is_within(&dir));
    }

    #[test]
    fn names_nobody_holds_are_forgotten_however_deep() {
        let root = Name::root();
        let mut name = Arc::clone(&root);
        for _ in 0..200_000 {
            name = name.child(b"d", None);
        }
        drop(name);
        assert!(root.children.lock().is_empty() && Arc::strong_count(&root) == 1);
    }

    #[test]
    fn a_removed_name_makes_room_for_another() {
        let root = Name::root();
        let old = root.child(b"a", None);
        old.remove();
        let new = root.child(b"a", None);
        assert!(old.is_gone() && !new.is_gone());
        drop(old);
        assert!(Arc::ptr_eq(&root.child(b"a", None), &new));
    }
}
