//! The settings of a pair, as a front end hands them over.

use std::path::PathBuf;
use std::str::FromStr;

pub use sizes::{SettingError, Size};

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
