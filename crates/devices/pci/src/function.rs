//! One function of a PCI device, by three traits.
//!
//! [`Mmio`] is its registers, [`DmaSpace`] the memory it reaches, [`IrqSource`] its interrupts. A driver uses a software controller in
//! this process, one behind a vfio-user socket and hardware behind VFIO in the same way (docs/decisions/17). Data from the device is not
//! trusted: it may be anything at any time.

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

    /// Reads four bytes. After it, memory that the device wrote before it set this value is visible.
    fn read32(&self, at: usize) -> u32;

    /// Writes four bytes in one access. A device that sees this write also sees all earlier stores to memory.
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

/// The reason why memory could not be mapped for the device.
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
    /// Allocates zeroed, page-aligned memory of a kind that can be mapped here. It is not mapped yet.
    ///
    /// # Errors
    /// No memory.
    fn allocate(&self, bytes: usize) -> Result<Arc<Region>, DmaError>;

    /// Maps a whole region for the device, in one piece: its byte n is at the address plus n. The address is a multiple of
    /// 4096. Regions should be few and large: each takes an entry of a small table.
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

/// The interrupts of a device, one event for each vector.
pub trait IrqSource: Send + Sync {
    /// Returns the number of vectors; vector 0 belongs to the admin queue. 0: the device is polled.
    fn vectors(&self) -> u16;

    /// Returns a descriptor that is readable from an interrupt until [`IrqSource::clear`]. `None`: only [`IrqSource::wait`] can wait
    /// for it.
    fn event(&self, vector: u16) -> Option<BorrowedFd<'_>>;

    /// Clears a raised vector. Later interrupts are signalled again.
    fn clear(&self, vector: u16);

    /// Waits until the vector is or was raised, or for `at_most`; may return early. Does not clear it.
    fn wait(&self, vector: u16, at_most: Duration);

    /// Sleeps for at most this duration. It may return early, but does not spin.
    fn pause(&self, at_most: Duration);
}

/// One function of a device as a driver needs it: open, with its memory ranges enabled, and used by nobody else.
#[derive(Clone)]
pub struct Function {
    /// The name for messages: "0000:03:00.0", or a socket.
    pub name: String,
    /// The registers of the function.
    pub mmio: Arc<dyn Mmio>,
    /// The memory that the function can reach.
    pub dma: Arc<dyn DmaSpace>,
    /// The interrupts of the function.
    pub irq: Arc<dyn IrqSource>,
}
