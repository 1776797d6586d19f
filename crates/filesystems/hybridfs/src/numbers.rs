//! `.hotshelf/numbers`: where the files are that the kernel has forgotten and an NFS client has not.
//!
//! A file handle is a number. While the kernel knows the file, so do we; when it forgets it, the number, its
//! directory's number and its backing inode go in here, so that it is found again without memory for it.
//! What is in here is a hint that is checked against the file; the two directories stay the truth. A crash
//! loses it: the file is empty then, and a walk over the tree makes it anew when somebody asks (decisions/10).
//!
//! A hash table in buckets of a page, changed in place. While it is open it has another name, and what a crash
//! leaves under that name is thrown away: so nothing here needs to be ordered or flushed before the end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::errno::Result;
use crate::number::NumberKey;
use crate::persist::{FieldReader, InPlaceFile, PersistError, open_in_place};

const CLOSED: &str = "numbers";
const OPEN: &str = "numbers.open";
const MAGIC: [u8; 4] = *b"hsnu";
const VERSION: u32 = 1;
const PAGE: usize = 4096;
/// Magic, version, buckets, entries, complete, CRC.
const HEADER: usize = 32;
/// CRC and number of entries.
const HEAD: usize = 8;
const ENTRY: usize = 24;
const ENTRIES_MAX: usize = (PAGE - HEAD) / ENTRY;
/// Of each bucket, before their number is doubled.
const FILL: u64 = 110;
const BUCKETS_MIN: u64 = 16;
/// 64 GiB: more than that is not ours.
const BUCKETS_MAX: u64 = 1 << 24;
/// In an entry's last word: the file has a name elsewhere.
const LINKED: u64 = 1 << 63;

const _: () = assert!(HEADER == MAGIC.len() + 2 * size_of::<u32>() + 2 * size_of::<u64>() + size_of::<u32>());

/// Where a file was when it was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberEntry {
    /// Inode number of the file's directory.
    pub parent: u64,
    /// Low bits of its backing inode, to find it there quickly.
    pub hint: u64,
    /// It had another name when it lost the one in that directory.
    pub linked: bool,
}

impl NumberEntry {
    /// What is kept of a backing inode.
    pub fn hint_of(backing_ino: u64) -> u64 {
        backing_ino & !LINKED
    }
}

/// The table. All errors are of the side it is on; after one, it may miss entries.
#[derive(Debug)]
pub struct NumberTable {
    file: OwnedFd,
    key: NumberKey,
    buckets: u64,
    entries: u64,
}

impl NumberTable {
    /// Opens the table in the hidden directory. Answers whether every file that was ever forgotten is in it.
    pub fn open(hidden: BorrowedFd<'_>, key: NumberKey) -> std::result::Result<(NumberTable, bool), PersistError> {
        let io = |source| PersistError::Io { file: CLOSED, source };
        match rustix::fs::unlinkat(hidden, OPEN, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(io(error)),
        }
        match rustix::fs::renameat(hidden, CLOSED, hidden, OPEN) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(io(error)),
        }
        let file = open_in_place(hidden, OPEN)?;
        let len = u64::try_from(rustix::fs::fstat(&file).map_err(io)?.st_size).unwrap_or(0);
        if let Some((buckets, entries, complete)) = read_header(&file).filter(|(buckets, ..)| len == (buckets + 1) * PAGE as u64) {
            return Ok((NumberTable { file, key, buckets, entries }, complete));
        }
        file.set_len(0).and_then(|()| file.set_len((BUCKETS_MIN + 1) * PAGE as u64)).map_err(io)?;
        Ok((NumberTable { file, key, buckets: BUCKETS_MIN, entries: 0 }, false))
    }

    /// Makes what is in it durable and keeps it for the next mount.
    pub fn close(self, hidden: BorrowedFd<'_>, complete: bool) -> Result<()> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&self.buckets.to_le_bytes());
        header.extend_from_slice(&self.entries.to_le_bytes());
        header.extend_from_slice(&u32::from(complete).to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        assert_eq!(header.len(), HEADER);
        self.file.write_at(&header, 0)?;
        rustix::fs::fsync(&self.file)?;
        rustix::fs::renameat(hidden, OPEN, hidden, CLOSED)
    }

    /// Returns where a file was.
    pub fn get(&self, number: u64) -> Result<Option<NumberEntry>> {
        let page = self.read(self.bucket_of(number))?;
        Ok(entries_of(&page).find(|(found, _)| *found == number).map(|(_, entry)| entry))
    }

    /// Records where a file is, or that it is gone.
    pub fn set(&mut self, number: u64, entry: Option<NumberEntry>) -> Result<()> {
        loop {
            let bucket = self.bucket_of(number);
            let page = self.read(bucket)?;
            let mut all: Vec<(u64, NumberEntry)> = entries_of(&page).collect();
            let before = all.len();
            match (all.iter().position(|(found, _)| *found == number), entry) {
                (Some(at), Some(entry)) if all[at].1 == entry => return Ok(()),
                (Some(at), Some(entry)) => all[at].1 = entry,
                (Some(at), None) => drop(all.swap_remove(at)),
                (None, Some(entry)) => all.push((number, entry)),
                (None, None) => return Ok(()),
            }
            if all.len() > before && (all.len() > ENTRIES_MAX || self.entries >= self.buckets * FILL) {
                self.double()?;
                continue;
            }
            self.write(bucket, &all)?;
            self.entries = (self.entries + all.len() as u64).saturating_sub(before as u64);
            return Ok(());
        }
    }

    /// Users choose names and, by trying, numbers: the key decides what falls together.
    fn bucket_of(&self, number: u64) -> u64 {
        self.key.spread(number) & (self.buckets - 1)
    }

    fn double(&mut self) -> Result<()> {
        if self.buckets >= BUCKETS_MAX {
            return Err(Errno::NOSPC);
        }
        let half = self.buckets;
        self.file.set_len((2 * half + 1) * PAGE as u64)?;
        self.buckets = 2 * half;
        for bucket in 0..half {
            let page = self.read(bucket)?;
            let (stay, go): (Vec<_>, Vec<_>) = entries_of(&page).partition(|(number, _)| self.bucket_of(*number) == bucket);
            // The new one first: what is in both is found in neither twice.
            self.write(bucket + half, &go)?;
            self.write(bucket, &stay)?;
        }
        Ok(())
    }

    /// A bucket; one that is damaged is empty.
    fn read(&self, bucket: u64) -> Result<[u8; PAGE]> {
        let mut page = [0u8; PAGE];
        let mut have = 0;
        while have < PAGE {
            match rustix::io::pread(&self.file, &mut page[have..], (bucket + 1) * PAGE as u64 + have as u64) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        let crc = u32::from_le_bytes(page[..4].try_into().expect("four bytes"));
        Ok(if crc32c::crc32c(&page[4..]) == crc { page } else { [0; PAGE] })
    }

    fn write(&self, bucket: u64, entries: &[(u64, NumberEntry)]) -> Result<()> {
        let mut page = [0u8; PAGE];
        page[4..HEAD].copy_from_slice(&(entries.len() as u32).to_le_bytes());
        for (slot, (number, entry)) in page[HEAD..].chunks_exact_mut(ENTRY).zip(entries) {
            slot[..8].copy_from_slice(&number.to_le_bytes());
            slot[8..16].copy_from_slice(&entry.parent.to_le_bytes());
            slot[16..].copy_from_slice(&(entry.hint | if entry.linked { LINKED } else { 0 }).to_le_bytes());
        }
        let crc = crc32c::crc32c(&page[4..]);
        page[..4].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(&page, (bucket + 1) * PAGE as u64)
    }
}

fn entries_of(page: &[u8; PAGE]) -> impl Iterator<Item = (u64, NumberEntry)> {
    let count = u32::from_le_bytes(page[4..HEAD].try_into().expect("four bytes")) as usize;
    page[HEAD..].chunks_exact(ENTRY).take(count).map(|slot| {
        let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
        (word(0), NumberEntry { parent: word(8), hint: word(16) & !LINKED, linked: word(16) & LINKED != 0 })
    })
}

fn read_header(file: &OwnedFd) -> Option<(u64, u64, bool)> {
    let mut bytes = [0u8; HEADER];
    if rustix::io::pread(file.as_fd(), &mut bytes[..], 0).ok()? != HEADER {
        return None;
    }
    let mut fields = FieldReader(&bytes);
    let (magic, version) = (fields.take(4)?, fields.u32()?);
    let (buckets, entries, complete, crc) = (fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?);
    let good = magic == MAGIC && version == VERSION && crc == crc32c::crc32c(&bytes[..HEADER - 4]);
    let sane = buckets.is_power_of_two() && (BUCKETS_MIN..=BUCKETS_MAX).contains(&buckets);
    (good && sane).then_some((buckets, entries, complete == 1))
}

#[cfg(test)]
mod test {
    use std::collections::HashMap;

    use super::*;
    use crate::persist::file_damage::HiddenTestDir;

    const KEY: NumberKey = NumberKey([7; 16]);

    fn entry(n: u64) -> NumberEntry {
        NumberEntry { parent: n / 10, hint: n * 3, linked: n.is_multiple_of(7) }
    }

    #[test]
    fn it_agrees_with_a_map_through_growth_and_closing() {
        let dir = HiddenTestDir::new();
        let (mut numbers, complete) = NumberTable::open(dir.fd(), KEY).expect("opened");
        assert!(!complete);
        let mut model = HashMap::new();
        let mut random = 1u64;
        for step in 0..30_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (random >> 33) % 12_000;
            let entry = (!step.is_multiple_of(5)).then(|| entry(random >> 40));
            numbers.set(number, entry).expect("set");
            match entry {
                Some(entry) => drop(model.insert(number, entry)),
                None => drop(model.remove(&number)),
            }
        }
        assert!(numbers.buckets > BUCKETS_MIN);
        assert_eq!(numbers.entries, model.len() as u64);
        numbers.close(dir.fd(), true).expect("closed");
        let (numbers, complete) = NumberTable::open(dir.fd(), KEY).expect("opened again");
        assert!(complete);
        for number in 0..12_000 {
            assert_eq!(numbers.get(number).expect("read"), model.get(&number).copied());
        }
    }

    #[test]
    fn what_a_crash_or_damage_leaves_is_an_empty_table() {
        let dir = HiddenTestDir::new();
        let (mut numbers, _) = NumberTable::open(dir.fd(), KEY).expect("opened");
        numbers.set(5, Some(entry(5))).expect("set");
        drop(numbers);
        let (mut numbers, complete) = NumberTable::open(dir.fd(), KEY).expect("opened after a crash");
        assert_eq!((numbers.get(5).expect("read"), complete), (None, false));
        numbers.set(5, Some(entry(5))).expect("set");
        numbers.close(dir.fd(), true).expect("closed");
        let good = dir.get(CLOSED);
        for at in [0, 4, 9, 20, 27, 31] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            dir.put(CLOSED, &bad);
            let (numbers, complete) = NumberTable::open(dir.fd(), KEY).expect("opened");
            assert_eq!((numbers.get(5).expect("read"), complete), (None, false), "byte {at}");
        }
        for len in [0, 10, 32, 4096, good.len() - 1] {
            dir.put(CLOSED, &good[..len]);
            assert!(!NumberTable::open(dir.fd(), KEY).expect("opened").1, "{len} bytes");
        }
        // A damaged bucket is empty.
        let mut bad = good.clone();
        bad[PAGE..].iter_mut().for_each(|byte| *byte ^= 0x55);
        dir.put(CLOSED, &bad);
        let (numbers, _) = NumberTable::open(dir.fd(), KEY).expect("opened");
        assert_eq!(numbers.get(5).expect("read"), None);
    }
}
