//! Both tiers: pages in RAM, and below it the SSD with its admission.

use block::Time;
use ssdcache::{Admission, AdmissionLimits, AdmissionRule, AdmissionVerdict, CacheStats, FileKey, PAGE_BYTES, PageIndex};

use super::{Cache, SsdIndex};

/// Who reads: how far he has come in sequence.
#[derive(Clone, Copy, Debug, Default)]
pub struct TierReader {
    next: u64,
    bytes: u64,
}

impl TierReader {
    /// He reads a page; so many bytes he has read right before it.
    fn comes_to(&mut self, page: u64) -> u64 {
        if page != self.next {
            self.bytes = 0;
        }
        self.next = page + 1;
        let before = self.bytes;
        self.bytes += PAGE_BYTES as u64;
        before
    }
}

/// Where the pages that were asked for came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierHits {
    /// RAM.
    pub ram: u64,
    /// The SSD.
    pub ssd: u64,
    /// TestFiles.
    pub below: u64,
}

impl TierHits {
    /// All.
    pub fn requests(&self) -> u64 {
        self.ram + self.ssd + self.below
    }

    /// The share of those that did not come from below.
    pub fn ratio(&self) -> f64 {
        (self.ram + self.ssd) as f64 / self.requests().max(1) as f64
    }

    /// Since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &TierHits) -> TierHits {
        TierHits { ram: self.ram - earlier.ram, ssd: self.ssd - earlier.ssd, below: self.below - earlier.below }
    }
}

/// A read asks RAM, then the SSD, then below; what came from below is in RAM then, and on the SSD if it is admitted. (The product's
/// worker does that a moment later.)
pub struct TieredCache {
    ram: Option<Box<dyn Cache>>,
    ssd: SsdIndex,
    admission: Admission,
}

impl TieredCache {
    /// Without RAM every read asks the SSD.
    pub fn new(ram: Option<Box<dyn Cache>>, ssd: SsdIndex, limits: AdmissionLimits) -> TieredCache {
        TieredCache { ram, ssd, admission: Admission::new(limits, Time(0)) }
    }

    /// One page; counted in `hits`.
    ///
    /// # Errors
    /// It cannot be cached.
    pub fn read(&mut self, reader: &mut TierReader, page: u64, hits: &mut TierHits) -> anyhow::Result<()> {
        let in_sequence = reader.comes_to(page);
        if self.ram.as_mut().is_some_and(|ram| ram.access(page)) {
            hits.ram += 1;
            return Ok(());
        }
        if self.ssd.read(page) {
            hits.ssd += 1;
            return Ok(());
        }
        hits.below += 1;
        let has_room = self.ssd.has_room();
        if self.admission.admit(Time(0), FileKey(1), PageIndex(page), in_sequence, AdmissionRule::Normal, has_room)
            == AdmissionVerdict::Admit
        {
            self.ssd.put(page)?;
        }
        Ok(())
    }

    /// What was written to the SSD.
    pub fn stats(&self) -> CacheStats {
        self.ssd.stats()
    }
}
