//! For tests: what happens to files, and a store that fails.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proptest::prelude::*;
use proptest::sample::Index;
use rustix::io::Errno;

use super::InPlaceFile;

/// What happens to a file.
#[derive(Clone, Debug)]
pub enum FileDamage {
    /// A byte changes.
    Flip(Index, u8),
    /// Its end is missing.
    Cut(Index),
    /// Something stands behind it.
    Append(Vec<u8>),
}

impl FileDamage {
    /// Returns the bytes of a file after the damage.
    pub fn done_to(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match self {
            FileDamage::Flip(at, with) => {
                let at = at.index(bytes.len());
                bytes[at] ^= with;
            }
            FileDamage::Cut(at) => bytes.truncate(at.index(bytes.len())),
            FileDamage::Append(more) => bytes.extend_from_slice(more),
        }
        bytes
    }
}

/// Any file_damage that changes a file.
pub fn file_damage() -> impl Strategy<Value = FileDamage> {
    prop_oneof![
        (any::<Index>(), 1u8..).prop_map(|(at, with)| FileDamage::Flip(at, with)),
        any::<Index>().prop_map(FileDamage::Cut),
        proptest::collection::vec(any::<u8>(), 1..100).prop_map(FileDamage::Append),
    ]
}

/// Numbers where arithmetic goes wrong.
pub fn extreme() -> impl Strategy<Value = u64> {
    let near = (0u32..64, -2i64..3).prop_map(|(bit, off)| (1u64 << bit).wrapping_add_signed(off));
    prop_oneof![Just(0), Just(u64::MAX), near, any::<u64>()]
}

/// Bytes that may be a path, or not.
pub fn path() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-z]{1,8}(/[a-z.]{1,8}){0,3}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 1..40),
        (250usize..5000).prop_map(|len| vec![b'x'; len]),
    ]
}

/// A hidden directory in a temporary directory.
pub struct HiddenTestDir {
    temp: tempfile::TempDir,
    handle: OwnedFd,
}

impl HiddenTestDir {
    /// Creates an empty hidden directory for a test.
    pub fn new() -> HiddenTestDir {
        // In memory where there is such a place: thousands of files are flushed here.
        let temp = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let handle = std::fs::File::open(temp.path()).expect("opened").into();
        HiddenTestDir { temp, handle }
    }

    /// For the calls of this module.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// For calls that keep it.
    pub fn owned(&self) -> OwnedFd {
        self.handle.try_clone().expect("a descriptor")
    }

    /// Writes a file with exactly these bytes.
    pub fn put(&self, file: &str, bytes: &[u8]) {
        for entry in std::fs::read_dir(self.temp.path()).expect("listed") {
            std::fs::remove_file(entry.expect("an entry").path()).expect("removed");
        }
        std::fs::write(self.path(file), bytes).expect("written");
    }

    /// The bytes of a file.
    pub fn get(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).expect("read")
    }

    /// The path of a file.
    pub fn path(&self, file: &str) -> std::path::PathBuf {
        self.temp.path().join(file)
    }
}

/// A file in memory that fails on demand.
#[derive(Debug, Default)]
pub struct FailingStore {
    /// The bytes that a reader finds in the file.
    pub bytes: RefCell<Vec<u8>>,
    /// What is left after a power cut, at the least.
    pub durable: RefCell<Vec<u8>>,
    /// For the next calls: `Some(n)` fails, a write after `n` bytes. Then all goes well.
    pub plan: RefCell<Vec<Option<usize>>>,
    /// A longer file than this is NOSPC; 0: any length.
    pub room: Cell<usize>,
}

impl FailingStore {
    fn next(&self) -> Option<usize> {
        self.plan.borrow_mut().pop().flatten()
    }
}

impl InPlaceFile for FailingStore {
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), Errno> {
        let mut file = self.bytes.borrow_mut();
        let at = at as usize;
        let room = if self.room.get() == 0 { usize::MAX } else { self.room.get().saturating_sub(at) };
        let fails = self.next();
        let len = fails.unwrap_or(usize::MAX).min(room).min(bytes.len());
        if file.len() < at + len {
            file.resize(at + len, 0);
        }
        file[at..at + len].copy_from_slice(&bytes[..len]);
        match fails {
            Some(_) => Err(Errno::IO),
            None if len < bytes.len() => Err(Errno::NOSPC),
            None => Ok(()),
        }
    }

    fn set_len(&self, len: u64) -> Result<(), Errno> {
        if self.next().is_some() {
            return Err(Errno::IO);
        }
        self.bytes.borrow_mut().resize(len as usize, 0);
        Ok(())
    }

    fn sync(&self) -> Result<(), Errno> {
        if self.next().is_some() {
            return Err(Errno::IO);
        }
        *self.durable.borrow_mut() = self.bytes.borrow().clone();
        Ok(())
    }
}
