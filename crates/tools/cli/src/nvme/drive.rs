//! A drive as the kernel shows it: who drives it, its disks, and who uses them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pci::sysfs::{FunctionPath, NVME_CLASS, Tree};
use pci::vfio::VfioError;
use pci::{Address, vfio};
use serde::Serialize;

/// Describes one NVMe drive and the driver that is bound to it.
#[derive(Clone, Debug, Serialize)]
pub struct Drive {
    /// PCI address of the controller, such as 0000:01:00.0.
    pub address: String,
    /// Name of the bound driver; `None` if no driver is bound.
    pub driver: Option<String>,
    /// Name that the kernel gave the controller, such as nvme0.
    pub node: Option<String>,
    /// Model name that the kernel reports, if its driver is bound.
    pub model: Option<String>,
    /// Serial number that the kernel reports, if its driver is bound.
    pub serial: Option<String>,
    /// Its IOMMU group; none: it is behind no IOMMU.
    pub group: Option<String>,
    /// The kernel's disks of it: nvme0n1.
    pub disks: Vec<String>,
    /// Who uses it, in words.
    pub uses: Vec<String>,
}

/// The place of a drive, which must be one.
pub fn place(tree: &Tree, address: Address) -> anyhow::Result<FunctionPath> {
    let place = tree.function(address);
    anyhow::ensure!(place.exists(), VfioError::NoDevice(address));
    let class = place.class();
    anyhow::ensure!(
        class == Some(NVME_CLASS),
        "{address} is no NVMe drive (its class is {:06x}): `hotshelf nvme list` shows those that are",
        class.unwrap_or(0)
    );
    Ok(place)
}

impl Drive {
    /// Reads the description of the drive at a PCI address.
    pub fn of(tree: &Tree, place: &FunctionPath) -> Drive {
        let node = place.names("nvme", "nvme").into_iter().next();
        let attribute = |name: &str| node.as_ref().and_then(|node| place.word(&format!("nvme/{node}/{name}")));
        let disks = disks(place, node.as_deref());
        Drive {
            address: place.address.to_string(),
            driver: place.driver(),
            model: attribute("model"),
            serial: attribute("serial"),
            group: place.group(),
            uses: uses(tree, place, node.as_deref(), &disks),
            disks,
            node,
        }
    }

    /// Programs here drive it, or could.
    pub fn is_ours(&self) -> bool {
        self.driver.as_deref() == Some(vfio::DRIVER)
    }
}

/// Names of its disks. With native multipath a controller has paths (nvme0c1n1), whose disk is nvme0n1.
fn disks(place: &FunctionPath, node: Option<&str>) -> Vec<String> {
    let Some(node) = node else { return Vec::new() };
    let names = place.names(&format!("nvme/{node}"), "nvme");
    let disk = |name: &String| {
        let (begin, namespace) = name.rsplit_once('n')?;
        namespace.parse::<u32>().ok()?;
        let subsystem = begin.rsplit_once('c').map_or(begin, |(subsystem, _)| subsystem);
        Some(format!("{subsystem}n{namespace}"))
    };
    names.iter().filter_map(disk).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The disk and its partitions.
fn parts(tree: &Tree, disk: &str) -> Vec<String> {
    let dir = tree.path("sys/class/block").join(disk);
    let mut parts = vec![disk.to_owned()];
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    parts.extend(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name.starts_with(disk)));
    parts.sort();
    parts
}

fn uses(tree: &Tree, place: &FunctionPath, node: Option<&str>, disks: &[String]) -> Vec<String> {
    let parts: Vec<String> = disks.iter().flat_map(|disk| parts(tree, disk)).collect();
    let mut uses = mounts(tree, &parts);
    uses.extend(swaps(tree, &parts));
    uses.extend(parts.iter().flat_map(|part| stacked(tree, part)));
    uses.extend(loops(tree, &parts));
    // Files that are open: of the kernel's nodes, or of VFIO's.
    let mut files: BTreeSet<PathBuf> = parts.iter().map(|part| Path::new("/dev").join(part)).collect();
    files.extend(disks.iter().map(|disk| PathBuf::from(disk.replacen("nvme", "/dev/ng", 1))));
    files.extend(node.map(|node| Path::new("/dev").join(node)));
    files.extend(place.group().map(|group| Path::new("/dev/vfio").join(group)));
    files.extend(place.names("vfio-dev", "vfio").iter().map(|name| Path::new("/dev/vfio/devices").join(name)));
    uses.extend(openers(tree, &files));
    uses
}

/// By number, since a mount may name its device in any way; and by name, since some file systems have numbers of their own.
fn mounts(tree: &Tree, parts: &[String]) -> Vec<String> {
    let mut found = BTreeSet::new();
    // Ours, and that of the machine if we are in a container that sees it.
    for table in ["proc/self/mountinfo", "proc/1/mountinfo"] {
        let text = fs::read_to_string(tree.path(table)).unwrap_or_default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (Some(number), Some(at)) = (words.get(2), words.get(4)) else { continue };
            let source = words.iter().position(|word| *word == "-").and_then(|dash| words.get(dash + 2));
            for part in parts {
                let same = tree.word(format!("sys/class/block/{part}/dev")).is_some_and(|own| own == *number);
                if same || source.is_some_and(|source| *source == format!("/dev/{part}")) {
                    found.insert(format!("{part} is mounted on {at}"));
                }
            }
        }
    }
    found.into_iter().collect()
}

fn swaps(tree: &Tree, parts: &[String]) -> Vec<String> {
    let text = fs::read_to_string(tree.path("proc/swaps")).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_whitespace().next()?.strip_prefix("/dev/"));
    names.filter(|name| parts.iter().any(|part| part == name)).map(|name| format!("{name} is swap")).collect()
}

/// RAID, volume groups, encryption: what stands on it.
fn stacked(tree: &Tree, part: &str) -> Vec<String> {
    let holders = fs::read_dir(tree.path("sys/class/block").join(part).join("holders"));
    let names = holders.into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.map(|holder| format!("{part} is part of {holder}")).collect()
}

fn loops(tree: &Tree, parts: &[String]) -> Vec<String> {
    let devices = fs::read_dir(tree.path("sys/block")).into_iter().flatten().flatten();
    let names = devices.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name.starts_with("loop"));
    let backed = names.filter_map(|name| Some((tree.word(format!("sys/block/{name}/loop/backing_file"))?, name)));
    backed
        .filter_map(|(file, name)| {
            let part = parts.iter().find(|part| file == format!("/dev/{part}"))?;
            Some(format!("{part} is under {name}"))
        })
        .collect()
}

/// Processes that have one of the files open, as far as we may look.
fn openers(tree: &Tree, files: &BTreeSet<PathBuf>) -> Vec<String> {
    let mut found = BTreeSet::new();
    let processes = fs::read_dir(tree.path("proc")).into_iter().flatten().flatten();
    for process in processes.filter(|process| process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())) {
        for fd in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let Some(file) = fs::read_link(fd.path()).ok().filter(|file| files.contains(file)) else { continue };
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let pid = process.file_name().to_string_lossy().into_owned();
            found.insert(format!("{} is open by {} (pid {pid})", file.display(), name.trim()));
        }
    }
    found.into_iter().collect()
}

/// A machine with a drive for tests of this and other modules, and the tests of this one.
#[cfg(test)]
pub mod test {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine with a drive 0000:03:00.0, which the kernel has as nvme0 with a disk of two partitions, and a network card.
    pub fn machine() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::new(dir.path());
        let put = |path: &str, text: &str| {
            let path = tree.path(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        put("sys/bus/pci/devices/0000:03:00.0/class", "0x010802\n");
        put("sys/bus/pci/devices/0000:04:00.0/class", "0x020000\n");
        put("sys/bus/pci/devices/0000:03:00.0/nvme/nvme0/model", "Some drive   \n");
        put("sys/bus/pci/devices/0000:03:00.0/nvme/nvme0/serial", "S1\n");
        put("sys/bus/pci/devices/0000:03:00.0/nvme/nvme0/nvme0c0n1/nsid", "1\n");
        put("sys/bus/pci/drivers/nvme/bind", "");
        put("sys/kernel/iommu_groups/12/type", "DMA\n");
        for (part, number) in [("", "259:0"), ("/nvme0n1p1", "259:1"), ("/nvme0n1p2", "259:2")] {
            put(&format!("sys/class/block/nvme0n1{part}/dev"), number);
        }
        put("sys/class/block/nvme0n1p1/dev", "259:1\n");
        put("sys/class/block/nvme0n1p2/dev", "259:2\n");
        put("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        let device = tree.path("sys/bus/pci/devices/0000:03:00.0");
        symlink(tree.path("sys/bus/pci/drivers/nvme"), device.join("driver")).expect("a link");
        symlink(tree.path("sys/kernel/iommu_groups/12"), device.join("iommu_group")).expect("a link");
        (dir, tree)
    }

    /// Returns the PCI address of the drive in [`machine`].
    pub fn address() -> Address {
        "0000:03:00.0".parse().expect("an address")
    }

    fn found(tree: &Tree) -> Drive {
        Drive::of(tree, &place(tree, address()).expect("a drive"))
    }

    #[test]
    fn a_drive_is_described() {
        let (_dir, tree) = machine();
        let drive = found(&tree);
        assert_eq!((drive.driver.as_deref(), drive.group.as_deref(), drive.node.as_deref()), (Some("nvme"), Some("12"), Some("nvme0")));
        assert_eq!((drive.model.as_deref(), drive.serial.as_deref()), (Some("Some drive"), Some("S1")));
        assert_eq!((drive.disks, drive.uses), (vec!["nvme0n1".to_owned()], Vec::<String>::new()));
        let none = place(&tree, "0000:05:00.0".parse().expect("an address")).expect_err("not there").to_string();
        assert!(none.contains("no PCI device 0000:05:00.0"), "{none}");
        let other = place(&tree, "0000:04:00.0".parse().expect("an address")).expect_err("a network card").to_string();
        assert!(other.contains("is no NVMe drive (its class is 020000)"), "{other}");
    }

    #[test]
    fn every_use_is_found() {
        let (_dir, tree) = machine();
        let put = |path: &str, text: &str| {
            fs::create_dir_all(tree.path(path).parent().expect("a parent")).expect("a directory");
            fs::write(tree.path(path), text).expect("a file");
        };
        put("proc/self/mountinfo", "30 1 259:1 / /srv rw - ext4 /dev/disk/by-label/x rw\n31 1 0:40 / /b rw - btrfs /dev/nvme0n1p2 rw\n");
        put("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p2 partition 1 0 -2\n/dev/sda2 partition 1 0 -3\n");
        put("sys/class/block/nvme0n1p1/holders/dm-3/x", "");
        put("sys/block/loop4/loop/backing_file", "/dev/nvme0n1\n");
        put("proc/77/comm", "fio\n");
        fs::create_dir_all(tree.path("proc/77/fd")).expect("a directory");
        symlink("/dev/ng0n1", tree.path("proc/77/fd/3")).expect("a link");
        symlink("/dev/vfio/12", tree.path("proc/77/fd/4")).expect("a link");
        assert_eq!(
            found(&tree).uses,
            [
                "nvme0n1p1 is mounted on /srv",
                "nvme0n1p2 is mounted on /b",
                "nvme0n1p2 is swap",
                "nvme0n1p1 is part of dm-3",
                "nvme0n1 is under loop4",
                "/dev/ng0n1 is open by fio (pid 77)",
                "/dev/vfio/12 is open by fio (pid 77)",
            ]
        );
    }
}
