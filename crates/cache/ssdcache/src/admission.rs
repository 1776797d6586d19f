//! Which pages are worth a write to the SSD: while it has room the first touch is enough, then it takes the second; no streams, and
//! no more bytes a day than its owner allows.
//!
//! The ghosts are fingerprints of 9 bits in buckets of seven, first in first out in each, a word a bucket: no index. Of strangers one
//! in 73 is taken for a ghost, which costs one write. On traces many short fingerprints keep more hits than few long ones, and these
//! are as many as fit into the 16 bytes of memory that a page may take (`tests/policies` of `bench`).

use std::time::Duration;

use block::Time;

use crate::units::{FileKey, PAGE_BYTES, PageIndex};

const WAYS: u32 = 7;
const BITS: u32 = 9;
const PRINT: u64 = (1 << BITS) - 1;
const DAY_NS: u128 = 86_400 * 1_000_000_000;

/// The limits that admission keeps to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmissionLimits {
    /// Pages remembered after their first touch, seven in 8 bytes; 0: the first touch is always enough.
    pub ghosts: u32,
    /// A reader that has read so many bytes in sequence is streaming: its pages are not admitted. `u64::MAX`: no limit.
    pub stream_bytes: u64,
    /// Bytes written to the SSD in a day, summaries and re-insertions included. `u64::MAX`: no limit.
    pub bytes_per_day: u64,
    /// What may be saved up, bytes.
    pub burst_bytes: u64,
}

impl AdmissionLimits {
    /// For so many slots: seven ghosts for each 26, streams from 4 MiB, no budget.
    pub fn new(slots: u32) -> AdmissionLimits {
        AdmissionLimits { ghosts: (u64::from(slots) * 7 / 26) as u32, stream_bytes: 4 << 20, bytes_per_day: u64::MAX, burst_bytes: 1 << 30 }
    }
}

/// What the caller's rules (globs, flags of the handle) say of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdmissionRule {
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
pub enum AdmissionVerdict {
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

/// Decides which pages are worth an SSD write.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    /// A bucket's prints, the newest in the lowest bits; 0: none.
    ghosts: Box<[u64]>,
    tokens: u64,
    filled_at: Time,
}

impl Admission {
    /// Starts with a full write budget.
    pub fn new(limits: AdmissionLimits, now: Time) -> Admission {
        let buckets = limits.ghosts.div_ceil(WAYS) as usize;
        Admission { limits, ghosts: vec![0; buckets].into(), tokens: limits.burst_bytes, filled_at: now }
    }

    /// Returns the memory it takes in bytes.
    pub fn memory_bytes(limits: &AdmissionLimits) -> u64 {
        u64::from(limits.ghosts.div_ceil(WAYS)) * size_of::<u64>() as u64
    }

    /// Decides about a page read from the backing file, by a reader with so many bytes in sequence; `has_room`: nothing has to be evicted
    /// for it ([`crate::SsdCache::has_room`]). Takes nothing from the budget: `spend` does.
    pub fn admit(
        &mut self,
        now: Time,
        key: FileKey,
        page: PageIndex,
        in_sequence: u64,
        rule: AdmissionRule,
        has_room: bool,
    ) -> AdmissionVerdict {
        if rule == AdmissionRule::Never {
            return AdmissionVerdict::Rule;
        }
        if rule == AdmissionRule::Normal {
            if in_sequence >= self.limits.stream_bytes {
                return AdmissionVerdict::Stream;
            }
            if !has_room && !self.ghosts.is_empty() && !self.was_here(key, page) {
                return AdmissionVerdict::First;
            }
        }
        if self.may_spend(now) { AdmissionVerdict::Admit } else { AdmissionVerdict::Budget }
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
        let per_day = u128::from(self.limits.bytes_per_day);
        let gained = now.since(self.filled_at).as_nanos() * per_day / DAY_NS;
        if gained > 0 {
            self.tokens = u64::try_from(gained).unwrap_or(u64::MAX).saturating_add(self.tokens).min(self.limits.burst_bytes);
            // Only the time in which whole bytes came: a fraction of a byte waits for the next time.
            let nanos = (gained * DAY_NS).div_ceil(per_day);
            self.filled_at = self.filled_at.after(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        }
    }

    /// A page that was admitted could not be put: its next touch is not its first.
    pub fn remember(&mut self, key: FileKey, page: PageIndex) {
        if !self.ghosts.is_empty() {
            let (at, print) = self.place(key, page);
            self.ghosts[at] = (self.ghosts[at] << BITS | print) & ((1 << (BITS * WAYS)) - 1);
        }
    }

    /// Its bucket and its fingerprint.
    fn place(&self, key: FileKey, page: PageIndex) -> (usize, u64) {
        let mixed = (key.0 ^ page.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page.0.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let hash = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((((hash >> 32) * self.ghosts.len() as u64) >> 32) as usize, (hash >> 20 & PRINT).max(1))
    }

    /// Forgets it if so; remembers it if not.
    fn was_here(&mut self, key: FileKey, page: PageIndex) -> bool {
        let (at, print) = self.place(key, page);
        let bucket = self.ghosts[at];
        let Some(known) = (0..WAYS).map(|way| way * BITS).find(|shift| bucket >> shift & PRINT == print) else {
            self.remember(key, page);
            return false;
        };
        let newer = bucket & ((1 << known) - 1);
        self.ghosts[at] = newer | bucket >> (known + BITS) << known;
        true
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_second_touch_of_a_page_that_is_no_stream_and_within_the_budget() {
        let limits = AdmissionLimits { ghosts: 64, stream_bytes: 1 << 20, bytes_per_day: 86_400 * 4096, burst_bytes: 8192 };
        let mut admission = Admission::new(limits, Time(0));
        let mut ask = |now, page, run, rule| admission.admit(Time(now), FileKey(1), PageIndex(page), run, rule, false);
        assert_eq!(ask(0, 5, 0, AdmissionRule::Normal), AdmissionVerdict::First);
        assert_eq!(ask(0, 5, 0, AdmissionRule::Normal), AdmissionVerdict::Admit);
        assert_eq!(ask(0, 5, 0, AdmissionRule::Normal), AdmissionVerdict::First, "it is no ghost any more");
        assert_eq!(ask(0, 6, 1 << 20, AdmissionRule::Normal), AdmissionVerdict::Stream);
        assert_eq!(ask(0, 6, 1 << 20, AdmissionRule::Always), AdmissionVerdict::Admit);
        assert_eq!(ask(0, 6, 0, AdmissionRule::Never), AdmissionVerdict::Rule);
        admission.spend(Time(0), 8192);
        assert_eq!(admission.admit(Time(0), FileKey(1), PageIndex(7), 0, AdmissionRule::Always, false), AdmissionVerdict::Budget);
        let second = Time(0).after(Duration::from_secs(1));
        assert_eq!(
            admission.admit(second, FileKey(1), PageIndex(7), 0, AdmissionRule::Always, false),
            AdmissionVerdict::Admit,
            "a page a second"
        );
    }

    /// Against a list for each bucket.
    #[test]
    fn a_bucket_is_first_in_first_out_without_those_that_came_back() {
        let mut admission = Admission::new(AdmissionLimits { ghosts: 4 * WAYS, ..AdmissionLimits::new(0) }, Time(0));
        let (mut lists, mut rng) = (vec![Vec::new(); 4], fastrand::Rng::with_seed(9));
        for _ in 0..20_000 {
            let page = PageIndex(rng.u64(..60));
            let (at, print) = admission.place(FileKey(1), page);
            let list: &mut Vec<u64> = &mut lists[at];
            let known = list.iter().position(|ghost| *ghost == print);
            match known {
                Some(at) => _ = list.remove(at),
                None => list.insert(0, print),
            }
            list.truncate(WAYS as usize);
            assert_eq!(admission.was_here(FileKey(1), page), known.is_some());
        }
    }

    /// A week in which there is always more to write than is allowed, asked at odd moments; each page costs a bit more than
    /// itself. Then two days without any. How many bytes went in the week, and at once after the rest.
    fn week(bytes_per_day: u64, burst_bytes: u64, rng: &mut fastrand::Rng) -> (u64, u64) {
        const COST: u64 = PAGE_BYTES as u64 + 33;
        let mut admission = Admission::new(AdmissionLimits { ghosts: 0, stream_bytes: u64::MAX, bytes_per_day, burst_bytes }, Time(0));
        let (mut now, mut spent) = (Time(0), 0);
        // Some three times in the time of a page, and now and then not for long.
        let page_ns = (DAY_NS * u128::from(COST) / u128::from(bytes_per_day)) as u64;
        while now.0 < (7 * DAY_NS) as u64 {
            let pause = if rng.u32(..1000) == 0 { 50 * page_ns } else { rng.u64(..page_ns * 2 / 3) };
            now = now.after(Duration::from_nanos(pause));
            while admission.admit(now, FileKey(1), PageIndex(spent), 0, AdmissionRule::Normal, false) == AdmissionVerdict::Admit {
                admission.spend(now, COST);
                spent += COST;
            }
        }
        now = now.after(Duration::from_secs(2 * 86_400));
        let mut at_once = 0;
        while admission.may_spend(now) {
            admission.spend(now, COST);
            at_once += COST;
        }
        (spent, at_once)
    }

    #[test]
    fn a_week_takes_what_seven_days_may_and_what_was_saved_up() {
        let mut rng = fastrand::Rng::with_seed(5);
        for (bytes_per_day, burst) in [(100_000_000, 1 << 20), (700_000_001, 64 << 20), (86_400, 8192)] {
            let (spent, at_once) = week(bytes_per_day, burst, &mut rng);
            let most = 7 * bytes_per_day + burst;
            println!("{bytes_per_day} bytes a day, {burst} saved up: {spent} in a week, at most {most}; {at_once} at once after two days");
            // A page may cost more than is left, once.
            assert!(spent <= most + 33 * (spent / PAGE_BYTES as u64) && spent as f64 >= 0.99 * most as f64, "{spent} of {most}");
            assert!(at_once <= burst + PAGE_BYTES as u64 && at_once + PAGE_BYTES as u64 >= burst, "{at_once} of {burst} saved up");
        }
    }

    /// Asked far more often than a byte comes in, or just a bit less often.
    #[test]
    fn no_fraction_of_a_byte_is_lost() {
        let per_day = 86_400 * 1000;
        for step in [7u64, 999_999, 1_000_001, 1_999_999] {
            let limits = AdmissionLimits { ghosts: 0, stream_bytes: 0, bytes_per_day: per_day, burst_bytes: 1 << 40 };
            let mut admission = Admission::new(limits, Time(0));
            admission.tokens = 0;
            (1..=100_000u64).for_each(|n| admission.fill(Time(n * step)));
            let due = 100_000 * step / 1_000_000;
            assert!(admission.tokens <= due && admission.tokens + 1 >= due, "{} of {due} bytes", admission.tokens);
        }
    }

    #[test]
    fn while_there_is_room_the_first_touch_is_enough_but_not_for_a_stream() {
        let mut admission = Admission::new(AdmissionLimits::new(1024), Time(0));
        let mut ask = |page, run, room| admission.admit(Time(0), FileKey(1), PageIndex(page), run, AdmissionRule::Normal, room);
        assert_eq!(ask(1, 0, true), AdmissionVerdict::Admit);
        assert_eq!(ask(2, 4 << 20, true), AdmissionVerdict::Stream);
        assert_eq!(ask(1, 0, false), AdmissionVerdict::First, "it had a place: no ghost was made");
        assert_eq!(ask(1, 0, false), AdmissionVerdict::Admit);
    }

    #[test]
    fn a_scan_is_hardly_taken_for_ghosts() {
        let mut admission = Admission::new(AdmissionLimits::new(1 << 16), Time(0));
        let mut ask = |page| admission.admit(Time(0), FileKey(9), PageIndex(page), 0, AdmissionRule::Normal, false);
        let known = (0..100_000).filter(|page| ask(*page) == AdmissionVerdict::Admit).count();
        println!("{known} of 100000 strangers were taken for ghosts");
        assert!(known < 100_000 / 65);
    }
}
