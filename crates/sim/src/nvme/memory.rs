//! The memory that the controller reaches, by addresses of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use pci::{DeviceAddress, DmaError};
use shm::Region;

const PAGE: u64 = 4096;
/// Violations that are kept with words.
const KEPT: usize = 20;

pub(super) struct Memory {
    /// Always another place, with a gap behind: what is a little off, or old, hits nothing.
    mapped: BTreeMap<u64, Arc<Region>>,
    next: u64,
    pub shared_only: bool,
    /// Everything was taken away.
    pub cut: bool,
    pub violations: Vec<String>,
}

impl Memory {
    pub(super) fn new(shared_only: bool) -> Memory {
        Memory { mapped: BTreeMap::new(), next: 1 << 20, shared_only, cut: false, violations: Vec::new() }
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
        self.mapped.insert(at, Arc::clone(region));
        Ok(DeviceAddress(at))
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

    /// The region and the place in it, if all bytes are mapped.
    fn find(&mut self, at: u64, bytes: usize) -> Option<(Arc<Region>, usize)> {
        if self.cut {
            return None;
        }
        let found = self.mapped.range(..=at).next_back().and_then(|(begin, region)| {
            let from = usize::try_from(at - begin).ok()?;
            (from <= region.len() && bytes <= region.len() - from).then(|| (Arc::clone(region), from))
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

    /// Some bytes of what is mapped: their address, and how many are mapped from there on.
    pub(super) fn any_place(&self, random: &mut fastrand::Rng) -> Option<(u64, usize)> {
        let (begin, region) = self.mapped.iter().nth(random.usize(..self.mapped.len().max(1)))?;
        // The begin of memory is where most of its use is.
        let most = if random.bool() { region.len() } else { region.len().min(4096) };
        let from = random.usize(..most);
        Some((begin + from as u64, region.len() - from))
    }

    pub(super) fn word(&mut self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// A region and a place in it, for atomic accesses of `bytes`.
    pub(super) fn place(&mut self, at: u64, bytes: usize) -> Option<(Arc<Region>, usize)> {
        self.find(at, bytes)
    }

    /// The pieces that PRP entries name, as (address, bytes). Rules of the specification that are broken are violations.
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
                // The last of a list's page names the next.
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
