//! Changing settings of a pair that is mounted.
//!
//! All changes of one request are checked before the first is made. They last until the pair is unmounted; the configuration is the
//! user's own.

use std::collections::BTreeMap;

use crate::config::Size;
use crate::pair::Hybrid;
use crate::report::TierName;
use crate::space::Marks;

/// What can be changed, by the names of the flags.
const CHANGEABLE: &str = "policy, high, low, reserve, max-file-size";
/// A mark of fewer bytes was meant as a percentage.
const SMALLEST_MARK: u64 = 1 << 20;

impl Hybrid {
    /// Changes the policy, the marks and the limits that are named. Returns a sentence for people, also when nothing was changed because
    /// something is wrong.
    pub fn set(&self, changes: &BTreeMap<String, String>) -> std::result::Result<String, String> {
        if changes.is_empty() {
            return Err(format!("nothing to set: give {CHANGEABLE} as NAME=VALUE"));
        }
        let mut marks = self.space.marks(&self.config);
        let mut policy = None;
        for (name, value) in changes {
            let size = || self.size_of(name, value);
            match name.replace('_', "-").as_str() {
                "high" => marks.high = size()?,
                "low" => marks.low = size()?,
                "reserve" => marks.reserve = size()?,
                "max-file-size" => marks.max_file = Some(size()?),
                "policy" => policy = Some(policy::by_name(value).map_err(|error| format!("policy={value}: {error}"))?),
                _ => return Err(format!("{name} cannot be set on a running mount, only {CHANGEABLE}: unmount, and mount with it")),
            }
        }
        let capacity = self.space.of(TierName::Ssd).capacity;
        let (high, low) = (marks.high.of(capacity), marks.low.of(capacity));
        if low > high {
            return Err(format!("the low mark ({}) lies above the high mark ({}): set both, as low=70% high=80%", marks.low, marks.high));
        }
        self.space.set_marks(marks);
        let _ = self.space.refresh(self.tiers(), &self.config);
        if let Some(policy) = policy {
            self.placement.set_policy(policy);
        }
        let shown = changes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        tracing::info!(settings = shown, "settings were changed");
        Ok(format!("set until it is unmounted: {shown}"))
    }

    /// A size that can be meant for the SSD.
    fn size_of(&self, name: &str, value: &str) -> std::result::Result<Size, String> {
        let size: Size = value.parse().map_err(|error| format!("{name}: {error}"))?;
        let capacity = self.space.of(TierName::Ssd).capacity;
        match size {
            Size::Bytes(bytes) if bytes > capacity => Err(format!("{name}={value} is more than the SSD has ({capacity} bytes)")),
            Size::Bytes(bytes) if bytes < SMALLEST_MARK && name != "reserve" => {
                Err(format!("{name}={value} is {bytes} bytes: a share has a sign, as {name}={}%", bytes.clamp(1, 100)))
            }
            Size::Bytes(bytes @ 1..SMALLEST_MARK) => Err(format!("{name}={value} is {bytes} bytes: a share has a sign, as {name}=2%")),
            Size::Percent(0) if matches!(name, "high" | "low") => Err(format!("{name}=0%: everything would leave the SSD")),
            size => Ok(size),
        }
    }
}

/// As configured.
impl Marks {
    pub(crate) fn of(config: &crate::config::Config) -> Marks {
        Marks { high: config.high, low: config.low, reserve: config.reserve, max_file: config.max_file }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::TestPair;

    fn changes(words: &str) -> BTreeMap<String, String> {
        words.split(' ').filter_map(|word| word.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn what_is_set_holds_and_is_shown() {
        let fs = TestPair::with(&["ssd/a", "ssd/b"]);
        let capacity = fs.status().ssd.capacity_bytes;
        fs.set(&changes("high=70% low=60% reserve=3% max_file_size=2MiB policy=lfu")).expect("set");
        let status = fs.status();
        let share = |percent| Size::Percent(percent).of(capacity);
        assert_eq!((status.high_bytes, status.low_bytes, status.reserve_bytes), (share(70), share(60), share(3)));
        assert_eq!((status.max_file_bytes, status.policy.as_str()), (2 << 20, "lfu"));
        // One at a time, beside what was set.
        fs.set(&changes("high=80%")).expect("set");
        assert_eq!((fs.status().high_bytes, fs.status().low_bytes), (share(80), share(60)));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_changes_nothing() {
        let fs = TestPair::empty();
        let before = fs.status();
        for (bad, words) in [
            ("", "nothing to set"),
            ("high=95", "high=95%"),
            ("high=101%", "is not a size"),
            ("low=95%", "above the high mark"),
            ("policy=lfu high=10% low=20%", "above the high mark"),
            ("reserve=9000TiB", "more than the SSD has"),
            ("policy=newest", "newest"),
            ("allow-other=1", "cannot be set on a running mount"),
            ("low=0%", "everything would leave"),
        ] {
            let error = fs.set(&changes(bad)).expect_err(bad);
            assert!(error.contains(words), "{bad}: {error}");
        }
        let after = fs.status();
        assert_eq!((before.high_bytes, before.low_bytes, before.policy), (after.high_bytes, after.low_bytes, after.policy));
    }

    #[test]
    fn another_policy_knows_the_files() {
        let fs = TestPair::empty();
        for (ino, opens) in [(11, 9), (12, 1)] {
            fs.placement.arrived(ino, 100, ino as u32, opens);
        }
        fs.set(&changes("policy=lfu")).expect("set");
        let order: Vec<u64> = fs.placement.records().iter().map(|record| record.file.0).collect();
        assert_eq!(order, [12, 11]);
    }
}
