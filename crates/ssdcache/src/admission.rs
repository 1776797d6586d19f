//! Which pages are worth a write to the SSD: second touch, no streams, and no more bytes a day than its owner allows.
//!
//! The ghosts are fingerprints of 16 bits in buckets of eight, first in first out in each: two bytes a ghost, no index. Of
//! strangers one in 8192 is taken for a ghost, which costs one write.

use block::Time;

use crate::units::{FileKey, PAGE_BYTES, PageIndex};

const WAYS: usize = 8;
const DAY_NS: u128 = 86_400 * 1_000_000_000;

/// Settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Pages remembered after their first touch, 2 bytes each; 0: the first touch is enough.
    pub ghosts: u32,
    /// A reader who has read so many bytes in sequence is a stream: not admitted. `u64::MAX`: no limit.
    pub stream_bytes: u64,
    /// Bytes written to the SSD in a day, summaries and re-insertions included. `u64::MAX`: no limit.
    pub bytes_per_day: u64,
    /// What may be saved up, bytes.
    pub burst_bytes: u64,
}

impl Limits {
    /// For so many slots: an eighth as many ghosts, streams from 4 MiB, no budget.
    pub fn new(slots: u32) -> Limits {
        Limits { ghosts: slots / 8, stream_bytes: 4 << 20, bytes_per_day: u64::MAX, burst_bytes: 1 << 30 }
    }
}

/// What the caller's rules (globs, flags of the handle) say of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rule {
    /// Never.
    Never,
    /// As described.
    #[default]
    Normal,
    /// At the first touch, streams too; the budget holds.
    Always,
}

/// The answer, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Write it to the SSD.
    Admit,
    /// Its first touch; remembered.
    First,
    /// Part of a stream.
    Stream,
    /// The day's bytes are used up.
    Budget,
    /// The rules say no.
    Rule,
}

/// See the module.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    ghosts: Box<[[u16; WAYS]]>,
    tokens: u64,
    filled_at: Time,
}

impl Admission {
    /// With a full bucket.
    pub fn new(limits: Limits, now: Time) -> Admission {
        let buckets = (limits.ghosts as usize).div_ceil(WAYS);
        Admission { limits, ghosts: vec![[0; WAYS]; buckets].into(), tokens: limits.burst_bytes, filled_at: now }
    }

    /// Bytes of memory.
    pub fn memory_bytes(limits: &Limits) -> u64 {
        u64::from(limits.ghosts).div_ceil(WAYS as u64) * size_of::<[u16; WAYS]>() as u64
    }

    /// A page was read from below, by one who has read so many bytes in sequence. Takes nothing from the budget: `spend` does.
    pub fn admit(&mut self, now: Time, key: FileKey, page: PageIndex, in_sequence: u64, rule: Rule) -> Verdict {
        if rule == Rule::Never {
            return Verdict::Rule;
        }
        if rule == Rule::Normal {
            if in_sequence >= self.limits.stream_bytes {
                return Verdict::Stream;
            }
            if !self.ghosts.is_empty() && !self.was_here(key, page) {
                return Verdict::First;
            }
        }
        if self.may_spend(now) { Verdict::Admit } else { Verdict::Budget }
    }

    /// Whether the budget has room for a page: for writes, too, in write-back mode (no: write around).
    pub fn may_spend(&mut self, now: Time) -> bool {
        self.fill(now);
        self.limits.bytes_per_day == u64::MAX || self.tokens >= PAGE_BYTES as u64
    }

    /// So many bytes went to the SSD. What must be written is written and may leave nothing for others.
    pub fn spend(&mut self, now: Time, bytes: u64) {
        self.fill(now);
        self.tokens = self.tokens.saturating_sub(bytes);
    }

    fn fill(&mut self, now: Time) {
        let gained = now.since(self.filled_at).as_nanos() * u128::from(self.limits.bytes_per_day) / DAY_NS;
        // A fraction of a byte waits for the next time.
        if gained > 0 {
            self.tokens = u64::try_from(gained).unwrap_or(u64::MAX).saturating_add(self.tokens).min(self.limits.burst_bytes);
            self.filled_at = now;
        }
    }

    /// Forgets it if so; remembers it if not.
    fn was_here(&mut self, key: FileKey, page: PageIndex) -> bool {
        let mixed = (key.0 ^ page.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page.0.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let hash = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let at = (((hash >> 32) * self.ghosts.len() as u64) >> 32) as usize;
        let print = (hash as u16).max(1);
        let bucket = &mut self.ghosts[at];
        let known = bucket.iter().position(|ghost| *ghost == print);
        match known {
            Some(at) => {
                bucket.copy_within(at + 1.., at);
                bucket[WAYS - 1] = 0;
            }
            None => {
                bucket.copy_within(..WAYS - 1, 1);
                bucket[0] = print;
            }
        }
        known.is_some()
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_second_touch_of_a_page_that_is_no_stream_and_within_the_budget() {
        let limits = Limits { ghosts: 64, stream_bytes: 1 << 20, bytes_per_day: 86_400 * 4096, burst_bytes: 8192 };
        let mut admission = Admission::new(limits, Time(0));
        let mut ask = |now, page, run, rule| admission.admit(Time(now), FileKey(1), PageIndex(page), run, rule);
        assert_eq!(ask(0, 5, 0, Rule::Normal), Verdict::First);
        assert_eq!(ask(0, 5, 0, Rule::Normal), Verdict::Admit);
        assert_eq!(ask(0, 5, 0, Rule::Normal), Verdict::First, "it is no ghost any more");
        assert_eq!(ask(0, 6, 1 << 20, Rule::Normal), Verdict::Stream);
        assert_eq!(ask(0, 6, 1 << 20, Rule::Always), Verdict::Admit);
        assert_eq!(ask(0, 6, 0, Rule::Never), Verdict::Rule);
        admission.spend(Time(0), 8192);
        assert_eq!(admission.admit(Time(0), FileKey(1), PageIndex(7), 0, Rule::Always), Verdict::Budget);
        let second = Time(0).after(Duration::from_secs(1));
        assert_eq!(admission.admit(second, FileKey(1), PageIndex(7), 0, Rule::Always), Verdict::Admit, "a page a second");
    }

    #[test]
    fn a_scan_is_hardly_taken_for_ghosts() {
        let mut admission = Admission::new(Limits::new(1 << 16), Time(0));
        let known = (0..100_000).filter(|page| admission.admit(Time(0), FileKey(9), PageIndex(*page), 0, Rule::Normal) == Verdict::Admit);
        assert!(known.count() < 100);
    }
}
