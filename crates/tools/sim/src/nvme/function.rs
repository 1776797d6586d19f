//! The controller as a PCI function: registers, DMA memory and interrupts.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use pci::{DeviceAddress, DmaError, DmaSpace, IrqSource, Mmio};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shm::Region;

use super::{ClockSource, SoftController};

impl Mmio for SoftController {
    fn bytes(&self) -> usize {
        0x4000
    }

    fn read32(&self, at: usize) -> u32 {
        let now = self.times.now();
        self.lock().read_register(at, now)
    }

    fn write32(&self, at: usize, value: u32) {
        let now = self.times.now();
        self.lock().write_register(at, value, now);
    }
}

impl DmaSpace for SoftController {
    fn allocate(&self, bytes: usize) -> Result<Arc<Region>, DmaError> {
        let region = if self.lock().memory.shared_only && !cfg!(miri) {
            Region::shared("nvme", bytes)?
        } else {
            Region::private(bytes, shm::PageSize::Small)?
        };
        Ok(Arc::new(region))
    }

    fn map(&self, region: &Arc<Region>) -> Result<DeviceAddress, DmaError> {
        self.lock().memory.map(region)
    }

    fn unmap(&self, _: &Arc<Region>, at: DeviceAddress) {
        self.lock().memory.unmap(at);
    }

    fn cut_off(&self) -> bool {
        let mut state = self.lock();
        state.memory.cut = true;
        state.faults.cut_off_fails = state.faults.cut_off_fails.saturating_sub(1);
        state.faults.cut_off_fails == 0
    }
}

impl IrqSource for SoftController {
    fn vectors(&self) -> u16 {
        self.lock().shape.vectors
    }

    fn event(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.events.get(usize::from(vector)).map(AsFd::as_fd)
    }

    fn clear(&self, vector: u16) {
        let mut state = self.lock();
        if let Some(raised) = state.raised.get_mut(usize::from(vector)) {
            *raised = false;
        }
        if let Some(event) = state.events.get(usize::from(vector)) {
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
        }
    }

    fn wait(&self, vector: u16, at_most: Duration) {
        self.step();
        if let Some(event) = self.events.get(usize::from(vector)) {
            let seconds = i64::try_from(at_most.as_secs().min(1 << 30)).unwrap_or(0);
            let most = Timespec { tv_sec: seconds, tv_nsec: at_most.subsec_nanos().into() };
            // A signal ends the wait early, which is permitted.
            let _ = poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&most));
            return;
        }
        self.pass_until(Some(vector), self.times.now().after(at_most));
    }

    fn pause(&self, at_most: Duration) {
        self.step();
        if matches!(self.times, ClockSource::Real(_)) {
            std::thread::sleep(at_most.min(Duration::from_millis(1)));
        }
        self.pass_until(None, self.times.now().after(at_most));
    }
}
