//! Interrupts: an event for each vector of MSI-X, or of MSI.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vfio_bindings::bindings::vfio;

use super::device::{self, Device};
use super::error::VfioError;
use super::ioctl;
use crate::function::IrqSource;

/// The interrupt vectors of a device, one event each. Without vectors the device is polled.
pub struct Vectors {
    events: Vec<OwnedFd>,
    /// Interrupts end when it is closed.
    _device: Arc<Device>,
}

impl Vectors {
    /// Arms as many vectors as device and machine allow, at most `most`.
    pub fn arm(device: &Arc<Device>, most: u16) -> Result<Vectors, VfioError> {
        for kind in [vfio::VFIO_PCI_MSIX_IRQ_INDEX, vfio::VFIO_PCI_MSI_IRQ_INDEX] {
            let there = ioctl::irq_count(device.fd(), kind).unwrap_or(0).min(most.into());
            if let Some(events) = signalled(device, kind, there)? {
                return Ok(Vectors { events, _device: Arc::clone(device) });
            }
        }
        Ok(Vectors { events: Vec::new(), _device: Arc::clone(device) })
    }
}

/// Arms vectors of one kind. `None`: no vectors of this kind are available.
fn signalled(device: &Device, kind: u32, wanted: u32) -> Result<Option<Vec<OwnedFd>>, VfioError> {
    let mut count = wanted;
    while count > 0 {
        let events = (0..count).map(|_| device::event()).collect::<std::io::Result<Vec<OwnedFd>>>();
        let events = events.map_err(|error| VfioError::system(format!("{}: {count} events for its interrupts", device.address), error))?;
        match ioctl::signal_by(device.fd(), kind, &events) {
            Ok(0) => return Ok(Some(events)),
            // The machine has only so many.
            Ok(fewer) if fewer < count => count = fewer,
            _ => count /= 2,
        }
    }
    Ok(None)
}

impl IrqSource for Vectors {
    fn vectors(&self) -> u16 {
        self.events.len() as u16
    }

    fn event(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.events.get(usize::from(vector)).map(AsFd::as_fd)
    }

    fn clear(&self, vector: u16) {
        if let Some(event) = self.event(vector) {
            device::clear(event);
        }
    }

    fn wait(&self, vector: u16, at_most: Duration) {
        let Some(event) = self.event(vector) else { return self.pause(at_most) };
        // Longer than anybody waits for is for ever; an interruption is a return before the time.
        let time = Timespec::try_from(at_most).ok();
        let _ = poll(&mut [PollFd::new(&event, PollFlags::IN)], time.as_ref());
    }

    fn pause(&self, at_most: Duration) {
        std::thread::sleep(at_most);
    }
}
