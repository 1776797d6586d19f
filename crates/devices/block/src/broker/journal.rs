//! The policy on disk: a journal of changes, one per line, readable as text and safe against torn writes.
//!
//! ```text
//!   hotshelf-grants 1
//!   5a1b2c3d {"time_s":1790000000,"by":0,"change":{"grant":{"id":1,...}}}
//!   ...
//! ```
//!
//! The number in front is the CRC-32C of the line's position in the file (8 bytes, little-endian) and of the text behind it.
//!
//! A line counts once it is durable. A last line without a line feed is a torn write that was never acknowledged; it is truncated. Any
//! other invalid content is damage, and the journal is not opened: silently losing a revocation would restore access. Drawn in
//! docs/formats.md.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::grant::{Grant, GrantId, GrantSpec, Policy};

const HEADER: &[u8] = b"hotshelf-grants 1\n";
const HEADER_WORD: &[u8] = b"hotshelf-grants ";
/// A longer journal is compacted: rewritten with only the grants in force.
const COMPACT_BYTES: u64 = 1 << 20;
/// The maximum size of a journal; no valid one is longer.
const BYTES_MAX: u64 = 64 << 20;

/// The reason why a journal could not be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A system call on the journal failed.
    #[error("{path}: {what}: {source}")]
    System {
        /// The path of the file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error that the kernel returned.
        source: std::io::Error,
    },
    /// The journal contains invalid data.
    #[error(
        "{path}: damaged at byte {at} ({what}): what is before it is whole; `head -c {at}` of it into another file, given as --journal, \
         serves that, and later changes must be made again there"
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The offset of the first invalid byte.
        at: u64,
        /// A description of the damage.
        what: &'static str,
    },
    /// A later version of hotshelf wrote the journal.
    #[error("{path}: written by a later version of hotshelf: use that one")]
    Later {
        /// The path of the file.
        path: PathBuf,
    },
    /// Other users could have changed the journal.
    #[error("{path}: must be a regular file of this user that others can neither read nor write: `chown` it, and `chmod 600`")]
    Unsafe {
        /// The path of the file.
        path: PathBuf,
    },
    /// A broker, or another change, has locked the journal.
    #[error("{path}: in use by a broker or by another change")]
    InUse {
        /// The path of the file.
        path: PathBuf,
    },
    /// An earlier write failed, and could not be undone.
    #[error("{path}: an earlier write failed and could not be undone: start the broker again")]
    Stuck {
        /// The path of the file.
        path: PathBuf,
    },
    /// The policy was made by [`Journal::fixed`] and cannot be changed.
    #[error("the grants of this broker are fixed")]
    Fixed,
    /// No grant has the given ID.
    #[error("there is no such grant")]
    NoSuchGrant,
}

/// One line of the journal: a change, its time and its author.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    time_s: u64,
    by: u32,
    change: Change,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    /// Puts a grant in force, in place of a grant of the same user, device and range.
    Grant(Numbered),
    /// Revokes a grant that is in force.
    Revoke(GrantId),
    /// Sets the next free grant ID; written when the journal is compacted.
    Next(GrantId),
}

#[derive(Debug, Serialize, Deserialize)]
struct Numbered {
    id: GrantId,
    #[serde(flatten)]
    terms: GrantSpec,
}

/// An open and locked journal, and the policy that it records.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Holds the flock. It is a separate file, because compaction replaces the journal. `None` if the policy is fixed.
    lock: Option<File>,
    bytes: u64,
    stuck: bool,
    next: GrantId,
    policy: Policy,
}

impl Journal {
    /// Opens or creates the journal with mode 0600, and locks it against other brokers and changes.
    ///
    /// # Errors
    /// Fails with a [`JournalError`] if the journal is damaged, unsafe, in use, or cannot be read.
    pub fn open(path: &Path) -> Result<Journal, JournalError> {
        let lock = lock(path)?;
        let mut file = open_own(path)?;
        let system = |what| move |source| JournalError::System { path: path.to_owned(), what, source };
        let len = file.metadata().map_err(system("looking at it"))?.len();
        if len > BYTES_MAX {
            return Err(JournalError::Damaged { path: path.to_owned(), at: BYTES_MAX, what: "longer than any journal" });
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(system("reading it"))?;
        let read = parse(&content).map_err(|wrong| wrong.at_path(path))?;
        let mut journal = Journal {
            path: path.to_owned(),
            file,
            lock: Some(lock),
            bytes: read.bytes,
            stuck: false,
            next: read.next,
            policy: read.policy,
        };
        if read.bytes < content.len() as u64 {
            journal.file.set_len(read.bytes).map_err(system("cutting off what was not written whole"))?;
        }
        if read.bytes == 0 {
            journal.append(HEADER)?;
            sync_directory(path).map_err(system("making it durable"))?;
        }
        Ok(journal)
    }

    /// Creates a policy that cannot be changed and is stored in no file, for a broker that serves one purpose.
    ///
    /// # Errors
    /// Fails if the kernel reports an error.
    pub fn fixed(terms: impl IntoIterator<Item = GrantSpec>) -> std::io::Result<Journal> {
        let (time_s, by) = (now_s(), rustix::process::geteuid().as_raw());
        let mut policy = Policy::default();
        let mut next = GrantId(1);
        for terms in terms {
            policy.put(Grant { id: next, terms, time_s, by });
            next.0 += 1;
        }
        let file = File::open("/dev/null")?;
        Ok(Journal { path: "/dev/null".into(), file, lock: None, bytes: 0, stuck: false, next, policy })
    }

    /// Returns the policy with all grants in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Adds a grant durably. Returns its ID and the grant of the same user, device and range that it replaced.
    ///
    /// # Errors
    /// Fails if the journal could not be written; the policy is then unchanged.
    pub fn grant(&mut self, terms: GrantSpec, by: u32) -> Result<(GrantId, Option<GrantId>), JournalError> {
        let (id, replaced, time_s) = (self.next, self.policy.replaced_by(&terms), now_s());
        let mut line = Vec::new();
        self.line(&mut line, &Record { time_s, by, change: Change::Grant(Numbered { id, terms: terms.clone() }) });
        self.append(&line)?;
        replaced.and_then(|old| self.policy.remove(old));
        self.policy.put(Grant { id, terms, time_s, by });
        self.next = GrantId(id.0 + 1);
        self.compact_if_long();
        Ok((id, replaced))
    }

    /// Revokes a grant durably, and returns it.
    ///
    /// # Errors
    /// Fails if there is no such grant or the journal could not be written; the policy is then unchanged.
    pub fn revoke(&mut self, id: GrantId, by: u32) -> Result<Grant, JournalError> {
        let grant = self.policy.get(id).cloned().ok_or(JournalError::NoSuchGrant)?;
        let mut line = Vec::new();
        self.line(&mut line, &Record { time_s: now_s(), by, change: Change::Revoke(id) });
        self.append(&line)?;
        self.policy.remove(id);
        self.compact_if_long();
        Ok(grant)
    }

    /// Adds a record to `lines`, which are later appended in one write.
    fn line(&self, lines: &mut Vec<u8>, record: &Record) {
        write_line(lines, self.bytes + lines.len() as u64, record);
    }

    fn append(&mut self, lines: &[u8]) -> Result<(), JournalError> {
        if self.lock.is_none() {
            return Err(JournalError::Fixed);
        }
        if self.stuck {
            return Err(JournalError::Stuck { path: self.path.clone() });
        }
        let at = self.bytes;
        let written = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.write_all(lines)).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.bytes += lines.len() as u64;
                Ok(())
            }
            Err(source) => {
                // A partial or non-durable record must not count at the next start.
                self.stuck = self.file.set_len(at).and_then(|()| self.file.sync_data()).is_err();
                Err(JournalError::System { path: self.path.clone(), what: "writing it", source })
            }
        }
    }

    /// Compacts a long journal. A failure is harmless: the long journal remains valid.
    fn compact_if_long(&mut self) {
        if self.bytes > COMPACT_BYTES
            && let Err(error) = self.compact()
        {
            tracing::warn!(%error, path = %self.path.display(), "the journal of grants could not be written anew");
        }
    }

    fn compact(&mut self) -> std::io::Result<()> {
        let mut content = HEADER.to_vec();
        let next = Record { time_s: now_s(), by: rustix::process::geteuid().as_raw(), change: Change::Next(self.next) };
        let at = content.len() as u64;
        write_line(&mut content, at, &next);
        for grant in self.policy.grants() {
            let change = Change::Grant(Numbered { id: grant.id, terms: grant.terms.clone() });
            let at = content.len() as u64;
            write_line(&mut content, at, &Record { time_s: grant.time_s, by: grant.by, change });
        }
        let new = beside(&self.path, ".new");
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag");
        let mut file = File::options().create(true).truncate(true).write(true).read(true).mode(0o600).custom_flags(flags).open(&new)?;
        file.write_all(&content)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        // From here on the new file counts, even if its name is not durable yet: the old file says the same.
        self.file = file;
        self.bytes = content.len() as u64;
        sync_directory(&self.path)
    }
}

fn write_line(lines: &mut Vec<u8>, at: u64, record: &Record) {
    let text = serde_json::to_vec(record).expect("plain data");
    let crc = crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), &text);
    lines.extend_from_slice(format!("{crc:08x} ").as_bytes());
    lines.extend_from_slice(&text);
    lines.push(b'\n');
}

/// The decoded content of a journal file.
struct Content {
    policy: Policy,
    next: GrantId,
    /// The total size of the complete lines.
    bytes: u64,
}

enum Wrong {
    Damaged { at: u64, what: &'static str },
    Later,
}

impl Wrong {
    fn at_path(self, path: &Path) -> JournalError {
        let path = path.to_owned();
        match self {
            Wrong::Damaged { at, what } => JournalError::Damaged { path, at, what },
            Wrong::Later => JournalError::Later { path },
        }
    }
}

fn parse(content: &[u8]) -> Result<Content, Wrong> {
    let mut read = Content { policy: Policy::default(), next: GrantId(1), bytes: 0 };
    // A new file whose size became durable before its bytes, or a truncated header.
    if HEADER.starts_with(content) && content.len() < HEADER.len() || content.iter().all(|byte| *byte == 0) {
        return Ok(read);
    }
    if !content.starts_with(HEADER) {
        let later = content.starts_with(HEADER_WORD) && content.get(HEADER_WORD.len()).is_some_and(|digit| (b'2'..=b'9').contains(digit));
        return Err(if later { Wrong::Later } else { Wrong::Damaged { at: 0, what: "not the header of a journal of grants" } });
    }
    let mut at = HEADER.len();
    while let Some(length) = content[at..].iter().position(|byte| *byte == b'\n') {
        let record = parse_line(at as u64, &content[at..at + length]).map_err(|what| Wrong::Damaged { at: at as u64, what })?;
        read.apply(record).map_err(|what| Wrong::Damaged { at: at as u64, what })?;
        at += length + 1;
    }
    read.bytes = at as u64;
    Ok(read)
}

fn parse_line(at: u64, line: &[u8]) -> Result<Record, &'static str> {
    let (crc, text) = line.split_at_checked(9).ok_or("a line that is too short")?;
    let crc = std::str::from_utf8(&crc[..8]).ok().filter(|_| crc[8] == b' ').and_then(|digits| u32::from_str_radix(digits, 16).ok());
    if crc != Some(crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), text)) {
        return Err("a wrong checksum");
    }
    serde_json::from_slice(text).map_err(|_| "a change that makes no sense")
}

impl Content {
    fn apply(&mut self, record: Record) -> Result<(), &'static str> {
        let Record { time_s, by, change } = record;
        match change {
            Change::Next(next) if next >= self.next => self.next = next,
            Change::Next(_) => return Err("numbers that go back"),
            Change::Revoke(id) => {
                self.policy.remove(id).ok_or("a revocation of no grant")?;
            }
            Change::Grant(Numbered { id, terms }) => {
                // After compaction, grants keep IDs that are lower than `next`.
                if self.policy.get(id).is_some() || id.0 == u64::MAX {
                    return Err("a grant with a number that is taken");
                }
                self.next = self.next.max(GrantId(id.0 + 1));
                self.policy.replaced_by(&terms).and_then(|old| self.policy.remove(old));
                self.policy.put(Grant { id, terms, time_s, by });
            }
        }
        Ok(())
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn lock(path: &Path) -> Result<File, JournalError> {
    let at = beside(path, ".lock");
    let file = open_own(&at)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(JournalError::System { path: at, what: "locking it", source }),
    }
}

/// Opens or creates a file that only this user can access.
fn open_own(path: &Path) -> Result<File, JournalError> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).expect("flags");
    let opened = File::options().create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(flags).open(path);
    let system = |what| move |source| JournalError::System { path: path.to_owned(), what, source };
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == rustix::io::Errno::LOOP.raw_os_error() => JournalError::Unsafe { path: path.to_owned() },
        _ => system("opening it")(error),
    })?;
    let meta = file.metadata().map_err(system("looking at it"))?;
    let others = Mode::from_raw_mode(meta.mode()).intersects(Mode::RWXG | Mode::RWXO);
    if !meta.is_file() || others || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(JournalError::Unsafe { path: path.to_owned() });
    }
    Ok(file)
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(all(test, not(miri)))]
mod test {
    use super::super::grant::test::terms;
    use super::*;

    fn dir() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("grants");
        (dir, path)
    }

    /// A journal with a few changes, and the policy after each length at which a change was acknowledged.
    fn sample(path: &Path) -> (Vec<u8>, Vec<(u64, Policy)>) {
        let mut journal = Journal::open(path).expect("opened");
        let mut known = vec![(journal.bytes, journal.policy.clone())];
        let (first, _) = journal.grant(terms(1, "a"), 0).expect("granted");
        known.push((journal.bytes, journal.policy.clone()));
        journal.grant(terms(2, "ümlaut \n"), 5).expect("granted");
        known.push((journal.bytes, journal.policy.clone()));
        journal.revoke(first, 0).expect("revoked");
        known.push((journal.bytes, journal.policy.clone()));
        journal.grant(terms(3, "b"), 0).expect("granted");
        known.push((journal.bytes, journal.policy.clone()));
        drop(journal);
        (std::fs::read(path).expect("read"), known)
    }

    fn put(path: &Path, content: &[u8]) {
        std::fs::write(path, content).expect("written");
    }

    #[test]
    fn a_fixed_policy_is_in_no_file_and_nobody_changes_it() {
        let mut journal = Journal::fixed([terms(7, "d"), terms(8, "d")]).expect("made");
        assert_eq!(journal.policy().grants().map(|grant| grant.id.0).collect::<Vec<_>>(), [1, 2]);
        assert!(matches!(journal.grant(terms(9, "d"), 0), Err(JournalError::Fixed)));
        assert!(matches!(journal.revoke(GrantId(1), 0), Err(JournalError::Fixed)));
        assert_eq!(journal.policy().grants().count(), 2);
    }

    #[test]
    fn a_journal_cut_at_any_byte_says_what_was_acknowledged_before() {
        let (_dir, path) = dir();
        let (content, known) = sample(&path);
        for cut in 0..=content.len() {
            put(&path, &content[..cut]);
            let mut journal = Journal::open(&path).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
            let wanted = known.iter().rev().find(|(bytes, _)| *bytes <= cut as u64).map_or(Policy::default(), |(_, policy)| policy.clone());
            assert_eq!(journal.policy, wanted, "cut at {cut}");
            // The truncated journal accepts further changes.
            let (id, _) = journal.grant(terms(9, "z"), 0).expect("granted");
            let after = journal.policy.clone();
            drop(journal);
            let journal = Journal::open(&path).expect("opened again");
            assert_eq!(journal.policy, after, "cut at {cut}");
            assert!(journal.policy.get(id).is_some());
        }
    }

    #[test]
    fn any_flipped_bit_is_refused_or_cuts_off_the_last_line() {
        let (_dir, path) = dir();
        let (content, known) = sample(&path);
        let last_line = usize::try_from(known[known.len() - 2].0).expect("small");
        for at in 0..content.len() {
            for bit in [0, 3, 7] {
                let mut damaged = content.clone();
                damaged[at] ^= 1 << bit;
                put(&path, &damaged);
                match Journal::open(&path) {
                    Err(JournalError::Damaged { at: found, .. }) => assert!(found <= at as u64),
                    Err(JournalError::Later { .. }) => assert!(at < HEADER.len()),
                    Err(other) => panic!("byte {at}: {other}"),
                    // Without its line feed, the last line counts as a torn write.
                    Ok(journal) => assert!(at == content.len() - 1 && journal.bytes == last_line as u64, "byte {at} bit {bit}"),
                }
            }
        }
    }

    #[test]
    fn two_never_write_and_others_cannot_have_written() {
        let (dir, path) = dir();
        let held = Journal::open(&path).expect("opened");
        assert!(matches!(Journal::open(&path), Err(JournalError::InUse { .. })));
        drop(held);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).expect("mode");
        assert!(matches!(Journal::open(&path), Err(JournalError::Unsafe { .. })));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(matches!(Journal::open(&link), Err(JournalError::Unsafe { .. })));
        assert!(matches!(Journal::open(Path::new("/dev/null")), Err(JournalError::System { .. } | JournalError::Unsafe { .. })));
    }

    #[test]
    fn a_long_journal_is_written_anew_and_says_the_same() {
        let (_dir, path) = dir();
        let mut journal = Journal::open(&path).expect("opened");
        let (kept, _) = journal.grant(terms(1, "kept"), 3).expect("granted");
        let mut last = kept;
        while journal.bytes < COMPACT_BYTES - 1000 {
            // All lines in one write, to avoid an fsync for each.
            let mut lines = Vec::new();
            for _ in 0..100 {
                let id = journal.next;
                journal.next = GrantId(id.0 + 1);
                let grant = Record { time_s: 0, by: 0, change: Change::Grant(Numbered { id, terms: terms(2, "gone") }) };
                journal.line(&mut lines, &grant);
                journal.line(&mut lines, &Record { time_s: 0, by: 0, change: Change::Revoke(id) });
                last = id;
            }
            journal.append(&lines).expect("written");
        }
        while journal.bytes > 10_000 {
            last = journal.grant(terms(2, "last"), 0).expect("granted").0;
        }
        let policy = journal.policy.clone();
        drop(journal);
        let mut journal = Journal::open(&path).expect("opened again");
        assert_eq!(journal.policy, policy);
        assert_eq!(journal.policy.get(kept).map(|grant| grant.by), Some(3));
        assert!(journal.grant(terms(4, "new"), 0).expect("granted").0 > last, "numbers are never used again");
    }

    #[test]
    fn the_same_user_device_and_range_again_replaces() {
        let (_dir, path) = dir();
        let mut journal = Journal::open(&path).expect("opened");
        let (old, _) = journal.grant(terms(1, "a"), 0).expect("granted");
        let (new, replaced) = journal.grant(GrantSpec { queues: 9, ..terms(1, "a") }, 0).expect("granted");
        assert_eq!(replaced, Some(old));
        assert_eq!(journal.grant(GrantSpec { first: 0, ..terms(1, "a") }, 0).expect("granted").1, None, "another range");
        assert_eq!(journal.policy.grants().map(|grant| grant.id).collect::<Vec<_>>(), [new, GrantId(3)]);
        assert!(matches!(journal.revoke(old, 0), Err(JournalError::NoSuchGrant)));
    }
}
