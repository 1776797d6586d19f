//! Throttling a loop device to the speed of a drive, by the `blkio` controller of cgroup v1 or `io` of v2.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::undo::UndoStep;
use super::{Lab, group};

/// The speed limits of a drive; 0: no limit.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DriveSpeed {
    /// Maximum read requests per second.
    pub read_iops: u32,
    /// Maximum write requests per second.
    pub write_iops: u32,
    /// Maximum bytes read per second.
    pub read_bytes: u64,
    /// Maximum bytes written per second.
    pub write_bytes: u64,
}

impl DriveSpeed {
    /// A disk with random access: HyCache, Table II, has 195 requests a second.
    pub const HDD_RANDOM: DriveSpeed = DriveSpeed { read_iops: 195, write_iops: 195, read_bytes: 144_000_000, write_bytes: 142_000_000 };
    /// A disk with sequential access, without seeks: HyCache, Table I.
    pub const HDD_SEQUENTIAL: DriveSpeed = DriveSpeed { read_iops: 0, write_iops: 0, read_bytes: 144_000_000, write_bytes: 142_000_000 };
    /// A slow SSD, whose own time dominates even on a busy machine.
    pub const SLOW_SSD: DriveSpeed = DriveSpeed { read_iops: 1000, write_iops: 1000, read_bytes: 60_000_000, write_bytes: 60_000_000 };
    /// No limit on any rate.
    pub const UNLIMITED: DriveSpeed = DriveSpeed { read_iops: 0, write_iops: 0, read_bytes: 0, write_bytes: 0 };
    /// The SATA SSD of HyCache, Table I.
    pub const SSD: DriveSpeed = DriveSpeed { read_iops: 26_000, write_iops: 26_000, read_bytes: 480_000_000, write_bytes: 330_000_000 };
}

impl DriveSpeed {
    /// Returns limits multiplied by a factor.
    #[must_use]
    pub fn times(self, factor: u32) -> DriveSpeed {
        let bytes = |bytes: u64| bytes * u64::from(factor);
        DriveSpeed {
            read_iops: self.read_iops * factor,
            write_iops: self.write_iops * factor,
            read_bytes: bytes(self.read_bytes),
            write_bytes: bytes(self.write_bytes),
        }
    }

    /// Returns limits for a device that shares one limit between reads and writes in equal parts.
    #[must_use]
    pub fn shared(self) -> DriveSpeed {
        DriveSpeed {
            read_iops: self.read_iops / 2,
            write_iops: self.write_iops / 2,
            read_bytes: self.read_bytes / 2,
            write_bytes: self.write_bytes / 2,
        }
    }
}

const V1: &str = "/sys/fs/cgroup/blkio";

/// Returns why throttling cannot be used here.
pub fn why_not() -> Option<String> {
    if is_v1() {
        return None;
    }
    if group::has("io") {
        return group::why_not("io");
    }
    Some("no control group here slows devices down: mount the controller blkio (v1) or io (v2)".into())
}

fn is_v1() -> bool {
    Path::new(V1).join("blkio.throttle.read_bps_device").exists()
}

/// Returns how devices are throttled here, for the report.
pub fn how() -> &'static str {
    if is_v1() { "blkio, cgroup v1" } else { "io.max, cgroup v2" }
}

/// Limits the device for this process, its children and the kernel's write-back.
pub(super) fn limit(lab: &mut Lab<'_>, device: &Path, speed: &DriveSpeed) -> anyhow::Result<()> {
    let number = number_of(device)?;
    if is_v1() { limit_v1(lab, &number, speed) } else { limit_v2(lab, device, &number, speed) }
}

/// Returns `major:minor` of a device.
pub(super) fn number_of(device: &Path) -> anyhow::Result<String> {
    let name = device.file_name().context("a device has a name")?;
    let file = Path::new("/sys/block").join(name).join("dev");
    Ok(std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?.trim().to_owned())
}

/// A v1 limit applies to one group, and write-back is charged to the root: our group and the root get it for this device.
fn limit_v1(lab: &mut Lab<'_>, number: &str, speed: &DriveSpeed) -> anyhow::Result<()> {
    let root = PathBuf::from(V1);
    let mut groups = vec![root.clone()];
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.split_once(":blkio:")).map_or("/", |(_, path)| path);
    let own = root.join(own.trim_start_matches('/'));
    if own != root && own.join("blkio.throttle.read_bps_device").exists() {
        groups.push(own);
    }
    let limits = [
        ("read_iops", u64::from(speed.read_iops)),
        ("write_iops", u64::from(speed.write_iops)),
        ("read_bps", speed.read_bytes),
        ("write_bps", speed.write_bytes),
    ];
    for group in groups {
        for (name, value) in limits {
            let file = group.join(format!("blkio.throttle.{name}_device"));
            let undo = UndoStep::Limit(file.clone(), format!("{number} 0"));
            // No limit to remove.
            if value == 0 && !lab.has(&undo) {
                continue;
            }
            lab.will_once(undo)?;
            std::fs::write(&file, format!("{number} {value}")).with_context(|| format!("{}", file.display()))?;
        }
    }
    Ok(())
}

/// The v2 root has no limits: this process moves to a separate group, and its children follow. Write-back is charged to the group that
/// dirtied the pages, where the file system supports it (ext4 does), and the journal to the thread that writes it.
fn limit_v2(lab: &mut Lab<'_>, device: &Path, number: &str, speed: &DriveSpeed) -> anyhow::Result<()> {
    let own = group::make(lab, "io", "")?;
    group::enter(&own, &[std::process::id()])?;
    group::enter(&own, &journal_writers(device))?;
    let words = [
        ("riops", u64::from(speed.read_iops)),
        ("wiops", u64::from(speed.write_iops)),
        ("rbps", speed.read_bytes),
        ("wbps", speed.write_bytes),
    ];
    let word = |(name, value): (&str, u64)| if value == 0 { format!("{name}=max") } else { format!("{name}={value}") };
    let words = format!("{number} {}", words.map(word).join(" "));
    // Memory groups are siblings of our group.
    for group in lab.memory_groups().into_iter().chain([own]) {
        lab.will_once(UndoStep::Limit(group.join("io.max"), format!("{number} riops=max wiops=max rbps=max wbps=max")))?;
        group::set(&group, "io.max", &words)?;
    }
    Ok(())
}

/// Returns the kernel's journal threads of an ext4 on the device; they start in the root group.
fn journal_writers(device: &Path) -> Vec<u32> {
    let name = format!("(jbd2/{}-", device.file_name().unwrap_or_default().to_string_lossy());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    // Kernel threads are children of process 2.
    let is_one = |stat: String| stat.contains(&name) && stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some("2");
    pids.filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(is_one)).collect()
}
