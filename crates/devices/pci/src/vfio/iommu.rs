//! What stands between a device and memory: a container of VFIO (type 1), or an iommufd. Closed, it lets nothing through.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use vfio_bindings::bindings::vfio;

use super::error::VfioError;
use super::ioctl;
use super::iova::Addresses;
use crate::address::Address;
use crate::sysfs::{FunctionPath, Tree};

/// The kernel's interface to the IOMMU. Closing it ends all mappings.
pub enum IommuInterface {
    /// The container, and the group in it, which is held open: it can be opened once.
    Container(OwnedFd, #[allow(dead_code, reason = "held open")] OwnedFd),
    /// The iommufd, and the address space in it.
    Iommufd(OwnedFd, u32),
}

/// The IOMMU interface, the device behind it, and the addresses that may be used if the driver chooses them.
pub struct Opened {
    /// The interface that maps memory for the device.
    pub iommu: IommuInterface,
    /// The descriptor of the open device.
    pub device: OwnedFd,
    /// The usable addresses, if the driver chooses them.
    pub addresses: Option<Addresses>,
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open(path)?.into())
}

fn refused(address: Address, path: &Path, error: io::Error) -> VfioError {
    match error.kind() {
        io::ErrorKind::NotFound => VfioError::NoVfio(path.to_owned()),
        io::ErrorKind::PermissionDenied => VfioError::NotPermitted { path: path.to_owned() },
        io::ErrorKind::ResourceBusy => VfioError::Busy { address, path: path.to_owned() },
        _ => VfioError::system(path.display().to_string(), error),
    }
}

/// Opens a device by its own node if the kernel has one (CONFIG_VFIO_DEVICE_CDEV) and it may be opened, else by its group.
pub fn find(tree: &Tree, place: &FunctionPath) -> Result<Opened, VfioError> {
    let group = place.group().ok_or(VfioError::NoIommu(place.address))?;
    let node = place.names("vfio-dev", "vfio").into_iter().next().map(|name| tree.path("dev/vfio/devices").join(name));
    let iommu = tree.path("dev/iommu");
    if let Some(node) = node.filter(|node| node.exists() && iommu.exists()) {
        match by_node(place.address, &node, &iommu) {
            // The group may be ours though these are not.
            Err(VfioError::NotPermitted { .. }) if open(&tree.path("dev/vfio").join(&group)).is_ok() => {}
            opened => return opened,
        }
    }
    by_group(tree, place, &group)
}

fn by_node(address: Address, node: &Path, iommu: &Path) -> Result<Opened, VfioError> {
    let device = open(node).map_err(|error| refused(address, node, error))?;
    let iommufd = open(iommu).map_err(|error| refused(address, iommu, error))?;
    let system = |what: &str, error| VfioError::system(format!("{address}: {what}"), error);
    // A second program can open the node, and is refused here.
    ioctl::bind_iommufd(device.as_fd(), iommufd.as_fd()).map_err(|error| refused(address, node, error))?;
    let space = ioctl::new_space(iommufd.as_fd()).map_err(|error| system("an address space (iommufd)", error))?;
    ioctl::attach_iommufd(device.as_fd(), space).map_err(|error| system("joining its address space (iommufd)", error))?;
    Ok(Opened { iommu: IommuInterface::Iommufd(iommufd, space), device, addresses: None })
}

fn by_group(tree: &Tree, place: &FunctionPath, number: &str) -> Result<Opened, VfioError> {
    let address = place.address;
    let paths: [PathBuf; 2] = [tree.path("dev/vfio/vfio"), tree.path("dev/vfio").join(number)];
    let [container, group] = paths.each_ref().map(|path| open(path).map_err(|error| refused(address, path, error)));
    let (container, group) = (container?, group?);
    let system = |what: &str, error: io::Error| VfioError::system(format!("{address}: {what}"), error);
    let version = ioctl::api_version(container.as_fd()).map_err(|error| system("asking for the version of VFIO", error))?;
    if version != vfio::VFIO_API_VERSION || !ioctl::has_extension(container.as_fd(), vfio::VFIO_TYPE1v2_IOMMU) {
        return Err(VfioError::Unusable { address, what: "this kernel's VFIO knows no IOMMU of type 1: load vfio_iommu_type1" });
    }
    let flags = ioctl::group_status(group.as_fd()).map_err(|error| system("its group", error))?;
    if flags & vfio::VFIO_GROUP_FLAGS_VIABLE == 0 {
        let own = address.to_string();
        let others: Vec<String> = place.group_members().into_iter().filter(|name| *name != own).collect();
        return Err(VfioError::NotAlone { address, group: number.to_owned(), others: others.join(", ") });
    }
    ioctl::join_container(group.as_fd(), container.as_fd()).map_err(|error| system("taking its group", error))?;
    ioctl::set_iommu(container.as_fd(), vfio::VFIO_TYPE1v2_IOMMU).map_err(|error| system("its IOMMU", error))?;
    let addresses = usable(container.as_fd()).map_err(|error| system("asking its IOMMU for addresses", error))?;
    let name = std::ffi::CString::new(address.to_string()).expect("an address has no zero");
    let device = ioctl::device_of_group(group.as_fd(), &name).map_err(|error| system("opening it", error))?;
    Ok(Opened { iommu: IommuInterface::Container(container, group), device, addresses: Some(addresses) })
}

/// Returns the addresses that the IOMMU translates; before Linux 5.4, which does not report them, those that every IOMMU translates.
fn usable(container: BorrowedFd<'_>) -> io::Result<Addresses> {
    let (info, bytes) = ioctl::iommu_info(container)?;
    let ranges = super::caps::find(&bytes, info.cap_offset, vfio::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE).map(super::caps::ranges);
    Ok(Addresses::new(ranges.filter(|ranges| !ranges.is_empty()).unwrap_or_else(|| vec![(0, 0xfedf_ffff), (1 << 32, (1 << 39) - 1)])))
}
