//! The controller's registers (NVMe base specification 2.0, section 3.1.4).

use std::time::Duration;

/// The register of controller capabilities, 64 bits.
pub const CAP: usize = 0x00;
/// The register of the specification's version.
pub const VS: usize = 0x08;
/// The register of the controller configuration.
pub const CC: usize = 0x14;
/// The register of the controller status.
pub const CSTS: usize = 0x1c;
/// Entries of the admin queues.
pub const AQA: usize = 0x24;
/// Address of the admin submission queue, 64 bits.
pub const ASQ: usize = 0x28;
/// Address of the admin completion queue, 64 bits.
pub const ACQ: usize = 0x30;
/// The offset of the first doorbell.
pub const DOORBELLS: usize = 0x1000;

/// CC: the bit that enables the controller.
pub const CC_ENABLE: u32 = 1;
/// CC: entries of 64 and 16 bytes, pages of 4 KiB, round robin, the NVM command set.
pub const CC_SIZES: u32 = 6 << 16 | 4 << 20;
/// CC: requests a clean shutdown.
pub const CC_SHUTDOWN: u32 = 1 << 14;
/// CC: both bits of the shutdown.
pub const CC_SHUTDOWN_MASK: u32 = 3 << 14;

/// CSTS: the controller is ready for commands.
pub const CSTS_READY: u32 = 1;
/// CSTS: a fatal fault; only a reset helps.
pub const CSTS_FATAL: u32 = 2;
/// CSTS: the bits of the shutdown.
pub const CSTS_SHUTDOWN_MASK: u32 = 3 << 2;
/// CSTS: the shutdown is done.
pub const CSTS_SHUTDOWN_DONE: u32 = 2 << 2;

/// The value that a register of a removed device reads as.
pub const REMOVED: u32 = u32::MAX;

/// The value of the capabilities register (CAP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Returns the maximum number of entries of a queue, 2 to 65536.
    pub fn entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// Returns how long the controller may take to become ready or not ready. At least half a second, because some controllers report 0.
    pub fn ready_timeout(self) -> Duration {
        Duration::from_millis(500) * ((self.0 >> 24 & 0xff) as u32).max(1)
    }

    /// Returns the number of bytes from one doorbell to the next.
    pub fn stride(self) -> usize {
        4 << (self.0 >> 32 & 0xf)
    }

    /// Whether it knows the NVM command set, which has reads and writes.
    pub fn has_nvm(self) -> bool {
        self.0 >> 37 & 1 != 0
    }

    /// Whether its smallest page is one of 4 KiB.
    pub fn has_small_pages(self) -> bool {
        self.0 >> 48 & 0xf == 0
    }
}

/// Returns the offset of a submission queue's doorbell; `stride` is [`Capabilities::stride`].
pub fn submission_doorbell(queue: u16, stride: usize) -> usize {
    DOORBELLS + 2 * usize::from(queue) * stride
}

/// Returns the offset of a completion queue's doorbell.
pub fn completion_doorbell(queue: u16, stride: usize) -> usize {
    submission_doorbell(queue, stride) + stride
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn capabilities_are_recognized_by_their_bits() {
        let capabilities = Capabilities(1 << 37 | 2 << 32 | 20 << 24 | 2047);
        assert_eq!((capabilities.entries_max(), capabilities.stride()), (2048, 16));
        assert_eq!(capabilities.ready_timeout(), Duration::from_secs(10));
        assert!(capabilities.has_nvm() && capabilities.has_small_pages());
        assert_eq!(Capabilities(0).ready_timeout(), Duration::from_millis(500));
        assert_eq!((submission_doorbell(1, 4), completion_doorbell(1, 4)), (0x1008, 0x100c));
    }
}
