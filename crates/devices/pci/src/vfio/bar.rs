//! The registers: the first memory range, mapped.
#![expect(unsafe_code, reason = "reads and writes a device's registers")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vfio_bindings::bindings::vfio;

use super::device::Device;
use super::error::VfioError;
use super::{caps, ioctl};
use crate::function::Mmio;

/// More than any NVMe controller has: doorbells of 65536 queues at the widest stride are 4 GiB, of those that are made some KiB.
const BYTES_MAX: u64 = 1 << 30;

/// The mapped registers of a device, aligned to a page. Dropping it unmaps them.
pub struct Bar {
    base: NonNull<u8>,
    bytes: usize,
    device: Arc<Device>,
}

// SAFETY: registers are only reached by single volatile accesses, which may come from any thread.
unsafe impl Send for Bar {}
// SAFETY: as above.
unsafe impl Sync for Bar {}

impl Bar {
    /// Maps the device's first memory range (BAR 0).
    pub fn map(device: &Arc<Device>) -> Result<Bar, VfioError> {
        let address = device.address;
        let unusable = |what| VfioError::Unusable { address, what };
        let system = |error: io::Error| VfioError::system(format!("{address}: mapping its registers"), error);
        let (region, bytes) = ioctl::region_info(device.fd(), vfio::VFIO_PCI_BAR0_REGION_INDEX).map_err(system)?;
        if region.size == 0 {
            return Err(unusable("it has no registers in memory (BAR 0)"));
        }
        let wanted = vfio::VFIO_REGION_INFO_FLAG_MMAP | vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE;
        if region.flags & wanted != wanted {
            return Err(unusable("its registers cannot be mapped (BAR 0)"));
        }
        // Only parts of it, perhaps: what lies at its begin has the doorbells.
        let parts = caps::find(&bytes, region.cap_offset, vfio::VFIO_REGION_INFO_CAP_SPARSE_MMAP).map(caps::ranges);
        let first = parts.map_or(Some((0, region.size)), |parts| parts.into_iter().find(|(begin, bytes)| *begin == 0 && *bytes > 0));
        let (_, size) = first.ok_or_else(|| unusable("the begin of its registers cannot be mapped (BAR 0)"))?;
        let bytes = size.min(region.size).min(BYTES_MAX) & !4095;
        let bytes =
            usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| unusable("its registers are not a page (BAR 0)"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, device.fd(), region.offset) };
        let base = base.map_err(|error| system(error.into()))?;
        Ok(Bar { base: NonNull::new(base.cast()).expect("a mapping is never at address 0"), bytes, device: Arc::clone(device) })
    }

    #[inline]
    fn place<T>(&self, at: usize) -> *mut T {
        let width = size_of::<T>();
        assert!(at.is_multiple_of(width) && at < self.bytes && width <= self.bytes - at, "register {at:#x} of {:#x}", self.bytes);
        // SAFETY: within the mapping, as was just looked at.
        unsafe { self.base.as_ptr().add(at).cast() }
    }
}

/// What was stored to memory before is seen by the device before what is written to its registers next.
#[inline]
fn before_write() {
    #[cfg(target_arch = "x86_64")]
    // Stores are seen in their order, those to registers too: only the compiler has to keep it.
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: only orders memory. Fences of the language order what CPUs see, not what devices see.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// What is read from memory next is not older than what was just read from a register.
#[inline]
fn after_read() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: only orders memory.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

impl Mmio for Bar {
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// All ones also when the kernel wants the device back.
    fn read32(&self, at: usize) -> u32 {
        let place = self.place::<u32>(at);
        if self.device.is_leaving() {
            return u32::MAX;
        }
        // SAFETY: mapped as long as `self`, aligned; a register holds any bits.
        let value = unsafe { place.read_volatile() };
        after_read();
        u32::from_le(value)
    }

    #[inline]
    fn write32(&self, at: usize, value: u32) {
        let place = self.place::<u32>(at);
        before_write();
        // SAFETY: mapped as long as `self`, aligned; what a register does concerns the device, which reaches only what it was given.
        unsafe { place.write_volatile(value.to_le()) }
    }

    fn read64(&self, at: usize) -> u64 {
        let place = self.place::<u64>(at);
        if self.device.is_leaving() {
            return u64::MAX;
        }
        // SAFETY: as for `read32`.
        let value = unsafe { place.read_volatile() };
        after_read();
        u64::from_le(value)
    }

    fn write64(&self, at: usize, value: u64) {
        let place = self.place::<u64>(at);
        before_write();
        // SAFETY: as for `write32`.
        unsafe { place.write_volatile(value.to_le()) }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every use of it borrowed `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
