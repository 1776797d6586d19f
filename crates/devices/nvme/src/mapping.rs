//! Memory mapped for the device; dropping the value ends the mapping.

use std::sync::Arc;

use pci::{DeviceAddress, DmaError, DmaSpace};
use shm::Region;

/// A region that is mapped as long as this lives.
pub(crate) struct Mapping {
    dma: Arc<dyn DmaSpace>,
    region: Arc<Region>,
    at: DeviceAddress,
}

impl Mapping {
    /// Maps an existing region for the device.
    pub(crate) fn of(dma: &Arc<dyn DmaSpace>, region: &Arc<Region>) -> Result<Mapping, DmaError> {
        let at = dma.map(region)?;
        // A wrong address would become one of other memory when we add to it.
        let sane = at.0.is_multiple_of(PAGE_BYTES as u64) && at.0.checked_add(region.len() as u64).is_some();
        let mapping = Mapping { dma: Arc::clone(dma), region: Arc::clone(region), at };
        if sane { Ok(mapping) } else { Err(DmaError::System(std::io::ErrorKind::InvalidData.into())) }
    }

    /// Allocates a region and maps it.
    pub(crate) fn new(dma: &Arc<dyn DmaSpace>, bytes: usize) -> Result<Mapping, DmaError> {
        Mapping::of(dma, &dma.allocate(bytes)?)
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The device's address of a byte.
    pub(crate) fn address(&self, at: usize) -> u64 {
        debug_assert!(at <= self.region.len());
        self.at.0 + at as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.dma.unmap(&self.region, self.at);
    }
}

/// Bytes of a page as the driver tells the controller (CC.MPS 0).
pub(crate) const PAGE_BYTES: usize = 4096;
