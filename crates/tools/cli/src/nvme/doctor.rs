//! What is missing for driving NVMe drives from here, and what to do about it.

use std::fs;
use std::io;
use std::path::Path;

use indicatif::BinaryBytes;
use pci::sysfs::Tree;
use pci::{Address, vfio};
use serde::Serialize;

use super::drive::{Drive, place};

/// Locked memory that a queue with its arenas may take: less is refused in use, not at the begin.
const LOCKED_BYTES: u64 = 64 << 20;

/// Holds one finding of `hotshelf nvme doctor`.
#[derive(Debug, Serialize)]
pub struct Line {
    what: String,
    ok: bool,
    /// Nothing works without it.
    needed: bool,
    detail: String,
}

fn line(what: impl Into<String>, needed: bool, found: Result<String, String>) -> Line {
    let ok = found.is_ok();
    Line { what: what.into(), ok, needed, detail: found.unwrap_or_else(|missing| missing) }
}

/// Looks around; false: something is missing without which nothing works.
pub fn doctor(tree: &Tree, address: Option<Address>, as_json: bool) -> anyhow::Result<bool> {
    let drives = match address {
        Some(address) => vec![Drive::of(tree, &place(tree, address)?)],
        None => super::drives(tree),
    };
    let lines = examine(tree, &drives);
    if as_json {
        say_lines!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        for line in &lines {
            say!("{}  {:<22} {}", if line.ok { "ok     " } else { "missing" }, line.what, line.detail);
        }
    }
    Ok(lines.iter().all(|line| line.ok || !line.needed))
}

fn examine(tree: &Tree, drives: &[Drive]) -> Vec<Line> {
    let mut lines = vec![iommu(tree), module(tree), container(tree), iommufd(tree), locked_memory()];
    if drives.is_empty() {
        lines.push(line("drives", true, Err("no NVMe drive is on the PCI bus of this machine".into())));
    }
    lines.extend(drives.iter().map(|drive| of_drive(tree, drive)));
    lines
}

fn count(path: &Path) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

fn iommu(tree: &Tree) -> Line {
    let groups = count(&tree.path("sys/kernel/iommu_groups"));
    let missing = "no device is behind an IOMMU: switch it on in the firmware (VT-d, AMD-Vi), and by the kernel's arguments where it is \
                   off by default (intel_iommu=on)";
    line("IOMMU", true, if groups > 0 { Ok(format!("{groups} groups of devices")) } else { Err(missing.into()) })
}

fn module(tree: &Tree) -> Line {
    let loaded = tree.path("sys/bus/pci/drivers").join(vfio::DRIVER).exists();
    let missing = "not loaded: run `modprobe vfio-pci`, and name it in /etc/modules-load.d for the next start (`bind` loads it, too)";
    line("module vfio-pci", true, if loaded { Ok("loaded".into()) } else { Err(missing.into()) })
}

fn opens(path: &Path) -> io::Result<()> {
    fs::File::options().read(true).write(true).open(path).map(drop)
}

fn container(tree: &Tree) -> Line {
    let path = tree.path("dev/vfio/vfio");
    let found = match opens(&path) {
        Ok(()) => Ok("can be opened".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err("is not there: the module vfio makes it".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err("permission denied: it is harmless by itself, allow it to all (chmod 666 /dev/vfio/vfio)".to_owned())
        }
        Err(error) => Err(error.to_string()),
    };
    line("/dev/vfio/vfio", true, found)
}

fn iommufd(tree: &Tree) -> Line {
    let there = tree.path("dev/iommu").exists();
    let missing = "not there (Linux 6.6 with CONFIG_VFIO_DEVICE_CDEV has it): groups are used, which do as well";
    line("/dev/iommu", false, if there { Ok("devices can be opened by themselves".into()) } else { Err(missing.into()) })
}

fn locked_memory() -> Line {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let found = match limit {
        None => Ok("no limit".to_owned()),
        Some(_) if may_lock() => Ok("no limit for you (CAP_IPC_LOCK)".to_owned()),
        Some(limit) if limit >= LOCKED_BYTES => Ok(format!("up to {}", BinaryBytes(limit))),
        Some(limit) => Err(format!(
            "only {}: what a device reaches is locked; raise it (ulimit -l, LimitMEMLOCK=, or memlock in /etc/security/limits.conf)",
            BinaryBytes(limit)
        )),
    };
    line("locked memory", false, found)
}

/// Root, as a rule.
fn may_lock() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caps = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0");
    u64::from_str_radix(caps.trim(), 16).is_ok_and(|caps| caps >> 14 & 1 == 1)
}

fn of_drive(tree: &Tree, drive: &Drive) -> Line {
    let address = &drive.address;
    let found = match (&drive.group, drive.driver.as_deref()) {
        (None, _) => Err("is behind no IOMMU: only the kernel can drive it".to_owned()),
        (Some(group), Some(vfio::DRIVER)) => match opens(&tree.path("dev/vfio").join(group)) {
            Ok(()) => Ok(format!("is bound to vfio-pci and can be used: nvme:{address}/1")),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(format!(
                "is in use: {}",
                if drive.uses.is_empty() { "another user's program has it".to_owned() } else { drive.uses.join(", ") }
            )),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(format!(
                "is bound to vfio-pci, but /dev/vfio/{group} is not yours: `hotshelf nvme bind {address} --user NAME` gives it to you"
            )),
            Err(error) => Err(format!("/dev/vfio/{group}: {error}")),
        },
        (_, driver) if drive.uses.is_empty() => {
            let whose = driver.map_or("nobody's".to_owned(), |driver| format!("the kernel's ({driver})"));
            Ok(format!("is {whose}, and free: `hotshelf nvme bind {address}` takes it"))
        }
        _ => Ok(format!("is the kernel's and stays so: {}", drive.uses.join(", "))),
    };
    line(address.clone(), false, found)
}

#[cfg(test)]
mod test {
    use super::super::drive::test::{address, machine};
    use super::*;

    fn checks(tree: &Tree) -> Vec<(String, bool, String)> {
        let drive = Drive::of(tree, &place(tree, address()).expect("a drive"));
        examine(tree, &[drive]).into_iter().map(|line| (line.what, line.ok, line.detail)).collect()
    }

    #[test]
    fn each_missing_thing_is_named_with_what_to_do() {
        let (_dir, tree) = machine();
        let lines = checks(&tree);
        assert!(lines[0].1 && lines[0].2.contains("1 groups"));
        assert!(!lines[1].1 && lines[1].2.contains("modprobe vfio-pci"));
        assert!(!lines[2].1 && lines[2].2.contains("is not there"));
        assert!(!lines[3].1);
        assert!(lines[5].1 && lines[5].2.contains("`hotshelf nvme bind 0000:03:00.0` takes it"));
        fs::remove_dir_all(tree.path("sys/kernel/iommu_groups")).expect("removed");
        let lines = checks(&tree);
        assert!(!lines[0].1 && lines[0].2.contains("intel_iommu=on"));
        assert!(!lines[5].1 && lines[5].2.contains("behind no IOMMU"));
        assert!(!examine(&tree, &[]).last().expect("a line").ok);
    }

    #[test]
    fn a_bound_drive_can_be_used_or_not() {
        let (_dir, tree) = machine();
        let driver = tree.path("sys/bus/pci/devices/0000:03:00.0/driver");
        fs::create_dir_all(tree.path("sys/bus/pci/drivers/vfio-pci")).expect("a directory");
        fs::remove_file(&driver).expect("removed");
        std::os::unix::fs::symlink(tree.path("sys/bus/pci/drivers/vfio-pci"), &driver).expect("a link");
        assert!(!checks(&tree)[5].1, "there is no /dev/vfio/12");
        fs::create_dir_all(tree.path("dev/vfio")).expect("a directory");
        fs::write(tree.path("dev/vfio/12"), "").expect("a file");
        assert!(checks(&tree)[5].2.contains("nvme:0000:03:00.0/1"));
        fs::write(tree.path("proc/self/mountinfo"), "30 1 259:1 / /srv rw - ext4 /dev/nvme0n1p1 rw\n").expect("a file");
        assert!(checks(&tree)[5].1);
    }
}
