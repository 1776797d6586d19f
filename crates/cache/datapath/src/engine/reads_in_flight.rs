//! Reads of backing files that are in flight, so that threads of this process that miss the same pages wait for one read.

use std::ops::Range;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::record::FileNo;

/// How long a thread waits for another one's read. Then it reads by itself: the file may have been replaced by one that can be read.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The reads that threads of this process do now.
#[derive(Debug, Default)]
pub(crate) struct ReadsInFlight {
    reads: Mutex<Vec<(FileNo, Range<u64>)>>,
    ended: Condvar,
}

/// A read in flight; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ReadInFlight<'a> {
    all: &'a ReadsInFlight,
    file: FileNo,
    pages: Range<u64>,
}

impl ReadsInFlight {
    /// Begins a read of the pages `asked` of a file, and of as many pages around them as are in `pages` and nobody else reads now; leaves
    /// these in `pages`. None: another thread read some of the requested pages, and has ended. With `may_wait` false it never waits.
    pub(crate) fn begin(&self, file: FileNo, asked: &Range<u64>, pages: &mut Range<u64>, may_wait: bool) -> Option<ReadInFlight<'_>> {
        let mut reads = self.reads.lock();
        let overlaps = |reads: &mut Vec<(FileNo, Range<u64>)>| {
            reads.iter().any(|(other, read)| *other == file && read.start < asked.end && asked.start < read.end)
        };
        if may_wait && overlaps(&mut reads) && !self.ended.wait_while_for(&mut reads, |reads| overlaps(reads), WAIT_MAX).timed_out() {
            return None;
        }
        for (_, read) in reads.iter().filter(|(other, _)| *other == file) {
            if read.start >= asked.end {
                pages.end = pages.end.min(read.start);
            } else if read.end <= asked.start {
                pages.start = pages.start.max(read.end);
            }
        }
        reads.push((file, pages.clone()));
        Some(ReadInFlight { all: self, file, pages: pages.clone() })
    }
}

impl Drop for ReadInFlight<'_> {
    fn drop(&mut self) {
        let mut reads = self.all.reads.lock();
        if let Some(own) = reads.iter().position(|(file, pages)| *file == self.file && *pages == self.pages) {
            reads.swap_remove(own);
        }
        drop(reads);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Begins a read; returns the pages that it reads.
    fn begin<'a>(all: &'a ReadsInFlight, file: u32, asked: Range<u64>, mut pages: Range<u64>) -> Option<(ReadInFlight<'a>, Range<u64>)> {
        all.begin(FileNo(file), &asked, &mut pages, true).map(|read| (read, pages))
    }

    #[test]
    fn pages_around_are_left_to_who_reads_them() {
        let all = ReadsInFlight::default();
        let (_low, pages) = begin(&all, 1, 0..4, 0..8).expect("nobody reads");
        assert_eq!(pages, 0..8);
        let (_high, pages) = begin(&all, 1, 20..21, 16..32).expect("nobody reads");
        assert_eq!(pages, 16..32);
        assert_eq!(begin(&all, 1, 10..11, 0..32).expect("nobody reads").1, 8..16);
        assert_eq!(begin(&all, 2, 0..4, 0..8).expect("another file").1, 0..8);
    }

    #[test]
    fn who_misses_the_same_page_waits_for_the_read_and_then_looks_again() {
        let all = ReadsInFlight::default();
        let first = begin(&all, 1, 0..4, 0..8).expect("nobody reads");
        // Who has waited before does not.
        assert_eq!(all.begin(FileNo(1), &(3..5), &mut (3..5), false).expect("does not wait").pages, 3..5);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| begin(&all, 1, 7..9, 7..9).is_none());
            drop(first);
            // None if it came while the pages were read, a read of its own if it came later.
            let _: bool = waiting.join().expect("ends");
        });
        assert!(all.reads.lock().is_empty());
    }
}
