//! Keys: how names and numbers become the store's ordered bytes. Drawn in docs/formats.md, "The raw file system: names and files".
//!
//! ```text
//!  Names   enc(root)  = nothing            an entry of D     = enc(D) 00 esc(name)
//!          enc(dir)   = enc(parent) 01 esc(name)             all below D = [enc(D) 00, enc(D) 02)
//!          enc(zone)  = 03 number(8, big endian)
//!          esc: 01 becomes 02 01, 02 becomes 02 02; a name has no 00
//!  Files   number(8) kind(1) offset(8), all big endian
//! ```
//!
//! So the entries of a directory lie together, a full path is one lookup, and all that is below a directory is two ranges with a
//! common prefix each (entries, and the contents of its directories), which the store can move without reading them.

/// Between a directory and the name of an entry.
pub const ENTRY: u8 = 0;
/// Between a directory and the name of a directory whose entries follow.
pub const BELOW: u8 = 1;
/// Before the number of a zone.
const ZONE: u8 = 3;
const ESCAPE: u8 = 2;

/// A directory whose own key would be longer is a zone.
pub const ENC_MAX: usize = 512;
/// Keys below a renamed directory stay shorter than this, or it becomes a zone.
pub const KEY_MAX: usize = 1024;

/// The beginning of the keys below a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyPrefix(Vec<u8>);

impl KeyPrefix {
    /// Returns the prefix of keys in the root directory.
    pub fn root() -> KeyPrefix {
        KeyPrefix::default()
    }

    /// Returns the prefix of keys in a zone.
    pub fn zone(ino: u64) -> KeyPrefix {
        let mut bytes = vec![ZONE];
        bytes.extend_from_slice(&ino.to_be_bytes());
        KeyPrefix(bytes)
    }

    /// Of a directory in this one.
    pub fn below(&self, name: &[u8]) -> KeyPrefix {
        let mut enc = self.clone();
        enc.push_below(name);
        enc
    }

    /// Becomes that of a directory in it.
    pub fn push_below(&mut self, name: &[u8]) {
        self.0.push(BELOW);
        escape(name, &mut self.0);
    }

    /// The key of an entry.
    pub fn entry(&self, name: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.0.len() + name.len() + 3);
        key.extend_from_slice(&self.0);
        key.push(ENTRY);
        escape(name, &mut key);
        key
    }

    /// What all keys of one kind begin with: [`ENTRY`] or [`BELOW`].
    pub fn prefix(&self, kind: u8) -> Vec<u8> {
        let mut key = self.0.clone();
        key.push(kind);
        key
    }

    /// Returns the bytes of the prefix.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// How long it would be with one more directory.
    pub fn len_below(&self, name: &[u8]) -> usize {
        self.0.len() + 1 + escaped_len(name)
    }
}

fn escaped_len(name: &[u8]) -> usize {
    name.len() + name.iter().filter(|byte| **byte == BELOW || **byte == ESCAPE).count()
}

/// Appends a name in its escaped form.
pub fn escape(name: &[u8], key: &mut Vec<u8>) {
    for byte in name {
        if *byte == BELOW || *byte == ESCAPE {
            key.push(ESCAPE);
        }
        key.push(*byte);
    }
}

/// The name behind escaped bytes; `None` if no name is written so.
pub fn unescape(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        match *byte {
            ENTRY | BELOW => return None,
            ESCAPE => name.push(*rest.next().filter(|next| **next == BELOW || **next == ESCAPE)?),
            byte => name.push(byte),
        }
    }
    let allowed = !name.is_empty() && name.len() <= super::NAME_MAX && !name.contains(&b'/') && name != b"." && name != b"..";
    allowed.then_some(name)
}

/// A key of Names, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyParts {
    /// The zone it begins in, if not the root.
    pub zone: Option<u64>,
    /// The directories below that start, outermost first.
    pub dirs: Vec<Vec<u8>>,
    /// The name of the entry itself.
    pub name: Vec<u8>,
}

impl KeyParts {
    /// `None`: not a key of this format.
    pub fn of(key: &[u8]) -> Option<KeyParts> {
        let (zone, mut rest) = match key.split_first()? {
            (&ZONE, rest) => (Some(u64::from_be_bytes(*rest.first_chunk()?)), &rest[8..]),
            _ => (None, key),
        };
        let mut dirs = Vec::new();
        loop {
            let (kind, name) = rest.split_first()?;
            let end = end_of_name(name);
            let (name, after) = name.split_at(end);
            match *kind {
                BELOW => dirs.push(unescape(name)?),
                ENTRY if after.is_empty() => return Some(KeyParts { zone, dirs, name: unescape(name)? }),
                _ => return None,
            }
            rest = after;
        }
    }

    /// Of the directory it is in.
    pub fn enc(&self) -> KeyPrefix {
        let begin = self.zone.map_or_else(KeyPrefix::root, KeyPrefix::zone);
        self.dirs.iter().fold(begin, |enc, name| enc.below(name))
    }
}

/// Where escaped bytes end: at a 00 or 01 that nothing escapes.
fn end_of_name(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            ENTRY | BELOW => return at,
            ESCAPE => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// What a key of Files is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileItem {
    /// The record of a file that has no name, or more than one, or is the root; offset 0.
    Record = 0,
    /// Blocks of data; the offset is that of the first in the file, in blocks.
    Extent = 1,
    /// Extended attributes; the offset counts their pieces.
    Xattrs = 2,
    /// Below number 0: the offset is the number of a file to be removed, or cut, when it is opened after a crash.
    Orphan = 3,
    /// Below number 0, offset 0: numbers from here on were never given to a file.
    Numbers = 4,
    /// The target of a symbolic link that is too long for its record; the offset counts its pieces.
    Target = 5,
}

/// Returns a key of the Files tree.
pub fn file(ino: u64, item: FileItem, offset: u64) -> [u8; 17] {
    let mut key = [0; 17];
    key[..8].copy_from_slice(&ino.to_be_bytes());
    key[8] = item as u8;
    key[9..].copy_from_slice(&offset.to_be_bytes());
    key
}

/// A key of Files taken apart: number, kind, offset.
pub fn file_parts(key: &[u8]) -> Option<(u64, FileItem, u64)> {
    let key: &[u8; 17] = key.try_into().ok()?;
    let all = [FileItem::Record, FileItem::Extent, FileItem::Xattrs, FileItem::Orphan, FileItem::Numbers, FileItem::Target];
    let item = all.into_iter().find(|item| *item as u8 == key[8])?;
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
    let (ino, offset) = (number(&key[..8]), number(&key[9..]));
    let right = match item {
        FileItem::Record => offset == 0,
        FileItem::Numbers => ino == 0 && offset == 0,
        FileItem::Orphan => ino == 0,
        FileItem::Extent | FileItem::Xattrs | FileItem::Target => true,
    };
    (right && ino < super::record::INO_END).then_some((ino, item, offset))
}

#[cfg(test)]
mod test {
    use super::*;

    fn name(rng: &mut fastrand::Rng) -> Vec<u8> {
        let bytes = [1, 2, 3, b'a', b'b', 0xff];
        (0..rng.usize(1..5)).map(|_| bytes[rng.usize(..bytes.len())]).collect()
    }

    #[test]
    fn a_key_says_what_it_was_made_from() {
        let mut rng = crate::testing::rng();
        for _ in 0..2000 {
            let zone = rng.bool().then(|| rng.u64(..));
            let dirs: Vec<_> = (0..rng.usize(0..4)).map(|_| name(&mut rng)).collect();
            let parts = KeyParts { zone, dirs, name: name(&mut rng) };
            let key = parts.enc().entry(&parts.name);
            assert_eq!(KeyParts::of(&key), Some(parts));
        }
    }

    #[test]
    fn below_a_directory_is_one_range_that_nothing_else_is_in() {
        let mut rng = crate::testing::rng();
        for _ in 0..5000 {
            let path: Vec<_> = (0..rng.usize(1..4)).map(|_| name(&mut rng)).collect();
            let dir: Vec<_> = (0..rng.usize(0..3)).map(|_| name(&mut rng)).collect();
            let enc = |path: &[Vec<u8>]| path.iter().fold(KeyPrefix::root(), |enc, name| enc.below(name));
            let key = enc(&path[..path.len() - 1]).entry(&path[path.len() - 1]);
            let (from, to) = (enc(&dir).prefix(ENTRY), enc(&dir).prefix(ESCAPE));
            let is_below = path.len() > dir.len() && path[..dir.len()] == dir[..];
            assert_eq!(from <= key && key < to, is_below, "{path:?} below {dir:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_key_are_refused() {
        for bad in [&b""[..], b"\0", b"\0a\0b", b"\0\x02a", b"a", b"\x01a", b"\x03\0\0", b"\0..", b"\0a/b", b"\x04a"] {
            assert_eq!(KeyParts::of(bad), None, "{bad:?}");
        }
        assert_eq!(file_parts(&file(7, FileItem::Extent, 9)), Some((7, FileItem::Extent, 9)));
        assert_eq!(file_parts(&file(7, FileItem::Record, 9)), None);
        assert_eq!(file_parts(&[9; 17]), None);
        assert_eq!(file_parts(&[0; 16]), None);
    }
}
