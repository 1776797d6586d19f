//! One function of a PCI device, by three traits.
//!
//! [`Mmio`] is its registers, [`DmaSpace`] the memory it reaches, [`IrqSource`] how it calls. A software controller in this process,
//! one behind a vfio-user socket and real hardware behind VFIO look the same from above (docs/decisions/17).
//! Whatever comes from there is hostile: it may say anything at any time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use shm::Region;

/// The registers of a function: its first memory range (BAR 0).
///
/// Reads of a device that was removed give all ones. Positions are below [`Mmio::bytes`] and multiples of the width; other ones are
/// our own mistake and may panic.
pub trait Mmio: Send + Sync {
    /// Bytes that can be reached.
    fn bytes(&self) -> usize;

    /// Four bytes. What the device wrote to memory before it set what is read here is seen after this.
    fn read32(&self, at: usize) -> u32;

    /// Four bytes, in one access. Everything stored to memory before this is seen by a device that sees this.
    fn write32(&self, at: usize, value: u32);

    /// Eight bytes. In two halves where the way to the device has no wider access, the lower first.
    fn read64(&self, at: usize) -> u64 {
        u64::from(self.read32(at)) | u64::from(self.read32(at + 4)) << 32
    }

    /// As [`Mmio::read64`].
    fn write64(&self, at: usize, value: u64) {
        self.write32(at, value as u32);
        self.write32(at + 4, (value >> 32) as u32);
    }
}

/// An address as the device uses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceAddress(pub u64);

/// Why memory was not made known to the device.
#[derive(Debug, thiserror::Error)]
pub enum DmaError {
    /// It can only be reached through a descriptor (vfio-user), and this memory has none. The driver copies then.
    #[error("the memory cannot be handed to the device: it is no shared memory")]
    NotShareable,
    /// No memory, or none that may be locked (RLIMIT_MEMLOCK), or no more mappings.
    #[error("memory for the device: {0}")]
    System(#[from] std::io::Error),
    /// Cut off, see [`DmaSpace::cut_off`].
    #[error("the device is cut off from memory")]
    CutOff,
}

/// The memory that the device reaches, and nothing but that.
pub trait DmaSpace: Send + Sync {
    /// New memory, zeroed, on a page's border, of the kind that can be mapped here. Not yet known to the device.
    ///
    /// # Errors
    /// No memory.
    fn allocate(&self, bytes: usize) -> Result<Arc<Region>, DmaError>;

    /// Makes all of a region known to the device, in one piece: its byte n is at the address plus n. The address is a multiple of
    /// 4096. Regions are few and large: each costs an entry of a table that is short.
    ///
    /// # Errors
    /// See [`DmaError`].
    fn map(&self, region: &Arc<Region>) -> Result<DeviceAddress, DmaError>;

    /// Ends a mapping. When it returns, the device does not reach the memory through it.
    fn unmap(&self, region: &Arc<Region>, at: DeviceAddress);

    /// Ends all mappings of the device permanently. Returns true if the device certainly reaches no memory (an IOMMU without mappings, a
    /// process that has ended), false if it may still write.
    fn cut_off(&self) -> bool;
}

/// How the device calls: by events, one for each vector.
pub trait IrqSource: Send + Sync {
    /// How many there are; vector 0 is the admin queue's. 0: the device is polled.
    fn vectors(&self) -> u16;

    /// Readable after the vector was raised, until [`IrqSource::clear`]. None: it can only be waited for by [`IrqSource::wait`].
    fn event(&self, vector: u16) -> Option<BorrowedFd<'_>>;

    /// Forgets that the vector was raised. What is raised later is signalled again.
    fn clear(&self, vector: u16);

    /// Waits until the vector is or was raised, or for `at_most`; may return early. Does not clear it.
    fn wait(&self, vector: u16, at_most: Duration);

    /// Lets time pass, at most so much. Returns early at will, but is no spinning.
    fn pause(&self, at_most: Duration);
}

/// One function of a device, as the driver gets it: open, its memory ranges enabled, and nobody else's.
#[derive(Clone)]
pub struct Function {
    /// For messages: "0000:03:00.0", a socket.
    pub name: String,
    /// The registers of the function.
    pub mmio: Arc<dyn Mmio>,
    /// The memory that the function can reach.
    pub dma: Arc<dyn DmaSpace>,
    /// The interrupts of the function.
    pub irq: Arc<dyn IrqSource>,
}
