//! A namespace as a block device.

use block::{Device, DeviceCapabilities, Geometry, OpenError, Queue, QueueOptions};

use crate::controller::Controller;
use crate::identify::NamespaceInfo;
use crate::queue::{COMMAND_BYTES_MAX, NamespaceSnapshot, NvmeQueue, SEGMENTS_MAX};

/// Most bytes of a request; the queue makes several commands of it where the controller takes less at once.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// A namespace as a block device, with the properties that it had when it was opened. [`Controller::take_notice`] reports later
/// changes. Its queues take a new size as soon as the controller's event is served. If the block length changed or the namespace is
/// gone, they have no blocks: every request fails with [`block::Error::OutOfRange`].
#[derive(Clone, Debug)]
pub struct Namespace {
    controller: Controller,
    snapshot: NamespaceSnapshot,
}

impl Controller {
    /// A namespace as a block device.
    ///
    /// # Errors
    /// There is none of that number, or it cannot be used.
    pub fn namespace(&self, id: u32) -> Result<Namespace, OpenError> {
        let name = &self.shared.function.name;
        let changes = self.shared.changes();
        let found = self.namespaces().into_iter().find(|(found, _)| *found == id);
        match found {
            Some((_, Ok(info))) => Ok(Namespace::new(self.clone(), info, changes)),
            Some((_, Err(why))) => Err(OpenError::Unusable(format!("{name}, namespace {id}: {why}"))),
            None => Err(OpenError::Unusable(format!("{name} has no namespace {id}"))),
        }
    }
}

impl Namespace {
    fn new(controller: Controller, info: NamespaceInfo, changes: u32) -> Namespace {
        let found = controller.info();
        let limit = found.transfer_bytes_max.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(COMMAND_BYTES_MAX);
        // A block is at most 64 KiB. One that is larger than a transfer may be has every request refused by the controller.
        let command_bytes_max = limit.min(COMMAND_BYTES_MAX).max(info.block_bytes) & !(info.block_bytes - 1);
        let geometry = Geometry {
            block_bytes: info.block_bytes,
            blocks: info.blocks,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            segments_max: SEGMENTS_MAX as u16,
            memory_align: 4,
            volatile_cache: found.volatile_cache,
            read_only: info.write_protected,
            discard: found.deallocate && !info.write_protected,
            write_zeroes: found.write_zeroes && !info.write_protected,
        };
        Namespace { controller, snapshot: NamespaceSnapshot { info, geometry, command_bytes_max, changes } }
    }

    /// Returns the description of the namespace.
    pub fn info(&self) -> &NamespaceInfo {
        &self.snapshot.info
    }

    /// The same, not for writing: requests that change it are refused before they reach it.
    #[must_use]
    pub fn read_only(mut self) -> Namespace {
        let geometry = &mut self.snapshot.geometry;
        (geometry.read_only, geometry.discard, geometry.write_zeroes) = (true, false, false);
        self
    }

    /// The controller that it belongs to.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// A queue by its own type.
    ///
    /// # Errors
    /// As [`Device::queue`].
    pub fn open_queue(&self, options: &QueueOptions) -> Result<NvmeQueue, OpenError> {
        NvmeQueue::open(&self.controller.shared, &self.snapshot, options)
    }
}

impl Device for Namespace {
    fn geometry(&self) -> &Geometry {
        &self.snapshot.geometry
    }

    /// Behind a socket, memory that cannot be shared is copied once more.
    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities { shared_memory: true, ..DeviceCapabilities::default() }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        Ok(Box::new(self.open_queue(options)?))
    }
}
