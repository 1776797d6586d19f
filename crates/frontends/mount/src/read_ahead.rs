//! How far the kernel reads ahead on a mount.

use std::path::Path;

use crate::source;

/// Lets the kernel read ahead of a program that reads a file in sequence by up to so many bytes, in several requests at the same time.
///
/// A FUSE mount has 128 KiB, which is less than a network needs to be busy (latency times bandwidth), and than an SSD needs. Only root may
/// change it; without that, or where sysfs is not mounted, it stays as it is. What root has set to more stays, too.
pub fn raise(mountpoint: &Path, bytes: u64) {
    let Some(device) = source::device_at(mountpoint) else { return };
    let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
    let now = std::fs::read_to_string(&setting).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if now.is_some_and(|kib| kib << 10 >= bytes) {
        return;
    }
    match std::fs::write(&setting, (bytes >> 10).to_string()) {
        Ok(()) => tracing::debug!(bytes, "the kernel reads ahead"),
        Err(error) => tracing::debug!(%error, setting, "the kernel's read-ahead stays as it is"),
    }
}
