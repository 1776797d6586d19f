//! Sequential streams of an open file.
//!
//! A program that reads in sequence does not send its reads in sequence: the kernel reads ahead with several requests, which threads of
//! a mount's daemon serve at the same time and in any order. So a stream is known by the ranges that its reads add up to, not by the last
//! read.

use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

/// The number of ranges that are remembered: those of a stream's reads in any order, and of a few streams.
const RANGES: usize = 8;

/// What is known about the reads of one open file.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    ranges: Mutex<[Range; RANGES]>,
    /// The caller's advice for its reads, see [`super::open::Advice`].
    pub(crate) advice: AtomicU32,
    /// Number of failures of the file that this handle has reported.
    pub(crate) seen: AtomicU32,
}

/// Bytes that were read without a gap.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    start: u64,
    end: u64,
    /// The bytes of the first read, which alone is not in sequence with anything; 0 at the beginning of the file.
    first: u64,
}

impl Stream {
    /// Records a read of `len` bytes at byte `at`. Returns how many bytes were read in sequence, with this read; 0: the read is not
    /// sequential.
    pub(crate) fn read(&self, at: u64, len: u64) -> u64 {
        let Some(end) = at.checked_add(len).filter(|end| *end > at) else { return 0 };
        let ranges = &mut *self.ranges.lock();
        let before = ranges.iter().position(|range| range.end == at && range.start < at);
        let after = ranges.iter().position(|range| range.start == end && range.end > end);
        let (start, first) = before.map_or((at, if at == 0 { 0 } else { len }), |found| (ranges[found].start, ranges[found].first));
        let joined = Range { start, end: after.map_or(end, |found| ranges[found].end), first };
        // The most recent range is first; the oldest one is forgotten if none is joined.
        if let (Some(_), Some(after)) = (before, after) {
            ranges[after] = Range::default();
        }
        let replaced = before.or(after).unwrap_or(RANGES - 1);
        ranges[..=replaced].rotate_right(1);
        ranges[0] = joined;
        joined.end - joined.start - joined.first
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn reads_in_sequence_add_up_from_the_second_one_or_from_the_beginning_of_the_file() {
        let stream = Stream::default();
        assert_eq!((0..4).map(|n| stream.read(n * 10, 10)).collect::<Vec<_>>(), [10, 20, 30, 40]);
        assert_eq!((0..4).map(|n| stream.read(1000 + n * 10, 10)).collect::<Vec<_>>(), [0, 10, 20, 30]);
    }

    #[test]
    fn reads_of_a_stream_in_another_order_are_its_reads() {
        let stream = Stream::default();
        for pair in 0..50 {
            stream.read(pair * 20 + 10, 10);
            assert_eq!(stream.read(pair * 20, 10), pair * 20 + 20);
        }
        // Up to seven ahead of one that is late.
        (101..108).for_each(|n| _ = stream.read(n * 10, 10));
        assert_eq!(stream.read(1000, 10), 1080);
    }

    #[test]
    fn reads_at_random_are_none() {
        let stream = Stream::default();
        let mut at = 7u64;
        let sequential = (0..10_000).filter(|_| {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            stream.read((at >> 40) * 4096, 4096) >= 3 * 4096
        });
        assert!(sequential.count() < 5);
        // Nor is the same read again and again.
        assert!((0..20).all(|_| stream.read(1 << 40, 4096) == 0));
    }

    #[test]
    fn two_streams_by_turns_are_two() {
        let stream = Stream::default();
        for n in 0..100 {
            assert_eq!((stream.read(n * 10, 10), stream.read((1 << 30) + n * 10, 10)), (n * 10 + 10, n * 10));
        }
    }

    #[test]
    fn a_read_of_nothing_or_past_the_last_offset_is_none() {
        let stream = Stream::default();
        assert_eq!((stream.read(0, 0), stream.read(u64::MAX, 2), stream.read(u64::MAX - 2, 2)), (0, 0, 0));
    }
}
