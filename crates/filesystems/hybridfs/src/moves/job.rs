//! A requested move: its reason, its outcome, and the copy that it makes.

use std::ffi::OsString;
use std::sync::Arc;

use rustix::io::Errno;

use crate::dirs::DirPair;
use crate::report::TierName;
use crate::stat::InodeId;

/// Attempts for a move that would not be requested again; the pauses between them grow.
pub(super) const TRIES_MAX: u32 = 8;

/// Tells why a file moves to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// The SSD is above its high mark.
    HighMark = 1,
    /// Opened twice within the window.
    SecondTouch = 2,
    /// Opened, with `promotion = on-open`.
    OnOpen = 3,
    /// By `hotshelf migrate`.
    Asked = 4,
    /// Outgrew the largest size for the SSD.
    TooBig = 5,
    /// A write found its side full.
    Full = 6,
}

impl MoveReason {
    /// Returns the reason as a phrase for people.
    pub fn text(code: u8) -> &'static str {
        match code {
            1 => "the SSD was above its high mark",
            2 => "second touch",
            3 => "opened (promotion on-open)",
            4 => "asked for",
            5 => "larger than the largest file for the SSD",
            6 => "a write found its side full",
            _ => "unknown",
        }
    }
}

/// Tells how a move ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The file is on the other side.
    Done,
    /// It was there already.
    Already,
    /// Its data is used without us, or another move of it runs: later.
    Busy,
    /// It changed, or its name went: later, if it still should.
    Dropped,
    /// The file stays on its side for this reason.
    Stays(&'static str),
    /// A system call failed.
    Failed(Errno),
}

/// A copy that has its name on the HDD while the SSD's file is the valid one: of a demotion before its end, or the
/// original of a promotion.
#[derive(Clone, Debug)]
pub(crate) struct Duplicate {
    /// The directory that holds the copy.
    pub dir: Arc<DirPair>,
    /// The name of the copy.
    pub name: OsString,
    /// The copy's file on the HDD.
    pub on_hdd: InodeId,
}

/// A requested move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveJob {
    /// Inode number of the file.
    pub ino: u64,
    /// The side that the file moves to.
    pub to: TierName,
    /// Why the file is to move.
    pub reason: MoveReason,
    /// It belongs on the SSD because of a pin.
    pub pinned: bool,
    /// Bytes it needs on the target, as far as known.
    pub need: u64,
    /// How often it was put off.
    pub tries: u32,
}

impl MoveJob {
    pub(crate) fn new(ino: u64, to: TierName, reason: MoveReason) -> MoveJob {
        MoveJob { ino, to, reason, pinned: false, need: 0, tries: 0 }
    }

    /// Whether a move that is dropped must be tried again: for these nobody asks a second time.
    pub(super) fn comes_back(&self) -> bool {
        (self.pinned || self.reason == MoveReason::TooBig) && self.tries < TRIES_MAX
    }
}
