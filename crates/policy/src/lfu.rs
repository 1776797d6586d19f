//! Least frequently used first; among equals, least recently used first (the paper's second policy).
//!
//! One queue per frequency, up to 255 opens. When the files have been opened ten times as often as there
//! are files, all frequencies are halved, so that yesterday's favourites do not stay for ever; halving
//! keeps the order among equals.

use crate::list::Queues;
use crate::{FileId, Policy, Record};

const TOP: u32 = 255;

/// Frequency queues.
#[derive(Debug, Default)]
pub struct Lfu {
    files: Queues,
    touches: u64,
}

impl Lfu {
    /// No files.
    pub fn new() -> Lfu {
        Lfu::default()
    }

    fn halve(&mut self) {
        for queue in 0..self.files.queues() {
            let records: Vec<Record> = self.files.iter(queue).collect();
            for record in records {
                let opens = (record.opens / 2).max(1);
                if let Some(known) = self.files.get_mut(record.file) {
                    known.opens = opens;
                }
                self.files.send_to_tail(record.file, u32::from(opens).min(TOP));
            }
        }
    }
}

impl Policy for Lfu {
    fn name(&self) -> &str {
        "lfu"
    }

    fn insert(&mut self, record: Record) {
        match self.files.get_mut(record.file) {
            Some(known) => known.size = record.size,
            None => {
                let record = Record { opens: record.opens.max(1), ..record };
                self.files.push(u32::from(record.opens).min(TOP), record);
            }
        }
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        let Some(record) = self.files.get_mut(file) else { return };
        record.last_open_s = now_s;
        record.opens = record.opens.saturating_add(1);
        let queue = u32::from(record.opens).min(TOP);
        self.files.send_to_tail(file, queue);
        self.touches += 1;
        if self.touches > 10 * self.files.len().max(1000) as u64 {
            self.touches = 0;
            self.halve();
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
        let queues = 0..self.files.queues();
        let order = queues.flat_map(|queue| self.files.iter(queue));
        order.take(limit).map(|record| record.file).find(|file| usable(*file))
    }

    fn record(&self, file: FileId) -> Option<Record> {
        self.files.get(file).copied()
    }

    /// By frequency: the share of files in lower queues, plus half of its own.
    fn rank(&self, file: FileId) -> Option<f64> {
        let queue = self.files.queue_of(file)?;
        let below: usize = (0..queue).map(|lower| self.files.queue_len(lower)).sum();
        Some((below as f64 + self.files.queue_len(queue) as f64 / 2.0) / self.files.len() as f64)
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn export(&self, each: &mut dyn FnMut(Record)) {
        (0..self.files.queues()).flat_map(|queue| self.files.iter(queue)).for_each(each);
    }
}
