//! S3-FIFO: a small queue for newcomers, a main queue for those opened again (Yang et al., SOSP 2023).
//!
//! Newcomers wait in the small queue. While it has more than a tenth of the files (or the main queue none), the
//! next to leave comes from it: what reaches its head having been opened there goes to the main queue, what has
//! not leaves. Otherwise the main queue's head leaves; one that was opened gets another round for each open, at
//! most three. Going to the main queue costs the opens so far.
//!
//! Other than in the paper:
//! - One open in the small queue is enough, not two: a file is opened far more seldom than a block is read.
//! - The tenth is of the files there are, not of a capacity: victims are requested, it does not wait until it is full.
//! - The ghost queue is [`Ghost`](crate::Ghost), kept by the caller: a file that is inserted with more than one open
//!   was seen before and goes to the main queue at once.
//! - A file that cannot leave now (in use, pinned) stays where it is and does not count, as if it were not there;
//!   so one such file at a head does not stop the queue.
//!
//! Sizes do not count: what a file costs on the SSD is paid in bytes, but what a wrong choice costs is one move,
//! whatever its size.

use std::collections::VecDeque;

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
    /// Creates a policy that knows no files.
    pub fn new() -> S3Fifo {
        S3Fifo::default()
    }

    fn rounds(&self, file: FileId) -> u16 {
        self.rounds.get(&file).copied().unwrap_or(0)
    }

    /// Takes a round from a file that has one, and the file to the tail of the main queue.
    fn moves_on(&mut self, queue: u32, file: FileId) -> bool {
        let Some(rounds) = self.rounds.remove(&file) else { return false };
        let left = if queue == SMALL { 0 } else { rounds - 1 };
        if left > 0 {
            self.rounds.insert(file, left);
        }
        self.files.send_to_tail(file, MAIN)
    }

    /// All files, in the order in which they would leave if nothing were opened any more.
    fn order(&self) -> impl Iterator<Item = Record> {
        let queue = |queue| self.files.iter(queue).map(|record| (record, self.rounds(record.file))).collect::<VecDeque<_>>();
        let (mut small, mut main) = (queue(SMALL), queue(MAIN));
        std::iter::from_fn(move || {
            loop {
                let newcomer = turn(small.len(), main.len()) == SMALL;
                let (record, rounds) = if newcomer { small.pop_front() } else { main.pop_front() }?;
                match rounds {
                    0 => return Some(record),
                    _ => main.push_back((record, if newcomer { 0 } else { rounds - 1 })),
                }
            }
        })
    }
}

/// The queue whose head is to be looked at.
fn turn(small: usize, main: usize) -> u32 {
    if small > 0 && (main == 0 || small * 10 > small + main) { SMALL } else { MAIN }
}

impl Policy for S3Fifo {
    fn name(&self) -> &str {
        "s3-fifo"
    }

    fn insert(&mut self, record: Record) {
        // What was opened before (a promoted or remembered file) is no newcomer.
        self.files.insert(if record.opens > 1 { MAIN } else { SMALL }, record);
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        if self.files.record_open(file, now_s).is_some() {
            let rounds = self.rounds.entry(file).or_insert(0);
            *rounds = (*rounds + 1).min(ROUNDS_MAX);
        }
    }

    fn resize(&mut self, file: FileId, size: u64) {
        self.files.resize(file, size);
    }

    fn remove(&mut self, file: FileId) {
        self.files.remove(file);
        self.rounds.remove(&file);
    }

    fn victim(&mut self, limit: usize, usable: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        // The files passed at each head: how many, and the last of them.
        let mut passed: [(usize, Option<FileId>); 2] = [(0, None); 2];
        for _ in 0..limit {
            // Each step but the last takes a round from some file: it ends.
            let (queue, file) = loop {
                let left = |queue: u32| self.files.queue_len(queue) - passed[queue as usize].0;
                let queue = turn(left(SMALL), left(MAIN));
                let next = match passed[queue as usize].1 {
                    Some(last) => self.files.behind(last),
                    None => self.files.head(queue),
                };
                let file = next?.file;
                if !self.moves_on(queue, file) {
                    break (queue, file);
                }
            };
            if usable(file) {
                return Some(file);
            }
            let (count, last) = &mut passed[queue as usize];
            (*count, *last) = (*count + 1, Some(file));
        }
        None
    }

    fn record(&self, file: FileId) -> Option<Record> {
        self.files.get(file).copied()
    }

    /// By the place in the whole order.
    fn rank(&self, file: FileId) -> Option<f64> {
        self.files.get(file)?;
        let place = self.order().position(|record| record.file == file)?;
        Some(place as f64 / self.files.len() as f64)
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn export(&self, each: &mut dyn FnMut(Record)) {
        self.order().for_each(each);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::oracle::{Op, Oracle, check, is_usable, ops, run};

    type Queue = VecDeque<(Record, u16)>;

    /// The published algorithm, as printed there but for the differences told above.
    #[derive(Clone, Default)]
    struct Model {
        small: Queue,
        main: Queue,
    }

    impl Model {
        fn all(&mut self) -> impl Iterator<Item = &mut (Record, u16)> {
            self.small.iter_mut().chain(&mut self.main)
        }

        /// Takes the next to leave out, and tells whether from the small queue.
        fn evict(&mut self) -> Option<(bool, Record)> {
            let tenth = (self.small.len() + self.main.len()) as f64 / 10.0;
            while !self.small.is_empty() && (self.small.len() as f64 > tenth || self.main.is_empty()) {
                match self.small.pop_front()? {
                    (record, 0) => return Some((true, record)),
                    (record, _) => self.main.push_back((record, 0)),
                }
            }
            loop {
                match self.main.pop_front()? {
                    (record, 0) => return Some((false, record)),
                    (record, rounds) => self.main.push_back((record, rounds - 1)),
                }
            }
        }
    }

    impl Oracle for Model {
        fn insert(&mut self, record: Record) {
            let queue = if record.opens > 1 { &mut self.main } else { &mut self.small };
            queue.push_back((record, 0));
        }

        fn touch(&mut self, file: FileId, now_s: u32) {
            let (record, rounds) = self.all().find(|(record, _)| record.file == file).expect("known");
            record.last_open_s = now_s;
            record.opens = record.opens.saturating_add(1);
            *rounds = (*rounds + 1).min(3);
        }

        fn records(&mut self) -> Vec<&mut Record> {
            self.all().map(|(record, _)| record).collect()
        }

        fn remove(&mut self, file: FileId) {
            self.small.retain(|(record, _)| record.file != file);
            self.main.retain(|(record, _)| record.file != file);
        }

        fn order(&self) -> Vec<Record> {
            let mut rest = self.clone();
            std::iter::from_fn(|| rest.evict()).map(|(_, record)| record).collect()
        }

        fn victim(&mut self, limit: usize, usable: u64) -> (Option<FileId>, Vec<FileId>) {
            let mut aside = Vec::new();
            let mut victim = None;
            while victim.is_none() && aside.len() < limit {
                let Some((newcomer, record)) = self.evict() else { break };
                aside.push((newcomer, record));
                victim = Some(record.file).filter(|file| is_usable(usable, *file));
            }
            // Back to where they were: nobody has left yet.
            for (newcomer, record) in aside.iter().rev() {
                let queue = if *newcomer { &mut self.small } else { &mut self.main };
                queue.push_front((*record, 0));
            }
            (victim, aside.iter().map(|(_, record)| record.file).collect())
        }

        fn determined_by_records(&self) -> bool {
            self.small.iter().all(|(record, rounds)| record.opens <= 1 && *rounds == 0)
                && self.main.iter().all(|(record, _)| record.opens > 1)
        }
    }

    proptest::proptest! {
        #[test]
        fn leaves_as_published(ops in ops()) {
            check(&ops, S3Fifo::new, Model::default());
        }
    }

    fn order(policy: &S3Fifo) -> Vec<u64> {
        policy.order().map(|record| record.file.0).collect()
    }

    fn opened_before(file: u64) -> Op {
        Op::Insert(Record { file: FileId(file), size: 1, last_open_s: 0, opens: 2 })
    }

    #[test]
    fn one_pass_over_many_files_leaves_the_main_queue_alone() {
        let mut ops: Vec<Op> = (0..20).map(opened_before).collect();
        ops.extend((20..40).map(Op::insert));
        let policy = run(&ops, S3Fifo::new, &mut Model::default());
        assert_eq!(order(&policy)[..17], (20..37).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_that_cannot_leave_does_not_expose_those_behind_it() {
        let ops = [Op::insert(0), Op::insert(1), Op::insert(2), Op::touch(1)];
        let mut policy = run(&ops, S3Fifo::new, &mut Model::default());
        // 1 has earned its place in the main queue, whatever 0 does.
        assert_eq!(policy.victim(4096, &mut |file| file != FileId(0)), Some(FileId(2)));
        assert_eq!(order(&policy), [0, 2, 1]);
    }
}
