//! Verifies all files while no process works.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result, bail, ensure};
use cachedfs::{Instance, Mode};

use crate::cells::{CELL, Stamp};
use crate::child::open;
use crate::verify::verify_cell;
use crate::version_table::{CellWord, HeaderWord, LOGS, SLOTS, VersionTable, cells};
use crate::work_dir::WorkDir;

/// Reads all cells of a file through the cache; cells beyond its end are zero.
fn whole(instance: &Arc<Instance>, work_dir: &WorkDir, number: u32) -> Result<Vec<u8>> {
    let file = open(instance, work_dir, number)?;
    let mut bytes = vec![0; file.len()? as usize];
    let got = file.read_at(0, &mut bytes)?;
    ensure!(got == bytes.len(), "{got} bytes of {} were read", bytes.len());
    Ok(bytes)
}

fn cell(bytes: &[u8], cell: u32) -> [u8; CELL] {
    let mut there = [0; CELL];
    let piece = bytes.get(cell as usize * CELL..).unwrap_or_default();
    let len = piece.len().min(CELL);
    there[..len].copy_from_slice(&piece[..len]);
    there
}

/// Verifies that each cell has a legal version, not older than this word's.
fn cells_are(table: &VersionTable, number: u32, bytes: &[u8], oldest: CellWord) -> Result<()> {
    for n in 0..cells(number) {
        let version = table.get(number, n, oldest);
        let found = verify_cell(table, Stamp { file: number, cell: n, version }, &cell(bytes, n))?;
        // Versions seen now must not go back; lost versions may.
        table.cell(number, n, CellWord::Acked).store(found, SeqCst);
        table.cell(number, n, CellWord::Seen).store(found, SeqCst);
    }
    Ok(())
}

/// Verifies that each log record is at its acknowledged position, once, in the order of its writer.
fn logs_are(table: &VersionTable, log: u64, bytes: &[u8], only_synced: bool) -> Result<()> {
    let number = LOGS + log as u32;
    let mut last = [0; SLOTS as usize];
    for (at, record) in bytes.chunks(CELL).enumerate() {
        if record.iter().all(|byte| *byte == 0) || record.len() < CELL {
            continue;
        }
        match Stamp::of(record) {
            Some(Stamp { file, cell, version }) if file == number && cell < SLOTS => {
                let last = &mut last[cell as usize];
                ensure!(version > *last, "{number}, record {at}: {version} of writer {cell} after {last}");
                *last = version;
            }
            other => {
                let is_promised = (0..SLOTS).any(|slot| {
                    (0..table.appends(slot)).any(|n| {
                        let append = table.append(slot, n);
                        append.log == log && append.at == Some(at as u64) && (append.is_synced || !only_synced)
                    })
                });
                ensure!(!is_promised, "log {log}, record {at}: {other:?}");
            }
        }
    }
    for slot in 0..SLOTS {
        for n in 0..table.appends(slot) {
            let append = table.append(slot, n);
            let Some(at) = append.at.filter(|_| append.log == log) else { continue };
            let wanted = Stamp { file: number, cell: slot, version: 2 * (n + 1) };
            let found = bytes.get(at as usize * CELL..(at as usize + 1) * CELL);
            if found == Some(&wanted.bytes()[..]) {
                continue;
            }
            if append.is_synced || !only_synced {
                bail!("log {log}, record {at}: {:?}, not {wanted:?}; of {} bytes", found.map(Stamp::of), bytes.len());
            }
            table.forget(slot, n);
        }
    }
    Ok(())
}

/// Returns what the mode guarantees after the loss of all memory: synced data in write-back mode, otherwise written data.
fn promised(mode: Mode) -> CellWord {
    if mode == Mode::WriteBack { CellWord::Synced } else { CellWord::Acked }
}

/// Verifies everything after the loss of all memory.
pub fn after_wipe(work_dir: &WorkDir, table: &VersionTable) -> Result<()> {
    let config = work_dir.config()?;
    let instance = Instance::open(&config)?;
    let oldest = promised(config.mode);
    for number in 0..LOGS {
        let bytes = whole(&instance, work_dir, number)?;
        cells_are(table, number, &bytes, oldest).context("after all memory was lost")?;
    }
    for log in 0..=table.head(HeaderWord::Log).load(SeqCst) {
        let bytes = whole(&instance, work_dir, LOGS + log as u32)?;
        logs_are(table, log, &bytes, config.mode == Mode::WriteBack).context("after all memory was lost")?;
    }
    instance.check().context("after all memory was lost")?;
    instance.detach().context("after all memory was lost")
}

/// Verifies everything after all processes have detached.
pub fn at_the_end(work_dir: &WorkDir, table: &VersionTable) -> Result<()> {
    let config = work_dir.config()?;
    let segment = Instance::segment_path(&config);
    ensure!(
        !segment.exists(),
        "the segment is still there: {:?}",
        Instance::look(&config).map(|status| status.map(|status| status.processes))
    );
    ensure!(!segment.with_extension("lock").exists(), "the lock file is still there");
    let logs = 0..=table.head(HeaderWord::Log).load(SeqCst);
    for number in 0..LOGS {
        let below = std::fs::read(work_dir.file(number)).unwrap_or_default();
        cells_are(table, number, &below, CellWord::Acked).context("in the backing files")?;
    }
    for log in logs.clone() {
        let below = std::fs::read(work_dir.file(LOGS + log as u32)).unwrap_or_default();
        logs_are(table, log, &below, false).context("in the backing files")?;
    }
    if let Some(ssd) = &config.ssd {
        let checked = cachedfs::image::check(ssd, false, &mut |_, _| ())?;
        ensure!(checked.findings.is_empty() && checked.contents.dirty_pages == 0, "the SSD: {checked:?}");
    }
    let instance = Instance::open(&config)?;
    for number in (0..LOGS).chain(logs.map(|log| LOGS + log as u32)) {
        let through = whole(&instance, work_dir, number)?;
        ensure!(through == std::fs::read(work_dir.file(number))?, "file {number} differs between cache and backing file");
    }
    instance.check().context("at the end")?;
    let status = instance.status();
    ensure!(status.processes.len() == 1 && status.lost.is_empty() && status.dirty_bytes == 0, "at the end: {status:?}");
    instance.detach().context("at the end")?;
    ensure!(!segment.exists(), "the last process to detach left the segment");
    Ok(())
}
