//! Files with cached pages: a number of 20 bits for a key of 64 bits, and counts. There may be as many files as slots, but mostly there are
//! few: memory grows with the maximum that existed at once, not with the limit.

use crate::units::FileKey;

/// The metadata of a file. If it has no pages and is not held, its number is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct File {
    pub(crate) key: u64,
    pub(crate) pages: u32,
    dirty_held: u32,
}

/// The file is open, so its number stays. Counts of pages need 28 bits.
const HELD: u32 = 1 << 31;

impl File {
    pub(crate) fn dirty(self) -> u32 {
        self.dirty_held & !HELD
    }
}

/// Bytes for each file: its metadata, its place in the table (at most two thirds full), its place in the list of free numbers. While these
/// are doubled, they take up to twice as much.
pub(crate) const FILE_BYTES: usize = size_of::<File>() + 6 + 4;
const _: () = assert!(size_of::<File>() == 16);

#[derive(Debug)]
pub(crate) struct Files {
    most: usize,
    files: Vec<File>,
    /// Numbers plus one, by hash of the key.
    table: Box<[u32]>,
    free: Vec<u32>,
}

/// Returns the size of the table for this number of files.
fn places(files: usize) -> usize {
    files + files / 2 + 2
}

impl Files {
    /// Creates it for this number of files, some of which have numbers already. Files with an invalid or duplicate number are left out.
    pub(crate) fn new(most: u32, held: &[(FileKey, u32)]) -> Files {
        let most = most as usize;
        let known = held.iter().map(|(_, number)| *number as usize + 1).filter(|reach| *reach <= most).max().unwrap_or(0);
        let mut files = Files { most, files: vec![File::default(); known], table: vec![0; places(known.max(8))].into(), free: Vec::new() };
        for (key, number) in held {
            let is_free = files.files.get(*number as usize).is_some_and(|file| file.dirty_held == 0);
            if let (Err(at), true) = (files.place(*key), is_free) {
                files.files[*number as usize] = File { key: key.0, pages: 0, dirty_held: HELD };
                files.table[at] = number + 1;
            }
        }
        files.free.extend((0..known as u32).rev().filter(|number| files.files[*number as usize].dirty_held == 0));
        files
    }

    /// Returns an empty file if the number is unknown: numbers come from memory that others can write to.
    pub(crate) fn get(&self, number: u32) -> File {
        self.files.get(number as usize).copied().unwrap_or_default()
    }

    /// Returns the limit that all numbers are less than.
    pub(crate) fn most(&self) -> u32 {
        self.files.len() as u32
    }

    /// Returns the key of the file with this number.
    pub(crate) fn key(&self, number: u32) -> Option<FileKey> {
        let key = FileKey(self.files.get(number as usize)?.key);
        (self.find(key) == Some(number)).then_some(key)
    }

    pub(crate) fn hold(&mut self, key: FileKey) -> Option<u32> {
        let number = self.number(key)?;
        self.files[number as usize].dirty_held |= HELD;
        Some(number)
    }

    pub(crate) fn release(&mut self, key: FileKey) {
        if let Some(number) = self.find(key) {
            self.files[number as usize].dirty_held &= !HELD;
            self.settle(number);
        }
    }

    fn home(&self, key: u64) -> usize {
        let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (((mixed >> 32) * self.table.len() as u64) >> 32) as usize
    }

    fn place(&self, key: FileKey) -> Result<usize, usize> {
        let mut at = self.home(key.0);
        loop {
            match self.table[at] {
                0 => return Err(at),
                number if self.files[number as usize - 1].key == key.0 => return Ok(at),
                _ => at = (at + 1) % self.table.len(),
            }
        }
    }

    pub(crate) fn find(&self, key: FileKey) -> Option<u32> {
        self.place(key).ok().map(|at| self.table[at] - 1)
    }

    /// Returns the number of a file, a new one if necessary, or none if there are too many files. If the file gets no page, call `settle`.
    pub(crate) fn number(&mut self, key: FileKey) -> Option<u32> {
        match self.place(key) {
            Ok(at) => Some(self.table[at] - 1),
            Err(_) => {
                let number = self.free.pop().or_else(|| self.one_more())?;
                self.files[number as usize] = File { key: key.0, pages: 0, dirty_held: 0 };
                // There is a place: the table is never full.
                if let Err(at) = self.place(key) {
                    self.table[at] = number + 1;
                }
                Some(number)
            }
        }
    }

    /// Returns a number that was never used. The table grows before it is two thirds full.
    fn one_more(&mut self) -> Option<u32> {
        if self.files.len() == self.most {
            return None;
        }
        self.files.push(File::default());
        if places(self.files.len()) > self.table.len() {
            let numbers = std::mem::replace(&mut self.table, vec![0; places((self.files.len() * 2).min(self.most))].into());
            for number in numbers.iter().filter(|number| **number != 0) {
                if let Err(at) = self.place(FileKey(self.files[*number as usize - 1].key)) {
                    self.table[at] = *number;
                }
            }
        }
        Some(self.files.len() as u32 - 1)
    }

    pub(crate) fn came(&mut self, number: u32, dirty: bool) {
        if let Some(file) = self.files.get_mut(number as usize) {
            file.pages += 1;
            file.dirty_held += u32::from(dirty);
        }
    }

    pub(crate) fn went(&mut self, number: u32, dirty: bool) {
        if let Some(file) = self.files.get_mut(number as usize) {
            file.pages = file.pages.saturating_sub(1);
        }
        if dirty {
            self.cleaned(number);
        }
    }

    pub(crate) fn cleaned(&mut self, number: u32) {
        if let Some(file) = self.files.get_mut(number as usize).filter(|file| file.dirty() > 0) {
            file.dirty_held -= 1;
        }
    }

    /// Frees the number if the file has no pages and nobody holds it.
    pub(crate) fn settle(&mut self, number: u32) {
        let file = self.get(number);
        if file.pages > 0 || file.dirty_held & HELD != 0 || self.find(FileKey(file.key)) != Some(number) {
            return;
        }
        let Ok(mut hole) = self.place(FileKey(file.key)) else { return };
        let (mut at, len) = (hole, self.table.len());
        loop {
            at = (at + 1) % len;
            if self.table[at] == 0 {
                break;
            }
            let home = self.home(self.files[self.table[at] as usize - 1].key);
            if (at + len - home) % len >= (at + len - hole) % len {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = 0;
        self.free.push(number);
    }
}

#[cfg(test)]
mod test {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn numbers_stay_and_come_back_as_in_a_map_and_memory_is_for_those_there_were() {
        let mut rng = fastrand::Rng::with_seed(2);
        let held = [(FileKey(900), 4), (FileKey(901), 4), (FileKey(902), 500)];
        let (mut files, mut model) = (Files::new(300, &held), HashMap::from([(900, 4)]));
        assert_eq!(files.find(FileKey(901)), None, "its number was another's");
        for _ in 0..50_000 {
            let key = rng.u64(..400);
            if rng.bool() {
                let number = files.number(FileKey(key));
                assert_eq!(number.is_some(), model.contains_key(&key) || model.len() < 300);
                if let Some(number) = number {
                    assert_eq!(*model.entry(key).or_insert(number), number);
                }
            } else if let Some(number) = model.remove(&key) {
                files.settle(number);
            }
            let probe = rng.u64(..400);
            assert_eq!(files.find(FileKey(probe)), model.get(&probe).copied());
            assert_eq!(files.find(FileKey(900)), Some(4));
        }
        let numbers: std::collections::HashSet<_> = model.values().collect();
        assert_eq!(numbers.len(), model.len(), "a number twice");
        let mut few = Files::new(FILE_COUNT, &[]);
        (0..100).for_each(|key| assert!(few.number(FileKey(key)).is_some()));
        assert!(few.files.capacity() <= 256 && few.table.len() <= 512);
    }

    const FILE_COUNT: u32 = 1 << 20;
}
