//! Why a function was not opened, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::address::Address;

/// Why a function could not be opened through VFIO.
#[derive(Debug, thiserror::Error)]
pub enum VfioError {
    /// There is no such device.
    #[error("no PCI device {0} is here (`hotshelf nvme list` shows the NVMe drives)")]
    NoDevice(Address),
    /// Another driver has it, or none.
    #[error("{address} belongs to {}: `hotshelf nvme bind {address}` takes it from the kernel", owner(.driver))]
    NotBound {
        /// The device.
        address: Address,
        /// Its driver; none: it has none.
        driver: Option<String>,
    },
    /// The device is behind no IOMMU, so user space must not control its access to memory.
    #[error(
        "{0} is behind no IOMMU: switch it on in the firmware (VT-d, AMD-Vi), and by the kernel's arguments where it is off by default \
         (intel_iommu=on)"
    )]
    NoIommu(Address),
    /// The modules are not loaded.
    #[error("{} is missing: load the module (modprobe vfio-pci)", .0.display())]
    NoVfio(PathBuf),
    /// The user may not open the VFIO files.
    #[error("{0}: permission denied: give it to the user or group that runs this (chown USER {0})", .path.display())]
    NotPermitted {
        /// The file.
        path: PathBuf,
    },
    /// Another program has it.
    #[error("{address} is in use by another program ({} is open)", .path.display())]
    Busy {
        /// The device.
        address: Address,
        /// The file that can be opened once.
        path: PathBuf,
    },
    /// Devices that the IOMMU cannot separate must be bound together.
    #[error("{address} shares its IOMMU group {group} with {others}: bind these to vfio-pci, too, or to no driver")]
    NotAlone {
        /// The device.
        address: Address,
        /// The group.
        group: String,
        /// The others.
        others: String,
    },
    /// It has no registers that can be reached, or none of memory.
    #[error("{address}: {what}")]
    Unusable {
        /// The device.
        address: Address,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The kernel refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// The error that the kernel returned.
        error: io::Error,
    },
}

fn owner(driver: &Option<String>) -> String {
    driver.as_ref().map_or_else(|| "no driver".to_owned(), |driver| format!("the kernel's driver {driver}"))
}

impl VfioError {
    pub(crate) fn system(what: impl Into<String>, error: impl Into<io::Error>) -> VfioError {
        VfioError::System { what: what.into(), error: error.into() }
    }
}
