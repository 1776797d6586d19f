//! Least frequently used first; among equals, least recently used first (the paper's second policy).
//!
//! One queue per frequency: the number of opens, at least 1 and at most 255. When the files have been opened
//! ten times as often as there are files (and 10 000 times at least), all frequencies are halved, so that
//! yesterday's favourites do not stay for ever; halving keeps the order.

use crate::list::Queues;
use crate::{FileId, Policy, Record};

const TOP: u16 = 255;
/// Fewer files than this are not halved more often.
const FILES_MIN: usize = 1000;
const OPENS_PER_FILE: u64 = 10;

/// Evicts the file with the fewest opens, by frequency queues.
#[derive(Debug, Default)]
pub struct Lfu {
    files: Queues,
    touches: u64,
}

impl Lfu {
    /// Creates a policy that knows no files.
    pub fn new() -> Lfu {
        Lfu::default()
    }

    fn halve(&mut self) {
        for queue in 0..self.files.queues() {
            let records: Vec<Record> = self.files.iter(queue).collect();
            for record in records {
                // From the frequency, not from the count: what was opened 60 000 times would stay for long.
                let opens = (record.opens.min(TOP) / 2).max(1);
                if let Some(known) = self.files.get_mut(record.file) {
                    known.opens = opens;
                }
                self.files.send_to_tail(record.file, queue_for(opens));
            }
        }
    }
}

fn queue_for(opens: u16) -> u32 {
    u32::from(opens.min(TOP))
}

impl Policy for Lfu {
    fn name(&self) -> &str {
        "lfu"
    }

    fn insert(&mut self, record: Record) {
        let record = Record { opens: record.opens.max(1), ..record };
        self.files.insert(queue_for(record.opens), record);
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        let Some(record) = self.files.record_open(file, now_s) else { return };
        self.files.send_to_tail(file, queue_for(record.opens));
        self.touches += 1;
        if self.touches > OPENS_PER_FILE * self.files.len().max(FILES_MIN) as u64 {
            self.touches = 0;
            self.halve();
        }
    }

    fn resize(&mut self, file: FileId, size: u64) {
        self.files.resize(file, size);
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

    /// By frequency: the share of files in lower queues, plus half of those in the same queue.
    fn rank(&self, file: FileId) -> Option<f64> {
        let queue = self.files.queue_of(file)?;
        let rarer: usize = (0..queue).map(|lower| self.files.queue_len(lower)).sum();
        Some((rarer as f64 + self.files.queue_len(queue) as f64 / 2.0) / self.files.len() as f64)
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn export(&self, each: &mut dyn FnMut(Record)) {
        (0..self.files.queues()).flat_map(|queue| self.files.iter(queue)).for_each(each);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::oracle::{Op, Oracle, check, ops, run};

    /// The files, the longest not opened first, until halving puts the less frequent first.
    #[derive(Default)]
    struct Model {
        files: Vec<Record>,
        touches: usize,
    }

    impl Oracle for Model {
        fn insert(&mut self, record: Record) {
            self.files.push(Record { opens: record.opens.max(1), ..record });
        }

        fn touch(&mut self, file: FileId, now_s: u32) {
            let at = self.files.iter().position(|record| record.file == file).expect("known");
            let record = self.files.remove(at);
            self.files.push(Record { last_open_s: now_s, opens: record.opens.saturating_add(1), ..record });
            self.touches += 1;
            if self.touches > 10 * self.files.len().max(1000) {
                self.touches = 0;
                self.files = self.order();
                for record in &mut self.files {
                    record.opens = (record.opens.min(255) / 2).max(1);
                }
            }
        }

        fn records(&mut self) -> Vec<&mut Record> {
            self.files.iter_mut().collect()
        }

        fn remove(&mut self, file: FileId) {
            self.files.retain(|record| record.file != file);
        }

        fn order(&self) -> Vec<Record> {
            let mut files = self.files.clone();
            // Stable: among equals the longest not opened stays first.
            files.sort_by_key(|record| record.opens.min(255));
            files
        }
    }

    proptest::proptest! {
        #[test]
        fn leaves_as_a_sorted_list_would(ops in ops()) {
            check(&ops, Lfu::new, Model::default());
        }
    }

    #[test]
    fn yesterdays_favourite_is_overtaken() {
        let mut ops = vec![Op::insert(1), Op::Touch { file: 1, later_s: 0, times: 9000 }, Op::insert(2)];
        // The first halving comes after 10 000 opens; the new favourite has 255 opens after it.
        ops.push(Op::Touch { file: 2, later_s: 1, times: 1500 });
        let lfu = run(&ops, Lfu::new, &mut Model::default());
        assert_eq!(lfu.record(FileId(1)).map(|record| record.opens), Some(127));
        assert!(lfu.rank(FileId(1)) < lfu.rank(FileId(2)));
    }
}
