//! Sizes as people write them, `10GiB` or `80%`, for every front end.
//!
//! A separate crate, so that devices and their simulator know sizes without the file systems.
#![forbid(unsafe_code)]

use std::str::FromStr;

/// An amount of space: absolute, or a share of the file system's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Per cent of the capacity, 0 to 100.
    Percent(u8),
}

impl Size {
    /// Returns the size in bytes, of a file system of `capacity_bytes`.
    pub fn of(self, capacity_bytes: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(share) => (u128::from(capacity_bytes) * u128::from(share) / 100) as u64,
        }
    }
}

/// What is wrong with a setting's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct SettingError {
    /// The value that was given.
    pub text: String,
    /// A description of the values that are accepted.
    pub wanted: &'static str,
}

impl FromStr for Size {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let bad = || SettingError { text: text.to_owned(), wanted: "a size such as 10GiB, 512MiB or 80%" };
        if let Some(share) = text.strip_suffix('%') {
            let share: u8 = share.trim().parse().map_err(|_| bad())?;
            return if share <= 100 { Ok(Size::Percent(share)) } else { Err(bad()) };
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number: f64 = text[..digits].parse().map_err(|_| bad())?;
        let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(bad()),
        };
        let bytes = number * unit as f64;
        if bytes.is_finite() && bytes < 9.2e18 { Ok(Size::Bytes(bytes as u64)) } else { Err(bad()) }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Size::Bytes(bytes) => write!(f, "{bytes}"),
            Size::Percent(share) => write!(f, "{share}%"),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!("10GiB".parse(), Ok(Size::Bytes(10 << 30)));
        assert_eq!("512m".parse(), Ok(Size::Bytes(512 << 20)));
        assert_eq!("1.5KiB".parse(), Ok(Size::Bytes(1536)));
        assert_eq!("80%".parse(), Ok(Size::Percent(80)));
        for bad in ["", "%", "101%", "ten", "10 parsecs", "-1", "1e300GiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_share_of_a_huge_file_system_does_not_overflow() {
        assert_eq!(Size::Percent(50).of(u64::MAX), u64::MAX / 2);
    }
}
