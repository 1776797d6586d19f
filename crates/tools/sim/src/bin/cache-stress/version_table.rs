//! The versions that were started, acknowledged and made durable, in shared memory beside the cache, so that they survive a killed writer.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use anyhow::Result;
use shm::{FileAccess, Region};

/// Number of writers at a time.
pub const SLOTS: u32 = 4;
/// Number of files that all processes write, each its own cells.
pub const SHARED: u32 = 4;
/// Number of files with one writer, which also truncates and punches them.
pub const OWN: u32 = SLOTS;
/// Cells of a shared and of an own file.
pub const CELLS: [u32; 2] = [2048, 512];
/// Adjacent cells of one writer; they cross pages.
pub const GROUP: u32 = 3;
/// Maximum number of records that a writer appends.
pub const APPENDS: u64 = 1 << 16;
/// Number of the first log file.
pub const LOGS: u32 = SHARED + OWN;

const HEAD: usize = 4096;
const SLOT_BYTES: usize = 128;
const CELL_BYTES: usize = 64;

/// The words of one cell.
#[derive(Clone, Copy)]
pub enum CellWord {
    /// The newest version whose write was started.
    Started,
    /// The newest version acknowledged as written.
    Acked,
    /// The newest version acknowledged as durable.
    Synced,
    /// The newest version that any process read.
    Seen,
    /// The newest version whose writer was killed during the write: it may be torn.
    Torn,
}

/// The words that all processes share.
#[derive(Clone, Copy)]
pub enum HeaderWord {
    /// All processes end when it is set.
    Stop,
    /// Number of the log in use.
    Log,
}

/// The words of one writer.
#[derive(Clone, Copy)]
pub enum WriterWord {
    /// Start of the current call, ns of the monotonic clock; 0: no call.
    Since,
    /// Letter of the current call.
    Call,
    /// Number of calls.
    Calls,
    /// Number of appends started.
    Appends,
    /// Process id, once the process has attached.
    Pid,
}

/// The kind of a call, for stall statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    /// A read of pages that were all in memory.
    Hit,
    /// A read from the SSD or the backing file.
    Miss,
    /// A write that found free space.
    Write,
    /// A write that waited for free space, which the leader makes.
    WriteStall,
    /// A read of a file that is truncated and punched at times: a miss waits until the leader has done that.
    UnstableRead,
    /// A sync, truncate, punch or open: the leader handles it and waits for disks.
    LeaderRequest,
}

/// All kinds with their printed names.
pub const KINDS: [(CallKind, &str); 6] = [
    (CallKind::Hit, "reads in memory"),
    (CallKind::Miss, "reads of the disks"),
    (CallKind::Write, "writes"),
    (CallKind::WriteStall, "writes without room"),
    (CallKind::UnstableRead, "reads of files that are cut"),
    (CallKind::LeaderRequest, "syncs, cuts, opens"),
];

/// The append was started, in this log.
const STARTED: u64 = 1 << 61;
/// The append was acknowledged, at this record.
const ACKED: u64 = 1 << 62;
/// The append was acknowledged as durable.
const SYNCED: u64 = 1 << 63;

/// A table of versions in a shared file.
pub struct VersionTable(Region);

impl VersionTable {
    fn bytes() -> usize {
        HEAD + CELL_BYTES * (SHARED * CELLS[0] + OWN * CELLS[1]) as usize + 8 * (u64::from(SLOTS) * APPENDS) as usize
    }

    /// Creates an empty table in a new file.
    pub fn create(path: &Path) -> Result<VersionTable> {
        let table = VersionTable(Region::create_file(path, VersionTable::bytes(), FileAccess { permissions: 0o600, group: None })?);
        for (file, cell) in all() {
            for word in [CellWord::Started, CellWord::Acked, CellWord::Synced] {
                table.cell(file, cell, word).store(1, SeqCst);
            }
        }
        Ok(table)
    }

    /// Opens the table of an existing file.
    pub fn open(path: &Path) -> Result<VersionTable> {
        Ok(VersionTable(Region::open_file(path, None)?))
    }

    /// Returns a word that all processes share.
    pub fn head(&self, word: HeaderWord) -> &AtomicU64 {
        self.0.u64(word as usize * 8)
    }

    /// Returns a word of one writer.
    pub fn slot(&self, slot: u32, word: WriterWord) -> &AtomicU64 {
        self.0.u64(1024 + slot as usize * SLOT_BYTES + word as usize * 8)
    }

    /// Returns the longest call of a kind, ns, without the time spent waiting for a CPU.
    pub fn longest(&self, slot: u32, kind: CallKind) -> &AtomicU64 {
        self.0.u64(1024 + slot as usize * SLOT_BYTES + 64 + kind as usize * 8)
    }

    /// Returns a word of one cell.
    pub fn cell(&self, file: u32, cell: u32, word: CellWord) -> &AtomicU64 {
        let at = if file < SHARED { file * CELLS[0] + cell } else { SHARED * CELLS[0] + (file - SHARED) * CELLS[1] + cell };
        self.0.u64(HEAD + at as usize * CELL_BYTES + word as usize * 8)
    }

    /// Returns the value of a cell's word.
    pub fn get(&self, file: u32, cell: u32, word: CellWord) -> u64 {
        self.cell(file, cell, word).load(SeqCst)
    }

    /// Returns the oldest version that may be seen from now on.
    pub fn floor(&self, file: u32, cell: u32) -> u64 {
        self.get(file, cell, CellWord::Acked).max(self.get(file, cell, CellWord::Seen))
    }

    fn record(&self, slot: u32, number: u64) -> &AtomicU64 {
        let cells = CELL_BYTES * (SHARED * CELLS[0] + OWN * CELLS[1]) as usize;
        self.0.u64(HEAD + cells + 8 * (u64::from(slot) * APPENDS + number) as usize)
    }

    /// Starts the next append of a writer. `None`: its records are used up.
    pub fn begin_append(&self, slot: u32, log: u64) -> Option<u64> {
        let number = self.slot(slot, WriterWord::Appends).fetch_add(1, SeqCst);
        (number < APPENDS).then(|| {
            self.record(slot, number).store(STARTED | log << 32, SeqCst);
            number
        })
    }

    /// Records the acknowledged position of an append in its log.
    pub fn appended(&self, slot: u32, number: u64, at: u64) {
        self.record(slot, number).fetch_or(ACKED | at, SeqCst);
    }

    /// Returns the state of an append.
    pub fn append(&self, slot: u32, number: u64) -> Append {
        let word = self.record(slot, number).load(SeqCst);
        Append { log: word >> 32 & 0xff_ffff, at: (word & ACKED != 0).then_some(word & 0xffff_ffff), is_synced: word & SYNCED != 0 }
    }

    /// Records that an append is durable.
    pub fn synced(&self, slot: u32, number: u64) {
        self.record(slot, number).fetch_or(SYNCED, SeqCst);
    }

    /// Forgets an append that was acknowledged, not durable, and lost.
    pub fn forget(&self, slot: u32, number: u64) {
        self.record(slot, number).fetch_and(!ACKED, SeqCst);
    }

    /// Returns the number of appends started by a writer.
    pub fn appends(&self, slot: u32) -> u64 {
        self.slot(slot, WriterWord::Appends).load(SeqCst).min(APPENDS)
    }
}

/// The state of one append.
pub struct Append {
    /// Number of the log it went to.
    pub log: u64,
    /// Its record in the log, if it was acknowledged.
    pub at: Option<u64>,
    /// It was acknowledged as durable.
    pub is_synced: bool,
}

/// Returns all cells of all files.
pub fn all() -> impl Iterator<Item = (u32, u32)> {
    (0..LOGS).flat_map(|file| (0..cells(file)).map(move |cell| (file, cell)))
}

/// Returns the number of cells of a file.
pub fn cells(file: u32) -> u32 {
    CELLS[usize::from(file >= SHARED)]
}

/// Returns the writer of a cell.
pub fn writer(file: u32, cell: u32) -> u32 {
    if file < SHARED { cell / GROUP % SLOTS } else { file - SHARED }
}

/// Returns nanoseconds of the clock that all processes share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
