//! First in, first out: the order in which files came, whatever was opened since. The baseline of every comparison.

use crate::list::Queues;
use crate::{FileId, Policy, Record};

/// Evicts files in the order in which they arrived.
#[derive(Debug, Default)]
pub struct Fifo {
    files: Queues,
}

impl Fifo {
    /// Creates a policy that knows no files.
    pub fn new() -> Fifo {
        Fifo::default()
    }
}

impl Policy for Fifo {
    fn name(&self) -> &str {
        "fifo"
    }

    fn insert(&mut self, record: Record) {
        self.files.insert(0, record);
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        self.files.record_open(file, now_s);
    }

    fn resize(&mut self, file: FileId, size: u64) {
        self.files.resize(file, size);
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

    /// By the place in the queue.
    fn rank(&self, file: FileId) -> Option<f64> {
        let at = self.files.iter(0).position(|record| record.file == file)?;
        Some(at as f64 / self.files.len() as f64)
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn export(&self, each: &mut dyn FnMut(Record)) {
        self.files.iter(0).for_each(each);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::oracle::{Oracle, check, ops};

    /// The files, the next victim first.
    #[derive(Default)]
    struct Model(Vec<Record>);

    impl Oracle for Model {
        fn insert(&mut self, record: Record) {
            self.0.push(record);
        }

        fn touch(&mut self, file: FileId, now_s: u32) {
            let record = self.0.iter_mut().find(|record| record.file == file).expect("known");
            (record.last_open_s, record.opens) = (now_s, record.opens.saturating_add(1));
        }

        fn records(&mut self) -> Vec<&mut Record> {
            self.0.iter_mut().collect()
        }

        fn remove(&mut self, file: FileId) {
            self.0.retain(|record| record.file != file);
        }

        fn order(&self) -> Vec<Record> {
            self.0.clone()
        }
    }

    proptest::proptest! {
        #[test]
        fn leaves_as_it_came(ops in ops()) {
            check(&ops, Fifo::new, Model::default());
        }
    }
}
