//! Remembered names as bytes, which outlive the mount. docs/formats.md has the format.
//!
//! Device and mount numbers are left out: they are others at the next mount. Only what is on the file system of the top directory is
//! saved. All of it counts as old when it is loaded.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use crate::Stat;
use crate::identity::{EARLIER_MOUNT, InodeId};
use crate::remembered::{DirectoryRecord, FileRecord, NameRecord, Remembered, Table, Target, XattrSet};

/// The first bytes: a name and the version of the format.
const MAGIC: &[u8; 8] = b"hsnames2";
/// The magic number, the checksum of the rest, and the rest.
const HEADER_BYTES: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedId {
    ino: u64,
    birth: (i64, u32),
    /// Whether an earlier mount than the one that saved it has read the number, on a file system without times of birth.
    is_earlier: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    /// What the top directory was, so that the names of another one are not taken for its own.
    directory: String,
    root: SavedId,
    directories: Vec<SavedDirectory>,
    files: Vec<SavedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedDirectory {
    id: SavedId,
    is_complete: bool,
    names: Vec<(Vec<u8>, SavedTarget)>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum SavedTarget {
    Absent,
    Inode(SavedId),
    /// Inode number, and file type bits of a mode.
    Listed(u64, u32),
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedFile {
    id: SavedId,
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    size: u64,
    blocks: u64,
    blksize: u32,
    rdev: u64,
    is_powerless: bool,
    /// Access, change of the data, change of the attributes.
    times: [(i64, u32); 3],
    link: Option<Vec<u8>>,
    xattrs: (u8, u8),
    data_key: Option<u64>,
}

fn save_id(id: InodeId) -> SavedId {
    SavedId { ino: id.ino, birth: id.birth, is_earlier: id.mount == EARLIER_MOUNT }
}

/// Gives saved numbers the device and mount of today.
#[derive(Clone, Copy)]
struct Loader {
    root: InodeId,
    saved_root: SavedId,
    /// Whether the same mount goes on, in which inode numbers are still those of the same files.
    is_same_mount: bool,
}

impl Loader {
    fn id(self, saved: SavedId) -> InodeId {
        if saved == self.saved_root {
            return self.root;
        }
        let SavedId { ino, birth, is_earlier } = saved;
        let is_earlier = is_earlier || birth == (0, 0) && !self.is_same_mount;
        let mount = if is_earlier { EARLIER_MOUNT } else { self.root.mount };
        InodeId { dev: self.root.dev, mount, ino, birth }
    }

    fn target(self, saved: SavedTarget) -> Target {
        match saved {
            SavedTarget::Absent => Target::Absent,
            SavedTarget::Inode(id) => Target::Inode(self.id(id)),
            SavedTarget::Listed(ino, mode) => Target::Listed { ino, kind: FileType::from_raw_mode(mode) },
        }
    }

    fn file(self, saved: SavedFile) -> (InodeId, FileRecord) {
        let id = self.id(saved.id);
        let [atime, mtime, ctime] = saved.times;
        let stat = Stat {
            dev: self.root.dev,
            mount: self.root.mount,
            ino: id.ino,
            birth: id.birth,
            mode: saved.mode,
            nlink: saved.nlink,
            uid: saved.owner.0,
            gid: saved.owner.1,
            size: saved.size,
            blocks: saved.blocks,
            blksize: saved.blksize,
            rdev: saved.rdev,
            is_powerless: saved.is_powerless,
            atime,
            mtime,
            ctime,
        };
        let record = FileRecord {
            link: saved.link.map(Vec::into_boxed_slice),
            absent_xattrs: XattrSet(saved.xattrs.0),
            unsupported_xattrs: XattrSet(saved.xattrs.1),
            // The cache may know another file by that number now, if the file system has numbered its files anew.
            data_key: saved.data_key.filter(|_| id.mount != EARLIER_MOUNT),
            ..FileRecord::new(stat, None)
        };
        (id, record)
    }
}

fn save_file(id: InodeId, record: &FileRecord) -> SavedFile {
    let FileRecord { stat, link, .. } = record;
    SavedFile {
        id: save_id(id),
        mode: stat.mode,
        nlink: stat.nlink,
        owner: (stat.uid, stat.gid),
        size: stat.size,
        blocks: stat.blocks,
        blksize: stat.blksize,
        rdev: stat.rdev,
        is_powerless: stat.is_powerless,
        times: [stat.atime, stat.mtime, stat.ctime],
        link: link.as_deref().map(<[u8]>::to_vec),
        xattrs: (record.absent_xattrs.0, record.unsupported_xattrs.0),
        data_key: record.data_key,
    }
}

/// Saves a directory. Names on other file systems, and those that nobody has looked at yet, are left for the next mount to read.
fn save_directory(id: InodeId, record: &DirectoryRecord, table: &Table, is_saved: impl Fn(InodeId) -> bool) -> SavedDirectory {
    let mut is_complete = record.is_complete;
    let mut names = Vec::with_capacity(record.names.len());
    for (name, NameRecord { target, .. }) in &record.names {
        let saved = match *target {
            Target::Absent => SavedTarget::Absent,
            Target::Listed { ino, kind } => SavedTarget::Listed(ino, kind.as_raw_mode()),
            Target::Inode(id) if is_saved(id) && table.files.contains_key(&id) => SavedTarget::Inode(save_id(id)),
            Target::Inode(id) => SavedTarget::Listed(id.ino, FileType::Unknown.as_raw_mode()),
            Target::Unread => {
                is_complete = false;
                continue;
            }
        };
        names.push((name.as_bytes().to_vec(), saved));
    }
    SavedDirectory { id: save_id(id), is_complete, names }
}

impl Remembered {
    /// Returns all that is remembered below the top directory `root` as bytes. `directory` says what the top directory is.
    pub fn to_bytes(&self, root: InodeId, directory: &str) -> Option<Vec<u8>> {
        let table = self.table.lock();
        let is_saved = |id: InodeId| id.dev == root.dev && (id.mount == root.mount || id.mount == EARLIER_MOUNT);
        let directories = table.directories.iter().filter(|(id, _)| is_saved(**id));
        let files = table.files.iter().filter(|(id, _)| is_saved(**id));
        let saved = Saved {
            directory: directory.to_owned(),
            root: save_id(root),
            directories: directories.map(|(id, record)| save_directory(*id, record, &table, is_saved)).collect(),
            files: files.map(|(id, record)| save_file(*id, record)).collect(),
        };
        drop(table);
        write(&saved)
    }

    /// Loads what was saved of this directory. Returns whether it was: damaged bytes, those of another directory and those of another
    /// version are not.
    pub fn load(&self, bytes: &[u8], root: InodeId, directory: &str) -> bool {
        let saved = parse(bytes).filter(|saved| saved.directory == directory && saved.root == save_id(root));
        saved.map(|saved| self.add(saved, root, false)).is_some()
    }

    /// Loads what the same mount has remembered before another program took it over.
    pub fn load_again(&self, bytes: &[u8], root: InodeId) {
        if let Some(saved) = parse(bytes) {
            self.add(saved, root, true);
        }
    }

    fn add(&self, saved: Saved, root: InodeId, is_same_mount: bool) {
        let loader = Loader { root, saved_root: saved.root, is_same_mount };
        let mut table = self.table.lock();
        for SavedDirectory { id, is_complete, names } in saved.directories {
            let names: std::collections::BTreeMap<OsString, NameRecord> = names
                .into_iter()
                .map(|(name, target)| (OsString::from_vec(name), NameRecord { target: loader.target(target), checked: None }))
                .collect();
            table.add_loaded(loader.id(id), DirectoryRecord { names, is_complete, ..DirectoryRecord::default() });
        }
        table.files.extend(saved.files.into_iter().map(|file| loader.file(file)));
        self.make_room(&mut table);
    }
}

fn write(saved: &Saved) -> Option<Vec<u8>> {
    let body = postcard::to_allocvec(saved).ok()?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Some(bytes)
}

fn parse(bytes: &[u8]) -> Option<Saved> {
    let (header, body) = bytes.split_at_checked(HEADER_BYTES)?;
    let (magic, checksum) = header.split_at(MAGIC.len());
    if magic != MAGIC || crc32c::crc32c(body).to_le_bytes() != checksum {
        return None;
    }
    let saved: Saved = postcard::from_bytes(body).ok()?;
    let is_name = |name: &[u8]| !name.is_empty() && !name.contains(&b'/') && !name.contains(&0) && !matches!(name, b"." | b"..");
    let are_names = saved.directories.iter().flat_map(|directory| &directory.names).all(|(name, _)| is_name(name));
    are_names.then_some(saved)
}

/// Returns saved names as a file system without times of birth would have had them.
#[cfg(test)]
pub(crate) fn without_births(bytes: &[u8]) -> Vec<u8> {
    let mut saved = parse(bytes).expect("saved");
    for directory in saved.directories.iter_mut().filter(|directory| directory.id != saved.root) {
        directory.id.birth = (0, 0);
    }
    for (_, target) in saved.directories.iter_mut().flat_map(|directory| &mut directory.names) {
        if let SavedTarget::Inode(id) = target {
            // The file system has numbered its files anew since.
            (id.birth, id.ino) = ((0, 0), id.ino + 1);
        }
    }
    for directory in saved.directories.iter_mut().filter(|directory| directory.id != saved.root) {
        directory.id.ino += 1;
    }
    for file in saved.files.iter_mut().filter(|file| file.id != saved.root) {
        (file.id.birth, file.id.ino) = ((0, 0), file.id.ino + 1);
    }
    write(&saved).expect("written")
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const ROOT: InodeId = InodeId { dev: 1, mount: 2, ino: 3, birth: (4, 5) };

    fn empty() -> Remembered {
        Remembered::new(Duration::from_secs(1), 100)
    }

    fn some() -> Vec<u8> {
        let remembered = empty();
        let moment = remembered.moment();
        let file = InodeId { ino: 7, ..ROOT };
        remembered.set_name(ROOT, "a".as_ref(), Target::Inode(file), moment);
        remembered.set_name(ROOT, "b".as_ref(), Target::Absent, moment);
        remembered.set_attributes(file, &Stat { size: 9, mode: 0o100_644, nlink: 1, ..Stat::default() }, moment);
        remembered.to_bytes(ROOT, "here").expect("saved")
    }

    #[test]
    fn what_is_saved_is_loaded_as_old() {
        let (bytes, remembered) = (some(), empty());
        let today = InodeId { dev: 10, mount: 20, ..ROOT };
        assert!(remembered.load(&bytes, today, "here"));
        let known = remembered.name(today, "a".as_ref()).expect("known");
        let (id, stat) = known.what.expect("a file");
        assert_eq!((known.is_fresh, id, stat.size, stat.dev), (false, InodeId { ino: 7, ..today }, 9, 10));
        assert_eq!(remembered.name(today, "b".as_ref()).map(|known| known.what), Some(None));
        assert!(remembered.name(today, "c".as_ref()).is_none());
    }

    #[test]
    fn names_of_another_directory_are_refused() {
        assert!(!empty().load(&some(), ROOT, "there"));
        assert!(!empty().load(&some(), InodeId { ino: 4, ..ROOT }, "here"));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = some();
        for at in 0..bytes.len() {
            assert!(!empty().load(&bytes[..at], ROOT, "here"), "{at} bytes");
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            assert!(!empty().load(&damaged, ROOT, "here"), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_with_a_right_checksum_do_harm(body in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..200usize) {
            let with_checksum = |body: &[u8]| [&MAGIC[..], &crc32c::crc32c(body).to_le_bytes(), body].concat();
            empty().load(&with_checksum(&body), ROOT, "here");
            // And those that are nearly right.
            let mut near = some()[HEADER_BYTES..].to_vec();
            let at = cut.min(near.len() - 1);
            near.splice(at.., body);
            empty().load(&with_checksum(&near), ROOT, "here");
        }
    }
}
