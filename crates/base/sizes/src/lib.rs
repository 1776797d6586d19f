//! Sizes and times as people write them, `10GiB`, `80%` or `5s`, for every front end.
//!
//! A separate crate, so that devices and their simulator know sizes without the file systems.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is wrong with a setting's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct SettingError {
    /// The value that was given.
    pub text: String,
    /// A description of the values that are accepted.
    pub wanted: &'static str,
}

/// An amount of space: absolute, or a share of a capacity that the setting names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Per cent of the capacity, 0 to 100.
    Percent(u8),
}

impl Size {
    /// Returns the size in bytes, of a capacity of `capacity_bytes`.
    pub fn of(self, capacity_bytes: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(share) => (u128::from(capacity_bytes) * u128::from(share) / 100) as u64,
        }
    }
}

const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

impl FromStr for Size {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let bad = || SettingError { text: text.to_owned(), wanted: "a size such as 10GiB, 512MiB or 80%" };
        if let Some(share) = text.strip_suffix('%') {
            let share: u8 = share.trim().parse().map_err(|_| bad())?;
            return if share <= 100 { Ok(Size::Percent(share)) } else { Err(bad()) };
        }
        let (number, unit) = split(text);
        let (_, unit) = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).ok_or_else(bad)?;
        let bytes = number.parse::<f64>().map_err(|_| bad())? * *unit as f64;
        if bytes.is_finite() && bytes < 9.2e18 { Ok(Size::Bytes(bytes as u64)) } else { Err(bad()) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(bytes) => {
                let whole = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
                let unit = whole.into_iter().find(|(unit, _)| *bytes > 0 && bytes.is_multiple_of(*unit));
                let (unit, name) = unit.unwrap_or((1, ""));
                write!(f, "{}{name}", bytes / unit)
            }
            Size::Percent(share) => write!(f, "{share}%"),
        }
    }
}

/// A length of time: `500ms`, `5s`, `2m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age(pub Duration);

impl FromStr for Age {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let bad = || SettingError { text: text.to_owned(), wanted: "a time such as 500ms, 5s, 2m or 1h" };
        let (number, unit) = split(text);
        let unit_s = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        let seconds = number.parse::<f64>().map_err(|_| bad())? * unit_s;
        if (0.0..=31_536_000.0).contains(&seconds) { Ok(Age(Duration::from_secs_f64(seconds))) } else { Err(bad()) }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let unit = [(3_600_000, "h"), (60_000, "m"), (1000, "s")].into_iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit));
        let (unit, name) = unit.unwrap_or((1, "ms"));
        write!(f, "{}{name}", ms / unit)
    }
}

fn split(text: &str) -> (&str, &str) {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..digits], text[digits..].trim())
}

/// Reads a number, of bytes, or a text.
impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(from)? {
            Either::Number(bytes) => Ok(Size::Bytes(bytes)),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Age, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Age {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_as_people_write_them() {
        assert_eq!("10GiB".parse(), Ok(Size::Bytes(10 << 30)));
        assert_eq!("512m".parse(), Ok(Size::Bytes(512 << 20)));
        assert_eq!("1.5 KiB".parse(), Ok(Size::Bytes(1536)));
        assert_eq!("25%".parse(), Ok(Size::Percent(25)));
        assert_eq!(Size::Percent(50).of(u64::MAX), u64::MAX / 2);
        assert_eq!("1.5s".parse(), Ok(Age(Duration::from_millis(1500))));
        for bad in ["", "%", "101%", "ten", "10 parsecs", "-1", "1e300GiB", "é"] {
            assert!(bad.parse::<Size>().is_err() && bad.parse::<Age>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_shown_is_read_again_and_short() {
        for (text, shown) in
            [("64MiB", "64MiB"), ("1536KiB", "1536KiB"), ("1.5MiB", "1536KiB"), ("2048GiB", "2TiB"), ("1000", "1000"), ("0", "0")]
        {
            let size: Size = text.parse().expect("a size");
            assert_eq!(size.to_string(), shown);
            assert_eq!(shown.parse(), Ok(size));
        }
        for (text, shown) in [("3600s", "1h"), ("90s", "90s"), ("2m", "2m"), ("1500ms", "1500ms"), ("0s", "0ms")] {
            let age: Age = text.parse().expect("a time");
            assert_eq!(age.to_string(), shown);
            assert_eq!(shown.parse(), Ok(age));
        }
    }
}
