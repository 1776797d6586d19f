//! The size of a cache for a trace.

use std::str::FromStr;

use super::Trace;

/// Of the pages that a trace asks for, or a number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CacheSize {
    /// `10%` of the different pages.
    Percent(f64),
    /// `4096` pages of 4 KiB.
    Pages(u32),
}

impl CacheSize {
    /// In pages, at least one.
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
            // 64 GiB: all of it is memory here.
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
