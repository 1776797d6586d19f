//! The host memory that the controller can reach, by I/O virtual address.

use std::collections::BTreeMap;
use std::sync::Arc;

use pci::{DeviceAddress, DmaError};
use shm::Region;

const PAGE: u64 = 4096;
/// Number of violations kept as text.
const KEPT: usize = 20;
/// Maximum number of mappings of a remote host.
const MAPPED_MAX: usize = 4096;

/// Part of a region, mapped at an address.
struct Mapping {
    region: Arc<Region>,
    from: usize,
    bytes: usize,
}

pub(super) struct HostMemory {
    /// Each mapping gets a new address with a gap behind it, so that off-by-one and stale addresses miss.
    mapped: BTreeMap<u64, Mapping>,
    next: u64,
    /// Only memory with a descriptor can be mapped.
    pub shared_only: bool,
    /// All access to memory was revoked.
    pub cut: bool,
    /// Descriptions of the driver's first violations.
    pub violations: Vec<String>,
}

impl HostMemory {
    pub(super) fn new(shared_only: bool) -> HostMemory {
        HostMemory { mapped: BTreeMap::new(), next: 1 << 20, shared_only, cut: false, violations: Vec::new() }
    }

    pub(super) fn map(&mut self, region: &Arc<Region>) -> Result<DeviceAddress, DmaError> {
        if self.cut {
            return Err(DmaError::CutOff);
        }
        if self.shared_only && region.fd().is_none() && !cfg!(miri) {
            return Err(DmaError::NotShareable);
        }
        let at = self.next;
        self.next += (region.len() as u64).next_multiple_of(PAGE) + 4 * PAGE;
        self.mapped.insert(at, Mapping { region: Arc::clone(region), from: 0, bytes: region.len() });
        Ok(DeviceAddress(at))
    }

    /// Maps at an address that the host chose. `None`: invalid or overlapping.
    pub(super) fn map_at(&mut self, at: u64, region: Region, from: usize, bytes: usize) -> Option<()> {
        let end = at.checked_add(bytes as u64)?;
        let inside = bytes > 0 && from.checked_add(bytes)? <= region.len() && self.mapped.len() < MAPPED_MAX;
        let before = self.mapped.range(..end).next_back().is_some_and(|(begin, other)| begin + other.bytes as u64 > at);
        (inside && !before).then_some(())?;
        self.mapped.insert(at, Mapping { region: Arc::new(region), from, bytes });
        Some(())
    }

    /// Removes mappings within these addresses. Returns whether there were any.
    pub(super) fn unmap_at(&mut self, at: u64, bytes: u64) -> bool {
        let end = at.saturating_add(bytes);
        let before = self.mapped.len();
        self.mapped.retain(|begin, mapped| *begin < at || begin + mapped.bytes as u64 > end);
        self.mapped.len() < before
    }

    /// Removes everything, for the next host.
    pub(super) fn clear(&mut self) {
        self.mapped.clear();
        self.cut = false;
    }

    /// Returns the number of mapped regions.
    pub(super) fn mappings(&self) -> usize {
        self.mapped.len()
    }

    /// Places new mappings at or above this address.
    pub(super) fn go_on_from(&mut self, at: u64) {
        self.next = self.next.max(at.next_multiple_of(PAGE) + 4 * PAGE);
    }

    /// Maps a region at a free address that the caller chose.
    pub(super) fn put_at(&mut self, at: u64, region: &Arc<Region>) {
        self.mapped.insert(at, Mapping { region: Arc::clone(region), from: 0, bytes: region.len() });
    }

    pub(super) fn unmap(&mut self, at: DeviceAddress) {
        if self.mapped.remove(&at.0).is_none() {
            self.violation(format!("a mapping at {:#x} is ended that is not there", at.0));
        }
    }

    pub(super) fn violation(&mut self, what: String) {
        if self.violations.len() < KEPT {
            self.violations.push(what);
        }
    }

    /// Returns the region and offset if all bytes are mapped.
    fn find(&mut self, at: u64, bytes: usize) -> Option<(Arc<Region>, usize)> {
        if self.cut {
            return None;
        }
        let found = self.mapped.range(..=at).next_back().and_then(|(begin, mapped)| {
            let from = usize::try_from(at - begin).ok()?;
            let inside = from <= mapped.bytes && bytes <= mapped.bytes - from;
            inside.then(|| (Arc::clone(&mapped.region), mapped.from + from))
        });
        if found.is_none() {
            self.violation(format!("{bytes} bytes at {at:#x} are not mapped"));
        }
        found
    }

    pub(super) fn read(&mut self, at: u64, to: &mut [u8]) -> Option<()> {
        let (region, from) = self.find(at, to.len())?;
        region.read(from, to);
        Some(())
    }

    pub(super) fn write(&mut self, at: u64, from: &[u8]) -> Option<()> {
        let (region, to) = self.find(at, from.len())?;
        region.write(to, from);
        Some(())
    }

    /// Returns a random mapped address and the number of bytes mapped from there.
    pub(super) fn any_place(&self, random: &mut fastrand::Rng) -> Option<(u64, usize)> {
        let (begin, mapped) = self.mapped.iter().nth(random.usize(..self.mapped.len().max(1)))?;
        // The start of memory is used most.
        let most = if random.bool() { mapped.bytes } else { mapped.bytes.min(4096) };
        let from = random.usize(..most);
        Some((begin + from as u64, mapped.bytes - from))
    }

    pub(super) fn word(&mut self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns a region and offset for atomic accesses of `bytes`.
    pub(super) fn place(&mut self, at: u64, bytes: usize) -> Option<(Arc<Region>, usize)> {
        let found = self.find(at, bytes)?;
        if !found.1.is_multiple_of(bytes.min(8)) {
            self.violation(format!("{bytes} bytes at {at:#x} are no place for words"));
            return None;
        }
        Some(found)
    }

    /// Returns the (address, bytes) segments of PRP entries. Broken rules of the specification are violations.
    pub(super) fn pieces(&mut self, (prp1, prp2): (u64, u64), bytes: usize) -> Option<Vec<(u64, usize)>> {
        if !prp1.is_multiple_of(4) {
            self.violation(format!("PRP1 {prp1:#x} is no multiple of 4"));
            return None;
        }
        let first = bytes.min((PAGE - prp1 % PAGE) as usize);
        let mut pieces = vec![(prp1, first)];
        let mut left = bytes - first;
        if left == 0 {
            return Some(pieces);
        }
        if left <= PAGE as usize {
            return self.page(prp2, left).map(|piece| [pieces, vec![piece]].concat());
        }
        let mut at = prp2;
        while left > 0 {
            let mut entry = self.word(at)?;
            if at % PAGE == PAGE - 8 && left > PAGE as usize {
                // The last entry of a list page points to the next page.
                at = entry;
                entry = self.word(at)?;
            }
            let part = left.min(PAGE as usize);
            pieces.push(self.page(entry, part)?);
            (left, at) = (left - part, at + 8);
        }
        Some(pieces)
    }

    fn page(&mut self, at: u64, bytes: usize) -> Option<(u64, usize)> {
        if at.is_multiple_of(PAGE) {
            return Some((at, bytes));
        }
        self.violation(format!("PRP entry {at:#x} does not begin a page"));
        None
    }
}
