//! The segment: the memory that all processes of one instance share, and its layout.
//!
//! ```text
//! page 0      header: magic, version, sizes (checked), words that change (mode, notifier, ...)
//! pages 1-3   the settings the instance was made with, as text
//! then        process slots | file records | requests | hints | counters | marks of reads in flight | page cache | the SSD's map
//! ```
//!
//! Only the sizes are stored. All positions are computed from them, so that no position read from the segment is ever used.
//!
//! Every process of the group can write to the words that change. [`Header`] bounds them where they are read. The leader, which alone
//! writes most of them, restores its own values at each step (`Worker::tell`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagecache::Replacement;
use pagecache::{Shape as Frames, SharedPages};
use shm::{ProcessSlots, Region, SharedRef};
use ssdcache::Mode;

use super::counters::Counters;
use super::reads_in_flight::ReadsInFlight;
use super::record::{RECORD_BYTES, code_of, mode_of_code};
use super::request::{HINTS, REQUEST_BYTES, REQUESTS};

const MAGIC: u64 = u64::from_le_bytes(*b"hotshelf");
/// The version of the segment. Processes that share one have the same.
pub const VERSION: u32 = 8;
const PAGE: usize = 4096;
/// Size of the area for the settings' text, bytes.
pub const SETTINGS_BYTES: usize = 3 * PAGE;
/// The maximum number of file records; a page's name has 20 bits for the file.
pub const FILES_MAX: u32 = 1 << 20;

/// The sizes that are set when an instance is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The shape of the page cache.
    pub frames: Frames,
    /// The shape of the SSD's log, if there is an SSD.
    pub ssd: Option<ssdcache::Shape>,
    /// The number of file records.
    pub files: u32,
}

/// The reason why a segment cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentError {
    /// The memory is not a segment of hotshelf, or is not complete.
    #[error("it is no segment of hotshelf, or its making was cut off")]
    Foreign,
    /// The segment was made by another version.
    #[error("it has version {0}, this program knows {VERSION}: end the programs that use it, or use their version")]
    Version(u32),
    /// The sizes are inconsistent.
    #[error("its sizes are damaged")]
    Damaged,
}

/// The positions of all structures in a segment.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The sizes that the segment was made with.
    pub sizes: Sizes,
    /// The position of the process slots, bytes.
    pub processes: usize,
    pub(crate) records: usize,
    pub(crate) requests: usize,
    pub(crate) hints: usize,
    pub(crate) counters: usize,
    pub(crate) fetch_marks: usize,
    pub(crate) pages: usize,
    pub(crate) pages_bytes: usize,
    pub(crate) ssd: usize,
    pub(crate) ssd_bytes: usize,
    /// The size of the segment, bytes.
    pub bytes: usize,
}

/// The words of the header that change.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Word {
    Mode = 256,
    /// [`FAILED`] or [`NEVER_OPENED`] if the SSD is not used; the reason is in `SsdErrno`.
    SsdFailed = 260,
    SsdErrno = 264,
    /// Counts wakeups of the leader, which sleeps on it.
    Bell = 268,
    /// The maximum number of marked frames before writers wait.
    DirtyLimit = 272,
    /// The age at which a marked page is written, ms.
    DirtyAge = 276,
    /// The number of leaders so far.
    Term = 280,
    RecoveryMs = 284,
    /// The maximum number of bytes to read ahead of a stream.
    ReadAhead = 288,
    /// Whether the leader sleeps.
    Asleep = 292,
    /// The number of dirty pages on a failed SSD, of files that cannot be named.
    Unknown = 296,
    /// The number of files that the leader has loaded.
    Known = 300,
    /// The numbers of dirty and of live pages on the SSD.
    SsdDirty = 304,
    SsdLive = 312,
    /// The number of lost dirty pages.
    Lost = 320,
    /// Counts changes of mode, of the instance or of a file.
    ModeChanges = 328,
    /// Bytes written to the SSD since it was formatted.
    SsdEver = 336,
    /// The number of pages that the last recovery found.
    SsdFound = 344,
    /// Whether the leader is still starting: requests wait.
    Beginning = 352,
    /// The maximum number of bytes to read from the backing file around a requested page.
    ReadAround = 356,
    /// Whether the SSD has room for pages that nobody requested.
    SsdRoom = 360,
    /// Whether the SSD may have dirty pages of files without records, as after a recovery.
    Unrecorded = 364,
    /// The process slots of the processes that listen to changes.
    Listeners = 376,
    /// The first of 64 counts, one for each process slot, of the rounds in which it looked at changes.
    Rounds = 512,
    /// The first of 64 counts, one for each process slot, of changes of which it was notified; it sleeps on its own (change_notices.rs).
    Notices = 768,
}

const _: () = assert!(Word::Notices as usize + 4 * ProcessSlots::COUNT <= PAGE && PAGE.is_multiple_of(8));

/// Value of `SsdFailed`: the SSD is not used any more; it worked before, or nothing on it was needed. Not a value that a stray write
/// leaves.
pub(crate) const FAILED: u32 = 0x53d1_a96c;
/// Value of `SsdFailed`: the content of the SSD is unknown.
pub(crate) const NEVER_OPENED: u32 = 0x9a36_4fb3;
/// The upper bound for reading ahead or around, bytes, whatever the segment says.
const READ_MAX: u32 = 256 << 20;

fn whole(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

impl Layout {
    /// Computes the layout for the given sizes.
    pub fn of(sizes: Sizes) -> Layout {
        let mut end = PAGE + SETTINGS_BYTES;
        let mut take = |bytes: usize| {
            let at = end;
            end += whole(bytes);
            at
        };
        let pages_bytes = whole(SharedPages::bytes(&sizes.frames));
        let ssd_bytes = sizes.ssd.map_or(0, |shape| whole(ssdcache::shared_bytes(shape)));
        let processes = take(ProcessSlots::BYTES);
        let records = take(64 + sizes.files as usize * RECORD_BYTES);
        let requests = take(REQUESTS * REQUEST_BYTES);
        let hints = take(64 + HINTS * 8);
        let counters = take(Counters::BYTES);
        let fetch_marks = take(ReadsInFlight::MARKS_BYTES);
        let pages = take(pages_bytes);
        let ssd = take(ssd_bytes);
        Layout { sizes, processes, records, requests, hints, counters, fetch_marks, pages, pages_bytes, ssd, ssd_bytes, bytes: end }
    }

    /// Formats the segment; `settings` is text for people and for processes that attach. It is unusable until `ready`.
    pub(crate) fn format(&self, region: &Region, seed: u64, settings: &str) {
        let ssd = self.sizes.ssd.map_or((0, 0), |shape| (shape.segment_pages, shape.segments));
        let frames = self.sizes.frames;
        let replacement = match frames.replacement {
            Replacement::S3Fifo => 0,
            Replacement::Lru => 1,
            Replacement::Fifo => 2,
        };
        let words = [frames.frames, frames.shards, frames.ghosts, replacement, ssd.0, ssd.1, self.sizes.files];
        region.u32(8).store(VERSION, Ordering::Relaxed);
        for (n, word) in words.into_iter().enumerate() {
            region.u32(16 + 4 * n).store(word, Ordering::Relaxed);
        }
        let text = &settings.as_bytes()[..settings.len().min(SETTINGS_BYTES - 8)];
        region.write(PAGE, &(text.len() as u64).to_le_bytes());
        region.write(PAGE + 8, text);
        SharedPages::format(region, self.pages, &frames, seed);
        if let Some(shape) = self.sizes.ssd {
            ssdcache::format_shared(region, self.ssd, shape);
        }
    }

    /// Marks the segment as complete: the last step of making it.
    pub(crate) fn ready(region: &Region) {
        region.u64(0).store(MAGIC, Ordering::Release);
    }

    /// Reads the layout from a segment, and checks it.
    ///
    /// # Errors
    /// See [`SegmentError`].
    pub fn read(region: &Region) -> Result<Layout, SegmentError> {
        if region.len() < PAGE + SETTINGS_BYTES || region.u64(0).load(Ordering::Acquire) != MAGIC {
            return Err(SegmentError::Foreign);
        }
        let version = region.u32(8).load(Ordering::Relaxed);
        if version != VERSION {
            return Err(SegmentError::Version(version));
        }
        let word = |n: usize| region.u32(16 + 4 * n).load(Ordering::Relaxed);
        let replacement = match word(3) {
            0 => Replacement::S3Fifo,
            1 => Replacement::Lru,
            2 => Replacement::Fifo,
            _ => return Err(SegmentError::Damaged),
        };
        let frames = Frames { frames: word(0), shards: word(1), ghosts: word(2), replacement };
        let ssd = (word(5) != 0).then(|| ssdcache::Shape { segment_pages: word(4), segments: word(5) });
        let files = word(6);
        let sane = frames.is_sane()
            && frames.frames as usize <= region.len() / PAGE
            && (1..=FILES_MAX).contains(&files)
            && ssd.is_none_or(|shape| shape.check(u64::MAX).is_ok());
        if !sane {
            return Err(SegmentError::Damaged);
        }
        let layout = Layout::of(Sizes { frames, ssd, files });
        if layout.bytes > region.len() { Err(SegmentError::Damaged) } else { Ok(layout) }
    }

    /// Returns every structure of the segment with its byte range, for tests that overwrite each.
    pub fn structures(&self) -> Vec<(&'static str, std::ops::Range<usize>)> {
        let ends = [self.records, self.requests, self.hints, self.counters, self.fetch_marks, self.pages, self.ssd, self.bytes];
        let begins = [
            ("process slots", self.processes),
            ("records", self.records),
            ("requests", self.requests),
            ("hints", self.hints),
            ("counters", self.counters),
            ("marks of reads", self.fetch_marks),
            ("pages", self.pages),
            ("the SSD's map", self.ssd),
        ];
        let rest = begins.into_iter().zip(ends).map(|((name, begin), end)| (name, begin..end));
        [("header", 0..PAGE), ("settings", PAGE..PAGE + SETTINGS_BYTES)].into_iter().chain(rest).filter(|(_, at)| !at.is_empty()).collect()
    }

    /// Returns the text of the instance's settings.
    pub fn settings(region: &Region) -> String {
        let mut len = [0; 8];
        region.read(PAGE, &mut len);
        let mut text = vec![0; (u64::from_le_bytes(len) as usize).min(SETTINGS_BYTES - 8)];
        region.read(PAGE + 8, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Access to the header's words.
#[derive(Debug)]
pub(crate) struct Header {
    words: SharedRef<[AtomicU32; PAGE / 4]>,
    /// The code of the last valid mode.
    last_mode: AtomicU32,
}

impl Header {
    /// Opens the header of a region, which has at least a page.
    pub(crate) fn new(region: &Arc<Region>) -> Header {
        Header { words: SharedRef::new(region, 0), last_mode: AtomicU32::new(code_of(Mode::ReadOnly)) }
    }

    /// Returns the instance's mode; if the word is invalid, the last valid mode.
    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        let code = self.get(Word::Mode);
        match mode_of_code(code) {
            Some(mode) => {
                if self.last_mode.load(Ordering::Relaxed) != code {
                    self.last_mode.store(code, Ordering::Relaxed);
                }
                mode
            }
            None => mode_of_code(self.last_mode.load(Ordering::Relaxed)).unwrap_or(Mode::ReadOnly),
        }
    }

    /// Returns whether the mode is certainly write-back.
    #[inline(always)]
    pub(crate) fn is_write_back(&self) -> bool {
        self.get(Word::Mode) == code_of(Mode::WriteBack)
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.set(Word::Mode, code_of(mode));
    }

    /// Returns [`FAILED`] or [`NEVER_OPENED`] if the SSD is not used; 0: it works.
    #[inline]
    pub(crate) fn ssd_failed(&self) -> u32 {
        match self.get(Word::SsdFailed) {
            failed @ (FAILED | NEVER_OPENED) => failed,
            _ => 0,
        }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        self.words.region()
    }

    #[inline]
    pub(crate) fn word(&self, word: Word) -> &AtomicU32 {
        &self.words[word as usize / 4]
    }

    #[inline]
    pub(crate) fn get(&self, word: Word) -> u32 {
        let value = self.word(word).load(Ordering::Acquire);
        match word {
            Word::ReadAhead | Word::ReadAround => value.min(READ_MAX),
            _ => value,
        }
    }

    pub(crate) fn set(&self, word: Word, value: u32) {
        self.word(word).store(value, Ordering::Release);
    }

    /// Returns one of the 64-bit words: from `SsdDirty` on.
    pub(crate) fn wide(&self, word: Word) -> &AtomicU64 {
        self.region().u64(word as usize)
    }
}

#[cfg(test)]
mod test {
    use shm::PageSize;

    use super::*;

    fn sizes() -> Sizes {
        let frames = Frames { frames: 64, shards: 1, ghosts: 64, replacement: Replacement::S3Fifo };
        Sizes { frames, ssd: Some(ssdcache::Shape { segment_pages: 32, segments: 6 }), files: 16 }
    }

    #[test]
    fn what_was_made_is_read_and_what_somebody_else_wrote_is_refused() {
        let layout = Layout::of(sizes());
        let region = Region::private(layout.bytes, PageSize::Small).expect("memory");
        assert_eq!(Layout::read(&region).err(), Some(SegmentError::Foreign), "not finished");
        layout.format(&region, 1, "[cache]");
        Layout::ready(&region);
        assert_eq!(Layout::read(&region).expect("ours").sizes, sizes());
        assert_eq!(Layout::settings(&region), "[cache]");
        // Programs of version 5 do not wait for calls past the cache, those of version 7 have no marks of reads.
        for older in [5, 7] {
            region.u32(8).store(older, Ordering::Relaxed);
            assert_eq!(Layout::read(&region).err(), Some(SegmentError::Version(older)));
        }
        region.u32(8).store(VERSION, Ordering::Relaxed);
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..100_000 {
            let at = 16 + 4 * rng.usize(..7);
            let before = region.u32(at).load(Ordering::Relaxed);
            let value = if rng.bool() { rng.u32(..) } else { 1 << rng.u32(..32) };
            region.u32(at).store(value, Ordering::Relaxed);
            if let Ok(layout) = Layout::read(&region) {
                assert!(layout.bytes <= region.len(), "{layout:?}");
            }
            // Some values stay, so that several are wrong at once.
            if rng.u8(..4) > 0 {
                region.u32(at).store(before, Ordering::Relaxed);
            }
        }
    }
}
