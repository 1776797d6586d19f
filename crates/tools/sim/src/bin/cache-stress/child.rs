//! One process that uses the cache until it is stopped or killed.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result, ensure};
use cachedfs::{File, Instance, Met, Options, Pinned};
use rustix::fs::{CWD, Mode, OFlags};

use crate::cells::{CELL, Stamp};
use crate::verify::{floors, verify_cells};
use crate::version_table::{CallKind, CellWord, GROUP, HeaderWord, LOGS, SHARED, SLOTS, VersionTable, WriterWord, cells, now, writer};
use crate::work_dir::WorkDir;

/// Cells of the longest read.
const READ_MAX: u32 = 32;
/// Maximum number of pinned pages.
const PINS: usize = 4;

/// Opens a file of the test and creates it if it is missing.
pub fn open(instance: &Arc<Instance>, work_dir: &WorkDir, number: u32) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    Ok(instance.open_file(CWD, &work_dir.file(number), flags, Mode::RUSR | Mode::WUSR, &Options::default())?)
}

struct Child {
    work_dir: WorkDir,
    table: VersionTable,
    instance: Arc<Instance>,
    slot: u32,
    rng: fastrand::Rng,
    files: BTreeMap<u32, File>,
    pins: Vec<Pinned>,
    /// The kernel's run and wait times of this thread.
    schedstat: std::fs::File,
}

/// Returns a lower-case letter for files that are truncated.
fn read_of(call: u8, number: u32) -> u8 {
    if (SHARED..LOGS).contains(&number) { call.to_ascii_lowercase() } else { call }
}

fn kind_of(call: u8, before: Met, after: Met) -> CallKind {
    match call {
        b'R' | b'P' if before.misses == after.misses => CallKind::Hit,
        b'R' | b'P' => CallKind::Miss,
        b'r' | b'p' => CallKind::UnstableRead,
        b'W' | b'A' if before.waits == after.waits => CallKind::Write,
        b'W' | b'A' => CallKind::WriteStall,
        _ => CallKind::LeaderRequest,
    }
}

/// Works until it is stopped.
pub fn run(work_dir: WorkDir, slot: u32, seed: u64) -> Result<()> {
    let table = VersionTable::open(&work_dir.version_table())?;
    let begun = now();
    table.slot(slot, WriterWord::Call).store(u64::from(b'o'), SeqCst);
    table.slot(slot, WriterWord::Since).store(begun, SeqCst);
    let instance = Instance::open(&work_dir.config()?)?;
    table.slot(slot, WriterWord::Since).store(0, SeqCst);
    table.slot(slot, WriterWord::Pid).store(u64::from(std::process::id()), SeqCst);
    let rng = fastrand::Rng::with_seed(seed);
    let schedstat = std::fs::File::open("/proc/thread-self/schedstat").context("the kernel's count of waiting")?;
    let mut child = Child { work_dir, table, instance, slot, rng, files: BTreeMap::new(), pins: Vec::new(), schedstat };
    while child.table.head(HeaderWord::Stop).load(SeqCst) == 0 {
        child.step()?;
    }
    child.pins.clear();
    child.files.clear();
    child.timed(b'l', |child| Ok(child.instance.detach()?))
}

impl Child {
    /// Records the start and the duration of a call.
    fn timed<T>(&mut self, call: u8, what: impl FnOnce(&mut Child) -> Result<T>) -> Result<T> {
        let (met, queued, begun) = (self.instance.met(), self.queued(), now());
        self.table.slot(self.slot, WriterWord::Call).store(call.into(), SeqCst);
        self.table.slot(self.slot, WriterWord::Since).store(begun, SeqCst);
        let result = what(self);
        let took = now() - begun;
        self.table.slot(self.slot, WriterWord::Since).store(0, SeqCst);
        self.table.slot(self.slot, WriterWord::Calls).fetch_add(1, SeqCst);
        let kind = kind_of(call, met, self.instance.met());
        self.table.longest(self.slot, kind).fetch_max(took.saturating_sub(self.queued() - queued), SeqCst);
        result.with_context(|| format!("writer {}, call {}", self.slot, char::from(call)))
    }

    /// Returns how long the thread waited for a CPU, ns.
    fn queued(&self) -> u64 {
        let mut text = [0; 64];
        let got = rustix::io::pread(&self.schedstat, &mut text, 0).unwrap_or(0);
        let progress = std::str::from_utf8(&text[..got]).ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
        progress.unwrap_or(0)
    }

    fn step(&mut self) -> Result<()> {
        match self.rng.u32(0..1000) {
            0..480 => self.read(),
            480..840 => self.write_shared(),
            840..900 => self.write_own(),
            900..915 => self.cut(),
            915..925 => self.punch(),
            925..960 => self.append(),
            960..972 => self.sync(),
            972..990 => self.pin(),
            990..998 => {
                let file = self.any_file();
                self.files.remove(&file);
                Ok(())
            }
            _ => self.timed(b'T', |child| {
                let status = child.instance.status();
                ensure!(status.lost.is_empty(), "lost: {:?}", status.lost);
                Ok(())
            }),
        }
    }

    fn any_file(&mut self) -> u32 {
        self.rng.u32(0..LOGS)
    }

    fn with<T>(&mut self, number: u32, what: impl FnOnce(&mut Child, &File) -> Result<T>) -> Result<T> {
        let file = match self.files.remove(&number) {
            Some(file) => file,
            None => self.timed(b'o', |child| open(&child.instance, &child.work_dir, number))?,
        };
        let result = what(self, &file);
        self.files.insert(number, file);
        result
    }

    fn read(&mut self) -> Result<()> {
        let number = self.any_file();
        let first = self.rng.u32(0..cells(number));
        let count = self.rng.u32(1..=READ_MAX).min(cells(number) - first);
        let is_parted = self.rng.u8(0..8) == 0;
        let mut bytes = vec![0; count as usize * CELL];
        let floors = floors(&self.table, number, first, count);
        let at = u64::from(first) * CELL as u64;
        let got = self.with(number, |child, file| {
            child.timed(read_of(b'R', number), |_| {
                let (one, other) = bytes.split_at_mut(count as usize / 2 * CELL);
                let mut parts = [IoSliceMut::new(one), IoSliceMut::new(other)];
                Ok(if is_parted { file.read_vectored_at(at, &mut parts)? } else { file.read_at(at, &mut bytes)? })
            })
        })?;
        verify_cells(&self.table, number, first, &floors, &bytes[..got])
    }

    /// Starts the next even version of each cell and returns their bytes.
    fn begin(&mut self, number: u32, first: u32, count: u32) -> (Vec<u64>, Vec<u8>) {
        let mut bytes = Vec::with_capacity(count as usize * CELL);
        let versions = (first..first + count).map(|cell| {
            let version = (self.table.get(number, cell, CellWord::Started) | 1) + 1;
            self.table.cell(number, cell, CellWord::Started).store(version, SeqCst);
            bytes.extend(Stamp { file: number, cell, version }.bytes());
            version
        });
        (versions.collect(), bytes)
    }

    fn end(&mut self, number: u32, first: u32, versions: &[u64]) {
        for (cell, version) in (first..).zip(versions) {
            self.table.cell(number, cell, CellWord::Acked).store(*version, SeqCst);
        }
    }

    fn write(&mut self, number: u32, first: u32, count: u32) -> Result<()> {
        let is_parted = count > 1 && self.rng.u8(0..8) == 0;
        self.with(number, |child, file| {
            let (versions, bytes) = child.begin(number, first, count);
            let at = u64::from(first) * CELL as u64;
            let done = child.timed(b'W', |_| {
                let (one, other) = bytes.split_at(CELL);
                let parts = [IoSlice::new(one), IoSlice::new(other)];
                Ok(if is_parted { file.write_vectored_at(at, &parts)? } else { file.write_at(at, &bytes)? })
            })?;
            ensure!(done == bytes.len(), "{done} bytes of {} were written", bytes.len());
            child.end(number, first, &versions);
            Ok(())
        })
    }

    fn write_shared(&mut self) -> Result<()> {
        let number = self.rng.u32(0..SHARED);
        let groups = cells(number) / GROUP / SLOTS;
        // Some cells are written often.
        let group = if self.rng.bool() { self.rng.u32(0..groups) } else { self.rng.u32(0..8) };
        let first = (group * SLOTS + self.slot) * GROUP;
        let skipped = self.rng.u32(0..GROUP);
        let count = self.rng.u32(1..=GROUP - skipped);
        assert_eq!((writer(number, first), writer(number, first + GROUP - 1)), (self.slot, self.slot), "its own cells");
        self.write(number, first + skipped, count)
    }

    fn write_own(&mut self) -> Result<()> {
        let number = SHARED + self.slot;
        let first = self.rng.u32(0..cells(number));
        let count = self.rng.u32(1..=READ_MAX).min(cells(number) - first);
        self.write(number, first, count)
    }

    /// Starts emptying these cells: the next odd version of each cell that may have content.
    fn begin_nothing(&mut self, number: u32, cells: std::ops::Range<u32>) -> Vec<(u32, u64)> {
        let mut begun = Vec::new();
        for cell in cells {
            let before = self.table.get(number, cell, CellWord::Started);
            if before.is_multiple_of(2) || self.table.get(number, cell, CellWord::Acked) != before {
                let version = (before + 1) | 1;
                self.table.cell(number, cell, CellWord::Started).store(version, SeqCst);
                begun.push((cell, version));
            }
        }
        begun
    }

    fn nothing(&mut self, number: u32, cells: std::ops::Range<u32>, call: u8, what: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        self.with(number, |child, file| {
            let begun = child.begin_nothing(number, cells);
            child.timed(call, |_| what(file))?;
            begun.iter().for_each(|(cell, version)| child.table.cell(number, *cell, CellWord::Acked).store(*version, SeqCst));
            Ok(())
        })
    }

    fn cut(&mut self) -> Result<()> {
        let number = SHARED + self.slot;
        let end = self.rng.u32(0..=cells(number));
        self.nothing(number, end..cells(number), b'c', |file| Ok(file.set_len(u64::from(end) * CELL as u64)?))
    }

    fn punch(&mut self) -> Result<()> {
        let number = SHARED + self.slot;
        let first = self.rng.u32(0..cells(number));
        let end = self.rng.u32(first + 1..=cells(number));
        let range = u64::from(first) * CELL as u64..u64::from(end) * CELL as u64;
        self.nothing(number, first..end, b'h', |file| Ok(file.punch_hole(range)?))
    }

    fn append(&mut self) -> Result<()> {
        let log = self.table.head(HeaderWord::Log).load(SeqCst);
        let number = LOGS + log as u32;
        self.files.retain(|file, _| *file < LOGS || *file == number);
        self.with(number, |child, file| {
            let Some(record) = child.table.begin_append(child.slot, log) else { return Ok(()) };
            let bytes = Stamp { file: number, cell: child.slot, version: 2 * (record + 1) }.bytes();
            let at = child.timed(b'A', |_| Ok(file.append(&bytes)?))?;
            ensure!(at % CELL as u64 == 0, "a record was appended at {at}");
            child.table.appended(child.slot, record, at / CELL as u64);
            let mut back = [0; CELL];
            let got = child.timed(b'R', |_| Ok(file.read_at(at, &mut back)?))?;
            ensure!(got == CELL && back == bytes, "a record that was appended at {at} is not there: {:?}", Stamp::of(&back));
            Ok(())
        })
    }

    fn sync(&mut self) -> Result<()> {
        if self.rng.u8(0..4) == 0 {
            return self.sync_log();
        }
        let number = self.any_file();
        self.with(number, |child, file| {
            let acked: Vec<u64> = (0..cells(number)).map(|cell| child.table.get(number, cell, CellWord::Acked)).collect();
            child.timed(b's', |_| Ok(file.sync(false)?))?;
            for (cell, version) in (0..).zip(acked) {
                child.table.cell(number, cell, CellWord::Synced).fetch_max(version, SeqCst);
            }
            Ok(())
        })
    }

    fn sync_log(&mut self) -> Result<()> {
        let log = self.table.head(HeaderWord::Log).load(SeqCst);
        let number = LOGS + log as u32;
        self.files.retain(|file, _| *file < LOGS || *file == number);
        self.with(number, |child, file| {
            let mut acked = Vec::new();
            for slot in 0..SLOTS {
                let appends = child.table.appends(slot);
                let some = (appends.saturating_sub(1000)..appends).map(|record| (record, child.table.append(slot, record)));
                acked.extend(some.filter(|(_, append)| append.log == log && append.at.is_some()).map(|(record, _)| (slot, record)));
            }
            child.timed(b's', |_| Ok(file.sync(true)?))?;
            acked.iter().for_each(|(slot, record)| child.table.synced(*slot, *record));
            Ok(())
        })
    }

    /// Pins a page: a killed process may hold pins.
    fn pin(&mut self) -> Result<()> {
        if self.pins.len() >= PINS {
            self.pins.clear();
        }
        let number = self.any_file();
        let cell = self.rng.u32(0..cells(number));
        let pinned =
            self.with(number, |child, file| child.timed(read_of(b'P', number), |_| Ok(file.pin(u64::from(cell) * CELL as u64, CELL)?)))?;
        ensure!(pinned.len() <= CELL, "{} bytes of a cell", pinned.len());
        self.pins.push(pinned);
        Ok(())
    }
}
