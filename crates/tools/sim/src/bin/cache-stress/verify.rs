//! Compares data that was read with the legal versions.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cells::{CELL, Stamp};
use crate::version_table::{CellWord, VersionTable, cells};

/// How long to wait for the death of a writer, which explains a torn cell.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the oldest legal version of each cell from now on.
pub fn floors(table: &VersionTable, file: u32, first: u32, count: u32) -> Vec<u64> {
    (first..first + count).map(|cell| table.floor(file, cell)).collect()
}

/// Verifies cells that were read; `bytes` is shorter at the end of the file.
pub fn verify_cells(table: &VersionTable, file: u32, first: u32, floors: &[u64], bytes: &[u8]) -> Result<()> {
    for (n, floor) in floors.iter().enumerate() {
        let mut cell = [0; CELL];
        let piece = bytes.get(n * CELL..).unwrap_or_default();
        let len = piece.len().min(CELL);
        cell[..len].copy_from_slice(&piece[..len]);
        let stamp = Stamp { file, cell: first + n as u32, version: *floor };
        let version = verify_cell(table, stamp, &cell)?;
        table.cell(file, stamp.cell, CellWord::Seen).fetch_max(version, SeqCst);
    }
    Ok(())
}

/// Returns the version of a cell if it is legal; for a torn cell, the oldest possible version.
pub fn verify_cell(table: &VersionTable, oldest: Stamp, bytes: &[u8]) -> Result<u64> {
    let Stamp { file, cell, version: floor } = oldest;
    assert!(cell < cells(file), "a cell of that file");
    let begun = table.get(file, cell, CellWord::Started);
    if let Some(found) = Stamp::of(bytes) {
        if (found.file, found.cell) != (file, cell) {
            bail!("file {file}, cell {cell}: there is cell {} of file {}", found.cell, found.file);
        }
        if found.version < floor || found.version > begun {
            bail!("file {file}, cell {cell}: found version {}, expected {floor} to {begun}", found.version);
        }
        return Ok(found.version);
    }
    let is_empty = bytes.iter().all(|byte| *byte == 0);
    // Zeroes do not say which version they are.
    if is_empty && (floor..=begun).any(|version| version % 2 == 1) {
        return Ok(floor);
    }
    let waiting = Instant::now();
    loop {
        let broken = table.get(file, cell, CellWord::Torn);
        if broken > floor && oldest.is_mixed(floor, begun, bytes) {
            return Ok(floor);
        }
        if waiting.elapsed() > TIMEOUT {
            let what = if is_empty { "nothing".to_owned() } else { format!("{:02x?}", &bytes[..32]) };
            let mixed = oldest.is_mixed(floor, begun, bytes);
            bail!("file {file}, cell {cell}: found {what}, expected {floor} to {begun} (torn {broken}; mix of these: {mixed})");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
