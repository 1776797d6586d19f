//! Least recently used first: the paper's default.

use crate::list::Queues;
use crate::{FileId, Policy, Record};

/// One queue; an open takes a file to its tail.
///
/// `insert` puts a file at the tail whatever its time: a caller that restores a history inserts the oldest first.
#[derive(Debug, Default)]
pub struct Lru {
    files: Queues,
}

impl Lru {
    /// Creates a policy that knows no files.
    pub fn new() -> Lru {
        Lru::default()
    }
}

impl Policy for Lru {
    fn name(&self) -> &str {
        "lru"
    }

    fn insert(&mut self, record: Record) {
        self.files.insert(0, record);
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        if self.files.record_open(file, now_s).is_some() {
            self.files.send_to_tail(file, 0);
        }
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

    /// By time: where its last open lies between those of the first and the last to leave.
    fn rank(&self, file: FileId) -> Option<f64> {
        let at = self.files.get(file)?.last_open_s;
        let oldest = self.files.head(0)?.last_open_s;
        let span = self.files.tail(0)?.last_open_s.saturating_sub(oldest);
        let age = at.saturating_sub(oldest).min(span);
        Some(f64::from(age) / f64::from(span.max(1)))
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
    use crate::oracle::{Op, Oracle, check, ops, run};

    /// The files, the next victim first.
    #[derive(Default)]
    struct Model(Vec<Record>);

    impl Oracle for Model {
        fn insert(&mut self, record: Record) {
            self.0.push(record);
        }

        fn touch(&mut self, file: FileId, now_s: u32) {
            let at = self.0.iter().position(|record| record.file == file).expect("known");
            let record = self.0.remove(at);
            self.0.push(Record { last_open_s: now_s, opens: record.opens.saturating_add(1), ..record });
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
        fn leaves_as_a_plain_list_would(ops in ops()) {
            check(&ops, Lru::new, Model::default());
        }
    }

    #[test]
    fn an_open_saves_a_file() {
        let ops = [Op::insert(1), Op::insert(2), Op::insert(3), Op::touch(1), Op::touch(3)];
        let lru = run(&ops, Lru::new, &mut Model::default());
        let mut order = Vec::new();
        lru.export(&mut |record| order.push(record.file.0));
        assert_eq!(order, [2, 1, 3]);
    }

    #[test]
    fn ranks_spread_over_the_span() {
        let mut lru = Lru::new();
        for (file, last_open_s) in [(1, 1000), (2, 1500), (3, 2000)] {
            lru.insert(Record { file: FileId(file), size: 1, last_open_s, opens: 1 });
        }
        assert_eq!([1, 2, 3, 4].map(|file| lru.rank(FileId(file))), [Some(0.0), Some(0.5), Some(1.0), None]);
    }
}
