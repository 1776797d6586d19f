//! Changing settings of a pair that is mounted.
//!
//! All changes of one request are checked before the first is made. They last until the pair is unmounted; the configuration is the
//! user's own.

pub(crate) mod tunables;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::config::{Promotion, Size};
use crate::pair::TieredFs;
use crate::report::TierName;
use crate::space::Marks;

/// What can be changed on a running mount, by the names of the flags. Everything else needs a new mount.
pub const SETTINGS: [&str; 9] =
    ["policy", "high", "low", "reserve", "min-file-size", "max-file-size", "promotion", "move-rate", "touch-window"];
/// A mark of fewer bytes was meant as a percentage.
const SMALLEST_MARK: u64 = 1 << 20;

impl TieredFs {
    /// Changes the policy, the marks and the limits that are named. Returns a sentence for people, also when nothing was changed because
    /// something is wrong.
    ///
    /// With `dry_run` it is only looked whether all of them could be made.
    pub fn set(&self, changes: &BTreeMap<String, String>, dry_run: bool) -> std::result::Result<String, String> {
        if changes.is_empty() {
            return Err(format!("nothing to set: give {} as NAME=VALUE", SETTINGS.join(", ")));
        }
        let mut marks = self.space.marks(&self.config);
        let mut policy = None;
        let (mut promotion, mut rate, mut min_file, mut window) = (None, None, None, None);
        for (name, value) in changes {
            let size = || self.size_of(name, value);
            match name.replace('_', "-").as_str() {
                "high" => marks.high = size()?,
                "low" => marks.low = size()?,
                "reserve" => marks.reserve = size()?,
                "max-file-size" => marks.max_file = Some(size()?),
                "policy" => policy = Some(policy::by_name(value).map_err(|error| format!("policy={value}: {error}"))?),
                "promotion" => promotion = Some(value.parse::<Promotion>().map_err(|error| format!("promotion: {error}"))?),
                "move-rate" => rate = Some(bytes_of(name, value, true)?),
                "min-file-size" => min_file = Some(bytes_of(name, value, false)?.unwrap_or(0)),
                "touch-window" => {
                    let seconds: u32 = value.parse().map_err(|_| format!("touch-window={value} is not a number of seconds"))?;
                    window = Some(seconds);
                }
                _ => {
                    let only = SETTINGS.join(", ");
                    return Err(format!("{name} cannot be set on a running mount, only {only}: unmount, and mount with it"));
                }
            }
        }
        let capacity = self.space.of(TierName::Ssd).capacity;
        let (high, low) = (marks.high.of(capacity), marks.low.of(capacity));
        if low > high {
            return Err(format!("the low mark ({}) lies above the high mark ({}): set both, as low=70% high=80%", marks.low, marks.high));
        }
        let shown = changes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        if dry_run {
            return Ok(format!("could be set: {shown}"));
        }
        self.space.set_marks(marks);
        let _ = self.space.refresh(self.tiers(), &self.config);
        if let Some(policy) = policy {
            self.placement.set_policy(policy);
        }
        if let Some(promotion) = promotion {
            self.tunables.promotion.store(promotion as u8, Ordering::Relaxed);
        }
        if let Some(rate) = rate {
            self.mover.set_rate(rate);
        }
        if let Some(min_file) = min_file {
            self.tunables.min_file_bytes.store(min_file, Ordering::Relaxed);
        }
        if let Some(seconds) = window {
            self.tunables.touch_window_s.store(seconds, Ordering::Relaxed);
            self.placement.set_touch_window(seconds);
        }
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

/// A number of bytes that has nothing to do with the size of the SSD; `None`: no limit.
fn bytes_of(name: &str, value: &str, none: bool) -> std::result::Result<Option<u64>, String> {
    if none && value == "none" {
        return Ok(None);
    }
    match value.parse::<Size>().map_err(|error| format!("{name}: {error}"))? {
        Size::Percent(_) => Err(format!("{name}={value}: give a size such as 20MiB")),
        Size::Bytes(0) if none => Err(format!("{name}={value}: nothing would move: give `none` for no limit")),
        Size::Bytes(bytes) => Ok(Some(bytes)),
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
        fs.set(&changes("high=70% low=60% reserve=3% max_file_size=2MiB policy=lfu"), false).expect("set");
        let status = fs.status();
        let share = |percent| Size::Percent(percent).of(capacity);
        assert_eq!((status.high_bytes, status.low_bytes, status.reserve_bytes), (share(70), share(60), share(3)));
        assert_eq!((status.max_file_bytes, status.policy.as_str()), (2 << 20, "lfu"));
        // One at a time, beside what was set.
        fs.set(&changes("high=80%"), false).expect("set");
        assert_eq!((fs.status().high_bytes, fs.status().low_bytes), (share(80), share(60)));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_changes_nothing() {
        let fs = TestPair::empty();
        fs.set(&changes("high=90% low=80%"), false).expect("set");
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
            ("promotion=always", "second-touch, on-open, never"),
            ("move-rate=5%", "give a size"),
            ("move-rate=0", "`none` for no limit"),
            ("high=70% touch-window=1h", "not a number of seconds"),
        ] {
            let error = fs.set(&changes(bad), false).expect_err(bad);
            assert!(error.contains(words), "{bad}: {error}");
        }
        let after = fs.status();
        assert_eq!((before.high_bytes, before.low_bytes, before.policy), (after.high_bytes, after.low_bytes, after.policy));
    }

    #[test]
    fn promotion_and_moves_are_changed_and_a_dry_run_changes_nothing() {
        let fs = TestPair::with(&["hdd/file"]);
        let words = "promotion=never move-rate=5MiB min-file-size=4KiB touch-window=60";
        let shown = |fs: &TestPair| {
            let status = fs.status();
            (status.promotion, status.move_rate_bytes, status.min_file_bytes, status.touch_window_s)
        };
        let before = shown(&fs);
        fs.set(&changes(words), true).expect("could be set");
        assert_eq!(shown(&fs), before);
        fs.set(&changes(words), false).expect("set");
        assert_eq!(shown(&fs), ("never".into(), Some(5 << 20), 4 << 10, 60));
        let ino = fs.look_up("file");
        let opened = |times: u32| {
            for _ in 0..times {
                fs.touched(ino, TierName::Hdd);
            }
            fs.status().queue
        };
        assert_eq!(opened(3), 0);
        fs.set(&changes("promotion=second-touch move-rate=none min-file-size=0"), false).expect("set");
        assert_eq!(opened(2), 1);
        assert_eq!(fs.status().move_rate_bytes, None);
    }

    #[test]
    fn another_policy_knows_the_files() {
        let fs = TestPair::empty();
        for (ino, opens) in [(11, 9), (12, 1)] {
            fs.placement.arrived(ino, 100, ino as u32, opens);
        }
        fs.set(&changes("policy=lfu"), false).expect("set");
        let order: Vec<u64> = fs.placement.records().iter().map(|record| record.file.0).collect();
        assert_eq!(order, [12, 11]);
    }
}
