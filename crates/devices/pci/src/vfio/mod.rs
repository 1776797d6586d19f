//! Functions of hardware, through the kernel's VFIO. The device is bound to vfio-pci; an IOMMU restricts it to the mapped memory
//! (docs/decisions/18-nvme-over-vfio-and-vfio-user.md).
//!
//! `iommu`: the container or iommufd between the device and memory. `device`: its descriptor. `bar`: its registers. `space`: its memory.
//! `irq`: its interrupts. `ioctl`: the kernel's calls. `iova`, `caps`: addresses, and what the kernel says of them.
//!
//! Root is not needed: any user that may open the device's group (/dev/vfio/N) and lock enough memory (RLIMIT_MEMLOCK) can use it. The
//! kernel resets the device when it is opened, and when the last descriptor of it is closed, also by a killed process.

mod bar;
mod caps;
mod device;
mod error;
mod ioctl;
mod iommu;
mod iova;
mod irq;
mod space;

use std::sync::Arc;

pub use error::VfioError;

use crate::address::Address;
use crate::function::Function;
use crate::sysfs::Tree;

/// The driver that gives devices to user space.
pub const DRIVER: &str = "vfio-pci";

/// How a function is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The root of /sys and /dev.
    pub tree: Tree,
    /// The maximum number of interrupt vectors; each takes a descriptor. 0: the device is only polled.
    pub vectors: u16,
}

impl Default for Options {
    fn default() -> Self {
        Options { tree: Tree::default(), vectors: 65 }
    }
}

/// Opens a function that is bound to vfio-pci.
///
/// # Errors
/// See [`VfioError`]: each says what to do.
pub fn open(address: Address) -> Result<Function, VfioError> {
    open_with(address, &Options::default())
}

/// Opens it so.
///
/// # Errors
/// As [`open`].
pub fn open_with(address: Address, options: &Options) -> Result<Function, VfioError> {
    let place = options.tree.function(address);
    if !place.exists() {
        return Err(VfioError::NoDevice(address));
    }
    if place.group().is_none() {
        return Err(VfioError::NoIommu(address));
    }
    let driver = place.driver();
    // There are others of its kind, for devices of one maker.
    if !driver.as_ref().is_some_and(|driver| driver.contains("vfio")) {
        return Err(VfioError::NotBound { address, driver });
    }
    let found = iommu::find(&options.tree, &place)?;
    let iommu = Arc::new(found.iommu);
    let device = Arc::new(device::Device::new(address, found.device, Arc::clone(&iommu)));
    let registers = bar::Bar::map(&device)?;
    let vectors = irq::Vectors::arm(&device, options.vectors)?;
    // Only now: what it does from here on reaches nothing, since nothing is mapped.
    device.enable()?;
    let space = space::Space::new(iommu, device, found.addresses);
    Ok(Function { name: address.to_string(), mmio: Arc::new(registers), dma: Arc::new(space), irq: Arc::new(vectors) })
}
