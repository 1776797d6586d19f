//! Drives from the kernel's driver to vfio-pci and back, by sysfs (Documentation/ABI/testing/sysfs-bus-pci: driver_override).

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pci::sysfs::{FunctionPath, Tree};
use pci::vfio::VfioError;
use pci::{Address, vfio};

use super::drive::{Drive, place};

/// For a driver to look at a drive.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// To vfio-pci; the group's file is given to the user.
pub fn bind(tree: &Tree, address: Address, user: Option<u32>) -> anyhow::Result<String> {
    let place = place(tree, address)?;
    let drive = Drive::of(tree, &place);
    let Some(group) = &drive.group else { bail!(VfioError::NoIommu(address)) };
    if !drive.is_ours() {
        free(&drive)?;
        alone(tree, &drive)?;
        have_module(tree)?;
        hand_over(tree, &place, Some(vfio::DRIVER))?;
    }
    let file = tree.path("dev/vfio").join(group);
    if let Some(user) = user {
        std::os::unix::fs::chown(&file, Some(user), None).with_context(|| format!("giving {} to user {user}", file.display()))?;
        // Some kernels name such nodes and make none.
        let nodes = place.names("vfio-dev", "vfio").into_iter().map(|name| tree.path("dev/vfio/devices").join(name));
        for node in nodes.filter(|node| node.exists()) {
            std::os::unix::fs::chown(&node, Some(user), None).with_context(|| format!("giving {} to user {user}", node.display()))?;
        }
    }
    let others: Vec<String> = place.group_members().into_iter().filter(|member| *member != drive.address).collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!("; its IOMMU group has more devices, which must not be the kernel's either: {}", others.join(", "))
    };
    Ok(format!("{address} is bound to vfio-pci: nvme:{address}/1 names its first namespace, {} is who may use it{others}", file.display()))
}

/// Returns a controller to the kernel's NVMe driver.
pub fn unbind(tree: &Tree, address: Address) -> anyhow::Result<String> {
    let place = place(tree, address)?;
    let drive = Drive::of(tree, &place);
    ensure!(drive.is_ours() || drive.driver.is_none(), "{address} is not bound to vfio-pci: {} has it", drive.driver.unwrap_or_default());
    // The kernel would wait for whoever has it, without end.
    free(&drive)?;
    hand_over(tree, &place, None)?;
    Ok(format!("{address} is the kernel's again ({})", place.driver().unwrap_or_default()))
}

fn free(drive: &Drive) -> anyhow::Result<()> {
    ensure!(drive.uses.is_empty(), "{} is in use: {}", drive.address, drive.uses.join(", "));
    Ok(())
}

/// Users that are not seen in any table: other mount namespaces, claims of the kernel.
fn alone(tree: &Tree, drive: &Drive) -> anyhow::Result<()> {
    for disk in &drive.disks {
        let path = tree.path("dev").join(disk);
        match fs::File::options().read(true).custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed()).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                bail!("{} is in use: {disk} is claimed by the kernel or another container", drive.address)
            }
            // Whether we may is found out by what follows.
            _ => {}
        }
    }
    Ok(())
}

fn driver_dir(tree: &Tree, driver: &str) -> std::path::PathBuf {
    tree.path("sys/bus/pci/drivers").join(driver)
}

fn have_module(tree: &Tree) -> anyhow::Result<()> {
    if !driver_dir(tree, vfio::DRIVER).exists() && *tree == Tree::default() {
        // What it says when it fails is of no help; that the driver is not there then is message below.
        let _ = std::process::Command::new("modprobe").arg(vfio::DRIVER).stderr(std::process::Stdio::null()).status();
    }
    ensure!(driver_dir(tree, vfio::DRIVER).exists(), "the kernel's module vfio-pci is not loaded: run `modprobe vfio-pci` as root");
    Ok(())
}

fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("{}: permission denied: only root may change who drives a device", path.display())
        }
        _ => anyhow::anyhow!("{}: {error}", path.display()),
    })
}

/// From whatever driver it has to this one; none: to the one that the kernel chooses.
fn hand_over(tree: &Tree, place: &FunctionPath, driver: Option<&str>) -> anyhow::Result<()> {
    let before = place.driver();
    let wish = place.path.join("driver_override");
    put(&wish, &format!("{}\n", driver.unwrap_or_default()))?;
    if before.is_some() {
        put(&place.path.join("driver/unbind"), &place.address.to_string())?;
    }
    let probed = put(&tree.path("sys/bus/pci/drivers_probe"), &place.address.to_string());
    let begin = Instant::now();
    while probed.is_ok() && begin.elapsed() < PROBE_TIMEOUT {
        let now = place.driver();
        if driver.map_or(now.is_some(), |driver| now.as_deref() == Some(driver)) {
            return Ok(());
        }
        if now.is_none() && driver.is_some() {
            break;
        }
        // Some drivers look at a device by themselves later.
        std::thread::sleep(Duration::from_millis(20));
    }
    if driver.is_some() {
        // As it was.
        let _ = put(&wish, "\n").and_then(|()| put(&tree.path("sys/bus/pci/drivers_probe"), &place.address.to_string()));
    }
    probed?;
    bail!("{}: {} did not take it (`dmesg` tells why)", place.address, driver.unwrap_or("no driver of the kernel's (modprobe nvme?)"))
}

#[cfg(test)]
mod test {
    use super::super::drive::test::{address, machine};
    use super::*;

    fn refused(tree: &Tree) -> String {
        bind(tree, address(), None).expect_err("refused").to_string()
    }

    #[test]
    fn what_is_missing_is_said() {
        let (_dir, tree) = machine();
        assert!(refused(&tree).contains("modprobe vfio-pci"));
        fs::remove_file(tree.path("sys/bus/pci/devices/0000:03:00.0/iommu_group")).expect("removed");
        assert!(refused(&tree).contains("behind no IOMMU"));
        assert!(unbind(&tree, address()).expect_err("the kernel has it").to_string().contains("is not bound to vfio-pci: nvme has it"));
    }

    #[test]
    fn a_drive_in_use_is_left_alone() {
        let (_dir, tree) = machine();
        fs::create_dir_all(driver_dir(&tree, vfio::DRIVER)).expect("a directory");
        fs::write(tree.path("proc/self/mountinfo"), "30 1 259:1 / /srv rw - ext4 /dev/nvme0n1p1 rw\n").expect("a file");
        assert_eq!(refused(&tree), "0000:03:00.0 is in use: nvme0n1p1 is mounted on /srv");
        assert!(!tree.path("sys/bus/pci/devices/0000:03:00.0/driver_override").exists(), "nothing was changed");
    }

    #[test]
    fn the_kernel_is_asked_in_its_words() {
        let (_dir, tree) = machine();
        fs::create_dir_all(driver_dir(&tree, vfio::DRIVER)).expect("a directory");
        let device = tree.path("sys/bus/pci/devices/0000:03:00.0");
        // Nobody answers here: the driver stays, which is no success.
        fs::remove_file(device.join("driver")).expect("removed");
        assert!(refused(&tree).contains("vfio-pci did not take it"));
        assert_eq!(fs::read_to_string(tree.path("sys/bus/pci/drivers_probe")).expect("asked"), "0000:03:00.0");
        assert_eq!(fs::read_to_string(device.join("driver_override")).expect("asked"), "\n", "as it was");
        // It is bound already: nothing is to be done.
        std::os::unix::fs::symlink(driver_dir(&tree, vfio::DRIVER), device.join("driver")).expect("a link");
        let message = bind(&tree, address(), None).expect("bound");
        assert!(message.contains("nvme:0000:03:00.0/1") && message.contains("dev/vfio/12"), "{message}");
    }
}
