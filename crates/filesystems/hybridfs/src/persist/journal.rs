//! `.hotshelf/journal` on the SSD: the moves that are under way.
//!
//! A log of `begin` and `end` records. `begin` is durable before the file gets a second name; `end` is not
//! flushed, since doing a finished move's recovery again changes nothing. A torn record ends the log; a bad
//! record with good ones behind it is damage, and the file is put aside.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::{FieldReader, InPlaceFile, PersistError, SetAsideFile, VERSION, again, io_error, open_in_place, put_aside, read_all};
use crate::report::TierName;
use crate::stat::InodeId;

const FILE: &str = "journal";
const MAGIC: [u8; 4] = *b"hsjr";
/// Magic and version.
const HEADER: usize = 8;
/// Length and checksum before each body.
const HEAD: usize = 8;
/// The body of a `begin` without its path.
const BEGIN: usize = 76;
/// Code of a `begin` that names inodes by their numbers alone, as earlier programs wrote it.
const CODE_WITHOUT_BIRTHS: u8 = 1;
const CODE_END: u8 = 2;
const CODE_BEGIN: u8 = 3;
/// The body of an `end`.
const END: usize = 12;
const PATH_MAX: usize = 65_536;
/// Beyond this the log is truncated when no move is open.
const COMPACT_BYTES: u64 = 1 << 20;
/// Beyond this no move begins until the open ones have ended and the log is truncated.
const FULL_BYTES: u64 = 64 << 20;
/// More than the journal ever holds: not a valid journal.
const BYTES_MAX: usize = 65 << 20;
/// Numbers of moves stay far from where counting on would overflow.
const ID_MAX: u64 = 1 << 62;

const _: () = assert!(HEADER == MAGIC.len() + size_of::<u32>());
const _: () = assert!(HEAD == 2 * size_of::<u32>());
const _: () = assert!(END == 4 + size_of::<u64>());
const _: () = assert!(BEGIN == END + 7 * size_of::<u64>() + 2 * size_of::<u32>());

/// Describes a move in the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoveRecord {
    /// The side that the file moves to.
    pub to: TierName,
    /// Path of the file below the mount point.
    pub path: Vec<u8>,
    /// The inode number that users see.
    pub ino: u64,
    /// Backing inode that is copied.
    pub source: InodeId,
    /// Backing inode of the copy.
    pub target: InodeId,
    /// Size of the file in bytes.
    pub size: u64,
    /// Last change of the data: seconds, nanoseconds.
    pub mtime: (i64, u32),
}

/// A move without an end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenMove {
    /// Its name in the log.
    pub id: u64,
    /// The move that was recorded.
    pub record: MoveRecord,
}

/// The log, open for appending.
#[derive(Debug)]
pub struct Journal {
    log: Mutex<JournalLog<OwnedFd>>,
}

#[derive(Debug)]
struct JournalLog<S> {
    file: S,
    /// Where the next record goes.
    len: u64,
    next_id: u64,
    /// Moves without an end.
    open: BTreeSet<u64>,
    /// Part of a record stands behind `len`, and could not be cut off: nothing may follow it.
    torn: bool,
    /// Why nothing can be written at all: the side is read-only.
    closed: Option<Errno>,
}

/// Holds the opened journal and what it contained.
#[derive(Debug)]
pub struct OpenedJournal {
    /// The journal, ready for new records.
    pub journal: Journal,
    /// Unfinished moves that recovery must complete or undo.
    pub open: Vec<OpenMove>,
    /// The old log was damaged and is put aside.
    pub damaged: Option<SetAsideFile>,
}

/// Looks without changing anything; answers the number of open moves.
pub fn probe_journal(dir: BorrowedFd<'_>) -> Result<u64, PersistError> {
    let found = read(dir)?;
    match found.damaged {
        Some(detail) => Err(PersistError::Damaged { file: FILE, detail }),
        None => Ok(found.open.len() as u64),
    }
}

/// Reads the log; nothing, or less than a header, is an empty log.
fn read(dir: BorrowedFd<'_>) -> Result<JournalReplay, PersistError> {
    let bytes = read_all(dir, FILE, BYTES_MAX + 1)?.unwrap_or_default();
    let mut fields = FieldReader(&bytes);
    let magic = fields.take(MAGIC.len()) == Some(&MAGIC[..]);
    match fields.u32() {
        // The creation of the file was interrupted: no move was started.
        None => Ok(JournalReplay::default()),
        Some(_) if !magic => Ok(JournalReplay::bad("wrong magic")),
        Some(found) if found > VERSION => Err(PersistError::FutureVersion { file: FILE, found, ours: VERSION }),
        Some(found) if found < VERSION => Ok(JournalReplay::bad("no such version")),
        Some(_) if bytes.len() > BYTES_MAX => Ok(JournalReplay::bad("too long")),
        Some(_) => Ok(replay(fields.0)),
    }
}

impl Journal {
    /// Opens the log in the hidden directory, making it if there is none.
    pub fn open(dir: OwnedFd) -> Result<OpenedJournal, PersistError> {
        let replay = read(dir.as_fd())?;
        let damaged = replay.damaged.map(|detail| put_aside(dir.as_fd(), FILE, detail)).transpose()?;
        let (file, closed) = match open_in_place(dir.as_fd(), FILE) {
            // Nothing will be appended: any descriptor stands in for the file.
            Err(PersistError::Io { source: Errno::ROFS, .. }) => {
                (again(&dir).map_err(|_| PersistError::Io { file: FILE, source: Errno::ROFS })?, Some(Errno::ROFS))
            }
            other => (other?, None),
        };
        let len = replay.good.map_or(0, |good| (HEADER + good) as u64);
        let open = replay.open.keys().copied().collect();
        let mut log = JournalLog { file, len, next_id: replay.next_id, open, torn: false, closed };
        if replay.good.is_none() && closed.is_none() {
            log.restart().map_err(io_error(FILE))?;
        }
        let open = replay.open.into_iter().map(|(id, record)| OpenMove { id, record }).collect();
        Ok(OpenedJournal { journal: Journal { log: Mutex::new(log) }, open, damaged })
    }

    /// Records that a move begins; durable when this returns.
    pub fn begin(&self, record: &MoveRecord) -> io::Result<u64> {
        Ok(self.log.lock().begin(record)?)
    }

    /// Records that a move is over, either way; once is enough. `durable`: it must not be recovered any more.
    pub fn end(&self, id: u64, durable: bool) -> io::Result<()> {
        Ok(self.log.lock().end(id, durable)?)
    }

    /// Removes all records, after recovery has finished.
    pub fn clear(&self) -> io::Result<()> {
        let mut log = self.log.lock();
        log.open.clear();
        Ok(log.restart()?)
    }
}

impl<S: InPlaceFile> JournalLog<S> {
    fn begin(&mut self, record: &MoveRecord) -> Result<u64, Errno> {
        if record.path.len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if self.len > FULL_BYTES {
            return Err(Errno::AGAIN);
        }
        // Behind the last number come those from the first on that no open move has.
        let id = (self.next_id..ID_MAX).chain(1..).find(|id| !self.open.contains(id)).ok_or(Errno::OVERFLOW)?;
        let body = begin_body(id, record);
        match self.append(&body, true) {
            // A full SSD is what moves are there to cure. The first block of the log is ours already.
            Err(Errno::NOSPC | Errno::DQUOT) if self.open.is_empty() && self.len > HEADER as u64 => {
                self.restart()?;
                self.append(&body, true)?;
            }
            other => other?,
        }
        self.next_id = id + 1;
        self.open.insert(id);
        Ok(id)
    }

    fn end(&mut self, id: u64, durable: bool) -> Result<(), Errno> {
        if !self.open.remove(&id) {
            return Ok(());
        }
        if self.open.is_empty() && self.len > COMPACT_BYTES {
            return self.restart();
        }
        let mut body = vec![CODE_END, 0, 0, 0];
        body.extend_from_slice(&id.to_le_bytes());
        assert_eq!(body.len(), END);
        match self.append(&body, durable) {
            Err(_) if self.open.is_empty() => self.restart(),
            other => other,
        }
    }

    /// An empty log; durable when this returns.
    fn restart(&mut self) -> Result<(), Errno> {
        if let Some(error) = self.closed {
            return Err(error);
        }
        if self.len < HEADER as u64 {
            self.file.set_len(0)?;
            let mut header = MAGIC.to_vec();
            header.extend_from_slice(&VERSION.to_le_bytes());
            self.file.write_at(&header, 0)?;
        } else {
            // The header stays: on a full disk it might not be written again.
            self.file.set_len(HEADER as u64)?;
        }
        self.len = HEADER as u64;
        self.torn = false;
        self.file.sync()
    }

    /// A record: length, CRC of position, length and body; body.
    fn append(&mut self, body: &[u8], durable: bool) -> Result<(), Errno> {
        if let Some(error) = self.closed {
            return Err(error);
        }
        if self.torn {
            self.file.set_len(self.len)?;
            self.torn = false;
        }
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&checksum(self.len - HEADER as u64, body).to_le_bytes());
        bytes.extend_from_slice(body);
        let written = self.file.write_at(&bytes, self.len);
        let written = written.and_then(|()| if durable { self.file.sync() } else { Ok(()) });
        match written {
            Ok(()) => self.len += bytes.len() as u64,
            // Part of it may be there: it must not stand before later records.
            Err(_) => self.torn = self.file.set_len(self.len).is_err(),
        }
        written
    }
}

fn begin_body(id: u64, record: &MoveRecord) -> Vec<u8> {
    let mut body = vec![CODE_BEGIN, record.to as u8, 0, 0];
    let (source, target) = (record.source, record.target);
    for number in [id, record.ino, source.ino, source.birth, target.ino, target.birth, record.size, record.mtime.0 as u64] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    body.extend_from_slice(&record.mtime.1.to_le_bytes());
    body.extend_from_slice(&(record.path.len() as u32).to_le_bytes());
    assert_eq!(body.len(), BEGIN);
    body.extend_from_slice(&record.path);
    body
}

fn checksum(position: u64, body: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&position.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &(body.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, body)
}

#[derive(Debug, Default)]
struct JournalReplay {
    open: BTreeMap<u64, MoveRecord>,
    next_id: u64,
    /// Bytes of good records; `None`: there is no log that could go on.
    good: Option<usize>,
    damaged: Option<&'static str>,
}

impl JournalReplay {
    fn bad(detail: &'static str) -> JournalReplay {
        JournalReplay { damaged: Some(detail), ..JournalReplay::default() }
    }
}

fn replay(log: &[u8]) -> JournalReplay {
    let mut found = JournalReplay { next_id: 1, ..JournalReplay::default() };
    let mut good = 0;
    while let Some(body) = record_at(log, good) {
        if apply(body, &mut found).is_none() {
            return JournalReplay::bad("a record makes no sense");
        }
        good += HEAD + body.len();
    }
    // Good records behind a bad one: this was no torn write.
    if (good + 1..log.len()).take(1 << 20).any(|at| record_at(log, at).is_some()) {
        return JournalReplay::bad("a bad record in the middle");
    }
    found.good = Some(good);
    found
}

fn record_at(log: &[u8], at: usize) -> Option<&[u8]> {
    let mut fields = FieldReader(log.get(at..)?);
    let len = fields.u32()? as usize;
    let crc = fields.u32()?;
    if !(END..=BEGIN + PATH_MAX).contains(&len) {
        return None;
    }
    let body = fields.take(len)?;
    (checksum(at as u64, body) == crc).then_some(body)
}

fn apply(body: &[u8], found: &mut JournalReplay) -> Option<()> {
    let mut fields = FieldReader(body);
    let (code, tier) = (fields.u8()?, fields.u8()?);
    fields.u16()?;
    let id = fields.u64().filter(|id| *id < ID_MAX)?;
    match code {
        CODE_BEGIN | CODE_WITHOUT_BIRTHS => {
            let to = match tier {
                0 => TierName::Ssd,
                1 => TierName::Hdd,
                _ => return None,
            };
            let inode = |fields: &mut FieldReader<'_>| {
                Some(InodeId { ino: fields.u64()?, birth: if code == CODE_BEGIN { fields.u64()? } else { 0 } })
            };
            let (ino, source, target, size) = (fields.u64()?, inode(&mut fields)?, inode(&mut fields)?, fields.u64()?);
            let mtime = (fields.u64()? as i64, fields.u32()?);
            let len = fields.u32()? as usize;
            let path = fields.take(len)?.to_vec();
            let record = MoveRecord { to, path, ino, source, target, size, mtime };
            if found.open.insert(id, record).is_some() {
                return None;
            }
            found.next_id = found.next_id.max(id + 1);
        }
        CODE_END => {
            found.open.remove(&id);
        }
        _ => return None,
    }
    fields.0.is_empty().then_some(())
}

#[cfg(test)]
mod test {
    use super::*;

    fn record(n: u64) -> MoveRecord {
        let to = if n.is_multiple_of(2) { TierName::Ssd } else { TierName::Hdd };
        let path = format!("dir/file-{n}").into_bytes();
        let inode = |ino| InodeId { ino, birth: ino << 40 };
        MoveRecord { to, path, ino: n, source: inode(n + 1), target: inode(n + 2), size: n * 4096, mtime: (-5, 7) }
    }

    fn open(dir: &tempfile::TempDir) -> OpenedJournal {
        Journal::open(std::fs::File::open(dir.path()).expect("directory").into()).expect("opened")
    }

    #[test]
    fn open_moves_are_those_without_an_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = open(&dir).journal;
        let ids: Vec<u64> = (0..5).map(|n| journal.begin(&record(n)).expect("begun")).collect();
        journal.end(ids[1], false).expect("ended");
        journal.end(ids[4], true).expect("ended");
        drop(journal);
        let opened = open(&dir);
        let left: Vec<u64> = opened.open.iter().map(|open| open.record.ino).collect();
        assert_eq!((left, opened.damaged), (vec![0, 2, 3], None));
        assert!(opened.journal.begin(&record(9)).expect("begun") > ids[4]);
    }

    #[test]
    fn a_begin_of_an_earlier_program_is_read_without_births() {
        let mut body = begin_body(7, &record(3));
        // Behind the numbers of the source and of the target.
        body.drain(44..52);
        body.drain(28..36);
        body[0] = CODE_WITHOUT_BIRTHS;
        let mut found = JournalReplay::default();
        apply(&body, &mut found).expect("it makes sense");
        let without = |id: InodeId| InodeId { birth: 0, ..id };
        let whole = record(3);
        assert_eq!(found.open[&7], MoveRecord { source: without(whole.source), target: without(whole.target), ..whole });
        assert!(InodeId { ino: 4, birth: 0 }.is(&crate::stat::Stat { ino: 4, birth: (1, 2), ..Default::default() }));
    }

    #[test]
    fn every_cut_gives_the_moves_of_the_whole_records() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = open(&dir).journal;
        let path = dir.path().join(FILE);
        let mut expect = vec![(HEADER, vec![])];
        let mut live = Vec::new();
        for n in 0..6 {
            live.push(journal.begin(&record(n)).expect("begun"));
            expect.push((std::fs::metadata(&path).expect("stat").len() as usize, live.clone()));
            if n % 2 == 1 {
                let id = live.remove(0);
                journal.end(id, false).expect("ended");
                expect.push((std::fs::metadata(&path).expect("stat").len() as usize, live.clone()));
            }
        }
        drop(journal);
        let whole = std::fs::read(&path).expect("bytes");
        for cut in HEADER..=whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("written");
            let opened = open(&dir);
            let want = &expect.iter().rev().find(|(len, _)| *len <= cut).expect("a prefix").1;
            let got: Vec<u64> = opened.open.iter().map(|open| open.id).collect();
            assert_eq!((&got, opened.damaged), (want, None), "cut at {cut}");
        }
    }

    #[test]
    fn a_flip_in_the_middle_is_reported_and_the_file_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = open(&dir).journal;
        for n in 0..4 {
            journal.begin(&record(n)).expect("begun");
        }
        drop(journal);
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).expect("bytes");
        bytes[HEADER + 20] ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        let opened = open(&dir);
        let damage = opened.damaged.expect("told");
        assert!(dir.path().join(damage.kept_as).exists());
        assert!(opened.open.is_empty());
        opened.journal.begin(&record(1)).expect("usable");
    }

    #[test]
    fn a_later_version_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(open(&dir));
        let path = dir.path().join(FILE);
        std::fs::write(&path, b"hsjr\x09\0\0\0rest").expect("written");
        let error = Journal::open(std::fs::File::open(dir.path()).expect("directory").into()).expect_err("refused");
        assert!(matches!(error, PersistError::FutureVersion { found: 9, .. }), "{error}");
        assert_eq!(std::fs::read(&path).expect("bytes"), b"hsjr\x09\0\0\0rest");
    }

    mod hostile {
        use proptest::collection::vec;
        use proptest::prelude::*;
        use proptest::sample::Index;

        use super::*;
        use crate::persist::file_damage::{FailingStore, FileDamage, HiddenTestDir, extreme, file_damage, path};

        fn records() -> impl Strategy<Value = MoveRecord> {
            let inode = || (extreme(), extreme()).prop_map(|(ino, birth)| InodeId { ino, birth });
            let numbers = (extreme(), inode(), inode(), extreme());
            (any::<bool>(), path(), numbers, any::<(i64, u32)>()).prop_map(|(up, path, (ino, source, target, size), mtime)| {
                let to = if up { TierName::Ssd } else { TierName::Hdd };
                MoveRecord { to, path, ino, source, target, size, mtime }
            })
        }

        /// A move begins, or one of those that are open ends.
        #[derive(Clone, Debug)]
        enum Op {
            Begin(MoveRecord),
            End(Index, bool),
        }

        fn ops() -> impl Strategy<Value = Vec<Op>> {
            vec(prop_oneof![records().prop_map(Op::Begin), any::<(Index, bool)>().prop_map(|(at, durable)| Op::End(at, durable))], 0..12)
        }

        fn empty(file: FailingStore) -> JournalLog<FailingStore> {
            let mut log = JournalLog { file, len: 0, next_id: 1, open: BTreeSet::new(), torn: false, closed: None };
            log.restart().expect("an empty log");
            log
        }

        type Moves = BTreeMap<u64, MoveRecord>;

        /// The bytes of a log, and what is open after each record.
        fn written(ops: &[Op]) -> (Vec<u8>, Vec<(usize, Moves)>) {
            let mut log = empty(FailingStore::default());
            let mut states = vec![(HEADER, Moves::new())];
            for op in ops {
                let mut moves = states[states.len() - 1].1.clone();
                match op {
                    Op::Begin(record) => {
                        moves.insert(log.begin(record).expect("begun"), record.clone());
                    }
                    Op::End(at, durable) => {
                        if moves.is_empty() {
                            continue;
                        }
                        let id = *at.get(&moves.keys().copied().collect::<Vec<_>>());
                        log.end(id, *durable).expect("ended");
                        moves.remove(&id);
                    }
                }
                states.push((log.len as usize, moves));
            }
            (log.file.bytes.into_inner(), states)
        }

        fn moves(open: Vec<OpenMove>) -> Moves {
            open.into_iter().map(|open| (open.id, open.record)).collect()
        }

        #[test]
        fn open_moves_come_back_as_they_were() {
            let dir = HiddenTestDir::new();
            proptest!(|(ops in ops())| {
                let (bytes, states) = written(&ops);
                dir.put(FILE, &bytes);
                let opened = Journal::open(dir.owned()).expect("opened");
                prop_assert_eq!((moves(opened.open), opened.damaged), (states[states.len() - 1].1.clone(), None));
                prop_assert_eq!(dir.get(FILE), bytes);
            });
        }

        #[test]
        fn a_harmed_log_tells_or_gives_what_was_written_first() {
            let dir = HiddenTestDir::new();
            proptest!(|(ops in ops(), file_damage in file_damage())| {
                let (bytes, states) = written(&ops);
                dir.put(FILE, &file_damage.done_to(&bytes));
                let probed = probe_journal(dir.fd());
                let opened = match Journal::open(dir.owned()) {
                    Ok(opened) => opened,
                    Err(PersistError::FutureVersion { .. }) => {
                        let in_version = matches!(&file_damage, FileDamage::Flip(at, _) if (4..8).contains(&at.index(bytes.len())));
                        prop_assert!(in_version && probed.is_err());
                        return Ok(());
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                };
                prop_assert_eq!(probed.is_err(), opened.damaged.is_some());
                if let Some(damage) = &opened.damaged {
                    prop_assert!(matches!(file_damage, FileDamage::Flip(..)) && opened.open.is_empty());
                    prop_assert_eq!(dir.get(&damage.kept_as), file_damage.done_to(&bytes));
                } else {
                    let good = match &file_damage {
                        FileDamage::Flip(at, _) => {
                            // It cannot be distinguished from a torn write, and only there.
                            let at = at.index(bytes.len());
                            let last = states.len().saturating_sub(2);
                            prop_assert!(at >= states[last].0, "byte {} before {}", at, states[last].0);
                            at
                        }
                        FileDamage::Cut(at) => at.index(bytes.len()),
                        FileDamage::Append(_) => bytes.len(),
                    };
                    let want = states.iter().rev().find(|(len, _)| *len <= good).map(|(_, moves)| moves.clone());
                    prop_assert_eq!(moves(opened.open), want.unwrap_or_default());
                }
                // Whatever was there: the log goes on.
                opened.journal.clear().expect("cleared");
                let again = MoveRecord { path: b"again".to_vec(), ..record(1) };
                opened.journal.begin(&again).expect("begun");
                let open = Journal::open(dir.owned()).expect("opened").open;
                prop_assert_eq!(open.into_iter().map(|open| open.record).collect::<Vec<_>>(), vec![again]);
            });
        }

        #[test]
        fn any_bytes_are_no_moves() {
            let dir = HiddenTestDir::new();
            let versions = prop_oneof![Just(VERSION), any::<u32>()];
            proptest!(|(magic in any::<bool>(), version in versions, bytes in vec(any::<u8>(), 0..400))| {
                let head = [&MAGIC[..], &version.to_le_bytes()].concat();
                dir.put(FILE, &[if magic { &head } else { &[][..] }, &bytes].concat());
                match Journal::open(dir.owned()) {
                    Ok(opened) => prop_assert!(opened.open.is_empty()),
                    Err(error) => prop_assert!(magic && version > VERSION, "{error}"),
                }
            });
        }

        /// A body with anything in its fields.
        fn bodies() -> impl Strategy<Value = Vec<u8>> {
            let lens = prop_oneof![Just(None), extreme().prop_map(|len| Some(len as u32))];
            let codes = prop_oneof![Just(1u8), Just(2u8), any::<u8>()];
            let tiers = prop_oneof![0u8..2, any::<u8>()];
            (codes, tiers, extreme(), vec(extreme(), 5), lens, vec(any::<u8>(), 0..30)).prop_map(|(code, tier, id, numbers, len, path)| {
                let mut body = vec![code, tier, 0, 0];
                body.extend_from_slice(&id.to_le_bytes());
                if code != 2 {
                    numbers.iter().for_each(|number| body.extend_from_slice(&number.to_le_bytes()));
                    body.extend_from_slice(&7u32.to_le_bytes());
                    body.extend_from_slice(&len.unwrap_or(path.len() as u32).to_le_bytes());
                    body.extend_from_slice(&path);
                }
                body
            })
        }

        /// A log of any bodies, with good checksums.
        fn summed(bodies: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
            let mut log = Vec::new();
            for body in bodies {
                let sum = checksum(log.len() as u64, &body);
                log.extend_from_slice(&(body.len() as u32).to_le_bytes());
                log.extend_from_slice(&sum.to_le_bytes());
                log.extend_from_slice(&body);
            }
            log
        }

        #[test]
        fn extremes_behind_a_good_checksum_do_no_harm() {
            proptest!(|(mut bodies in vec(bodies(), 1..6), cut in any::<Index>(), cut_one in any::<bool>())| {
                if cut_one {
                    let len = cut.index(bodies[0].len());
                    bodies[0].truncate(len);
                }
                let log = summed(bodies.clone());
                let found = replay(&log);
                prop_assert!(found.open.len() <= bodies.len());
                let Some(good) = found.good else {
                    prop_assert!(found.damaged.is_some() && found.open.is_empty());
                    return Ok(());
                };
                // It goes on behind them, wherever their numbers led.
                let file = FailingStore::default();
                file.bytes.replace([&MAGIC[..], &VERSION.to_le_bytes(), &log[..good]].concat());
                let open = found.open.keys().copied().collect();
                let mut log = JournalLog { file, len: (HEADER + good) as u64, next_id: found.next_id, open, torn: false, closed: None };
                let id = log.begin(&record(1)).expect("begun");
                let again = replay(&log.file.bytes.borrow()[HEADER..]);
                prop_assert_eq!((again.open.len(), again.open.get(&id)), (found.open.len() + 1, Some(&record(1))));
            });
        }

        #[test]
        fn behind_the_last_number_comes_the_first_that_is_free() {
            let log = summed([ID_MAX - 1, 1, 2].map(|id| begin_body(id, &record(1))));
            let found = replay(&log);
            let file = FailingStore::default();
            file.bytes.replace([&MAGIC[..], &VERSION.to_le_bytes(), &log[..]].concat());
            let (len, open) = ((HEADER + log.len()) as u64, found.open.keys().copied().collect());
            let mut log = JournalLog { file, len, next_id: found.next_id, open, torn: false, closed: None };
            let ids: Vec<_> = (0..2).map(|_| log.begin(&record(2)).expect("begun")).collect();
            assert_eq!(ids, [3, 4]);
            let again = replay(&log.file.bytes.borrow()[HEADER..]);
            assert_eq!(again.open.into_keys().collect::<Vec<_>>(), [1, 2, 3, 4, ID_MAX - 1]);
        }

        #[test]
        fn a_log_of_very_many_moves_is_read_in_time() {
            let begins = (0..100_000).map(|id| begin_body(id, &record(1)));
            let ends = (0..99_999u64).map(|id| [&[2, 0, 0, 0], &id.to_le_bytes()[..]].concat());
            let found = replay(&summed(begins.chain(ends)));
            assert_eq!((found.open.into_keys().collect::<Vec<_>>(), found.damaged), (vec![99_999], None));
        }

        #[test]
        fn after_any_failures_the_log_reads_as_far_as_it_was_acknowledged() {
            let plans = vec(prop_oneof![4 => Just(None), 1 => (0usize..200).prop_map(Some)], 0..40);
            let rooms = prop_oneof![Just(0), 100usize..3000];
            proptest!(|(ops in ops(), plan in plans, room in rooms)| {
                let mut log = empty(FailingStore::default());
                log.file.plan.replace(plan);
                log.file.room.set(room);
                let (mut must, mut may) = (Moves::new(), BTreeSet::new());
                for op in &ops {
                    match op {
                        Op::Begin(record) => {
                            let next = log.next_id;
                            match log.begin(record) {
                                Ok(id) => {
                                    must.insert(id, record.clone());
                                    let safe = replay(&log.file.durable.borrow()[HEADER..]);
                                    prop_assert_eq!(safe.open.get(&id), Some(record));
                                }
                                // Its record may have stayed where it could not be cut off.
                                Err(_) => drop(may.insert(next)),
                            }
                        }
                        Op::End(at, durable) => {
                            if must.is_empty() {
                                continue;
                            }
                            let id = *at.get(&must.keys().copied().collect::<Vec<_>>());
                            must.remove(&id);
                            match log.end(id, *durable) {
                                Ok(()) if *durable => {
                                    prop_assert!(!replay(&log.file.durable.borrow()[HEADER..]).open.contains_key(&id));
                                }
                                Ok(()) => {}
                                Err(_) => drop(may.insert(id)),
                            }
                        }
                    }
                    let found = replay(&log.file.bytes.borrow()[HEADER..]);
                    prop_assert_eq!(found.damaged, None);
                    for (id, record) in &must {
                        prop_assert_eq!(found.open.get(id), Some(record));
                    }
                    prop_assert!(found.open.keys().all(|id| must.contains_key(id) || may.contains(id)));
                }
            });
        }

        #[test]
        fn a_full_disk_does_not_keep_moves_from_beginning() {
            let mut log = empty(FailingStore::default());
            log.file.room.set(300);
            for n in 0..50 {
                let id = log.begin(&record(n)).expect("begun");
                log.end(id, n % 2 == 0).expect("ended");
                assert!(log.file.bytes.borrow().len() <= 300);
            }
            let first = log.begin(&record(1)).expect("begun");
            let error = (0..9).find_map(|n| log.begin(&record(n)).err()).expect("full while moves are open");
            assert_eq!(error, Errno::NOSPC);
            assert!(replay(&log.file.bytes.borrow()[HEADER..]).open.contains_key(&first));
        }

        #[test]
        fn half_a_record_that_could_not_be_cut_off_never_has_another_behind_it() {
            let mut log = empty(FailingStore::default());
            let id = log.begin(&record(1)).expect("begun");
            // From the end: the write fails after 30 bytes, the cut fails; then the cut fails once more.
            log.file.plan.replace(vec![Some(0), Some(0), Some(30)]);
            log.begin(&record(2)).expect_err("the write failed");
            log.begin(&record(3)).expect_err("still not cut off");
            assert_eq!(replay(&log.file.bytes.borrow()[HEADER..]).open.len(), 1);
            log.begin(&record(4)).expect("interrupted at the start");
            let found = replay(&log.file.bytes.borrow()[HEADER..]);
            assert_eq!((found.open.get(&id), found.open.len(), found.damaged), (Some(&record(1)), 2, None));
        }

        #[test]
        fn one_end_reported_twice_does_not_forget_another_move() {
            let mut log = empty(FailingStore::default());
            let (a, b) = (log.begin(&record(1)).expect("begun"), log.begin(&record(2)).expect("begun"));
            // Long enough to be truncated.
            let long = MoveRecord { path: vec![b'x'; PATH_MAX], ..record(3) };
            let ids: Vec<u64> = (0..17).map(|_| log.begin(&long).expect("begun")).collect();
            ids.into_iter().chain([a, a]).for_each(|id| log.end(id, false).expect("ended"));
            assert_eq!(replay(&log.file.bytes.borrow()[HEADER..]).open.into_keys().collect::<Vec<_>>(), [b]);
            log.end(b, false).expect("ended");
            assert_eq!(log.file.bytes.borrow().len(), HEADER);
        }

        #[test]
        fn a_log_that_never_comes_to_rest_stays_within_what_the_reader_takes() {
            let mut log = empty(FailingStore::default());
            let id = log.begin(&record(1)).expect("begun");
            log.len = FULL_BYTES + 1;
            assert_eq!(log.begin(&record(2)), Err(Errno::AGAIN));
            log.end(id, false).expect("ended");
            log.begin(&record(2)).expect("begun anew");
            assert!(log.file.bytes.borrow().len() < 200);
        }

        #[test]
        fn a_path_too_long_for_the_reader_is_not_written() {
            let mut log = empty(FailingStore::default());
            log.begin(&MoveRecord { path: vec![b'x'; PATH_MAX], ..record(1) }).expect("the longest");
            assert_eq!(log.begin(&MoveRecord { path: vec![b'x'; PATH_MAX + 1], ..record(2) }), Err(Errno::NAMETOOLONG));
            let id = log.begin(&record(3)).expect("begun");
            let found = replay(&log.file.bytes.borrow()[HEADER..]);
            assert_eq!((found.open.len(), found.open.contains_key(&id), found.damaged), (2, true, None));
        }
    }
}
