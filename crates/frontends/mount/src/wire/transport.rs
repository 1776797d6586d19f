//! The transport of requests, io_uring or the device: what the user chose, and what the kernel allows.

use std::str::FromStr;
use std::sync::OnceLock;

use hybridfs::config::SettingError;

/// Whether requests come over io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UringMode {
    /// Where the kernel offers it.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl FromStr for UringMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "auto" => Ok(UringMode::Auto),
            "off" => Ok(UringMode::Off),
            _ => Err(SettingError { text: text.to_owned(), wanted: "one of auto, off" }),
        }
    }
}

/// Tells whether requests come over io_uring, and why if not.
#[derive(Debug, Default)]
pub struct Transport {
    why_not: OnceLock<String>,
}

impl Transport {
    /// Returns the reason why requests do not use io_uring, if they do not.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.get().map(String::as_str)
    }

    /// Records the reason why requests use the device. Only the first reason counts: returns whether this is the first.
    pub(super) fn is_device(&self, why_not: String) -> bool {
        self.why_not.set(why_not).is_ok()
    }
}
