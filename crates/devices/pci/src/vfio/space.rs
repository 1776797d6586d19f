//! The memory that the device reaches: regions, each mapped in one piece.
#![expect(unsafe_code, reason = "tells the IOMMU of memory")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use shm::{PageSize, Region};

use super::device::Device;
use super::ioctl;
use super::iommu::IommuInterface;
use super::iova::Addresses;
use crate::function::{DeviceAddress, DmaError, DmaSpace};

/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// The memory that a device behind VFIO can reach; each region is one mapping.
pub struct Space {
    iommu: Arc<IommuInterface>,
    device: Arc<Device>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Free addresses, if the choice is ours.
    addresses: Option<Addresses>,
    /// Regions that the device reaches, by address.
    maps: BTreeMap<u64, Arc<Region>>,
    cut: bool,
}

impl Space {
    /// Creates a space without mappings; `addresses` if the driver chooses them.
    pub fn new(iommu: Arc<IommuInterface>, device: Arc<Device>, addresses: Option<Addresses>) -> Space {
        Space { iommu, device, inner: Mutex::new(Inner { addresses, maps: BTreeMap::new(), cut: false }) }
    }

    fn end(&self, at: u64, region: &Region) -> io::Result<()> {
        let bytes = region.len() as u64;
        match &*self.iommu {
            IommuInterface::Container(container, _) => ioctl::unmap(container.as_fd(), at, bytes),
            IommuInterface::Iommufd(iommufd, space) => ioctl::unmap_in_space(iommufd.as_fd(), *space, at, bytes),
        }
    }

    fn begin(&self, inner: &mut Inner, region: &Region) -> io::Result<u64> {
        match (&*self.iommu, &mut inner.addresses) {
            (IommuInterface::Container(container, _), Some(addresses)) => {
                let bytes = region.len() as u64;
                // Where it may be of huge pages, the IOMMU's tables can be, too.
                let align = if region.len() >= HUGE_BYTES { HUGE_BYTES as u64 } else { 4096 };
                let none = || io::Error::new(io::ErrorKind::OutOfMemory, "the IOMMU has no more addresses");
                let at = addresses.take(bytes, align).ok_or_else(none)?;
                // SAFETY: `maps` keeps the region until the mapping has ended.
                let mapped = unsafe { ioctl::map(container.as_fd(), region, at) };
                mapped.inspect_err(|_| addresses.give(at, bytes)).map(|()| at)
            }
            // SAFETY: as above.
            (IommuInterface::Iommufd(iommufd, space), _) => unsafe { ioctl::map_in_space(iommufd.as_fd(), *space, region) },
            (IommuInterface::Container(..), None) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// What the kernel means.
fn explained(bytes: usize, error: io::Error) -> io::Error {
    let text = match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            let limit = getrlimit(Resource::Memlock).current;
            let limit = limit.map_or_else(|| "there is no limit".to_owned(), |limit| format!("the limit is {limit}"));
            format!(
                "{bytes} bytes cannot be locked ({limit}): raise the limit of locked memory (ulimit -l, LimitMEMLOCK=, \
                 /etc/security/limits.conf), or use less"
            )
        }
        Some(libc::ENOSPC) => "no more mappings: raise dma_entry_limit of the module vfio_iommu_type1, or use fewer arenas".to_owned(),
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

impl DmaSpace for Space {
    fn allocate(&self, bytes: usize) -> Result<Arc<Region>, DmaError> {
        let pages = if bytes >= HUGE_BYTES { PageSize::HugeIfFree } else { PageSize::Small };
        Ok(Arc::new(Region::private(bytes, pages)?))
    }

    fn map(&self, region: &Arc<Region>) -> Result<DeviceAddress, DmaError> {
        let mut inner = self.inner.lock();
        if inner.cut {
            return Err(DmaError::CutOff);
        }
        let at = self.begin(&mut inner, region).map_err(|error| explained(region.len(), error))?;
        inner.maps.insert(at, Arc::clone(region));
        Ok(DeviceAddress(at))
    }

    fn unmap(&self, region: &Arc<Region>, at: DeviceAddress) {
        let mut inner = self.inner.lock();
        // After `cut_off` there is none.
        if !inner.maps.get(&at.0).is_some_and(|mapped| Arc::ptr_eq(mapped, region)) {
            return;
        }
        // If it fails, the region is kept, and its addresses are not reused.
        if self.end(at.0, region).is_ok() {
            inner.maps.remove(&at.0);
            if let Some(addresses) = &mut inner.addresses {
                addresses.give(at.0, region.len() as u64);
            }
        }
    }

    fn cut_off(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.cut = true;
        // Those that cannot be ended stay.
        inner.maps.retain(|at, region| self.end(*at, region).is_err());
        if inner.maps.is_empty() {
            return true;
        }
        // As after power on it knows of no memory.
        let quiet = self.device.reset().is_ok();
        if quiet {
            inner.maps.clear();
        }
        quiet
    }
}
