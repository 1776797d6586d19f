//! The writer of one ring of events, in memory that other processes may read at the same time, or after this one was killed.
//!
//! Each event takes one line of 64 bytes. A reader reads the count before and after, and skips lines that may have been overwritten
//! (`write_line`, `read_line`; loom tests every order of events).

#[cfg(all(test, not(miri)))]
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, Ordering};

use shm::SharedSlice;

use super::{Event, Record};
use crate::entry::{CompletionEntry, Entry};

/// Words of a line.
pub(super) const LINE: usize = 8;

/// A word that two sides change: atomics, or loom's, which tries every order.
pub(super) trait Word {
    #[cfg(all(test, not(miri)))]
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[cfg(all(test, not(miri)))]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
    #[inline(always)]
    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// Writes the event of a number, and says that it is there. Nothing but a hint to the compiler on x86-64.
#[inline]
pub(super) fn write_line<W: Word, const N: usize>(count: &W, line: &[W; N], number: u64, words: [u64; N]) {
    // A reader that sees a word of this event also sees that the line's previous event is no longer valid.
    W::fence(Release);
    for (place, word) in line.iter().zip(words) {
        place.store(word, Relaxed);
    }
    count.store(number.wrapping_add(1), Release);
}

/// The event of a number, in a ring of so many; none: it is not there yet, or not any more.
#[cfg(all(test, not(miri)))]
pub(super) fn read_line<W: Word, const N: usize>(count: &W, line: &[W; N], number: u64, events: u64) -> Option<[u64; N]> {
    if count.load(Acquire) <= number {
        return None;
    }
    let words = std::array::from_fn(|word| line[word].load(Relaxed));
    W::fence(Acquire);
    (count.load(Relaxed) < number + events).then_some(words)
}

const COMMAND: u64 = 0;
const ANSWER: u64 = 1;
const TAIL: u64 = 2;
const HEAD: u64 = 3;
const RESET: u64 = 4;

/// Writes the events of a queue.
pub(crate) struct Recorder {
    /// Count, queue and entries, the first event of this queue.
    head: SharedSlice<AtomicU64>,
    lines: SharedSlice<[AtomicU64; LINE]>,
    next: u64,
    first: u64,
    queue: u16,
    entries: u32,
}

impl Recorder {
    /// Goes on in a ring: what is in it was of another queue.
    pub(super) fn new(head: SharedSlice<AtomicU64>, lines: SharedSlice<[AtomicU64; LINE]>, queue: u16, entries: u32) -> Recorder {
        let next = head[0].load(Relaxed);
        head[1].store(u64::from(queue) | u64::from(entries) << 32, Relaxed);
        head[2].store(next, Release);
        Recorder { head, lines, next, first: next, queue, entries }
    }

    #[inline]
    fn put(&mut self, words: [u64; LINE]) {
        // A power of two, or none.
        if let Some(line) = self.lines.get(self.next as usize & self.lines.len().wrapping_sub(1)) {
            write_line(&self.head[0], line, self.next, words);
            self.next = self.next.wrapping_add(1);
        }
    }

    /// A command; the words that our commands leave zero (double words 2 to 5) are not kept.
    #[inline]
    pub(crate) fn command(&mut self, place: u32, entry: &Entry) {
        let [first, _, _, prp1, prp2, dw10, dw12, dw14] = entry.0;
        self.put([COMMAND | u64::from(place) << 32, first, prp1, prp2, dw10, dw12, dw14, 0]);
    }

    #[inline]
    pub(crate) fn answer(&mut self, place: u32, answer: &CompletionEntry) {
        self.put([ANSWER | u64::from(place) << 32, answer.0[0], answer.0[1], 0, 0, 0, 0, 0]);
    }

    #[inline]
    pub(crate) fn tail(&mut self, value: u16, written: bool) {
        self.put([TAIL, value.into(), written.into(), 0, 0, 0, 0, 0]);
    }

    #[inline]
    pub(crate) fn head(&mut self, value: u16, written: bool) {
        self.put([HEAD, value.into(), written.into(), 0, 0, 0, 0, 0]);
    }

    pub(crate) fn reset(&mut self) {
        self.put([RESET, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Returns the recorded events, oldest first.
    pub(crate) fn record(&self) -> Record {
        let kept = self.next.wrapping_sub(self.first).min(self.lines.len() as u64);
        let line = |back: u64| &self.lines[self.next.wrapping_sub(back) as usize & (self.lines.len() - 1)];
        let words = (1..=kept).rev().map(|back| std::array::from_fn(|word| line(back)[word].load(Relaxed)));
        let events = words.map(|words| event(&words).unwrap_or(Event::Reset)).collect();
        Record { queue: self.queue, entries: self.entries, events }
    }
}

/// Decodes an event; `None`: the line is not a valid event.
pub(super) fn event(line: &[u64; LINE]) -> Option<Event> {
    let [kind, a, b, c, d, e, f, _] = *line;
    let place = (kind >> 32) as u32;
    let short = || Some((u16::try_from(a).ok()?, b == 1)).filter(|_| b <= 1);
    Some(match kind & 0xffff_ffff {
        COMMAND => Event::Command(place, Entry([a, 0, 0, b, c, d, e, f])),
        ANSWER => Event::Completion(place, CompletionEntry([a, b])),
        TAIL => short().map(|(value, written)| Event::Tail(value, written))?,
        HEAD => short().map(|(value, written)| Event::Head(value, written))?,
        RESET => Event::Reset,
        _ => return None,
    })
}

/// The line of an event, for files.
pub(super) fn line(event: &Event) -> [u64; LINE] {
    match event {
        Event::Command(place, entry) => {
            let [a, _, _, b, c, d, e, f] = entry.0;
            [COMMAND | u64::from(*place) << 32, a, b, c, d, e, f, 0]
        }
        Event::Completion(place, answer) => [ANSWER | u64::from(*place) << 32, answer.0[0], answer.0[1], 0, 0, 0, 0, 0],
        Event::Tail(value, written) => [TAIL, (*value).into(), (*written).into(), 0, 0, 0, 0, 0],
        Event::Head(value, written) => [HEAD, (*value).into(), (*written).into(), 0, 0, 0, 0, 0],
        Event::Reset => [RESET, 0, 0, 0, 0, 0, 0, 0],
    }
}

#[cfg(all(test, not(miri)))]
mod loom_test {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as LoomU64;

    impl Word for LoomU64 {
        fn load(&self, order: Ordering) -> u64 {
            LoomU64::load(self, order)
        }
        fn store(&self, value: u64, order: Ordering) {
            LoomU64::store(self, value, order);
        }
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }

    /// A ring of two lines of two words, and three events. A concurrent reader takes whole events or none.
    #[test]
    fn loom_a_reader_takes_whole_events_or_none() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            type Ring = (LoomU64, [[LoomU64; 2]; 2]);
            let zero = || std::array::from_fn(|_| LoomU64::new(0));
            let ring: Arc<Ring> = Arc::new((LoomU64::new(0), [zero(), zero()]));
            let writing = Arc::clone(&ring);
            let writer = loom::thread::spawn(move || {
                for number in 0..3 {
                    write_line(&writing.0, &writing.1[number as usize % 2], number, [number + 1; 2]);
                }
            });
            if let Some(words) = read_line(&ring.0, &ring.1[0], 0, 2) {
                assert_eq!(words, [1; 2], "of two events");
            }
            writer.join().expect("ended");
            assert_eq!(read_line(&ring.0, &ring.1[1], 1, 2), None, "the writer may be at it");
            assert_eq!(read_line(&ring.0, &ring.1[0], 2, 2), Some([3; 2]));
            assert_eq!(read_line(&ring.0, &ring.1[0], 0, 2), None);
        });
    }
}
