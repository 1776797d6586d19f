//! Decides which pages are worth a write to the SSD: at the first touch while it has room, later at the second. Streams are not admitted,
//! and no more bytes a day than the user allows.
//!
//! The ghosts are fingerprints of 9 bits in buckets of seven, first in, first out in each bucket. A bucket is one word, and there is no
//! index. One in 73 unknown pages is mistaken for a ghost, which costs one write. On traces many short fingerprints keep more hits than few
//! long ones. Their number fits into the 16 bytes of memory that a page may take (`tests/policies` of `bench`).

use std::time::Duration;

use block::Time;

use crate::units::{FileKey, PAGE_BYTES, PageIndex};

const WAYS: u32 = 7;
const BITS: u32 = 9;
const PRINT: u64 = (1 << BITS) - 1;
const DAY_NS: u128 = 86_400 * 1_000_000_000;

/// The limits of admission, set by the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmissionLimits {
    /// The number of pages remembered after their first touch, seven in 8 bytes; 0: every first touch is admitted.
    pub ghosts: u32,
    /// The number of sequential bytes after which a reader is streaming: its pages are not admitted. `u64::MAX`: no limit.
    pub stream_bytes: u64,
    /// The bytes written to the SSD in a day, including summaries and re-insertions. `u64::MAX`: no limit.
    pub bytes_per_day: u64,
    /// The maximum unused budget that is saved up, in bytes.
    pub burst_bytes: u64,
}

impl AdmissionLimits {
    /// Returns the limits for this number of slots: seven ghosts for each 26 slots, streams from 4 MiB, no budget.
    pub fn new(slots: u32) -> AdmissionLimits {
        AdmissionLimits { ghosts: (u64::from(slots) * 7 / 26) as u32, stream_bytes: 4 << 20, bytes_per_day: u64::MAX, burst_bytes: 1 << 30 }
    }
}

/// The decision of the caller's rules (globs, flags of the handle) for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdmissionRule {
    /// Its pages are never admitted.
    Never,
    /// Its pages are admitted as described in the module.
    #[default]
    Normal,
    /// Its pages are admitted at the first touch, also streams; the budget applies.
    Always,
}

/// The decision about a page, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionVerdict {
    /// The page is to be written to the SSD.
    Admit,
    /// It is the page's first touch, which is remembered.
    First,
    /// The page is part of a stream.
    Stream,
    /// The bytes of the day are used up.
    Budget,
    /// The rules exclude the page.
    Rule,
}

/// Decides which pages are worth an SSD write.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    /// The fingerprints of each bucket, the newest in the lowest bits; 0: none.
    ghosts: Box<[u64]>,
    tokens: u64,
    filled_at: Time,
}

impl Admission {
    /// Creates it with a full write budget.
    pub fn new(limits: AdmissionLimits, now: Time) -> Admission {
        let buckets = limits.ghosts.div_ceil(WAYS) as usize;
        Admission { limits, ghosts: vec![0; buckets].into(), tokens: limits.burst_bytes, filled_at: now }
    }

    /// Returns the memory it takes in bytes.
    pub fn memory_bytes(limits: &AdmissionLimits) -> u64 {
        u64::from(limits.ghosts.div_ceil(WAYS)) * size_of::<u64>() as u64
    }

    /// Decides about a page read from the backing file, by a reader with this number of sequential bytes. `has_room`: no page has to be
    /// evicted for it ([`crate::SsdCache::has_room`]). The budget is not charged: `spend` does that.
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

    /// Returns whether the budget has room for a page. It also limits writes in write-back mode, which then bypass the SSD.
    pub fn may_spend(&mut self, now: Time) -> bool {
        self.fill(now);
        self.limits.bytes_per_day == u64::MAX || self.tokens >= PAGE_BYTES as u64
    }

    /// Charges the budget with bytes written to the SSD. Necessary writes are charged, too, and may use up the budget.
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

    /// Remembers an admitted page that could not be put: its next touch is not its first.
    pub fn remember(&mut self, key: FileKey, page: PageIndex) {
        if !self.ghosts.is_empty() {
            let (at, print) = self.place(key, page);
            self.ghosts[at] = (self.ghosts[at] << BITS | print) & ((1 << (BITS * WAYS)) - 1);
        }
    }

    /// Returns the bucket and the fingerprint of a page.
    fn place(&self, key: FileKey, page: PageIndex) -> (usize, u64) {
        let mixed = (key.0 ^ page.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page.0.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let hash = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((((hash >> 32) * self.ghosts.len() as u64) >> 32) as usize, (hash >> 20 & PRINT).max(1))
    }

    /// Returns whether the page is remembered, and removes it; otherwise remembers it.
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

    /// Compares with a list for each bucket.
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

    /// Simulates a week in which more is to be written than allowed, with requests at random times; each page costs a bit more than itself.
    /// Two days without writes follow. Returns the bytes of the week, and those possible at once after the rest.
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
