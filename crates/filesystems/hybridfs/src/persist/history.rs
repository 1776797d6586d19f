//! `.hotshelf/history`: what was opened when, for the next mount.

use std::os::fd::BorrowedFd;

use super::{FieldReader, PersistError, SetAsideFile, VERSION, put_aside, read_all, replace};

const FILE: &str = "history";
const MAGIC: [u8; 4] = *b"hshi";
const DETAIL: &str = "a wrong checksum or length";
/// 53 million records: more is not a history but an attack.
const BYTES_MAX: usize = 1 << 30;
const NAME: usize = 64;
/// Magic, version, name and checksum.
const HEADER: usize = 76;
/// Count and checksum before each block.
const HEAD: usize = 8;
const RECORD: usize = 20;
/// Records under one checksum.
const BLOCK: usize = 4096;
/// Records in the file: no more blocks than it may have.
const RECORDS_MAX: usize = (BYTES_MAX - HEADER) / (HEAD + BLOCK * RECORD) * BLOCK;

const _: () = assert!(HEADER == MAGIC.len() + size_of::<u32>() + NAME + size_of::<u32>());
const _: () = assert!(HEAD == 2 * size_of::<u32>());
const _: () = assert!(RECORD == size_of::<u64>() + 2 * size_of::<u32>() + size_of::<u16>() + 2);

/// What is remembered of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryRecord {
    /// The inode number that users see.
    pub ino: u64,
    /// Time of the last open in seconds since 1970.
    pub last_open_s: u32,
    /// Number of times the file was opened.
    pub opens: u16,
    /// Seconds since 1970; 0: never moved.
    pub last_move_s: u32,
    /// Direction and reason, packed; 0: never moved.
    pub last_move: u8,
}

/// Holds the records that were read from the history file.
#[derive(Debug, Default)]
pub struct LoadedHistory {
    /// The policy that wrote it.
    pub policy_name: String,
    /// The records, the next victim first.
    pub records: Vec<HistoryRecord>,
    /// The file was damaged; the good blocks are in `records`.
    pub damaged: Option<SetAsideFile>,
}

/// Writes the history, atomically and durably; answers the number of records. More than the file may hold are
/// left out.
pub fn save_history(dir: BorrowedFd<'_>, policy_name: &str, records: &mut dyn Iterator<Item = HistoryRecord>) -> Result<u64, PersistError> {
    let mut bytes = header(policy_name);
    let mut count = 0;
    let mut records = records.take(RECORDS_MAX);
    loop {
        let block: Vec<HistoryRecord> = records.by_ref().take(BLOCK).collect();
        if block.is_empty() {
            break;
        }
        count += block.len() as u64;
        put_block(&mut bytes, &block);
    }
    if let Some(found) = read_all(dir, FILE, HEADER)?.and_then(|old| later_version(&old)) {
        return Err(PersistError::FutureVersion { file: FILE, found, ours: VERSION });
    }
    replace(dir, FILE, &bytes).map(|()| count)
}

fn header(policy_name: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    let mut name = [0u8; NAME];
    let len = policy_name.len().min(NAME);
    name[..len].copy_from_slice(&policy_name.as_bytes()[..len]);
    bytes.extend_from_slice(&name);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), HEADER);
    bytes
}

/// A block: number of records, CRC of the records, records.
fn put_block(bytes: &mut Vec<u8>, records: &[HistoryRecord]) {
    let mut block = Vec::with_capacity(records.len() * RECORD);
    for record in records {
        block.extend_from_slice(&record.ino.to_le_bytes());
        block.extend_from_slice(&record.last_open_s.to_le_bytes());
        block.extend_from_slice(&record.last_move_s.to_le_bytes());
        block.extend_from_slice(&record.opens.to_le_bytes());
        block.extend_from_slice(&[record.last_move, 0]);
    }
    assert_eq!(block.len(), records.len() * RECORD);
    bytes.extend_from_slice(&(records.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
    bytes.extend_from_slice(&block);
}

/// Reads the history; no file is an empty history.
pub fn load_history(dir: BorrowedFd<'_>) -> Result<LoadedHistory, PersistError> {
    let mut loaded = LoadedHistory::default();
    if !read(dir, &mut loaded)? {
        loaded.damaged = Some(put_aside(dir, FILE, DETAIL)?);
    }
    Ok(loaded)
}

/// Looks without changing anything; answers 0 when all is well.
pub fn probe_history(dir: BorrowedFd<'_>) -> Result<u64, PersistError> {
    let whole = read(dir, &mut LoadedHistory::default())?;
    if whole { Ok(0) } else { Err(PersistError::Damaged { file: FILE, detail: DETAIL }) }
}

/// Reads what is good; `false` when something is not.
fn read(dir: BorrowedFd<'_>, loaded: &mut LoadedHistory) -> Result<bool, PersistError> {
    let Some(bytes) = read_all(dir, FILE, BYTES_MAX + 1)? else { return Ok(true) };
    if let Some(found) = later_version(&bytes) {
        return Err(PersistError::FutureVersion { file: FILE, found, ours: VERSION });
    }
    Ok(bytes.len() <= BYTES_MAX && parse(&bytes, loaded).is_some())
}

fn later_version(bytes: &[u8]) -> Option<u32> {
    let mut fields = FieldReader(bytes);
    let magic = fields.take(MAGIC.len())? == MAGIC;
    fields.u32().filter(|found| magic && *found > VERSION)
}

/// Fills `loaded` block by block; `None` at the first that is not whole.
fn parse(bytes: &[u8], loaded: &mut LoadedHistory) -> Option<()> {
    let mut fields = FieldReader(bytes);
    if fields.take(MAGIC.len())? != MAGIC || fields.u32()? != VERSION {
        return None;
    }
    let name = fields.take(NAME)?;
    if fields.u32()? != crc32c::crc32c(&bytes[..HEADER - 4]) {
        return None;
    }
    let name = name.split(|byte| *byte == 0).next()?;
    loaded.policy_name = String::from_utf8_lossy(name).into_owned();
    while !fields.0.is_empty() {
        let rows = fields.u32()? as usize;
        let crc = fields.u32()?;
        if rows == 0 || rows > BLOCK {
            return None;
        }
        let block = fields.take(rows * RECORD)?;
        if crc32c::crc32c(block) != crc {
            return None;
        }
        let mut rows = FieldReader(block);
        while let Some(ino) = rows.u64() {
            let (last_open_s, last_move_s, opens) = (rows.u32()?, rows.u32()?, rows.u16()?);
            let last_move = rows.u16()? as u8;
            loaded.records.push(HistoryRecord { ino, last_open_s, opens, last_move_s, last_move });
        }
    }
    Some(())
}

#[cfg(test)]
mod test {
    use std::os::fd::AsFd;

    use super::*;

    fn row(n: u64) -> HistoryRecord {
        HistoryRecord { ino: n * 7 + 2, last_open_s: n as u32, opens: n as u16, last_move_s: 3, last_move: (n % 256) as u8 }
    }

    #[test]
    fn damage_costs_at_most_what_comes_after_it_and_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = std::fs::File::open(dir.path()).expect("opened");
        let all: Vec<_> = (0..10_000).map(row).collect();
        save_history(handle.as_fd(), "lru", &mut all.iter().copied()).expect("saved");
        let good = std::fs::read(dir.path().join(FILE)).expect("bytes");
        let loaded = load_history(handle.as_fd()).expect("loaded");
        assert_eq!((loaded.policy_name.as_str(), &loaded.records, loaded.damaged), ("lru", &all, None));
        for at in (0..good.len()).step_by(997).chain([4, 8, 75]) {
            let mut bad = good.clone();
            bad[at] ^= 0x21;
            std::fs::write(dir.path().join(FILE), &bad).expect("written");
            match load_history(handle.as_fd()) {
                Ok(loaded) => {
                    assert!(loaded.damaged.is_some(), "byte {at}");
                    assert!(all.starts_with(&loaded.records), "byte {at}");
                }
                Err(PersistError::FutureVersion { .. }) => assert!((4..8).contains(&at)),
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }

    mod hostile {
        use proptest::collection::vec;
        use proptest::prelude::*;
        use proptest::sample::Index;

        use super::*;
        use crate::persist::file_damage::{FileDamage, HiddenTestDir, extreme, file_damage};

        fn records() -> impl Strategy<Value = Vec<HistoryRecord>> {
            let record = (extreme(), any::<(u32, u16, u32, u8)>()).prop_map(|(ino, (last_open_s, opens, last_move_s, last_move))| {
                HistoryRecord { ino, last_open_s, opens, last_move_s, last_move }
            });
            vec(record, 0..50)
        }

        /// The file, with small blocks so that there are several.
        fn written(name: &str, records: &[HistoryRecord], rows: usize) -> Vec<u8> {
            let mut bytes = header(name);
            records.chunks(rows).for_each(|records| put_block(&mut bytes, records));
            bytes
        }

        #[test]
        fn records_come_back_as_they_were() {
            let dir = HiddenTestDir::new();
            proptest!(|(name in "[a-z0-9/é-]{0,20}", records in records(), rows in 1usize..20)| {
                dir.put(FILE, &written(&name, &records, rows));
                let loaded = load_history(dir.fd()).expect("loaded");
                prop_assert_eq!((loaded.policy_name, loaded.records, loaded.damaged), (name, records, None));
            });
        }

        #[test]
        fn a_harmed_history_gives_its_beginning_and_tells() {
            let dir = HiddenTestDir::new();
            proptest!(|(records in records(), rows in 1usize..20, file_damage in file_damage())| {
                let bytes = written("lru", &records, rows);
                dir.put(FILE, &file_damage.done_to(&bytes));
                let probed = probe_history(dir.fd());
                match load_history(dir.fd()) {
                    Ok(loaded) => {
                        prop_assert!(records.starts_with(&loaded.records));
                        prop_assert_eq!(probed.is_err(), loaded.damaged.is_some());
                        // Truncated between two blocks the file is valid, and only heat is lost.
                        let between = matches!(&file_damage, FileDamage::Cut(_)) && loaded.records.len().is_multiple_of(rows);
                        prop_assert!(between || loaded.damaged.is_some());
                        if let Some(damage) = loaded.damaged {
                            prop_assert_eq!(dir.get(&damage.kept_as), file_damage.done_to(&bytes));
                        }
                    }
                    Err(PersistError::FutureVersion { .. }) => {
                        prop_assert!(matches!(&file_damage, FileDamage::Flip(at, _) if (4..8).contains(&at.index(bytes.len()))));
                    }
                    Err(error) => prop_assert!(false, "{error}"),
                }
            });
        }

        #[test]
        fn any_bytes_are_no_history() {
            let dir = HiddenTestDir::new();
            proptest!(|(magic in 0usize..3, bytes in vec(any::<u8>(), 0..300))| {
                let head = header("lru");
                dir.put(FILE, &[&head[..[0, MAGIC.len(), HEADER][magic]], &bytes].concat());
                let loaded = load_history(dir.fd());
                prop_assert!(loaded.is_err() || loaded.is_ok_and(|loaded| loaded.records.is_empty()));
            });
        }

        #[test]
        fn extremes_behind_a_good_checksum_do_no_harm() {
            let dir = HiddenTestDir::new();
            proptest!(|(name in vec(any::<u8>(), NAME), rows in extreme(), block in vec(any::<u8>(), 0..200), at in any::<Index>())| {
                let mut bytes = header("");
                bytes[8..8 + NAME].copy_from_slice(&name);
                let sum = crc32c::crc32c(&bytes[..HEADER - 4]).to_le_bytes();
                bytes[HEADER - 4..].copy_from_slice(&sum);
                let sum = crc32c::crc32c(&block[..at.index(block.len() + 1)]);
                bytes.extend_from_slice(&(rows as u32).to_le_bytes());
                bytes.extend_from_slice(&sum.to_le_bytes());
                bytes.extend_from_slice(&block);
                dir.put(FILE, &bytes);
                let loaded = load_history(dir.fd()).expect("loaded");
                prop_assert!(loaded.records.len() <= block.len() / RECORD);
            });
        }
    }
}
