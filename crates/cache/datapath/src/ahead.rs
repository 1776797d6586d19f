//! Who reads one page after the other, and how far ahead of him to read.
//!
//! As in Linux (mm/readahead.c): the second access in a row begins with a small window, every window is twice the last one up
//! to a limit, and the next one is asked for when the reader reaches the begin of the last, so that one is always under way
//! while the other is read.

use std::ops::Range;

/// One reader's stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// The page after the last one asked for.
    next: u64,
    /// Accesses in a row, each beginning where the last one ended.
    row: u32,
    /// Pages of the last window; 0: none yet.
    window: u32,
    /// Pages before this were asked for ahead.
    asked: u64,
    /// Who reads this page gets the next window.
    mark: u64,
}

const WINDOW_MIN: u32 = 4;

impl Stream {
    /// An access to pages. Tells whether it is the first to its first page: not when the last access ended there.
    #[inline]
    pub(crate) fn access(&mut self, pages: &Range<u64>) -> bool {
        let again = pages.start + 1 == self.next;
        if again || pages.start == self.next {
            self.row = self.row.saturating_add(u32::from(pages.end > self.next));
        } else {
            *self = Stream { row: 1, ..Stream::default() };
        }
        self.next = pages.end;
        !again
    }

    /// Whether it is time to read ahead.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.row >= 2 && self.next > self.mark
    }

    /// The pages to read ahead, at most `most` and none from `end` on. They count as asked for.
    pub(crate) fn window(&mut self, most: u32, end: u64) -> Range<u64> {
        self.window = (self.window * 2).max(WINDOW_MIN).min(most);
        let begin = self.asked.max(self.next).min(end);
        // Never further than a window and what is being read now.
        let stop = (begin + u64::from(self.window)).min(self.next + 2 * u64::from(most)).clamp(begin, end);
        (self.asked, self.mark) = (stop, begin);
        begin..stop
    }

    /// Only the pages before this one could be asked for.
    pub(crate) fn stopped(&mut self, at: u64) {
        self.asked = self.asked.min(at);
        self.window /= 2;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn windows(accesses: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut stream = Stream::default();
        let mut windows = Vec::new();
        for pages in accesses {
            stream.access(pages);
            if stream.is_due() {
                windows.push(stream.window(16, 60));
            }
        }
        windows
    }

    #[test]
    fn windows_double_and_stay_one_ahead_of_the_reader() {
        let one_by_one: Vec<Range<u64>> = (0..60).map(|page| page..page + 1).collect();
        assert_eq!(windows(&one_by_one), [2..6, 6..14, 14..30, 30..46, 46..60, 60..60]);
    }

    #[test]
    fn jumps_ask_for_nothing_and_the_same_page_is_no_progress() {
        assert_eq!(windows(&[10..11, 20..21, 30..31, 0..1, 50..51]), []);
        assert_eq!(windows(&[10..11, 10..11, 10..11]), []);
        let mut stream = Stream::default();
        assert!(stream.access(&(10..11)));
        assert!(!stream.access(&(10..11)), "the same page again");
        assert!(stream.access(&(11..12)));
    }
}
