//! An open VFIO device: its descriptor, its configuration, and whether the kernel wants it released.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio;

use super::error::VfioError;
use super::ioctl;
use super::iommu::IommuInterface;
use crate::address::Address;

/// Configuration space: the command register, and its bits "reacts to memory accesses" and "may access memory by itself".
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 2;
const COMMAND_MASTER: u16 = 4;

/// An open VFIO device. Its last user closes it; the kernel then resets it, and it reaches no memory any more.
pub struct Device {
    /// The PCI address of the device.
    pub address: Address,
    fd: OwnedFd,
    /// The kernel wants it back: somebody removes it.
    leave: Option<OwnedFd>,
    leaves: AtomicBool,
    /// Closed after the device.
    _iommu: Arc<IommuInterface>,
}

/// Creates an eventfd that does not block.
pub fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Clears an eventfd, and returns whether it was signalled.
pub fn clear(event: BorrowedFd<'_>) -> bool {
    rustix::io::read(event, &mut [0_u8; 8]).is_ok()
}

impl Device {
    /// Creates a device of an open descriptor.
    pub fn new(address: Address, fd: OwnedFd, iommu: Arc<IommuInterface>) -> Device {
        // Kernels before 4.0, and devices that cannot be removed, have no such event.
        let leave =
            event().ok().filter(|event| ioctl::signal_by(fd.as_fd(), vfio::VFIO_PCI_REQ_IRQ_INDEX, std::slice::from_ref(event)).is_ok());
        Device { address, fd, leave, leaves: AtomicBool::new(false), _iommu: iommu }
    }

    /// Returns the descriptor of the device.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether it is being removed: from then on it counts as gone. Costs a call of the kernel.
    pub fn is_leaving(&self) -> bool {
        if self.leaves.load(Ordering::Relaxed) {
            return true;
        }
        let is_requested = self.leave.as_ref().is_some_and(|event| clear(event.as_fd()));
        if is_requested {
            self.leaves.store(true, Ordering::Relaxed);
        }
        is_requested
    }

    /// Enables register accesses to the device, and its own accesses to memory.
    pub fn enable(&self) -> Result<(), VfioError> {
        self.change_command(COMMAND_MEMORY | COMMAND_MASTER)
            .map_err(|error| VfioError::system(format!("{}: enabling it as bus master", self.address), error))
    }

    fn change_command(&self, set: u16) -> io::Result<()> {
        let (region, _) = ioctl::region_info(self.fd(), vfio::VFIO_PCI_CONFIG_REGION_INDEX)?;
        let at = region.offset.checked_add(COMMAND).ok_or(io::ErrorKind::InvalidData)?;
        let mut command = [0; 2];
        whole(rustix::io::pread(self.fd(), &mut command, at)?)?;
        let command = u16::from_le_bytes(command) | set;
        whole(rustix::io::pwrite(self.fd(), &command.to_le_bytes(), at)?)
    }

    /// Resets the device to its power-on state. When it returns, the device has stopped all earlier work.
    pub fn reset(&self) -> io::Result<()> {
        ioctl::reset(self.fd())
    }
}

fn whole(bytes: usize) -> io::Result<()> {
    if bytes == 2 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
