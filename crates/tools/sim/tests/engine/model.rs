//! What a reader may see: for each cell of 512 bytes, the values since the last sync, and likewise for the length.

use std::collections::BTreeMap;

pub const CELL: usize = 512;
/// Maximum number of cells of a file.
pub const CELLS: usize = 24 * 8;

/// Returns bytes that identify file, cell and version; version 0 is zeroes.
pub fn cell_bytes(file: u64, cell: usize, version: u64) -> [u8; CELL] {
    let mut bytes = [0; CELL];
    if version > 0 {
        for chunk in bytes.chunks_mut(32) {
            for (to, value) in chunk.chunks_mut(8).zip([version, file, cell as u64, !version]) {
                to.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    bytes
}

fn version_of(bytes: &[u8], file: u64, cell: usize) -> u64 {
    let version = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
    assert!(
        bytes == &cell_bytes(file, cell, version)[..bytes.len()],
        "file {file} cell {cell}: bytes of another place, or of two versions"
    );
    version
}

/// One file as its users know it.
#[derive(Clone)]
pub struct File {
    /// Values since the last sync; the last one is the current one.
    cells: Vec<Vec<u64>>,
    lengths: Vec<usize>,
}

impl Default for File {
    fn default() -> File {
        File { cells: vec![vec![0]; CELLS], lengths: vec![0] }
    }
}

impl File {
    /// Returns the length in cells.
    pub fn len(&self) -> usize {
        *self.lengths.last().expect("a length")
    }

    pub fn write(&mut self, cells: std::ops::Range<usize>, version: u64) {
        cells.clone().for_each(|cell| self.cells[cell].push(version));
        if cells.end > self.len() {
            self.lengths.push(cells.end);
        }
    }

    pub fn truncate(&mut self, len: usize) {
        let before = self.len();
        (len.min(before)..before.max(len)).for_each(|cell| self.cells[cell].push(0));
        self.lengths.push(len);
    }

    pub fn punch(&mut self, cells: std::ops::Range<usize>) {
        cells.for_each(|cell| self.cells[cell].push(0));
    }

    /// Records that the current state is durable.
    pub fn synced(&mut self) {
        self.cells.iter_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
        self.lengths.drain(..self.lengths.len() - 1);
    }

    /// Verifies that a reader sees exactly the current state.
    pub fn check_now(&self, file: u64, bytes: &[u8], first: usize) {
        for (n, bytes) in bytes.chunks(CELL).enumerate() {
            let cell = first + n;
            assert_eq!(version_of(bytes, file, cell), *self.cells[cell].last().expect("a value"), "file {file} cell {cell}");
        }
    }

    /// Verifies a legal state after a crash, which becomes the current one.
    pub fn check_crashed(&mut self, file: u64, bytes: &[u8], in_pieces: bool) {
        assert!(bytes.len().is_multiple_of(CELL), "file {file}: a length of {} bytes", bytes.len());
        let len = bytes.len() / CELL;
        // Without an SSD a long write is written back in pieces, and so is the length.
        let within = self.lengths.iter().min() <= Some(&len) && Some(&len) <= self.lengths.iter().max();
        assert!(if in_pieces { within } else { self.lengths.contains(&len) }, "file {file}: {len} cells long, not {:?}", self.lengths);
        let is_growing = self.lengths.len() > 1;
        for (cell, values) in self.cells.iter_mut().enumerate() {
            let version = bytes.get(cell * CELL..(cell + 1) * CELL).map_or(0, |bytes| version_of(bytes, file, cell));
            // A length reached without its bytes shows zeroes.
            let is_right = cell >= len || values.contains(&version) || (version == 0 && is_growing);
            assert!(is_right, "file {file} cell {cell}: version {version} of {values:?}, lengths {:?}", self.lengths);
            *values = vec![version];
        }
        self.lengths = vec![len];
    }
}

impl File {
    /// Verifies the state after a process died during a call, without a power cut: earlier calls are complete, and the call was done
    /// completely, in part, or not at all. `before`: the state before the call.
    pub fn check_died(&mut self, file: u64, bytes: &[u8], before: &File) {
        let len = bytes.len() / CELL;
        let (least, most) = (self.len().min(before.len()), self.len().max(before.len()));
        assert!((least..=most).contains(&len), "file {file}: {len} cells, not {} or {}", self.len(), before.len());
        for cell in 0..CELLS {
            let version = bytes.get(cell * CELL..(cell + 1) * CELL).map_or(0, |bytes| version_of(bytes, file, cell));
            let (old, new) = (before.cells[cell].last(), self.cells[cell].last());
            let is_right = cell >= len || Some(&version) == old || Some(&version) == new;
            assert!(is_right, "file {file} cell {cell}: version {version}, not {old:?} or {new:?}");
            self.cells[cell].push(version);
        }
        self.lengths.push(len);
    }
}

/// All files, by key.
pub type Files = BTreeMap<u64, File>;
