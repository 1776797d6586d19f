//! The size of a cache for a trace.

use std::str::FromStr;

use super::Trace;

/// A cache size: a share of the distinct pages, or a number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CacheSize {
    /// A percentage of the distinct pages, such as `10%`.
    Percent(f64),
    /// A number of 4 KiB pages, such as `4096`.
    Pages(u32),
}

impl CacheSize {
    /// Returns the size in pages, at least one.
    pub fn of(self, trace: &Trace) -> u32 {
        match self {
            CacheSize::Percent(percent) => trace.share(percent),
            CacheSize::Pages(pages) => pages,
        }
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheSize, String> {
        let size = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0).map(CacheSize::Percent),
            // 64 GiB at most: the whole cache is in memory.
            None => text.parse().ok().filter(|pages| (1..=1 << 24).contains(pages)).map(CacheSize::Pages),
        };
        size.ok_or_else(|| format!("`{text}` is neither a share of the pages (10%) nor a number of pages, 1 to 16777216"))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn shares_and_numbers() {
        let trace = Trace::new("", (0..1999).collect());
        let size = |text: &str| text.parse::<CacheSize>().map(|size| size.of(&trace));
        assert_eq!([size("10%"), size("0.01%"), size("100%"), size("7")], [Ok(199), Ok(1), Ok(1999), Ok(7)]);
        for wrong in ["", "0", "0%", "101%", "-1", "NaN%", "10 %", "99999999"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
