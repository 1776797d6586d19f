//! Least recently used first: the paper's default.

use crate::list::Queues;
use crate::{FileId, Policy, Record};

/// One queue; an open takes a file to its tail.
///
/// `insert` puts a file at the tail whatever its time: who restores a history feeds the oldest first.
#[derive(Debug, Default)]
pub struct Lru {
    files: Queues,
}

impl Lru {
    /// An empty queue.
    pub fn new() -> Lru {
        Lru::default()
    }
}

impl Policy for Lru {
    fn name(&self) -> &str {
        "lru"
    }

    fn insert(&mut self, record: Record) {
        match self.files.get_mut(record.file) {
            Some(known) => known.size = record.size,
            None => self.files.push(0, record),
        }
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        if let Some(record) = self.files.get_mut(file) {
            record.last_open_s = now_s;
            record.opens = record.opens.saturating_add(1);
            self.files.send_to_tail(file, 0);
        }
    }

    fn resize(&mut self, file: FileId, size: u64) {
        if let Some(record) = self.files.get_mut(file) {
            record.size = size;
        }
    }

    fn remove(&mut self, file: FileId) {
        self.files.remove(file);
    }

    fn victim(&mut self, limit: usize, usable: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        self.files.iter(0).take(limit).map(|record| record.file).find(|file| usable(*file))
    }

    fn record(&self, file: FileId) -> Option<Record> {
        self.files.get(file).copied()
    }

    /// By time: the share of the span between the oldest and the newest open.
    fn rank(&self, file: FileId) -> Option<f64> {
        let record = self.files.get(file)?;
        let oldest = self.files.head(0)?.last_open_s;
        Some(share_of_span(oldest, record.last_open_s))
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn export(&self, each: &mut dyn FnMut(Record)) {
        self.files.iter(0).for_each(each);
    }
}

/// Where a time lies between the oldest one known and an hour after it, flattening out later.
fn share_of_span(oldest_s: u32, at_s: u32) -> f64 {
    let age = f64::from(at_s.saturating_sub(oldest_s));
    age / (age + 3600.0)
}
