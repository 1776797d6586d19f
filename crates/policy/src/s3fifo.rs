//! S3-FIFO: a small queue for newcomers, a main queue for those opened again (Yang et al., SOSP 2023).
//!
//! Newcomers wait in the small queue, which gets a tenth of the files. What reaches its head having been
//! opened there goes to the main queue; what has not leaves. In the main queue a file that was opened gets
//! another round for each open, at most three. Sizes do not count: what a file costs on the SSD is paid in
//! bytes, but what a wrong choice costs is one move, whatever its size.

use crate::list::Queues;
use crate::{FileId, Policy, Record};

const SMALL: u32 = 0;
const MAIN: u32 = 1;
const ROUNDS_MAX: u16 = 3;

/// Both queues. The rounds left are kept beside the record, in `rounds`.
#[derive(Debug, Default)]
pub struct S3Fifo {
    files: Queues,
    rounds: hashbrown::HashMap<FileId, u16>,
}

impl S3Fifo {
    /// No files.
    pub fn new() -> S3Fifo {
        S3Fifo::default()
    }

    fn rounds(&self, file: FileId) -> u16 {
        self.rounds.get(&file).copied().unwrap_or(0)
    }

    /// The queue whose head is to be looked at.
    fn turn(&self) -> u32 {
        let small = self.files.queue_len(SMALL);
        let over = small * 10 > self.files.len() || self.files.queue_len(MAIN) == 0;
        if over && small > 0 { SMALL } else { MAIN }
    }

    /// Moves heads that have earned it on, until one has not.
    fn settle(&mut self) {
        // Every step takes a round from some file or a file from the small queue: it ends.
        let steps = self.files.len() * (usize::from(ROUNDS_MAX) + 1) + 1;
        for _ in 0..steps {
            let queue = self.turn();
            let Some(head) = self.files.head(queue) else { return };
            match self.rounds(head.file) {
                0 => return,
                _ if queue == SMALL => {
                    self.rounds.remove(&head.file);
                }
                1 => {
                    self.rounds.remove(&head.file);
                }
                left => {
                    self.rounds.insert(head.file, left - 1);
                }
            }
            self.files.send_to_tail(head.file, MAIN);
        }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &str {
        "s3-fifo"
    }

    fn insert(&mut self, record: Record) {
        match self.files.get_mut(record.file) {
            Some(known) => known.size = record.size,
            // What was opened before (a promoted or remembered file) is no newcomer.
            None => self.files.push(if record.opens > 1 { MAIN } else { SMALL }, record),
        }
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        if let Some(record) = self.files.get_mut(file) {
            record.last_open_s = now_s;
            record.opens = record.opens.saturating_add(1);
            let rounds = self.rounds.entry(file).or_insert(0);
            *rounds = (*rounds + 1).min(ROUNDS_MAX);
        }
    }

    fn resize(&mut self, file: FileId, size: u64) {
        if let Some(record) = self.files.get_mut(file) {
            record.size = size;
        }
    }

    fn remove(&mut self, file: FileId) {
        self.files.remove(file);
        self.rounds.remove(&file);
    }

    fn victim(&mut self, limit: usize, usable: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        self.settle();
        let first = self.turn();
        let order = self.files.iter(first).chain(self.files.iter(1 - first));
        order.take(limit).map(|record| record.file).find(|file| usable(*file))
    }

    fn record(&self, file: FileId) -> Option<Record> {
        self.files.get(file).copied()
    }

    /// By queue and rounds left: newcomers below 0.5, the main queue above.
    fn rank(&self, file: FileId) -> Option<f64> {
        let queue = self.files.queue_of(file)?;
        let rounds = f64::from(self.rounds(file)) / f64::from(ROUNDS_MAX);
        Some(if queue == SMALL { rounds * 0.5 } else { 0.5 + rounds * 0.5 })
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn export(&self, each: &mut dyn FnMut(Record)) {
        self.files.iter(SMALL).chain(self.files.iter(MAIN)).for_each(each);
    }
}
