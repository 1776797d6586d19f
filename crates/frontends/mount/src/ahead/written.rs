//! Files that were written and not asked for since.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Numbers that are kept in all, at most: 2 MiB of them. The directory that was written first is forgotten first.
const KEPT_MAX: usize = 1 << 18;
/// What a directory counts for, in numbers.
const DIRECTORY: usize = 8;
/// So many files of one directory asked for, and of no other between them, say that more will be.
const ASKED_MIN: usize = 16;
/// So many must be left to tell.
const LEFT_MIN: usize = 32;

/// By directory, in the order in which they were written.
#[derive(Debug, Default)]
pub struct WriteOutcome {
    state: Mutex<State>,
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    dirs: HashMap<u64, VecDeque<u64>>,
    /// The directories, oldest first.
    order: VecDeque<u64>,
    kept: usize,
    /// The directory that was asked for last, and how often in a row.
    row: (u64, usize),
}

impl WriteOutcome {
    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// A file was written.
    pub fn add(&self, dir: u64, ino: u64) {
        let mut state = self.state.lock();
        while state.kept >= KEPT_MAX {
            let Some(oldest) = state.order.pop_front() else { break };
            state.forget(oldest);
        }
        if !state.dirs.contains_key(&dir) {
            state.order.push_back(dir);
            state.kept += DIRECTORY;
        }
        let files = state.dirs.entry(dir).or_default();
        if files.back() != Some(&ino) {
            files.push_back(ino);
            state.kept += 1;
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// A file was asked for. True: it is time to tell the rest of its directory.
    pub fn asked(&self, dir: u64, ino: u64) -> bool {
        let mut state = self.state.lock();
        let in_row = if state.row.0 == dir { state.row.1 + 1 } else { 1 };
        let Some(files) = state.dirs.get_mut(&dir) else {
            state.row = (dir, 0);
            return false;
        };
        // One after the other as they were written, or each as soon as it was: then nothing is left to tell.
        let known = if files.front() == Some(&ino) {
            files.pop_front()
        } else if files.back() == Some(&ino) {
            files.pop_back()
        } else {
            None
        };
        let left = files.len();
        state.kept -= usize::from(known.is_some());
        let now = in_row >= ASKED_MIN && left >= LEFT_MIN;
        state.row = (dir, if now { 0 } else { in_row });
        now
    }

    /// All that is kept of a directory; it is forgotten.
    pub fn take(&self, dir: u64) -> VecDeque<u64> {
        let mut state = self.state.lock();
        state.order.retain(|it| *it != dir);
        let files = state.forget(dir);
        self.any.store(!state.dirs.is_empty(), Ordering::Relaxed);
        files
    }
}

impl State {
    fn forget(&mut self, dir: u64) -> VecDeque<u64> {
        let Some(files) = self.dirs.remove(&dir) else { return VecDeque::new() };
        self.kept -= DIRECTORY + files.len();
        files
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn with_files(dir: u64, files: std::ops::Range<u64>) -> WriteOutcome {
        let written = WriteOutcome::default();
        files.for_each(|ino| written.add(dir, ino));
        written
    }

    #[test]
    fn a_row_of_questions_brings_the_rest() {
        let written = with_files(7, 100..200);
        assert!((100..115).all(|ino| !written.asked(7, ino)), "too soon");
        assert!(written.asked(7, 115));
        assert_eq!(written.take(7), (116..200).collect::<VecDeque<_>>());
        assert!(written.is_empty());
        assert!((116..200).all(|ino| !written.asked(7, ino)), "nothing is left");
    }

    #[test]
    fn another_directory_between_begins_the_row_anew() {
        let written = with_files(7, 100..200);
        for ino in 100..130 {
            assert!(!written.asked(7, ino));
            assert!(!written.asked(8, 1));
        }
        assert_eq!(written.take(7).len(), 70);
    }

    #[test]
    fn any_order_will_do() {
        let written = with_files(7, 100..200);
        assert_eq!((100..116).rev().filter(|ino| written.asked(7, ino + 50)).count(), 1);
    }

    #[test]
    fn each_asked_for_as_soon_as_it_is_written_leaves_nothing() {
        let written = WriteOutcome::default();
        for ino in 0..1_000 {
            written.add(7, ino);
            written.add(7, ino);
            assert!(!written.asked(7, ino));
        }
        assert!(written.take(7).is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes() {
        let written = WriteOutcome::default();
        for n in 0..3 * KEPT_MAX as u64 {
            written.add(n / 1000, n);
            if n % 2 == 0 {
                written.add(1_000_000 + n, n);
            }
        }
        let state = written.state.lock();
        let held: usize = state.dirs.values().map(|files| files.len() + DIRECTORY).sum();
        assert_eq!(held, state.kept);
        assert!(state.kept <= KEPT_MAX + DIRECTORY, "{}", state.kept);
        assert_eq!(state.order.len(), state.dirs.len());
        drop(state);
        assert!(written.take(0).is_empty());
        let last = 3 * KEPT_MAX as u64 - 1;
        assert_eq!(written.take(last / 1000).back(), Some(&last));
    }

    #[test]
    fn one_directory_of_more_than_is_kept_has_its_last() {
        let written = with_files(7, 0..KEPT_MAX as u64 + 10);
        let files = written.take(7);
        assert_eq!(files.back(), Some(&(KEPT_MAX as u64 + 9)));
        assert!(!files.is_empty() && files.len() <= KEPT_MAX);
    }
}
