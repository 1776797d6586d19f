//! Both tiers: pages in RAM, and the SSD with its admission policy.

use block::Time;
use ssdcache::{Admission, AdmissionLimits, AdmissionRule, AdmissionVerdict, CacheStats, FileKey, PAGE_BYTES, PageIndex};

use super::{Cache, SsdIndex};

/// A reader's position in a sequential stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct TierReader {
    next: u64,
    bytes: u64,
}

impl TierReader {
    /// Advances to a page and returns the bytes read sequentially before it.
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

/// Counts of where requested pages were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierHits {
    /// Number of hits in RAM.
    pub ram: u64,
    /// Number of hits on the SSD.
    pub ssd: u64,
    /// Reads from the backing file.
    pub below: u64,
}

impl TierHits {
    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.ram + self.ssd + self.below
    }

    /// Returns the hit ratio of both tiers.
    pub fn ratio(&self) -> f64 {
        (self.ram + self.ssd) as f64 / self.requests().max(1) as f64
    }

    /// Returns the difference to an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &TierHits) -> TierHits {
        TierHits { ram: self.ram - earlier.ram, ssd: self.ssd - earlier.ssd, below: self.below - earlier.below }
    }
}

/// A read looks in RAM, on the SSD, and in the backing file. A page from the backing file enters RAM, and the SSD if it is admitted. (The
/// product admits it a moment later, in its worker.)
pub struct TieredCache {
    ram: Option<Box<dyn Cache>>,
    ssd: SsdIndex,
    admission: Admission,
}

impl TieredCache {
    /// Creates the tiers; without RAM every read goes to the SSD.
    pub fn new(ram: Option<Box<dyn Cache>>, ssd: SsdIndex, limits: AdmissionLimits) -> TieredCache {
        TieredCache { ram, ssd, admission: Admission::new(limits, Time(0)) }
    }

    /// Reads one page and counts it in `hits`.
    ///
    /// # Errors
    /// The page cannot be cached.
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

    /// Returns the write counters of the SSD.
    pub fn stats(&self) -> CacheStats {
        self.ssd.stats()
    }
}
