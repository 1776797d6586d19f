//! Records of files that are in use or were lately: one for each file, in the segment.
//!
//! ```text
//!   0 key (0: free)        8 size              16 process slots that have it open    24 length of the path, flags
//!  32 lock  36 truncations (odd: one goes on)  40 mode  44 the SSD's number of it, plus 1
//!  48 errors (count, errno, over)              56 stamp: size, mtime, ctime (ns)
//!  80 rule, used         88 written (ns)     96 check of the key
//! 104 windows of our writers (own_stamp.rs)        112 calls past the cache        116 paths set
//! 120 process slots that are to look at a change      128 path
//! ```
//!
//! Every process of the group can write these words, so each is checked where it is read. A length is a [`Length`], never beyond what
//! pages can name. An errno is checked to be one. A key counts only with its check, which no word of another record has. A record with a
//! word that no correct process writes is *broken*: calls on its file fail with EIO, and no other file is affected ([`Record::is_sound`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use shm::{OwnedLock, ProcessSlot, ProcessSlots, Region, SharedRef, SharedSlice};
use ssdcache::{AdmissionRule, FileKey, Mode};

use super::own_stamp::OwnStamp;

/// The size of a record, bytes.
pub(crate) const RECORD_BYTES: usize = 1024;
/// Offset of the length.
const SIZE: usize = 8;
/// The longest path of a cached file, bytes; a file with a longer path is not cached.
pub const PATH_MAX: usize = RECORD_BYTES - 128;

/// Offset of the key's check.
const CHECK: usize = 96;
/// Offset of the path.
pub(super) const PATH_AT: usize = 128;
/// Stands for the key in the check of a record that was freed. No key has this value.
const GIVEN_BACK: u64 = 0;
/// The longest file that is cached, bytes, for a page's name has 40 bits. A longer file bypasses the cache.
pub const FILE_BYTES_MAX: u64 = 1 << 52;

/// Returns the errno for a number from shared memory or another outside source. EIO if the number is not an errno.
pub fn errno_from(raw: i32) -> Errno {
    if (1..4096).contains(&raw) { Errno::from_raw_os_error(raw) } else { Errno::IO }
}

/// The length of a file in shared memory: loads never return more than [`FILE_BYTES_MAX`].
#[derive(Clone, Copy)]
pub(crate) struct Length<'a>(&'a AtomicU64);

impl Length<'_> {
    #[inline]
    pub(crate) fn load(self, order: Ordering) -> u64 {
        self.0.load(order).min(FILE_BYTES_MAX)
    }

    pub(crate) fn store(self, bytes: u64, order: Ordering) {
        self.0.store(bytes.min(FILE_BYTES_MAX), order);
    }

    pub(crate) fn fetch_max(self, bytes: u64, order: Ordering) -> u64 {
        self.0.fetch_max(bytes.min(FILE_BYTES_MAX), order).min(FILE_BYTES_MAX)
    }

    pub(crate) fn compare_exchange(self, old: u64, new: u64, done: Ordering, otherwise: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(old, new.min(FILE_BYTES_MAX), done, otherwise)
    }

    /// Returns whether a correct process may have written this length.
    fn is_sound(self) -> bool {
        self.0.load(Ordering::Acquire) <= FILE_BYTES_MAX
    }
}

/// Returns the check for a key: it depends on the key and on the record's position, so that it is valid nowhere else.
fn check_of(key: u64, at: usize) -> u64 {
    let product = u128::from(key ^ 0x243f_6a88_85a3_08d3) * u128::from((at as u64) << 1 ^ 0x1319_8a2e_0370_7345);
    (product as u64) ^ (product >> 64) as u64
}

/// Bit of the failures' word: the last failure is resolved.
const OVER: u64 = 1 << 48;
/// Number of records that a key can use.
const WAYS: u32 = 16;

/// The number of a file's record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileNo(pub u32);

/// Bits of a record's flags.
pub(crate) mod flag {
    /// The file has no name any more: its data need not be kept.
    pub const UNLINKED: u32 = 2;
    /// The file is being written through, and its catalogue entry records it.
    pub const THROUGH: u32 = 8;
    /// A hole is being punched into the backing file: frames may still have its pages.
    pub const PUNCHING: u32 = 16;
    /// Only a failed SSD has pages of the file: its record stays.
    pub const OWED: u32 = 32;
    /// Another program changed the file while pages of it were dirty.
    pub const CONFLICT: u32 = 4;
    /// The backing file was written, by the cache or by the file's last user: that is not durable before a sync of the file.
    pub const UNSYNCED: u32 = 64;
    /// The file has dirty pages, and its location is unknown: another program moved or removed it.
    pub const MISSING: u32 = 128;
    /// The leader has the file open, wherever it is moved.
    pub const HELD: u32 = 256;
    /// A program maps the file: its mode stays.
    pub const MAPPED: u32 = 512;
    /// The leader made the record when it could not write to the file, and no process opened the file since.
    pub const UNCOMPARED: u32 = 1024;
    /// The SSD has dirty pages of the file, by the leader's account: a closed file's record stays until they are written back.
    pub const DIRTY_ON_SSD: u32 = 2048;
    /// The owner must decide what happens to the dirty pages.
    pub const STRANDED: u32 = CONFLICT | MISSING;
    /// All flags that are defined.
    pub const ALL: u32 = UNLINKED | CONFLICT | THROUGH | PUNCHING | OWED | UNSYNCED | MISSING | HELD | MAPPED | UNCOMPARED | DIRTY_ON_SSD;
}

type Wide = [AtomicU64; RECORD_BYTES / 8];
type Narrow = [AtomicU32; RECORD_BYTES / 4];

/// All records. The lock at `at` protects taking and freeing them.
#[derive(Debug)]
pub(crate) struct Records {
    region: Arc<Region>,
    at: usize,
    /// Both slices cover the same bytes.
    wide: SharedSlice<Wide>,
    narrow: SharedSlice<Narrow>,
    pub(crate) count: u32,
    processes: Arc<ProcessSlots>,
    me: ProcessSlot,
}

/// A view of one record.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    wide: &'a Wide,
    narrow: &'a Narrow,
    pub(super) region: &'a Region,
    pub(super) at: usize,
}

/// A record whose position is resolved.
#[derive(Debug)]
pub(crate) struct CachedRecord {
    wide: SharedRef<Wide>,
    narrow: SharedRef<Narrow>,
    at: usize,
}

impl CachedRecord {
    /// Returns the length, as [`Record::size`] does.
    #[inline]
    pub(crate) fn size(&self) -> Length<'_> {
        Length(&self.wide[SIZE / 8])
    }

    /// Returns whether the record is still this file's: a process without the right to may have reassigned an open file's number. It does
    /// not verify the key's check, because each hit calls it.
    #[inline(always)]
    pub(crate) fn is_of(&self, key: FileKey) -> bool {
        self.wide[0].load(Ordering::Relaxed) == key.0
    }

    #[inline]
    pub(crate) fn get(&self) -> Record<'_> {
        Record { wide: &self.wide, narrow: &self.narrow, region: self.wide.region(), at: self.at }
    }
}

impl Records {
    /// Returns the records in a region that holds `count` of them, at least one, from `at` on.
    pub(crate) fn new(region: &Arc<Region>, at: usize, count: u32, processes: &Arc<ProcessSlots>, me: ProcessSlot) -> Records {
        let (first, all) = (at + 64, count as usize);
        let (wide, narrow) = (SharedSlice::new(region, first, all), SharedSlice::new(region, first, all));
        Records { region: Arc::clone(region), at, wide, narrow, count, processes: Arc::clone(processes), me }
    }

    pub(crate) fn lock(&self) -> OwnedLock<'_> {
        OwnedLock::new(&self.region, self.at, &self.processes, self.me)
    }

    /// Returns a record; a number from outside that is too large gives the last record.
    #[inline]
    pub(crate) fn get(&self, no: FileNo) -> Record<'_> {
        let number = no.0.min(self.count - 1) as usize;
        Record { wide: &self.wide[number], narrow: &self.narrow[number], region: &self.region, at: self.at + 64 + number * RECORD_BYTES }
    }

    /// Returns a record with its position resolved, for frequent access.
    pub(crate) fn kept(&self, no: FileNo) -> CachedRecord {
        let at = self.get(no).at;
        CachedRecord { wide: SharedRef::new(&self.region, at), narrow: SharedRef::new(&self.region, at), at }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (FileNo, Record<'_>)> {
        (0..self.count).map(|no| (FileNo(no), self.get(FileNo(no)))).filter(|(_, record)| record.key().is_some())
    }

    /// Returns the sixteen records that a key can use: a lookup needs no index.
    pub(crate) fn set_of(&self, key: FileKey) -> impl Iterator<Item = (FileNo, Record<'_>)> {
        let ways = WAYS.min(self.count);
        let set = (key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % (self.count / ways);
        (set * ways..(set + 1) * ways).map(|no| (FileNo(no), self.get(FileNo(no))))
    }

    pub(crate) fn find(&self, key: FileKey) -> Option<FileNo> {
        self.set_of(key).find(|(_, record)| record.key() == Some(key)).map(|(no, _)| no)
    }

    /// Returns the file's lock, for appends, truncations and write-through.
    pub(crate) fn lock_of(&self, no: FileNo) -> OwnedLock<'_> {
        OwnedLock::new(&self.region, self.get(no).at + 32, &self.processes, self.me)
    }

    /// Closes all files of a dead process slot, including records that lost their key.
    pub(crate) fn reap(&self, process: ProcessSlot) {
        for no in (0..self.count).map(FileNo) {
            let record = self.get(no);
            if record.open_by().load(Ordering::Acquire) & 1 << process.0 == 0 {
                continue;
            }
            // Its calls have ended. Those of others end too early for a caller that waits only if the mode changes just now. This comes
            // first: if this process dies here, its successor finds the file open, and does it again.
            record.past().store(0, Ordering::Release);
            record.open_by().fetch_and(!(1 << process.0), Ordering::AcqRel);
        }
    }
}

impl<'a> Record<'a> {
    #[inline(always)]
    pub(super) fn u64(self, at: usize) -> &'a AtomicU64 {
        &self.wide[at / 8]
    }

    #[inline(always)]
    pub(super) fn u32(self, at: usize) -> &'a AtomicU32 {
        &self.narrow[at / 4]
    }

    /// Returns the key. None: the record is free, or broken.
    pub(crate) fn key(self) -> Option<FileKey> {
        let key = self.u64(0).load(Ordering::Acquire);
        (key != 0 && self.u64(CHECK).load(Ordering::Relaxed) == check_of(key, self.at)).then_some(FileKey(key))
    }

    /// Returns whether no file uses the record.
    pub(crate) fn is_free(self) -> bool {
        self.u64(0).load(Ordering::Acquire) == 0
    }

    pub(crate) fn set_key(self, key: Option<FileKey>) {
        let key = key.map_or(0, |key| key.0);
        if key != 0 {
            self.u64(CHECK).store(check_of(key, self.at), Ordering::Relaxed);
        }
        self.u64(0).store(key, Ordering::Release);
        if key == 0 {
            self.u64(CHECK).store(check_of(GIVEN_BACK, self.at), Ordering::Relaxed);
        }
    }

    /// Returns whether a free record has no frames: a correct process freed it, which drops them first, or it was never used. Overwriting
    /// one or two words cannot make a record look so. Its check would have to match its position, or all of its head be zero, which holds
    /// its mode, path and times.
    pub(crate) fn is_given_back(self) -> bool {
        let is_untouched = || self.wide[..PATH_AT / 8].iter().all(|word| word.load(Ordering::Relaxed) == 0);
        self.is_free() && (self.u64(CHECK).load(Ordering::Relaxed) == check_of(GIVEN_BACK, self.at) || is_untouched())
    }

    /// Returns whether it is this file's record, and each word has a value that a correct process writes.
    pub(crate) fn is_sound(self, key: FileKey) -> bool {
        self.key() == Some(key)
            && self.size().is_sound()
            && self.flags().load(Ordering::Acquire) & !flag::ALL == 0
            && mode_of_code(self.u32(40).load(Ordering::Acquire)).is_some()
            && self.u32(24).load(Ordering::Acquire) as usize <= PATH_MAX
    }

    #[inline]
    pub(crate) fn size(self) -> Length<'a> {
        Length(self.u64(SIZE))
    }

    pub(crate) fn open_by(self) -> &'a AtomicU64 {
        self.u64(16)
    }

    /// Records that a process has the file open. The lock of the table is held.
    pub(crate) fn set_open_by(self, process: ProcessSlot) {
        if self.open_by().load(Ordering::Acquire) == 0 {
            // No process is in a call past the cache: what is counted are calls of a process that died.
            self.past().store(0, Ordering::Release);
        }
        self.open_by().fetch_or(1 << process.0, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn flags(self) -> &'a AtomicU32 {
        self.u32(28)
    }

    #[inline]
    pub(crate) fn has(self, flag: u32) -> bool {
        self.flags().load(Ordering::Acquire) & flag != 0
    }

    #[inline]
    pub(crate) fn truncations(self) -> &'a AtomicU32 {
        self.u32(36)
    }

    /// Returns the file's mode. If the word is broken: pass-through, the mode that trusts the cache least.
    #[inline]
    pub(crate) fn mode(self) -> Mode {
        mode_of_code(self.u32(40).load(Ordering::Acquire)).unwrap_or(Mode::PassThrough)
    }

    /// Returns whether the file's mode is write-back.
    #[inline(always)]
    pub(crate) fn is_write_back(self) -> bool {
        self.u32(40).load(Ordering::Acquire) == code_of(Mode::WriteBack)
    }

    pub(crate) fn set_mode(self, mode: Mode) {
        self.u32(40).store(code_of(mode), Ordering::Release);
    }

    /// Returns the file's number in the metadata of the SSD.
    pub(crate) fn on_ssd(self) -> Option<u32> {
        self.u32(44).load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn set_on_ssd(self, number: Option<u32>) {
        self.u32(44).store(number.map_or(0, |number| number.saturating_add(1)), Ordering::Release);
    }

    /// Returns whether the last failure is resolved: the work was done since, or its owner gave it up.
    pub(crate) fn is_over(self) -> bool {
        self.u64(48).load(Ordering::Acquire) & OVER != 0
    }

    /// Marks the last failure as resolved, because all of the file was written. Handles that have not reported the failure still do.
    pub(crate) fn succeeded(self) {
        let word = self.u64(48);
        if word.load(Ordering::Acquire) & !OVER != 0 {
            word.fetch_or(OVER, Ordering::AcqRel);
        }
    }

    /// Returns the number of failed write-backs, and the error of the last one.
    pub(crate) fn failures(self) -> (u32, Option<Errno>) {
        let word = self.u64(48).load(Ordering::Acquire);
        let errno = (word >> 32) as u16;
        (word as u32, (errno != 0).then(|| errno_from(i32::from(errno))))
    }

    pub(crate) fn failed(self, errno: Errno) {
        let count = self.failures().0.wrapping_add(1);
        let word = u64::from(count) | (errno.raw_os_error() as u64 & 0xffff) << 32;
        self.u64(48).store(word, Ordering::Release);
    }

    /// Returns the last stamp that is known to be ours.
    pub(crate) fn own(self) -> OwnStamp<'a> {
        OwnStamp { windows: self.u64(104), stamp: [self.u64(56), self.u64(64), self.u64(72)] }
    }

    /// Returns the number of calls that are changing the backing file past the cache now ([`super::Open::begin_past`]).
    #[inline]
    pub(crate) fn past(self) -> &'a AtomicU32 {
        self.u32(112)
    }

    pub(crate) fn rule(self) -> AdmissionRule {
        match self.u32(80).load(Ordering::Relaxed) {
            1 => AdmissionRule::Never,
            2 => AdmissionRule::Always,
            _ => AdmissionRule::Normal,
        }
    }

    pub(crate) fn set_rule(self, rule: AdmissionRule) {
        let value = match rule {
            AdmissionRule::Normal => 0,
            AdmissionRule::Never => 1,
            AdmissionRule::Always => 2,
        };
        self.u32(80).store(value, Ordering::Relaxed);
    }

    /// The time of the last open or write, ms: the search for a record to reuse compares it.
    #[inline]
    pub(crate) fn used(self) -> &'a AtomicU32 {
        self.u32(84)
    }

    /// The time of the last write, ns since 1970.
    #[inline]
    pub(crate) fn written(self) -> &'a AtomicU64 {
        self.u64(88)
    }

    /// Clears the time of the last write, because the file's own times count, unless it is not `written` any more: a write came since.
    pub(crate) fn times_were_set(self, written: u64, is_dirty: impl FnOnce() -> bool) {
        let time = self.written();
        if time.compare_exchange(written, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        // A write in the same tick of the clock has the same time, and stores it after its page is dirty.
        if written != 0 && is_dirty() {
            let _ = time.compare_exchange(0, written, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Sets the whole record to zero.
    pub(crate) fn clear(self) {
        self.region.fill(self.at..self.at + RECORD_BYTES, 0);
    }
}

/// The codes of modes in shared memory: far from each other, and from the values that a stray write leaves.
const MODES: [(Mode, u32); 5] = [
    (Mode::WriteBack, 0x3c5a_91e1),
    (Mode::WriteThrough, 0x58c7_26b2),
    (Mode::WriteAround, 0x6db0_4f34),
    (Mode::ReadOnly, 0x95e3_7a58),
    (Mode::PassThrough, 0xa729_d8c6),
];

#[inline(always)]
pub(crate) const fn code_of(mode: Mode) -> u32 {
    MODES[mode as usize].1
}

/// Returns the mode of a code. None: the code is invalid.
pub(crate) fn mode_of_code(code: u32) -> Option<Mode> {
    MODES.iter().find(|(_, known)| *known == code).map(|(mode, _)| *mode)
}

/// Returns the mode of a number in a request. None: the number is invalid.
pub(crate) fn mode_of_number(number: u64) -> Option<Mode> {
    MODES.get(usize::try_from(number).ok()?).map(|(mode, _)| *mode)
}

const _: () = {
    let mut n = 0;
    while n < MODES.len() {
        assert!(MODES[n].0 as usize == n);
        n += 1;
    }
};

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use shm::{PageSize, ProcessSlots, Region};

    use std::path::{Path, PathBuf};

    use super::*;

    fn records() -> (Arc<Region>, Records) {
        let region = Arc::new(Region::private(16 * RECORD_BYTES, PageSize::Small).expect("memory"));
        let processes = Arc::new(ProcessSlots::in_process(Arc::clone(&region), 15 * RECORD_BYTES));
        let me = processes.attach().expect("a process slot");
        let records = Records::new(&region, 0, 8, &processes, me);
        (region, records)
    }

    /// A record in use that loses its key, alone or with any other word, does not look like one whose frames were dropped.
    #[test]
    fn no_two_words_make_a_record_look_given_back() {
        let (region, records) = records();
        let record = records.get(FileNo(3));
        assert!(record.is_given_back(), "nobody had it yet");
        let other = records.get(FileNo(5));
        other.set_key(Some(FileKey(7)));
        other.set_key(None);
        assert!(other.is_given_back());
        for word in 0..RECORD_BYTES / 8 {
            let theirs = region.u64(other.at + 8 * word).load(Ordering::Relaxed);
            for value in [0, u64::MAX, 1, theirs] {
                record.clear();
                record.set_mode(Mode::WriteBack);
                record.set_path(Path::new("/some/where"));
                record.set_key(Some(FileKey(103)));
                region.u64(record.at + 8 * word).store(value, Ordering::Relaxed);
                region.u64(record.at).store(0, Ordering::Relaxed);
                assert!(!record.is_given_back(), "word {word}: {value:#x}");
            }
        }
        record.set_key(None);
        assert!(record.is_given_back());
    }

    /// A path is one that was set, or none, whenever it is read.
    #[test]
    fn a_path_that_is_set_meanwhile_is_read_whole() {
        let (_region, records) = records();
        let paths = ["/a/".repeat(200), "/b/".repeat(200), "/c".repeat(40)].map(PathBuf::from);
        records.get(FileNo(3)).set_path(&paths[0]);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    records.get(FileNo(3)).set_path(&paths[n % 3]);
                }
            });
            let begun = std::time::Instant::now();
            let (mut read, mut empty) = (0_u32, 0);
            while begun.elapsed() < std::time::Duration::from_millis(500) || read < 100 {
                let path = records.get(FileNo(3)).path();
                read += 1;
                empty += u32::from(path.as_os_str().is_empty());
                let is_one = paths.contains(&path) || path.as_os_str().is_empty();
                if !is_one || begun.elapsed() > std::time::Duration::from_secs(60) {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("{read} times, {empty} without a path: {}", path.display());
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        // Its process died in the middle.
        records.get(FileNo(3)).u32(24).store(0, Ordering::Relaxed);
        assert_eq!(records.get(FileNo(3)).path(), Path::new(""));
    }

    /// Overwrites each word with any value, or with a word of another record: no call panics, and no file is taken for another.
    #[test]
    fn a_record_that_somebody_wrote_over_is_broken_or_bounded() {
        let (region, records) = records();
        let make = |no: u32| {
            let record = records.get(FileNo(no));
            record.clear();
            record.set_mode(Mode::WriteBack);
            record.set_path(Path::new("/some/where"));
            record.set_key(Some(FileKey(u64::from(no) + 100)));
            record
        };
        let other = make(5);
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..4000 {
            let record = make(3);
            assert!(record.is_sound(FileKey(103)));
            let word = rng.usize(..RECORD_BYTES / 8) * 8;
            let word = if rng.bool() { word % 128 } else { word };
            let theirs = region.u64(other.at + word).load(Ordering::Relaxed);
            let ours = region.u64(record.at + word).load(Ordering::Relaxed);
            let value = [rng.u64(..), 0, u64::MAX, 1 << rng.u32(..64), theirs, ours ^ 1 << rng.u32(..64)][round % 6];
            region.u64(record.at + word).store(value, Ordering::Relaxed);
            assert!(record.key().is_none_or(|key| key == FileKey(103)), "another file's");
            assert!(record.size().load(Ordering::Relaxed) <= FILE_BYTES_MAX);
            let _ = (record.failures(), record.mode(), record.path(), record.own().get(), record.rule(), record.on_ssd(), record.is_over());
            record.failed(Errno::IO);
            record.size().fetch_max(7, Ordering::Relaxed);
            if record.key().is_none() {
                assert!(!record.is_sound(FileKey(103)));
            }
        }
        assert!(other.is_sound(FileKey(105)) && records.find(FileKey(105)).is_none_or(|no| no == FileNo(5)));
    }

    #[test]
    fn an_errno_that_is_none_is_an_io_error() {
        assert_eq!([0, -5, 4096, i32::MIN, i32::MAX].map(errno_from), [Errno::IO; 5]);
        assert_eq!(errno_from(28), Errno::NOSPC);
    }
}
