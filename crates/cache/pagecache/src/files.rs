//! The files the cache knows: their pages that are not safe yet, and what went wrong with them.

use block::Error;

use crate::frame::{BOOK, List};
use crate::index::{Index, hash};
use crate::units::{FileKey, FileNo};

/// What went wrong with a file so far. Whoever relies on the file compares with what he saw last: so each is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    /// Writes and flushes that failed, whoever asked for them.
    pub times: u32,
    /// How often acknowledged bytes were lost: a flush failed after pages had left that relied on it.
    pub losses: u32,
    /// What the last one was.
    pub last: Option<Error>,
}

/// One file's books. The lists are in the order in which pages came to them.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) key: u64,
    pub(crate) opens: u32,
    /// Frames with a page of it.
    pub(crate) pages: u32,
    /// Dirty and Stuck.
    pub(crate) dirty: List<BOOK>,
    /// Of those, the ones whose last write failed.
    pub(crate) failed: u32,
    /// Of those, the ones that are Stuck.
    pub(crate) stuck: u32,
    /// Writing and Rewritten.
    pub(crate) writing: u32,
    pub(crate) written: List<BOOK>,
    pub(crate) flushing: List<BOOK>,
    /// Pages that left while Written, since the last flush began; and while Flushing.
    pub(crate) written_left: u32,
    pub(crate) flushing_left: u32,
    pub(crate) flush_runs: bool,
    pub(crate) failures: Failures,
}

/// All of them, as many as there is room for.
#[derive(Debug)]
pub(crate) struct Files {
    files: Box<[File]>,
    index: Index,
    free: Vec<u32>,
}

impl Files {
    pub(crate) fn new(most: u32) -> Files {
        Files { files: (0..most).map(|_| File::default()).collect(), index: Index::new(most), free: (0..most).rev().collect() }
    }

    /// None: no place.
    pub(crate) fn open(&mut self, key: FileKey) -> Option<FileNo> {
        let hash = hash(0, key.0, 0);
        let known = self.index.find(hash, |number| self.files[number as usize].key == key.0);
        let number = match known {
            Some(number) => number,
            None => {
                let number = self.free.pop()?;
                self.files[number as usize] = File { key: key.0, ..File::default() };
                self.index.insert(hash, number);
                number
            }
        };
        self.files[number as usize].opens += 1;
        Some(FileNo(number))
    }

    pub(crate) fn close(&mut self, file: FileNo) {
        let opens = &mut self.get_mut(file).opens;
        assert!(*opens > 0, "a file is closed more often than opened");
        *opens -= 1;
        self.release_unused(file);
    }

    /// A place nobody needs is free for another file.
    pub(crate) fn release_unused(&mut self, file: FileNo) {
        let known = self.get(file);
        if known.opens == 0 && known.pages == 0 {
            let key = known.key;
            assert!(self.index.remove(hash(0, key, 0), file.0), "a file is released twice");
            self.free.push(file.0);
        }
    }

    #[inline]
    pub(crate) fn get(&self, file: FileNo) -> &File {
        &self.files[file.0 as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, file: FileNo) -> &mut File {
        &mut self.files[file.0 as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }
}
