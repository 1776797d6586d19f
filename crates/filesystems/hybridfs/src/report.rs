//! What the file system tells people: the answers behind `hotshelf status` and `hotshelf why`.
//!
//! Plain data, no logic. The control socket carries these as JSON and `--json` prints them unchanged,
//! so a field is never renamed or removed without a line in the changelog. Sizes are bytes, times are
//! seconds since 1970.

use serde::{Deserialize, Serialize};

/// The two places a file can live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierName {
    /// The small fast directory.
    Ssd,
    /// The big slow directory.
    Hdd,
}

impl TierName {
    /// Returns the other side of the pair.
    pub fn other(self) -> TierName {
        match self {
            TierName::Ssd => TierName::Hdd,
            TierName::Hdd => TierName::Ssd,
        }
    }
}

impl std::fmt::Display for TierName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TierName::Ssd => "ssd",
            TierName::Hdd => "hdd",
        })
    }
}

/// One directory of the pair: its space and what happened to it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TierStatus {
    /// The directory as given at mount.
    pub directory: String,
    /// Size of the file system it is on.
    pub capacity_bytes: u64,
    /// In use on that file system, whoever uses it.
    pub used_bytes: u64,
    /// Bytes that users of the mount can still write.
    pub free_bytes: u64,
    /// Regular files there, as far as the background scan has come. It counts the SSD only: none for the HDD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Why it is degraded (read-only, I/O errors), if it is.
    pub degraded: Option<String>,
    /// What its file system can do, found out at mount.
    #[serde(default)]
    pub abilities: crate::abilities::Abilities,
    /// What it cannot do and what is done instead, a sentence each.
    #[serde(default)]
    pub limits: Vec<String>,
}

/// Reply to `hotshelf status MOUNTPOINT`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon that serves the mount.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// The directory where the pair is mounted.
    pub mountpoint: String,
    /// Seconds since the pair was mounted.
    pub uptime_s: u64,
    /// State of the fast side.
    pub ssd: TierStatus,
    /// State of the slow side.
    pub hdd: TierStatus,
    /// Name of the policy, or the path of its shared object.
    pub policy: String,
    /// When a file on the HDD is brought up: `second-touch`, `on-open`, `never`.
    pub promotion: String,
    /// Opens within a residency that a file needs to come up, because promoted files left before they were used again; 0: as the policy
    /// has it.
    #[serde(default)]
    pub promotion_opens_wanted: u32,
    /// Demotion starts above this use of the SSD, in bytes.
    pub high_bytes: u64,
    /// Demotion stops below this use of the SSD, in bytes.
    pub low_bytes: u64,
    /// The side that is retired, or being retired: nothing new goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<TierName>,
    /// Limit of background moves, bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_rate_bytes: Option<u64>,
    /// Smaller files do not move by themselves, in bytes.
    #[serde(default)]
    pub min_file_bytes: u64,
    /// Two opens within this many seconds are a second touch.
    #[serde(default)]
    pub touch_window_s: u32,
    /// Whether the daemon refuses every change.
    #[serde(default)]
    pub read_only: bool,
    /// Space of the SSD kept free for writers that bypass the daemon, in bytes.
    #[serde(default)]
    pub reserve_bytes: u64,
    /// Files from this size on are not promoted, in bytes.
    #[serde(default)]
    pub max_file_bytes: u64,
    /// Whether file data goes straight to the SSD's file system.
    pub passthrough: bool,
    /// Why it does not, if it does not.
    pub passthrough_reason: Option<String>,
    /// Whether requests come over io_uring. A daemon of before does not say.
    #[serde(default)]
    pub uring: bool,
    /// Why requests do not come over io_uring, if they do not.
    #[serde(default)]
    pub uring_reason: Option<String>,
    /// Opens of regular files found on the SSD.
    pub hits: u64,
    /// Opens of regular files found on the HDD.
    pub misses: u64,
    /// hits / (hits + misses), 0 when nothing was opened.
    pub hit_ratio: f64,
    /// Moves from HDD to SSD that finished.
    pub promotions: u64,
    /// Moves from SSD to HDD that finished.
    pub demotions: u64,
    /// Bytes that were moved in both directions.
    pub moved_bytes: u64,
    /// Moves given up because the file was in use or changed; they are tried again.
    pub moves_dropped: u64,
    /// Moves that failed with an error.
    pub moves_failed: u64,
    /// Why moves do not succeed, a cause each.
    #[serde(default)]
    pub move_troubles: Vec<MoveTrouble>,
    /// Number of moves that wait.
    pub queue: u64,
    /// Path, direction and progress of the moves running now.
    pub running: Vec<RunningMove>,
    /// Files held by open handles now.
    pub open_files: u64,
    /// Paths that users pinned to the SSD.
    pub pinned: Vec<String>,
    /// Paths found on both sides that hotshelf did not put there; the SSD's is shown, the HDD's is kept.
    pub conflicts: Vec<String>,
    /// Whether the background scan of the SSD has ended.
    pub scan_done: bool,
    /// Warnings about the mount, one sentence each.
    pub warnings: Vec<String>,
}

/// Moves that did not succeed for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveTrouble {
    /// Where the files should have gone.
    pub to: TierName,
    /// The system's error, or what the side cannot hold.
    pub cause: String,
    /// Number of moves that ended this way.
    pub moves: u64,
    /// Path of the first file concerned.
    pub first: String,
    /// `true`: these files stay where they are; `false`: they are tried again.
    pub stays: bool,
    /// Seconds until anything is moved to that side again, if it rests.
    pub next_try_s: Option<u64>,
}

/// Describes a move in progress.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningMove {
    /// Path of the file below the mount point.
    pub path: String,
    /// The side that the file moves to.
    pub to: TierName,
    /// Bytes that are copied so far.
    pub done_bytes: u64,
    /// Size of the file in bytes.
    pub total_bytes: u64,
}

/// Reply to `hotshelf why PATH`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Why {
    /// Path of the file below the mount point.
    pub path: String,
    /// Type of the file: `file`, `directory`, `symlink` and so on.
    pub kind: String,
    /// Where it lives; `None` for a directory that is on both sides.
    pub tier: Option<TierName>,
    /// The real path of the data.
    pub real_path: String,
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Times opened, as far as remembered.
    pub opens: u64,
    /// Time of the last open, if it is known.
    pub last_open_s: Option<u64>,
    /// Position in the policy's order: 0.0 is evicted next, 1.0 last; `None` on the HDD or before the scan.
    pub rank: Option<f64>,
    /// Pinned to the SSD, by itself or by a rule or a directory above it.
    pub pinned: Option<String>,
    /// The last move: when, where to, why.
    pub last_move: Option<LastMove>,
    /// Why it is where it is, in a sentence.
    pub reason: String,
    /// What would move it next, in a sentence.
    pub next: String,
}

/// The last move of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastMove {
    /// Time of the move in seconds since 1970.
    pub at_s: u64,
    /// The side that the file moves to.
    pub to: TierName,
    /// Why, in a few words (`above the high mark`, `second touch`, `asked for`).
    pub reason: String,
}

/// What a client of the control socket asks, one JSON object a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum ControlRequest {
    /// The state of the mount.
    Status,
    /// Everything known of one path (relative to the mount, no leading slash, bytes as lossless percent-escapes by `escape`).
    Why {
        /// Path below the mount.
        path: String,
    },
    /// Keep a file, or all below a directory, on the SSD.
    Pin {
        /// Path below the mount.
        path: String,
    },
    /// Undo `Pin`.
    Unpin {
        /// Path below the mount.
        path: String,
    },
    /// Move a file, or all files of a directory tree; answered by many `Progress` and one `Done` or `Failed`.
    Migrate {
        /// Path below the mount.
        path: String,
        /// Where to.
        to: TierName,
    },
    /// Bring everything from one side to the other; answered by many `Progress` and one `Done` or `Failed`.
    Retire {
        /// The side that holds nothing then.
        side: TierName,
        /// Only look whether it would fit.
        dry_run: bool,
    },
    /// Change settings of the running mount, by the names that they have as flags; all or none.
    Set {
        /// Setting and value.
        changes: std::collections::BTreeMap<String, String>,
        /// Only look whether they could be changed.
        #[serde(default)]
        dry_run: bool,
    },
    /// Write the access history now; answered when it is durable.
    Flush,
    /// End the daemon after an orderly unmount.
    Stop,
}

/// What the daemon answers, one JSON object a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum ControlReply {
    /// To `Status`.
    Status(Box<Status>),
    /// To `Why`.
    Why(Box<Why>),
    /// While `Migrate` or `Retire` runs.
    Progress {
        /// Files found so far that have to move.
        files: u64,
        /// Of these, moved.
        files_done: u64,
        /// Their bytes.
        bytes: u64,
        /// Of these, moved.
        bytes_done: u64,
    },
    /// The thing asked for is done; a sentence for people.
    Done {
        /// What was done.
        message: String,
    },
    /// It is not; a sentence that says what happened, to what, and what to do.
    Failed {
        /// The sentence.
        message: String,
    },
}
