//! What everybody may know: which versions were begun, told as written, told as durable. In shared memory beside the cache, so that
//! it is there however its writer dies.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use anyhow::Result;
use shm::{FileAccess, Region};

/// Writers at a time.
pub const SLOTS: u32 = 4;
/// Files that all write, each its own cells.
pub const SHARED: u32 = 4;
/// Files that one writes, cuts and punches, one for each writer.
pub const OWN: u32 = SLOTS;
/// Cells of a file.
pub const CELLS: [u32; 2] = [2048, 512];
/// Neighbouring cells of one writer: they cross pages.
pub const GROUP: u32 = 3;
/// Records one writer may append.
pub const APPENDS: u64 = 1 << 16;
/// Number of the first log among the files.
pub const LOGS: u32 = SHARED + OWN;

const HEAD: usize = 4096;
const SLOT_BYTES: usize = 128;
const CELL_BYTES: usize = 64;

/// Words of one cell.
#[derive(Clone, Copy)]
pub enum CellWord {
    /// The newest version whose writing began.
    Started,
    /// The newest that was told as written.
    Acked,
    /// The newest that was told as durable.
    Synced,
    /// The newest that anybody saw.
    Seen,
    /// The newest whose writer was killed as he wrote: it may be there in part.
    Torn,
}

/// Words of all.
#[derive(Clone, Copy)]
pub enum HeaderWord {
    /// Everybody ends.
    Stop,
    /// Which log is appended to.
    Log,
}

/// Words of one writer.
#[derive(Clone, Copy)]
pub enum WriterWord {
    /// When the call began in which he is, ns of the monotonic clock; 0: in none.
    Since,
    /// Which call: a letter.
    Call,
    /// Calls.
    Calls,
    /// Appends begun.
    Appends,
    /// His process, once he takes part.
    Pid,
}

/// What a call was, for who asks how long it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    /// A read of pages that were all in memory.
    Hit,
    /// A read that met the SSD, or the file below.
    Miss,
    /// A write that found room.
    Write,
    /// A write that waited for room, which the leader makes with the disks.
    WriteStall,
    /// A read of a file that is cut and punched at times: who misses waits until the leader has done that.
    UnstableRead,
    /// A sync, a cut, a hole, an open: these ask the leader, and wait for disks.
    LeaderRequest,
}

/// All, with what people call them.
pub const KINDS: [(CallKind, &str); 6] = [
    (CallKind::Hit, "reads in memory"),
    (CallKind::Miss, "reads of the disks"),
    (CallKind::Write, "writes"),
    (CallKind::WriteStall, "writes without room"),
    (CallKind::UnstableRead, "reads of files that are cut"),
    (CallKind::LeaderRequest, "syncs, cuts, opens"),
];

/// An appended record was begun, in this log.
const STARTED: u64 = 1 << 61;
/// It was told as written, there.
const ACKED: u64 = 1 << 62;
/// It was told as durable.
const SYNCED: u64 = 1 << 63;

/// See the module.
pub struct VersionTable(Region);

impl VersionTable {
    fn bytes() -> usize {
        HEAD + CELL_BYTES * (SHARED * CELLS[0] + OWN * CELLS[1]) as usize + 8 * (u64::from(SLOTS) * APPENDS) as usize
    }

    /// A new one: nothing was written.
    pub fn create(path: &Path) -> Result<VersionTable> {
        let table = VersionTable(Region::create_file(path, VersionTable::bytes(), FileAccess { permissions: 0o600, group: None })?);
        for (file, cell) in all() {
            for word in [CellWord::Started, CellWord::Acked, CellWord::Synced] {
                table.cell(file, cell, word).store(1, SeqCst);
            }
        }
        Ok(table)
    }

    /// The one that is there.
    pub fn open(path: &Path) -> Result<VersionTable> {
        Ok(VersionTable(Region::open_file(path, None)?))
    }

    pub fn head(&self, word: HeaderWord) -> &AtomicU64 {
        self.0.u64(word as usize * 8)
    }

    pub fn slot(&self, slot: u32, word: WriterWord) -> &AtomicU64 {
        self.0.u64(1024 + slot as usize * SLOT_BYTES + word as usize * 8)
    }

    /// A writer's longest call of a kind, ns; what he was ready and had no processor is not counted.
    pub fn longest(&self, slot: u32, kind: CallKind) -> &AtomicU64 {
        self.0.u64(1024 + slot as usize * SLOT_BYTES + 64 + kind as usize * 8)
    }

    pub fn cell(&self, file: u32, cell: u32, word: CellWord) -> &AtomicU64 {
        let at = if file < SHARED { file * CELLS[0] + cell } else { SHARED * CELLS[0] + (file - SHARED) * CELLS[1] + cell };
        self.0.u64(HEAD + at as usize * CELL_BYTES + word as usize * 8)
    }

    pub fn get(&self, file: u32, cell: u32, word: CellWord) -> u64 {
        self.cell(file, cell, word).load(SeqCst)
    }

    /// No older version may be seen from now on.
    pub fn floor(&self, file: u32, cell: u32) -> u64 {
        self.get(file, cell, CellWord::Acked).max(self.get(file, cell, CellWord::Seen))
    }

    fn record(&self, slot: u32, number: u64) -> &AtomicU64 {
        let cells = CELL_BYTES * (SHARED * CELLS[0] + OWN * CELLS[1]) as usize;
        self.0.u64(HEAD + cells + 8 * (u64::from(slot) * APPENDS + number) as usize)
    }

    /// The next append of a writer; none: he has had all.
    pub fn begin_append(&self, slot: u32, log: u64) -> Option<u64> {
        let number = self.slot(slot, WriterWord::Appends).fetch_add(1, SeqCst);
        (number < APPENDS).then(|| {
            self.record(slot, number).store(STARTED | log << 32, SeqCst);
            number
        })
    }

    /// It is at this record of its log.
    pub fn appended(&self, slot: u32, number: u64, at: u64) {
        self.record(slot, number).fetch_or(ACKED | at, SeqCst);
    }

    /// What became of an append.
    pub fn append(&self, slot: u32, number: u64) -> Append {
        let word = self.record(slot, number).load(SeqCst);
        Append { log: word >> 32 & 0xff_ffff, at: (word & ACKED != 0).then_some(word & 0xffff_ffff), is_synced: word & SYNCED != 0 }
    }

    /// It is durable.
    pub fn synced(&self, slot: u32, number: u64) {
        self.record(slot, number).fetch_or(SYNCED, SeqCst);
    }

    /// It was told as written, but nobody was told that it survives, and it did not.
    pub fn forget(&self, slot: u32, number: u64) {
        self.record(slot, number).fetch_and(!ACKED, SeqCst);
    }

    /// How many appends a writer has begun.
    pub fn appends(&self, slot: u32) -> u64 {
        self.slot(slot, WriterWord::Appends).load(SeqCst).min(APPENDS)
    }
}

/// See [`VersionTable::append`].
pub struct Append {
    /// To which log.
    pub log: u64,
    /// Where, if it was told as written.
    pub at: Option<u64>,
    /// It was told as durable.
    pub is_synced: bool,
}

/// Every cell.
pub fn all() -> impl Iterator<Item = (u32, u32)> {
    (0..LOGS).flat_map(|file| (0..cells(file)).map(move |cell| (file, cell)))
}

/// Cells of a file.
pub fn cells(file: u32) -> u32 {
    CELLS[usize::from(file >= SHARED)]
}

/// Who writes a cell.
pub fn writer(file: u32, cell: u32) -> u32 {
    if file < SHARED { cell / GROUP % SLOTS } else { file - SHARED }
}

/// Nanoseconds of the clock that all processes share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
