//! Renames that concern both sides: written down before the first step, finished after a crash.
//!
//! One intent at a time, in `.hotshelf/intent` on the SSD: a checksummed list of steps. A step is done by
//! recovery only while the inode it names is still where the step takes it from, so doing the list twice
//! changes nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::errno::Result;
use crate::persist::{FieldReader, InPlaceFile, PersistError, open_in_place, read_all};
use crate::report::TierName;

const FILE: &str = "intent";
const MAGIC: [u8; 7] = *b"hsintnt";
/// A digit, so that the file begins with readable text.
const VERSION: u8 = b'3';
/// The version whose steps name inodes by their numbers alone.
const WITHOUT_BIRTHS: u8 = b'2';
/// The version whose steps do not name the directories of their paths.
const WITHOUT_PARENTS: u8 = b'1';
/// Magic, version, length and checksum.
const HEADER: usize = 16;
/// Kind, side, directory, inode and its birth, and the inodes of two parents.
const STEP: usize = 35;
const MAX_BYTES: usize = 64 << 10;

const _: () = assert!(HEADER == MAGIC.len() + size_of::<u8>() + 2 * size_of::<u32>());
const _: () = assert!(STEP == 3 + 4 * size_of::<u64>());

/// One change on one side; paths are relative to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntentStep {
    /// `from` becomes `to`, replacing what was there.
    Rename {
        /// Side.
        tier: TierName,
        /// Old path.
        from: Vec<u8>,
        /// New path.
        to: Vec<u8>,
        /// Inode that moves.
        ino: u64,
    },
    /// `a` and `b` change places.
    Exchange {
        /// Side.
        tier: TierName,
        /// One path.
        a: Vec<u8>,
        /// The other.
        b: Vec<u8>,
        /// Inode that was at `a`.
        ino: u64,
    },
    /// A name goes.
    Remove {
        /// Side.
        tier: TierName,
        /// Path.
        path: Vec<u8>,
        /// Inode that goes.
        ino: u64,
        /// It is a directory.
        directory: bool,
    },
}

/// A step with the directories that its paths lead to. By recovery the owner of a directory may have given its name to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedStep {
    /// The change that is to be made.
    pub step: IntentStep,
    /// Birth of the inode that the step names, as in [`InodeId`](crate::stat::InodeId); 0: not known.
    pub birth: u64,
    /// Backing inodes of the directories of the first and the second path; 0: not known.
    pub parents: [u64; 2],
}

/// The file that holds the current intent.
#[derive(Debug)]
pub struct IntentLog {
    slot: Mutex<IntentSlot<OwnedFd>>,
}

/// An intent that is written down; dropped without `done`, it is for the next mount.
pub struct Intent<'a> {
    slot: MutexGuard<'a, IntentSlot<OwnedFd>>,
}

/// Room for one intent.
#[derive(Debug)]
struct IntentSlot<S> {
    file: S,
    /// What is written there is not done, and must not be written over.
    pending: bool,
    /// Why nothing can be written at all: the side is read-only.
    closed: Option<Errno>,
}

/// The steps a crash left, or what is wrong with the file that should hold them.
pub type LeftoverSteps = std::result::Result<Vec<RecordedStep>, &'static str>;

impl IntentLog {
    /// Opens the file, and reads what a crash left in it.
    pub fn open(hidden: &OwnedFd) -> std::result::Result<(IntentLog, LeftoverSteps), PersistError> {
        let left = probe_intent(hidden.as_fd())?;
        let io_error = |source| PersistError::Io { file: FILE, source };
        let (file, closed) = match open_file(hidden) {
            // Nothing will be renamed: any descriptor stands in for the file.
            Err(PersistError::Io { source: Errno::ROFS, .. }) => {
                (hidden.try_clone().map_err(|_| io_error(Errno::ROFS))?, Some(Errno::ROFS))
            }
            other => (other?, None),
        };
        Ok((IntentLog { slot: Mutex::new(IntentSlot { file, pending: false, closed }) }, left))
    }

    /// Keeps what is in the file for the next mount: no other intent may take its place.
    pub fn keep(&self) {
        self.slot.lock().pending = true;
    }

    /// Writes the steps down; they are durable when this returns. Others wait for this one to be done, and fail
    /// with EIO when one could be neither done nor undone.
    pub fn begin(&self, steps: &[RecordedStep]) -> Result<Intent<'_>> {
        let bytes = encode(steps);
        if bytes.len() > MAX_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let mut slot = self.slot.lock();
        slot.write_down(&bytes)?;
        Ok(Intent { slot })
    }

    /// Keeps a damaged file for people to look at, and begins a new one.
    pub fn put_aside(&self, hidden: &OwnedFd) -> Result<String> {
        let damage = crate::persist::put_aside(hidden.as_fd(), FILE, "damaged").map_err(|_| Errno::IO)?;
        self.slot.lock().file = open_file(hidden).map_err(|_| Errno::IO)?;
        Ok(damage.kept_as)
    }

    /// Forgets what was left, after recovery.
    pub fn clear(&self) -> Result<()> {
        self.slot.lock().forget()
    }
}

impl Intent<'_> {
    /// All steps are done, or all undone. Durable when this returns: what is renamed next must not be redone over.
    pub fn done(mut self) -> Result<()> {
        self.slot.forget()
    }
}

/// Reads what is in the file, and changes nothing.
pub fn probe_intent(hidden: BorrowedFd<'_>) -> std::result::Result<LeftoverSteps, PersistError> {
    let bytes = read_all(hidden, FILE, MAX_BYTES + 1)?.unwrap_or_default();
    match bytes.get(MAGIC.len()) {
        Some(later @ b'4'..=b'9') if bytes.starts_with(&MAGIC) => {
            Err(PersistError::FutureVersion { file: FILE, found: u32::from(later - b'0'), ours: u32::from(VERSION - b'0') })
        }
        _ => Ok(decode(&bytes)),
    }
}

fn open_file(hidden: &OwnedFd) -> std::result::Result<OwnedFd, PersistError> {
    open_in_place(hidden.as_fd(), FILE)
}

impl<S: InPlaceFile> IntentSlot<S> {
    fn write_down(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(error) = self.closed.or(self.pending.then_some(Errno::IO)) {
            return Err(error);
        }
        self.file.set_len(0)?;
        let written = self.file.write_at(bytes, 0).and_then(|()| self.file.sync());
        if written.is_err() {
            // The intent may be complete on disk all the same; the next mount must not do what failed for the caller.
            let _ = self.forget();
        }
        self.pending = written.is_ok();
        written
    }

    fn forget(&mut self) -> Result<()> {
        if let Some(error) = self.closed {
            return Err(error);
        }
        self.pending = false;
        self.file.set_len(0)?;
        self.file.sync()
    }
}

fn encode(steps: &[RecordedStep]) -> Vec<u8> {
    let mut body = vec![steps.len() as u8];
    for RecordedStep { step, birth, parents } in steps {
        let (code, tier, first, second, ino, directory) = match step {
            IntentStep::Rename { tier, from, to, ino } => (1u8, tier, from.as_slice(), to.as_slice(), ino, false),
            IntentStep::Exchange { tier, a, b, ino } => (2, tier, a.as_slice(), b.as_slice(), ino, false),
            IntentStep::Remove { tier, path, ino, directory } => (3, tier, path.as_slice(), &[][..], ino, *directory),
        };
        body.extend_from_slice(&[code, *tier as u8, u8::from(directory)]);
        for number in [*ino, *birth, parents[0], parents[1]] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        for path in [first, second] {
            body.extend_from_slice(&(path.len() as u32).to_le_bytes());
            body.extend_from_slice(path);
        }
    }
    let mut out = MAGIC.to_vec();
    out.push(VERSION);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    assert_eq!(out.len(), HEADER);
    out.extend_from_slice(&body);
    out
}

/// The steps in the file; none when it is empty or its writing was cut off (then no step was started).
fn decode(bytes: &[u8]) -> LeftoverSteps {
    if bytes.len() > MAX_BYTES {
        return Err("too long");
    }
    let Some((head, body)) = bytes.split_at_checked(HEADER) else { return Ok(Vec::new()) };
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(Vec::new());
    }
    let mut fields = FieldReader(head);
    let version = match (fields.take(MAGIC.len()) == Some(&MAGIC[..]), fields.u8()) {
        (true, Some(version @ WITHOUT_PARENTS..=VERSION)) => version,
        _ => return Err("not an intent file"),
    };
    let (Some(len), Some(crc)) = (fields.u32(), fields.u32()) else { return Err("cut off") };
    let whole = crc32c::crc32c(body) == crc;
    match body.len() as u64 {
        // The write of an intent was cut off: no step was taken before it was durable.
        have if have < u64::from(len) && !whole => Ok(Vec::new()),
        have if have != u64::from(len) => Err("a wrong length"),
        _ if !whole => Err("a wrong checksum"),
        _ => steps(body, version).ok_or("its steps make no sense"),
    }
}

fn steps(body: &[u8], version: u8) -> Option<Vec<RecordedStep>> {
    let mut fields = FieldReader(body);
    let mut steps = Vec::new();
    for _ in 0..fields.u8()? {
        let (code, tier, directory, ino) = (fields.u8()?, fields.u8()?, fields.u8()?, fields.u64()?);
        let tier = match tier {
            0 => TierName::Ssd,
            1 => TierName::Hdd,
            _ => return None,
        };
        let birth = if version > WITHOUT_BIRTHS { fields.u64()? } else { 0 };
        let parents = if version > WITHOUT_PARENTS { [fields.u64()?, fields.u64()?] } else { [0; 2] };
        let (first, second) = (path(&mut fields)?, path(&mut fields)?);
        let step = match code {
            1 => IntentStep::Rename { tier, from: first, to: second, ino },
            2 => IntentStep::Exchange { tier, a: first, b: second, ino },
            3 => IntentStep::Remove { tier, path: first, ino, directory: directory != 0 },
            _ => return None,
        };
        steps.push(RecordedStep { step, birth, parents });
    }
    fields.0.is_empty().then_some(steps)
}

fn path(fields: &mut FieldReader<'_>) -> Option<Vec<u8>> {
    let len = fields.u32()? as usize;
    fields.take(len).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod test {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::persist::file_damage::{FailingStore, FileDamage, HiddenTestDir, extreme, file_damage, path as any_path};

    fn sample() -> Vec<RecordedStep> {
        let steps = [
            IntentStep::Rename { tier: TierName::Ssd, from: b"a/b".to_vec(), to: b"c".to_vec(), ino: 7 },
            IntentStep::Exchange { tier: TierName::Hdd, a: b"x".to_vec(), b: b"y\xff".to_vec(), ino: 8 },
            IntentStep::Remove { tier: TierName::Hdd, path: b"c".to_vec(), ino: 9, directory: true },
        ];
        let recorded = |(step, parents)| RecordedStep { step, birth: 1 << 60, parents };
        steps.into_iter().zip([[3, 4], [5, 5], [6, 0]]).map(recorded).collect()
    }

    #[test]
    fn an_intent_of_an_earlier_version_is_read_without_what_it_lacks() {
        for (version, lacks) in [(WITHOUT_PARENTS, 11..STEP), (WITHOUT_BIRTHS, 11..19)] {
            let mut bytes = encode(&sample());
            let step_1 = STEP + 4 + 3 + 4 + 1;
            let steps = [HEADER + 1, HEADER + 1 + step_1, HEADER + 1 + step_1 + STEP + 4 + 1 + 4 + 2];
            for at in steps.into_iter().rev() {
                bytes.drain(at + lacks.start..at + lacks.end);
            }
            bytes[MAGIC.len()] = version;
            let body = bytes.split_off(HEADER);
            bytes[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
            bytes[12..16].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
            bytes.extend_from_slice(&body);
            let parents = |recorded: &RecordedStep| if version == WITHOUT_PARENTS { [0; 2] } else { recorded.parents };
            let without = sample().into_iter().map(|recorded| RecordedStep { birth: 0, parents: parents(&recorded), ..recorded });
            assert_eq!(decode(&bytes), Ok(without.collect()));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(decode(&encode(&sample())), Ok(sample()));
        assert_eq!(decode(b""), Ok(vec![]));
    }

    #[test]
    fn a_torn_or_flipped_intent_is_never_another_one() {
        let whole = encode(&sample());
        for cut in 0..whole.len() {
            assert!(matches!(decode(&whole[..cut]), Ok(steps) if steps.is_empty()), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x40;
            assert!(!matches!(decode(&flipped), Ok(steps) if steps != sample() && !steps.is_empty()), "flipped {at}");
        }
    }

    fn any_step() -> impl Strategy<Value = RecordedStep> {
        let tiers = prop_oneof![Just(TierName::Ssd), Just(TierName::Hdd)];
        let numbers = (extreme(), extreme(), extreme(), extreme());
        (0..3, tiers, any_path(), any_path(), numbers, any::<bool>()).prop_map(
            |(kind, tier, a, b, (ino, birth, first, second), directory)| {
                let step = match kind {
                    0 => IntentStep::Rename { tier, from: a, to: b, ino },
                    1 => IntentStep::Exchange { tier, a, b, ino },
                    _ => IntentStep::Remove { tier, path: a, ino, directory },
                };
                RecordedStep { step, birth, parents: [first, second] }
            },
        )
    }

    /// What the next mount finds in a file.
    fn found(dir: &HiddenTestDir, bytes: &[u8]) -> std::result::Result<LeftoverSteps, PersistError> {
        dir.put(FILE, bytes);
        let probed = probe_intent(dir.fd());
        let opened = IntentLog::open(&dir.owned()).map(|(_, left)| left);
        assert_eq!(format!("{probed:?}"), format!("{opened:?}"));
        opened
    }

    #[test]
    fn steps_come_back_as_they_were() {
        let dir = HiddenTestDir::new();
        proptest!(|(steps in vec(any_step(), 0..4))| {
            prop_assert_eq!(found(&dir, &encode(&steps)).expect("read"), Ok(steps));
        });
    }

    #[test]
    fn a_harmed_intent_does_nothing_and_a_changed_one_is_reported() {
        let dir = HiddenTestDir::new();
        proptest!(|(steps in vec(any_step(), 1..4), file_damage in file_damage())| {
            let bytes = encode(&steps);
            match (found(&dir, &file_damage.done_to(&bytes)), &file_damage) {
                (Ok(Err(_)), FileDamage::Flip(..) | FileDamage::Append(_)) => {}
                (Ok(Ok(left)), FileDamage::Cut(_)) => prop_assert!(left.is_empty()),
                (Err(PersistError::FutureVersion { .. }), FileDamage::Flip(at, _)) => prop_assert_eq!(at.index(bytes.len()), MAGIC.len()),
                (other, _) => prop_assert!(false, "{other:?}"),
            }
        });
    }

    #[test]
    fn any_bytes_are_no_steps() {
        let dir = HiddenTestDir::new();
        proptest!(|(magic in any::<bool>(), bytes in vec(any::<u8>(), 0..200))| {
            let bytes = if magic { [&MAGIC[..], &[VERSION], &bytes].concat() } else { bytes };
            prop_assert!(!matches!(found(&dir, &bytes), Ok(Ok(steps)) if !steps.is_empty()));
        });
    }

    #[test]
    fn extremes_behind_a_good_checksum_do_no_harm() {
        proptest!(|(steps in vec(any_step(), 1..4), at in any::<Index>(), with in extreme(), len in extreme(), right in any::<bool>())| {
            let mut bytes = encode(&steps);
            let at = HEADER + at.index(bytes.len() - HEADER);
            for (byte, with) in bytes[at..].iter_mut().zip(with.to_le_bytes()) {
                *byte = with;
            }
            if !right {
                bytes[8..12].copy_from_slice(&(len as u32).to_le_bytes());
            }
            let sum = crc32c::crc32c(&bytes[HEADER..]);
            bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            if let Ok(found) = decode(&bytes) {
                prop_assert!(found.len() <= 255);
                prop_assert_eq!(decode(&encode(&found)), Ok(found));
            }
        });
    }

    #[test]
    fn a_later_version_is_refused_and_left_alone() {
        let dir = HiddenTestDir::new();
        let bytes = b"hsintnt4 of which we know nothing";
        assert!(matches!(found(&dir, bytes), Err(PersistError::FutureVersion { found: 4, ours: 3, .. })));
        assert_eq!(dir.get(FILE), bytes);
    }

    #[test]
    fn an_intent_that_could_not_be_written_is_none() {
        let plans = vec(prop_oneof![2 => Just(None), 1 => (0usize..60).prop_map(Some)], 0..6);
        proptest!(|(plan in plans, room in prop_oneof![Just(0), 1usize..80])| {
            let failures = plan.iter().flatten().count();
            let mut slot = IntentSlot { file: FailingStore::default(), pending: false, closed: None };
            slot.file.plan.replace(plan);
            slot.file.room.set(room);
            let written = slot.write_down(&encode(&sample()));
            let left = decode(&slot.file.bytes.borrow());
            match written {
                Ok(()) => prop_assert_eq!((&left, &*slot.file.durable.borrow()), (&Ok(sample()), &encode(&sample()))),
                // With one failure the rest can be cleaned up.
                Err(_) if failures <= 1 => prop_assert_eq!((left, slot.pending), (Ok(vec![]), false)),
                Err(_) => {}
            }
        });
    }

    #[test]
    fn what_is_left_for_the_next_mount_is_not_written_over() {
        let dir = HiddenTestDir::new();
        let (intents, _) = IntentLog::open(&dir.owned()).expect("opened");
        intents.begin(&sample()).expect("written").done().expect("done");
        drop(intents.begin(&sample()).expect("written"));
        assert_eq!(intents.begin(&sample()[..1]).err(), Some(Errno::IO));
        assert_eq!(probe_intent(dir.fd()).expect("read"), Ok(sample()));
        intents.clear().expect("recovered");
        intents.begin(&sample()[..1]).expect("written").done().expect("done");
        assert_eq!(probe_intent(dir.fd()).expect("read"), Ok(vec![]));
    }

    #[test]
    fn an_intent_too_long_for_the_reader_is_not_written() {
        let dir = HiddenTestDir::new();
        let (intents, _) = IntentLog::open(&dir.owned()).expect("opened");
        let long = IntentStep::Remove { tier: TierName::Ssd, path: vec![b'x'; MAX_BYTES], ino: 1, directory: false };
        assert_eq!(intents.begin(&[RecordedStep { step: long, birth: 0, parents: [1, 0] }]).err(), Some(Errno::NAMETOOLONG));
    }
}
