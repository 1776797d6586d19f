//! Slowing a loop device down to what a drive does: by the controller `blkio` of control groups v1, or `io` of v2.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::undo::UndoStep;
use super::{Lab, group};

/// What a drive does at most; 0: no limit.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DriveSpeed {
    /// Read requests a second.
    pub read_iops: u32,
    /// Write requests a second.
    pub write_iops: u32,
    /// Bytes a second.
    pub read_bytes: u64,
    /// Bytes a second.
    pub write_bytes: u64,
}

impl DriveSpeed {
    /// A disk at random places: the paper's (003, Table II) did 195 a second.
    pub const HDD_RANDOM: DriveSpeed = DriveSpeed { read_iops: 195, write_iops: 195, read_bytes: 144_000_000, write_bytes: 142_000_000 };
    /// A disk in sequence, where no head moves: the paper's Table I.
    pub const HDD_SEQUENTIAL: DriveSpeed = DriveSpeed { read_iops: 0, write_iops: 0, read_bytes: 144_000_000, write_bytes: 142_000_000 };
    /// A slow SSD, whose own time is what one measures also on a busy machine.
    pub const SLOW_SSD: DriveSpeed = DriveSpeed { read_iops: 1000, write_iops: 1000, read_bytes: 60_000_000, write_bytes: 60_000_000 };
    /// As fast as it is.
    pub const UNLIMITED: DriveSpeed = DriveSpeed { read_iops: 0, write_iops: 0, read_bytes: 0, write_bytes: 0 };
    /// The SATA SSD of the paper's Table I.
    pub const SSD: DriveSpeed = DriveSpeed { read_iops: 26_000, write_iops: 26_000, read_bytes: 480_000_000, write_bytes: 330_000_000 };
}

impl DriveSpeed {
    /// So many times as much of everything.
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

    /// Of a device that has one limit for both, when half of what is done are reads.
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

/// What is wrong with them here.
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

/// How it is done here, for people.
pub fn how() -> &'static str {
    if is_v1() { "blkio, cgroup v1" } else { "io.max, cgroup v2" }
}

/// Limits the device for us, for what we start, and for the kernel's writing back.
pub(super) fn limit(lab: &mut Lab<'_>, device: &Path, speed: &DriveSpeed) -> anyhow::Result<()> {
    let number = number_of(device)?;
    if is_v1() { limit_v1(lab, &number, speed) } else { limit_v2(lab, device, &number, speed) }
}

/// `major:minor`.
pub(super) fn number_of(device: &Path) -> anyhow::Result<String> {
    let name = device.file_name().context("a device has a name")?;
    let file = Path::new("/sys/block").join(name).join("dev");
    Ok(std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?.trim().to_owned())
}

/// The limit is the group's own, and the kernel writes back in the name of the root: our group and the root get it, for this device.
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
            // No limit where there was none.
            if value == 0 && !lab.has(&undo) {
                continue;
            }
            lab.will_once(undo)?;
            std::fs::write(&file, format!("{number} {value}")).with_context(|| format!("{}", file.display()))?;
        }
    }
    Ok(())
}

/// The root has no limits there: this process goes into a group of its own, and takes its children along. Writing back is charged
/// to who made pages dirty, where the file system can tell (ext4 does), its journal to the thread that writes it.
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
    // Groups with little memory stand beside ours.
    for group in lab.memory_groups().into_iter().chain([own]) {
        lab.will_once(UndoStep::Limit(group.join("io.max"), format!("{number} riops=max wiops=max rbps=max wbps=max")))?;
        group::set(&group, "io.max", &words)?;
    }
    Ok(())
}

/// The threads of the kernel that write the journal of an ext4 on the device: they begin in the root.
fn journal_writers(device: &Path) -> Vec<u32> {
    let name = format!("(jbd2/{}-", device.file_name().unwrap_or_default().to_string_lossy());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    // The kernel's threads are children of number 2.
    let is_one = |stat: String| stat.contains(&name) && stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some("2");
    pids.filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(is_one)).collect()
}
