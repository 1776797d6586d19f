//! How far the walks through pinned trees have come, and which files stayed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Files that stayed are known by their paths up to this many, the others by their number.
const LEFT_MAX: usize = 1000;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// What is pinned and is still to be looked at, and what stayed.
#[derive(Debug, Default)]
pub(crate) struct PinProgress {
    /// Paths whose trees were not looked at since they were pinned.
    pub(super) todo: BTreeSet<Vec<u8>>,
    /// Names of the walk that were not looked at.
    pub(super) listed: u64,
    pub(super) walking: bool,
    pub(super) left: SkippedPins,
    /// What the last walk of all pins left, while the next one is under way.
    pub(super) left_before: SkippedPins,
    pub(super) again_at: Option<Instant>,
    pub(super) pause: Duration,
    pub(super) no_room: Option<NoRoom>,
}

/// Pinned files that stay on the HDD.
#[derive(Debug, Default)]
pub(super) struct SkippedPins {
    pub(super) files: BTreeMap<Vec<u8>, String>,
    pub(super) more: u64,
    /// Some of them may move later.
    pub(super) for_now: bool,
}

/// A file did not fit on the SSD; one that is as large is not tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoRoom {
    pub(super) need: u64,
    pub(super) free: u64,
}

impl PinProgress {
    /// Names and trees that were not looked at; each may be a file that moves.
    pub(crate) fn len(&self) -> u64 {
        self.todo.len() as u64 + self.listed + u64::from(self.walking && self.listed == 0)
    }

    /// Whether the mover has to look.
    pub(crate) fn waits(&self) -> bool {
        !self.todo.is_empty() || self.walking
    }

    /// When it has to look again.
    pub(crate) fn again_at(&self) -> Option<Instant> {
        self.again_at
    }

    /// How far the walk has come.
    pub(crate) fn note_walk(&mut self, listed: u64, walking: bool) {
        (self.listed, self.walking) = (listed, walking);
    }

    pub(super) fn look_again(&mut self) {
        if self.again_at.is_none() {
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.again_at = Some(Instant::now() + self.pause);
        }
    }
}

impl SkippedPins {
    pub(super) fn add(&mut self, path: Vec<u8>, why: String, for_now: bool) {
        self.for_now |= for_now;
        if self.files.len() < LEFT_MAX || self.files.contains_key(&path) {
            self.files.insert(path, why);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn sentence(&self) -> Option<String> {
        let (path, why) = self.files.first_key_value()?;
        let many = self.files.len() as u64 + self.more;
        let path = String::from_utf8_lossy(path);
        let what = if many == 1 {
            format!("a pinned file is still on the HDD: {path}: {why}")
        } else {
            format!("{many} pinned files are still on the HDD; the first is {path}: {why}")
        };
        Some(if self.for_now { format!("{what}; they are tried again, also as soon as there is more room") } else { what })
    }
}

/// A walk through one pinned tree.
#[derive(Debug, Default)]
pub(crate) struct PinWalk {
    /// What is on the way there; these references are given back.
    pub(super) parents: Vec<u64>,
    pub(super) levels: Vec<PinWalkLevel>,
}

#[derive(Debug)]
pub(super) struct PinWalkLevel {
    pub(super) dir: u64,
    pub(super) names: Vec<Box<[u8]>>,
}
