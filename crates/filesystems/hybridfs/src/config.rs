//! The settings of a pair, as a front door hands them over.

use std::path::PathBuf;
use std::str::FromStr;

/// Everything a pair is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory on the small, fast device.
    pub ssd: PathBuf,
    /// The directory on the large, slow device.
    pub hdd: PathBuf,
    /// `lru`, `lfu`, `fifo`, `s3-fifo` or the path of a shared object.
    pub policy: String,
    /// Demotion starts above this use of the SSD's file system.
    pub high: Size,
    /// Demotion stops below this use.
    pub low: Size,
    /// Space of the SSD never given to writers through the daemon: head-room for those that bypass it.
    pub reserve: Size,
    /// Smaller files stay where they are, bytes.
    pub min_file_bytes: u64,
    /// Larger files are not promoted, and are demoted when they grow beyond it; `None`: half of the SSD.
    pub max_file: Option<Size>,
    /// When a file on the HDD is brought up.
    pub promotion: Promotion,
    /// Globs of files that stay on the SSD.
    pub pin_rules: Vec<String>,
    /// Globs of files that live on the HDD.
    pub hdd_rules: Vec<String>,
    /// Limit of the mover, bytes per second; `None`: unlimited.
    pub move_bytes_per_s: Option<u64>,
    /// Two opens within this many seconds are a second touch.
    pub promotion_window_secs: u32,
    /// Accept a directory that belonged to another pair or lost its identity.
    pub adopt: bool,
    /// Whether every change is refused.
    pub read_only: bool,
    /// Reading files and directories through the mount leaves their access times.
    pub noatime: bool,
    /// What the mount lets files do.
    pub honours: HonouredFeatures,
}

/// What a mount lets files do that most do not. Where a side, or a file system mounted below it, does not let its own files do it, the
/// mount does not either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HonouredFeatures {
    /// Set-id bits and file capabilities give rights.
    pub set_id: bool,
    /// Device files lead to devices.
    pub devices: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            ssd: PathBuf::new(),
            hdd: PathBuf::new(),
            policy: "lru".into(),
            high: Size::Percent(90),
            low: Size::Percent(80),
            reserve: Size::Percent(2),
            min_file_bytes: 0,
            max_file: None,
            promotion: Promotion::SecondTouch,
            pin_rules: Vec::new(),
            hdd_rules: Vec::new(),
            move_bytes_per_s: None,
            promotion_window_secs: 24 * 3600,
            adopt: false,
            read_only: false,
            honours: HonouredFeatures::default(),
            noatime: false,
        }
    }
}

/// An amount of space: absolute, or a share of the file system's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Per cent of the capacity, 0 to 100.
    Percent(u8),
}

impl Size {
    /// In bytes, of a file system of `capacity_bytes`.
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

/// When a file on the HDD is brought up to the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// In the background, after a second open within the window.
    SecondTouch,
    /// Inside every open, which waits for it (Algorithm 1 of the paper).
    OnOpen,
    /// Only when asked for.
    Never,
}

impl FromStr for Promotion {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "second-touch" => Ok(Promotion::SecondTouch),
            "on-open" => Ok(Promotion::OnOpen),
            "never" => Ok(Promotion::Never),
            _ => Err(SettingError { text: text.to_owned(), wanted: "one of second-touch, on-open, never" }),
        }
    }
}

impl std::fmt::Display for Promotion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Promotion::SecondTouch => "second-touch",
            Promotion::OnOpen => "on-open",
            Promotion::Never => "never",
        })
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
