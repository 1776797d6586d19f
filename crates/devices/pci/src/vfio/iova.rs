//! Addresses that a device may use, and which of them are free.

use std::collections::BTreeMap;

/// Below this no memory is put: an address of zero, or near it, is a mistake that should be seen.
const LOWEST: u64 = 1 << 20;

/// Free addresses: begin to end (exclusive), apart from each other.
#[derive(Debug, Default)]
pub struct Addresses {
    free: BTreeMap<u64, u64>,
}

impl Addresses {
    /// Creates free addresses from inclusive ranges, in any order. Keeps only whole pages of 4 KiB.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Addresses {
        let mut addresses = Addresses::default();
        for (first, last) in ranges {
            let begin = first.max(LOWEST).next_multiple_of(4096);
            let end = last.saturating_add(1) & !4095;
            if begin < end {
                addresses.give(begin, end - begin);
            }
        }
        addresses
    }

    /// Takes this many bytes at a multiple of `align` (a power of two).
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let (begin, end, at) = self.free.iter().find_map(|(&begin, &end)| {
            let at = begin.checked_next_multiple_of(align)?;
            (at.checked_add(bytes)? <= end).then_some((begin, end, at))
        })?;
        self.free.remove(&begin);
        for (begin, end) in [(begin, at), (at + bytes, end)] {
            if begin < end {
                self.free.insert(begin, end);
            }
        }
        Some(at)
    }

    /// Gives them back. What was free already stays so.
    pub fn give(&mut self, at: u64, bytes: u64) {
        let (mut begin, mut end) = (at, at.saturating_add(bytes));
        while let Some((&before, &until)) = self.free.range(..=end).next_back().filter(|(_, until)| **until >= begin) {
            self.free.remove(&before);
            (begin, end) = (begin.min(before), end.max(until));
        }
        self.free.insert(begin, end);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn ranges_are_cut_to_what_can_be_used() {
        let mut addresses = Addresses::new([(0xfef0_0000, u64::MAX), (0, 0xfedf_ffff), (5, 6)]);
        assert_eq!(addresses.take(4096, 4096), Some(LOWEST));
        assert_eq!(addresses.take(1 << 32, 2 << 20), Some(0xff00_0000));
        assert_eq!(addresses.take(u64::MAX / 2 + 1, 4096), Some(0x1_ff00_0000));
        assert_eq!(addresses.take(u64::MAX, 4096), None);
        assert_eq!(Addresses::new([]).take(4096, 4096), None);
    }

    #[test]
    fn what_is_given_out_is_free_and_given_once() {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(36);
        println!("SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (first, pages) = (LOWEST / 4096, 200_u64);
        let mut addresses = Addresses::new([(0, (first + pages) * 4096 - 1)]);
        // The oracle: a flag for each page.
        let mut used = vec![false; pages as usize];
        let mut allocated: Vec<(u64, u64)> = Vec::new();
        for _ in 0..5000 {
            if random.bool() {
                let (count, align) = (random.u64(1..12), 1 << random.u32(0..4));
                let fits = |at: u64| (first + at).is_multiple_of(align) && (at..at + count).all(|page| !used[page as usize]);
                let wanted = (0..=pages - count).find(|at| fits(*at));
                let got = addresses.take(count * 4096, align * 4096).map(|at| at / 4096 - first);
                assert_eq!(got, wanted);
                if let Some(at) = got {
                    (at..at + count).for_each(|page| used[page as usize] = true);
                    allocated.push((at, count));
                }
            } else if !allocated.is_empty() {
                let (at, count) = allocated.swap_remove(random.usize(..allocated.len()));
                (at..at + count).for_each(|page| used[page as usize] = false);
                addresses.give((first + at) * 4096, count * 4096);
            }
        }
        for (at, count) in allocated {
            addresses.give((first + at) * 4096, count * 4096);
        }
        assert_eq!(addresses.free.len(), 1, "all is one piece again");
    }
}
