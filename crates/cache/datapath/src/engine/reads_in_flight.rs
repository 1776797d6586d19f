//! Reads of backing files that are in flight, so that threads that miss the same pages wait for one read: those of this process, and by
//! marks in shared memory those of other processes ([`FetchMarks`]).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use shm::{ProcessSlot, ProcessSlots, Region};

use super::fetch_marks::{Claim, FetchMarks, MARKS, WAIT_MAX};
use super::record::FileNo;

/// The reads of all processes, as one process sees them.
#[derive(Debug)]
pub(crate) struct ReadsInFlight {
    own: Mutex<OwnReads>,
    ended: Condvar,
    marks: FetchMarks,
}

/// The reads that threads of this process do now.
#[derive(Debug)]
struct OwnReads {
    reads: Vec<OwnRead>,
    /// The number of reads so far.
    begun: u64,
    /// The marks that are in use, one bit each, and how often each was used.
    used: u32,
    turns: [u32; MARKS],
}

#[derive(Debug)]
struct OwnRead {
    number: u64,
    file: FileNo,
    pages: Range<u64>,
}

/// A read in flight; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ReadInFlight<'a> {
    all: &'a ReadsInFlight,
    number: u64,
    /// The number and the turn of its mark. None: all are in use, or no other process takes part.
    mark: Option<(u8, u32)>,
}

/// The pages of a read of a backing file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FetchPages {
    /// The pages that were requested.
    pub(crate) asked: Range<u64>,
    /// These with the pages around them that are to be read, too.
    pub(crate) all: Range<u64>,
}

impl ReadsInFlight {
    /// The size of the marks in a segment, bytes.
    pub(crate) const MARKS_BYTES: usize = FetchMarks::BYTES;

    pub(crate) fn new(region: &Arc<Region>, at: usize, processes: &Arc<ProcessSlots>, me: ProcessSlot) -> ReadsInFlight {
        let marks = FetchMarks::new(region, at, processes, me);
        let own = OwnReads { reads: Vec::new(), begun: 0, used: 0, turns: marks.begin() };
        ReadsInFlight { own: Mutex::new(own), ended: Condvar::new(), marks }
    }

    /// Begins a read of pages of a file. Those that another thread or process reads now are removed from `pages`, except for the first
    /// requested one. If that is read now, it waits for the end of that read and returns None: the caller looks into the cache again.
    /// `waited` is how long the caller's read has waited for other processes so far, which has a limit. Without it this does not wait, and
    /// all requested pages are read.
    pub(crate) fn begin(&self, file: FileNo, pages: &mut FetchPages, mut waited: Option<&mut Duration>) -> Option<ReadInFlight<'_>> {
        let mut own = self.own.lock();
        if waited.is_some() && own.reads_page(file, pages.asked.start) {
            let still_read = |own: &mut OwnReads| own.reads_page(file, pages.asked.start);
            if !self.ended.wait_while_for(&mut own, still_read, WAIT_MAX).timed_out() {
                return None;
            }
            waited = None;
        }
        own.cut(file, pages, waited.is_some());
        let (number, mark) = own.enter(file, &pages.all, self.marks.has_others());
        if mark.is_some() {
            self.marks.set_active(own.used);
        }
        drop(own);
        let read = ReadInFlight { all: self, number, mark };
        let Some((number_of_mark, turn)) = mark else { return Some(read) };
        let mut claim = Claim { file: file.0, asked: pages.asked.clone(), pages: pages.all.clone() };
        let Some(waited) = waited.filter(|waited| self.marks.may_wait(**waited)) else {
            self.marks.read_anyway(number_of_mark, turn, &claim);
            return Some(read);
        };
        match self.marks.claim((number_of_mark, turn), &mut claim, waited) {
            Ok(()) => {
                if claim.pages != pages.all {
                    self.own.lock().shrink(number, &claim.pages);
                }
                *pages = FetchPages { asked: claim.asked, all: claim.pages };
                Some(read)
            }
            Err(other) => {
                drop(read);
                if self.marks.wait(other, waited) { None } else { self.begin(file, pages, None) }
            }
        }
    }

    /// Removes marks in our name that another process made. For each process, some ten times a second.
    pub(crate) fn restore_marks(&self) {
        let own = self.own.lock();
        self.marks.restore(own.used);
    }

    /// Makes no marks any more.
    pub(crate) fn leave(&self) {
        self.marks.leave();
    }

    /// Frees the marks of a dead process.
    pub(crate) fn reap(&self, dead: ProcessSlot) {
        self.marks.reap(dead);
    }
}

impl OwnReads {
    fn reads_page(&self, file: FileNo, page: u64) -> bool {
        self.reads.iter().any(|read| read.file == file && read.pages.contains(&page))
    }

    /// Removes pages that are read now: from the requested ones, too, if `cuts_asked`.
    fn cut(&self, file: FileNo, pages: &mut FetchPages, cuts_asked: bool) {
        for OwnRead { pages: read, .. } in self.reads.iter().filter(|read| read.file == file) {
            if cuts_asked && read.start > pages.asked.start {
                pages.asked.end = pages.asked.end.min(read.start);
            }
            if read.start >= pages.asked.end {
                pages.all.end = pages.all.end.min(read.start);
            } else if read.end <= pages.asked.start {
                pages.all.start = pages.all.start.max(read.end);
            }
        }
    }

    /// Returns the read's number, and a mark if it needs one and one is free.
    fn enter(&mut self, file: FileNo, pages: &Range<u64>, needs_mark: bool) -> (u64, Option<(u8, u32)>) {
        self.begun += 1;
        self.reads.push(OwnRead { number: self.begun, file, pages: pages.clone() });
        let free = self.used.trailing_ones() as usize;
        let mark = self.turns.get_mut(free).filter(|_| needs_mark).map(|turn| {
            *turn = turn.wrapping_add(1);
            self.used |= 1 << free;
            (free as u8, *turn)
        });
        (self.begun, mark)
    }

    fn shrink(&mut self, number: u64, pages: &Range<u64>) {
        if let Some(own) = self.reads.iter_mut().find(|read| read.number == number) {
            own.pages = pages.clone();
        }
    }

    fn leave(&mut self, number: u64, mark: Option<(u8, u32)>) {
        if let Some(own) = self.reads.iter().position(|read| read.number == number) {
            self.reads.swap_remove(own);
        }
        if let Some((mark, _)) = mark {
            self.used &= !(1 << mark);
        }
    }
}

impl Drop for ReadInFlight<'_> {
    fn drop(&mut self) {
        if let Some((mark, turn)) = self.mark {
            self.all.marks.end(mark, turn);
        }
        let mut own = self.all.own.lock();
        own.leave(self.number, self.mark);
        if self.mark.is_some() {
            self.all.marks.set_active(own.used);
        }
        drop(own);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod test {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Instant;

    use shm::PageSize;

    use super::*;

    /// The reads of some processes in one segment.
    fn reads_of<const COUNT: usize>() -> (Arc<ProcessSlots>, [ReadsInFlight; COUNT]) {
        let marks = ProcessSlots::BYTES.next_multiple_of(4096);
        let region = Arc::new(Region::private(marks + ReadsInFlight::MARKS_BYTES, PageSize::Small).expect("memory"));
        let processes = Arc::new(ProcessSlots::in_process(Arc::clone(&region), 0));
        let one = |_| ReadsInFlight::new(&region, marks, &processes, processes.attach().expect("a process slot"));
        (Arc::clone(&processes), std::array::from_fn(one))
    }

    /// Begins a read; returns the pages that it reads: those requested, and all.
    fn begin(all: &ReadsInFlight, file: u32, asked: Range<u64>, around: Range<u64>) -> Option<(ReadInFlight<'_>, Range<u64>, Range<u64>)> {
        let mut pages = FetchPages { asked, all: around };
        let mut waited = Duration::ZERO;
        all.begin(FileNo(file), &mut pages, Some(&mut waited)).map(|read| (read, pages.asked, pages.all))
    }

    fn pages_of(begun: &Option<(ReadInFlight<'_>, Range<u64>, Range<u64>)>) -> (Range<u64>, Range<u64>) {
        begun.as_ref().map(|(_, asked, all)| (asked.clone(), all.clone())).expect("nobody reads the first page")
    }

    /// Of two readers, which may be threads of one process or two processes.
    fn pages_that_another_reader_reads_are_left_to_it(first: &ReadsInFlight, second: &ReadsInFlight) {
        let low = begin(first, 1, 0..4, 0..8);
        assert_eq!(pages_of(&low), (0..4, 0..8));
        let high = begin(first, 1, 20..21, 16..32);
        assert_eq!(pages_of(&high), (20..21, 16..32));
        assert_eq!(pages_of(&begin(second, 1, 10..11, 0..32)), (10..11, 8..16), "around");
        assert_eq!(pages_of(&begin(second, 1, 10..40, 10..60)), (10..16, 10..16), "requested");
        assert_eq!(pages_of(&begin(second, 2, 0..4, 0..8)), (0..4, 0..8), "another file");
        // Whoever has waited enough reads all that was requested.
        let mut pages = FetchPages { asked: 3..18, all: 3..18 };
        let read = second.begin(FileNo(1), &mut pages, None);
        assert!(read.is_some() && pages == FetchPages { asked: 3..18, all: 3..18 });
        drop((low, high, read));
        assert_eq!(pages_of(&begin(second, 1, 0..40, 0..60)), (0..40, 0..60), "all have ended");
    }

    #[test]
    fn pages_that_others_read_are_left_to_them() {
        let (_processes, [one, other]) = reads_of();
        pages_that_another_reader_reads_are_left_to_it(&one, &one);
        pages_that_another_reader_reads_are_left_to_it(&one, &other);
        pages_that_another_reader_reads_are_left_to_it(&other, &one);
    }

    #[test]
    fn who_misses_the_same_page_waits_for_the_read_and_then_looks_again() {
        let (_processes, [one, other]) = reads_of();
        for waiter in [&one, &other] {
            let first = begin(&one, 1, 0..4, 0..8);
            std::thread::scope(|threads| {
                let waiting = threads.spawn(|| begin(waiter, 1, 7..9, 7..9).is_none());
                drop(first);
                // None if it came while the pages were read, a read of its own if it came later.
                let _: bool = waiting.join().expect("ends");
            });
            assert!(one.own.lock().reads.is_empty() && one.own.lock().used == 0);
        }
    }

    #[test]
    fn nobody_waits_for_a_dead_process() {
        let (processes, [dead, alive]) = reads_of();
        let _first = std::mem::ManuallyDrop::new(begin(&dead, 1, 0..4, 0..8));
        processes.kill(ProcessSlot(0));
        let begun = Instant::now();
        assert!(begin(&alive, 1, 0..1, 0..1).is_none(), "looks again");
        assert_eq!(pages_of(&begin(&alive, 1, 0..1, 0..8)), (0..1, 0..8), "its mark is gone");
        assert!(begun.elapsed() < WAIT_MAX / 2);
    }

    #[test]
    fn a_read_that_does_not_end_is_waited_for_once() {
        let (_processes, [hostile, mut waiter]) = reads_of();
        waiter.marks.wait_at_most(Duration::from_millis(200), Duration::MAX);
        let _first = begin(&hostile, 1, 0..4, 0..8);
        let begun = Instant::now();
        (0..20).for_each(|_| assert_eq!(pages_of(&begin(&waiter, 1, 0..2, 0..2)), (0..2, 0..2)));
        assert!((200..3_500).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    }

    #[test]
    fn all_waits_of_a_read_together_have_a_limit() {
        const LIMIT: Duration = Duration::from_millis(400);
        let (_processes, [hostile, mut waiter]) = reads_of();
        waiter.marks.wait_at_most(WAIT_MAX, LIMIT);
        let is_over = AtomicBool::new(false);
        let first = begin(&hostile, 1, 0..4, 0..8).map(|(read, ..)| read);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut last = first;
                while !is_over.load(Relaxed) {
                    // Each wait is much shorter than the limit, and the next mark is there before this one is freed.
                    std::thread::sleep(LIMIT / 8);
                    let next = hostile.begin(FileNo(1), &mut FetchPages { asked: 0..4, all: 0..8 }, None);
                    drop(std::mem::replace(&mut last, next));
                }
            });
            // As a read does that gets some other page after each wait.
            let (begun, mut waited) = (Instant::now(), Duration::ZERO);
            let begin = |waited: &mut Duration| waiter.begin(FileNo(1), &mut FetchPages { asked: 0..2, all: 0..2 }, Some(waited)).is_some();
            while waited < LIMIT && begun.elapsed() < WAIT_MAX {
                begin(&mut waited);
            }
            let took = begun.elapsed();
            // It waits no more, and for a while the next read of this process does not wait either.
            let mut waited_next = Duration::ZERO;
            let is_begun = begin(&mut waited) && begin(&mut waited_next);
            is_over.store(true, Relaxed);
            assert!((LIMIT..LIMIT + Duration::from_secs(2)).contains(&waited) && waited <= took, "{waited:?} of {took:?}");
            assert!(is_begun && waited_next.is_zero(), "{waited_next:?}");
        });
    }

    #[test]
    fn reads_beyond_the_number_of_marks_have_none() {
        let (_processes, [one, other]) = reads_of();
        let many: Vec<_> = (0..MARKS as u64 + 2).map(|page| begin(&one, 1, page..page + 1, page..page + 1)).collect();
        assert!(many.iter().all(Option::is_some));
        let last = MARKS as u64;
        assert_eq!(pages_of(&begin(&other, 1, last..last + 1, 0..last + 2)), (last..last + 1, last..last + 2));
        drop(many);
        assert_eq!(one.own.lock().used, 0);
    }

    /// Another process writes anything into the marks: reads begin within a bounded time, and with pages in order.
    #[test]
    #[cfg_attr(miri, ignore = "many words")]
    fn marks_that_somebody_wrote_delay_reads_and_do_nothing_else() {
        let (processes, [one, _other]) = reads_of();
        let (region, at) = one.marks.place();
        let mut rng = fastrand::Rng::with_seed(7);
        let begun = Instant::now();
        for round in 0..2_000 {
            for _ in 0..rng.u32(..200) {
                let at = at + 4 * rng.usize(..ReadsInFlight::MARKS_BYTES / 4);
                let value = [rng.u32(..), 0, u32::MAX, 1 << rng.u32(..32), rng.u32(..32)][rng.usize(..5)];
                region.u32(at).store(value, std::sync::atomic::Ordering::Relaxed);
            }
            let start = rng.u64(..32);
            let asked = start..start + rng.u64(1..8);
            let all = start.saturating_sub(rng.u64(..8))..asked.end + rng.u64(..8);
            if let Some((_read, got, around)) = begin(&one, rng.u32(..4), asked.clone(), all.clone()) {
                let is_in_order = around.start <= got.start && got.start < got.end && got.end <= around.end;
                let is_within = got.start == asked.start && got.end <= asked.end && all.start <= around.start && around.end <= all.end;
                assert!(is_in_order && is_within, "round {round}: {got:?} in {around:?} of {asked:?} in {all:?}");
            }
            one.restore_marks();
        }
        println!("{:?}", begun.elapsed());
        drop(processes);
    }

    #[test]
    fn false_marks_in_our_name_are_removed() {
        let (_processes, [one, other]) = reads_of();
        let read = begin(&one, 1, 0..4, 0..8);
        let Some((forged, _, _)) = read else { panic!("nobody reads") };
        let (mark, turn) = forged.mark.expect("a mark");
        drop(forged);
        // Another process marks in our name what we have read.
        one.marks.read_anyway(mark, turn, &Claim { file: 1, asked: 0..4, pages: 0..8 });
        one.marks.set_active(1);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| begin(&other, 1, 0..1, 0..1).is_none());
            one.restore_marks();
            let _: bool = waits.join().expect("ends");
        });
        assert_eq!(pages_of(&begin(&other, 1, 0..1, 0..1)), (0..1, 0..1));
    }
}
