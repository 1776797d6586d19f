//! Registers: by messages, and through memory where the server offers it (doorbells).

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shm::Region;

use super::client::{Client, raise};
use super::wire::REGION_REGISTERS;
use crate::function::Mmio;

/// What a register of a device that is not there reads as.
const REMOVED: u32 = u32::MAX;

/// Registers that are mapped as memory.
pub(super) struct Mapped {
    /// The mapping of the server's file.
    pub region: Region,
    /// The offset of register 0 in the mapping.
    pub begin: usize,
    /// The ranges of registers that are mapped.
    pub areas: Vec<Range<usize>>,
}

/// Registers whose writes notify the server through a descriptor, because it may be asleep.
pub(super) struct WatchedRegister {
    /// The range of the registers' bytes.
    pub area: Range<usize>,
    /// The descriptor that notifies the server of a write.
    pub event: OwnedFd,
}

pub(super) struct Registers {
    /// The connection to the device's server.
    pub client: Arc<Client>,
    /// The size of the registers in bytes.
    pub bytes: usize,
    /// The registers that are mapped as memory, if any.
    pub mapped: Option<Mapped>,
    /// The registers whose writes also notify the server.
    pub bells: Vec<WatchedRegister>,
}

impl Registers {
    fn word(&self, at: usize) -> Option<&std::sync::atomic::AtomicU32> {
        let mapped = self.mapped.as_ref()?;
        let inside = mapped.areas.iter().any(|area| area.start <= at && at + 4 <= area.end);
        inside.then(|| mapped.region.u32(mapped.begin + at))
    }

    fn check(&self, at: usize, bytes: usize) {
        assert!(at.is_multiple_of(bytes) && at + bytes <= self.bytes, "no register at {at:#x}");
    }
}

impl Mmio for Registers {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn read32(&self, at: usize) -> u32 {
        self.check(at, 4);
        if self.client.is_lost() {
            return REMOVED;
        }
        if let Some(word) = self.word(at) {
            return word.load(Ordering::Acquire);
        }
        let mut bytes = [0; 4];
        self.client.read(REGION_REGISTERS, at as u64, &mut bytes).map_or(REMOVED, |()| u32::from_ne_bytes(bytes))
    }

    /// A write that is refused is one that a device ignores.
    fn write32(&self, at: usize, value: u32) {
        self.check(at, 4);
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
            for bell in self.bells.iter().filter(|bell| bell.area.contains(&at)) {
                raise(&bell.event);
            }
            return;
        }
        let _ = self.client.write(REGION_REGISTERS, at as u64, &value.to_ne_bytes());
    }
}
